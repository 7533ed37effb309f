"""Who is invited: connected, enrolled, willing, and no suspect."""

import pytest

from fl.plan import LocalPlan, RoundKind, TaskPlan, TrainingPlan
from fl.rounds import RoundPreview
from secagg.blame import Suspect, suspects
from secagg.evidence import Evidence, EvidenceKind
from secagg.ids import RunId
from secagg.messages import Complaint
from secagg.parameters import VectorSpec, meta
from secagg.testing import make_federation, make_parameters
from services.coordinator.cohorts import Cohorts, asked_n_c
from services.coordinator.hub import Hub

FEDERATION = make_federation(6)
PLAN = TrainingPlan(
    task=TaskPlan(name="fl.testing:toy_task"),
    local=LocalPlan(local_steps=1, learning_rate=0.1),
    rounds=2,
    max_silos=5,
)


@pytest.fixture
def cohorts() -> Cohorts:
    """Five silos of six are enrolled; all but the second are connected."""
    hub = Hub(roster=FEDERATION.roster)
    for seat in FEDERATION.roster.seats:
        if seat.index != 2:
            hub.presence.hello(seat.silo, bytes(16))
    return Cohorts(run=RunId(bytes(16)), plan=PLAN, hub=hub, redundancy=0, enrolled=(1, 2, 3, 4, 5))


def present(cohorts: Cohorts) -> list[int]:
    """The seats that would be invited."""
    return [seat.index for seat in cohorts.present()]


def complaint(seat: int, dealer: int) -> Complaint:
    """One end of a quarrel about the other's shares."""
    return Complaint(setup=bytes(32), seat=seat, dealer=dealer, reason="A4_BAD_SHARE")


def proof(seat: int) -> Evidence:
    """A case, whatever it is worth."""
    parameters = make_parameters(
        FEDERATION.roster, VectorSpec(segments=(meta("count", 1, bound=9),))
    )
    return Evidence(
        kind=EvidenceKind.BAD_REVEALER, accused=seat, parameters=parameters, statements=()
    )


def test_a_refusal_counts_for_the_run(cohorts: Cohorts) -> None:
    """It is named with the silo's own reason."""
    assert present(cohorts) == [1, 3, 4, 5]
    cohorts.refusals[4] = "A1_POLICY_REFUSED: n_c"
    assert present(cohorts) == [1, 3, 5]
    assert cohorts.missing() == "not connected: silo-2; silo-4 says A1_POLICY_REFUSED: n_c"
    cohorts.refusals[2] = "A1_POLICY_REFUSED: n_c"
    assert "not connected" not in cohorts.missing(), "it is known why it takes no part"


def test_a_rule_refuses_for_good_and_a_fault_does_not(cohorts: Cohorts) -> None:
    """A silo's owner may mend data or a version meanwhile; a rule is what the owner wants."""
    cohorts.refusals |= {
        1: "DataError: its own log says why",
        2: "QueryRefusedError: policy rule statistics = refuse",
        3: "LeftRunError: an operator may admit it again",
        4: "A1_POLICY_REFUSED: policy rule min_redundancy",
        5: "BudgetExhaustedError: spent",
        6: "A1_POLICY_REFUSED: of a silo that is not in this run",
    }
    assert list(cohorts.refused_for_good()) == [2, 4, 5]


def quarrel(seat: int, dealer: int) -> tuple[Suspect, ...]:
    """What the server makes of a complaint."""
    return suspects([], [complaint(seat, dealer)])


def test_a_complaint_counts_for_the_run(cohorts: Cohorts) -> None:
    """Against both of its ends."""
    why = "left out of this run: silo-5 says that silo-1's shares are bad"
    assert cohorts.suspect(quarrel(5, 1)) == {1: why, 5: why}
    assert present(cohorts) == [3, 4]
    assert cohorts.suspect(quarrel(5, 1)) == {}


def test_one_liar_costs_one_honest_silo(cohorts: Cohorts) -> None:
    """It complains about another one in each attempt, as in two that are open at once."""
    cohorts.suspect([*quarrel(5, 1), *quarrel(5, 3)])
    cohorts.suspect(quarrel(5, 4))
    assert present(cohorts) == [3, 4]
    assert [(one.seat, one.dealer) for one in cohorts.complaints] == [(5, 1)]
    cohorts.suspect(quarrel(3, 1))  # about one that is out already
    assert present(cohorts) == [3, 4]
    cohorts.suspect(quarrel(3, 4))
    assert present(cohorts) == []


def test_nobody_is_doubted_for_the_word_of_a_proven_liar(cohorts: Cohorts) -> None:
    """Nor for a quarrel with it."""
    cohorts.suspect([*quarrel(5, 1), Suspect(seat=5, evidence=proof(5))])
    cohorts.suspect(quarrel(3, 5))
    assert present(cohorts) == [1, 3, 4]


def test_a_proof_counts_from_then_on(cohorts: Cohorts) -> None:
    """It takes the place of a doubt."""
    cohorts.suspect(quarrel(5, 3))
    told = cohorts.suspect([Suspect(seat=5, evidence=proof(5))])
    assert told == {}, "left out before"
    assert present(cohorts) == [1, 4]
    assert cohorts.missing() == (
        "not connected: silo-2; silo-5 is left out: there is evidence against it (bad revealer); "
        "see `secagg transcript verify`; silo-3 is left out of this run: silo-5 says that silo-3's "
        "shares are bad"
    )


def test_three_silos_are_safe_against_nobody() -> None:
    """So none of them may see what the coordinator sees."""
    assert [asked_n_c(make_federation(n).roster, PLAN) for n in (3, 4, 7)] == [0, 1, 2]


def test_n_c_never_shrinks_below_what_a_private_run_was_signed_with(cohorts: Cohorts) -> None:
    """Silos leave the federation: a third of the rest is fewer, and the quorum counts with more."""
    preview = RoundPreview(
        kind=RoundKind.TRAINING,
        number=2,
        spec=VectorSpec(segments=(meta("count", 1, bound=9),)),
        coefficients=("common",),
    )
    assert cohorts.parameters(preview, 0).n_c == 1
    cohorts.least_n_c = 3
    assert cohorts.parameters(preview, 0).n_c == 3
    assert cohorts.least(preview) == 5


def test_a_spent_budget_is_known_by_the_silos_own_word(cohorts: Cohorts) -> None:
    """Of the run's silos only, and told from every other refusal."""
    cohorts.refusals |= {
        3: "BudgetExhaustedError: this silo's data-set budget is spent",
        4: "SchemaError: this silo's data or update cannot be used",
        6: "BudgetExhaustedError: it is not of this run",
    }
    assert cohorts.spent == (3,)

"""A bad dealer may be left out of a sum that is made again, and nobody else.

The dealer is honest but for one false commitment, which nobody can notice before the shares are
open. Then its round is lost, and whoever was in it sums this state with the same survivors only;
without the dealer, if each of them has seen the proof and judged it itself (SA1 spec 2.5 v, 3.4).
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg import messages
from secagg.codec import MAX_RECORD_BYTES
from secagg.effects import AbortReason
from secagg.errors import (
    MalformedMessageError,
    OversizeError,
    SurvivorsMismatchError,
    SurvivorsUncertifiedError,
)
from secagg.evidence import Evidence, EvidenceKind, bad_dealer, bad_revealer, judge, two_statements
from secagg.ids import RunId
from secagg.journal import JournalEvent, JournalRecord, SiloHistory
from secagg.lifting import may_lift
from secagg.messages import MaskedInput, Message, Share, SurvivorsRequest, Unmask
from secagg.secretbytes import Secret
from secagg.testing import (
    Outcome,
    RoundHarness,
    make_federation,
    make_parameters,
    make_succession,
)
from tests.adversary.mutants import silo_without
from tests.adversary.stage import MODEL, Stage, random_inputs, small_spec

pytestmark = pytest.mark.adversary

FEDERATION = make_federation(6)
LIAR, OTHER_LIAR = 6, 5
HONEST = (1, 2, 3, 4, 5)


class BadlyDealt(Stage):
    """An attempt in which the liars commit to another b_u than they deal."""

    def __init__(self, *silos: int, liars: tuple[int, ...] = (LIAR,), **rest: Any) -> None:
        super().__init__(*silos, **rest)
        self.liars = liars

    def share(self) -> None:
        """As the stage does; then the liars sign their falsified Share."""
        super().share()
        for liar in set(self.liars) & set(self.cohort):
            honest = self.last(liar, Share)
            false = messages.signed(
                replace(honest, commitment_b=bytes(32)), self.federation.identities[liar]
            )
            self.sent[liar].append(false)
            self.silos[liar]._own_root = false.root

    def case(self, dealer: int = LIAR, **changes: Any) -> Evidence:
        """The case that the server's end makes of it."""
        shares = self.all_of(Share)
        details: dict[str, Any] = {
            "dealer": dealer,
            "parameters": self.parameters,
            "advertises": self.advertises,
            "share": shares[dealer],
            "unmasks": self.all_of(Unmask),
            "model_hash": next(iter(self.silos.values()))._view.model_hash,
            "share_roots": {seat: share.root for seat, share in shares.items()},
        }
        return Evidence.decode(bad_dealer(**details | changes).encode())


def lost(*liars: int, state: bytes = MODEL) -> BadlyDealt:
    """A round over all six that is lost after its shares were opened."""
    first = BadlyDealt(
        6, federation=FEDERATION, liars=liars or (LIAR,), corrupted=(LIAR,), histories={}
    )
    first.open_shares(state=state)
    return first


def again(
    first: Stage, *uploads: int, cohort: tuple[int, ...] = HONEST, state: bytes = MODEL, **rest: Any
) -> BadlyDealt:
    """The next round on the same state, up to the uploads; without the liar by default.

    The silos know of earlier rounds what is on their disks.
    """
    second = BadlyDealt(
        6,
        federation=FEDERATION,
        cohort=cohort,
        histories={seat: SiloHistory(first.journals[seat]) for seat in cohort},
        view=first.view,
        inputs=first.inputs,
        round=first.parameters.round + 1,
        **rest,
    )
    for seat in cohort:
        second.journals[seat] += first.journals[seat]
    second.mask(*uploads, state=state)
    return second


def request(stage: Stage, *cases: Evidence | bytes) -> SurvivorsRequest:
    """All uploads of the stage, with these cases."""
    data = tuple(case if isinstance(case, bytes) else case.encode() for case in cases)
    return replace(stage.request(), cases=data)


def test_the_round_is_made_again_without_the_liar() -> None:
    """The proof goes with the survivors; the two sums differ by the liar's own input."""
    first = lost()
    second = again(first)
    assert second.last(1, MaskedInput).prior == (1, 2, 3, 4, 5, 6)
    second.tell_all(request(second, first.case()))
    second.tell_all(second.certificate())
    values = second.sum_of(*HONEST)
    second.tell_all(second.result(values))
    assert second.finished.keys() == set(HONEST)
    second.view.see_sum(second.setup, "the sum", values)
    second.assert_hidden(first)  # the shares of both rounds are open


def test_a_silo_that_does_not_judge() -> None:
    """Negative control: an honest dealer is left out, and the difference is its input."""
    first = lost()
    case = first.case(5)
    honest = again(first, 1, 2, 3, 4)
    honest.refuses(1, request(honest, case, first.case()), SurvivorsMismatchError, "does not hold")
    mutant = silo_without(("            judge(case, roster)\n", ""))
    second = again(first, 1, 2, 3, 4, silo_class=mutant, seed=1)
    second.tell_all(request(second, case, first.case()), (1, 2, 3, 4))
    second.tell_all(second.certificate(), (1, 2, 3, 4))
    leaks = second.view.search(first.truth() | second.truth())
    assert any("seat 5" in leak for leak in leaks)


def test_without_the_proof() -> None:
    """On the server's word nobody is left out."""
    first = lost()
    second = again(first)
    for seat in HONEST:
        second.refuses(seat, second.request(), SurvivorsMismatchError, "summed before")
    second.assert_hidden(first)


def test_a_proof_for_some_silos_only() -> None:
    """Those that see none refuse, and the others are fewer than t."""
    first = lost()
    second = again(first)
    second.tell_all(request(second, first.case()), (1, 2, 3))
    for seat in (4, 5):
        second.refuses(seat, second.request(), SurvivorsMismatchError, "summed before")
    assert second.threshold == 4
    second.refuses(1, second.certificate(), SurvivorsUncertifiedError)
    second.assert_hidden(first)


def test_the_proof_is_remembered() -> None:
    """A silo names its earlier survivors without who was proven a liar, also after a restart."""
    first = lost()
    second = again(first)
    second.tell_all(request(second, first.case()))
    second.tell_all(second.certificate())  # and this round's result never comes
    for known in (second.histories[1], SiloHistory(second.journals[1])):
        kind, run = second.parameters.kind, second.parameters.run
        model = messages.model_hash(kind, MODEL)
        assert known.prior(kind, model, run) == (HONEST,)
        assert known.certified() == [frozenset(HONEST)] * 2
    third = again(second)
    assert third.last(1, MaskedInput).prior == HONEST
    third.tell_all(third.request())
    third.assert_hidden(first, second)


def test_two_liars_one_after_the_other() -> None:
    """Each costs a round, and no silo has to name two sets of survivors."""
    first = lost()
    second = again(first, liars=(OTHER_LIAR,))
    second.tell_all(request(second, first.case()))
    second.tell_all(second.certificate())
    third = again(second, cohort=(1, 2, 3, 4))
    assert third.last(1, MaskedInput).prior == HONEST
    third.tell_all(request(third, second.case(OTHER_LIAR)))
    third.view.corrupted.add(OTHER_LIAR)
    third.assert_hidden(first, second)


def test_who_knows_of_the_liar_and_who_does_not() -> None:
    """Some name it and some do not; with the case all of them sign the same survivors."""
    first = lost()
    for seat in (1, 2):
        line = JournalRecord(
            event=JournalEvent.LIFTED,
            attempt=first.parameters.attempt_id,
            message=messages.model_hash(first.parameters.kind, MODEL),
            survivors=(LIAR,),
        )
        first.journals[seat].append(line)
    second = again(first)
    assert {item.prior for item in second.all_of(MaskedInput).values()} == {
        HONEST,
        (*HONEST, LIAR),
    }
    second.tell_all(request(second, first.case()))
    assert {silo.survivors for silo in second.silos.values()} == {HONEST}


def test_the_lost_round_is_settled_by_the_one_that_was_made_again() -> None:
    """From its result on, other states are summed with whoever is there."""
    first = lost()
    run = first.parameters.run
    second = again(first)
    second.tell_all(request(second, first.case()))
    second.tell_all(second.certificate())
    assert len(second.histories[1].open_submissions(run)) == 2
    second.tell_all(second.result(second.sum_of(*HONEST)))
    assert second.histories[1].open_submissions(run) == ()
    third = again(second, cohort=(1, 2, 3, 4), state=b"what follows")
    assert third.last(1, MaskedInput).prior == ()
    third.tell_all(third.request())


def test_the_lost_round_is_settled_at_a_silo_that_missed_the_certificate() -> None:
    """The result has it, too, and tells the survivors."""
    first = lost()
    second = again(first)
    second.tell_all(request(second, first.case()))
    second.tell_all(second.certificate(), (1, 2, 4, 5))
    second.tell_all(second.result(second.sum_of(*HONEST)))
    for known in (second.histories[3], SiloHistory(second.journals[3])):
        assert known.certified() == [frozenset(HONEST)] * 2
        assert known.open_submissions(second.parameters.run) == ()


def test_a_liar_of_one_sum_is_a_silo_like_others_in_the_next() -> None:
    """Its machine was repaired: what it puts into other sums is its own secret again."""
    first = lost()
    second = again(first)
    second.tell_all(request(second, first.case()))
    second.tell_all(second.certificate())
    lines = {seat: SiloHistory(second.journals[seat]) for seat in HONEST} | {LIAR: SiloHistory()}
    other: dict[str, Any] = {"federation": FEDERATION, "run": RunId(b"after the repair")}
    third = Stage(6, histories=lines, **other)
    third.open_shares(state=b"another state")  # and the result is withheld
    fourth = Stage(6, cohort=HONEST, histories=lines, round=2, inputs=third.inputs, **other)
    fourth.mask(state=b"another state")
    assert fourth.last(1, MaskedInput).prior == (*HONEST, LIAR)
    for seat in HONEST:
        fourth.refuses(seat, fourth.request(), SurvivorsMismatchError, "summed before")


# --- what proves nothing -----------------------------------------------------------------------


def _refused(first: BadlyDealt, why: str, *cases: Evidence | bytes) -> None:
    second = again(first)
    for seat in (1, 2):
        second.refuses(seat, request(second, *cases), SurvivorsMismatchError, why)


def test_cases_that_do_not_hold() -> None:
    """Rubbish, an honest dealer's shares, a forged signature, a case against somebody else."""
    first = lost()
    case = first.case()
    honest = first.case(2)
    forged = replace(first.last(2, Share), commitment_b=bytes(32))
    by_another = messages.signed(forged, FEDERATION.identities[LIAR])
    roots = {seat: share.root for seat, share in first.all_of(Share).items()}
    framed = first.case(2, share=by_another, share_roots=roots | {2: by_another.root})
    for false in (b"", b"rubbish", honest, framed, replace(case, accused=2)):
        _refused(first, "does not hold", false)


def test_a_case_about_another_state() -> None:
    """An old round's case says nothing about who is in the sums of this one."""
    old = lost(state=b"an older state")
    first = lost()
    _refused(first, "about this state only", old.case())


def test_a_case_lifts_nobody_from_exact_queries() -> None:
    """They share one state: who spoiled one sum over it may be honest in the next."""
    case, roster = lost().case(), FEDERATION.roster
    where: dict[str, Any] = {
        "model_hash": case.model_hash,
        "roster": roster,
        "run": case.parameters.run,
    }
    assert may_lift(case, kind=case.parameters.kind, **where)
    query = replace(case, parameters=replace(case.parameters, kind="statistics"))
    assert not may_lift(query, kind="statistics", **where)


def honest_in_another_run(first: BadlyDealt) -> Stage:
    """All six sum the same state in another run, the liar repaired; the result is withheld."""
    later = Stage(
        6,
        federation=FEDERATION,
        histories={seat: SiloHistory(first.journals[seat]) for seat in (*HONEST, LIAR)},
        inputs=first.inputs,
        run=RunId(b"after the repair"),
    )
    for seat in HONEST:
        later.journals[seat] += first.journals[seat]
    later.open_shares()
    return later


def test_a_case_of_another_run() -> None:
    """What spoiled one run's sum over a state says nothing of who was honest in another's."""
    first = lost()
    later = honest_in_another_run(first)
    again_there = again(later, run=later.parameters.run)
    assert again_there.last(1, MaskedInput).prior == (*HONEST, LIAR)
    for seat in HONEST:
        again_there.refuses(
            seat, request(again_there, first.case()), SurvivorsMismatchError, "only, of this run"
        )


def test_what_was_proven_in_another_run_is_not_remembered_here() -> None:
    """The silo has judged it there; here the seat counts like any other."""
    first = lost()
    later = honest_in_another_run(first)
    kind, run = later.parameters.kind, later.parameters.run
    model = messages.model_hash(kind, MODEL)
    line = JournalRecord(
        event=JournalEvent.LIFTED,
        attempt=first.parameters.attempt_id,
        message=model,
        survivors=(LIAR,),
    )
    known = SiloHistory([*later.journals[1], line])
    assert set(known.prior(kind, model, run)) == {HONEST, (*HONEST, LIAR)}
    assert known.certified() == [frozenset(HONEST), frozenset((*HONEST, LIAR))]


def test_a_case_under_another_roster() -> None:
    """Another federation's, or another version's: the judge needs the roster of that round."""
    first = lost()
    other = Stage(6, federation=make_federation(6, seed=1)).parameters
    case = first.case()
    _refused(first, "does not hold", replace(case, parameters=other))


@pytest.mark.parametrize("kind", ["contradiction", "bad revealer"])
def test_other_kinds_of_cases(kind: str) -> None:
    """They are true, and a silo restored from an older copy, or one that dealt well, is in them."""
    first = lost()
    unmask = first.last(LIAR, Unmask)
    wrong = replace(unmask.openings[0], share=Secret(bytes(33)))
    lie = messages.signed(
        replace(unmask, openings=(wrong, *unmask.openings[1:])), FEDERATION.identities[LIAR]
    )
    case = two_statements(EvidenceKind.CONTRADICTION, LIAR, first.parameters, unmask, lie)
    if kind == "bad revealer":
        made = first.case()
        shares = first.all_of(Share)
        case = bad_revealer(
            parameters=first.parameters,
            advertises=first.advertises,
            share=shares[1],
            unmask=lie,
            model_hash=made.model_hash,
            share_roots={seat: share.root for seat, share in shares.items()},
        )
    case = replace(case, model_hash=first.case().model_hash)
    assert judge(case, FEDERATION.roster).accused == "silo-6"
    _refused(first, "about this state only", case)


def test_cases_that_are_not_needed() -> None:
    """One for each seat that is missing, and no more: all that sign see the same ones missing."""
    first = lost()
    case = first.case()
    _refused(first, "one case is shown", case, case)
    second = again(first, cohort=(*HONEST, LIAR), liars=())
    second.refuses(1, request(second, case), SurvivorsMismatchError, "summed before")
    fresh = Stage(6, federation=FEDERATION)
    fresh.mask()
    fresh.refuses(1, request(fresh, case), SurvivorsMismatchError, "one case is shown")


def test_too_many_cases() -> None:
    """They are counted before any is read."""
    first = lost()
    second = again(first)
    many = request(second, *[b"x"] * (messages.MAX_CASES + 1))
    with pytest.raises((OversizeError, MalformedMessageError)):
        messages.decode_message(many.encode())


def test_a_silo_that_is_framed_with_its_own_key() -> None:
    """Whoever holds the key of an honest silo convinces the others, and not the silo itself."""
    victim = OTHER_LIAR
    first = lost(LIAR, victim)
    second = again(first, 1, 2, 3, 4)
    asked = request(second, first.case(victim), first.case())
    second.refuses(victim, asked, SurvivorsMismatchError, "and is none")
    second.tell(1, asked)
    assert second.silos[1].survivors == (1, 2, 3, 4)


# --- the server's end -----------------------------------------------------------------------------

SPEC = small_spec(8)
INPUTS = random_inputs((*HONEST, LIAR), SPEC, 3)


def _play(
    number: int, histories: dict[int, SiloHistory], *liars: int, **script: Any
) -> tuple[RoundHarness, Outcome]:
    """A round on one state, with liars that falsify what they have dealt."""

    def lie(seat: int, message: Message) -> Message:
        if seat not in liars or not isinstance(message, Share):
            return message
        false = messages.signed(
            replace(message, commitment_b=bytes(32)), FEDERATION.identities[seat]
        )
        harness.silos[seat]._own_root = false.root
        return false

    harness = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC, round=number),
        state=MODEL,
        train=lambda seat, _parameters, _state: INPUTS[seat],
        histories=histories,
        to_server=lie,
        **script,
    )
    return harness, harness.run()


def test_the_run_goes_on_without_each_liar() -> None:
    """Round by round: lost, lost again to another liar, and then summed over who is left."""
    histories: dict[int, SiloHistory] = {}
    cases: list[Evidence] = []
    for number, liar in ((1, LIAR), (2, OTHER_LIAR)):
        cohort = tuple(seat for seat in (*HONEST, LIAR) if liar == LIAR or seat != LIAR)
        harness, outcome = _play(number, histories, liar, cohort=cohort, cases=tuple(cases))
        assert outcome.silo_errors == {}
        assert outcome.aborted is not None
        assert outcome.aborted.reason is AbortReason.BAD_DEALER
        (case,) = harness.server.evidence
        assert case.accused == liar
        cases.append(case)
    _, outcome = _play(3, histories, cohort=(1, 2, 3, 4), cases=tuple(cases))
    assert outcome.silo_errors == {}
    assert outcome.aggregate is not None
    for name, column in outcome.aggregate.values.items():
        assert column.tolist() == np.sum([INPUTS[s][name] for s in (1, 2, 3, 4)], axis=0).tolist()


def test_without_the_case_the_server_asks_for_no_signatures() -> None:
    """Nor with one about another state; with it, all six may be summed again just as well."""
    histories: dict[int, SiloHistory] = {}
    harness, _ = _play(1, histories, LIAR)
    cases = harness.server.evidence
    other = tuple(replace(case, model_hash=bytes(32)) for case in cases)
    for number, shown in ((2, ()), (3, other)):
        _, outcome = _play(number, histories, cohort=HONEST, cases=shown)
        assert outcome.aborted is not None
        assert outcome.aborted.reason is AbortReason.REPEAT
        for seat in HONEST:  # nobody has opened anything
            known = histories[seat]
            attempt = make_parameters(FEDERATION.roster, SPEC, round=number).attempt_id
            known.apply(JournalRecord(event=JournalEvent.DEAD, attempt=attempt))
    _, outcome = _play(4, histories, cases=cases)  # the liar deals well now
    assert outcome.aggregate is not None
    assert outcome.aggregate.survivors == (*HONEST, LIAR)


def test_a_made_up_prior_with_a_liar_in_it() -> None:
    """Its author's upload stays out, as with every other made-up prior."""
    histories: dict[int, SiloHistory] = {}
    harness, _ = _play(1, histories, LIAR)

    def lie(seat: int, message: Message) -> Message:
        if seat != OTHER_LIAR or not isinstance(message, MaskedInput):
            return message
        prior = (LIAR,)
        return messages.signed(replace(message, prior=prior), FEDERATION.identities[seat])

    parameters = make_parameters(FEDERATION.roster, SPEC, round=2)
    outcome = RoundHarness(
        federation=FEDERATION,
        parameters=parameters,
        state=MODEL,
        succession=make_succession(FEDERATION, parameters, MODEL),
        train=lambda seat, _parameters, _state: INPUTS[seat],
        cohort=HONEST,
        cases=harness.server.evidence,
        to_server=lie,
    ).run()
    assert outcome.silo_errors == {}
    assert outcome.aggregate is not None
    assert outcome.aggregate.survivors == (1, 2, 3, 4)


@pytest.mark.parametrize("crowd", ["large", "many"])
def test_more_cases_than_a_message_holds(crowd: str) -> None:
    """What does not fit is not shown, and the round is given up before anybody signs."""
    histories: dict[int, SiloHistory] = {}
    harness, _ = _play(1, histories, LIAR)
    (case,) = harness.server.evidence
    cases = (*(replace(case, accused=100 + one) for one in range(messages.MAX_CASES)), case)
    if crowd == "large":
        cases = (replace(case, statements=(bytes(MAX_RECORD_BYTES // 2), *case.statements)),)
    _, outcome = _play(2, histories, cohort=HONEST, cases=cases)
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.REPEAT


@pytest.mark.parametrize(("over", "shown"), [(0, True), (1, False)])
def test_cases_fill_half_a_message(over: int, shown: bool) -> None:
    """The last byte of it, too; what is shown is then judged, and this one holds too much."""
    histories: dict[int, SiloHistory] = {}
    harness, _ = _play(1, histories, LIAR)
    (case,) = harness.server.evidence
    fill = MAX_RECORD_BYTES // 2 - len(replace(case, statements=(b"", *case.statements)).encode())
    cases = (replace(case, statements=(bytes(fill + over), *case.statements)),)
    _, outcome = _play(2, histories, cohort=HONEST, cases=cases)
    assert outcome.aborted is not None
    wanted = AbortReason.TOO_FEW_SIGNED if shown else AbortReason.REPEAT
    assert outcome.aborted.reason is wanted

"""Silos that name earlier survivors: true ones lead to the same sum, made-up ones to nothing."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from secagg import messages
from secagg.effects import AbortReason
from secagg.journal import SiloHistory
from secagg.messages import Abandon, AbandonRequest, MaskedInput, Message, Unmask
from secagg.parameters import RoundParameters, VectorSpec, bulk
from secagg.phases import Phase
from secagg.ring import IntVector
from secagg.testing import (
    Outcome,
    RoundHarness,
    make_federation,
    make_parameters,
    make_succession,
)
from tests.adversary.watched import Watch

FEDERATION = make_federation(5)
SPEC = VectorSpec(segments=(bulk("update", 2, value_bits=16, n_max=5),))


def _train(seat: int, _parameters: RoundParameters, _state: bytes) -> Mapping[str, IntVector]:
    return {"update": np.full(2, 10**seat % 30_011, np.int64)}


def _total(*seats: int) -> int:
    return sum(10**seat % 30_011 for seat in seats)


def _run(
    number: int,
    histories: dict[int, SiloHistory],
    drop: Mapping[int, Phase] | None = None,
) -> Outcome:
    parameters, state = make_parameters(FEDERATION.roster, SPEC, round=number), b"one state"
    return RoundHarness(
        federation=FEDERATION,
        parameters=parameters,
        state=state,
        succession=make_succession(FEDERATION, parameters, state) if number > 1 else None,
        train=_train,
        histories=histories,
        drop=drop,
    ).run()


def test_a_newcomer_is_left_out_of_a_sum_that_is_opened_again() -> None:
    """Four silos name their earlier survivors; the fifth joins the round, not the sum."""
    histories: dict[int, SiloHistory] = {}
    first = _run(1, histories, drop={5: Phase.ADVERTISE})
    assert first.aggregate is not None
    again = _run(2, histories)
    assert again.aggregate is not None
    assert again.aggregate.survivors == (1, 2, 3, 4)
    assert again.aggregate.values["update"].tolist() == [_total(1, 2, 3, 4)] * 2


def test_a_sum_over_fewer_silos_than_before_is_not_opened() -> None:
    """The difference of the two sums would be one silo's input."""
    histories: dict[int, SiloHistory] = {}
    assert _run(1, histories).aggregate is not None
    again = _run(2, histories, drop={5: Phase.ADVERTISE})
    assert again.aggregate is None
    assert again.aborted is not None
    assert again.aborted.reason is AbortReason.REPEAT


def _lies(priors: Mapping[int, tuple[int, ...]], **changes: object) -> Outcome:
    """Some silos name survivors that never were; nobody else's input is shown."""

    def lie(seat: int, message: Message) -> Message:
        if seat not in priors or not isinstance(message, MaskedInput):
            return message
        named = replace(message, prior=priors[seat])
        return messages.signed(named, FEDERATION.identities[seat])

    parameters = make_parameters(FEDERATION.roster, SPEC, **changes)
    harness = RoundHarness(
        federation=FEDERATION, parameters=parameters, state=b"state", train=_train, to_server=lie
    )
    watch = Watch(harness, 3)
    outcome = harness.run()
    watch.assert_hidden({seat: _train(seat, parameters, b"state") for seat in range(1, 6)})
    return outcome


@pytest.mark.parametrize("organizations", [3, 4])
def test_a_made_up_prior_costs_its_author_and_nobody_else(organizations: int) -> None:
    """The liar's own upload stays out; the round goes on over four silos of four organizations."""
    _assert_only_3_is_out(_lies({3: (1, 2, 3)}, n_orgs=organizations))


def test_nor_where_those_that_it_names_would_be_enough() -> None:
    """One silo does not get another one left out."""
    _assert_only_3_is_out(_lies({3: (1, 2, 3, 4)}))


def _assert_only_3_is_out(outcome: Outcome) -> None:
    assert outcome.aggregate is not None
    assert outcome.aggregate.survivors == (1, 2, 4, 5)
    assert outcome.aggregate.values["update"].tolist() == [_total(1, 2, 4, 5)] * 2


def test_without_its_author_the_sum_may_be_of_too_few_organizations() -> None:
    """Then nobody is asked to sign what everybody would refuse."""
    outcome = _lies({3: (1, 2, 3)}, n_orgs=5)
    assert outcome.silo_errors == {}
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.REPEAT


def test_with_more_liars_than_n_c_the_sum_may_be_of_too_few_silos() -> None:
    """Likewise, with organizations enough."""
    outcome = _lies({3: (1, 2, 3), 4: (1, 2, 4)})
    assert outcome.silo_errors == {}
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.REPEAT


def _slow_unmask(late: set[int]) -> tuple[RoundHarness, list[tuple[int, Message]]]:
    """A round in which these silos' openings are held back by the link."""
    held: list[tuple[int, Message]] = []

    def hold(seat: int, message: Message) -> Message | None:
        if seat in late and isinstance(message, Unmask):
            held.append((seat, message))
            return None
        return message

    harness = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC),
        state=b"state",
        train=_train,
        to_server=hold,
    )
    return harness, held


def test_openings_that_come_after_the_deadline_still_count() -> None:
    """The round is not lost while shares or promises may come."""
    harness, held = _slow_unmask({1, 2})
    server = harness.server
    harness._carry_out(server.start(0.0) + server.set_state(0.0))
    while harness._deliver_one():
        pass
    assert server.phase is Phase.UNMASK
    assert server.deadline is not None
    asked = server.expire(server.deadline)
    assert any(isinstance(getattr(item, "message", None), AbandonRequest) for item in asked)
    assert server.phase is Phase.UNMASK
    (seat, message), *_ = held
    assert isinstance(message, Unmask)
    harness._carry_out(server.receive(seat, message, server.deadline))
    assert harness.outcome.aggregate is not None
    assert harness.outcome.aggregate.survivors == (1, 2, 3, 4, 5)


def test_too_few_openings_end_the_round_at_the_second_deadline() -> None:
    """Silos that have opened promise nothing, so it is lost, with who is missing."""
    outcome = _slow_unmask({1, 2})[0].run()
    assert outcome.aggregate is None
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.TOO_FEW_OPENED
    assert not [item for item in outcome.received if isinstance(item[1], Abandon)]


def test_a_silo_whose_certificate_was_lost_checks_the_result_all_the_same() -> None:
    """It opens nothing; the others were enough."""

    def lose(seat: int, message: Message) -> Message | None:
        is_lost = seat == 2 and isinstance(message, messages.Certificate)
        return None if is_lost else message

    harness = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC),
        state=b"state",
        train=_train,
        to_silo=lose,
    )
    outcome = harness.run()
    assert outcome.silo_errors == {}
    assert set(outcome.silo_aggregates) == {1, 2, 3, 4, 5}
    assert harness.silos[2].phase is Phase.CLOSED
    opened = {seat for seat, message in outcome.received if isinstance(message, Unmask)}
    assert opened == {1, 3, 4, 5}

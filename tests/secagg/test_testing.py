"""Tests of secagg.testing: the fakes that simulations and tests stand on."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from secagg import messages
from secagg.chain import Standpoint
from secagg.effects import AbortReason
from secagg.errors import LocalProtocolError, ParameterError
from secagg.journal import SiloHistory
from secagg.messages import STATE_CHUNK_BYTES, Message
from secagg.parameters import RoundParameters, VectorSpec, bulk
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.ring import IntVector
from secagg.testing import (
    MemoryStore,
    RoundHarness,
    SeededRng,
    make_federation,
    make_parameters,
)

FEDERATION = make_federation(5)
SPEC = VectorSpec(segments=(bulk("update", 3, value_bits=16, n_max=5),))
PARAMETERS = make_parameters(FEDERATION.roster, SPEC)


def powers(seat: int, _parameters: RoundParameters, _state: bytes) -> Mapping[str, IntVector]:
    """A power of eight a silo, so that a silo too many or too few shows."""
    return {"update": np.full(3, 8 ** (seat - 1), np.int64)}


def harness(**script: Any) -> RoundHarness:
    """A round of five."""
    arguments: dict[str, Any] = {
        "federation": FEDERATION,
        "parameters": PARAMETERS,
        "state": b"a state",
        "train": powers,
    }
    return RoundHarness(**(arguments | script))


def test_seeded_bytes_are_the_seeds() -> None:
    """The same again, another stream for another seed, no byte twice."""
    one, two = SeededRng(1), SeededRng(1)
    first = one.bytes(10)
    assert first == two.bytes(10)
    assert one.bytes(10) == two.bytes(10) != first
    assert SeededRng("1").bytes(10) == first
    assert SeededRng(2).bytes(10) != first
    assert len(SeededRng(3).bytes(100_000)) == 100_000


def test_a_store_counts_without_gaps() -> None:
    """And replaces, and forgets."""
    store = MemoryStore()
    store.discard("v")
    assert store.chunks("v") == 0
    store.write("v", 0, b"a")
    store.write("v", 2, b"c")
    assert store.chunks("v") == 1
    store.write("v", 1, b"b")
    store.write("v", 0, b"A")
    assert store.chunks("v") == 3
    assert [store.read("v", number) for number in range(3)] == [b"A", b"b", b"c"]
    with pytest.raises(KeyError):
        store.read("v", 3)
    store.discard("v")
    assert store.chunks("v") == 0


@pytest.mark.parametrize("size", [0, 1, STATE_CHUNK_BYTES, 2 * STATE_CHUNK_BYTES + 5])
def test_a_state_comes_back_whole(size: int) -> None:
    """Cut as the wire cuts it; a shorter one leaves nothing of a longer one."""
    store = MemoryStore()
    store.put_state(bytes(3 * STATE_CHUNK_BYTES))
    state = SeededRng(size).bytes(size)
    store.put_state(state)
    assert store.get_state() == state
    assert store.chunks(messages.STATE) == messages.state_chunks(size)


def test_federations_are_reproducible() -> None:
    """By seed; organizations repeat in turn."""
    assert make_federation(5).roster == FEDERATION.roster
    assert make_federation(5, seed=1).roster.digest() != FEDERATION.roster.digest()
    shared = make_federation(5, organizations=2).roster
    names = [seat.organization[-1] for seat in shared.seats]
    assert names == ["1", "2", "1", "2", "1"]
    for seat in FEDERATION.roster.seats:
        assert FEDERATION.identities[seat.index].public == seat.identity_key


def test_parameters_that_the_default_policy_accepts() -> None:
    """Single fields can be changed, and are checked."""
    SiloPolicy().check(PARAMETERS, FEDERATION.roster)
    assert make_parameters(FEDERATION.roster, SPEC, round=7).round == 7
    with pytest.raises(ParameterError):
        make_parameters(FEDERATION.roster, SPEC, h_min=0)


def test_an_undisturbed_round() -> None:
    """The sum at the server and at every silo, no error anywhere."""
    outcome = harness().run()
    assert outcome.aggregate is not None
    assert outcome.aggregate.values["update"].tolist() == [0o11111] * 3
    assert sorted(outcome.silo_aggregates) == [1, 2, 3, 4, 5]
    assert outcome.silo_errors == {}
    assert outcome.server_errors == []
    assert outcome.aborted is None
    assert {type(message) for _, message in outcome.received} == {
        messages.Advertise,
        messages.Share,
        messages.MaskedInput,
        messages.Survivors,
        messages.Unmask,
    }


@pytest.mark.parametrize(
    ("phase", "survivors"),
    [
        (Phase.ADVERTISE, 0o10111),
        (Phase.SHARE, 0o10111),
        (Phase.MASK, 0o10111),
        (Phase.SURVIVORS, 0o11111),
        (Phase.UNMASK, 0o11111),
    ],
)
def test_a_silo_that_vanishes(phase: Phase, survivors: int) -> None:
    """In each phase, before it sends that phase's message; it never sees the result."""
    outcome = harness(drop={4: phase}).run()
    assert outcome.aggregate is not None
    assert outcome.aggregate.values["update"].tolist() == [survivors] * 3
    assert sorted(outcome.silo_aggregates) == [1, 2, 3, 5]


def test_too_many_vanish() -> None:
    """Below the floor the round ends without a sum."""
    outcome = harness(drop={4: Phase.MASK, 5: Phase.MASK}).run()
    assert outcome.aggregate is None
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.TOO_FEW_MASKED
    assert outcome.aborted.missing == (4, 5)


def test_a_trainer_that_has_nothing_goes_late() -> None:
    """The silo stays as a helper and sees the sum of the others."""

    def train(seat: int, p: RoundParameters, state: bytes) -> Mapping[str, IntVector] | None:
        assert state == b"a state"
        return None if seat == 2 else powers(seat, p, state)

    outcome = harness(train=train).run()
    assert outcome.silo_aggregates[2].survivors == (1, 3, 4, 5)
    assert messages.Late in {type(message) for seat, message in outcome.received if seat == 2}


def test_lost_and_changed_messages() -> None:
    """In both directions; what a silo refuses it tells the server."""

    def lose(seat: int, message: Message) -> Message | None:
        return (
            None if seat == 1 and isinstance(message, messages.Keys | messages.Share) else message
        )

    for direction in ("to_silo", "to_server"):
        outcome = harness(**{direction: lose}).run()
        assert outcome.aggregate is not None
        assert outcome.aggregate.survivors == (2, 3, 4, 5)

    def spoil(seat: int, message: Message) -> Message:
        if seat == 1 and isinstance(message, messages.Boxes):
            return messages.Boxes(deliveries=message.deliveries[:3])
        return message

    outcome = harness(to_silo=spoil).run()
    assert outcome.silo_errors[1].code == "A4_COHORT_REFUSED"
    refusals = [m for _, m in outcome.received if isinstance(m, messages.Refusal)]
    assert {(item.seat, item.code) for item in refusals} == {(1, "A4_COHORT_REFUSED")}
    assert outcome.aggregate is not None


def test_a_dead_silo_is_told_in_vain() -> None:
    """The first error is the one that counts, and the round goes on without it."""

    def forge(seat: int, message: Message) -> Message:
        if seat == 1 and isinstance(message, messages.RoundOpen):
            return messages.signed(message, FEDERATION.identities[1])
        return message

    outcome = harness(to_silo=forge).run()
    assert outcome.silo_errors[1].code == "BAD_SIGNATURE"
    assert outcome.aggregate is not None
    assert not isinstance(outcome.silo_errors[1], LocalProtocolError)


def test_a_dead_silo_without_a_farewell() -> None:
    """It was told that the attempt had failed, and has nothing to say to what comes after."""

    def end(seat: int, message: Message) -> Message:
        if seat != 1 or not isinstance(message, messages.Keys):
            return message
        return messages.RoundFailed(run=PARAMETERS.run, round=1, attempt=0, reason="x")

    outcome = harness(to_silo=end, drop={1: Phase.MASK}).run()
    assert outcome.aggregate is not None
    spread = harness(to_silo=end).run()
    assert 1 not in spread.silo_errors
    shown = harness(to_silo=lambda s, m: end(s, m) if isinstance(m, messages.Keys) else m)
    shown.silos[1].receive(messages.RoundFailed(run=PARAMETERS.run, round=1, attempt=0, reason="x"))
    told = shown.run()
    assert isinstance(told.silo_errors[1], LocalProtocolError)
    assert 1 not in {seat for seat, _ in told.received}


def test_ahead_of_a_state_that_is_not_needed_any_more() -> None:
    """Too few silos before the state comes."""
    drop = {1: Phase.ADVERTISE, 2: Phase.ADVERTISE, 3: Phase.ADVERTISE}
    outcome = harness(drop=drop).run(ahead=True)
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.TOO_FEW_ADVERTISED
    assert harness().run(ahead=True).aggregate is not None


def test_scripts_of_a_single_silo() -> None:
    """A part of the roster, a policy, another standpoint, journals that are kept."""
    histories: dict[int, SiloHistory] = {}
    round_ = harness(
        cohort=(1, 2, 3, 4, 5),
        policies={2: SiloPolicy(n_min=5)},
        standpoints={3: Standpoint(round=0, model_hash=bytes(32))},
        histories=histories,
    )
    outcome = round_.run()
    assert {seat: error.code for seat, error in outcome.silo_errors.items()} == {
        2: "A1_POLICY_REFUSED",
        3: "A5_MODEL_MISMATCH",
    }
    assert outcome.aggregate is not None
    assert outcome.aggregate.cohort == (1, 3, 4, 5)
    assert outcome.aggregate.survivors == (1, 4, 5)
    assert sorted(histories) == [1, 2, 3, 4, 5]
    small = harness(cohort=(1, 2, 3, 4)).run()
    assert small.aggregate is not None
    assert small.aggregate.cohort == (1, 2, 3, 4)


def test_a_round_is_a_function_of_its_seed() -> None:
    """Every byte that reaches the server."""

    def said(seed: int) -> list[bytes]:
        return [message.encode() for _, message in harness(seed=seed).run().received]

    assert said(1) == said(1)
    assert said(1) != said(2)


def test_a_server_whose_deadlines_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the server's is a failure, not a test that hangs."""
    play = harness(drop={2: Phase.MASK})
    monkeypatch.setattr(play.server, "expire", lambda _now: [])
    with pytest.raises(LocalProtocolError, match="expected a round's end within 100 deadlines"):
        play.run()

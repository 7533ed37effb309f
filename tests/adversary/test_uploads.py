"""Silos that upload wrong, twice, half or in another's name: the server refuses and is unmoved."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from secagg import messages
from secagg.effects import AbortReason
from secagg.errors import (
    BadSignatureError,
    ContradictionError,
    MalformedMessageError,
    RemoteProtocolError,
    ReplayError,
    RosterError,
    WrongPhaseError,
)
from secagg.intake import masked_name
from secagg.messages import MASKED, Late, MaskedInput, Message
from secagg.phases import Phase
from secagg.testing import MemoryStore, RoundHarness, make_federation, make_parameters
from tests.adversary.stage import random_inputs, small_spec
from tests.adversary.watched import Watch

pytestmark = pytest.mark.adversary

FEDERATION = make_federation(5)
SPEC = small_spec(8)
INPUTS = random_inputs(range(1, 6), SPEC, 11)
LIAR = 3


@dataclass
class Pending:
    """A round in which the liar's upload waits to be sent."""

    harness: RoundHarness
    upload: MaskedInput
    chunks: MemoryStore
    watch: Watch

    def server_store(self) -> MemoryStore:
        """Where the uploads go."""
        return self.harness.outcome.server_store

    def put(self) -> None:
        """Bring the honest chunks."""
        for number in range(self.upload.chunks):
            data = self.chunks.read(MASKED, number)
            self.server_store().write(masked_name(LIAR), number, data)

    def send(self, message: messages.SiloMessage, seat: int = LIAR) -> None:
        """Deliver to the server."""
        self.harness.server.receive(seat, message, 0.0)


@pytest.fixture
def pending() -> Pending:
    """Everybody has uploaded but the liar, which has withheld its message."""
    return _pending_with(LIAR)


def _pending_with(*silent: int) -> Pending:
    kept: dict[int, MaskedInput] = {}

    def withhold(seat: int, message: Message) -> Message | None:
        if seat in silent and isinstance(message, MaskedInput):
            kept[seat] = message
            return None
        return message

    harness = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC),
        state=b"state",
        train=lambda seat, _parameters, _state: INPUTS[seat],
        to_server=withhold,
    )
    watch = Watch(harness, LIAR)
    # Run until nothing moves, but let no deadline pass.
    harness._carry_out(harness.server.start(0.0) + harness.server.set_state(0.0))
    while harness._deliver_one():
        pass
    assert harness.server.phase is Phase.MASK
    assert harness.server.awaited() == silent
    return Pending(harness, kept[LIAR], harness.stores[LIAR], watch)


def _finish(pending: Pending) -> None:
    """Go on to the end, by deadlines where somebody is missing; nothing is to be seen then."""
    harness = pending.harness
    while True:
        if harness._deliver_one():
            continue
        if harness.server.deadline is None:
            break
        harness._now = harness.server.deadline
        harness._carry_out(harness.server.expire(harness._now))
    pending.watch.assert_hidden(INPUTS)


def _assert_sum(pending: Pending, *seats: int) -> None:
    aggregate = pending.harness.outcome.aggregate
    assert aggregate is not None
    assert aggregate.survivors == seats
    for name, column in aggregate.values.items():
        assert column.tolist() == np.sum([INPUTS[seat][name] for seat in seats], axis=0).tolist()


Flaw = Callable[[Pending], MaskedInput]
Error = type[RemoteProtocolError]
IN_CHUNKS: dict[str, Flaw] = {
    "a flipped bit": lambda p: _corrupt(p, lambda data: bytes([data[0] ^ 1]) + data[1:]),
    "a short chunk": lambda p: _corrupt(p, lambda data: data[:-1]),
    "an oversize chunk": lambda p: _corrupt(p, lambda data: data + bytes(9)),
    "a missing chunk": lambda p: _lose(p, 1),
    "no chunks": lambda p: _lose(p, 0),
    "one chunk more": lambda p: _add(p, p.upload.chunks),
}
IN_WORDS: dict[str, tuple[Flaw, Error]] = {
    "another root": (lambda p: _say(p, root=bytes(32)), MalformedMessageError),
    "other lengths": (lambda p: _say(p, lengths=(1, 2, 3, 4)), MalformedMessageError),
    "more chunks": (lambda p: _say(p, chunks=2**32 - 1), MalformedMessageError),
    "more bytes": (lambda p: _say(p, nbytes=2**63), MalformedMessageError),
    "another binding": (lambda p: _say(p, binding=bytes(32)), ReplayError),
    "a prior unsigned": (lambda p: replace(p.upload, prior=(1, 2, 3)), BadSignatureError),
    "another's signature": (
        lambda p: messages.signed(p.upload, FEDERATION.identities[1]),
        BadSignatureError,
    ),
}


def _say(pending: Pending, **changes: Any) -> MaskedInput:
    return messages.signed(replace(pending.upload, **changes), FEDERATION.identities[LIAR])


def _corrupt(pending: Pending, change: Callable[[bytes], bytes]) -> MaskedInput:
    pending.put()
    name = masked_name(LIAR)
    store = pending.server_store()
    store.write(name, 0, change(store.read(name, 0)))
    return pending.upload


def _lose(pending: Pending, kept: int) -> MaskedInput:
    pending.put()
    chunks = pending.server_store().vectors[masked_name(LIAR)]
    for number in [number for number in chunks if number >= kept]:
        del chunks[number]
    return pending.upload


def _add(pending: Pending, number: int) -> MaskedInput:
    pending.put()
    pending.server_store().write(masked_name(LIAR), number, b"more")
    return pending.upload


@pytest.mark.parametrize("flaw", [*IN_CHUNKS, *IN_WORDS])
def test_a_flawed_upload_is_refused_and_the_right_one_taken(flaw: str, pending: Pending) -> None:
    """Refused by name; then the honest one is still welcome, and the sum is exact."""
    error: Error = MalformedMessageError
    if flaw in IN_WORDS:
        pending.put()
        make, error = IN_WORDS[flaw]
    else:
        make = IN_CHUNKS[flaw]
    message = make(pending)
    with pytest.raises(error) as caught:
        pending.send(message)
    assert caught.type is error
    assert pending.harness.server.awaited() == (LIAR,)
    pending.server_store().discard(masked_name(LIAR))
    pending.put()
    pending.harness._to_server = None
    pending.harness._carry_out(pending.harness.server.receive(LIAR, pending.upload, 0.0))
    _finish(pending)
    _assert_sum(pending, 1, 2, 3, 4, 5)


def test_a_partial_upload_and_a_disconnect(pending: Pending) -> None:
    """Two of the chunks arrive, the message never does: the silo is a dropout like any other."""
    pending.put()
    del pending.server_store().vectors[masked_name(LIAR)][2]
    _finish(pending)
    _assert_sum(pending, 1, 2, 4, 5)


def test_a_duplicate_upload(pending: Pending) -> None:
    """The same bytes again are nothing new; others are a contradiction."""
    pending.put()
    harness = pending.harness
    harness._to_server = None
    harness._carry_out(harness.server.receive(LIAR, pending.upload, 0.0))
    pending.send(pending.upload)
    other = _say(pending, root=bytes(32))
    with pytest.raises(ContradictionError):
        pending.send(other)
    _finish(pending)
    _assert_sum(pending, 1, 2, 3, 4, 5)
    assert [case.accused for case in harness.server.evidence] == [LIAR]


def test_in_another_silos_name(pending: Pending) -> None:
    """The transport knows who speaks; a message about another seat is refused."""
    pending.put()
    with pytest.raises(RosterError, match="in the name of seat 3"):
        pending.send(pending.upload, seat=2)
    assert pending.harness.server.awaited() == (LIAR,)


def test_late_and_an_upload_exclude_each_other(pending: Pending) -> None:
    """Whoever went late sends no vector, and whoever sent one does not go late."""
    setup = pending.harness.silos[LIAR]._view.setup
    with pytest.raises(ReplayError):
        pending.send(Late(setup=bytes(32), seat=LIAR))
    with pytest.raises(RosterError, match="cannot go late"):
        pending.send(Late(setup=setup, seat=2), seat=2)
    pending.harness._carry_out(
        pending.harness.server.receive(LIAR, Late(setup=setup, seat=LIAR), 0.0)
    )
    assert pending.harness.server.phase is Phase.SURVIVORS
    pending.put()
    with pytest.raises(WrongPhaseError):
        pending.send(pending.upload)
    pending.harness._to_server = None
    _finish(pending)
    _assert_sum(pending, 1, 2, 4, 5)


def test_no_upload_after_going_late() -> None:
    """Not even while others are still awaited: it has promised to send none."""
    pending = _pending_with(LIAR, 5)
    pending.send(Late(setup=pending.harness.silos[LIAR]._view.setup, seat=LIAR))
    assert pending.harness.server.awaited() == (5,)
    pending.put()
    with pytest.raises(RosterError, match="no masked vector is awaited"):
        pending.send(pending.upload)
    assert pending.harness.server.awaited() == (5,)


def test_values_beyond_their_range_end_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silo that masks more than its bound spoils the sum: that is found, not released."""

    def greedy(values: object, spec: object) -> None:
        assert values
        assert spec

    monkeypatch.setattr("secagg.silo.check_values", greedy)
    inputs = dict(INPUTS)
    inputs[LIAR] = {name: column.copy() for name, column in INPUTS[LIAR].items()}
    inputs[LIAR]["count"][0] = 2**60
    outcome = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC),
        state=b"state",
        train=lambda seat, _parameters, _state: inputs[seat],
    ).run()
    assert outcome.aggregate is None
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.OUT_OF_RANGE
    assert outcome.server_store.chunks(messages.SUM) == 0
    assert outcome.silo_aggregates == {}

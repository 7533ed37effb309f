"""Valid encodings of every record, and what a decoder may do with bytes that are none.

Shared by the hypothesis tests and by the atheris target of `make fuzz`.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from typing import Final

import numpy as np

from secagg import canonical, evidence, messages
from secagg.chain import Standpoint
from secagg.codec import Record
from secagg.errors import (
    BadShareError,
    MalformedMessageError,
    OversizeError,
    ParameterError,
    SecAggError,
)
from secagg.ids import RunId
from secagg.journal import AttemptSummary, JournalEvent, JournalRecord, SiloHistory, decode_line
from secagg.parameters import CoefficientVector, VectorSpec, bulk, meta
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.ring import pack, to_ring, unpack
from secagg.roster import Officer, OfficerRole, Roster, SignedRoster
from secagg.sealing import SharePayload
from secagg.secretbytes import Secret
from secagg.testing import RoundHarness, make_federation, make_parameters, make_succession

PLAIN_SUITE: Final = 1
HYBRID_SUITE: Final = 4
RUN: Final = RunId(b"a run to be read")


def record_types() -> dict[str, type[Record]]:
    """Every record that has an encoding, by its label; the newest class of each name."""
    return {
        kind.LABEL: kind
        for kind in _subclasses(Record)
        if hasattr(kind, "LABEL") and kind.__module__.startswith("secagg.")
    }


def _subclasses(kind: type[Record]) -> Iterator[type[Record]]:
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)


class _Written(SiloHistory):
    """A history that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[JournalRecord] = []
        super().__init__()

    def apply(self, record: JournalRecord) -> None:
        self.lines.append(record)
        super().apply(record)


@cache
def corpus() -> tuple[Record, ...]:
    """Records of each type, as they stand in two real rounds or alone."""
    found: dict[bytes, Record] = {}
    for root in (*_round(PLAIN_SUITE), *_round(HYBRID_SUITE), *_others()):
        for record in _within(root):
            found.setdefault(record.encode(), record)
    return tuple(found.values())


def _within(value: object) -> Iterator[Record]:
    """A record and all that it holds."""
    if isinstance(value, tuple):
        for item in value:
            yield from _within(item)
    if isinstance(value, Record):
        yield value
        for item in fields(value):  # type: ignore[arg-type]  # records are dataclasses
            yield from _within(getattr(value, item.name))


def _round(suite: int) -> Iterator[Record]:
    """All that is said and written in a round of four silos with a dropout and a helper."""
    federation = make_federation(4)
    spec = VectorSpec(
        segments=(bulk("update", 40, value_bits=8, n_max=4), meta("weight", 1, bound=9))
    )
    seats = federation.roster.indices
    histories: dict[int, SiloHistory] = {seat: _Written() for seat in seats}
    heard: list[messages.Message] = []

    def to_silo(_seat: int, message: messages.Message) -> messages.Message:
        heard.append(message)
        return message

    values = {"update": np.arange(40), "weight": np.array([3])}
    outcome = RoundHarness(
        federation=federation,
        parameters=make_parameters(federation.roster, spec, suite=suite, redundancy=1),
        state=b"a state",
        train=lambda seat, _p, _s: None if seat == 1 else values,
        drop={4: Phase.UNMASK},
        histories=histories,
        policies=dict.fromkeys(seats, SiloPolicy(suites=frozenset({suite}), max_redundancy=1)),
        to_silo=to_silo,
    ).run()
    assert outcome.silo_aggregates
    yield federation.roster
    yield from heard
    yield from (message for _, message in outcome.received)
    for history in histories.values():
        assert isinstance(history, _Written)
        yield from history.lines


def _others() -> Iterator[Record]:
    """What a round without a fault does not show."""
    federation = make_federation(3, organizations=2)
    key = federation.identities[1]
    abandon = messages.Abandon(
        federation=federation.roster.federation, run=RUN, round=3, attempt=1, seat=1
    )
    signed_abandon = messages.signed(abandon, key)
    spec = VectorSpec(segments=(meta("weight", 1, bound=9),))
    parameters = make_parameters(federation.roster, spec, run=RUN)
    yield signed_abandon
    names = ("common", "scaled")
    vectors = tuple(
        CoefficientVector(name=name, seats=(1, 2, 3), weights=(1, -2, 3)) for name in names
    )
    yield make_parameters(federation.roster, spec, coefficients=names, public_coefficients=vectors)
    yield messages.RoundOpen(
        parameters=parameters, plan=b"a plan", abandons=(signed_abandon,), signature=bytes(64)
    )
    yield messages.signed(
        messages.Complaint(setup=bytes(32), seat=1, dealer=2, reason="Grüße"), key
    )
    yield messages.signed(messages.Refusal(ctx=bytes(32), seat=1, code="A1", reason="no"), key)
    yield messages.AbandonRequest(run=RUN, round=3, attempt=1)
    yield messages.RoundFailed(run=RUN, round=3, attempt=1, reason="too few")
    yield messages.DistantRoot(dealer=1, root=bytes(32))
    succession = make_succession(federation, parameters, b"a state", 1, 2, after=9)
    yield messages.StateNotice(
        setup=bytes(32), model_hash=bytes(32), nbytes=7, succession=succession, signature=bytes(64)
    )
    yield Standpoint(round=3, model_hash=bytes(32)).settled(
        federation=federation.roster.federation, run=RUN, seat=1, identity=key
    )
    yield AttemptSummary(
        attempt=parameters.attempt_id,
        events=(JournalEvent.CLOSED, JournalEvent.OPENED),
        model_hash=b"h" * 32,
        survivors=(1, 2),
    )
    root = evidence.ShareRoot(seat=1, root=bytes(32))
    yield evidence.Evidence(
        kind=evidence.EvidenceKind.CONTRADICTION,
        accused=2,
        parameters=parameters,
        statements=(signed_abandon.encode(), b"other bytes"),
        share_roots=(root,),
    )
    roster = Roster(
        federation=federation.roster.federation,
        version=2,
        previous=federation.roster.digest(),
        coordinator_key=federation.coordinator.public,
        seats=federation.roster.seats,
        officers=(
            Officer(name="an-officer", role=OfficerRole.OPERATOR, certificate_key=b"o" * 32),
        ),
    )
    yield SignedRoster(roster=roster, signatures=((key.public, key.sign(roster.signed_bytes())),))


# --- what a decoder may do ---------------------------------------------------------------------

Decoder = Callable[[bytes], bytes | None]


def _reading(
    read: Callable[[bytes], bytes], *allowed: type[SecAggError]
) -> Callable[[bytes], bytes | None]:
    def decode(data: bytes) -> bytes | None:
        try:
            return read(data)
        except allowed:
            return None

    return decode


def _record_decoder(kind: type[Record]) -> Decoder:
    return _reading(
        lambda data: Record.encode(kind.decode(data)),  # anew, not as it was read
        MalformedMessageError,
        OversizeError,
        ParameterError,
    )


def _read_vector(data: bytes) -> bytes:
    """The first byte chooses the ring, the second the number of words."""
    bits, count = 1 + data[0] % 64, data[1]
    return data[:2] + pack(unpack(data[2:], bits, count), bits)


def _read_list(data: bytes) -> bytes:
    return canonical.encode_list(canonical.decode_list(data, max_items=1000))


@cache
def decoders() -> dict[str, Decoder]:
    """Each decoder of bytes that a peer, a disk or a browser of archives may hand us.

    It gives back the encoding of what it read, or None where it refused with an error that its
    docstring names. Anything else is a fault.
    """
    named: dict[str, Decoder] = {
        f"record {label}": _record_decoder(kind) for label, kind in record_types().items()
    }
    named["message"] = _reading(
        lambda data: messages.decode_message(data).encode(), MalformedMessageError, OversizeError
    )
    named["journal line"] = _reading(
        lambda data: decode_line(data).encode(),
        MalformedMessageError,
        OversizeError,
        ParameterError,
    )
    named["list"] = _reading(_read_list, MalformedMessageError, OversizeError)
    named["share payload"] = _reading(
        lambda data: SharePayload.decode(data).encode(), BadShareError
    )
    named["packed vector"] = _reading(_read_vector, MalformedMessageError)
    return named


def check(name: str, data: bytes) -> bool:
    """Run one decoder; True if it accepted. What it accepts is the one encoding of its value."""
    if name == "packed vector" and len(data) < 2:
        return False
    found = decoders()[name](data)
    assert found is None or found == data, f"{name} reads two encodings of one value"
    return found is not None


def seeds() -> Iterator[tuple[str, bytes]]:
    """A valid encoding for each decoder."""
    for record in corpus():
        yield f"record {record.LABEL}", record.encode()
        if isinstance(record, messages.Message):
            yield "message", record.encode()
        if isinstance(record, JournalRecord | AttemptSummary):
            yield "journal line", record.encode()
    yield "list", canonical.encode_list([b"", b"one", b"two"])
    payload = SharePayload(
        share_a=Secret(b"a" * 33), share_b=Secret(b"b" * 33), verification_key=Secret(b"k" * 32)
    )
    yield "share payload", payload.encode()
    for bits, count in ((1, 5), (18, 33), (32, 7), (47, 64), (64, 3)):
        words = to_ring(np.arange(count), bits)
        yield "packed vector", bytes([bits - 1, count]) + pack(words, bits)

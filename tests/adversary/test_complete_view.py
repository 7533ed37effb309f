"""All bytes that a coordinator receives, and all that they decode to, hold no silo's figures.

Counts, losses and metrics are planted as values that cannot occur by chance; the search is shown
to find them where a silo does say them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import combinations

import numpy as np
import pytest

from secagg import messages
from secagg.ids import RunId
from secagg.messages import Message
from secagg.parameters import VectorSpec, bulk, meta
from secagg.phases import Phase
from secagg.ring import IntVector, pack, to_ring, unpack
from secagg.secretbytes import Secret
from secagg.server import ServerRound
from secagg.testing import Outcome, RoundHarness, make_federation, make_parameters, make_succession

pytestmark = pytest.mark.adversary

FEDERATION = make_federation(7)
SEATS = FEDERATION.roster.indices
SPEC = VectorSpec(
    segments=(
        bulk("update", 400, value_bits=20, n_max=7),
        bulk("variate", 400, value_bits=20, n_max=7),
        meta("count", 1, bound=2**44),
        meta("loss", 1, bound=2**44),
        meta("metric", 2, bound=2**44),
    )
)


def planted(seat: int) -> dict[str, int]:
    """41 to 44 bits each: a match by chance is a matter of 2^-20 over all that is searched."""
    return {
        "count": 0x0123_4567_89A0 + seat,
        "loss": 0x0BAD_C0FF_EE00 + seat,
        "metric": 0x0DEA_DBEE_F100 + seat,
        "second metric": -(0x0CAF_EBAB_E200 + seat),
    }


def contribution(seat: int) -> dict[str, IntVector]:
    """What a silo submits."""
    values = planted(seat)
    rng = np.random.default_rng(seat)
    return {
        "update": rng.integers(-500_000, 500_000, 400),
        "variate": rng.integers(-500_000, 500_000, 400),
        "count": np.array([values["count"]]),
        "loss": np.array([values["loss"]]),
        "metric": np.array([values["metric"], values["second metric"]]),
    }


def play(**script: object) -> tuple[RoundHarness, Outcome]:
    """A round in which one silo drops out after its shares and one after its upload."""
    drop = {2: Phase.MASK, 4: Phase.SURVIVORS}
    harness = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC),
        state=b"a state",
        train=lambda seat, _parameters, _state: contribution(seat),
        **({"drop": drop} | script),  # type: ignore[arg-type]  # arguments by name
    )
    return harness, harness.run()


def everything(outcome: Outcome) -> Iterator[bytes]:
    """Each byte string that reached the server: messages and chunks of vectors."""
    for _, message in outcome.received:
        yield message.encode()
    for name, chunks in outcome.server_store.vectors.items():
        if name.startswith(messages.MASKED):
            yield from chunks.values()


def decoded(thing: object) -> Iterator[int | str | bytes]:
    """Every number, text and byte string inside a decoded message."""
    match thing:
        case int() | str() | bytes():
            yield thing
        case Secret():
            yield thing.reveal()
        case tuple() | list():
            for item in thing:
                yield from decoded(item)
        case Mapping():
            for key, item in thing.items():
                yield from decoded(key)
                yield from decoded(item)
        case _ if is_dataclass(thing) and not isinstance(thing, type):
            for field in fields(thing):
                yield from decoded(getattr(thing, field.name))
        case _:
            assert thing is None


def encodings(value: int) -> Iterator[bytes]:
    """The forms in which a number may stand in bytes."""
    for order in ("big", "little"):
        yield value.to_bytes(8, order, signed=True)
        if value > 0:
            yield value.to_bytes(6, order)
    for dtype in ("<f8", ">f8", "<f4", ">f4"):
        yield np.array(value, dtype).tobytes()
    yield str(value).encode()
    yield f"{abs(value):x}".encode()


def found(outcome: Outcome, *, seats: tuple[int, ...] = SEATS) -> list[str]:
    """The planted values that occur anywhere."""
    haystack = b"\x00\xff".join(everything(outcome))
    things = {item for _, message in outcome.received for item in decoded(message)}
    wire = make_parameters(FEDERATION.roster, SPEC).wire_spec
    words: set[int] = set()
    for name, chunks in outcome.server_store.vectors.items():
        if not name.startswith(messages.MASKED):
            continue
        for number, chunk in enumerate(wire.chunks):
            bits = wire.segments[chunk.segment].ring_bits
            column = unpack(chunks[number], bits, chunk.count)
            words |= {int(word) for word in column}
    hits = []
    for seat in seats:
        for name, value in planted(seat).items():
            if any(form in haystack for form in encodings(value)):
                hits.append(f"{name} of {seat} in the bytes")
            if value in things or str(value) in things or value % 2**64 in words:
                hits.append(f"{name} of {seat} decoded")
    return hits


def test_no_figure_of_a_silo_reaches_the_coordinator() -> None:
    """Neither of survivors, nor of the dropout, nor of the silo that vanished after its upload."""
    _, outcome = play()
    assert outcome.aggregate is not None
    assert outcome.aggregate.survivors == (1, 3, 4, 5, 6, 7)
    survivors = [planted(seat)["count"] for seat in (1, 3, 4, 5, 6, 7)]
    assert outcome.aggregate.values["count"].tolist() == [sum(survivors)]
    assert len(outcome.received) > 20
    assert found(outcome) == []


def test_no_bulk_vector_reaches_the_coordinator_unmasked() -> None:
    """Nor does any stretch of four coordinates, packed or not."""
    _, outcome = play()
    wire = make_parameters(FEDERATION.roster, SPEC).wire_spec
    ring = wire.segments[0].ring_bits
    for name, chunks in outcome.server_store.vectors.items():
        if not name.startswith(messages.MASKED):
            continue
        seat = int(name.rsplit(".", maxsplit=1)[1])
        column = unpack(chunks[0], ring, 400).astype(np.int64)
        expected = contribution(seat)["update"] % 2**ring
        same = column == expected
        assert not any(same[at : at + 4].all() for at in range(397))


def test_the_coordinators_own_objects_hold_no_figure() -> None:
    """What the ServerRound keeps when all is over: statements, evidence, the sum."""
    harness, outcome = play()
    assert outcome.aggregate is not None
    kept = vars(harness.server) | vars(harness.server._intake)
    assert isinstance(harness.server, ServerRound)
    statements = [value for name, value in kept.items() if name in _STATEMENTS]
    assert len(statements) == len(_STATEMENTS)
    things = {item for part in statements for item in decoded(part)}
    assert things
    for seat in SEATS:
        assert not things & set(planted(seat).values())


_STATEMENTS = {"advertises", "shares", "masked", "signed", "unmasks", "abandons", "entries"}


@pytest.mark.parametrize("name", list(planted(1)))
def test_the_search_finds_what_a_silo_does_say(name: str) -> None:
    """The control: a refusal that names the figure, as text."""

    def blurt(seat: int, message: Message) -> Message:
        if seat != 3 or not isinstance(message, messages.Survivors):
            return message
        refusal = messages.Refusal(
            ctx=harness.server.parameters.ctx(),
            seat=3,
            code="TRAINING",
            reason=f"{name} is {planted(3)[name]}",
        )
        return messages.signed(refusal, FEDERATION.identities[3])

    harness = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC),
        state=b"a state",
        train=lambda seat, _parameters, _state: contribution(seat),
        to_server=blurt,
    )
    assert found(harness.run()) == [f"{name} of 3 in the bytes"]


def test_the_search_finds_an_unmasked_upload() -> None:
    """The control: a silo that sends its integers as they are."""
    _, outcome = play()
    wire = make_parameters(FEDERATION.roster, SPEC).wire_spec
    for number, chunk in enumerate(wire.chunks[:5]):
        segment = wire.segments[chunk.segment]
        words = to_ring(contribution(3)[segment.name], segment.ring_bits)
        outcome.server_store.write("masked.3", number, pack(words, segment.ring_bits))
    hits = found(outcome, seats=(3,))
    assert [hit for hit in hits if hit.endswith("decoded")] == [
        "count of 3 decoded",
        "loss of 3 decoded",
        "metric of 3 decoded",
        "second metric of 3 decoded",
    ]


def test_two_uploads_share_no_keystream() -> None:
    """Of one silo and the same integers: over segments, rounds, attempts and runs.

    The difference of two uploads is not that of the inputs (which is zero) in any coordinate
    beyond what chance gives, and no two masked vectors have a stretch of words in common.
    """
    same = {"update": np.arange(400), "variate": np.arange(400)}
    columns: list[IntVector] = []
    for changes in ({}, {"round": 2}, {"attempt": 1}, {"run": RunId(b"another run 1234")}):
        parameters = make_parameters(FEDERATION.roster, SPEC, **changes)
        vouched = make_succession(FEDERATION, parameters, b"a state")
        harness = RoundHarness(
            federation=FEDERATION,
            parameters=parameters,
            state=b"a state",
            succession=vouched if parameters.round > 1 else None,
            train=lambda seat, _parameters, _state: contribution(seat) | same,
        )
        store = harness.run().server_store
        wire = harness.server.parameters.wire_spec
        for seat in (1, 2):
            for number in (0, 1):
                data = store.read(f"masked.{seat}", number)
                columns.append(unpack(data, wire.segments[number].ring_bits, 400).astype(np.int64))
    assert len(columns) == 16
    for one, two in combinations(columns, 2):
        # 400 words of 24 bits: more than two equal ones by chance are a matter of 10^-13.
        assert int((one == two).sum()) <= 2
    stretches = [bytes(column[at : at + 3]) for column in columns for at in range(0, 399, 3)]
    assert len(set(stretches)) == len(stretches)

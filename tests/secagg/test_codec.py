"""Tests of secagg.codec: records, all of them, and the codecs of their fields."""

from dataclasses import fields, replace
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import canonical, codec
from secagg.codec import (
    ATTEMPT,
    FEDERATION,
    KEY,
    MAX_RECORD_BYTES,
    RUN,
    SEATS,
    SECRET,
    SILO,
    TEXT,
    U16,
    U32,
    U64,
    Codec,
    Record,
    blob,
    choice,
    fixed,
    listed,
    nested,
    optional,
)
from secagg.errors import MalformedMessageError, OversizeError, ParameterError, SecAggError
from secagg.ids import AttemptId, FederationId, RunId, SiloId
from secagg.messages import DistantRoot, ShareBox
from secagg.roster import Seat
from secagg.secretbytes import Secret
from tests.secagg.examples import examples, kinds


class Color(StrEnum):
    """Two colors."""

    RED = "red"
    BLUE = "blue"


EXAMPLE = DistantRoot(dealer=7, root=bytes(32))

EVERY = sorted(examples(), key=lambda kind: str(kind.LABEL))


def test_every_record_has_an_example() -> None:
    """A new record needs a round in tests/secagg/examples.py in which it occurs."""
    own = {kind for kind in kinds() if kind.__module__.startswith("secagg.")}
    assert own == set(examples())


def test_labels_are_distinct() -> None:
    """A record's bytes name its kind."""
    labels = [kind.LABEL for kind in examples()]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("kind", EVERY)
def test_a_record_comes_back_from_its_bytes(kind: type[Record]) -> None:
    """Equal, with the same bytes, and under no other label."""
    record = examples()[kind]
    data = record.encode()
    back = kind.decode(data)
    assert back == record
    assert back.encode() == data
    assert canonical.peek_label(data) == kind.LABEL
    other = Seat if kind is not Seat else DistantRoot
    with pytest.raises(MalformedMessageError):
        other.decode(data)


def test_a_box_is_passed_on_as_it_came() -> None:
    """The very bytes, not their like; a changed copy has its own, and equal boxes are equal."""
    made = examples()[ShareBox]
    data = made.encode()
    received = ShareBox.decode(data)
    assert received.encode() is data
    assert received == made
    assert hash(received) == hash(made)
    assert replace(received, holder=99).encode() == replace(made, holder=99).encode() != data


@pytest.mark.parametrize("kind", EVERY)
def test_every_field_stands_in_the_bytes(kind: type[Record]) -> None:
    """As many fields as the dataclass has, in order, and each can be left out by name."""
    record = examples()[kind]
    names = [item.name for item in fields(kind)]  # type: ignore[arg-type]  # records are dataclasses
    assert len(record.field_bytes()) == len(names)
    for place, name in enumerate(names):
        kept = record.field_bytes()
        assert record.field_bytes(without=(name,)) == kept[:place] + kept[place + 1 :]


@pytest.mark.parametrize("kind", EVERY)
def test_cut_and_lengthened_records_are_refused(kind: type[Record]) -> None:
    """Every prefix, and one byte more."""
    data = examples()[kind].encode()
    step = max(1, len(data) // 50)
    for cut in [*range(0, len(data), step), len(data) - 1]:
        with pytest.raises(MalformedMessageError):
            kind.decode(data[:cut])
    with pytest.raises(MalformedMessageError):
        kind.decode(data + b"\x00")


@given(data=st.data())
def test_decoders_raise_typed_errors_only(data: st.DataObject) -> None:
    """Bytes changed, cut, repeated or made up: a record again, or one of the package's errors."""
    kind = data.draw(st.sampled_from(EVERY))
    honest = bytearray(examples()[kind].encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(honest) - 1))
        honest[place] = data.draw(st.integers(0, 255))
    changed = bytes(honest)
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(changed)))
        changed = changed[:place] + data.draw(st.binary(max_size=8)) + changed[place:]
    try:
        record = kind.decode(changed)
    except SecAggError:
        return
    assert Record.encode(record) == changed  # anew, not as it was read


@given(st.binary(max_size=200))
def test_rubbish_raises_typed_errors_only(rubbish: bytes) -> None:
    """For every record."""
    for kind in examples():
        with pytest.raises(MalformedMessageError):
            kind.decode(rubbish)


def test_a_record_has_a_limit_that_comes_first() -> None:
    """Its bytes are measured before they are parsed."""
    with pytest.raises(OversizeError):
        DistantRoot.decode(bytes(MAX_RECORD_BYTES + 1))


@pytest.mark.parametrize(
    ("reader", "data", "error"),
    [
        (fixed(3, "three"), b"ab", MalformedMessageError),
        (fixed(3, "three"), b"abcd", MalformedMessageError),
        (KEY, bytes(31), MalformedMessageError),
        (blob(4, "data"), bytes(5), OversizeError),
        (listed(U32, 2), canonical.encode_list([bytes(4)] * 3), OversizeError),
        (listed(U32, 2), canonical.encode_list([bytes(3)]), MalformedMessageError),
        (choice(Color), b"green", MalformedMessageError),
        (choice(Color), b"\xff", MalformedMessageError),
        (TEXT, b"a" * 4097, OversizeError),
        (TEXT, "e\u0301".encode(), MalformedMessageError),
        (SEATS, canonical.encode_list([canonical.u32(2), canonical.u32(1)]), MalformedMessageError),
        (SEATS, canonical.encode_list([canonical.u32(2)] * 2), MalformedMessageError),
        (U16, bytes(1), MalformedMessageError),
        (U64, bytes(4), MalformedMessageError),
        (RUN, bytes(15), ParameterError),
        (SILO, b"no spaces please", ParameterError),
        (FEDERATION, b"", ParameterError),
        (ATTEMPT, b"", MalformedMessageError),
        (ATTEMPT, canonical.encode("attempt", bytes(16), bytes(8)), MalformedMessageError),
        (nested(Seat), EXAMPLE.encode(), MalformedMessageError),
        (optional(Seat), b"\x00", MalformedMessageError),
    ],
)
def test_what_readers_refuse(reader: Codec[Any], data: bytes, error: type[SecAggError]) -> None:
    """By the error of the check."""
    with pytest.raises(error) as caught:
        reader.read(data)
    assert caught.type is error


@pytest.mark.parametrize(
    ("codec_", "value"),
    [
        (U16, 65_535),
        (U32, 2**32 - 1),
        (U64, 2**64 - 1),
        (TEXT, "Zürich"),
        (SEATS, (1, 5, 9)),
        (SEATS, ()),
        (RUN, RunId(bytes(range(16)))),
        (SILO, SiloId("silo-1")),
        (FEDERATION, FederationId("f")),
        (ATTEMPT, AttemptId(run=RunId(bytes(16)), round=2**63, attempt=4)),
        (SECRET, Secret(b"s" * 33)),
        (choice(Color), Color.BLUE),
        (optional(DistantRoot), None),
        (optional(DistantRoot), EXAMPLE),
        (nested(DistantRoot), EXAMPLE),
        (listed(nested(DistantRoot), 2), (EXAMPLE, EXAMPLE)),
    ],
)
def test_what_a_codec_writes_it_reads(codec_: Codec[Any], value: object) -> None:
    """And writes it the same way again."""
    data = codec_.write(value)
    assert codec_.read(data) == value
    assert codec_.write(codec_.read(data)) == data


def test_field_codecs_are_read_off_the_type_once() -> None:
    """The second time from the cache."""
    first = codec._codecs(DistantRoot)
    assert codec._codecs(DistantRoot) is first
    assert list(first) == ["dealer", "root"]

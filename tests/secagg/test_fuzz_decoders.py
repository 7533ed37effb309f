"""Every decoder against hostile bytes: typed errors only, one encoding a value, bounded memory.

The same oracle runs under atheris in `make fuzz`.
"""

import struct
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import canonical, messages
from secagg.codec import MAX_RECORD_BYTES
from secagg.errors import MalformedMessageError, OversizeError, ParameterError, SecAggError
from secagg.parameters import MAX_VECTOR_LENGTH, VectorSpec, meta
from secagg.ring import unpack
from tests.secagg.encodings import check, corpus, decoders, record_types, seeds

SEEDS = tuple(seeds())
MOST = 2**32 - 1
PROFILE = settings.default or settings()


def times(factor: int) -> settings:
    """The profile's settings with more examples: one takes two milliseconds."""
    return settings(max_examples=factor * PROFILE.max_examples)


def test_the_corpus_holds_every_record() -> None:
    """A new record without a valid example is found here."""
    assert {record.LABEL for record in corpus()} == set(record_types())
    assert {name for name, _ in SEEDS} == set(decoders())


def test_valid_encodings_come_back_exactly() -> None:
    """Reading what was written gives the same value, and writing it the same bytes."""
    for record in corpus():
        assert type(record).decode(record.encode()) == record
    for name, data in SEEDS:
        assert check(name, data)


# --- mutations ---------------------------------------------------------------------------------

NUMBERS = st.sampled_from([0, 1, 2, 33, 2**16, 2**31 - 1, 2**31, MOST - 1, MOST])


def _overwrite(data: bytes, at: int, piece: bytes) -> bytes:
    at %= len(data) + 1
    return data[:at] + piece + data[at + len(piece) :]


def _splice(data: bytes, at: int, cut: int, piece: bytes) -> bytes:
    at %= len(data) + 1
    return data[:at] + piece + data[at + cut :]


def _raw_mutations(data: bytes) -> st.SearchStrategy[bytes]:
    """Change bytes without regard to what they mean; lengths and counts among them."""
    places = st.integers(0, max(1, len(data)))
    return st.one_of(
        st.builds(_overwrite, st.just(data), places, st.binary(min_size=1, max_size=4)),
        st.builds(
            _overwrite, st.just(data), places, NUMBERS.map(lambda number: struct.pack(">I", number))
        ),
        st.builds(_splice, st.just(data), places, st.integers(0, 40), st.binary(max_size=40)),
    )


@st.composite
def _deep_mutations(draw: st.DrawFn, data: bytes) -> bytes:
    """Change one field at some depth and mend all lengths above it, so that it is read."""
    try:
        items = list(canonical.decode_list(data, max_items=10_000))
    except SecAggError:
        return draw(st.one_of(st.binary(max_size=40), _raw_mutations(data)))
    if not items:
        return draw(st.binary(max_size=40))
    at = draw(st.integers(0, len(items) - 1))
    match draw(st.sampled_from(["into", "into", "drop", "twice", "swap", "replace"])):
        case "into":
            items[at] = draw(_deep_mutations(items[at]))
        case "drop":
            del items[at]
        case "twice":
            items.insert(at, items[at])
        case "swap":
            items[at], items[0] = items[0], items[at]
        case _:
            items[at] = draw(st.one_of(st.binary(max_size=70), st.sampled_from(items)))
    return canonical.encode_list(items)


@given(st.data())
@times(10)
def test_mutations_give_typed_errors_or_the_one_encoding(data: st.DataObject) -> None:
    """Valid bytes, changed somewhere: refused by name, or read as exactly what they say."""
    name, valid = data.draw(st.sampled_from(SEEDS))
    strategy = _raw_mutations(valid) if data.draw(st.booleans()) else _deep_mutations(valid)
    check(name, data.draw(strategy))


@given(st.sampled_from(sorted(decoders())), st.binary(max_size=300))
@times(6)
def test_random_bytes_give_typed_errors(name: str, data: bytes) -> None:
    """Bytes of nobody."""
    check(name, data)


@given(st.sampled_from(SEEDS), st.sampled_from(sorted(decoders())))
@times(4)
def test_one_decoder_refuses_what_is_for_another(seed: tuple[str, bytes], other: str) -> None:
    """A record under another label is no record."""
    name, valid = seed
    accepted = check(other, valid)
    if name.startswith("record ") and other.startswith("record ") and name != other:
        assert not accepted


# --- memory ------------------------------------------------------------------------------------


def _peak(work: Callable[[], object]) -> int:
    """Bytes that were allocated at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _with_number(data: bytes, number: int) -> list[bytes]:
    """The encoding with each u32 of its lists' counts and lengths replaced by `number`."""
    return [
        _overwrite(data, at, struct.pack(">I", number))
        for at in range(len(data) - 3)
        if data[at : at + 2] == b"\0\0"  # counts and lengths are small numbers
    ]


@pytest.mark.parametrize("label", sorted(record_types()))
def test_a_count_or_length_that_lies_allocates_nothing(label: str) -> None:
    """A count of 2^32−1 in 100 bytes costs no more memory than 100 bytes may."""
    smallest = min((r for r in corpus() if label == r.LABEL), key=lambda r: len(r.encode()))
    data = smallest.encode()[:3000]
    hostile = _with_number(data, MOST)
    assert hostile
    peak = _peak(lambda: [check(f"record {label}", item) for item in hostile[:200]])
    assert peak < 2_000_000


def test_a_list_is_measured_before_it_is_built() -> None:
    """The limit on items is checked before the first of them is read."""
    data = canonical.u32(MOST) + bytes(1000)
    with pytest.raises(OversizeError, match="at most 5 items"):
        canonical.decode_list(data, max_items=5)


def test_too_many_fields_are_refused_before_they_are_read() -> None:
    """A megabyte of empty fields under a record's label is not turned into a list."""
    count = 2**18
    label = canonical.encode_list([b"SA1/late-message"])[4:]
    data = canonical.u32(count) + label + bytes(4 * (count - 1))
    assert _peak(lambda: check("message", data)) < 100_000
    with pytest.raises(MalformedMessageError, match="2 fields"):
        messages.decode_message(data)


def test_the_largest_message_is_measured_before_it_is_read() -> None:
    """One byte more than the limit: refused for its size alone."""
    data = bytes(MAX_RECORD_BYTES + 1)
    with pytest.raises(OversizeError):
        messages.decode_message(data)
    assert _peak(lambda: check("message", data)) < 100_000


def test_a_list_at_its_limit_costs_a_small_multiple_of_its_bytes() -> None:
    """The worst that a list of 10,000 items can do."""
    data = messages.Keys(advertises=()).encode()
    listing = canonical.encode_list([b"x"] * 10_000)
    items = list(canonical.decode_list(data, max_items=10))
    hostile = canonical.encode_list([*items[:-1], listing])
    assert not check("record keys-message", hostile)
    assert _peak(lambda: check("record keys-message", hostile)) < 20 * len(hostile)


def test_sizes_that_a_message_announces_are_numbers() -> None:
    """2^64−1 bytes of state or 2^32−1 chunks are announced, not allocated."""
    notice = messages.StateNotice(
        setup=bytes(32), model_hash=bytes(32), nbytes=2**64 - 1, signature=bytes(64)
    )
    masked = messages.MaskedInput(
        binding=bytes(32),
        seat=1,
        root=bytes(32),
        lengths=(2**64 - 1,),
        chunks=MOST,
        nbytes=2**64 - 1,
        signature=bytes(64),
    )
    for message in (notice, masked):
        data = message.encode()
        assert _peak(lambda d=data: messages.attachments(messages.decode_message(d))) < 100_000  # type: ignore[misc]  # bound in the loop


def test_a_vector_shorter_than_announced_is_not_unpacked() -> None:
    """The number of words is checked against the bytes before anything is made for them."""

    def hostile() -> None:
        with pytest.raises(MalformedMessageError):
            unpack(bytes(100), 20, 2**40)

    assert _peak(hostile) < 100_000


def test_a_vector_of_many_long_segments_is_refused() -> None:
    """Its list of chunks alone would take gigabytes."""
    segments = tuple(meta(f"part_{i}", MAX_VECTOR_LENGTH // 2, bound=1) for i in range(3))
    assert len(VectorSpec(segments=segments[:2]).with_tags().segments) == 3
    with pytest.raises(ParameterError, match="together"):
        VectorSpec(segments=segments)

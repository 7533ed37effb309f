"""Tests of secagg.ring."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import ring
from secagg.errors import MalformedMessageError, ParameterError
from secagg.ring import U32, U64, RingVector

BITS = st.integers(1, 64)
COUNTS = st.integers(0, 300)


def _words(count: int, bits: int, seed: int = 0) -> RingVector:
    drawn = np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)
    words = np.empty(count, ring.container(bits))
    words[:] = drawn >> np.uint64(64 - bits)
    return words


def _pack_slowly(words: RingVector, bits: int) -> bytes:
    """Write the layout of the module's docstring with Python integers."""
    width = 8 * words.dtype.itemsize
    if bits == width:
        return b"".join(int(word).to_bytes(width // 8, "little") for word in words)
    columns = -(-len(words) // width)
    padded = [*map(int, words), *[0] * (columns * width - len(words))]
    table = [
        sum(padded[lane * columns + column] << lane * bits for lane in range(width))
        for column in range(columns)
    ]
    mask = (1 << width) - 1
    return b"".join(
        (value >> row * width & mask).to_bytes(width // 8, "little")
        for row in range(bits)
        for value in table
    )


@pytest.mark.parametrize(("bits", "dtype"), [(1, U32), (32, U32), (33, U64), (64, U64)])
def test_the_container_is_the_narrower_that_fits(bits: int, dtype: np.dtype[Any]) -> None:
    """Up to 32 bits compute in 32, more in 64."""
    assert ring.container(bits) == dtype


@pytest.mark.parametrize("bits", [0, 65])
def test_rings_have_1_to_64_bits(bits: int) -> None:
    """Others have no container."""
    with pytest.raises(ParameterError, match="1 to 64 bits"):
        ring.container(bits)


@given(bits=BITS, count=COUNTS)
def test_unpacking_inverts_packing(bits: int, count: int) -> None:
    """Every width and length, in exactly the announced number of bytes."""
    words = _words(count, bits)
    data = ring.pack(words, bits)
    assert len(data) == ring.packed_bytes(count, bits)
    again = ring.unpack(data, bits, count)
    assert again.dtype == words.dtype
    np.testing.assert_array_equal(again, words)


@pytest.mark.parametrize("bits", range(1, 65))
def test_the_layout_is_the_documented_one(bits: int) -> None:
    """A second, slow implementation writes the same bytes, for every width."""
    words = _words(150, bits)
    assert ring.pack(words, bits) == _pack_slowly(words, bits)


@given(bits=BITS, count=COUNTS)
def test_packing_reduces(bits: int, count: int) -> None:
    """Bits of the container above the ring's are dropped, and the input is not touched."""
    words = _words(count, 8 * ring.container(bits).itemsize)
    before = words.copy()
    reduced = ring.unpack(ring.pack(words, bits), bits, count)
    np.testing.assert_array_equal(words, before)
    np.testing.assert_array_equal(reduced, words & words.dtype.type((1 << bits) - 1))


@given(bits=BITS, count=COUNTS, change=st.sampled_from([-1, 1, 8]))
def test_another_length_is_refused(bits: int, count: int, change: int) -> None:
    """Short and long data are both malformed."""
    data = ring.pack(_words(count, bits), bits)
    wrong = data + bytes(change) if change > 0 else data[:change]
    if len(wrong) == len(data):
        return
    with pytest.raises(MalformedMessageError, match="bytes"):
        ring.unpack(wrong, bits, count)


@pytest.mark.parametrize("bits", [b for b in range(1, 64) if b != 32])
def test_every_bit_of_the_padding_is_checked(bits: int) -> None:
    """The wire form is unique: no bit of it is ignored."""
    words = np.zeros(1, ring.container(bits))
    data = ring.pack(words, bits)
    for place in range(bits, 8 * len(data), 7):
        # In a column of one word per lane the packed bits lie in order.
        altered = (1 << place).to_bytes(len(data), "little")
        with pytest.raises(MalformedMessageError, match="padding"):
            ring.unpack(altered, bits, 1)


def test_padding_costs_less_than_a_column() -> None:
    """20 bits for 65536 words are exactly 20/32 of them; a full container is itself."""
    assert ring.packed_bytes(65536, 20) == 65536 * 20 // 8
    assert ring.packed_bytes(3, 32) == 12
    assert ring.packed_bytes(3, 64) == 24
    assert ring.packed_bytes(33, 20) == 2 * 20 * 4
    with pytest.raises(ParameterError, match="at least 0"):
        ring.packed_bytes(-1, 20)


@given(bits=BITS, data=st.data())
def test_integers_with_sign_survive_the_ring(bits: int, data: st.DataObject) -> None:
    """The ends of the range included."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    drawn = data.draw(st.lists(st.integers(low, high), max_size=8))
    values = np.array([low, high, 0, *drawn], np.int64)
    words = ring.to_ring(values, bits)
    assert words.dtype == ring.container(bits)
    assert [int(word) for word in words] == [int(value) % (1 << bits) for value in values]
    np.testing.assert_array_equal(ring.from_ring(words, bits), values)


@given(bits=BITS)
def test_reading_ignores_the_bits_above_the_ring(bits: int) -> None:
    """An accumulator need not be reduced before it is read."""
    words = _words(50, 8 * ring.container(bits).itemsize)
    reduced = ring.unpack(ring.pack(words, bits), bits, 50)
    np.testing.assert_array_equal(ring.from_ring(words, bits), ring.from_ring(reduced, bits))


@given(bits=BITS, count=COUNTS)
def test_adding_in_the_container_adds_in_the_ring(bits: int, count: int) -> None:
    """Reduction at the end equals reduction at each step; subtraction inverts."""
    left, right = _words(count, bits, 1), _words(count, bits, 2)
    acc = left.copy()
    ring.add_into(acc, right)
    expected = [(int(a) + int(b)) % (1 << bits) for a, b in zip(left, right, strict=True)]
    assert [int(word) % (1 << bits) for word in acc] == expected
    ring.subtract_into(acc, right)
    np.testing.assert_array_equal(acc, left)


def test_vectors_must_be_alike() -> None:
    """Neither broadcasting nor promotion happens by accident."""
    four = np.zeros(4, np.uint32)
    for other in (np.zeros(1, np.uint32), np.zeros(4, np.uint64)):
        for operation in (ring.add_into, ring.subtract_into):
            with pytest.raises(ParameterError, match="alike"):
                operation(four, other)
    for wrong in (np.zeros(4, np.uint64), np.zeros((2, 2), np.uint32)):
        with pytest.raises(ParameterError, match="1-D vector"):
            ring.pack(wrong, 20)
        with pytest.raises(ParameterError, match="1-D vector"):
            ring.from_ring(wrong, 20)
    for strange in (np.zeros(4, np.int32), np.zeros(4), np.zeros((2, 2), np.int64)):
        with pytest.raises(ParameterError, match="1-D vector of int64"):
            ring.to_ring(strange, 20)  # type: ignore[arg-type]  # what the test is about

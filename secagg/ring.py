"""Vectors of integers modulo 2**bits: containers, conversion and the packed wire form.

Arithmetic happens in the container's width (32 or 64 bits) with its natural wraparound;
reduction to the exact number of bits happens once, in `pack`, because the residues modulo
2**bits are a quotient of those modulo 2**32 or 2**64.

Wire form (SA1 spec 4). Let W be the container's width. The words are filled up with zeros to a
multiple of W and written as W rows of m words; row i holds words i·m to (i+1)·m-1. The packed
form is `bits` rows of m little-endian words: the rows laid one over the other, row i starting
at bit i·bits of the column. All shifts of a row are then alike, so that each is one vector
operation over consecutive memory. With bits = W the rows are the words themselves and nothing
is filled up.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secagg.errors import MalformedMessageError, ParameterError

RingVector = NDArray[np.uint32] | NDArray[np.uint64]
RingDType = np.dtype[np.uint32] | np.dtype[np.uint64]
IntVector = NDArray[np.int64]

U32: Final = np.dtype("<u4")
U64: Final = np.dtype("<u8")
I64: Final = np.dtype("<i8")


def container(bits: int) -> RingDType:
    """Return the dtype that computes modulo 2**bits: '<u4' up to 32 bits, '<u8' up to 64."""
    if not 1 <= bits <= 64:
        raise ParameterError(f"expected a ring of 1 to 64 bits, got {bits}")
    return U32 if bits <= 32 else U64


def add_into(acc: RingVector, words: RingVector) -> None:
    """Add `words` to `acc` in place; same shape and dtype, wrapping at the container's width."""
    _check_alike(acc, words)
    np.add(acc, words, out=acc)


def subtract_into(acc: RingVector, words: RingVector) -> None:
    """Subtract `words` from `acc` in place; same shape and dtype, wrapping likewise."""
    _check_alike(acc, words)
    np.subtract(acc, words, out=acc)


def to_ring(values: IntVector, bits: int) -> RingVector:
    """Return the residues modulo 2**bits of integers with sign, in a new array."""
    check_vector(values, I64)
    words = np.empty(len(values), container(bits))
    np.copyto(words, values, casting="unsafe")  # keeps the low bits of two's complement
    return _reduce_in_place(words, bits)


def from_ring(words: RingVector, bits: int) -> IntVector:
    """Return the integers of -2**(bits-1)..2**(bits-1)-1 whose residues `words` holds.

    Bits above `bits` are ignored, so an unreduced accumulator may be passed.
    """
    dtype = container(bits)
    check_vector(words, dtype)
    unused = 8 * dtype.itemsize - bits
    signed = (words << dtype.type(unused)).view(np.dtype(f"<i{dtype.itemsize}"))
    return (signed >> unused).astype(np.int64)


def packed_bytes(count: int, bits: int) -> int:
    """Return the length of `pack`'s output for `count` words."""
    if count < 0:
        raise ParameterError(f"expected a count of words of at least 0, got {count}")
    width = 8 * container(bits).itemsize
    if bits == width:
        return count * width // 8
    return -(-count // width) * bits * width // 8


def pack(words: RingVector, bits: int) -> bytes:
    """Return the wire form of `words` modulo 2**bits.

    Args:
        words: shape (count,), dtype container(bits); bits above `bits` are dropped.
        bits: 1 to 64.
    """
    dtype = container(bits)
    check_vector(words, dtype)
    width = 8 * dtype.itemsize
    if bits == width:
        return words.tobytes()
    lanes = np.zeros((width, -(-len(words) // width)), dtype)
    flat = lanes.reshape(-1)
    np.bitwise_and(words, dtype.type((1 << bits) - 1), out=flat[: len(words)])
    packed = np.zeros((bits, lanes.shape[1]), dtype)
    shifted = np.empty(lanes.shape[1], dtype)
    for lane, row, shift in _places(bits, width):
        packed[row] |= np.left_shift(lanes[lane], dtype.type(shift), out=shifted)
        if shift + bits > width:
            np.right_shift(lanes[lane], dtype.type(width - shift), out=packed[row + 1])
    return packed.tobytes()


def unpack(data: bytes, bits: int, count: int) -> RingVector:
    """Return the `count` words, below 2**bits, whose wire form is `data`.

    Raises:
        MalformedMessageError: another length, or a word of the padding is not zero.
    """
    if len(data) != packed_bytes(count, bits):
        raise MalformedMessageError(
            f"expected {packed_bytes(count, bits)} bytes for {count} words of {bits} bits, "
            f"got {len(data)}"
        )
    dtype = container(bits)
    width = 8 * dtype.itemsize
    packed = np.frombuffer(data, np.uint8).view(dtype)
    if bits == width:
        return packed.copy()
    rows = packed.reshape(bits, -1)
    lanes = np.empty((width, rows.shape[1]), dtype)
    above = np.empty(rows.shape[1], dtype)
    for lane, row, shift in _places(bits, width):
        np.right_shift(rows[row], dtype.type(shift), out=lanes[lane])
        if shift + bits > width:
            lanes[lane] |= np.left_shift(rows[row + 1], dtype.type(width - shift), out=above)
    words: RingVector = lanes.reshape(-1)
    _reduce_in_place(words, bits)
    if words[count:].any():
        raise MalformedMessageError("expected zeros in the padding of packed words, got others")
    return words[:count]


def check_vector(words: RingVector | IntVector, dtype: RingDType | np.dtype[np.int64]) -> None:
    """Raise ParameterError unless `words` has one dimension and the dtype."""
    if words.dtype != dtype or words.ndim != 1:
        raise ParameterError(
            f"expected a 1-D vector of {dtype}, got {words.ndim}-D of {words.dtype}"
        )


def _places(bits: int, width: int) -> Iterator[tuple[int, int, int]]:
    """Yield each lane with the packed row and the bit in that row at which it starts."""
    for lane in range(width):
        row, shift = divmod(lane * bits, width)
        yield lane, row, shift


def _reduce_in_place(words: RingVector, bits: int) -> RingVector:
    np.bitwise_and(words, words.dtype.type((1 << bits) - 1), out=words)
    return words


def _check_alike(acc: RingVector, words: RingVector) -> None:
    if acc.dtype != words.dtype or acc.shape != words.shape:
        raise ParameterError(
            f"expected two vectors alike, got {acc.dtype}{acc.shape} and {words.dtype}{words.shape}"
        )

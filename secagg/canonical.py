"""The one encoding that is hashed and signed: length-prefixed fields under a label.

``enc(label, f1..fk)`` is ``u32(k+1) ‖ u32 |label| ‖ label ‖ u32 |f1| ‖ f1 …`` (SA1 spec 3.1).
Every number is big-endian and of fixed width: seat indices, counts and tag indices are u32,
attempts u32, rounds u64. The encoding is injective: the number of fields and each length come
before the bytes that they describe. `decode` accepts what `encode` writes and nothing else.

A Merkle tree binds the chunks of a vector: ``leaf = H("leaf", u32 index, data)``,
``node = H("node", left, right)`` where a node without a right neighbor moves up unchanged, and
``root = H("root", u32 count, top)``. Three labels and the count keep leaves, nodes and roots of
different trees apart.
"""

import hashlib
import math
import struct
import unicodedata
from collections.abc import Sequence
from typing import Final, Self

from secagg.errors import MalformedMessageError, OversizeError, ParameterError

PREFIX: Final = "SA1/"
DIGEST_BYTES: Final = 32
_LENGTH_BYTES: Final = 4
_MAX_COUNT: Final = 2**32 - 1


def encode(label: str, *fields: bytes) -> bytes:
    """Return ``enc("SA1/" + label, *fields)``."""
    return encode_list([(PREFIX + label).encode("ascii"), *fields])


def decode(
    data: bytes, label: str, *, max_bytes: int, fields: int | None = None
) -> tuple[bytes, ...]:
    """Return the fields of what `encode` wrote under `label`.

    Args:
        data: the bytes.
        label: without the prefix.
        max_bytes: limit that is checked first.
        fields: how many there must be; None where the number is free.

    Raises:
        OversizeError: more than `max_bytes`.
        MalformedMessageError: another label or number of fields, missing bytes or bytes left over.
    """
    if len(data) > max_bytes:
        raise OversizeError(f"expected at most {max_bytes} bytes for {label!r}, got {len(data)}")
    if fields is not None and read_u32(data[:_LENGTH_BYTES]) != fields + 1:
        raise MalformedMessageError(
            f"expected {fields} fields in {label!r}, got {read_u32(data[:_LENGTH_BYTES]) - 1}"
        )
    # No limit on the items: each takes at least its prefix of the bytes just limited.
    found, *values = decode_list(data, max_items=_MAX_COUNT) or (b"",)
    if found != (PREFIX + label).encode("ascii"):
        raise MalformedMessageError(f"expected the label {PREFIX + label!r}, got another one")
    return tuple(values)


def peek_label(data: bytes) -> str:
    """Return the label, without the prefix, of bytes that look like `encode`'s.

    Raises:
        MalformedMessageError: no label that starts with the prefix.
    """
    length = read_u32(data[4:8]) if len(data) >= 8 else 0
    label = data[8 : 8 + length]
    if len(label) != length or not label.startswith(PREFIX.encode()) or not label.isascii():
        raise MalformedMessageError(f"expected a label that starts with {PREFIX!r}, found none")
    return label.decode("ascii").removeprefix(PREFIX)


def digest(label: str, *fields: bytes) -> bytes:
    """Return ``H(label, fields)``: SHA-256 of `encode`, 32 bytes."""
    return hashlib.sha256(encode(label, *fields)).digest()


def encode_list(items: Sequence[bytes]) -> bytes:
    """Return a u32 count and then each item after its u32 length."""
    parts = [u32(len(items))]
    try:  # in one piece: a large round encodes millions of fields
        for item in items:
            parts += (len(item).to_bytes(_LENGTH_BYTES, "big"), item)
    except OverflowError:
        raise ParameterError("expected items of less than 4 GiB, got a longer one") from None
    return b"".join(parts)


def decode_list(data: bytes, *, max_items: int) -> tuple[bytes, ...]:
    """Return the items of what `encode_list` wrote.

    Raises:
        OversizeError: more than `max_items`.
        MalformedMessageError: missing bytes or bytes left over.
    """
    count = read_u32(data[:_LENGTH_BYTES])
    if count > max_items:
        raise OversizeError(f"expected at most {max_items} items, got {count}")
    items = []
    position = _LENGTH_BYTES
    for _ in range(count):
        start = position + _LENGTH_BYTES
        if start > len(data):  # before a false count is believed
            break
        position = start + int.from_bytes(data[position:start], "big")
        items.append(data[start:position])
    if position != len(data) or len(items) != count:  # an item cut short ends beyond the data, too
        raise MalformedMessageError(f"expected {count} items of {position} bytes, got {len(data)}")
    return tuple(items)


def u8(value: int) -> bytes:
    """Encode an integer of 0..2**8-1."""
    return _unsigned(value, 1)


def u16(value: int) -> bytes:
    """Encode an integer of 0..2**16-1."""
    return _unsigned(value, 2)


def u32(value: int) -> bytes:
    """Encode an integer of 0..2**32-1."""
    return _unsigned(value, 4)


def u64(value: int) -> bytes:
    """Encode an integer of 0..2**64-1."""
    return _unsigned(value, 8)


def i64(value: int) -> bytes:
    """Encode an integer of -2**63..2**63-1 in two's complement."""
    if not -(2**63) <= value < 2**63:
        raise ParameterError(f"expected an integer of 64 bits with sign, got {value}")
    return value.to_bytes(8, "big", signed=True)


def f64(value: float) -> bytes:
    """Encode a finite float as IEEE 754 binary64; minus zero becomes zero."""
    if not math.isfinite(value):
        raise ParameterError(f"expected a finite number, got {value}")
    return struct.pack(">d", value + 0.0)


def text(value: str) -> bytes:
    """Encode a string as UTF-8 in Unicode's normal form C."""
    return unicodedata.normalize("NFC", value).encode("utf-8")


def read_u8(data: bytes) -> int:
    """Decode `u8`; exactly 1 byte, else MalformedMessageError."""
    return int.from_bytes(_exactly(data, 1), "big")


def read_u16(data: bytes) -> int:
    """Decode `u16`; exactly 2 bytes, else MalformedMessageError."""
    return int.from_bytes(_exactly(data, 2), "big")


def read_u32(data: bytes) -> int:
    """Decode `u32`; exactly 4 bytes, else MalformedMessageError."""
    return int.from_bytes(_exactly(data, 4), "big")


def read_u64(data: bytes) -> int:
    """Decode `u64`; exactly 8 bytes, else MalformedMessageError."""
    return int.from_bytes(_exactly(data, 8), "big")


def read_i64(data: bytes) -> int:
    """Decode `i64`; exactly 8 bytes, else MalformedMessageError."""
    return int.from_bytes(_exactly(data, 8), "big", signed=True)


def read_f64(data: bytes) -> float:
    """Decode `f64`; 8 bytes of a finite number that is not minus zero."""
    value: float = struct.unpack(">d", _exactly(data, 8))[0]
    if not math.isfinite(value) or (value == 0 and data != bytes(8)):
        raise MalformedMessageError("expected a finite number in canonical form, got another")
    return value


def read_text(data: bytes) -> str:
    """Decode `text`; UTF-8 in normal form C, else MalformedMessageError."""
    try:
        value = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedMessageError("expected text in UTF-8, got other bytes") from error
    if not unicodedata.is_normalized("NFC", value):
        raise MalformedMessageError("expected text in Unicode normal form C, got another form")
    return value


def leaf_hash(index: int, data: bytes) -> bytes:
    """Return the Merkle leaf that binds `data` to its place in the list."""
    return digest("leaf", u32(index), data)


class MerkleTree:
    """The tree over the results of `leaf_hash`, in order, at least one.

    Raises:
        ParameterError: there is no leaf.
    """

    __slots__ = ("_levels", "root")

    def __init__(self, leaf_hashes: Sequence[bytes]) -> None:
        self._levels = _levels(leaf_hashes)
        (top,) = self._levels[-1]
        self.root = digest("root", u32(len(leaf_hashes)), top)

    @classmethod
    def of(cls, leaves: Sequence[bytes]) -> Self:
        """The tree over raw leaf data."""
        return cls([leaf_hash(index, data) for index, data in enumerate(leaves)])

    def path(self, place: int) -> tuple[bytes, ...]:
        """Return the sibling hashes that prove a leaf, from the bottom up."""
        return tuple(
            level[sibling]
            for height, level in enumerate(self._levels[:-1])
            if (sibling := place >> height ^ 1) < len(level)
        )


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Return the root over raw leaf data, at least one leaf."""
    return MerkleTree.of(leaves).root


def merkle_verify(
    root: bytes, count: int, index: int, leaf_data: bytes, path: Sequence[bytes]
) -> None:
    """Check that `leaf_data` is leaf `index` of the `count` leaves under `root`.

    Raises:
        MalformedMessageError: it is not, or the path has another length than the tree asks for.
    """
    if not 0 <= index < count:
        raise MalformedMessageError(f"expected a leaf index below {count}, got {index}")
    current = leaf_hash(index, leaf_data)
    siblings = iter(path)
    place, width = index, count
    while width > 1:
        if place ^ 1 < width:
            sibling = next(siblings, b"")
            pair = (sibling, current) if place % 2 else (current, sibling)
            current = digest("node", *pair)
        place, width = place // 2, (width + 1) // 2
    if next(siblings, None) is not None or digest("root", u32(count), current) != root:
        raise MalformedMessageError(f"expected a path from leaf {index} to the root, got another")


def _levels(leaf_hashes: Sequence[bytes]) -> list[list[bytes]]:
    """Return the tree's rows from the leaves up to the single top."""
    if not leaf_hashes:
        raise ParameterError("expected at least one leaf for a Merkle tree, got none")
    levels = [list(leaf_hashes)]
    while len(row := levels[-1]) > 1:
        pairs = zip(row[::2], row[1::2], strict=False)
        above = [digest("node", left, right) for left, right in pairs]
        levels.append(above + row[len(above) * 2 :])
    return levels


def _unsigned(value: int, width: int) -> bytes:
    try:
        return value.to_bytes(width, "big")
    except OverflowError:
        raise ParameterError(
            f"expected an integer of {8 * width} bits without sign, got {value}"
        ) from None


def _exactly(data: bytes, width: int) -> bytes:
    if len(data) != width:
        raise MalformedMessageError(f"expected {width} bytes for a number, got {len(data)}")
    return data

"""Tests of secagg.canonical."""

import hashlib
import math
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import canonical
from secagg.errors import MalformedMessageError, OversizeError, ParameterError

FIELDS = st.lists(st.binary(max_size=40), max_size=6)
LABELS = st.text("abcdefghijklmnopqrstuvwxyz-", max_size=12)
LEAVES = st.lists(st.binary(max_size=8), min_size=1, max_size=20)


def test_encoding_is_what_the_specification_writes_out() -> None:
    """SA1 spec 3.1, byte by byte."""
    assert canonical.encode("ctx", b"ab", b"") == (
        b"\x00\x00\x00\x03" + b"\x00\x00\x00\x07SA1/ctx" + b"\x00\x00\x00\x02ab" + bytes(4)
    )


def test_digest_is_sha256_of_the_encoding() -> None:
    """H(label, …) of SA1 spec 3.1."""
    expected = hashlib.sha256(canonical.encode("leaf", b"x")).digest()
    assert canonical.digest("leaf", b"x") == expected


@given(label=LABELS, fields=FIELDS)
def test_decoding_inverts_encoding(label: str, fields: list[bytes]) -> None:
    """What goes in comes out, under the label that went in."""
    data = canonical.encode(label, *fields)
    assert canonical.decode(data, label, max_bytes=len(data)) == tuple(fields)
    assert canonical.peek_label(data) == label


@given(one=st.tuples(LABELS, FIELDS), two=st.tuples(LABELS, FIELDS))
def test_encoding_is_injective(one: tuple[str, list[bytes]], two: tuple[str, list[bytes]]) -> None:
    """Different labels or fields never share an encoding."""
    same = canonical.encode(one[0], *one[1]) == canonical.encode(two[0], *two[1])
    assert same == (one == two)


@given(fields=FIELDS, data=st.data())
def test_a_boundary_moved_between_fields_changes_the_encoding(
    fields: list[bytes], data: st.DataObject
) -> None:
    """The near-collisions that random examples rarely meet: same bytes, other cuts."""
    joined = b"".join(fields)
    cut = data.draw(st.integers(0, len(joined)))
    other = [joined[:cut], joined[cut:]]
    same = canonical.encode("x", *fields) == canonical.encode("x", *other)
    assert same == (fields == other)


@given(data=st.binary(max_size=60))
def test_arbitrary_bytes_are_decoded_canonically_or_refused(data: bytes) -> None:
    """The decoder accepts only what the encoder would write."""
    try:
        items = canonical.decode_list(data, max_items=8)
    except (MalformedMessageError, OversizeError):
        return
    assert canonical.encode_list(items) == data


@given(fields=FIELDS, cut=st.integers(1, 50))
def test_a_cut_or_lengthened_message_is_refused(fields: list[bytes], cut: int) -> None:
    """Missing bytes and bytes left over are both errors."""
    data = canonical.encode("ctx", *fields)
    for wrong in (data[:-cut], data + bytes(cut)):
        with pytest.raises(MalformedMessageError):
            canonical.decode(wrong, "ctx", max_bytes=1000)


def test_another_label_is_refused() -> None:
    """A message of one kind is never read as another, nor an empty list as a message."""
    with pytest.raises(MalformedMessageError, match="SA1/ctx"):
        canonical.decode(canonical.encode("setup", b"x"), "ctx", max_bytes=100)
    with pytest.raises(MalformedMessageError, match="SA1/ctx"):
        canonical.decode(bytes(4), "ctx", max_bytes=100)


def test_limits_are_enforced_before_anything_is_read() -> None:
    """Too many bytes and too many items have an error of their own."""
    data = canonical.encode("ctx", bytes(100))
    with pytest.raises(OversizeError, match="at most 50 bytes"):
        canonical.decode(data, "ctx", max_bytes=50)
    with pytest.raises(OversizeError, match="at most 2 items"):
        canonical.decode_list(canonical.encode_list([b"", b"", b""]), max_items=2)
    with pytest.raises(MalformedMessageError):
        canonical.decode(b"\xff\xff\xff\xff", "ctx", max_bytes=100)


def test_the_number_of_fields_can_be_demanded() -> None:
    """One too few and one too many are malformed."""
    data = canonical.encode("ctx", b"a", b"b")
    assert canonical.decode(data, "ctx", max_bytes=100, fields=2) == (b"a", b"b")
    for fields in (1, 3):
        with pytest.raises(MalformedMessageError, match=f"{fields} fields"):
            canonical.decode(data, "ctx", max_bytes=100, fields=fields)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(7),
        bytes(8),
        canonical.encode("ctx")[:-1],
        canonical.encode_list([b"SA2/ctx"]),
        canonical.encode_list(["SA1/ctß".encode()]),
    ],
)
def test_peeking_refuses_what_is_no_label(data: bytes) -> None:
    """A label starts with the prefix, is ASCII and is all there."""
    with pytest.raises(MalformedMessageError, match="label"):
        canonical.peek_label(data)


@pytest.mark.parametrize(
    ("write", "read", "bits"),
    [
        (canonical.u8, canonical.read_u8, 8),
        (canonical.u16, canonical.read_u16, 16),
        (canonical.u32, canonical.read_u32, 32),
        (canonical.u64, canonical.read_u64, 64),
    ],
)
def test_unsigned_integers_have_a_fixed_width(
    write: Callable[[int], bytes], read: Callable[[bytes], int], bits: int
) -> None:
    """Both ends of the range pass, their neighbors outside do not."""
    top = 2**bits - 1
    assert write(1) == bytes(bits // 8 - 1) + b"\x01"
    assert [read(write(value)) for value in (0, 1, top)] == [0, 1, top]
    for wrong in (-1, top + 1):
        with pytest.raises(ParameterError, match="without sign"):
            write(wrong)
    for data in (bytes(bits // 8 - 1), bytes(bits // 8 + 1)):
        with pytest.raises(MalformedMessageError, match="bytes for a number"):
            read(data)


def test_signed_integers_are_in_twos_complement() -> None:
    """Both ends of the range pass, their neighbors outside do not."""
    assert canonical.i64(-2) == b"\xff" * 7 + b"\xfe"
    for value in (-(2**63), -1, 0, 2**63 - 1):
        assert canonical.read_i64(canonical.i64(value)) == value
    for wrong in (-(2**63) - 1, 2**63):
        with pytest.raises(ParameterError, match="with sign"):
            canonical.i64(wrong)


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_floats_pass_unchanged(value: float) -> None:
    """Every finite number survives; zero has a single form."""
    data = canonical.f64(value)
    assert canonical.read_f64(data) == value
    assert canonical.f64(canonical.read_f64(data)) == data


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_floats_are_refused_both_ways(value: float) -> None:
    """NaN has many encodings and no place in a hash."""
    with pytest.raises(ParameterError, match="finite"):
        canonical.f64(value)
    with pytest.raises(MalformedMessageError, match="finite"):
        canonical.read_f64(struct.pack(">d", value))


def test_minus_zero_has_no_encoding() -> None:
    """It is written as zero and refused when read."""
    assert canonical.f64(-0.0) == bytes(8)
    with pytest.raises(MalformedMessageError, match="canonical"):
        canonical.read_f64(b"\x80" + bytes(7))


def test_text_is_normalized_utf8() -> None:
    """One string, one encoding: the composed form is written, the other refused."""
    assert canonical.text("e\u0301") == canonical.text("\u00e9") == b"\xc3\xa9"
    assert canonical.read_text(b"\xc3\xa9") == "\u00e9"
    with pytest.raises(MalformedMessageError, match="normal form"):
        canonical.read_text("e\u0301".encode())
    with pytest.raises(MalformedMessageError, match="UTF-8"):
        canonical.read_text(b"\xff")


def test_the_merkle_tree_is_what_the_specification_writes_out() -> None:
    """Three leaves: the third moves up and meets the first two at the top."""
    h = canonical.digest
    one, two, three = (h("leaf", canonical.u32(i), bytes([i])) for i in range(3))
    top = h("node", h("node", one, two), three)
    assert canonical.merkle_root([b"\0", b"\1", b"\2"]) == h("root", canonical.u32(3), top)
    assert canonical.MerkleTree([one, two, three]).root == h("root", canonical.u32(3), top)
    assert canonical.merkle_root([b"\0"]) == h("root", canonical.u32(1), one)


@given(leaves=LEAVES)
def test_every_leaf_has_a_path_to_the_root(leaves: list[bytes]) -> None:
    """Each path verifies at its own place and at no other."""
    tree, count = canonical.MerkleTree.of(leaves), len(leaves)
    root = tree.root
    assert root == canonical.merkle_root(leaves)
    for index, leaf in enumerate(leaves):
        path = tree.path(index)
        canonical.merkle_verify(root, count, index, leaf, path)
        with pytest.raises(MalformedMessageError):
            canonical.merkle_verify(root, count, (index + 1) % (count + 1), leaf, path)


@given(leaves=LEAVES, data=st.data())
def test_a_path_proves_nothing_else(leaves: list[bytes], data: st.DataObject) -> None:
    """Another leaf, root or count, and a path cut, lengthened or altered are refused."""
    root, count = canonical.merkle_root(leaves), len(leaves)
    index = data.draw(st.integers(0, count - 1))
    path = canonical.MerkleTree.of(leaves).path(index)
    wrong: list[tuple[bytes, int, int, bytes, tuple[bytes, ...]]] = [
        (bytes(32), count, index, leaves[index], path),
        (root, count + 1, index, leaves[index], path),
        (root, count, index, leaves[index] + b"!", path),
        (root, count, index, leaves[index], (*path, bytes(32))),
    ]
    if path:
        wrong.append((root, count, index, leaves[index], path[:-1]))
        wrong.append((root, count, index, leaves[index], (bytes(32), *path[1:])))
    for arguments in wrong:
        with pytest.raises(MalformedMessageError):
            canonical.merkle_verify(*arguments)


@given(leaves=LEAVES, other=LEAVES)
def test_different_lists_have_different_roots(leaves: list[bytes], other: list[bytes]) -> None:
    """Lists that share leaves or length included."""
    same = canonical.merkle_root(leaves) == canonical.merkle_root(other)
    assert same == (leaves == other)
    assert canonical.merkle_root([*leaves, leaves[-1]]) != canonical.merkle_root(leaves)


def test_a_tree_has_leaves_and_indices_within_it() -> None:
    """No root and no paths of nothing, no proof of a leaf that is not there."""
    with pytest.raises(ParameterError, match="at least one leaf"):
        canonical.merkle_root([])
    for index in (-1, 1):
        with pytest.raises(MalformedMessageError, match="leaf index"):
            canonical.merkle_verify(bytes(32), 1, index, b"", ())


class FourGibibytes(bytes):
    """Says that it is longer than a length field can say."""

    __slots__ = ()

    def __len__(self) -> int:
        return 2**32


def test_an_item_longer_than_its_length_field() -> None:
    """Refused before anything is joined."""
    with pytest.raises(ParameterError, match="less than 4 GiB"):
        canonical.encode_list([b"", FourGibibytes()])

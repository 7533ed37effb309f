"""Tests of secagg.verification."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from secagg.canonical import digest, encode, text, u32
from secagg.errors import ForgedSumError, ParameterError
from secagg.keys import hkdf
from secagg.prg import CHUNK_WORDS, expand
from secagg.ring import U64
from secagg.secretbytes import Secret
from secagg.verification import (
    SegmentTags,
    TagVector,
    check_tags,
    segment_tags,
    tag_blinds,
    tag_count,
    verification_key,
)

KEY, BINDING = Secret(b"\x01" * 32), b"\x02" * 32


def _tags(values: NDArray[np.int64], *, segment: str = "w", count: int = 2) -> TagVector:
    return segment_tags(values, key=KEY, binding=BINDING, segment=segment, count=count)


def _blinds(seat: int, *, segment: str = "w", count: int = 2) -> TagVector:
    return tag_blinds(key=KEY, binding=BINDING, segment=segment, seat=seat, count=count)


@pytest.mark.parametrize(
    ("bits", "count"), [(1, 1), (2, 2), (20, 2), (32, 2), (33, 2), (34, 3), (48, 4), (64, 64)]
)
def test_tags_are_as_many_as_64_bits_of_security_need(bits: int, count: int) -> None:
    """⌈64/(65-b)⌉ of SA1 spec 5.1."""
    assert tag_count(bits) == count


@pytest.mark.parametrize("bits", [0, 65])
def test_sums_have_1_to_64_bits(bits: int) -> None:
    """Beyond them no number of tags helps."""
    with pytest.raises(ParameterError, match="1 to 64 bits"):
        tag_count(bits)


def test_tags_and_blinds_are_those_of_the_specification() -> None:
    """SA1 spec 5.1 in Python integers: ⟨r, x⟩ mod 2**64, and 8 bytes of HKDF."""
    values = np.array([-(2**40), -1, 0, 1, 2**40], np.int64)
    expected = []
    for tag in range(2):
        info = encode("mac-r", text("w"), u32(tag))
        r = expand(hkdf(KEY, salt=BINDING, info=info, length=48), 5, U64)
        total = sum(int(a) * int(b) for a, b in zip(r, values, strict=True))
        expected.append(total % 2**64)
    assert _tags(values).tolist() == expected
    info = encode("mac-f", text("w"), u32(6), u32(1))
    blind = int.from_bytes(hkdf(KEY, salt=BINDING, info=info, length=8), "little")
    assert _blinds(6)[1] == blind


def test_the_key_is_the_hash_of_all_parts_by_seat() -> None:
    """In order of the seats, whatever order they come in."""
    parts = [(2, Secret(b"b" * 32)), (1, Secret(b"a" * 32))]
    expected = digest("ver", b"s" * 32, u32(1), b"a" * 32, u32(2), b"b" * 32)
    assert verification_key(b"s" * 32, parts).reveal() == expected


@given(seed=st.integers(0, 2**32), silos=st.integers(2, 6))
def test_an_honest_sum_passes_and_any_change_fails(seed: int, silos: int) -> None:
    """One unit, a scaled sum, a silo left out or counted twice, another segment's blinds."""
    rng = np.random.default_rng(seed)
    inputs = rng.integers(-(2**15), 2**15, (silos, 40))
    seats = range(1, silos + 1)
    sent = np.array([_tags(x) + _blinds(seat) for seat, x in zip(seats, inputs, strict=True)])
    got = sent.sum(axis=0, dtype=np.uint64)
    blinds = np.array([_blinds(seat) for seat in seats]).sum(axis=0, dtype=np.uint64)
    total = inputs.sum(axis=0)
    check_tags(expected=_tags(total) + blinds, got=got, segment="w")
    changed = total.copy()
    changed[rng.integers(40)] += 1
    other = np.array([_blinds(seat, segment="c") for seat in seats]).sum(axis=0, dtype=np.uint64)
    for expected, claimed in (
        (_tags(changed) + blinds, got),
        (_tags(2 * total) + blinds, got + got),
        (_tags(total - inputs[0]) + blinds, got),
        (_tags(total - inputs[0]) + blinds, got - sent[0]),
        (_tags(total) + other, got),
    ):
        with pytest.raises(ForgedSumError, match="segment 'w'"):
            check_tags(expected=expected, got=claimed, segment="w")


def test_each_tag_alone_rejects() -> None:
    """All must match; that one does is not enough."""
    got = np.array([1, 2], np.uint64)
    for place in range(2):
        wrong = got.copy()
        wrong[place] += 1
        with pytest.raises(ForgedSumError):
            check_tags(expected=got, got=wrong, segment="w")


@given(split=st.integers(0, 150_000))
def test_chunks_do_not_show_in_the_tags(split: int) -> None:
    """In two parts, the later first, as in one; longer than a chunk."""
    values = np.random.default_rng(0).integers(-9, 9, 150_000)
    tags = SegmentTags(key=KEY, binding=BINDING, segment="w", count=2)
    tags.add(values[split:], first_word=split)
    tags.add(values[:split], first_word=0)
    assert len(values) > 2 * CHUNK_WORDS
    np.testing.assert_array_equal(tags.totals, _tags(values))


def test_tags_are_of_64_bit_integers() -> None:
    """A narrower vector would be read two coordinates at a time."""
    with pytest.raises(ParameterError, match="int64"):
        _tags(np.zeros(4, np.int32))


def test_tags_are_linear() -> None:
    """The tag of a sum is the sum of the tags, beyond 64 bits too."""
    one, two = np.random.default_rng(1).integers(-(2**61), 2**61, (2, 50))
    np.testing.assert_array_equal(_tags(one) + _tags(two), _tags(one + two))


def test_tags_of_tags_segments_and_bindings_are_unrelated() -> None:
    """The vector r differs in each."""
    values = np.ones(1, np.int64)
    first, second = _tags(values)
    third = segment_tags(values, key=KEY, binding=bytes(32), segment="w", count=1)[0]
    assert len({first, second, _tags(values, segment="c")[0], third}) == 4
    assert len({*_blinds(1), *_blinds(2), *_blinds(1, segment="c")}) == 6

"""Tests of secagg.prg."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given
from hypothesis import strategies as st

from secagg import prg
from secagg.errors import ParameterError
from secagg.ids import RunId
from secagg.prg import CHUNK_WORDS, MaskStream, expand, rounding_coins
from secagg.ring import U32, U64, RingDType, RingVector

SEED = bytes(range(48))
DTYPES = st.sampled_from([U32, U64])


def _expand_slowly(seed: bytes, count: int, dtype: RingDType) -> RingVector:
    """Encrypt each counter block by itself, counting modulo 2**128 in Python."""
    encrypt = Cipher(AES256(seed[:32]), ECB()).encryptor()  # noqa: S305  # one block at a time
    start = int.from_bytes(seed[32:], "big")
    blocks = range(start, start + -(-count * dtype.itemsize // 16))
    stream = b"".join(encrypt.update((b % 2**128).to_bytes(16, "big")) for b in blocks)
    return np.frombuffer(stream, np.uint8).view(dtype)[:count]


@given(key=st.binary(min_size=32, max_size=32), dtype=DTYPES, count=st.integers(0, 90),
       counter=st.sampled_from([0, 2**32 - 2, 2**64 - 1, 2**96 - 3, 2**128 - 1]))  # fmt: skip
def test_the_stream_is_counter_mode(key: bytes, dtype: RingDType, count: int, counter: int) -> None:
    """Block by block, with carries over 32, 64 and 96 bits and around 2**128."""
    seed = key + counter.to_bytes(16, "big")
    np.testing.assert_array_equal(expand(seed, count, dtype), _expand_slowly(seed, count, dtype))


@given(dtype=DTYPES, first=st.integers(0, 200_000), count=st.integers(0, 70_000))
def test_any_part_can_be_expanded_alone(dtype: RingDType, first: int, count: int) -> None:
    """Also parts that begin inside a block; the whole is longer than several slices."""
    whole = expand(SEED, 270_000, dtype)
    np.testing.assert_array_equal(
        expand(SEED, count, dtype, first_word=first), whole[first : first + count]
    )


@given(dtype=DTYPES, counter=st.sampled_from([0, 2**128 - 5]), data=st.data())
def test_one_stream_read_in_any_order_is_the_same_stream(
    dtype: RingDType, counter: int, data: st.DataObject
) -> None:
    """Reading on, back, and again, over short and whole chunks."""
    seed = bytes(32) + counter.to_bytes(16, "big")
    whole = expand(seed, 3 * CHUNK_WORDS, dtype)
    stream = MaskStream(seed, dtype)
    for chunk in data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=6)):
        count = data.draw(st.sampled_from([0, 1, 7, 40_000, CHUNK_WORDS]))
        start = chunk * CHUNK_WORDS
        np.testing.assert_array_equal(stream.words(chunk, count), whole[start : start + count])


@given(dtype=DTYPES, chunk=st.integers(0, 3), count=st.integers(0, CHUNK_WORDS))
def test_adding_is_adding_the_words(dtype: RingDType, chunk: int, count: int) -> None:
    """Subtraction takes them away again; the sum wraps."""
    stream = MaskStream(SEED, dtype)
    acc = np.full(count, 5, dtype)
    stream.add_to(acc, chunk)
    words = expand(SEED, count, dtype, first_word=chunk * CHUNK_WORDS)
    np.testing.assert_array_equal(acc, words + dtype.type(5))
    stream.subtract_from(acc, chunk)
    np.testing.assert_array_equal(acc, np.full(count, 5, dtype))


def test_streams_may_share_their_scratch_in_turn() -> None:
    """Two seeds, one working memory, read alternately."""
    scratch = prg.new_scratch()
    other = SEED[::-1]
    one, two = (MaskStream(seed, U32, scratch=scratch) for seed in (SEED, other))
    for chunk in range(2):
        for stream, seed in ((one, SEED), (two, other)):
            expected = expand(seed, CHUNK_WORDS, U32, first_word=chunk * CHUNK_WORDS)
            np.testing.assert_array_equal(stream.words(chunk, CHUNK_WORDS), expected)


def test_chunks_end_at_cipher_blocks() -> None:
    """SA1 spec 3.2: chunks are multiples of 64 bytes, in both widths."""
    assert CHUNK_WORDS * U32.itemsize % 64 == 0


@pytest.mark.parametrize("size", [0, 47, 49])
def test_seeds_have_48_bytes(size: int) -> None:
    """Key and first counter block."""
    with pytest.raises(ParameterError, match="48 bytes"):
        MaskStream(bytes(size), U32)


def test_chunks_are_limited_and_of_the_streams_type() -> None:
    """A longer chunk would overlap the next one's words."""
    stream = MaskStream(SEED, U32)
    for chunk, count in ((-1, 4), (0, CHUNK_WORDS + 1), (0, -1)):
        with pytest.raises(ParameterError, match="chunk of at most"):
            stream.words(chunk, count)
    for operation in (stream.add_to, stream.subtract_from):
        with pytest.raises(ParameterError, match="chunk of uint32"):
            operation(np.zeros(4, np.uint64), 0)
        with pytest.raises(ParameterError, match="chunk of at most"):
            operation(np.zeros(CHUNK_WORDS + 1, np.uint32), 0)


def test_coins_are_fixed_by_what_they_are_for() -> None:
    """Same arguments, same coins; each of them separates."""
    run, other = RunId(bytes(16)), RunId(b"\1" * 16)
    base = (bytes(32), run, 1, "w")
    variants = [
        base,
        (b"\1" * 32, run, 1, "w"),
        (bytes(32), other, 1, "w"),
        (bytes(32), run, 2, "w"),
        (bytes(32), run, 1, "c"),
    ]
    drawn = {rounding_coins(*variant).words(0, 8).tobytes() for variant in variants}
    assert len(drawn) == len(variants)
    assert rounding_coins(*base).words(0, 8).tobytes() in drawn
    assert rounding_coins(*base).words(0, 8).dtype == np.uint32


def test_a_chacha20_stream_ends_where_its_counter_would_overflow() -> None:
    """2^32 blocks of 64 bytes, counted from 0; AES counters wrap at 2^128."""
    seed = bytes(range(44))
    assert prg.CHACHA20.start(seed, 2**32 - 1) == b"\xff" * 4 + seed[32:]
    with pytest.raises(ParameterError, match=r"2\*\*38 bytes"):
        prg.CHACHA20.start(seed, 2**32)
    assert prg.AES_256_CTR.start(bytes(32) + b"\xff" * 16, 1) == bytes(16)

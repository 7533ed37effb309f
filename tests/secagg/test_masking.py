"""Tests of secagg.masking."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.canonical import encode, text, u32
from secagg.errors import BadKeyError, ParameterError
from secagg.keys import AgreementKey, hkdf
from secagg.masking import MaskBundle, pairwise_seed, pairwise_seeds, pairwise_sign, self_seed
from secagg.prg import CHUNK_WORDS, expand
from secagg.ring import U32, U64, RingDType
from secagg.secretbytes import Secret

BINDING = b"\x42" * 32
KEYS = {seat: AgreementKey.from_secret(bytes([seat]) * 32) for seat in (1, 2, 3, 5)}


def _seed(own: int, peer: int, *, binding: bytes = BINDING, segment: str = "w") -> bytes:
    return pairwise_seed(
        KEYS[own],
        KEYS[peer].public,
        binding=binding,
        own_seat=own,
        peer_seat=peer,
        segment=segment,
    )


def test_both_ends_derive_the_seed_of_the_specification() -> None:
    """SA1 spec 3.2: the lower seat stands first, whoever computes."""
    shared = KEYS[2].exchange(KEYS[5].public)
    info = encode("mask", u32(2), u32(5), text("w"))
    expected = hkdf(shared, salt=BINDING, info=info, length=48)
    assert _seed(2, 5) == _seed(5, 2) == expected


def test_seeds_are_separate_for_pairs_bindings_and_segments() -> None:
    """No two streams of a round, and none of two rounds, meet."""
    seeds = [
        _seed(1, 2),
        _seed(1, 3),
        _seed(2, 3),
        _seed(1, 2, binding=bytes(32)),
        _seed(1, 2, segment="c"),
    ]
    assert len(set(seeds)) == len(seeds)


def test_one_agreement_serves_all_segments() -> None:
    """The plural form gives what the singular gives."""
    seeds = pairwise_seeds(
        KEYS[1], KEYS[2].public, binding=BINDING, own_seat=1, peer_seat=2, segments=("w", "c")
    )
    assert seeds == {"w": _seed(1, 2), "c": _seed(1, 2, segment="c")}


def test_a_bad_peer_key_is_refused() -> None:
    """A point of low order would make the mask public."""
    with pytest.raises(BadKeyError):
        pairwise_seed(KEYS[1], bytes(32), binding=BINDING, own_seat=1, peer_seat=2, segment="w")


def test_self_seeds_are_those_of_the_specification() -> None:
    """HKDF(b_u, binding, enc("SA1/self", u, segment)), 48 bytes."""
    expected = hkdf(b"b" * 32, salt=BINDING, info=encode("self", u32(4), text("w")), length=48)
    assert self_seed(Secret(b"b" * 32), binding=BINDING, seat=4, segment="w") == expected
    for seat, segment, binding in ((5, "w", BINDING), (4, "c", BINDING), (4, "w", bytes(32))):
        assert self_seed(b"b" * 32, binding=binding, seat=seat, segment=segment) != expected


def test_the_higher_seat_adds() -> None:
    """Seat u adds for v < u and subtracts for v > u; nobody pairs with itself."""
    assert pairwise_sign(5, 2) == 1
    assert pairwise_sign(2, 5) == -1
    with pytest.raises(ParameterError, match="two seats"):
        pairwise_sign(3, 3)


@given(dtype=st.sampled_from([U32, U64]), chunk=st.integers(0, 2), count=st.integers(0, 3000))
def test_pairwise_masks_cancel_in_the_sum(dtype: RingDType, chunk: int, count: int) -> None:
    """Over all seats the sum of the masked vectors is the sum of the vectors, and none is bare."""
    total = np.zeros(count, dtype)
    for own in KEYS:
        peers = [peer for peer in KEYS if peer != own]
        bundle = MaskBundle([(pairwise_sign(own, peer), _seed(own, peer)) for peer in peers], dtype)
        masked = np.full(count, own, dtype)
        bundle.apply(masked, chunk)
        if count > 8:
            assert (masked != own).any()
        total += masked
    np.testing.assert_array_equal(total, np.full(count, sum(KEYS), dtype))


def test_a_bundle_is_the_sum_of_its_streams() -> None:
    """With their signs, over whole and short chunks in any order."""
    seeds = [bytes([n]) * 48 for n in range(3)]
    bundle = MaskBundle([(1, seeds[0]), (-1, seeds[1]), (1, seeds[2])], U32)
    for chunk, count in ((1, CHUNK_WORDS), (0, 100), (2, 9)):
        acc = np.zeros(count, np.uint32)
        bundle.apply(acc, chunk)
        one, two, three = (
            expand(seed, count, U32, first_word=chunk * CHUNK_WORDS) for seed in seeds
        )
        np.testing.assert_array_equal(acc, one - two + three)


@pytest.mark.parametrize("sign", [0, 2, -2])
def test_signs_are_plus_or_minus_one(sign: int) -> None:
    """Anything else is a bug of the caller."""
    with pytest.raises(ParameterError, match="sign"):
        MaskBundle([(sign, bytes(48))], U32)


def test_no_partial_sum_is_bare() -> None:
    """Every proper subset of the seats leaves masks that do not cancel."""
    masked = {}
    for own in KEYS:
        bundle = MaskBundle(
            [(pairwise_sign(own, peer), _seed(own, peer)) for peer in KEYS if peer != own], U64
        )
        masked[own] = np.zeros(16, np.uint64)
        bundle.apply(masked[own], 0)
    for size in range(1, len(KEYS)):
        for some in combinations(KEYS, size):
            total = np.sum([masked[seat] for seat in some], axis=0, dtype=np.uint64)
            assert np.count_nonzero(total) == 16

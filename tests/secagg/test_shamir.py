"""Tests of secagg.shamir."""

from collections import Counter
from contextlib import suppress
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import shamir
from secagg.errors import BadShareError, ParameterError
from secagg.rng import SystemRng
from secagg.secretbytes import Secret
from secagg.shamir import FIELD_PRIME, Interpolator

SECRETS = st.binary(min_size=32, max_size=32)
HOLDERS = st.lists(st.integers(1, 300), min_size=2, max_size=9, unique=True)


class _ScriptedRng:
    """Hands out prepared bytes, so that a draw can be made to hit the edge of the field."""

    def __init__(self, *draws: int) -> None:
        self.draws = list(draws)

    def bytes(self, count: int) -> bytes:
        return (self.draws.pop(0) << 7).to_bytes(count, "big")


@given(secret=SECRETS, holders=HOLDERS, data=st.data())
def test_any_threshold_of_the_shares_rebuilds(
    secret: bytes, holders: list[int], data: st.DataObject
) -> None:
    """In any order, and with more shares than needed."""
    threshold = data.draw(st.integers(2, len(holders)))
    shares = shamir.split(Secret(secret), threshold=threshold, holders=holders, rng=SystemRng())
    assert set(shares) == set(holders)
    assert all(len(share) == 33 for share in shares.values())
    chosen = data.draw(st.permutations(holders))[: data.draw(st.integers(threshold, len(holders)))]
    assert shamir.combine({x: shares[x] for x in chosen}, threshold) == secret


def test_fewer_shares_say_nothing_about_the_secret() -> None:
    """Exhaustive over GF(5): t-1 shares are equally likely under every secret.

    All holder sets of all thresholds over all polynomials: the multiset of views of any
    t-1 holders is the same for each secret, and any t holders rebuild it.
    """
    prime, holders = 5, (1, 2, 3, 4)
    for threshold in (2, 3):
        views: dict[tuple[int, ...], dict[int, Counter[tuple[int, ...]]]] = {}
        for secret, *coefficients in product(range(prime), repeat=threshold):
            points = shamir.split_integer(secret, coefficients, holders, prime=prime)
            for some in combinations(holders, threshold - 1):
                view = tuple(points[x] for x in some)
                views.setdefault(some, {}).setdefault(secret, Counter())[view] += 1
            for enough in combinations(holders, threshold):
                chosen = {x: points[x] for x in enough}
                assert shamir.interpolate_integer(chosen, prime=prime) == secret
        for by_secret in views.values():
            assert len(by_secret) == prime
            assert all(view == by_secret[0] for view in by_secret.values())
            assert len(by_secret[0]) == prime ** (threshold - 1)


def test_coefficients_are_rejected_beyond_the_field_and_may_be_zero() -> None:
    """257 bits at or above the prime are drawn again; 0 and p-1 are coefficients."""
    rng = _ScriptedRng(FIELD_PRIME, 2**257 - 1, FIELD_PRIME - 1, 0)
    shares = shamir.split(bytes(32), threshold=3, holders=[1, 2, 3], rng=rng)
    assert rng.draws == []
    # The polynomial is (p-1)·x + 0·x² = -x.
    points = {x: int.from_bytes(share.reveal(), "big") for x, share in shares.items()}
    assert points == {x: FIELD_PRIME - x for x in (1, 2, 3)}


@given(secret=SECRETS)
def test_an_altered_share_changes_the_secret(secret: bytes) -> None:
    """Sharing alone detects nothing; commitments do. But it never rebuilds the old value."""
    shares = shamir.split(secret, threshold=2, holders=[1, 2], rng=SystemRng())
    value = int.from_bytes(shares[1].reveal(), "big")
    shares[1] = Secret(((value + 1) % FIELD_PRIME).to_bytes(33, "big"))
    with suppress(BadShareError):  # of 297 field elements that are no 32-byte string
        assert shamir.combine(shares, 2) != secret


def test_a_share_beyond_the_field_is_refused_and_blamed() -> None:
    """The form share + p names the same field element again."""
    shares = shamir.split(bytes(32), threshold=2, holders=[3, 8], rng=_ScriptedRng(1))
    value = int.from_bytes(shares[8].reveal(), "big")
    for wrong in ((value + FIELD_PRIME).to_bytes(33, "big"), value.to_bytes(34, "big"), b""):
        with pytest.raises(BadShareError) as caught:
            shamir.combine({3: shares[3], 8: Secret(wrong)}, 2)
        assert caught.value.silo == 8


def test_a_rebuilt_value_that_is_no_secret_is_refused() -> None:
    """The field has 297 elements more than there are 32-byte strings."""
    points = shamir.split_integer(2**256, [5], [1, 2])
    shares = {x: Secret(y.to_bytes(33, "big")) for x, y in points.items()}
    with pytest.raises(BadShareError, match="rebuild another value"):
        shamir.combine(shares, 2)


@pytest.mark.parametrize("threshold", [0, 1, 4])
def test_thresholds_are_2_to_the_number_of_holders(threshold: int) -> None:
    """A threshold of 1 would hand everyone the secret."""
    with pytest.raises(ParameterError, match="threshold"):
        shamir.split(bytes(32), threshold=threshold, holders=[1, 2, 3], rng=SystemRng())


@pytest.mark.parametrize("holders", [[0, 1], [1, 1], [-1, 2]])
def test_holders_are_distinct_and_positive(holders: list[int]) -> None:
    """The holder x = 0 would be handed the secret itself."""
    with pytest.raises(ParameterError, match="distinct holders"):
        shamir.split(bytes(32), threshold=2, holders=holders, rng=SystemRng())
    with pytest.raises(ParameterError, match="distinct holders"):
        Interpolator(tuple(holders))


def test_secrets_have_32_bytes() -> None:
    """Others are refused."""
    with pytest.raises(ParameterError, match="32 bytes"):
        shamir.split(bytes(31), threshold=2, holders=[1, 2], rng=SystemRng())


@pytest.mark.parametrize("threshold", [1, 3])
def test_too_few_shares_are_refused(threshold: int) -> None:
    """Fewer than the threshold, or a threshold that protects nothing."""
    shares = shamir.split(bytes(32), threshold=2, holders=[1, 2], rng=SystemRng())
    with pytest.raises(ParameterError, match="shares"):
        shamir.combine(shares, threshold)


def test_coefficients_are_computed_once_for_a_set_of_holders() -> None:
    """The same set gives the same object."""
    assert shamir.interpolator((1, 5, 9)) is shamir.interpolator((1, 5, 9))

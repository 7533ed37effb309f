"""Shamir's secret sharing over a prime field: any `threshold` shares rebuild, fewer say nothing.

The field is that of the smallest prime above 2**256, so that every 32-byte string is a secret
without reduction or bias; shares take 33 bytes (SA1 spec 3.1). The functions on integers take
any prime, which is how the vectors of RFC 9591 and exhaustive tests over small fields reach the
same code.

Source: Shamir 1979, "How to share a secret".
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Final

from secagg.errors import BadShareError, ParameterError
from secagg.rng import Rng
from secagg.secretbytes import Secret, reveal

FIELD_PRIME: Final = 2**256 + 297
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33
MIN_THRESHOLD: Final = 2

Share = Secret


def split(
    secret: Secret | bytes, *, threshold: int, holders: Sequence[int], rng: Rng
) -> dict[int, Share]:
    """Deal one share of `secret` to each holder.

    Args:
        secret: 32 bytes.
        threshold: how many shares rebuild it, 2 to the number of holders.
        holders: distinct x-coordinates of 1 or more: the seat indices.
        rng: source of the coefficients.

    Returns:
        33 bytes, big-endian, by holder.

    Security: each share goes to its holder alone; `threshold` - 1 of them are independent of
    the secret. The leading coefficient may be 0, as in any uniform polynomial: excluding it
    would tell the holders of `threshold` - 1 shares one secret that it cannot be.
    """
    content = reveal(secret)
    if len(content) != SECRET_BYTES:
        raise ParameterError(f"expected a secret of {SECRET_BYTES} bytes, got {len(content)}")
    if not MIN_THRESHOLD <= threshold <= len(holders):
        raise ParameterError(
            f"expected a threshold of {MIN_THRESHOLD} to {len(holders)} (the holders), "
            f"got {threshold}"
        )
    coefficients = [_uniform_element(rng) for _ in range(threshold - 1)]
    points = split_integer(int.from_bytes(content, "big"), coefficients, holders)
    return {x: Secret(y.to_bytes(SHARE_BYTES, "big")) for x, y in points.items()}


def combine(shares: Mapping[int, Share], threshold: int) -> bytes:
    """Rebuild the secret from the `threshold` shares of the lowest x-coordinates.

    Raises:
        ParameterError: fewer shares than the threshold.
        BadShareError: a share outside the field, or a result that is no 32-byte string.
    """
    if not MIN_THRESHOLD <= threshold <= len(shares):
        raise ParameterError(f"expected at least {threshold} shares, got {len(shares)}")
    return interpolator(tuple(sorted(shares)[:threshold])).rebuild(shares)


class Interpolator:
    """Lagrange's coefficients at 0 for one set of holders, computed once and used many times.

    Args:
        holders: distinct x-coordinates of 1 or more.
    """

    __slots__ = ("_weights", "holders")

    def __init__(self, holders: tuple[int, ...]) -> None:
        self.holders = holders
        self._weights = _lagrange_at_zero(holders, FIELD_PRIME)

    def rebuild(self, shares: Mapping[int, Share]) -> bytes:
        """Return the 32-byte secret; `shares` holds one of each holder, others are ignored.

        Raises:
            BadShareError: a share outside the field, or a result that is no 32-byte string.
        """
        total = 0
        for x, weight in zip(self.holders, self._weights, strict=True):
            total += weight * read_share(shares[x], silo=x)
        secret = total % FIELD_PRIME
        # The 297 field elements above 2**256 are no secret anyone can have dealt honestly.
        if secret >> 8 * SECRET_BYTES:
            raise BadShareError("expected shares of a 32-byte secret, they rebuild another value")
        return secret.to_bytes(SECRET_BYTES, "big")


@lru_cache(maxsize=256)
def interpolator(holders: tuple[int, ...]) -> Interpolator:
    """Return the cached Interpolator of a set of holders; it contains nothing secret."""
    return Interpolator(holders)


def split_integer(
    secret: int, coefficients: Sequence[int], holders: Sequence[int], *, prime: int = FIELD_PRIME
) -> dict[int, int]:
    """Evaluate secret + c1·x + c2·x² + … modulo `prime` at each holder's x."""
    _check_holders(holders, prime)
    points = {}
    for x in holders:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value + coefficient) * x % prime
        points[x] = (value + secret) % prime
    return points


def interpolate_integer(points: Mapping[int, int], *, prime: int = FIELD_PRIME) -> int:
    """Return the value at 0 of the polynomial through `points`, of lowest degree."""
    weights = _lagrange_at_zero(tuple(points), prime)
    return sum(map(int.__mul__, weights, points.values())) % prime


def _lagrange_at_zero(holders: tuple[int, ...], prime: int) -> tuple[int, ...]:
    """Return for each x_i the product of x_j / (x_j - x_i) over the others."""
    _check_holders(holders, prime)
    numerator = prod(holders)
    return tuple(
        numerator * pow(x * prod(other - x for other in holders if other != x), -1, prime) % prime
        for x in holders
    )


def _check_holders(holders: Sequence[int], prime: int) -> None:
    # x = 0 would be handed the secret itself.
    if len(set(holders)) != len(holders) or not all(0 < x < prime for x in holders):
        raise ParameterError(f"expected distinct holders of 1 or more, got {list(holders)}")


def read_share(share: Share, *, silo: int) -> int:
    """Return the field element that a share is.

    Raises:
        BadShareError: it is none; blames `silo`.
    """
    content = share.reveal()
    value = int.from_bytes(content, "big")
    # 33 bytes could hold some field elements twice; only the lower form is a share.
    if len(content) != SHARE_BYTES or value >= FIELD_PRIME:
        raise BadShareError(
            f"expected a share of {SHARE_BYTES} bytes below the field's prime, got another value",
            silo=silo,
        )
    return value


def _uniform_element(rng: Rng) -> int:
    """Draw a field element by rejection: 257 random bits are below the prime half of the time."""
    while True:
        candidate = int.from_bytes(rng.bytes(SHARE_BYTES), "big") >> 7
        if candidate < FIELD_PRIME:
            return candidate

"""The fixed map between reals and integers: clip, scale, round at random, and back.

With S = (2**(v-1) - 1) / C a value x becomes an integer next to x·S, chosen at random so that the
mean is x·S; |q| is at most 2**(v-1) - 1, and a ring of b bits holds the sum of n of them without
wrapping if b ≥ v + ⌈log2 n⌉, because n·(2**(v-1) - 1) < 2**(b-1) (SA1 spec 4).

Source: randomized rounding without the conditioning of Kairouz et al. 2021, whose purpose (a
bound on the L2 norm after rounding) belongs to the privacy plan.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from secagg.errors import NonFiniteError, ParameterError
from secagg.ring import U32, IntVector, RingVector

FloatVector = NDArray[np.float32] | NDArray[np.float64]

MIN_VALUE_BITS: Final = 4
# Up to 32 bits a float64 keeps 20 bits of the fraction that rounding compares with a coin.
MAX_VALUE_BITS: Final = 32
COIN_BYTES: Final = 4
_MAX_RING_BITS: Final = 64
_COIN_STEP: Final = 2.0**-32
_MIN_STEP: Final = sys.float_info.min  # The inverse of a smaller one may be infinite.
_SLICE: Final = 32768  # The float64 temporaries of it fit a second-level cache of 1 MiB.


class CoinStream(Protocol):
    """A source of uniform uint32 words, such as `prg.rounding_coins` returns."""

    def slices(self, first_word: int, count: int) -> Iterator[tuple[int, RingVector]]:
        """Yield the words as (offset, words) in order; each is used before the next step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A vector's integers, int64 of shape (d,), and how many coordinates were clipped."""

    values: IntVector
    saturated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantizer:
    """One choice of resolution and range.

    Attributes:
        value_bits: v, the bits of one silo's integer with its sign; 4 to 32.
        clip_range: C, the largest magnitude that is not clipped; finite, above 0.
    """

    value_bits: int
    clip_range: float

    def __post_init__(self) -> None:
        if not MIN_VALUE_BITS <= self.value_bits <= MAX_VALUE_BITS:
            raise ParameterError(
                f"expected value_bits of {MIN_VALUE_BITS} to {MAX_VALUE_BITS}, "
                f"got {self.value_bits}"
            )
        if not (self.clip_range > 0 and math.isfinite(self.clip_range) and self.step >= _MIN_STEP):
            raise ParameterError(
                f"expected a clip_range above 0, finite and with a step of normal size, "
                f"got {self.clip_range}"
            )

    @property
    def levels(self) -> int:
        """Q = 2**(v-1) - 1, the largest magnitude of an encoded value."""
        return (1 << (self.value_bits - 1)) - 1

    @property
    def step(self) -> float:
        """C / Q, the distance of two neighboring values."""
        return self.clip_range / self.levels

    def encode(self, values: FloatVector, *, rand: CoinStream | bytes) -> Encoded:
        """Map reals to integers, rounding at random so that the mean is kept.

        Args:
            values: shape (d,), float32 or float64.
            rand: a stream of uint32 words, read from its word 0, or 4·d bytes (little-endian).
                Same coins, same result.

        Raises:
            NonFiniteError: a value is NaN or infinite; says how many.
            ParameterError: another shape or dtype, or not enough coins.

        Security: coins must be secret and used for no second vector.
        """
        if values.ndim != 1 or values.dtype not in (np.float32, np.float64):
            raise ParameterError(
                f"expected a 1-D vector of float32 or float64, got {values.ndim}-D of "
                f"{values.dtype}"
            )
        stream = _BytesCoins(rand) if isinstance(rand, bytes) else rand
        result = np.empty(len(values), np.int64)
        saturated = 0
        for start, coins in stream.slices(0, len(values)):
            stop = start + len(coins)
            piece, beyond = self._within_range(values[start:stop])
            if piece is None:
                raise _non_finite(values)
            saturated += beyond
            self._round(piece, coins, result[start:stop])
        return Encoded(values=result, saturated=saturated)

    def decode(self, total: IntVector) -> NDArray[np.float64]:
        """Map a sum of encoded values back to reals; shape (d,) in and out."""
        return np.multiply(total, self.step)

    def error_bound(self, silos: int) -> float:
        """Return what |decoded sum - sum of the clipped reals| never exceeds, per coordinate.

        Each silo's rounding moves a value by less than one step.
        """
        return silos * self.step

    def _within_range(self, piece: FloatVector) -> tuple[FloatVector | None, int]:
        """Return a piece that does not overflow and how much was clipped; None if not finite."""
        low, high = float(piece.min()), float(piece.max())
        if -self.clip_range <= low and high <= self.clip_range:
            return piece, 0
        if not (math.isfinite(low) and math.isfinite(high)):  # NaN passes through min and max.
            return None, 0
        wide = piece.astype(np.float64)
        beyond = int(np.count_nonzero(np.abs(wide) > self.clip_range))
        return np.clip(wide, -self.clip_range, self.clip_range, out=wide), beyond

    def _round(self, piece: FloatVector, coins: RingVector, out: IntVector) -> None:
        """Write floor(x·S + u) with u uniform on the odd multiples of 2**-33 in (0, 1)."""
        scaled = np.multiply(piece, 1 / self.step, dtype=np.float64)
        uniform = np.multiply(coins, _COIN_STEP, dtype=np.float64)
        # Half a coin keeps integers where they are and centers the threshold's own rounding.
        uniform += _COIN_STEP / 2
        scaled += uniform
        np.floor(scaled, out=scaled)
        # Only float64's own rounding can reach beyond the levels here.
        np.clip(scaled, -self.levels, self.levels, out=scaled)
        out[:] = scaled


def required_ring_bits(value_bits: int, n_max: int) -> int:
    """Return the fewest ring bits in which the sum of `n_max` encoded values does not wrap."""
    if n_max < 1:
        raise ParameterError(f"expected n_max of at least 1, got {n_max}")
    return value_bits + (n_max - 1).bit_length()


def check_no_wrap(value_bits: int, ring_bits: int, n_max: int) -> None:
    """Check that sums of `n_max` values of `value_bits` fit a ring of `ring_bits`.

    Raises:
        ParameterError: they do not; names a setting that fits.
    """
    needed = required_ring_bits(value_bits, n_max)
    if not needed <= ring_bits <= _MAX_RING_BITS:
        raise ParameterError(
            f"expected ring_bits of {needed} to {_MAX_RING_BITS} for value_bits={value_bits} and "
            f"n_max={n_max}, got ring_bits={ring_bits}; set ring_bits={needed} or lower value_bits"
        )


class _BytesCoins:
    """Coins given as bytes."""

    def __init__(self, rand: bytes) -> None:
        self._rand = rand

    def slices(self, first_word: int, count: int) -> Iterator[tuple[int, RingVector]]:
        stop = first_word + count
        if len(self._rand) < COIN_BYTES * stop:
            raise ParameterError(
                f"expected {COIN_BYTES * stop} bytes of coins, got {len(self._rand)}"
            )
        words = np.frombuffer(self._rand, U32)[first_word:stop]
        for start in range(0, count, _SLICE):
            yield start, words[start : start + _SLICE]


def _non_finite(values: FloatVector) -> NonFiniteError:
    count = len(values) - int(np.count_nonzero(np.isfinite(values)))
    return NonFiniteError(
        f"expected finite values, got {count} of {len(values)} that are NaN or infinite; "
        "look for a diverged training or a missing normalization"
    )

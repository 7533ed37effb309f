"""Integer noise by inverting a table of the distribution: exact but for a bound one can state.

A table holds the distribution function of an integer variable in units of 2**-128, built with
256-bit integers. A draw is a 64-bit word looked up among the upper halves; only when the word
equals an upper half does a second word decide. A draw is then within bins·2**-128 of the named
distribution in total variation (privacy.md 6.2), whatever the machine's floating point does.

Beyond `grid.MAX_TABLE_STD` the noise is a·Y + Z of two smaller ones: a discrete Gaussian of
variance a²·var(Y) + var(Z) up to a factor 1 ± 2·exp(-2π²h) with h = 1/(a²/var(Z) + 1/var(Y)), and
h ≥ 16 makes that 2**-454; the parts chosen here have h > 35.

Nothing here depends on data: counts are fixed by the caller and values are drawn blindly.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dp import grid
from dp.errors import PlanError
from dp.rng import NoiseSource, Words

_MAX_SIGMA: Final = 2.0**31  # the ring's edge; draws stay far inside int64
CDF_BITS: Final = 128
_WEIGHT_BITS: Final = 256
_TAIL_BITS: Final = 140
_WORD_BITS: Final = 64
_LOW_WORD: Final = 2**64 - 1
_FACTOR_STEPS: Final = 6  # std of the fine part in steps of the coarse one: h is about its square
_SLICE: Final = 65536  # words and look-ups of one slice stay in a second-level cache
_COIN_BITS: Final = 53

IntVector = NDArray[np.int64]
FloatVector = NDArray[np.float64]


class Sampler(Protocol):
    """One distribution of integers."""

    @property
    def bins(self) -> int:
        """Return the number of table entries a draw touches; the error is bins·2**-128."""
        ...

    def draw(self, count: int, source: NoiseSource) -> IntVector:
        """Return `count` independent draws, shape (count,), int64."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableSampler:
    """Inversion of a 128-bit distribution function.

    Attributes:
        first: the value of bin 0; bin i stands for first + i.
        high: upper 64 bits of the bins' cumulated probabilities, the last bin left out.
        low: their lower 64 bits.
    """

    first: int
    high: Words
    low: Words

    @property
    def bins(self) -> int:
        """Return the number of values that can be drawn."""
        return len(self.high) + 1

    def draw(self, count: int, source: NoiseSource) -> IntVector:
        """Return `count` independent draws, shape (count,), int64."""
        values = np.empty(count, np.int64)
        for start in range(0, count, _SLICE):
            words = source.words(min(_SLICE, count - start))
            values[start : start + len(words)] = self._look_up(words, source)
        values += self.first
        return values

    def _look_up(self, words: Words, source: NoiseSource) -> IntVector:
        """Return the first bin whose cumulated probability exceeds each word's number."""
        found = np.searchsorted(self.high, words, side="right").astype(np.int64, copy=False)
        # A word below every entry has found = 0; then entry 0 is larger, so that it is no tie.
        ties = np.flatnonzero(self.high[np.maximum(found, 1) - 1] == words)
        for place in ties:
            start = int(np.searchsorted(self.high, words[place], side="left"))
            rest = self.low[start : found[place]]
            found[place] = start + np.searchsorted(rest, source.words(1)[0], side="right")
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitSampler:
    """a·Y + Z for a distribution too wide for one table."""

    factor: int
    coarse: Sampler
    fine: Sampler

    @property
    def bins(self) -> int:
        """Return the bins of both parts; their errors add."""
        return self.coarse.bins + self.fine.bins

    def draw(self, count: int, source: NoiseSource) -> IntVector:
        """Return `count` independent draws, shape (count,), int64."""
        values = self.coarse.draw(count, source)
        values *= self.factor
        values += self.fine.draw(count, source)
        return values


@lru_cache(maxsize=16)
def discrete_gaussian(sigma: float) -> Sampler:
    """Return the sampler with P[k] proportional to exp(-k²/(2·sigma²)).

    Args:
        sigma: parameter in grid steps, 4 to 2**31.

    Raises:
        PlanError: another sigma.
    """
    _check_sigma(sigma, _MAX_SIGMA)
    return _gaussian_of(Fraction(sigma) ** 2)


@lru_cache(maxsize=4)
def skellam(sigma: float) -> Sampler:
    """Return the difference of two independent Poisson variables of mean sigma²/2 each.

    Args:
        sigma: standard deviation in grid steps, 4 to 2**14; sums stay Skellam, so there is no
            two-part form and a wider one needs another grid.

    Raises:
        PlanError: another sigma.
    """
    _check_sigma(sigma, grid.MAX_TABLE_STD)
    return _table(_skellam_weights(Fraction(sigma) ** 2))


def sample_noise(sigma: float, count: int, source: NoiseSource) -> IntVector:
    """Draw discrete Gaussian noise.

    Args:
        sigma: parameter in grid steps, at least 4.
        count: how many; a constant of the plan.
        source: a stream of this purpose alone.

    Returns:
        shape (count,), int64.

    Raises:
        PlanError: sigma is out of range.
    """
    return discrete_gaussian(sigma).draw(count, source)


def round_randomly(scaled: FloatVector, source: NoiseSource) -> IntVector:
    """Round each coordinate up or down at random so that its mean is kept (privacy.md 6.1, 4).

    Integers stay where they are. The coins are drawn whatever the values are.

    Args:
        scaled: shape (d,), float64, finite, in grid steps, magnitudes below 2**52.
        source: where the coins come from.

    Returns:
        shape (d,), int64; each within 1 of its value.
    """
    rounded = np.empty(len(scaled), np.int64)
    for start in range(0, len(scaled), _SLICE):
        piece = scaled[start : start + _SLICE]
        floors = np.floor(piece)
        coins = (source.words(len(piece)) >> np.uint64(_WORD_BITS - _COIN_BITS)) * 2.0**-_COIN_BITS
        floors += coins < piece - floors
        rounded[start : start + len(piece)] = floors
    return rounded


def poisson_mask(count: int, rate: float, source: NoiseSource) -> NDArray[np.bool_]:
    """Choose each of `count` units independently with probability `rate`.

    Security: the mask must come from the noise stream and stay in the silo; whoever could
    predict it would undo the amplification that q < 1 is booked with (privacy.md 0, 4).

    Args:
        count: units in this silo; at least 0.
        rate: q in (0, 1]; rounded down to a multiple of 2**-64.
        source: the silo's stream for this purpose.

    Returns:
        shape (count,), bool.

    Raises:
        PlanError: rate is out of range.
    """
    if not 0.0 < rate <= 1.0:
        raise PlanError(f"expected a sampling rate q in (0, 1], got {rate}")
    words = source.words(count)
    if rate == 1.0:
        return np.ones(count, np.bool_)
    return words < np.uint64(int(Fraction(rate) * 2**_WORD_BITS))


def _check_sigma(sigma: float, most: float) -> None:
    if not grid.MIN_SHARE_STD <= sigma <= most:
        raise PlanError(
            f"expected noise of sigma from {grid.MIN_SHARE_STD:g} to {most:g} grid steps, got "
            f"{sigma:g}; choose another grid scale s"
        )


def _gaussian_of(variance: Fraction) -> Sampler:
    """Return one table, or two parts whose variances add up."""
    if variance <= Fraction(grid.MAX_TABLE_STD) ** 2:
        return _table(_gaussian_weights(variance))
    sigma = math.sqrt(variance)
    factor = round(math.sqrt(sigma / _FACTOR_STEPS))  # then both parts are about equally wide
    fine = Fraction((_FACTOR_STEPS * factor) ** 2)
    coarse = (variance - fine) / factor**2
    return SplitSampler(factor=factor, coarse=_gaussian_of(coarse), fine=_gaussian_of(fine))


def _table(weights: list[int]) -> TableSampler:
    """Return the table of a symmetric distribution from the weights of 0, 1 and so on.

    Args:
        weights: falling, 256-bit fixed point; their tail beyond 2**-140 of weight 0 is cut.
    """
    cut = weights[0] >> _TAIL_BITS
    half = [weight for weight in weights if weight > cut]
    total = 2 * sum(half) - half[0]
    high = np.empty(2 * len(half) - 2, np.uint64)
    low = np.empty_like(high)
    cumulated = 0
    for place, weight in enumerate([*half[:0:-1], *half[:-1]]):
        cumulated += weight
        number = (cumulated << CDF_BITS) // total
        high[place] = number >> _WORD_BITS
        low[place] = number & _LOW_WORD
    high.flags.writeable = low.flags.writeable = False
    return TableSampler(first=1 - len(half), high=high, low=low)


def _gaussian_weights(variance: Fraction) -> list[int]:
    """Return exp(-k²/(2·variance)) in fixed point, from the ratio exp(-(2k+1)/(2·variance))."""
    one = 1 << _WEIGHT_BITS
    ratio = _exp_minus(1 / (2 * variance))
    square = ratio * ratio >> _WEIGHT_BITS
    weights = [one]
    while (weight := weights[-1] * ratio >> _WEIGHT_BITS) > one >> _TAIL_BITS:
        weights.append(weight)
        ratio = ratio * square >> _WEIGHT_BITS
    return weights


def _skellam_weights(variance: Fraction) -> list[int]:
    """Return numbers proportional to the Bessel functions I_k(variance) of k = 0, 1 and on.

    Downwards I_{k-1} = I_{k+1} + (2k/x)·I_k is stable, and what it starts from does not matter
    (Miller's method); the start lies so far out that the error is below every bit kept.
    """
    start = math.ceil(24 * math.sqrt(variance)) + 200
    above, here = 0, 1 << _WEIGHT_BITS
    weights = []
    for k in range(start, 0, -1):
        factor = 2 * k / variance
        above, here = here, above + here * factor.numerator // factor.denominator
        weights.append(here)
    return weights[::-1]


def _exp_minus(x: Fraction) -> int:
    """Return exp(-x) in 256-bit fixed point by its series; x is at most 1/32 here."""
    guard = 64
    term = total = 1 << (_WEIGHT_BITS + guard)
    n = 0
    while term:
        n += 1
        term = term * x.numerator // (x.denominator * n)
        total += -term if n % 2 else term
    return total >> guard

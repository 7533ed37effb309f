"""What an integer grid costs: rounding raises the sensitivity a little, noise is whole steps.

Real contributions are scaled to a grid, rounded at random and noised with integers (privacy.md
6.1). These are the formulas, on plain numbers; `dp.plan` applies them to a plan.
"""

import math
from dataclasses import dataclass
from typing import Final

# The rounded norm exceeds its bound with at most this probability; it is booked in delta.
BETA: Final = 2.0**-40
# Below 4 steps a sum of discrete Gaussians is no longer one to 67 digits (tau in 6.1).
MIN_SHARE_STD: Final = 4.0
# No table is built for more: above it two tables are combined (privacy.md 6.2).
MAX_TABLE_STD: Final = 2.0**14
# What is clipped in float64 has at most this norm relative to the bound (privacy.md 4.1).
CLIP_SLACK: Final = 1.0 + 2.0**-20

_TABLE_TAIL_STDS: Final = 28
_TAIL_ROOT: Final = math.sqrt(2.0 * math.log(1.0 / BETA))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTerms:
    """What the integers cost in delta over a whole plan, each term at least 0.

    Attributes:
        rounding: a rounded norm beyond its bound.
        ring: a sum of discrete Gaussians is not exactly a rounded Gaussian.
        sampler: the table has 128 bits.
    """

    rounding: float
    ring: float
    sampler: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.rounding + self.ring + self.sampler


def default_steps_per_unit(clip: float, dimension: int) -> float:
    """The smallest power of two s with clip·s >= max(11.2·sqrt(dimension), 4096).

    Then rounding costs at most 0.2 % of sensitivity (privacy.md 6.1).
    """
    least = max(11.2 * math.sqrt(dimension), 4096.0)
    return 2.0 ** math.ceil(math.log2(least / clip))


def rounded_norm(norm: float, dimension: int) -> float:
    """A bound on the L2 norm of a randomly rounded vector, but for probability `BETA`.

    Args:
        norm: L2 bound before rounding, in grid steps.
        dimension: number of rounded coordinates.

    Returns:
        the bound in grid steps.

    Source: Kairouz, Liu, Steinke 2021, without conditional rounding; privacy.md 6.1.
    """
    root = math.sqrt(dimension)
    certain = (norm + root) ** 2
    likely = norm**2 + dimension / 4.0 + _TAIL_ROOT * (norm + root / 2.0)
    return math.sqrt(min(certain, likely))


def float_sum_error(units: int, bound: float, dimension: int) -> float:
    """L2 norm of what a float64 sum of `units` contributions may be off, twice, in grid steps."""
    return 2.0 * math.sqrt(dimension) * units**2 * bound * 2.0**-53


def total_noise_std(z: float, d2: float) -> float:
    """Std S of the honest noise in a sum, in grid steps: S² = (z·D2)² + 1/12.

    The twelfth is what rounding a Gaussian adds to its variance (privacy.md 6.1).
    """
    return math.hypot(z * d2, math.sqrt(1.0 / 12.0))


def delta_terms(
    *, total_std: float, h_dp: int, dimension: int, releases: int, rounded: int, epsilon: float
) -> DeltaTerms:
    """The terms of privacy.md 6.1 for `releases` sums.

    Args:
        total_std: S, std of the honest noise in grid steps.
        h_dp: honest shares that make it up, at least 1.
        dimension: noised coordinates.
        releases: T.
        rounded: how many rounded vectors one unit may move in a release, at least 1.
        epsilon: the largest epsilon at which delta will be read; the terms grow with e^epsilon.
    """
    share = total_std / math.sqrt(h_dp)
    tau = 10.0 * sum(math.exp(-2.0 * math.pi**2 * share**2 * k / (k + 1)) for k in range(1, h_dp))
    ring = 8.6e-4 * math.sqrt(dimension) / total_std**4 + tau * dimension
    bins = 2.0 * _TABLE_TAIL_STDS * min(share, MAX_TABLE_STD)
    factor = releases * (1.0 + math.exp(min(epsilon, 700.0)))  # above 700 a double overflows
    return DeltaTerms(
        rounding=releases * rounded * BETA,
        ring=factor * ring,
        sampler=factor * dimension * h_dp * bins * 2.0**-128,
    )

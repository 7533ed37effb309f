"""Is there as much noise as the ledger claims? Measured from outside, beside the theory.

Two audits and a test. Random canaries: vectors uniform on the sphere of radius C join the sum as
further units; how well the released sum still points at them bounds epsilon from below under a
Gaussian model (privacy.md 8.1). One-run: canaries are in or out by coins, and guessing too well
bounds epsilon with proof (8.2). Padding: coordinates of zeros carry noise alone, and its variance
shows a missing share (6.3).

An audit that finds less than the claim proves nothing; one whose lower bound exceeds it has found
a bug. Canaries must pass through the same clip, round, noise and mask code as any contribution.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from numpy.typing import NDArray
from scipy import special, stats

from dp.closed_form import gaussian_epsilon
from dp.errors import PlanError
from dp.rng import ReplayStream
from dp.sampling import IntVector

CONFIDENCE: Final = 0.95
SEED_BYTES: Final = 32
_COMMITMENT_LABEL: Final = b"dp/canaries\x00"
_HALF_WORD: Final = 2.0**-53
_EPSILON_DIGITS: Final = 1e-6

FloatVector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFigure:
    """What an audit found, for the ledger's AUDIT_RESULT.

    Attributes:
        estimate: of epsilon; the bound itself where the method has no other.
        lower: with the stated confidence epsilon is at least this.
        claimed: what the ledger claims for the same releases.
    """

    estimate: float
    lower: float
    claimed: float

    @property
    def is_alarm(self) -> bool:
        """Return whether the bound exceeds the claim: look for a noise bug."""
        return self.lower > self.claimed


def commitment(seed: bytes) -> bytes:
    """Return what is written to the ledger before round 1; the seed itself is opened after.

    Args:
        seed: 32 secret bytes of the audit party, from the operating system.

    Raises:
        PlanError: another length.
    """
    _check_seed(seed)
    digest = Hash(SHA256())
    digest.update(_COMMITMENT_LABEL + seed)
    return digest.finalize()


def canaries(seed: bytes, count: int, dimension: int, clip_norm: float) -> NDArray[np.float64]:
    """Return vectors uniform on the sphere of radius C, the same for the same seed.

    Canaries are no noise and protect nobody; their seed only has to be unknown until it is opened.

    Args:
        seed: as committed to.
        count: k, far fewer than the dimension.
        dimension: d, coordinates of the released vector without padding and bit.
        clip_norm: C.

    Returns:
        shape (k, d), float64.
    """
    _check_seed(seed)
    words = ReplayStream(seed).words(count * dimension)
    # Midpoints of 2**52 intervals: never 0 or 1, so the normal quantile is finite.
    uniform = (2.0 * (words >> np.uint64(12)) + 1.0) * _HALF_WORD
    vectors = special.ndtri(uniform).reshape(count, dimension)
    vectors *= clip_norm / np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors, np.float64)


def inclusion(seed: bytes, count: int) -> NDArray[np.bool_]:
    """Return the fair coins by which canaries of a one-run audit are in, from the same seed."""
    _check_seed(seed)
    return ReplayStream(b"coins" + seed).words(count) < np.uint64(2**63)


def cosines(vectors: NDArray[np.float64], released: FloatVector) -> FloatVector:
    """Return g_j = <c_j, S>/(‖c_j‖·‖S‖) for each canary and the sum of all releases S.

    Without canaries in S they are Gaussian with mean 0 and variance 1/d.
    """
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(released)
    return np.asarray(vectors @ released / np.where(lengths > 0, lengths, 1.0), np.float64)


def each_of(methods: int) -> float:
    """Return the confidence of each of so many bounds for `CONFIDENCE` in all of them together.

    Bonferroni's: chances of error add up to no more than their sum, however they hang together.
    """
    return 1.0 - (1.0 - CONFIDENCE) / methods


def cosine_bound(
    scores: Sequence[float] | FloatVector,
    dimension: int,
    delta: float,
    *,
    confidence: float = CONFIDENCE,
) -> tuple[float, float]:
    """Estimate epsilon from the cosines, and bound it from below.

    The variance is taken as known, 1/d: fitting it is biased upward (privacy.md 8.1). The bound
    holds under the Gaussian model of the scores; the proof-grade bound is `one_run_bound`.

    Args:
        scores: one for each of k canaries.
        dimension: d.
        delta: above 0, below 1.
        confidence: of the bound.

    Returns:
        (estimate, lower bound), both at least 0.

    Source: Andrew et al. 2024, algorithm 2, with the null distribution's variance.
    """
    if len(scores) == 0 or dimension < 1 or not 0.0 < delta < 1.0:
        raise PlanError("expected at least one score, d of at least 1 and 0 < delta < 1")
    mean = float(np.mean(scores))
    root = math.sqrt(dimension)
    quantile = float(special.ndtri(confidence))
    lower = mean - quantile / math.sqrt(dimension * len(scores))
    return _epsilon_of_shift(mean * root, delta), _epsilon_of_shift(lower * root, delta)


def mean_bound(values: FloatVector, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the mean of independent values and its lower bound by Student's quantile.

    Raises:
        PlanError: fewer than two values.
    """
    if len(values) < 2:
        raise PlanError(f"expected at least two values, got {len(values)}")
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    return mean, mean - float(stats.t.ppf(confidence, len(values) - 1)) * error


def one_run_bound(m: int, r: int, v: int, delta: float, *, confidence: float = CONFIDENCE) -> float:
    """Bound epsilon from below by how many guesses about m canaries in one run were right.

    Args:
        m: canaries, each in by a fair coin.
        r: guesses, fixed before looking: the r/2 highest scores "in", the r/2 lowest "out".
        v: how many were right.
        delta: at least 0, below 1.
        confidence: of the bound.

    Returns:
        the largest epsilon that the guesses refute; 0 if none.

    Raises:
        PlanError: not 0 <= v <= r <= m with r >= 1, or delta or confidence out of range.

    Source: Steinke, Nasr, Jagielski 2023, theorem 5.2; privacy.md 8.2.
    """
    if not (0 <= v <= r <= m and r >= 1 and 0.0 <= delta < 1.0 and 0.0 < confidence < 1.0):
        raise PlanError(f"expected 0 <= v <= r <= m with r >= 1, got v={v}, r={r}, m={m}")
    level = 1.0 - confidence
    if _p_value(0.0, m, r, v, delta) >= level:
        return 0.0
    low, high = 0.0, 1.0
    while _p_value(high, m, r, v, delta) < level:
        low, high = high, 2.0 * high
    while high - low > _EPSILON_DIGITS:
        middle = (low + high) / 2.0
        if _p_value(middle, m, r, v, delta) < level:
            low = middle
        else:
            high = middle
    return low


def one_run_guesses(scores: FloatVector, included: NDArray[np.bool_], r: int) -> int:
    """Return how many of r guesses are right: the highest scores "in", the lowest "out".

    Args:
        scores: shape (m,), larger where a canary seems to be in.
        included: shape (m,), the coins.
        r: even, at most m.

    Raises:
        PlanError: r is odd, below 2 or above m, or lengths differ.
    """
    if r % 2 or not 2 <= r <= len(scores) or len(scores) != len(included):
        raise PlanError(f"expected an even number of guesses from 2 to m, got r = {r}")
    order = np.argsort(scores, kind="stable")
    half = r // 2
    return int(np.count_nonzero(included[order[-half:]])) + int(
        np.count_nonzero(~included[order[:half]])
    )


def padding_test(padding_sum: IntVector, sigma_expected: float) -> tuple[float, float]:
    """Compare the variance of the opened padding coordinates with what the shares should give.

    Args:
        padding_sum: shape (padding,), int64; the sum over survivors of coordinates without data.
        sigma_expected: std that it should have, sqrt(survivors)·sigma_g, in grid steps.

    Returns:
        (ratio of standard deviations, two-sided p-value). It finds faults, not malice: a cheat
        can noise the padding alone.

    Raises:
        PlanError: no padding, or no such std.
    """
    if len(padding_sum) == 0 or not 0.0 < sigma_expected < math.inf:
        raise PlanError("expected padding coordinates and a finite std above 0")
    relative = padding_sum / sigma_expected
    statistic = float(np.sum(np.square(relative)))
    count = len(padding_sum)
    below = float(stats.chi2.cdf(statistic, count))
    above = float(stats.chi2.sf(statistic, count))
    return math.sqrt(statistic / count), min(1.0, 2.0 * min(below, above))


def _check_seed(seed: bytes) -> None:
    if len(seed) != SEED_BYTES:
        raise PlanError(f"expected a canary seed of {SEED_BYTES} bytes, got {len(seed)}")


def _epsilon_of_shift(mu: float, delta: float) -> float:
    """Return epsilon of telling N(mu, 1) from N(0, 1); nothing is learned from mu <= 0."""
    return gaussian_epsilon(mu, delta) if mu > 0.0 else 0.0


def _p_value(epsilon: float, m: int, r: int, v: int, delta: float) -> float:
    """Return how likely v right guesses are at most, were the mechanism (epsilon, delta)-DP."""
    rate = special.expit(epsilon)
    p = float(stats.binom.sf(v - 1, r, rate))
    if delta > 0.0:
        i = np.arange(1, m + 1)
        # P[v > Bin >= v - i]: how far delta may have helped, by i more right guesses.
        helped = stats.binom.cdf(v - 1, r, rate) - stats.binom.cdf(v - i - 1, r, rate)
        p += 2.0 * m * delta * float(np.max(helped / i))
    return min(p, 1.0)

"""Samplers: the named distribution to 2**-128, ties, splits, rounding, Poisson masks."""

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dp import grid, sampling
from dp.errors import PlanError
from dp.rng import ReplayStream, Words
from dp.sampling import (
    SplitSampler,
    TableSampler,
    discrete_gaussian,
    poisson_mask,
    round_randomly,
    sample_noise,
    skellam,
)
from dp.testing import ScriptedSource


def cumulated(table: TableSampler) -> list[int]:
    """Return the table's distribution function as integers of 128 bits, its ends included."""
    inner = [int(h) << 64 | int(low) for h, low in zip(table.high, table.low, strict=True)]
    return [0, *inner, 1 << 128]


def masses(table: TableSampler) -> list[float]:
    """Return the probability of each bin."""
    return [(b - a) / 2**128 for a, b in itertools.pairwise(cumulated(table))]


def gaussian_table(sigma: float) -> TableSampler:
    """Return the sampler, which is one table for this sigma."""
    sampler = discrete_gaussian(sigma)
    assert isinstance(sampler, TableSampler)
    return sampler


@pytest.mark.parametrize("sigma", [4.0, 7.3, 64.0])
def test_the_gaussian_table_is_exact_to_its_last_bits(sigma: float) -> None:
    """Every entry is within two units of 2**-128 of 60-digit arithmetic."""
    table = gaussian_table(sigma)
    exact = Fraction(sigma) ** 2
    with mpmath.workdps(60):
        variance = mpmath.mpf(exact.numerator) / exact.denominator
        weights = [
            mpmath.exp(-(mpmath.mpf(table.first + k) ** 2) / (2 * variance))
            for k in range(table.bins)
        ]
        total = mpmath.fsum(weights)
        running = mpmath.mpf(0)
        for weight, entry in zip(weights, cumulated(table)[1:], strict=True):
            running += weight
            assert abs(running / total * mpmath.mpf(2) ** 128 - entry) < 2


def test_the_skellam_table_is_exact_to_its_last_bits() -> None:
    """The backward recurrence gives the Bessel weights, by 60-digit arithmetic."""
    table = skellam(5.5)
    assert isinstance(table, TableSampler)
    with mpmath.workdps(60):
        mu = mpmath.mpf("30.25")
        weights = [mpmath.besseli(abs(table.first + k), mu) for k in range(table.bins)]
        running = mpmath.mpf(0)
        total = mpmath.fsum(weights)
        for weight, entry in zip(weights, cumulated(table)[1:], strict=True):
            running += weight
            assert abs(running / total * mpmath.mpf(2) ** 128 - entry) < 2


def test_tables_reach_to_their_tails_and_are_frozen() -> None:
    """Symmetric, about 14 sigma wide on each side, and nobody may write to the cached arrays."""
    table = gaussian_table(64.0)
    assert table.bins == 1 - 2 * table.first
    assert 13.5 < -table.first / 64 < 14
    assert table is discrete_gaussian(64.0)
    with pytest.raises(ValueError, match="read-only"):
        table.high[0] = 1


def test_a_forced_tie_is_decided_by_the_low_word() -> None:
    """A word equal to an upper half asks for a second word; less than the entry stays below."""
    # Four bins with the upper halves 5, 5, 9: the first two differ in the lower half only.
    table = TableSampler(
        first=-1, high=np.array([5, 5, 9], np.uint64), low=np.array([10, 20, 30], np.uint64)
    )
    for low, value in ((0, -1), (9, -1), (10, 0), (19, 0), (20, 1), (2**64 - 1, 1)):
        assert table.draw(1, ScriptedSource([5, low])).tolist() == [value]
    for low, value in ((29, 1), (30, 2)):
        assert table.draw(1, ScriptedSource([9, low])).tolist() == [value]
    # Without a tie one word is enough, at both ends too.
    assert table.draw(4, ScriptedSource([0, 4, 8, 2**64 - 1])).tolist() == [-1, -1, 1, 2]


def test_ties_keep_the_distribution() -> None:
    """Where every word ties, the low words carry the whole distribution (chi-square)."""
    # All mass within one upper half: probabilities 1/2, 1/4, 1/4 live in the low word.
    table = TableSampler(
        first=0, high=np.zeros(2, np.uint64), low=np.array([2**63, 2**63 + 2**62], np.uint64)
    )

    class HighZero:
        is_private = False

        def __init__(self) -> None:
            self.low = ReplayStream(b"ties")

        def words(self, count: int) -> Words:
            """Return zeros for the look-up of many, random words for the ties."""
            return np.zeros(count, np.uint64) if count > 1 else self.low.words(1)

    values = table.draw(4000, HighZero())
    counts = np.bincount(values, minlength=3)
    assert stats.chisquare(counts, [2000, 1000, 1000]).pvalue > 1e-3


@pytest.mark.parametrize("name", ["gaussian", "skellam"])
def test_draws_follow_the_distribution(name: str) -> None:
    """Chi-square over the central values; fixed seed, error rate 1e-3."""
    sigma = 8.0
    sampler = discrete_gaussian(sigma) if name == "gaussian" else skellam(sigma)
    values = sampler.draw(200_000, ReplayStream(name.encode()))
    support = np.arange(-24, 25)
    if name == "gaussian":
        mass = np.exp(-(support**2) / (2 * sigma**2)) / np.sum(
            np.exp(-(np.arange(-200, 201) ** 2) / (2 * sigma**2))
        )
    else:
        mass = stats.skellam.pmf(support, sigma**2 / 2, sigma**2 / 2)
    counts = np.array([np.count_nonzero(values == k) for k in support])
    rest = len(values) - counts.sum()
    expected = np.append(mass, 1 - mass.sum()) * len(values)
    assert stats.chisquare(np.append(counts, rest), expected).pvalue > 1e-3


def bernoulli_exp(numerator: int, denominator: int, words: Iterator[int]) -> bool:
    """Return True with probability exp(-numerator/denominator)."""
    while numerator > denominator:
        if not bernoulli_exp(1, 1, words):
            return False
        numerator -= denominator
    k = 1
    while next(words) % (denominator * k) < numerator:  # a bias of 2**-40, unseen here
        k += 1
    return k % 2 == 1


def reference_gaussian(variance: int, count: int, seed: int) -> list[int]:
    """Draw by exact rejection: geometric proposals, then a Bernoulli of exp(-γ).

    Source: Canonne, Kamath, Steinke 2020, algorithms 1 to 3, in exact integer arithmetic.
    """
    generator = np.random.default_rng(seed)
    words = iter(generator.integers(0, 2**62, 40 * count).tolist())
    t = math.isqrt(variance) + 1
    values: list[int] = []
    while len(values) < count:
        u = next(words) % t
        if not bernoulli_exp(u, t, words):
            continue
        v = 0
        while bernoulli_exp(1, 1, words):
            v += 1
        magnitude = u + t * v
        is_negative = next(words) % 2 == 0
        top = (magnitude * t - variance) ** 2
        if not (is_negative and magnitude == 0) and bernoulli_exp(top, 2 * variance * t**2, words):
            values.append(-magnitude if is_negative else magnitude)
    return values


def test_table_and_rejection_sampler_agree() -> None:
    """Two samples of 4 000 by unrelated exact methods (two-sample chi-square, 1e-3)."""
    theirs = np.array(reference_gaussian(36, 4000, 5))
    ours = sample_noise(6.0, 4000, ReplayStream(b"two-sample"))
    edges = np.array([-9, -6, -4, -2, 0, 2, 4, 6, 9])
    table = [np.bincount(np.digitize(x, edges), minlength=10) for x in (ours, theirs)]
    assert stats.chi2_contingency(np.array(table)).pvalue > 1e-3


@pytest.mark.parametrize("sigma", [16385.0, 20724.0, 3.0e6, 2.0**31])
def test_wide_noise_is_split_and_close_to_gaussian(sigma: float) -> None:
    """Both parts of every split have h ≥ 16, the variances add up, and the draws fit."""
    sampler = discrete_gaussian(sigma)
    assert isinstance(sampler, SplitSampler)
    assert sampler.bins < 56 * grid.MAX_TABLE_STD  # what the plan books for a draw
    drawn = sampler.draw(100_000, ReplayStream(b"wide"))
    assert stats.kstest(drawn / sigma, "norm").pvalue > 1e-3


@given(st.floats(2.0**14 + 1, 2.0**31))
def test_every_split_is_smooth_enough(sigma: float) -> None:
    """The formula's condition h ≥ 16 with room, for any sigma."""
    factor = round(math.sqrt(sigma / 6))
    fine = (6 * factor) ** 2
    coarse = (sigma**2 - fine) / factor**2
    assert 1 / (factor**2 / fine + 1 / coarse) > 35


def test_a_small_split_equals_the_single_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two-part form's exact distribution is the discrete Gaussian's, to all float digits."""
    whole = gaussian_table(100.0)
    monkeypatch.setattr(grid, "MAX_TABLE_STD", 32.0)
    split = sampling._gaussian_of(Fraction(100**2))
    assert isinstance(split, SplitSampler)
    assert isinstance(split.coarse, TableSampler)
    assert isinstance(split.fine, TableSampler)
    mass: dict[int, float] = {}
    fine, coarse = masses(split.fine), masses(split.coarse)
    for y, p in enumerate(coarse):
        base = split.factor * (y + split.coarse.first) + split.fine.first
        for z, q in enumerate(fine):
            mass[base + z] = mass.get(base + z, 0.0) + p * q
    for k, p in enumerate(masses(whole)):
        assert math.isclose(mass.get(k + whole.first, 0.0), p, rel_tol=1e-9, abs_tol=1e-18)


@pytest.mark.parametrize("sigma", [3.99, 0.0, -4.0, math.nan, math.inf, 2.0**32])
def test_noise_out_of_range_is_refused(sigma: float) -> None:
    """Below 4 the sum is no discrete Gaussian; NaN passes no check."""
    with pytest.raises(PlanError, match="grid steps"):
        sample_noise(sigma, 1, ReplayStream(b""))
    with pytest.raises(PlanError, match="grid steps"):
        skellam(sigma)


def test_the_number_of_words_does_not_depend_on_values() -> None:
    """One word a draw, whatever comes out; slices do not change the result's length."""
    source = ReplayStream(b"count")
    assert len(sample_noise(4.0, 200_001, source)) == 200_001
    twin = ReplayStream(b"count")
    twin.words(200_001)
    assert source.words(1) == twin.words(1)


@given(st.lists(st.floats(-1e9, 1e9), max_size=30), st.binary(max_size=4))
def test_rounding_moves_by_less_than_one_and_keeps_integers(
    values: list[float], seed: bytes
) -> None:
    """Each result is the floor or the ceiling."""
    scaled = np.array(values, np.float64)
    rounded = round_randomly(scaled, ReplayStream(seed))
    assert rounded.dtype == np.int64
    assert np.all((rounded == np.floor(scaled)) | (rounded == np.ceil(scaled)))
    whole = np.round(scaled)
    assert np.array_equal(round_randomly(whole, ReplayStream(seed)), whole)


def test_rounding_keeps_the_mean_and_its_coins_ignore_the_data() -> None:
    """0.25 rounds up a quarter of the time (5 sigma); a following draw is the same for any data."""
    source = ReplayStream(b"mean")
    up = round_randomly(np.full(100_000, -7.75), source)
    assert abs(np.count_nonzero(up == -7) - 25_000) < 5 * math.sqrt(100_000 * 3 / 16)
    twin = ReplayStream(b"mean")
    round_randomly(np.zeros(100_000), twin)
    assert source.words(1) == twin.words(1)


def test_a_tiny_negative_value_rounds_to_zero_or_down() -> None:
    """floor(-1e-30) is -1 and its fraction 1.0 in float64: never further than one step."""
    rounded = round_randomly(np.full(1000, -1e-30), ReplayStream(b"tiny"))
    assert set(rounded.tolist()) <= {-1, 0}


def test_poisson_mask_has_the_rate_and_takes_all_at_one() -> None:
    """Rate 0.1 within 5 sigma, 1 takes everyone, no units no choice; words are spent alike."""
    source = ReplayStream(b"mask")
    chosen = int(poisson_mask(100_000, 0.1, source).sum())
    assert abs(chosen - 10_000) < 5 * math.sqrt(9_000)
    assert poisson_mask(7, 1.0, source).all()
    assert poisson_mask(0, 0.5, source).shape == (0,)
    twin = ReplayStream(b"mask")
    twin.words(100_007)
    assert source.words(1) == twin.words(1)


def test_poisson_mask_compares_exactly() -> None:
    """A word below q·2**64 is in, the threshold itself is out."""
    half = 2**63
    assert poisson_mask(2, 0.5, ScriptedSource([half - 1, half])).tolist() == [True, False]


def test_a_script_ends() -> None:
    """A test that draws more than it wrote down is told so."""
    with pytest.raises(ValueError, match="2 more words, 1 are left"):
        ScriptedSource([7]).words(2)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, math.nan])
def test_poisson_mask_refuses_a_rate_out_of_range(rate: float) -> None:
    """Rates outside (0, 1] are plan errors."""
    with pytest.raises(PlanError, match="sampling rate"):
        poisson_mask(3, rate, ReplayStream(b""))

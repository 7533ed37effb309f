"""Audits: the published vectors, canaries near theory, alarms only where noise is missing."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from dp.audit import (
    CONFIDENCE,
    AuditFigure,
    canaries,
    commitment,
    cosine_bound,
    cosines,
    each_of,
    inclusion,
    mean_bound,
    one_run_bound,
    one_run_guesses,
    padding_test,
)
from dp.closed_form import gaussian_epsilon
from dp.errors import PlanError
from dp.rng import ReplayStream
from dp.sampling import sample_noise

SEED = bytes(range(32))
VECTORS = [
    ((1000, 1000, 1000), 5.809, 5.782),
    ((1000, 100, 100), 3.493, 3.465),
    ((1000, 100, 95), 2.172, 2.165),
    ((1000, 1000, 700), 0.732, 0.732),
    ((1000, 1000, 550), 0.0942, 0.0940),
    ((1000, 200, 150), 0.821, 0.820),
    ((5000, 500, 480), 2.795, 2.783),
    ((100, 20, 20), 1.823, 1.820),
]


@pytest.mark.parametrize(("guesses", "pure", "approximate"), VECTORS)
def test_one_run_bounds(guesses: tuple[int, int, int], pure: float, approximate: float) -> None:
    """privacy.md 8.2's vectors, without delta and at 1e-5."""
    assert one_run_bound(*guesses, 0.0) == pytest.approx(pure, rel=2e-3, abs=5e-4)
    assert one_run_bound(*guesses, 1e-5) == pytest.approx(approximate, rel=2e-3, abs=5e-4)


def test_chance_refutes_nothing_and_confidence_costs() -> None:
    """Half right is no evidence; a higher confidence gives a lower bound."""
    assert one_run_bound(1000, 100, 50, 1e-5) == 0.0
    assert one_run_bound(1000, 100, 90, 0.0, confidence=0.99) < one_run_bound(1000, 100, 90, 0.0)


@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "confidence"),
    [
        (10, 11, 5, 0.0, 0.95),
        (10, 5, 6, 0.0, 0.95),
        (10, 0, 0, 0.0, 0.95),
        (10, 5, -1, 0.0, 0.95),
        (10, 5, 5, 1.0, 0.95),
        (10, 5, 5, math.nan, 0.95),
        (10, 5, 5, 0.0, 1.0),
    ],
)
def test_impossible_guesses_are_refused(
    m: int, r: int, v: int, delta: float, confidence: float
) -> None:
    """Not more right than guessed, not more guessed than there are."""
    with pytest.raises(PlanError, match="0 <= v <= r <= m"):
        one_run_bound(m, r, v, delta, confidence=confidence)


def test_canaries_lie_on_the_sphere_and_follow_from_the_seed() -> None:
    """Norm C, nearly orthogonal, uniform directions, repeatable, named by the commitment."""
    vectors = canaries(SEED, 50, 400, 2.0)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.full(50, 2.0))
    assert np.array_equal(vectors, canaries(SEED, 50, 400, 2.0))
    inner = (vectors @ vectors.T / 4.0)[np.triu_indices(50, 1)]
    assert stats.kstest(inner * math.sqrt(400), "norm").pvalue > 1e-3
    other = bytes(32)
    assert not np.allclose(vectors, canaries(other, 50, 400, 2.0))
    assert commitment(SEED) != commitment(other)
    assert len(commitment(SEED)) == 32
    coins = inclusion(SEED, 2000)
    assert abs(int(coins.sum()) - 1000) < 5 * math.sqrt(500)
    for use in (lambda: commitment(b"short"), lambda: canaries(b"", 1, 1, 1.0)):
        with pytest.raises(PlanError, match="32 bytes"):
            use()


@pytest.mark.statistical
@pytest.mark.parametrize("sigma", [4.22, 1.54])
def test_random_canaries_are_near_theory_and_do_not_alarm(sigma: float) -> None:
    """One release, k = 400, d = 40 000: the estimate is near eps, the bound below it."""
    vectors = canaries(SEED, 400, 40_000, 1.0)
    noise = sample_noise(sigma * 4096, 40_000, ReplayStream(b"audit")) / 4096
    estimate, lower = cosine_bound(cosines(vectors, vectors.sum(axis=0) + noise), 40_000, 1e-6)
    theory = gaussian_epsilon(1 / sigma, 1e-6)
    assert lower < estimate
    # The mean's standard error is 1/sqrt(k) in units of mu: 4 of them either way.
    for shift, sign in ((4 / math.sqrt(400), 1), (-4 / math.sqrt(400), -1)):
        assert sign * gaussian_epsilon(max(1 / sigma + shift, 1e-3), 1e-6) > sign * estimate
    assert not AuditFigure(estimate=estimate, lower=lower, claimed=theory).is_alarm


def test_missing_noise_alarms() -> None:
    """A third of the noise: the lower bound passes the claim."""
    vectors = canaries(SEED, 300, 20_000, 1.0)
    noise = sample_noise(4.0 / 3 * 4096, 20_000, ReplayStream(b"thin")) / 4096
    estimate, lower = cosine_bound(cosines(vectors, vectors.sum(axis=0) + noise), 20_000, 1e-5)
    claimed = gaussian_epsilon(1 / 4.0, 1e-5)
    assert AuditFigure(estimate=estimate, lower=lower, claimed=claimed).is_alarm


def test_scores_without_canaries_bound_nothing() -> None:
    """Pure noise, or nothing at all, gives 0 or nearly so."""
    vectors = canaries(SEED, 100, 2000, 1.0)
    noise = sample_noise(64.0, 2000, ReplayStream(b"null")).astype(np.float64)
    assert cosine_bound(cosines(vectors, noise), 2000, 1e-5)[1] == 0.0
    assert cosines(vectors, np.zeros(2000)).tolist() == [0.0] * 100
    assert cosine_bound([-1.0], 10, 1e-5) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("scores", "dimension", "delta"), [([], 9, 0.1), ([0.1], 0, 0.1), ([0.1], 9, 0.0)]
)
def test_cosines_of_nothing_are_refused(scores: list[float], dimension: int, delta: float) -> None:
    """At least one score, one dimension, and a delta between 0 and 1."""
    with pytest.raises(PlanError, match="at least one score"):
        cosine_bound(scores, dimension, delta)


def test_a_mean_is_bounded_by_student_s_quantile() -> None:
    """Ten values of mean 1 and sd 1: below it by 1.833 roots of a tenth; one value says nothing."""
    values = np.array([0.0, 2.0] * 5) * math.sqrt(0.9) + (1.0 - math.sqrt(0.9))
    mean, lower = mean_bound(values)
    assert mean == pytest.approx(1.0)
    assert lower == pytest.approx(1.0 - 1.8331129 / math.sqrt(10.0))
    with pytest.raises(PlanError, match="two"):
        mean_bound(values[:1])


def test_the_confidence_of_several_bounds_holds_for_all_of_them_together() -> None:
    """Honest rehearsals raise an alarm at most once in twenty; each by itself, twice as often.

    The claims are as tight as they can be: cosines at their expected shift, guesses as right as
    epsilon allows, and a sampler with the planned rate.
    """
    draws, trials, shift, count = np.random.default_rng(1), 4000, 1.2, 30
    claim = gaussian_epsilon(shift, 1e-5)
    cosine = draws.normal(shift, 1.0 / math.sqrt(count), trials)
    right = draws.binomial(12, 1.0 / (1.0 + math.exp(-1.0)), trials)
    rates = draws.binomial(4, 0.25, (trials, count)) / 4 + draws.normal(0, 0.05, (trials, count))

    def share(confidence: float) -> float:
        def shown(mean: float) -> float:
            return cosine_bound([mean] * count, 1, 1e-5, confidence=confidence)[1]

        # Its bound grows with the mean: one search instead of a bound for each trial.
        edge = float(optimize.brentq(lambda mean: shown(mean) - claim, shift, shift + 1.0))
        guessed = np.array(
            [one_run_bound(12, 12, v, 0.0, confidence=confidence) for v in range(13)]
        )
        least = np.array([mean_bound(one, confidence=confidence)[1] for one in rates])
        alarms = (cosine > edge) | (guessed[right] > 1.0) | (least > 0.25)
        return float(np.mean(alarms))

    assert share(CONFIDENCE) > 0.07
    assert share(each_of(3)) <= 0.05


def test_guesses_are_the_extremes() -> None:
    """The highest half of r is guessed in, the lowest out."""
    included = np.array([True, False, True, False, True, False])
    scores = np.array([0.9, 0.1, 0.8, 0.2, 0.3, 0.4])
    assert one_run_guesses(scores, included, 4) == 4
    assert one_run_guesses(scores, included, 6) == 4
    assert one_run_guesses(-scores, included, 4) == 0
    for r in (3, 0, 8):
        with pytest.raises(PlanError, match="even number"):
            one_run_guesses(scores, included, r)
    with pytest.raises(PlanError, match="even number"):
        one_run_guesses(scores, included[:4], 2)


def test_a_noiseless_sum_fails_the_one_run_audit() -> None:
    """Without noise every guess is right: the bound passes an honest claim of 3."""
    vectors = canaries(SEED, 200, 4000, 1.0)
    included = inclusion(SEED, 200)
    released = vectors[included].sum(axis=0)
    right = one_run_guesses(vectors @ released, included, 40)
    assert one_run_bound(200, 40, right, 1e-5) > 2.3
    noised = released + sample_noise(2.0 * 4096, 4000, ReplayStream(b"one-run")) / 4096
    right = one_run_guesses(vectors @ noised, included, 40)
    assert one_run_bound(200, 40, right, 1e-5) < gaussian_epsilon(0.5, 1e-5)


def test_the_padding_tells_a_missing_share() -> None:
    """Seven shares where seven are due pass; six are seen on 1024 coordinates, and so are eight."""
    source = ReplayStream(b"padding")
    shares = [sample_noise(64.0, 1024, source) for _ in range(8)]
    expected = math.sqrt(7) * 64.0
    ratio, p = padding_test(np.sum(shares[:7], axis=0), expected)
    assert ratio == pytest.approx(1.0, abs=0.07)
    assert p > 1e-3
    ratio, p = padding_test(np.sum(shares[:6], axis=0), expected)
    assert ratio == pytest.approx(math.sqrt(6 / 7), abs=0.07)
    assert p < 1e-2
    assert padding_test(np.sum(shares, axis=0) * 2, expected)[1] < 1e-6
    for data, sigma in ((np.zeros(0, np.int64), 1.0), (shares[0], 0.0), (shares[0], math.inf)):
        with pytest.raises(PlanError, match="padding coordinates"):
            padding_test(data, sigma)

"""Masked vectors look uniform and independent of what they hide; broken masks do not.

One battery of tests is run on real masks, of every suite's generator, and on masks that are
broken on purpose. Seeds are fixed. Each p-value of a sound sample is below ALPHA = 10^-4 with
probability at most 10^-4, so that a new seed would fail one of the eight tests by chance less than
once in a thousand times. A broken sample has to fail a named test with p < 10^-9.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from secagg.keys import AgreementKey
from secagg.masking import MaskBundle, pairwise_seeds, pairwise_sign, self_seed
from secagg.prg import AES_128_CTR, AES_256_CTR, CHACHA20, Generator, expand
from secagg.ring import U32, IntVector, to_ring
from secagg.testing import SeededRng

pytestmark = pytest.mark.statistical

ALPHA = 1e-4
BROKEN = 1e-9
RUNS = 2000
WORDS = 8
BITS = 32
BOUND = 2**15 - 1
SEATS = (1, 2, 3)
OWN = 2
SEGMENTS = ("update", "variate")
# Two views of one round, a retry or the next round: other bindings, here under the same keys.
VIEWS = (0, 1)

Words = NDArray[np.uint32]
# All masks that one silo adds in one run, for one segment in one view.
Masks = Callable[[int, str, int], Words]


@dataclass(frozen=True)
class RealMasks:
    """What the middle one of three silos adds: its self mask and two pairwise masks."""

    seed: str
    generator: Generator = AES_256_CTR

    def __call__(self, run: int, segment: str, view: int) -> Words:
        words = np.zeros(WORDS, U32)
        seeds = _seeds(f"{self.seed}/{run}", view, self.generator)[segment]
        MaskBundle(seeds, U32, generator=self.generator).apply(words, 0)
        return words


@lru_cache(maxsize=16)
def _seeds(secrets: str, view: int, generator: Generator) -> dict[str, list[tuple[int, bytes]]]:
    """By segment, signs and seeds of all that this run's silo adds."""
    rng = SeededRng(secrets)
    keys = {seat: AgreementKey.from_secret(rng.bytes(32)) for seat in SEATS}
    own = rng.bytes(32)
    binding = hashlib.sha256(rng.bytes(32) + bytes([view])).digest()
    seeds = {}
    for segment in SEGMENTS:
        seed = self_seed(own, binding=binding, seat=OWN, segment=segment, generator=generator)
        seeds[segment] = [(1, seed)]
    for peer in SEATS:
        if peer != OWN:
            shared = pairwise_seeds(
                keys[OWN],
                keys[peer].public,
                binding=binding,
                own_seat=OWN,
                peer_seat=peer,
                segments=SEGMENTS,
                generator=generator,
            )
            for segment in SEGMENTS:
                seeds[segment].append((pairwise_sign(OWN, peer), shared[segment]))
    return seeds


@dataclass(frozen=True)
class Sample:
    """Inputs and masked vectors by segment and view, each of shape (RUNS, WORDS)."""

    inputs: dict[tuple[str, int], IntVector]
    masked: dict[tuple[str, int], Words]


def draw(masks: Masks, *, seed: int) -> Sample:
    """Mask inputs of three values, so that what is wrong with single bits stays visible."""
    rng = np.random.default_rng(seed)
    places = [(segment, view) for segment in SEGMENTS for view in VIEWS]
    inputs = {place: rng.choice([-BOUND, 0, BOUND], (RUNS, WORDS)) for place in places}
    masked = {
        place: np.array(
            [to_ring(inputs[place][run], BITS) + masks(run, *place) for run in range(RUNS)]
        )
        for place in places
    }
    return Sample(inputs=inputs, masked=masked)


# --- the battery: p-values ---------------------------------------------------------------------


def _bonferroni(values: list[float]) -> float:
    return min(1.0, len(values) * min(values))


def _correlation(one: NDArray[np.float64], two: NDArray[np.float64]) -> float:
    """P-value of Pearson's correlation of two samples of any shape."""
    return float(stats.pearsonr(one.ravel(), two.ravel()).pvalue)


def _centered(words: Words) -> NDArray[np.float64]:
    return words.view(np.int32).astype(np.float64)


def byte_frequencies(sample: Sample) -> float:
    """χ² of each of the four bytes of a word."""
    words = np.concatenate([column.ravel() for column in sample.masked.values()])
    return _bonferroni(
        [
            float(stats.chisquare(np.bincount((words >> 8 * at) & 0xFF, minlength=256)).pvalue)
            for at in range(4)
        ]
    )


def uniform_words(sample: Sample) -> float:
    """Kolmogorov and Smirnov's test against the uniform distribution."""
    words = np.concatenate([column.ravel() for column in sample.masked.values()])
    return float(stats.kstest(words / 2**BITS, "uniform").pvalue)


def serial_correlation(sample: Sample) -> float:
    """Neighbors in a vector, and the same word in neighboring runs."""
    found = []
    for words in map(_centered, sample.masked.values()):
        found += [_correlation(words[:, :-lag], words[:, lag:]) for lag in (1, 2, 3)]
        found.append(_correlation(words[:-1], words[1:]))
    return _bonferroni(found)


def correlation_with_input(sample: Sample) -> float:
    """corr(y, x)."""
    return _bonferroni(
        [
            _correlation(_centered(sample.masked[place]), sample.inputs[place].astype(np.float64))
            for place in sample.masked
        ]
    )


def _difference(sample: Sample, one: tuple[str, int], two: tuple[str, int]) -> float:
    """corr(y₁−y₂, x₁−x₂): 1 where two vectors were masked alike."""
    return _correlation(
        _centered(sample.masked[one] - sample.masked[two]),
        (sample.inputs[one] - sample.inputs[two]).astype(np.float64),
    )


def difference_of_segments(sample: Sample) -> float:
    """Two segments of one vector."""
    return _bonferroni(
        [_difference(sample, *((name, view) for name in SEGMENTS)) for view in VIEWS]
    )


def difference_of_views(sample: Sample) -> float:
    """One segment in two rounds or attempts."""
    return _bonferroni(
        [_difference(sample, *((name, view) for view in VIEWS)) for name in SEGMENTS]
    )


def difference_of_runs(sample: Sample) -> float:
    """One segment of two silos, or of one silo in two runs, at every distance up to four."""
    found = []
    for place, words in sample.masked.items():
        inputs = sample.inputs[place]
        found += [
            _correlation(
                _centered(words[lag:] - words[:-lag]),
                (inputs[lag:] - inputs[:-lag]).astype(np.float64),
            )
            for lag in (1, 2, 3, 4)
        ]
    return _bonferroni(found)


def repeated_masks(sample: Sample) -> float:
    """Who knows the inputs compares all masks: two of them are equal with 2^-256."""
    masks = np.concatenate(
        [
            words - to_ring(sample.inputs[place].ravel(), BITS).reshape(words.shape)
            for place, words in sample.masked.items()
        ]
    )
    return 1.0 if len(np.unique(masks, axis=0)) == len(masks) else 0.0


Test = Callable[[Sample], float]
BATTERY: tuple[Test, ...] = (
    byte_frequencies,
    uniform_words,
    serial_correlation,
    correlation_with_input,
    difference_of_segments,
    difference_of_views,
    difference_of_runs,
    repeated_masks,
)


# --- a distinguisher that learns ---------------------------------------------------------------


@dataclass(frozen=True)
class Advantage:
    """Area under the curve of a classifier on data it was not fitted to, and its interval."""

    area: float
    low: float
    high: float


def _features(words: Words) -> NDArray[np.float64]:
    """High bits, low bits, squares and the neighbors' products of each word."""
    high = _centered(words) / 2**31
    low = (words & 0xFFFF) / 2**15 - 1
    products = high[:, :-1] * high[:, 1:]
    return np.hstack((np.ones((len(words), 1)), high, low, high**2 - 1 / 3, products))


def _scaled(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each column at the scale of one, however small the noise is that stands for a mask."""
    scale: NDArray[np.float64] = np.sqrt((features**2).mean(axis=0))
    return np.divide(features, scale)


def _fit(features: NDArray[np.float64], labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logistic regression by Newton's method, with a little ridge."""
    weights = np.zeros(features.shape[1])
    ridge = 1e-3 * np.eye(features.shape[1])
    for _ in range(12):
        chance = 1 / (1 + np.exp(-np.clip(features @ weights, -30, 30)))
        gradient = features.T @ (labels - chance) - ridge @ weights
        curvature = (features * (chance * (1 - chance))[:, None]).T @ features + ridge
        weights = weights + np.linalg.solve(curvature, gradient)
    return weights


def distinguish(zero: Words, one: Words) -> Advantage:
    """Fit on even rows, judge on odd ones; the interval misses 1/2 by chance with ALPHA."""
    features = _scaled(_features(np.concatenate((zero, one))))
    labels = np.repeat([0.0, 1.0], [len(zero), len(one)])
    weights = _fit(features[::2], labels[::2])
    scores, truth = features[1::2] @ weights, labels[1::2]
    first, second = scores[truth == 0], scores[truth == 1]
    area = float(stats.mannwhitneyu(second, first).statistic) / (len(first) * len(second))
    spread = np.sqrt((len(first) + len(second) + 1) / (12 * len(first) * len(second)))
    reach = float(stats.norm.isf(ALPHA / 2) * spread)
    return Advantage(area=area, low=area - reach, high=area + reach)


def _masked_constant(masks: Masks, value: int, *, first_run: int) -> Words:
    words = to_ring(np.full(WORDS, value), BITS)
    rows = [words + masks(first_run + run, SEGMENTS[0], 0) for run in range(RUNS)]
    return np.array(rows, U32)


# --- real masks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "generator"),
    [(1, AES_256_CTR), (2, AES_128_CTR), (3, CHACHA20)],
    ids=lambda value: value.name if isinstance(value, Generator) else str(value),
)
def test_real_masks_pass_every_test(seed: int, generator: Generator) -> None:
    """Uniform, and not to be told from one another or from their inputs."""
    sample = draw(RealMasks(f"battery/{seed}", generator), seed=seed)
    found = {test.__name__: test(sample) for test in BATTERY}
    assert {name: p for name, p in found.items() if p < ALPHA} == {}


def test_two_inputs_cannot_be_told_apart() -> None:
    """Everyone else is fixed; one silo has the one extreme input or the other."""
    masks = RealMasks("two inputs")
    found = distinguish(
        _masked_constant(masks, -BOUND, first_run=0), _masked_constant(masks, BOUND, first_run=RUNS)
    )
    assert found.low <= 0.5 <= found.high


def test_real_uploads_cannot_be_told_from_simulated_ones() -> None:
    """The simulator knows the sum of three silos and nothing else: the rest it draws."""
    rng = np.random.default_rng(7)
    inputs = rng.integers(-BOUND, BOUND + 1, (len(SEATS), WORDS))
    total = to_ring(inputs.sum(axis=0), BITS)
    real = np.array([_uploads(inputs, run) for run in range(RUNS)])
    free = rng.integers(0, 2**BITS, (RUNS, len(SEATS) - 1, WORDS), dtype=np.uint32)
    last = total - free.sum(axis=1, dtype=np.uint32)
    simulated = np.concatenate((free, last[:, None]), axis=1)
    assert (real.sum(axis=1, dtype=np.uint32) == total).all()
    found = distinguish(real.reshape(RUNS, -1), simulated.reshape(RUNS, -1))
    assert found.low <= 0.5 <= found.high


def _uploads(inputs: IntVector, run: int) -> Words:
    """Three uploads after the self masks were taken off: pairwise masks are all that is left."""
    rng = SeededRng(f"simulated/{run}")
    keys = {seat: AgreementKey.from_secret(rng.bytes(32)) for seat in SEATS}
    binding = rng.bytes(32)
    uploads = []
    for seat, values in zip(SEATS, inputs, strict=True):
        seeds = [
            (
                pairwise_sign(seat, peer),
                pairwise_seeds(
                    keys[seat],
                    keys[peer].public,
                    binding=binding,
                    own_seat=seat,
                    peer_seat=peer,
                    segments=SEGMENTS[:1],
                )[SEGMENTS[0]],
            )
            for peer in SEATS
            if peer != seat
        ]
        words = to_ring(values, BITS)
        MaskBundle(seeds, U32).apply(words, 0)
        uploads.append(words)
    return np.array(uploads)


# --- negative controls -------------------------------------------------------------------------


def _mersenne_twister(run: int, segment: str, view: int) -> Words:
    """A weak generator with a small seed: 1,024 seeds for all runs."""
    seed = hashlib.sha256(f"{run}/{segment}/{view}".encode()).digest()[0] * 4 + view
    rng = np.random.Generator(np.random.MT19937(seed))
    return rng.integers(0, 2**BITS, WORDS, dtype=np.uint32)


def _uniform_floats(run: int, segment: str, view: int) -> Words:
    """Float32 masks over the whole ring: 24 bits of them are drawn, the low ones are zero."""
    rng = np.random.default_rng([run, SEGMENTS.index(segment), view])
    floats = rng.random(WORDS, dtype=np.float32).astype(np.float64)
    return np.multiply(floats, 2.0**BITS).astype(U32)


def _gaussian_floats(run: int, segment: str, view: int) -> Words:
    """Noise instead of masks: ten times the input, and still it shows."""
    rng = np.random.default_rng([run, SEGMENTS.index(segment), view])
    return to_ring(rng.normal(0, 10 * BOUND, WORDS).astype(np.int64), BITS).astype(U32)


SMALL_SEED_BITS = 14


def _small_seed(run: int, segment: str, view: int) -> Words:
    """The right generator under seeds of few bits: 14 here, where 32 would stand in earnest."""
    digest = hashlib.sha256(f"{run}/{segment}/{view}".encode()).digest()
    return _from_small(int.from_bytes(digest[:2], "big") >> (16 - SMALL_SEED_BITS))


def _from_small(seed: int) -> Words:
    return expand(hashlib.sha384(seed.to_bytes(4, "big")).digest(), WORDS, U32).astype(U32)


def _one_key_for_two_segments(run: int, segment: str, view: int) -> Words:
    del segment
    return RealMasks("one key")(run, SEGMENTS[0], view)


def _one_key_for_two_rounds(run: int, segment: str, view: int) -> Words:
    del view
    return RealMasks("one round")(run, segment, 0)


@pytest.mark.parametrize(
    ("masks", "rejecting"),
    [
        (_mersenne_twister, {repeated_masks}),
        (_uniform_floats, {byte_frequencies}),
        (_gaussian_floats, {byte_frequencies, uniform_words, correlation_with_input}),
        (_small_seed, {repeated_masks}),
        (_one_key_for_two_segments, {difference_of_segments, repeated_masks}),
        (_one_key_for_two_rounds, {difference_of_views, repeated_masks}),
    ],
    ids=lambda value: getattr(value, "__name__", "").lstrip("_"),
)
def test_broken_masks_are_rejected(masks: Masks, rejecting: set[Test]) -> None:
    """The battery sees what it is there to see."""
    sample = draw(masks, seed=11)
    assert {test.__name__ for test in rejecting if test(sample) >= BROKEN} == set()


def test_noise_instead_of_masks_is_told_apart() -> None:
    """The distinguisher does learn where there is something to learn."""
    found = distinguish(
        _masked_constant(_gaussian_floats, -BOUND, first_run=0),
        _masked_constant(_gaussian_floats, BOUND, first_run=RUNS),
    )
    assert found.low > 0.5


def _unmask_by_search(masked: Words) -> list[IntVector]:
    """Try every small seed: the right one leaves a vector within its bounds."""
    found = []
    for seed in range(2**SMALL_SEED_BITS):
        values = (masked - _from_small(seed)).view(np.int32).astype(np.int64)
        if np.abs(values).max() <= BOUND:
            found.append(values)
    return found


def test_small_seeds_are_found_by_trying_all() -> None:
    """2^14 seeds take a moment, 2^32 a few hours; a wrong seed fits with 2^-128."""
    rng = np.random.default_rng(13)
    values = rng.integers(-BOUND, BOUND + 1, WORDS)
    words = to_ring(values, BITS)
    (found,) = _unmask_by_search(words + _small_seed(0, SEGMENTS[0], 0))
    assert found.tolist() == values.tolist()
    assert _unmask_by_search(words + RealMasks("no small seed")(0, SEGMENTS[0], 0)) == []

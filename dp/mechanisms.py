"""From clipped contributions to noised integers and back: what each mode does, on int64 vectors.

A silo's half is contribution -> encode -> add a share; the coordinator's is check -> decode, in
`central` with its one draw in between. Only `fl.pipeline` knows the order with tags and masks;
the ring is the caller's.

A contribution is a vector in the unit ball: the clip norm C is divided out, so that the grid, its
sensitivity and z stay constants of the plan while an adaptive C moves (privacy.md 4.2). Under
adaptive clipping its last coordinate is the centered bit.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dp import grid
from dp.clipping import clip_groups, clip_joint
from dp.errors import NoiseShortfallError, OverflowAlarmError, PlanError
from dp.plan import (
    Clipping,
    Mode,
    Noise,
    PrivacyPlan,
    bit_scale,
    bound_on_grid,
    counted_units,
    metric_scale,
    rides_along,
    segment_scales,
    share_noise_std,
    trained_coordinates,
)
from dp.rng import NoiseSource
from dp.sampling import Sampler, discrete_gaussian, round_randomly, skellam
from dp.terms import METRICS

ALARM: Final = 2**30  # half of the 32-bit ring's edge (privacy.md 6.1)

FloatVector = NDArray[np.float64]
IntVector = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoisedIntegers:
    """Integers of the grid, and whether their noise can be relied on.

    Attributes:
        values: int64.
        is_private: False if the noise came from a test generator; book it as NON_PRIVATE.
    """

    values: IntVector
    is_private: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Released:
    """A noised sum in real units; everything made from it is post-processing.

    Attributes:
        segments: the sums by segment (one, named "update", if the plan has none), float64.
        noisy_count: the noised ∑ (b_k - 1/2) for `clipping.update_clip`; None if C is fixed.
        metrics: the noised sums of centered losses (in caps) and right predictions, shape (2,);
            None where the plan has none in this sum.
    """

    segments: Mapping[str, FloatVector]
    noisy_count: float | None
    metrics: FloatVector | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitMetrics:
    """How a model does on one unit's records; stays in the silo until it is noised.

    Attributes:
        loss: mean over the unit's records; whatever is no number counts as the plan's cap.
        correct: share of right predictions, 0 to 1.
    """

    loss: float
    correct: float


WHOLE: Final = "update"  # the segment's name under a plan that lists none


def contribution(
    blocks: Mapping[str, FloatVector],
    plan: PrivacyPlan,
    *,
    clip_norm: float | None = None,
    weight: float = 1.0,
    metrics: UnitMetrics | None = None,
) -> FloatVector:
    """Clip one unit's vector and bring it into the unit ball; the weight multiplies it inside.

    Args:
        blocks: float64 vectors by segment, in the plan's order; one block named "update" under a
            plan without segments.
        plan: the privacy plan.
        clip_norm: C of this round under adaptive clipping; the plan's by default.
        weight: from 0 to the plan's max_weight.
        metrics: of the unit, where the plan sums them with the update; None counts as absent.

    Returns:
        shape (plan.dimension,), float64; a non-finite input gives zeros (and a bit of 0).

    Raises:
        PlanError: segments or weight are not the plan's.
    """
    if not 0.0 <= weight <= plan.max_weight:
        raise PlanError(f"expected a weight from 0 to {plan.max_weight:g}, the plan's most")
    current = _clip_norm(plan, clip_norm)
    lengths = _lengths(plan)
    if [(name, len(block)) for name, block in blocks.items()] != list(lengths.items()):
        raise PlanError(f"expected the plan's segments {lengths} in their order")
    if plan.clipping is Clipping.SEGMENTS:
        clipped = clip_groups(blocks, {part.name: part.bound for part in plan.segments})
        values = clipped.values * _scales(plan)
    else:
        clipped = clip_joint(blocks, {n: 1.0 / s for n, s in _by_name(plan).items()}, current)
        values = clipped.values
    values *= weight / current
    if plan.adaptive is not None:
        bit = (float(clipped.is_unclipped) - 0.5) * bit_scale(plan) * weight
        values = np.append(values, bit)
    if rides_along(plan):
        values = np.append(values, weight * centered_metrics(metrics, plan))
    return values


def centered_metrics(metrics: UnitMetrics | None, plan: PrivacyPlan) -> FloatVector:
    """Return one unit's loss and right predictions as coordinates of its vector, shape (2,).

    Raises:
        PlanError: the plan releases none.
    """
    if plan.metrics is None:
        raise PlanError("the plan releases no metrics")
    if metrics is None:
        return np.zeros(METRICS)
    loss = plan.metrics.loss_cap if math.isnan(metrics.loss) else metrics.loss
    shares = np.array([loss / plan.metrics.loss_cap, metrics.correct])
    return np.asarray((np.clip(shares, 0.0, 1.0) - 0.5) * metric_scale(plan), dtype=np.float64)


def encode(total: FloatVector, plan: PrivacyPlan, coins: NoiseSource) -> IntVector:
    """Round a silo's sum of contributions to the grid; the integers before noise.

    Each coordinate is cut to what the plan's units can reach: a cut to a box moves no two
    vectors apart, and it bounds the range.

    Args:
        total: shape (plan.dimension,), float64, finite; the sum of at most max_units_per_silo
            contributions.
        plan: the privacy plan.
        coins: secret and independent of the data. A new attempt may repeat them, unlike noise.

    Returns:
        shape (plan.dimension + plan.padding,), int64; the padding is zero.

    Raises:
        PlanError: another length.

    Security: not to leave the silo before its share is added.
    """
    _check_length("contributions", total, plan.dimension)
    limit = math.floor(_reach(plan))
    scaled = np.clip(total * bound_on_grid(plan), -limit, limit)
    return np.append(round_randomly(scaled, coins), np.zeros(_padding(plan), np.int64))


class UnitSum:
    """A silo's sum over its units in one release, on the grid; the same for 0 units and for many.

    Args:
        plan: the privacy plan. Under `strict` each contribution is rounded by itself, so that no
            float sum is left; else the sum is rounded once (privacy.md 6.1, 6.4).
        coins: secret and independent of the data.
    """

    def __init__(self, plan: PrivacyPlan, coins: NoiseSource) -> None:
        self._plan = plan
        self._coins = coins
        self._total = np.zeros(plan.dimension)
        self._integers = np.zeros(plan.dimension, np.int64)

    def add(self, one: FloatVector) -> None:
        """Add one unit's contribution, shape (plan.dimension,)."""
        if self._plan.strict:
            self._integers += round_randomly(one * bound_on_grid(self._plan), self._coins)
        else:
            self._total += one

    def integers(self) -> IntVector:
        """Return the integers before noise, shape (plan.dimension + plan.padding,)."""
        if not self._plan.strict:
            return encode(self._total, self._plan, self._coins)
        limit = math.floor(_reach(self._plan))
        padding = np.zeros(_padding(self._plan), np.int64)
        return np.append(np.clip(self._integers, -limit, limit), padding)


def split_segments(vector: FloatVector, plan: PrivacyPlan) -> dict[str, FloatVector]:
    """Cut a flat vector into the plan's segments, in their order; without a clip bit.

    Raises:
        PlanError: another length.
    """
    lengths = _lengths(plan)
    _check_length("coordinates", vector, sum(lengths.values()))
    ends = np.cumsum(list(lengths.values()))[:-1]
    return dict(zip(lengths, np.split(vector, ends), strict=True))


def draw_share(plan: PrivacyPlan, source: NoiseSource) -> NoisedIntegers:
    """Draw one silo's share of the ring noise (privacy.md 6.3).

    Its std is ((z·D2)² + 1/12)/h_dp under the root, for everyone and every cohort size, so that
    the h_dp honest shares that the floor guarantees are enough. Draw it before the update is
    known, for example during training: the count is a constant of the plan.

    Args:
        plan: a plan of a ring mode.
        source: a fresh stream for this attempt. A share used twice cancels.

    Returns:
        shape (plan.dimension + plan.padding,), int64.

    Raises:
        PlanError: the mode has no shares.
    """
    if not plan.is_ring:
        raise PlanError(f"mode {plan.mode} has no noise shares; silo, fedsgd and patient have")
    count = plan.dimension + _padding(plan)
    return NoisedIntegers(values=_sampler(plan).draw(count, source), is_private=source.is_private)


class GridNoise:
    """Rounds a real vector to a grid and adds integer noise: what Opacus' normal draw becomes.

    Rounding comes first: integers on a sum that is not on the grid would reveal its fraction
    (privacy.md 1.2).

    Args:
        step: distance of two grid points, in the vector's units.
        sigma: of the noise, in grid steps.
        source: of coins and noise.
    """

    def __init__(self, *, step: float, sigma: float, source: NoiseSource) -> None:
        self.step = step
        self.sigma = sigma
        self._sampler = discrete_gaussian(sigma)
        self._source = source

    @property
    def is_private(self) -> bool:
        """Return whether the noise can be relied on."""
        return self._source.is_private

    def add(self, values: FloatVector) -> FloatVector:
        """Return the noised vector, shape and units as given; always the same number of draws."""
        integers = round_randomly(values / self.step, self._source)
        integers += self._sampler.draw(len(values), self._source)
        return np.multiply(integers, self.step, dtype=np.float64)


def noised_metrics(
    units: Iterable[UnitMetrics | None], plan: PrivacyPlan, source: NoiseSource
) -> NoisedIntegers:
    """Sum the sampled units' metrics under a silo's own full noise: isrl's further step.

    Args:
        units: of this step's sample; how many there are stays in the silo.
        plan: of mode isrl, with metrics.
        source: this silo's stream for this attempt.

    Returns:
        shape (2,), int64, on the plan's grid.
    """
    noise = full_noise(plan, source)
    total = sum((centered_metrics(one, plan) for one in units), start=np.zeros(METRICS))
    # The two coordinates move by less than a gradient does on the same grid, whose D2 sizes sigma.
    in_grid = noise.add(total * bound_on_grid(plan) * noise.step) / noise.step
    return NoisedIntegers(values=np.rint(in_grid).astype(np.int64), is_private=noise.is_private)


def metric_means(sums: FloatVector, plan: PrivacyPlan) -> tuple[float, float]:
    """Return mean loss and share of right predictions of released sums: post-processing.

    Args:
        sums: `Released.metrics`, or isrl's integers by `metrics_from_grid`.
        plan: with metrics.
    """
    assert plan.metrics is not None, "the sums come of a plan with metrics"
    loss, correct = np.clip(sums / counted_units(plan) + 0.5, 0.0, 1.0)
    return float(loss) * plan.metrics.loss_cap, float(correct)


def metrics_from_grid(total: IntVector, plan: PrivacyPlan) -> FloatVector:
    """Return a sum of `noised_metrics` in halves of a unit, shape (2,)."""
    return np.asarray(total / (bound_on_grid(plan) * metric_scale(plan)), dtype=np.float64)


def full_noise(plan: PrivacyPlan, source: NoiseSource) -> GridNoise:
    """Return what one party adds by itself: the coordinator in `central`, a silo in `isrl`.

    Raises:
        PlanError: in the plan's mode the noise is shared.
    """
    if plan.is_ring:
        raise PlanError(f"mode {plan.mode} divides its noise into shares; use draw_share")
    step = 1.0 if plan.mode is Mode.CENTRAL else plan.clip / bound_on_grid(plan)
    return GridNoise(step=step, sigma=share_noise_std(plan), source=source)


def add_central_noise(total: IntVector, plan: PrivacyPlan, source: NoiseSource) -> NoisedIntegers:
    """Add `central`'s one draw to the opened sum, through Opacus' optimizer.

    Store the result before anything is sent: a second draw would be a second release.

    Args:
        total: shape (plan.dimension,), int64; the exact sum.
        plan: a plan of mode central.
        source: a fresh stream for this round.

    Raises:
        PlanError: another mode or length.
        OverflowAlarmError: see `check_range`.

    Security: the argument is the one exact value of this mode. It belongs in no log, file or
    message.
    """
    if plan.mode is not Mode.CENTRAL:
        raise PlanError(f"expected a plan of mode central, got {plan.mode}")
    _check_length("coordinates", total, plan.dimension)
    check_range(total)
    # Only a coordinator under such a plan loads torch and Opacus: 3 s and 350 MB.
    from dp.local_sgd import noise_vector  # noqa: PLC0415  # see above

    noise = full_noise(plan, source)
    noised = noise_vector(total.astype(np.float64), noise)
    return NoisedIntegers(values=noised.astype(np.int64), is_private=noise.is_private)


def check_survivors(survivors: int, plan: PrivacyPlan) -> None:
    """Refuse a survivor set whose honest shares fall short of the plan; before unmasking.

    Raises:
        NoiseShortfallError: fewer than n_c + h_dp survivors under a ring mode.
    """
    if survivors < plan.n_c + plan.h_dp:
        raise NoiseShortfallError(survivors, plan.n_c, plan.h_dp)


def check_range(total: IntVector) -> None:
    """Raise the alarm if a decoded sum is so large that the ring may have wrapped.

    Raises:
        OverflowAlarmError: a coordinate is beyond ±2**30; says how many, not which.
    """
    beyond = int(np.count_nonzero((total > ALARM) | (total < -ALARM)))
    if beyond:
        raise OverflowAlarmError(
            f"{beyond} of {len(total)} coordinates are beyond ±2^30: the sum may have wrapped; "
            "lower grid_bound or check the silos' versions"
        )


def split_padding(total: IntVector, plan: PrivacyPlan) -> tuple[IntVector, IntVector]:
    """Separate a sum into its coordinates and the padding, which is noise alone.

    Raises:
        PlanError: another length.
    """
    _check_length("coordinates", total, plan.dimension + _padding(plan))
    return total[: plan.dimension], total[plan.dimension :]


def decode(total: IntVector, plan: PrivacyPlan, *, clip_norm: float | None = None) -> Released:
    """Bring a noised sum back to real units: post-processing.

    Args:
        total: shape (plan.dimension,), int64, noise included.
        plan: the privacy plan.
        clip_norm: C of this round under adaptive clipping; the plan's by default.

    Raises:
        PlanError: another length.
        OverflowAlarmError: see `check_range`.
    """
    _check_length("coordinates", total, plan.dimension)
    check_range(total)
    units = total / bound_on_grid(plan)
    metrics = units[-METRICS:] / metric_scale(plan) if rides_along(plan) else None
    model = trained_coordinates(plan)
    count = None if plan.adaptive is None else float(units[model]) / bit_scale(plan)
    found = units[:model] * _clip_norm(plan, clip_norm) / _scales(plan)
    return Released(segments=split_segments(found, plan), noisy_count=count, metrics=metrics)


def _sampler(plan: PrivacyPlan) -> Sampler:
    sigma = share_noise_std(plan)
    return skellam(sigma) if plan.noise is Noise.SKELLAM else discrete_gaussian(sigma)


def _clip_norm(plan: PrivacyPlan, clip_norm: float | None) -> float:
    """Return this round's C; only adaptive clipping may differ from the plan's."""
    if clip_norm is None or clip_norm == plan.clip:
        return plan.clip
    if plan.adaptive is None or not plan.adaptive.clip_min <= clip_norm <= plan.adaptive.clip_max:
        raise PlanError(
            f"expected the plan's clip norm or one of its adaptive range, got {clip_norm!r}"
        )
    return clip_norm


def _lengths(plan: PrivacyPlan) -> dict[str, int]:
    """Return the segments' lengths in order, without clip bit and metrics."""
    if plan.segments:
        return {part.name: part.length for part in plan.segments}
    return {WHOLE: trained_coordinates(plan)}


def _by_name(plan: PrivacyPlan) -> dict[str, float]:
    return segment_scales(plan) if plan.segments else {WHOLE: 1.0}


def _scales(plan: PrivacyPlan) -> FloatVector:
    """Return each model coordinate's factor."""
    return np.repeat(list(_by_name(plan).values()), list(_lengths(plan).values()))


def _reach(plan: PrivacyPlan) -> float:
    """Return the largest magnitude of a silo's coordinate in grid steps: M·C·s."""
    return plan.max_units_per_silo * bound_on_grid(plan) * grid.CLIP_SLACK


def _padding(plan: PrivacyPlan) -> int:
    assert plan.padding is not None, "set in the plan's __post_init__"
    return plan.padding


def _check_length(what: str, values: FloatVector | IntVector, expected: int) -> None:
    if values.shape != (expected,):
        raise PlanError(f"expected {expected} {what}, got shape {values.shape}")

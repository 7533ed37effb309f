"""A training plan under a privacy plan: what the two must agree on, and both halves of a round.

In `silo`, `central`, `fedsgd` and `patient` a round sums integers on the privacy plan's own grid:
one bulk segment of noised coordinates, with the padding of the variance test behind them. In `isrl`
every local step is noised already, so the update travels as without a plan, in a range that
follows from the plan alone, and metrics, if the plan releases them, as two noised integers. In no
mode does anything else travel: no exact metric, no weight, no count of saturated coordinates
(privacy.md 5.4).

Order at a silo: clip, weigh, round, then add the share; tags and masks come after, in
`secagg.silo`, and see noised integers only.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dp import mechanisms
from dp.admission import Algorithm, Feature, check_algorithm
from dp.canonical import canonical_json
from dp.clipping import update_clip
from dp.errors import PrivacyError
from dp.mechanisms import UnitMetrics
from dp.plan import (
    Mode,
    Participation,
    PrivacyPlan,
    Unit,
    Weights,
    rides_along,
    share_noise_std,
    trained_coordinates,
)
from dp.rng import NoiseSource, NoiseStream
from dp.sensitivity import bound_on_grid
from dp.terms import METRICS
from fl import fields
from fl.errors import PlanError, RunStateError, SpecMismatchError
from fl.ports import FloatVector, Metrics, NamedTensors
from fl.reals import META_LIMIT
from fl.work import Work
from secagg.parameters import Segment, SegmentKind, VectorSpec, bulk, meta

if TYPE_CHECKING:
    from fl.plan import TrainingPlan

IntVector = NDArray[np.int64]

# Where the noised coordinates are whole grid steps; in isrl the noise never meets the ring.
GRID_MODES: Final = frozenset({Mode.SILO, Mode.CENTRAL, Mode.FEDSGD, Mode.PATIENT})
# The units' own steps are taken one by one, by `PrivateTask`.
UNIT_MODES: Final = frozenset({Mode.FEDSGD, Mode.PATIENT, Mode.ISRL})
# Beside the update in a decoded sum: ∑ (b_k − 1/2), under adaptive clipping.
CLIP_COUNT: Final = "clip_count"
# Noised sums of losses and right predictions; in isrl a segment of its own.
METRIC_SUMS: Final = "metric_sums"

# No draw reaches so far: tables end near 14 standard deviations (privacy.md 6.2).
_REACH_STDS: Final = 20.0
_CLIPPING_ROOM: Final = 14.0
# A variate's correction comes on top of K noised steps.
_ISRL_ROOM: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivateStep:
    """One round's work of a unit mode, for the task that owns the data.

    Attributes:
        plan: the privacy plan, of mode isrl, fedsgd or patient.
        learning_rate: η of this round.
        denominator: q times the units that this silo declared; isrl divides by it.
        correction: shape (d,), c − c_k, in isrl only.
        source: of masks and noise: this silo's stream of this attempt.
        clip_norm: C of this round.
    """

    plan: PrivacyPlan
    learning_rate: float
    denominator: float
    correction: FloatVector | None
    source: NoiseSource
    clip_norm: float


class PrivateTask(Protocol):
    """What a task offers beside fl.ports.LocalTask to protect records or patients."""

    def check_private(self, plan: PrivacyPlan, /) -> None:
        """Refuse a model or data that per-unit clipping does not protect.

        Raises:
            DataError: says what does not fit; never how many units there are.
        """
        ...

    def train_private(self, model: NamedTensors, step: PrivateStep, /) -> FloatVector | IntVector:
        """Return y after K noised steps (isrl), or the clipped sum's integers before the share."""
        ...

    def measure_private(self, model: NamedTensors, step: PrivateStep, /) -> IntVector:
        """Return the noised integers of a metric release, shape (2,); isrl with metrics only."""
        ...


@lru_cache(maxsize=64)
def _read(document: bytes) -> PrivacyPlan:
    try:
        return PrivacyPlan.from_bytes(document)
    except PrivacyError as error:
        raise PlanError(f"privacy plan: {error}") from error


class Planned(Protocol):
    """A plan that may hold a privacy plan."""

    @property
    def privacy(self) -> Mapping[str, object]:
        """Return the privacy plan's document, empty without one."""
        ...


def document_of(plan: Planned) -> bytes:
    """Return the privacy plan's canonical bytes, which ctx binds; empty without one."""
    return canonical_json(dict(plan.privacy)) if plan.privacy else b""  # type: ignore[arg-type] # JSON by fields.json_copy


def privacy_of(plan: Planned) -> PrivacyPlan | None:
    """Return the run's privacy plan, None without one.

    Raises:
        PlanError: the section is none, or a plan that is refused.
    """
    document = document_of(plan)
    return _read(document) if document else None


def as_settings(privacy: PrivacyPlan) -> dict[str, object]:
    """Return a privacy plan as the section `privacy` of a training plan."""
    section: dict[str, object] = json.loads(privacy.to_bytes())
    return section


def check_privacy(plan: "TrainingPlan") -> None:
    """Refuse a training plan that does not keep its privacy plan's promise.

    Raises:
        PlanError: names the field and what it must be.
    """
    privacy = privacy_of(plan)
    if privacy is None:
        return
    needs = (
        ("rounds", privacy.rounds, plan.rounds),
        ("weighting", privacy.weights.value, plan.weighting.value),
    )
    for name, expected, got in needs:
        if expected != got:
            fields.refuse(name, f"{expected!r} under this privacy plan", got)
    _check_admission(plan, privacy)
    if privacy.mode in UNIT_MODES and plan.local.local_steps != privacy.local_steps:
        fields.refuse(
            "local.local_steps", f"the privacy plan's {privacy.local_steps}", plan.local.local_steps
        )
    if privacy.cohort_size > plan.max_silos:
        fields.refuse("max_silos", f"at least the cohort of {privacy.cohort_size}", plan.max_silos)
    heaviest = max(plan.declared.values(), default=1.0)
    if privacy.weights is Weights.DECLARED and heaviest > privacy.max_weight:
        fields.refuse("declared", f"classes up to max_weight = {privacy.max_weight}", heaviest)


def _check_admission(plan: "TrainingPlan", privacy: PrivacyPlan) -> None:
    """Ask the table of algorithms; a plugin's rule is a step on released values, as FedAvg's."""
    name = "fedavg" if plan.algorithm == "fedbn" else plan.algorithm
    algorithm = Algorithm(name) if name in set(Algorithm) else Algorithm.FEDAVG
    try:
        check_algorithm(privacy, algorithm, _features_of(plan, privacy))
    except PrivacyError as error:
        raise PlanError(f"privacy plan: {error}") from error


def _features_of(plan: "TrainingPlan", privacy: PrivacyPlan) -> list[Feature]:
    """Return what else the plan asks for that the table has a line for."""
    asked = {
        Feature.OWN_STEPS: plan.work.kind is not Work.FIXED,
        Feature.LOCAL_OPTIMIZER: plan.local.optimizer != "sgd",
        Feature.PROXIMAL: plan.local.proximal > 0,
        Feature.GRADIENT_VARIATE: plan.algorithm_settings.get("option") == "I",
        Feature.REFRESH: plan.max_refreshes > 0,
        Feature.PERSONAL_LAYERS: bool(plan.personal) or plan.algorithm == "fedbn",
        Feature.ROTATION: plan.compression.rotate,
        Feature.BLOCKS: plan.compression.block > 0,
        Feature.ERROR_FEEDBACK: plan.compression.keeps_errors,
        Feature.STANDARDIZE: plan.standardize,
        Feature.EXACT_METRICS: plan.metrics,
        Feature.LOSS_STOPPING: plan.early_stop.patience > 0 and privacy.metrics is None,
    }
    return [feature for feature, is_asked in asked.items() if is_asked]


def check_size(privacy: PrivacyPlan, size: int) -> None:
    """Refuse a model of another size than the privacy plan was made for.

    Raises:
        SpecMismatchError: names both.
    """
    expected = trained_coordinates(privacy)
    if expected != size:
        raise SpecMismatchError(
            f"privacy plan: expected a model of {expected} parameters, the task's has {size}"
        )


def first_range(plan: "TrainingPlan", privacy: PrivacyPlan) -> float:
    """Return the range the run begins with: C, or in isrl how far K noised steps can lead."""
    if privacy.mode in GRID_MODES:
        return privacy.clip
    per_step = privacy.max_units_per_silo * privacy.clip
    per_step += _CLIPPING_ROOM * share_noise_std(privacy) * privacy.clip / bound_on_grid(privacy)
    reach = privacy.local_steps * plan.local.learning_rate * per_step
    return _ISRL_ROOM * reach / local_denominator(privacy, 1.0)


def private_spec(plan: "TrainingPlan", privacy: PrivacyPlan, name: str, size: int) -> VectorSpec:
    """Return what a round of the run sums; `name` is the algorithm's one segment."""
    if privacy.mode not in GRID_MODES:
        segment = bulk(name, size, value_bits=plan.first_value_bits, n_max=plan.max_silos)
        return VectorSpec(segments=(segment, *_metric_segments(plan, privacy)))
    return grid_spec(privacy, name, plan.max_silos)


def grid_spec(privacy: PrivacyPlan, name: str, n_max: int) -> VectorSpec:
    """Return what a release on the plan's grid sums over at most n_max silos."""
    reach = privacy.max_units_per_silo * bound_on_grid(privacy) + 1.0
    reach += _REACH_STDS * share_noise_std(privacy)
    bits = int(np.ceil(reach)).bit_length() + 1
    length = privacy.dimension + (privacy.padding or 0)
    kind = SegmentKind.NOISED if privacy.mode is Mode.CENTRAL else SegmentKind.BULK
    segment = bulk(name, length, value_bits=bits, n_max=n_max, kind=kind)
    return VectorSpec(segments=(segment,))


def _metric_segments(plan: "TrainingPlan", privacy: PrivacyPlan) -> list[Segment]:
    """What isrl sums beside the update: two noised integers a silo."""
    if privacy.metrics is None:
        return []
    reach = privacy.max_units_per_silo * bound_on_grid(privacy)
    bound = int(np.ceil(reach + _REACH_STDS * share_noise_std(privacy))) + 1
    if bound > META_LIMIT // plan.max_silos:
        fields.refuse("privacy.grid_bound", "one whose metrics fit the sum's integers", bound)
    return [meta(METRIC_SUMS, METRICS, bound=bound)]


def unit_metrics(metrics: Metrics | None) -> UnitMetrics | None:
    """Return a silo's metrics as one unit's; None counts as absent."""
    if metrics is None or not metrics.examples:
        return None
    return UnitMetrics(
        loss=metrics.loss_sum / metrics.examples, correct=metrics.correct / metrics.examples
    )


def released_means(
    privacy: PrivacyPlan | None, values: Mapping[str, FloatVector], counts: Mapping[str, IntVector]
) -> tuple[float, float] | None:
    """Return the noised mean loss and accuracy of a decoded sum; None where there are none."""
    if privacy is None or privacy.metrics is None:
        return None
    if rides_along(privacy):
        return mechanisms.metric_means(values[METRIC_SUMS], privacy)
    sums = mechanisms.metrics_from_grid(counts[METRIC_SUMS], privacy)
    return mechanisms.metric_means(sums, privacy)


def grid_step(privacy: PrivacyPlan, clip_norm: float) -> float:
    """Return the distance of neighboring values of the grid, in parameter units."""
    return clip_norm / bound_on_grid(privacy)


def clipped_integers(
    update: FloatVector,
    privacy: PrivacyPlan,
    *,
    clip_norm: float,
    weight: float,
    coins: NoiseSource,
    metrics: UnitMetrics | None = None,
) -> IntVector:
    """Return a silo's clipped, weighted and rounded change, before its share of noise.

    Args:
        update: shape (d,), unweighted; one that is not finite counts as zero (privacy.md 4.1).
        privacy: of mode silo or central.
        clip_norm: C of this round.
        weight: multiplied in after the clip.
        metrics: of the silo, where the plan releases them.
        coins: for the rounding; secret and independent of the data.

    Security: not to leave the silo before noise is added, in `central` the coordinator's.
    """
    try:
        blocks = mechanisms.split_segments(update, privacy)
        part = mechanisms.contribution(
            blocks, privacy, clip_norm=clip_norm, weight=weight, metrics=metrics
        )
        return mechanisms.encode(part, privacy, coins)
    except PrivacyError as error:
        raise RunStateError(f"privacy plan: {error}") from error


def noise_share(privacy: PrivacyPlan, source: NoiseSource) -> IntVector | None:
    """Return this silo's share of the ring noise, None where the mode has none."""
    return mechanisms.draw_share(privacy, source).values if privacy.is_ring else None


def central_noise(
    plan: Planned, source: Callable[[], NoiseSource] = NoiseStream
) -> Callable[[Mapping[str, IntVector]], dict[str, IntVector]] | None:
    """Return what the coordinator does to an exact sum before anybody sees it; None elsewhere.

    Security: its argument is the one exact value of mode `central`; it is kept nowhere.
    """
    privacy = privacy_of(plan)
    if privacy is None or privacy.mode is not Mode.CENTRAL:
        return None

    def noised(sums: Mapping[str, IntVector]) -> dict[str, IntVector]:
        return {
            name: mechanisms.add_central_noise(total, privacy, source()).values
            for name, total in sums.items()
        }

    return noised


def decoded_sum(
    total: IntVector, privacy: PrivacyPlan, *, name: str, clip_norm: float
) -> dict[str, FloatVector]:
    """Return a noised sum, or a silo's own integers, in parameter units.

    Raises:
        RunStateError: the sum is so large that the ring may have wrapped.
    """
    try:
        coordinates, _ = mechanisms.split_padding(total, privacy)
        released = mechanisms.decode(coordinates, privacy, clip_norm=clip_norm)
    except PrivacyError as error:
        raise RunStateError(f"privacy plan: {error}") from error
    found = {name: np.concatenate(list(released.segments.values()))}
    if released.noisy_count is not None:
        found[CLIP_COUNT] = np.array([released.noisy_count])
    if released.metrics is not None:
        found[METRIC_SUMS] = released.metrics
    return found


def next_clip(privacy: PrivacyPlan, clip_norm: float, released: Mapping[str, FloatVector]) -> float:
    """Return the next round's C: the plan's, unless the released count of units moves it."""
    if privacy.adaptive is None:
        return clip_norm
    counted = privacy.cohort_size if privacy.unit is Unit.SILO else privacy.denominator
    count = float(released[CLIP_COUNT][0])
    return update_clip(clip_norm, count, float(counted), privacy.adaptive)


def local_denominator(privacy: PrivacyPlan, weight: float) -> float:
    """Return q times the units that a silo declared: its class of the plan's most."""
    q = privacy.q if privacy.participation is Participation.POISSON else 1.0
    return q * privacy.max_units_per_silo * weight

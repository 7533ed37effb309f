"""The privacy plan: one frozen document that says what is protected, how, and by how much noise.

Its canonical bytes are in every round's ctx, so silos refuse a changed plan; its digest names it in
the ledger. An invalid plan cannot exist: what privacy.md refuses is refused here, with the reason.
Adjacency has no default, and z is the only noise parameter: everything that multiplies a unit's
influence (adjacency, weights, several silos, the clip bit) is inside `sensitivity`.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, Self, TypeVar, cast

from dp import grid
from dp.canonical import Json, canonical_json, decimal, parse_canonical, parse_decimal
from dp.errors import InfeasibleError, PlanError
from dp.events import Event, GaussianEvent, PoissonGaussianEvent, SkellamEvent

PLAN_VERSION: Final = 1
# Part of delta kept for rounding, ring noise and sampler (privacy.md 6.1).
RESERVE: Final = 0.01
RING_EDGE: Final = 2**31

_MAX_DIMENSION: Final = 10**9
_MAX_ROUNDS: Final = 10**6
_MAX_SILOS: Final = 10_000
_MAX_UNITS: Final = 10**9
_PADDING: Final = 1024
# A silo-unit plan whose mean has more noise than this many clip norms trains on noise (decision 1).
_USELESS_NOISE: Final = 10.0
_ADAPTIVE_UNITS: Final = 100
_REACH_STDS: Final = 14.0
# Two ways to write one number may differ in the last digits.
_SAME: Final = 1e-9

_P = TypeVar("_P", "Segment", "AdaptiveClip")


class Unit(StrEnum):
    """Whose participation is hidden."""

    RECORD = "record"
    PATIENT = "patient"
    SILO = "silo"


class Adjacency(StrEnum):
    """What makes two data sets neighbors."""

    ADD_REMOVE = "add_remove"
    ZERO_OUT = "zero_out"
    REPLACE_ONE = "replace_one"


class Mode(StrEnum):
    """Who clips what, and where the noise is (privacy.md 5.1)."""

    CENTRAL = "central"
    SILO = "silo"
    FEDSGD = "fedsgd"
    PATIENT = "patient"
    ISRL = "isrl"


class Participation(StrEnum):
    """How units come into a release."""

    ALL = "all"
    POISSON = "poisson"  # each in secret, by itself, with probability q
    FIXED = "fixed"  # a public or fixed-size choice: no amplification, booked as q = 1


class Weights(StrEnum):
    """How much a silo counts (protocol.md 2.4)."""

    UNIFORM = "uniform"
    DECLARED = "declared"
    HIDDEN = "hidden"


class Clipping(StrEnum):
    """What is clipped to which bound."""

    FLAT = "flat"  # one norm over all segments, each first divided by its bound
    SEGMENTS = "segments"  # every segment to its own bound


class Noise(StrEnum):
    """The integer noise of the ring."""

    GAUSSIAN = "gaussian"
    SKELLAM = "skellam"


RING_MODES: Final = frozenset({Mode.SILO, Mode.FEDSGD, Mode.PATIENT})
SILO_UNIT_MODES: Final = frozenset({Mode.CENTRAL, Mode.SILO})


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of the noised vector with a bound of its own.

    Attributes:
        name: as in the vector spec, or a layer's.
        length: coordinates, at least 1.
        bound: L2 bound of one unit's part, in that part's own units, a public constant.
        z: noise multiplier of this part alone; given for all segments or for none.
    """

    name: str
    length: int
    bound: float
    z: float | None = None

    def __post_init__(self) -> None:
        """Refuse an unnamed, empty or unbounded segment."""
        if self.name == "":
            raise PlanError("segment.name: expected a name, got an empty text")
        _require_count("segment.length", self.length, 1, _MAX_DIMENSION)
        _require_positive("segment.bound", self.bound)
        if self.z is not None:
            _require_positive("segment.z", self.z)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClip:
    """Quantile clipping whose bit rides in the same vector (Andrew et al. 2021, privacy.md 4.2).

    Attributes:
        count_noise_std: sigma_b, std of the noise on the number of unclipped units.
        learning_rate: of the geometric update of the clip norm.
        quantile: gamma, the share of units that should stay unclipped.
        clip_min: the clip norm never falls below it.
        clip_max: nor rises above this.
    """

    count_noise_std: float
    learning_rate: float = 0.2
    quantile: float = 0.5
    clip_min: float
    clip_max: float

    def __post_init__(self) -> None:
        """Refuse an update rule that cannot settle."""
        for name in ("count_noise_std", "learning_rate", "clip_min", "clip_max"):
            _require_positive(f"adaptive.{name}", getattr(self, name))
        if not 0.0 < self.quantile < 1.0:
            raise PlanError(f"adaptive.quantile: expected 0 < quantile < 1, got {self.quantile!r}")
        if self.clip_min > self.clip_max:
            raise PlanError("adaptive: expected clip_min <= clip_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyPlan:
    """What a run promises; see the module for how it is used.

    Attributes:
        unit: whose participation is hidden.
        adjacency: what makes two data sets neighbors; never guessed.
        mode: who clips what, and where the noise is.
        clip: C, L2 clip norm in parameter units; the first one under adaptive clipping.
        z: std of the total noise over the sensitivity, dimensionless, above 0.
        rounds: T, at least 1.
        delta: at which the plan's epsilon is read; above 0, below 1.
        dimension: noised coordinates, with the clip bit, without padding.
        cohort_size: n, silos planned for a round.
        denominator: W, the public constant that a noised sum is divided by.
        q: sampling rate of records or patients in secret; 1 without.
        participation: how units come into a release.
        local_steps: K.
        n_c: silos that may collude with the coordinator; at least 1 in ring modes.
        h_dp: honest shares that the ring noise is divided by; 0 outside ring modes.
        weights: how silos are weighted.
        max_weight: the largest weight a silo may have, at most 1.
        max_units_per_silo: M, public cap on the units in one silo's release.
        max_silos_per_unit: m, in how many silos one unit may be.
        clipping: one norm or one a segment.
        segments: bounds and multipliers by segment; empty for one flat vector.
        adaptive: quantile clipping, or None for a fixed C.
        grid_bound: S = C·s, the clip norm in grid steps; by default chosen from clip and
            dimension, a constant even while C moves.
        noise: kind of integer noise.
        padding: all-zero coordinates that carry noise only, for the variance test.
        strict: each unit's contribution is rounded by itself, so that no float sum is left.
        allow_low_utility: accept a silo-unit plan that trains on noise.
    """

    unit: Unit
    adjacency: Adjacency
    mode: Mode
    clip: float
    z: float
    rounds: int
    delta: float
    dimension: int
    cohort_size: int
    denominator: float
    q: float = 1.0
    participation: Participation = Participation.ALL
    local_steps: int = 1
    n_c: int = 0
    h_dp: int = 0
    weights: Weights = Weights.UNIFORM
    max_weight: float = 1.0
    max_units_per_silo: int = 1
    max_silos_per_unit: int = 1
    clipping: Clipping = Clipping.FLAT
    segments: tuple[Segment, ...] = ()
    adaptive: AdaptiveClip | None = None
    grid_bound: float | None = None
    noise: Noise = Noise.GAUSSIAN
    padding: int | None = None
    strict: bool = False
    allow_low_utility: bool = False

    def __post_init__(self) -> None:
        """Fill in what has a rule, then refuse whatever privacy.md refuses."""
        _check_ranges(self)
        if self.grid_bound is None:
            steps = grid.default_steps_per_unit(self.clip, self.dimension)
            object.__setattr__(self, "grid_bound", self.clip * steps)
        if self.padding is None:
            object.__setattr__(self, "padding", _PADDING if self.is_ring else 0)
        for check in (
            _check_unit,
            _check_sampling,
            _check_noise_owner,
            _check_weights,
            _check_segments,
            _check_adaptive,
            _check_grid,
            _check_utility,
        ):
            check(self)

    @property
    def is_ring(self) -> bool:
        """Whether every silo adds a share of the noise."""
        return self.mode in RING_MODES

    def to_bytes(self) -> bytes:
        """Canonical JSON of all fields: what ctx binds."""
        body: dict[str, Json] = {"version": PLAN_VERSION}
        for name in _FIELDS:
            value = getattr(self, name)
            if name == "segments":
                body[name] = [_flat(segment) for segment in value]
            elif name == "adaptive":
                body[name] = None if value is None else _flat(value)
            else:
                body[name] = _scalar(value)
        return canonical_json(body)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a plan from a peer or a ledger.

        Raises:
            PlanError: not canonical, an unknown or missing field, or a plan that is refused.
        """
        body = parse_canonical(data)
        if not isinstance(body, Mapping) or set(body) != {"version", *_FIELDS}:
            raise PlanError("expected exactly the fields of a privacy plan")
        if body["version"] != PLAN_VERSION:
            raise PlanError(f"expected version {PLAN_VERSION} of the privacy plan")
        values = {name: _READERS[name](name, body[name]) for name in _FIELDS}
        return cls(**cast("dict[str, Any]", values))  # the plan's own checks look at the types

    @property
    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes, 32 bytes."""
        return hashlib.sha256(self.to_bytes()).digest()


def sensitivity(plan: PrivacyPlan) -> float:
    """Δ: how far one unit can move a release, L2, in parameter units, rounded up.

    Everything that multiplies is inside: replace-one, weights, several silos, the clip bit, and
    what the integer grid adds. The noise's std is z times this.
    """
    return math.nextafter(grid_sensitivity(plan) / steps_per_unit(plan), math.inf)


def grid_sensitivity(plan: PrivacyPlan) -> float:
    """D2: the same in grid steps (privacy.md 6.1)."""
    norm = bound_on_grid(plan) * plan.max_weight * grid.CLIP_SLACK
    if plan.adaptive is not None:
        norm *= math.hypot(1.0, bit_scale(plan) / 2.0)
    moved = grid.rounded_norm(norm, plan.dimension)
    if plan.max_units_per_silo > 1 and not plan.strict:
        moved += grid.float_sum_error(plan.max_units_per_silo, norm, plan.dimension)
    return math.nextafter(moved * moved_vectors(plan), math.inf)


def bound_on_grid(plan: PrivacyPlan) -> float:
    """S = C·s, the clip norm in grid steps: a constant of the plan."""
    assert plan.grid_bound is not None, "set in __post_init__"
    return plan.grid_bound


def steps_per_unit(plan: PrivacyPlan) -> float:
    """The grid's s at the plan's clip norm, in steps per parameter unit."""
    return bound_on_grid(plan) / plan.clip


def moved_vectors(plan: PrivacyPlan) -> int:
    """How many clipped vectors one unit can move: its silos, twice when it is replaced."""
    return plan.max_silos_per_unit * (2 if plan.adjacency is Adjacency.REPLACE_ONE else 1)


def honest_shares(plan: PrivacyPlan) -> int:
    """How many shares the noise is divided by: h_dp, or 1 where one party adds all of it."""
    return max(plan.h_dp, 1)


def total_noise_std(plan: PrivacyPlan) -> float:
    """S: std of the honest noise of one release, in grid steps."""
    return grid.total_noise_std(plan.z, grid_sensitivity(plan))


def share_noise_std(plan: PrivacyPlan) -> float:
    """sigma_g: std of what one party adds, in grid steps (privacy.md 6.3).

    A silo's share in the ring, the coordinator's one draw in `central`, a silo's full noise in
    every step of `isrl`; the same for everyone and every cohort size.
    """
    return total_noise_std(plan) / math.sqrt(honest_shares(plan))


def update_z(plan: PrivacyPlan) -> float:
    """z_delta: std of the noise over the clip norm, which differs from z under adaptive clipping.

    The bit takes its part of the budget: z^-2 = z_delta^-2 + (2·sigma_b)^-2 (privacy.md 4.2).
    """
    if plan.adaptive is None:
        return plan.z
    bit = 1.0 / (2.0 * plan.adaptive.count_noise_std) ** 2
    return 1.0 / math.sqrt(1.0 / plan.z**2 - bit)


def bit_scale(plan: PrivacyPlan) -> float:
    """g/C, by which the centered bit is multiplied in a vector of norm 1: z_delta/sigma_b."""
    assert plan.adaptive is not None, "only an adaptive plan has a bit"
    return update_z(plan) / plan.adaptive.count_noise_std


def segment_scales(plan: PrivacyPlan) -> dict[str, float]:
    """What each segment is multiplied by before the one joint vector of norm C (4.3, 4.4)."""
    if plan.clipping is Clipping.FLAT:
        return {part.name: plan.clip / part.bound for part in plan.segments}
    return {
        part.name: 1.0 if part.z is None else plan.z * plan.clip / (part.z * part.bound)
        for part in plan.segments
    }


def round_event(plan: PrivacyPlan) -> Event:
    """What one round of the plan releases; its part of the reserve is booked with it."""
    reserve = RESERVE * plan.delta / plan.rounds
    if plan.noise is Noise.SKELLAM:
        d2 = grid_sensitivity(plan)
        return SkellamEvent(
            mu=(plan.z * d2) ** 2,
            d1=d2 * min(math.sqrt(plan.dimension), d2),
            d2=d2,
            delta_impl=reserve,
        )
    # In isrl each of K local steps is a release against everyone outside the silo.
    count = plan.local_steps if plan.mode is Mode.ISRL else 1
    if plan.participation is Participation.POISSON:
        return PoissonGaussianEvent(q=plan.q, z=plan.z, count=count, delta_impl=reserve)
    return GaussianEvent(z=plan.z, count=count, delta_impl=reserve)


def planned_events(plan: PrivacyPlan) -> tuple[Event, ...]:
    """All releases of the plan, round by round."""
    return (round_event(plan),) * plan.rounds


def delta_terms(plan: PrivacyPlan, *, epsilon: float) -> grid.DeltaTerms:
    """What rounding, ring noise and sampler cost in delta over the whole plan.

    Args:
        plan: the plan.
        epsilon: the largest epsilon at which delta will be read: the plan's own, or the limit of
            the account it is booked on.

    Raises:
        PlanError: they exceed the 1 % of delta that the plan reserves.
    """
    steps = plan.local_steps if plan.mode is Mode.ISRL else 1
    terms = grid.delta_terms(
        total_std=total_noise_std(plan),
        h_dp=honest_shares(plan),
        dimension=plan.dimension,
        releases=plan.rounds * steps,
        rounded=moved_vectors(plan),
        epsilon=epsilon,
    )
    if not terms.total <= RESERVE * plan.delta:
        raise PlanError(
            f"delta: integer noise costs {terms.total:.3g} at epsilon {epsilon:.4g}, expected at "
            f"most 1 % of {plan.delta!r}; double grid_bound, or choose a larger delta"
        )
    return terms


def _check_ranges(plan: PrivacyPlan) -> None:
    for name, kind in _ENUMS.items():
        if not isinstance(getattr(plan, name), kind):
            allowed = ", ".join(kind)
            raise PlanError(f"{name}: expected one of {allowed}, got {getattr(plan, name)!r}")
    for name in _REALS:
        value = getattr(plan, name)
        if name != "grid_bound" or value is not None:
            _require_positive(name, value)
            object.__setattr__(plan, name, float(value))  # 1 and 1.0 must be the same bytes
    for name in ("q", "max_weight"):
        if getattr(plan, name) > 1.0:
            raise PlanError(f"{name}: expected 0 < {name} <= 1, got {getattr(plan, name)!r}")
    for name, (least, most) in _COUNTS.items():
        value = getattr(plan, name)
        if name != "padding" or value is not None:
            _require_count(name, value, least, most)
    for name in _FLAGS:
        if not isinstance(getattr(plan, name), bool):
            raise PlanError(f"{name}: expected true or false")
    if plan.delta >= 1.0 / plan.cohort_size:
        raise PlanError(
            f"delta: expected less than one over the number of persons, so below "
            f"1/{plan.cohort_size} at least, got {plan.delta!r}"
        )


def _check_unit(plan: PrivacyPlan) -> None:
    allowed = _UNITS[plan.mode]
    if plan.unit not in allowed:
        raise PlanError(
            f"mode {plan.mode} protects the unit {' or '.join(sorted(allowed))}, got {plan.unit}"
        )
    if plan.unit is Unit.SILO:
        if plan.adjacency is Adjacency.ADD_REMOVE:
            raise PlanError(
                "a silo's adjacency is zero_out or replace_one: a removed silo would take its "
                "noise share along and give itself away by the variance"
            )
        if plan.max_units_per_silo != 1 or plan.max_silos_per_unit != 1:
            raise PlanError("unit silo: one unit a silo, one silo a unit; leave both maxima at 1")
    if plan.mode is Mode.FEDSGD and plan.local_steps != 1:
        raise PlanError(
            f"mode fedsgd needs local_steps = 1, got {plan.local_steps}: a silo's second step "
            "reads an iterate that only its own share protects, and joint noise then hides less than it "
            "claims (measured: epsilon 3.00 where 1.36 is booked, privacy.md 5.2); use isrl"
        )


def _check_sampling(plan: PrivacyPlan) -> None:
    poisson = plan.participation is Participation.POISSON
    if not poisson and plan.q < 1.0:
        raise PlanError(
            f"q = {plan.q!r} needs Poisson sampling in secret; participation {plan.participation} "
            "is booked as q = 1, a fixed or public choice amplifies nothing"
        )
    if not poisson:
        return
    if plan.q >= 1.0:
        raise PlanError("participation poisson needs q < 1; for q = 1 say participation all")
    if plan.unit is Unit.SILO:
        raise PlanError("q < 1 is refused for silos: the coordinator knows who takes part")
    if plan.adjacency is Adjacency.REPLACE_ONE:
        raise PlanError(
            "q < 1 is refused with replace_one: there is no RDP rule for it, and half the "
            "sensitivity is not one; use zero_out or add_remove"
        )
    if plan.max_silos_per_unit > 1:
        raise PlanError("max_silos_per_unit > 1 needs q = 1: a unit is sampled in each silo anew")
    if plan.noise is Noise.SKELLAM:
        raise PlanError("Skellam noise is accounted at q = 1 only; use gaussian")


def _check_noise_owner(plan: PrivacyPlan) -> None:
    if not plan.is_ring:
        if plan.h_dp or plan.n_c or plan.padding:
            raise PlanError(
                f"mode {plan.mode} divides no noise into shares: n_c, h_dp and padding are 0"
            )
        if plan.noise is Noise.SKELLAM:
            raise PlanError("Skellam noise is an option of the ring modes")
        return
    if plan.n_c < 1:
        raise PlanError("n_c: expected at least 1: each silo knows its own share and gets the sum")
    if plan.h_dp < 1:
        raise PlanError("h_dp: expected at least 1 honest share of the ring noise")
    if plan.n_c + plan.h_dp > plan.cohort_size:
        raise PlanError(
            f"n_c + h_dp = {plan.n_c + plan.h_dp} is the floor of survivors and exceeds "
            f"cohort_size = {plan.cohort_size}: no round could succeed"
        )


def _check_weights(plan: PrivacyPlan) -> None:
    if plan.weights is Weights.HIDDEN and plan.unit is not Unit.SILO:
        raise PlanError(
            "weights hidden need the unit silo: n_k changes with one patient; use uniform or "
            "declared"
        )
    if plan.strict and plan.unit is Unit.SILO:
        raise PlanError("strict rounds each unit by itself, which the unit silo does anyway")


def _check_segments(plan: PrivacyPlan) -> None:
    parts = plan.segments
    if not parts:
        if plan.clipping is Clipping.SEGMENTS:
            raise PlanError("clipping segments: expected segments, got none")
        return
    if len({part.name for part in parts}) != len(parts):
        raise PlanError("segments: expected distinct names")
    bit = 0 if plan.adaptive is None else 1
    total = sum(part.length for part in parts) + bit
    if total != plan.dimension:
        raise PlanError(f"segments: expected {plan.dimension} coordinates in all, got {total}")
    multipliers = [part.z for part in parts if part.z is not None]
    if plan.clipping is Clipping.FLAT:
        if multipliers:
            raise PlanError("clipping flat: one norm, so one z; leave out the segments' z")
        return
    if plan.adaptive is not None:
        raise PlanError("adaptive clipping moves one norm; use clipping flat")
    if not multipliers:
        joint = math.hypot(*(part.bound for part in parts))
        if abs(joint - plan.clip) > _SAME * joint:
            raise PlanError(
                f"clip: segments clipped by themselves have joint sensitivity {joint!r} "
                f"(root of the sum of squares), got clip {plan.clip!r}"
            )
        return
    if len(multipliers) != len(parts):
        raise PlanError("segments: give a z to all of them or to none")
    joint_z = 1.0 / math.hypot(*(1.0 / z for z in multipliers))
    if abs(joint_z - plan.z) > _SAME * joint_z:
        raise PlanError(f"z: the segments' multipliers compose to {joint_z!r}, got {plan.z!r}")


def _check_adaptive(plan: PrivacyPlan) -> None:
    if plan.adaptive is None:
        return
    sigma_b = plan.adaptive.count_noise_std
    if plan.mode is Mode.ISRL:
        raise PlanError("adaptive clipping is refused in isrl: the bit would be a release a step")
    if not plan.adaptive.clip_min <= plan.clip <= plan.adaptive.clip_max:
        raise PlanError("clip: expected the first clip norm within adaptive.clip_min..clip_max")
    if plan.z >= 2.0 * sigma_b:
        raise InfeasibleError(
            f"adaptive clipping needs z < 2·sigma_b, got z = {plan.z!r}, sigma_b = {sigma_b!r}, "
            f"n = {plan.cohort_size}: the bit alone would spend more than the budget"
        )
    counted = plan.cohort_size if plan.unit is Unit.SILO else plan.denominator
    if plan.unit is not Unit.PATIENT and counted < _ADAPTIVE_UNITS:
        raise InfeasibleError(
            f"adaptive clipping counts at least {_ADAPTIVE_UNITS} units, got n = {counted:g} with "
            f"z = {plan.z!r}, sigma_b = {sigma_b!r}: the noisy share would have std "
            f"{sigma_b / counted:.2f}; fix C on public data or by a charged query"
        )


def _check_grid(plan: PrivacyPlan) -> None:
    share = share_noise_std(plan)
    if share < grid.MIN_SHARE_STD:
        raise PlanError(
            f"a noise share of std {share:.3g} grid steps is too coarse, expected at least "
            f"{grid.MIN_SHARE_STD:g}; raise grid_bound"
        )
    if plan.mode is Mode.ISRL:
        return  # the noise never meets the ring: only noised deltas are summed
    noise = share if plan.is_ring else 0.0
    silo = plan.max_units_per_silo * bound_on_grid(plan) + 1.0 + _REACH_STDS * noise
    if plan.cohort_size * silo >= RING_EDGE:
        raise PlanError(
            f"{plan.cohort_size} silos of {plan.max_units_per_silo} units at grid_bound "
            f"{bound_on_grid(plan):g} reach beyond the 32-bit ring; lower grid_bound or "
            "max_units_per_silo"
        )


def _check_utility(plan: PrivacyPlan) -> None:
    if plan.unit is not Unit.SILO or plan.allow_low_utility:
        return
    noise = noise_on_mean(plan) / plan.clip
    if noise > _USELESS_NOISE:
        raise PlanError(
            f"the noise on the mean has norm {noise:.1f}·clip, where the signal has at most 1: "
            f"the unit silo suits about 100 coordinates, this plan has {plan.dimension}; protect "
            "records or patients, or say allow_low_utility"
        )


def noise_on_mean(plan: PrivacyPlan) -> float:
    """Expected L2 norm of a round's noise after the division by W, all n silos surviving.

    In parameter units. In the ring each of n silos adds a share; in `isrl` each of n silos adds
    K steps of full noise.
    """
    parties = plan.cohort_size if plan.mode is not Mode.CENTRAL else 1
    steps = plan.local_steps if plan.mode is Mode.ISRL else 1
    coordinate = share_noise_std(plan) / steps_per_unit(plan) * math.sqrt(parties * steps)
    return coordinate * math.sqrt(plan.dimension) / plan.denominator


def _require_positive(name: str, value: object) -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    if not ok or not (0.0 < value < math.inf):  # type: ignore[operator] # a number, checked before; NaN fails
        raise PlanError(f"{name}: expected a finite number above 0, got {value!r}")


def _require_count(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise PlanError(f"{name}: expected a whole number from {least} to {most}, got {value!r}")


def _scalar(value: object) -> Json:
    return decimal(value) if isinstance(value, float) else value  # type: ignore[return-value] # enums are str


def _flat(part: Segment | AdaptiveClip) -> dict[str, Json]:
    return {item.name: _scalar(getattr(part, item.name)) for item in fields(part)}


def _read_real(name: str, value: object) -> float:
    return parse_decimal(value, name)


def _read_exact(_name: str, value: object) -> object:
    return value  # an int, a bool: the plan's own checks look at the type


def _read_enum(kind: type[StrEnum]) -> Callable[[str, object], StrEnum]:
    def read(name: str, value: object) -> StrEnum:
        if not isinstance(value, str) or value not in set(kind):
            raise PlanError(f"{name}: expected one of {', '.join(kind)}")
        return kind(value)

    return read


def _read_segments(name: str, value: object) -> tuple[Segment, ...]:
    if not isinstance(value, list):
        raise PlanError(f"{name}: expected a list")
    exact = frozenset({"name", "length"})
    return tuple(_read_part(name, Segment, item, exact) for item in value)


def _read_adaptive(name: str, value: object) -> AdaptiveClip | None:
    return None if value is None else _read_part(name, AdaptiveClip, value, frozenset())


def _read_part(name: str, kind: type[_P], value: object, exact: frozenset[str]) -> _P:
    names = {item.name for item in fields(kind)}
    if not isinstance(value, dict) or set(value) != names:
        raise PlanError(f"{name}: expected exactly the fields {', '.join(sorted(names))}")
    return kind(
        **{
            key: item if key in exact or item is None else parse_decimal(item, f"{name}.{key}")
            for key, item in value.items()
        }
    )


_UNITS: Final[Mapping[Mode, frozenset[Unit]]] = {
    Mode.CENTRAL: frozenset({Unit.SILO}),
    Mode.SILO: frozenset({Unit.SILO}),
    Mode.FEDSGD: frozenset({Unit.RECORD, Unit.PATIENT}),
    Mode.PATIENT: frozenset({Unit.PATIENT}),
    Mode.ISRL: frozenset({Unit.RECORD, Unit.PATIENT}),
}
_ENUMS: Final[Mapping[str, type[StrEnum]]] = {
    "unit": Unit,
    "adjacency": Adjacency,
    "mode": Mode,
    "participation": Participation,
    "weights": Weights,
    "clipping": Clipping,
    "noise": Noise,
}
_REALS: Final = ("clip", "z", "delta", "denominator", "q", "max_weight", "grid_bound")
_COUNTS: Final[Mapping[str, tuple[int, int]]] = {
    "rounds": (1, _MAX_ROUNDS),
    "dimension": (1, _MAX_DIMENSION),
    "cohort_size": (1, _MAX_SILOS),
    "local_steps": (1, _MAX_ROUNDS),
    "n_c": (0, _MAX_SILOS),
    "h_dp": (0, _MAX_SILOS),
    "max_units_per_silo": (1, _MAX_UNITS),
    "max_silos_per_unit": (1, _MAX_SILOS),
    "padding": (0, _MAX_DIMENSION),
}
_FLAGS: Final = ("strict", "allow_low_utility")
_FIELDS: Final = tuple(item.name for item in fields(PrivacyPlan))
_READERS: Final[Mapping[str, Callable[[str, object], object]]] = {
    **{name: _read_enum(kind) for name, kind in _ENUMS.items()},
    **dict.fromkeys(_REALS, _read_real),
    **dict.fromkeys((*_COUNTS, *_FLAGS), _read_exact),
    "segments": _read_segments,
    "adaptive": _read_adaptive,
}

"""The privacy plan: one frozen document that says what is protected, how, and by how much noise.

Its canonical bytes are in every round's ctx, so silos refuse a changed plan; its digest names it in
the ledger. An invalid plan cannot exist: what privacy.md refuses is refused here, with the reason.
Adjacency has no default, and z is the only noise parameter: everything that multiplies a unit's
influence (adjacency, weights, several silos, the clip bit) is inside `sensitivity`. This module is
the face of the plan's parts, whose words, formulas and refusals have modules of their own.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, Self, TypeVar, cast

from dp import grid
from dp.canonical import Json, canonical_json, decimal, parse_canonical, parse_decimal
from dp.errors import PlanError
from dp.refusals import CHECKS, COUNTS, ENUMS, FLAGS, REALS, RING_EDGE, check_ranges
from dp.sensitivity import (
    RESERVE,
    bit_scale,
    bound_on_grid,
    counted_units,
    delta_terms,
    event_of,
    grid_sensitivity,
    honest_shares,
    metric_noise,
    metric_scale,
    moved_vectors,
    noise_on_mean,
    releases_per_round,
    rides_along,
    round_event,
    segment_scales,
    sensitivity,
    share_noise_std,
    steps_per_unit,
    total_noise_std,
    trained_coordinates,
    update_z,
)
from dp.terms import (
    RING_MODES,
    AdaptiveClip,
    Adjacency,
    Clipping,
    MetricRelease,
    Mode,
    Noise,
    Participation,
    Segment,
    Unit,
    Weights,
)

__all__ = [
    "PLAN_VERSION",
    "RESERVE",
    "RING_EDGE",
    "RING_MODES",
    "AdaptiveClip",
    "Adjacency",
    "Clipping",
    "MetricRelease",
    "Mode",
    "Noise",
    "Participation",
    "PrivacyPlan",
    "Segment",
    "Unit",
    "Weights",
    "bit_scale",
    "bound_on_grid",
    "counted_units",
    "delta_terms",
    "event_of",
    "grid_sensitivity",
    "honest_shares",
    "metric_noise",
    "metric_scale",
    "moved_vectors",
    "noise_on_mean",
    "releases_per_round",
    "rides_along",
    "round_event",
    "segment_scales",
    "sensitivity",
    "share_noise_std",
    "steps_per_unit",
    "total_noise_std",
    "trained_coordinates",
    "update_z",
]

PLAN_VERSION: Final = 2

_PADDING: Final = 1024

_P = TypeVar("_P", Segment, AdaptiveClip, MetricRelease)


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
        dimension: noised coordinates, with clip bit and metrics, without padding.
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
        metrics: loss and right predictions in each round's release, or None.
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
    metrics: MetricRelease | None = None
    grid_bound: float | None = None
    noise: Noise = Noise.GAUSSIAN
    padding: int | None = None
    strict: bool = False
    allow_low_utility: bool = False

    def __post_init__(self) -> None:
        """Fill in what has a rule, then refuse whatever privacy.md refuses."""
        check_ranges(self)
        if self.grid_bound is None:
            steps = grid.default_steps_per_unit(self.clip, self.dimension)
            object.__setattr__(self, "grid_bound", self.clip * steps)
        if self.padding is None:
            object.__setattr__(self, "padding", _PADDING if self.is_ring else 0)
        for check in CHECKS:
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
            elif name in {"adaptive", "metrics"}:
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


def _scalar(value: object) -> Json:
    return decimal(value) if isinstance(value, float) else value  # type: ignore[return-value] # enums are str


def _flat(part: Segment | AdaptiveClip | MetricRelease) -> dict[str, Json]:
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


def _read_metrics(name: str, value: object) -> MetricRelease | None:
    return None if value is None else _read_part(name, MetricRelease, value, frozenset())


def _read_part(name: str, kind: type[_P], value: object, exact: frozenset[str]) -> _P:
    names = {item.name for item in fields(kind)}
    if not isinstance(value, dict) or set(value) != names:
        raise PlanError(f"{name}: expected exactly the fields {', '.join(sorted(names))}")
    parts = {
        key: item if key in exact or item is None else parse_decimal(item, f"{name}.{key}")
        for key, item in value.items()
    }
    return kind(**cast("dict[str, Any]", parts))  # the part's own checks look at the types


_FIELDS: Final = tuple(item.name for item in fields(PrivacyPlan))
_READERS: Final[Mapping[str, Callable[[str, object], object]]] = {
    **{name: _read_enum(kind) for name, kind in ENUMS.items()},
    **dict.fromkeys(REALS, _read_real),
    **dict.fromkeys((*COUNTS, *FLAGS), _read_exact),
    "segments": _read_segments,
    "adaptive": _read_adaptive,
    "metrics": _read_metrics,
}

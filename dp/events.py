"""A privacy event is frozen data that says what was released; accountants read nothing else.

z is always the standard deviation of the total noise over the sensitivity of one unit under the
declared adjacency (privacy.md, head): adjacency, weights, groups and multiplicity are inside the
sensitivity, so no accountant has a factor of its own. The limits z = 0, q = 0 and count = 0 are
events too; a plan refuses them, an accountant knows what they mean.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from dp.canonical import Json, decimal, parse_decimal
from dp.errors import PlanError, UnsupportedEventError

MAX_COUNT: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianEvent:
    """Noised sums in which every unit takes part.

    Attributes:
        z: noise multiplier, dimensionless, at least 0.
        count: how many such releases, one after the other.
        delta_impl: what all of them together take from delta for rounding, ring noise and
            sampler (privacy.md 6.1).
    """

    z: float
    count: int = 1
    delta_impl: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that no release can have."""
        _require(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonGaussianEvent:
    """Noised sums over units that were each sampled in secret with probability q.

    Attributes:
        q: sampling rate, from 0 to 1.
        z: as in `GaussianEvent`.
        count: as in `GaussianEvent`.
        delta_impl: as in `GaussianEvent`.
    """

    q: float
    z: float
    count: int = 1
    delta_impl: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that no release can have."""
        _require(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkellamEvent:
    """Sums with Skellam noise, every unit in them.

    Attributes:
        mu: total variance, in grid steps squared.
        d1: L1 sensitivity, in grid steps.
        d2: L2 sensitivity, in grid steps.
        count: as in `GaussianEvent`.
        delta_impl: as in `GaussianEvent`.
    """

    mu: float
    d1: float
    d2: float
    count: int = 1
    delta_impl: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that no release can have."""
        _require(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class NonPrivateEvent:
    """A release without a guarantee: an exact sum, or noise from a test generator."""

    count: int = 1
    delta_impl: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that no release can have."""
        _require(self)


Event: TypeAlias = GaussianEvent | PoissonGaussianEvent | SkellamEvent | NonPrivateEvent

_TYPES: Final[Mapping[str, type[Event]]] = {
    "gaussian": GaussianEvent,
    "poisson_gaussian": PoissonGaussianEvent,
    "skellam": SkellamEvent,
    "non_private": NonPrivateEvent,
}
# Each real number of an event, and the largest value it may take.
_REALS: Final[Mapping[type[Event], tuple[str, ...]]] = {
    GaussianEvent: ("z",),
    PoissonGaussianEvent: ("q", "z"),
    SkellamEvent: ("mu", "d1", "d2"),
    NonPrivateEvent: (),
}


def event_to_json(event: Event) -> dict[str, Json]:
    """Write an event for the ledger: real numbers as decimal strings."""
    name = next(name for name, kind in _TYPES.items() if isinstance(event, kind))
    reals = {field: decimal(getattr(event, field)) for field in _REALS[type(event)]}
    return {
        "type": name,
        **reals,
        "count": event.count,
        "delta_impl": decimal(event.delta_impl),
    }


def event_from_json(data: object) -> Event:
    """Read an event of the ledger.

    Raises:
        UnsupportedEventError: an unknown type, an unknown or a missing field: what cannot be
            read cannot be accounted for.
        PlanError: a value out of range.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("type"), str):
        raise UnsupportedEventError("expected an object with a type")
    kind = _TYPES.get(data["type"])
    if kind is None:
        raise UnsupportedEventError(f"unknown event type {data['type']!r}")
    reals = (*_REALS[kind], "delta_impl")
    if set(data) != {"type", "count", *reals}:
        raise UnsupportedEventError(f"{data['type']}: expected exactly the fields of this type")
    count = data["count"]
    if type(count) is not int:
        raise PlanError("count: expected a whole number")
    return kind(count=count, **{name: parse_decimal(data[name], name) for name in reals})


def _require(event: Event) -> None:
    """Check every field; NaN fails the comparison, which is why it is written that way round."""
    for name in (*_REALS[type(event)], "delta_impl"):
        value = getattr(event, name)
        limit = 1.0 if name in {"q", "delta_impl"} else math.inf
        if not (0.0 <= value <= limit and math.isfinite(value)):
            bounds = "from 0 to 1" if limit == 1.0 else "finite and at least 0"
            raise PlanError(f"{name}: expected a number {bounds}, got {value!r}")
    if not 0 <= event.count <= MAX_COUNT:
        raise PlanError(f"count: expected 0 to {MAX_COUNT}, got {event.count!r}")

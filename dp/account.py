"""An account is what one data set may spend; an intent is what a release would spend of it.

Unit and adjacency belong to the account and are no part of its key: with one account a relation the
same data would be spent twice. A plan in another relation is converted where a rule exists, and
refused otherwise (privacy.md 7.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, Self

from dp.canonical import Json, decimal, parse_decimal
from dp.errors import PlanError
from dp.events import (
    MAX_COUNT,
    Event,
    GaussianEvent,
    NonPrivateEvent,
)
from dp.filters import Filter, FilterKind
from dp.plan import Adjacency, PrivacyPlan, Unit, round_event
from dp.terms import require_count, require_positive
from dp.trust import local_event

_LIMITS: Final = ("epsilon", "local_epsilon", "run_epsilon", "year_epsilon")
# Zero-out and add-remove have the same Gaussian numbers (privacy.md 2).
_ONE_SIDED: Final = frozenset({Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What BUDGET_SET says.

    Attributes:
        data_set: its name in the silo; in a run ledger, the run's.
        unit: whose participation is hidden.
        adjacency: what makes two data sets neighbors.
        filter: how what was spent is read, at which delta.
        epsilon: limit on the enforced line, over all runs and purposes.
        local_epsilon: limit on the line that holds if secure aggregation fails, or None.
        run_epsilon: limit for each run, or None.
        year_epsilon: limit for each calendar year, or None.
        records_per_unit: k, the most records one patient has; converts record plans.
    """

    data_set: str
    unit: Unit
    adjacency: Adjacency
    filter: Filter
    epsilon: float
    local_epsilon: float | None = None
    run_epsilon: float | None = None
    year_epsilon: float | None = None
    records_per_unit: int = 1

    def __post_init__(self) -> None:
        """Refuse a limit that limits nothing."""
        if not self.data_set:
            raise PlanError("data_set: expected a name")
        for name in _LIMITS:
            value = getattr(self, name)
            if name == "epsilon" or value is not None:
                require_positive(name, value)
        require_count("records_per_unit", self.records_per_unit, 1, MAX_COUNT)

    def to_body(self) -> dict[str, Json]:
        """The body of BUDGET_SET."""
        limits = {name: getattr(self, name) for name in _LIMITS}
        return {
            "data_set": self.data_set,
            "unit": self.unit.value,
            "adjacency": self.adjacency.value,
            "filter": self.filter.kind.value,
            "delta": decimal(self.filter.delta),
            "order": self.filter.order,
            "records_per_unit": self.records_per_unit,
            **{name: None if x is None else decimal(x) for name, x in limits.items()},
        }

    @classmethod
    def from_body(cls, body: Mapping[str, Json]) -> Self:
        """Read a BUDGET_SET.

        Raises:
            PlanError: not a body of BUDGET_SET.
        """
        names = {item.name for item in fields(cls)} | {"delta", "order"}
        if set(body) != names:
            raise PlanError("expected exactly the fields of BUDGET_SET")
        order, kind = body["order"], body["filter"]
        if kind not in list(FilterKind) or not (order is None or type(order) is int):
            raise PlanError("filter: expected gdp, or rdp with an order")
        rule = Filter(
            kind=FilterKind(kind), delta=parse_decimal(body["delta"], "delta"), order=order
        )
        limits = {
            name: None if body[name] is None else parse_decimal(body[name], name)
            for name in _LIMITS
        }
        unit, adjacency = body["unit"], body["adjacency"]
        if unit not in list(Unit) or adjacency not in list(Adjacency):
            raise PlanError("expected a unit and an adjacency")
        return cls(
            data_set=_read_name(body["data_set"]),
            unit=Unit(unit),
            adjacency=Adjacency(adjacency),
            filter=rule,
            records_per_unit=body["records_per_unit"],  # type: ignore[arg-type] # checked in __post_init__
            **limits,  # type: ignore[arg-type] # epsilon is checked in __post_init__
        )

    def succeeds(self, before: Self) -> bool:
        """Whether it only moves the limits of an account: nothing that was spent is forgotten."""
        return replace(self, **{name: getattr(before, name) for name in _LIMITS}) == before


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A release that is about to be made.

    Attributes:
        run_id: of which run, in hex.
        round: its number.
        attempt: which try of it; a retry redraws its noise and is charged anew.
        purpose: "training", "statistics", "metrics" or "audit": all draw on one budget.
        plan_digest: of the privacy plan, in hex.
        unit: the plan's.
        adjacency: the plan's.
        event: what it releases, under the plan's relation.
        local: the same as it counts when secure aggregation fails.
    """

    run_id: str
    round: int
    attempt: int
    purpose: str
    plan_digest: str
    unit: Unit
    adjacency: Adjacency
    event: Event
    local: Event


def intent_for(
    plan: PrivacyPlan,
    *,
    run_id: str,
    round_number: int,
    attempt: int = 0,
    purpose: str = "training",
    epsilon: float,
) -> Intent:
    """What a round of a plan is about to release.

    Args:
        plan: the privacy plan.
        run_id: of which run, in hex.
        round_number: its number.
        attempt: which try of it.
        purpose: what for.
        epsilon: the limit of the account it will be booked on (`round_event`).

    Raises:
        PlanError: integers cost more than the plan's reserve of delta.
    """
    event = round_event(plan, epsilon=epsilon)
    return Intent(
        run_id=run_id,
        round=round_number,
        attempt=attempt,
        purpose=purpose,
        plan_digest=plan.digest.hex(),
        unit=plan.unit,
        adjacency=plan.adjacency,
        event=event,
        local=local_event(plan, event),
    )


def booked(account: Account, intent: Intent, event: Event) -> Event:
    """An event of the intent under the account's relation.

    Raises:
        PlanError: there is no rule for the conversion.
    """
    divisor = _unit_divisor(account, intent)
    if account.adjacency is Adjacency.REPLACE_ONE and intent.adjacency in _ONE_SIDED:
        divisor *= 2
    # The other way round nothing is converted: a sensitivity under replace-one bounds zero-out.
    if divisor == 1 or isinstance(event, NonPrivateEvent):
        return event
    if not isinstance(event, GaussianEvent):
        raise PlanError(
            f"a {intent.unit}, {intent.adjacency} plan can be booked on a {account.unit}, "
            f"{account.adjacency} account only at q = 1 with Gaussian noise"
        )
    return replace(event, z=event.z / divisor)


def check_delta(delta: float, persons: int) -> str | None:
    """Refuse a delta that would allow one person's data to be published outright.

    Args:
        delta: of an account or a plan.
        persons: N, behind the data, whatever the unit; stays inside the silo, so no message
            names it.

    Returns:
        a warning, or None.

    Raises:
        PlanError: delta is not below 1/N.
    """
    if persons < 1:
        raise PlanError("persons: expected at least one")
    if not delta < 1.0 / persons:
        raise PlanError(
            f"delta {delta!r} is not below one over the number of persons behind this data set"
        )
    if delta > 1.0 / (10.0 * persons):
        return f"delta {delta!r} is above a tenth of one over the number of persons"
    return None


def _read_name(value: Json) -> str:
    if not isinstance(value, str):
        raise PlanError("data_set: expected a name")
    return value


def _unit_divisor(account: Account, intent: Intent) -> int:
    if account.unit is intent.unit:
        return 1
    if account.unit is Unit.PATIENT and intent.unit is Unit.RECORD:
        return account.records_per_unit
    raise PlanError(
        f"the account protects the unit {account.unit}, the plan the unit {intent.unit}; there is "
        "no rule that converts one into the other"
    )

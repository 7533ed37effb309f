"""A privacy filter says when to stop, and stays valid when each round depends on the ones before.

`gdp` sums 1/z² of releases in which every unit takes part; `rdp` sums the divergence at one whole
order that was fixed before the first release. Choosing the best order, or a composed curve, after
the fact is not valid for adaptive choices (privacy.md 7.2).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dp.accountant import rdp_curve
from dp.closed_form import gaussian_epsilon
from dp.errors import PlanError, UnsupportedEventError
from dp.events import Event, GaussianEvent, NonPrivateEvent, PoissonGaussianEvent
from dp.plan import RESERVE
from dp.renyi import ORDERS, epsilon_at

_WHOLE_ORDERS: Final = frozenset(int(order) for order in ORDERS if order.is_integer())


class FilterKind(StrEnum):
    """What is summed."""

    GDP = "gdp"
    RDP = "rdp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The rule by which an account is read.

    Attributes:
        kind: what is summed.
        delta: of the account; 1 % of it is kept for integers, epsilon is read at the rest.
        order: the fixed whole Rényi order under `rdp`, None under `gdp`.
    """

    kind: FilterKind
    delta: float
    order: int | None = None

    def __post_init__(self) -> None:
        """Refuse a rule that is none."""
        if not 0.0 < self.delta < 1.0:
            raise PlanError(f"delta: expected 0 < delta < 1, got {self.delta!r}")
        if self.kind is FilterKind.GDP and self.order is not None:
            raise PlanError("filter gdp has no order")
        if self.kind is FilterKind.RDP and self.order not in _WHOLE_ORDERS:
            raise PlanError("filter rdp needs one whole order, as best_order chooses it")

    def epsilon(self, events: Iterable[Event]) -> float:
        """What has been spent, from 0 to infinity.

        Raises:
            UnsupportedEventError: the filter cannot sum one of the events.
        """
        active = [event for event in events if event.count]
        if any(isinstance(event, NonPrivateEvent) for event in active):
            return math.inf
        if math.fsum(event.delta_impl for event in active) > RESERVE * self.delta:
            return math.inf
        left = self.delta * (1.0 - RESERVE)
        if self.kind is FilterKind.GDP:
            mu = math.sqrt(math.fsum(_gdp_cost(event) for event in active))
            if math.isinf(mu):
                return math.inf
            return gaussian_epsilon(mu, left) if mu else 0.0
        assert self.order is not None, "checked in __post_init__"
        order = float(self.order)
        spent = math.fsum(rdp_curve([event], [order])[0] for event in active)
        return epsilon_at(order, spent, left) if spent else 0.0


def _gdp_cost(event: Event) -> float:
    """1/z² of all releases of the event."""
    if isinstance(event, PoissonGaussianEvent) and event.q in {0.0, 1.0}:
        event = GaussianEvent(z=event.z, count=event.count * int(event.q))
    if not isinstance(event, GaussianEvent):
        raise UnsupportedEventError(
            f"filter gdp cannot sum {type(event).__name__}; the account needs the filter rdp"
        )
    if not event.count:
        return 0.0
    return event.count / event.z**2 if event.z else math.inf

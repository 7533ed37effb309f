"""The formulas of privacy.md, written a second time for the offline verifier.

Nothing here is imported from what wrote the ledger. What composes Poisson-sampled releases is asked
of a second accountant, behind a protocol; the rest is a page of arithmetic.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Protocol

from dp.offline import Object, protocol_fields

# Part of delta kept for rounding, ring noise and sampler.
RESERVE: Final = 0.01

_CLOSE: Final = 1e-6
_BETA: Final = 2.0**-40
_WHOLE_ORDERS: Final = (*range(2, 64), 128, 256, 512, 1024)
_DECIMAL: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")


class UnreadableError(Exception):
    """A body that cannot be read: the entry fails, closed."""


class SecondAccountant(Protocol):
    """What is left to a library."""

    def gaussian_epsilon(self, mu: float, delta: float) -> float:
        """ε(δ) of a Gaussian mechanism with sensitivity over std mu."""
        ...

    def poisson_rdp(self, q: float, z: float, order: int) -> float:
        """One Poisson-sampled release at one whole order."""
        ...

    def poisson_bounds(self, q: float, z: float, count: int, delta: float) -> tuple[float, float]:
        """What a right epsilon of many such releases lies between."""
        ...


@dataclass(frozen=True, slots=True)
class Event:
    """A release."""

    kind: str
    z: float = 0.0
    q: float = 1.0
    mu: float = 0.0
    d1: float = 0.0
    d2: float = 0.0
    count: int = 1
    delta_impl: float = 0.0


_REALS: Final = {
    "gaussian": ("z",),
    "poisson_gaussian": ("q", "z"),
    "skellam": ("mu", "d1", "d2"),
    "non_private": (),
}


def number(text: object) -> float:
    """A decimal string as a number, at least 0.

    Raises:
        UnreadableError: it is none.
    """
    if not isinstance(text, str) or not _DECIMAL.fullmatch(text) or float(text) < 0.0:
        raise UnreadableError("expected a decimal string")
    return float(text)


def read_event(data: object) -> Event:
    """Read an event.

    Raises:
        UnreadableError: an unknown type, other fields or values out of range.
    """
    kind = data.get("type") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(kind, str) or kind not in _REALS:
        raise UnreadableError("unknown type of event")
    names = (*_REALS[kind], "delta_impl")
    if set(data) != {"type", "count", *names} or type(data["count"]) is not int:
        raise UnreadableError("other fields than its type of event has")
    event = Event(kind, count=data["count"], **{name: number(data[name]) for name in names})
    if event.count < 0 or event.q > 1.0:
        raise UnreadableError("an event out of range")
    return event


def grid_sensitivity(plan: Object) -> float:
    """D2 of a plan, in grid steps (privacy.md 6.1)."""
    d = int(plan["dimension"])
    # Only a silo's whole vector is weighted before the noise.
    weight = number(plan["max_weight"]) if plan["unit"] == "silo" else 1.0
    norm = number(plan["grid_bound"]) * weight * (1.0 + 2.0**-20)
    # Clip bit and metrics take their parts of z^-2, and make the vector so much longer (4.2, 4.5).
    aside = 0.0
    if plan["adaptive"] is not None:
        aside += (2.0 * number(plan["adaptive"]["count_noise_std"])) ** -2
    if plan.get("metrics") is not None and plan["mode"] != "isrl":
        aside += number(plan["metrics"]["z"]) ** -2
    z_delta_squared = 1.0 / (number(plan["z"]) ** -2 - aside)
    norm *= math.sqrt(1.0 + z_delta_squared * aside)
    root = math.sqrt(2.0 * math.log(1.0 / _BETA))
    likely = norm * norm + d / 4.0 + root * (norm + math.sqrt(d) / 2.0)
    moved = math.sqrt(min((norm + math.sqrt(d)) ** 2, likely))
    units = int(plan["max_units_per_silo"])
    if units > 1 and not plan["strict"]:
        moved += 2.0 * math.sqrt(d) * units * units * norm * 2.0**-53
    return moved * float(_vectors(plan))


def _vectors(plan: Object) -> int:
    """How many clipped vectors one unit moves."""
    return int(plan["max_silos_per_unit"]) * (2 if plan["adjacency"] == "replace_one" else 1)


def per_round(plan: Object) -> int:
    """Releases in a round: in isrl every local step is one, and metrics are one more."""
    steps = plan["local_steps"] if plan["mode"] == "isrl" else 1
    if type(steps) is not int or steps < 1:
        raise UnreadableError("local_steps")
    return steps + (plan["mode"] == "isrl" and plan.get("metrics") is not None)


def plan_event(plan: Object, d2: float, z: float, rounds: int | None = None) -> Event:
    """What `rounds` rounds of a plan release; all of them if not given."""
    count = (plan["rounds"] if rounds is None else rounds) * per_round(plan)
    if plan["noise"] == "skellam":
        d1 = d2 * min(math.sqrt(plan["dimension"]), d2)
        return Event("skellam", mu=(z * d2) ** 2, d1=d1, d2=d2, count=count)
    if plan["participation"] == "poisson":
        return Event("poisson_gaussian", z=z, q=number(plan["q"]), count=count)
    return Event("gaussian", z=z, count=count)


def integer_cost(plan: Object, d2: float, epsilon: float) -> float:
    """What rounding, ring noise and sampler cost of delta in one round (privacy.md 6.1)."""
    d, shares = int(plan["dimension"]), max(int(plan["h_dp"]), 1)
    total = math.sqrt((number(plan["z"]) * d2) ** 2 + 1.0 / 12.0)
    share = total / math.sqrt(shares)
    tau = 10.0 * sum(
        math.exp(-2.0 * math.pi**2 * share**2 * k / (k + 1.0)) for k in range(1, shares)
    )
    distance = 8.6e-4 * math.sqrt(d) / total**4 + tau * d
    sampler = d * shares * 56.0 * min(share, 2.0**14) * 2.0**-128
    factor = 1.0 + math.exp(min(epsilon, 700.0))
    return float(per_round(plan)) * (factor * (distance + sampler) + _vectors(plan) * _BETA)


def abandons(message: bytes, charge: Object) -> bool:
    """Whether a statement of the protocol abandons the attempt of a charge's entry."""
    fields = protocol_fields(message)
    if len(fields) != 6 or fields[0] != b"SA1/abandon":
        return False
    _, _, run, round_number, attempt, _ = fields
    return (run.hex(), int.from_bytes(round_number), int.from_bytes(attempt)) == (
        charge["run_id"],
        charge["body"]["round"],
        charge["body"]["attempt"],
    )


@dataclass(slots=True)
class Tally:
    """Events by kind and parameters, and what their integers take from delta."""

    counts: Counter[Event] = field(default_factory=Counter)
    integers: float = 0.0

    def add(self, event: Event, sign: int = 1) -> None:
        """Count an event, or with -1 take it out again."""
        self.integers += sign * event.delta_impl
        one = replace(event, count=1, delta_impl=0.0)
        self.counts[one] += sign * event.count
        if not self.counts[one]:
            del self.counts[one]


class Recount:
    """What was spent, computed again."""

    def __init__(self, accountant: SecondAccountant) -> None:
        """Compose with this library where a formula does not do."""
        self._accountant = accountant
        self._poisson_rdp = lru_cache(maxsize=None)(accountant.poisson_rdp)

    def closed(self, mu_squared: float, delta: float) -> float:
        """Exact epsilon where every unit takes part, from the sum of 1/z²."""
        if mu_squared == 0.0:
            return 0.0
        return self._accountant.gaussian_epsilon(math.sqrt(mu_squared), delta)

    def filter_epsilon(self, account: Object, tally: "Tally") -> float:
        """What an account has spent, by its own filter."""
        delta, counts = number(account["delta"]), tally.counts
        if tally.integers > RESERVE * delta or any(one.kind == "non_private" for one in counts):
            return math.inf
        left = delta * (1.0 - RESERVE)
        if account["filter"] == "gdp":
            if any(one.kind != "gaussian" for one in counts):
                raise UnreadableError("the filter gdp sums q = 1 Gaussian events only")
            return self.closed(sum(n / one.z**2 for one, n in counts.items()), left)
        order = account["order"]
        spent = sum(n * self._rdp(one, order) for one, n in counts.items())
        return _epsilon(order, spent, left) if spent else 0.0

    def plan_bounds(self, event: Event, delta: float) -> tuple[float, float]:
        """What a right epsilon of a whole plan lies between."""
        if event.kind == "poisson_gaussian":
            return self._accountant.poisson_bounds(event.q, event.z, event.count, delta)
        if event.kind == "gaussian":
            exact = self.closed(event.count / event.z**2, delta)
        else:
            one = replace(event, count=1)
            exact = min(
                _epsilon(order, event.count * self._rdp(one, order), delta)
                for order in _WHOLE_ORDERS
            )
        return exact * (1.0 - _CLOSE), exact * (1.0 + _CLOSE)

    def _rdp(self, event: Event, order: int) -> float:
        """One release at one whole order."""
        if event.kind == "gaussian":
            return order / (2.0 * event.z**2)
        if event.kind == "poisson_gaussian":
            return self._poisson_rdp(event.q, event.z, order)
        mu, d1, d2 = event.mu, event.d1, event.d2
        close = ((2.0 * order - 1.0) * d2**2 + 6.0 * d1) / (4.0 * mu**2)
        return order * d2**2 / (2.0 * mu) + min(close, 1.5 * d1 / mu)


def _epsilon(order: int, rdp: float, delta: float) -> float:
    """Canonne, Kamath, Steinke 2020, proposition 12."""
    price = (math.log(1.0 / delta) - math.log(order)) / (order - 1.0)
    return max(0.0, rdp + price + math.log(1.0 - 1.0 / order))

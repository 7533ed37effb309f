"""Which of the available silos a round invites: all, a uniform sample, or fixed cohorts in turn.

Chosen from the plan's seed and the round's number, so that a restarted coordinator and a retried
attempt invite the same silos. Fixed cohorts are to be preferred where inputs hardly change from
round to round: two sums over sets that differ by one silo differ by that silo (protocol.md 2.4).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from fl import fields
from fl.errors import PlanError
from fl.plugins import Group, find
from fl.seeding import generator

_BUILTIN = ("all", "uniform", "fixed")


class CohortSampler(Protocol):
    """Chooses the silos of a round."""

    def choose(
        self, available: tuple[int, ...], enrolled: tuple[int, ...], seed: int, number: int
    ) -> tuple[int, ...]:
        """Return the seats to invite, a subset of `available`.

        Args:
            available: seats that can be invited now, sorted.
            enrolled: seats of the run, sorted.
            seed: the plan's.
            number: of the round.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipationPlan:
    """Who takes part in a round.

    Attributes:
        sampler: "all", "uniform" (a fresh sample each round), "fixed" (disjoint groups in turn,
            drawn once), or a plugin's name.
        fraction: of the enrolled silos that a round invites.
        minimum: but at least so many; never below the protocol's own floor.
        settings: of a plugin.
    """

    sampler: str = "all"
    fraction: float = 1.0
    minimum: int = 3
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        fields.text("participation.sampler", self.sampler)
        object.__setattr__(self, "fraction", fields.share("participation.fraction", self.fraction))
        fields.whole("participation.minimum", self.minimum, 1, 200)
        settings = fields.json_copy("participation.settings", self.settings)
        object.__setattr__(self, "settings", settings)
        if self.sampler == "all" and self.fraction != 1:
            fields.refuse("participation.fraction", "1 with sampler = 'all'", self.fraction)
        if self.sampler in _BUILTIN and settings:
            fields.refuse("participation.settings", "none with a built-in sampler", settings)

    def size(self, enrolled: int) -> int:
        """Return how many of the enrolled silos a round invites."""
        return min(max(math.ceil(self.fraction * enrolled), self.minimum), enrolled)


def sampler_of(plan: ParticipationPlan) -> CohortSampler:
    """Return the plan's sampler.

    Raises:
        PlanError: a plugin that is not installed, or that refuses its settings.
    """
    match plan.sampler:
        case "all":
            return Everybody()
        case "uniform":
            return Uniform(plan)
        case "fixed":
            return Fixed(plan)
        case name:
            factory = find(Group.COHORT_SAMPLER, name, _BUILTIN, "participation.sampler")
            return cast("CohortSampler", factory(plan.settings))  # the group's contract


def cohort_of(
    plan: ParticipationPlan,
    available: tuple[int, ...],
    enrolled: tuple[int, ...],
    *,
    seed: int,
    number: int,
    least: int = 1,
) -> tuple[int, ...]:
    """Return the round's cohort, sorted; of a built-in sampler's at least `least`.

    Raises:
        PlanError: a plugin chose a silo that is not available.
    """
    seats = tuple(sorted(available))
    bounded = replace(plan, minimum=max(plan.minimum, least))
    chosen = sampler_of(bounded).choose(seats, tuple(sorted(enrolled)), seed, number)
    if not set(chosen) <= set(seats):
        raise PlanError(f"sampler {plan.sampler!r} chose silos that are not available")
    return tuple(sorted(set(chosen)))


@dataclass(frozen=True, slots=True)
class Everybody:
    """All that are available."""

    def choose(
        self,
        available: tuple[int, ...],
        enrolled: tuple[int, ...],  # noqa: ARG002 (of the protocol)
        seed: int,  # noqa: ARG002 (of the protocol)
        number: int,  # noqa: ARG002 (of the protocol)
    ) -> tuple[int, ...]:
        """Return all of them."""
        return available


@dataclass(frozen=True, slots=True)
class Uniform:
    """A sample without replacement; absent silos are replaced by available ones."""

    plan: ParticipationPlan

    def choose(
        self, available: tuple[int, ...], enrolled: tuple[int, ...], seed: int, number: int
    ) -> tuple[int, ...]:
        """Return the first available seats in the round's random order of all enrolled ones.

        That order does not depend on who is available, so that a retried attempt changes only
        the places of those who are gone.
        """
        order = generator(seed, "cohort", number).permutation(sorted({*enrolled, *available}))
        there = [int(seat) for seat in order if int(seat) in available]
        return tuple(there[: self.plan.size(len(enrolled))])


@dataclass(frozen=True, slots=True)
class Fixed:
    """Disjoint groups of the enrolled silos, drawn once, invited in turn."""

    plan: ParticipationPlan

    def choose(
        self, available: tuple[int, ...], enrolled: tuple[int, ...], seed: int, number: int
    ) -> tuple[int, ...]:
        """Return the available seats of the round's group.

        The groups' sizes differ by one at most and none is smaller than the plan asks.
        """
        order = [int(s) for s in generator(seed, "groups").permutation(sorted(enrolled))]
        groups = max(len(order) // self.plan.size(len(order)), 1)
        group = order[number % groups :: groups]
        return tuple(seat for seat in available if seat in group)

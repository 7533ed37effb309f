"""Own local optimizers, cohort samplers and aggregation rules, found by name.

A package offers one under an entry-point group below; a script registers one for its own process.
Either is a factory: called with the plan's settings for it, it returns the object or raises
PlanError. Both sides of a run need the same code installed, since silos recompute the server's
step; the plan names it, and the round's hash binds the plan.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Final

from fl import fields
from fl.errors import PlanError

Factory = Callable[[Mapping[str, object]], object]


class Group(StrEnum):
    """The hooks, by the names of their entry-point groups."""

    LOCAL_OPTIMIZER = "secagg.local_optimizers"  # fl.optimizers.LocalOptimizer
    COHORT_SAMPLER = "secagg.cohort_samplers"  # fl.participation.CohortSampler
    AGGREGATION_RULE = "secagg.aggregation_rules"  # fl.algorithms.fedavg.AggregationRule


_REGISTERED: Final[dict[tuple[Group, str], Factory]] = {}


def register(group: Group, name: str, factory: Factory) -> None:
    """Offer a hook in this process.

    Raises:
        PlanError: another one has the name.
    """
    if _REGISTERED.setdefault((group, name), factory) is not factory:
        raise PlanError(f"{group}: {name!r} is registered already; choose another name")


def find(group: Group, name: str, builtin: Iterable[str], field: str) -> Factory:
    """Return the factory of this name.

    Args:
        group: the hook.
        name: as the plan gives it.
        builtin: the names that need no plugin, for the message.
        field: the plan's field, for the message.

    Raises:
        PlanError: nothing of that name is installed here.
    """
    if (group, name) in _REGISTERED:
        return _REGISTERED[group, name]
    for entry in entry_points(group=group.value, name=name):
        factory: Factory = entry.load()
        return factory
    raise PlanError(
        f"training plan: {field}: expected one of {', '.join(builtin)}, or the name of an "
        f"installed {group} plugin, got {name!r}{fields.close_to(name, builtin)}"
    )

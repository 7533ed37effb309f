"""The algorithms by the names that a training plan gives them."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, cast

from fl.algorithms.afl import Agnostic
from fl.algorithms.base import UPDATE, Algorithm, LocalWork, Sums, Traits
from fl.algorithms.fedavg import AggregationRule, FedAvg
from fl.algorithms.fedbn import fedbn
from fl.algorithms.fednova import FedNova
from fl.algorithms.fedopt import ServerOptimizer, fedopt
from fl.algorithms.fedprox import fedprox
from fl.algorithms.fedsgd import FedSgd
from fl.algorithms.private import privately
from fl.algorithms.qfedavg import QFedAvg
from fl.algorithms.scaffold import SERVER_VARIATE, VARIATE_DELTA, Scaffold, server_variate
from fl.optimizers import optimizer_of
from fl.plugins import Group, find
from fl.privacy import privacy_of

if TYPE_CHECKING:
    from fl.plan import TrainingPlan

__all__ = [
    "ALGORITHMS",
    "SERVER_VARIATE",
    "UPDATE",
    "VARIATE_DELTA",
    "Algorithm",
    "LocalWork",
    "Sums",
    "Traits",
    "algorithm_of",
    "server_variate",
]

ALGORITHMS: Final[Mapping[str, Callable[["TrainingPlan"], Algorithm]]] = {
    "fedsgd": FedSgd.of,
    "fedavg": FedAvg.of,
    "fedprox": fedprox,
    "scaffold": Scaffold.of,
    "fednova": FedNova.of,
    **dict.fromkeys((kind.value for kind in ServerOptimizer), fedopt),
    "qfedavg": QFedAvg.of,
    "afl": Agnostic.of,
    "fedbn": fedbn,
}


def algorithm_of(plan: "TrainingPlan") -> Algorithm:
    """Return the plan's algorithm; another name is an aggregation rule's plugin.

    Raises:
        PlanError: an unknown name, or settings that the algorithm does not have.
    """
    privacy = privacy_of(plan)
    algorithm = _named(plan)
    return algorithm if privacy is None else privately(plan, algorithm, privacy)


def _named(plan: "TrainingPlan") -> Algorithm:
    optimizer_of(plan.local)  # refuses a solver that is not installed here
    make = ALGORITHMS.get(plan.algorithm)
    if make is not None:
        return make(plan)
    factory = find(Group.AGGREGATION_RULE, plan.algorithm, ALGORITHMS, "algorithm")
    # The factory's contract is the group's.
    rule = cast("AggregationRule", factory(plan.algorithm_settings))
    return FedAvg(plan=plan, rule=rule)

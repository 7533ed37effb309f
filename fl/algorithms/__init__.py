"""The algorithms by the names that a training plan gives them."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from fl.algorithms.base import UPDATE, Algorithm, Sums
from fl.algorithms.fedavg import FedAvg
from fl.algorithms.scaffold import SERVER_VARIATE, VARIATE_DELTA, Scaffold
from fl.errors import PlanError

if TYPE_CHECKING:
    from fl.plan import TrainingPlan

__all__ = [
    "ALGORITHMS",
    "SERVER_VARIATE",
    "UPDATE",
    "VARIATE_DELTA",
    "Algorithm",
    "FedAvg",
    "Scaffold",
    "Sums",
    "algorithm_of",
]

ALGORITHMS: Final[Mapping[str, Callable[["TrainingPlan"], Algorithm]]] = {
    "fedavg": FedAvg.of,
    "scaffold": Scaffold.of,
}


def algorithm_of(plan: "TrainingPlan") -> Algorithm:
    """Return the plan's algorithm.

    Raises:
        PlanError: an unknown name, or settings that the algorithm does not have.
    """
    make = ALGORITHMS.get(plan.algorithm)
    if make is None:
        raise PlanError(
            f"training plan: algorithm: expected one of {', '.join(ALGORITHMS)}, "
            f"got {plan.algorithm!r}"
        )
    return make(plan)

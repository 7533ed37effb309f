"""FedAvg: the model moves by the mean of the silos' changes.

Source: McMahan et al. 2017, algorithm 1; with a server step size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fl.algorithms.base import UPDATE, Sums, moved_model
from fl.errors import PlanError
from fl.ports import FloatVector, LocalResult, NamedTensors
from fl.ranges import INITIAL_RANGE
from fl.state import RANGE, State

if TYPE_CHECKING:
    from fl.plan import TrainingPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvg:
    """x += η_g · mean Δ_k."""

    server_learning_rate: float

    @classmethod
    def of(cls, plan: "TrainingPlan") -> "FedAvg":
        """Return the algorithm as the plan sets it; PlanError for a setting it does not have."""
        if plan.algorithm_settings:
            raise PlanError(
                f"training plan: algorithm_settings: fedavg has none, got "
                f"{sorted(plan.algorithm_settings)}"
            )
        return cls(server_learning_rate=plan.server_learning_rate)

    @property
    def segments(self) -> tuple[str, ...]:
        """The change of the model."""
        return (UPDATE,)

    @property
    def has_variate(self) -> bool:
        """A silo keeps nothing."""
        return False

    @property
    def needs_gradient(self) -> bool:
        """A silo only trains."""
        return False

    def initial_state(self, size: int) -> State:  # noqa: ARG002 (of the protocol)
        """Return the range of the update."""
        return {RANGE + UPDATE: np.array(INITIAL_RANGE)}

    def correction(
        self,
        state: NamedTensors,
        variate: FloatVector | None,
    ) -> None:
        """Gradients stay as they are."""

    def parts(
        self,
        start: FloatVector,
        result: LocalResult,
        gradient: FloatVector | None,  # noqa: ARG002 (of the protocol)
        variate: FloatVector | None,  # noqa: ARG002 (of the protocol)
    ) -> dict[str, FloatVector]:
        """Return Δ_k = y_k − x."""
        return {UPDATE: result.model_after - start}

    def next_variate(
        self,
        parts: Mapping[str, FloatVector],
        state: NamedTensors,
        variate: FloatVector | None,
    ) -> None:
        """Nothing is kept."""

    def apply(self, state: NamedTensors, sums: Sums) -> State:
        """Move the model."""
        return moved_model(state, self.server_learning_rate * sums.mean(UPDATE))

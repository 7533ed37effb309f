"""FedAvg: the model moves by the mean of the silos' changes, or by what a rule makes of it.

Locally y −= η g. Uplink [ρ_k Δ_k], Δ_k = y_k − x. Server: d = Σ ρ_k Δ_k / Σ ρ_k, and
x += η_g · rule(d); FedAvg's own rule is the identity. FedProx, FedBN, FedOpt and own aggregation
rules are this algorithm with another local plan, model or rule.

The coordinator learns one linear functional of the Δ_k, with coefficients ρ_k; a silo's number of
local steps is in none of them.

Source: McMahan et al. 2017, algorithm 1; with a server step size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fl.algorithms.base import UPDATE, LocalWork, Sums, Traits, moved_model
from fl.algorithms.settings import Settings, require_no_proximal
from fl.ports import FloatVector, NamedTensors
from fl.ranges import INITIAL_RANGE
from fl.state import RANGE, State, trained_of

if TYPE_CHECKING:
    from fl.plan import TrainingPlan


class AggregationRule(Protocol):
    """Makes the model's step of the released mean change. Holds settings only.

    What it keeps between rounds is in the state, in tensors that it names "server/…", float64.
    """

    def initial(self, size: int) -> State:
        """Return the rule's tensors at the start, d = `size`."""
        ...

    def step(self, state: NamedTensors, mean: FloatVector) -> tuple[FloatVector, State]:
        """Return the step, shape (d,), before η_g, and the rule's next tensors.

        Elementwise float64 only: every silo recomputes it and must get the same bits.
        """
        ...


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean itself."""

    def initial(self, size: int) -> State:  # noqa: ARG002 (of the protocol)
        """Keep nothing."""
        return {}

    def step(
        self,
        state: NamedTensors,  # noqa: ARG002 (of the protocol)
        mean: FloatVector,
    ) -> tuple[FloatVector, State]:
        """Return the mean."""
        return mean, {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvg:
    """x += η_g · rule(mean Δ_k)."""

    plan: "TrainingPlan"
    rule: AggregationRule = field(default_factory=Mean)

    @classmethod
    def of(cls, plan: "TrainingPlan") -> "FedAvg":
        """Return the algorithm as the plan sets it; PlanError for a setting it does not have."""
        Settings(plan).end()
        require_no_proximal(plan, because="with the proximal term it is fedprox; say so")
        return cls(plan=plan)

    def traits(self, number: int) -> Traits:  # noqa: ARG002 (of the protocol)
        """Upload the change of the model."""
        return Traits()

    def initial_state(self, size: int) -> State:
        """Return the range of the update, and what the rule keeps."""
        return {RANGE + UPDATE: np.array(INITIAL_RANGE), **self.rule.initial(size)}

    def correction(self, state: NamedTensors, kept: FloatVector | None) -> None:
        """Gradients stay as they are."""

    def parts(self, work: LocalWork) -> dict[str, FloatVector]:
        """Return Δ_k = y_k − x."""
        return {UPDATE: work.change}

    def next_kept(self, sent: Mapping[str, FloatVector], work: LocalWork) -> None:
        """Nothing is kept."""

    def apply(self, state: NamedTensors, sums: Sums) -> State:
        """Move the model by the rule's step."""
        step, kept = self.rule.step(state, sums.mean(UPDATE))
        return {**moved_model(state, step, self.plan.server_rate(trained_of(state))), **kept}

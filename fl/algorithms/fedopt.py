"""FedOpt: the released mean change is a pseudo-gradient for the server's own optimizer.

With d = Σ ρ_k Δ_k / Σ ρ_k, m and v kept in the state:

    FedAvgM    m = β₁ m + d                           x += η_g m
    others     m = β₁ m + (1 − β₁) d                  x += η_g m / (√v + τ)
    FedAdagrad v = v + d²
    FedAdam    v = β₂ v + (1 − β₂) d²
    FedYogi    v = v − (1 − β₂) d² sign(v − d²)

without bias correction, m = 0 and v = τ² at the start (`initial_v` sets another v). The coordinator
learns what it does under FedAvg: all of this is post-processing of one released mean.

Source: Reddi et al. 2021, algorithm 2; FedAvgM: Hsu et al. 2019.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from fl.algorithms.fedavg import FedAvg
from fl.algorithms.settings import Settings, require_no_proximal
from fl.ports import FloatVector, NamedTensors
from fl.state import State

if TYPE_CHECKING:
    from fl.plan import TrainingPlan

FIRST: Final = "server/first_moment"
SECOND: Final = "server/second_moment"
# Where d outweighs v, a step is about η_g (1 − β₁), whatever v and τ are.
_MOST_BETA1: Final = 0.99


class ServerOptimizer(StrEnum):
    """Which v."""

    AVGM = "fedavgm"
    ADAGRAD = "fedadagrad"
    ADAM = "fedadam"
    YOGI = "fedyogi"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRule:
    """One of the four.

    Attributes:
        kind: which.
        beta1, beta2: β₁ and β₂; FedAvgM and FedAdagrad have no β₂.
        tau: τ, the least scale that a step is divided by.
        initial_v: v at the start.
    """

    kind: ServerOptimizer
    beta1: float
    beta2: float
    tau: float
    initial_v: float

    def initial(self, size: int) -> State:
        """Return m and v."""
        tensors: State = {FIRST: np.zeros(size)}
        if self.kind is not ServerOptimizer.AVGM:
            tensors[SECOND] = np.full(size, self.initial_v)
        return tensors

    def step(self, state: NamedTensors, mean: FloatVector) -> tuple[FloatVector, State]:
        """Return m, or m / (√v + τ)."""
        first = state[FIRST].astype(np.float64, copy=False)
        if self.kind is ServerOptimizer.AVGM:
            first = self.beta1 * first + mean
            return first, {FIRST: first}
        first = self.beta1 * first + (1 - self.beta1) * mean
        second = self._second(state[SECOND].astype(np.float64, copy=False), mean * mean)
        return first / (np.sqrt(second) + self.tau), {FIRST: first, SECOND: second}

    def _second(self, second: FloatVector, squares: FloatVector) -> FloatVector:
        rest = 1 - self.beta2
        match self.kind:
            case ServerOptimizer.ADAGRAD:
                return second + squares
            case ServerOptimizer.YOGI:
                return second - rest * squares * np.sign(second - squares)
            case _:
                return self.beta2 * second + rest * squares


def fedopt(plan: "TrainingPlan") -> FedAvg:
    """Return FedAvg with the server optimizer that the plan names.

    Raises:
        PlanError: a setting out of range, or that this optimizer does not have.
    """
    kind = ServerOptimizer(plan.algorithm)
    settings = Settings(plan)
    adaptive = kind is not ServerOptimizer.AVGM
    decays = kind in (ServerOptimizer.ADAM, ServerOptimizer.YOGI)
    tau = settings.number("tau", 1e-3, 1e-30) if adaptive else 0.0
    rule = OptimizerRule(
        kind=kind,
        beta1=settings.number("beta1", 0.9, 0, _MOST_BETA1 if adaptive else 1 - 1e-12),
        beta2=settings.number("beta2", 0.99, 0, 1 - 1e-12) if decays else 0.0,
        tau=tau,
        initial_v=settings.number("initial_v", tau * tau, 0) if adaptive else 0.0,
    )
    settings.end()
    if adaptive:  # the first step for a small mean: what d adds to v aside
        share = (1 - rule.beta1) / (rule.initial_v**0.5 + tau)
        step = share * plan.server_rate(plan.rounds - 1) * plan.least_weight
        plan.require_moving("algorithm_settings (beta1, initial_v, tau)", step)
    require_no_proximal(plan, because="fedopt's silos take plain steps")
    return FedAvg(plan=plan, rule=rule)

"""FedNova: silos that take more steps do not pull the model towards their own optimum.

Each silo's change is divided by a_k, the length of its path in units of η g; the mean of these
directions is then walked as far as the silos walked on average:

    x += η_g · (Σ ρ_k a_k / Σ ρ_k) · Σ (ρ_k Δ_k / a_k) / Σ ρ_k

    SGD                 a_k = K_k
    momentum ρ          a_k = (K_k − ρ (1 − ρ^K_k) / (1 − ρ)) / (1 − ρ)
    proximal μ          a_k = (1 − (1 − ημ)^K_k) / (ημ)

The coordinator learns one linear functional of the Δ_k, with coefficients ρ_k / a_k. The a_k are
constants of the plan (WorkPlan: fixed, declared or drawn) and ρ_k public, so Σ ρ_k a_k and Σ ρ_k
follow from the survivors' names and nothing but [ρ_k Δ_k / a_k] is uploaded. Hidden weights are
refused: with public a_k, Σ n_k and Σ n_k a_k are two functionals of the n_k, whose difference can
be one silo's (protocol.md 2.3). So are a_k that only the silos know: nobody could check the rule.

Source: Wang et al. 2020, equation 6 and section 4 (a_k: the 1-norm of the solver's coefficients).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fl import fields
from fl.algorithms.base import UPDATE, LocalWork, Sums, Traits, moved_model
from fl.algorithms.settings import Settings, require_work
from fl.optimizers import MOMENTUM, SGD, momentum_of
from fl.ports import FloatVector, NamedTensors
from fl.ranges import INITIAL_RANGE
from fl.state import RANGE, State, trained_of
from fl.work import Work, public_steps

if TYPE_CHECKING:
    from fl.plan import LocalPlan, TrainingPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class FedNova:
    """Normalized averaging."""

    plan: "TrainingPlan"

    @classmethod
    def of(cls, plan: "TrainingPlan") -> "FedNova":
        """Return the algorithm.

        Raises:
            PlanError: hidden weights, hidden steps, or a local solver whose a_k is not known.
        """
        Settings(plan).end()
        require_work(
            plan,
            Work.FIXED,
            Work.DECLARED,
            Work.DRAWN,
            because="a_k must be constants of the plan, or nobody can check the coefficient rule",
        )
        if plan.weighting == "hidden":
            fields.refuse(
                "weighting",
                "'uniform' or 'declared': with public a_k, Σ n_k and Σ n_k a_k together could "
                "isolate one silo's n_k",
                "hidden",
            )
        if plan.local.optimizer not in (SGD, MOMENTUM):
            fields.refuse("local.optimizer", "'sgd' or 'momentum'", plan.local.optimizer)
        if plan.local.optimizer == MOMENTUM:
            momentum_of(plan.local)
            if plan.local.proximal:
                fields.refuse("local.proximal", "0 with local momentum", plan.local.proximal)
        if plan.local.proximal * plan.local.learning_rate >= 1:
            fields.refuse("local.proximal", "ημ below 1", plan.local.proximal)
        return cls(plan=plan)

    def traits(self, number: int) -> Traits:  # noqa: ARG002 (of the protocol)
        """Upload the normalized change."""
        return Traits()

    def initial_state(self, size: int) -> State:  # noqa: ARG002 (of the protocol)
        """Return the range of the update."""
        return {RANGE + UPDATE: np.array(INITIAL_RANGE)}

    def correction(self, state: NamedTensors, kept: FloatVector | None) -> None:
        """Gradients stay as they are."""

    def parts(self, work: LocalWork) -> dict[str, FloatVector]:
        """Return Δ_k / a_k."""
        return {UPDATE: work.change / self._path(work.state, work.steps)}

    def next_kept(self, sent: Mapping[str, FloatVector], work: LocalWork) -> None:
        """Nothing is kept."""

    def apply(self, state: NamedTensors, sums: Sums) -> State:
        """Walk the mean direction as far as the mean silo walked."""
        paths = 0.0
        for silo, weight in sums.shares:
            steps = public_steps(self.plan, silo, sums.number)
            assert steps is not None  # `of` refuses steps that only the silo knows
            paths += weight * self._path(state, steps)
        rate = self.plan.server_rate(trained_of(state)) * paths / sums.weight
        return moved_model(state, sums.mean(UPDATE), rate)

    def _path(self, state: NamedTensors, steps: int) -> float:
        return path_length(self.plan.local, steps, self.plan.local_rate(trained_of(state)))


def path_length(local: "LocalPlan", steps: int, rate: float) -> float:
    """Return a_k of K_k = `steps` local steps of size η = `rate`."""
    if local.optimizer == MOMENTUM:
        rho = momentum_of(local)
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    if local.proximal:
        pull = rate * local.proximal
        length: float = (1 - (1 - pull) ** steps) / pull
        return length
    return float(steps)

"""Agnostic federated learning: the weights themselves are learned, for the worst mixture of silos.

Each silo keeps its own log-weight λ_k, zero at the start. In a round it adds γ F_k(x), γ the
setting `weight_rate` and F_k its mean loss, takes off the log of the last round's mean weight
(released, so all take off the same), and bounds the result by ± `bound`; w_k = exp(λ_k). That is
exponentiated gradient ascent on the mixture, normalized one round late. It uploads [w_k Δ_k] and
w_k; the server moves x += η_g · Σ w_k Δ_k / Σ w_k.

The coordinator learns one linear functional of the Δ_k, with coefficients w_k that nobody knows,
and Σ w_k. The sum's bound is that of n_max silos at exp(bound): a silo that lies about its weight
makes the others' step smaller by about n_max · exp(2 bound) at most, not by what the ring holds.
Weights of the plan would be a second kind of weight and must be uniform. A silo that
loses its log-weight starts again at 0, as one that joins does: nothing counts on it.

Source: Mohri et al. 2019, algorithm 1, with multiplicative steps for λ instead of a projection,
which would need every silo's λ.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from fl import fields
from fl.algorithms.base import UPDATE, LocalWork, Sums, Traits, moved_model
from fl.algorithms.settings import Settings, require_no_proximal
from fl.errors import RunStateError
from fl.ports import FloatVector, NamedTensors
from fl.ranges import INITIAL_RANGE
from fl.state import RANGE, State, trained_of

if TYPE_CHECKING:
    from fl.plan import TrainingPlan

AGNOSTIC_WEIGHT: Final = "agnostic_weight"
MEAN_WEIGHT: Final = "server/mean_weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agnostic:
    """AFL.

    Attributes:
        plan: of the run.
        weight_rate: γ.
        bound: largest |λ_k|.
    """

    plan: "TrainingPlan"
    weight_rate: float
    bound: float

    @classmethod
    def of(cls, plan: "TrainingPlan") -> "Agnostic":
        """Return the algorithm with `weight_rate` (default 0.1) and `bound` (default 3).

        Raises:
            PlanError: a setting out of range, weights that are not uniform, or a server step that
                is next to nothing where one silo has the largest weight, the others the least.
        """
        settings = Settings(plan)
        rate = settings.number("weight_rate", 0.1, 1e-9, 1e3)
        bound = settings.number("bound", 3.0, 0.1, 10)
        settings.end()
        require_no_proximal(plan, because="afl's silos take plain steps")
        if plan.weighting != "uniform":
            fields.refuse("weighting", "'uniform': afl learns the weights", plan.weighting.value)
        made = cls(plan=plan, weight_rate=rate, bound=bound)
        least_step = plan.server_learning_rate * made.least_weight
        plan.require_moving("server_learning_rate, or algorithm_settings.bound", least_step)
        return made

    @property
    def least_weight(self) -> float:
        """The smallest weight as a share of the largest."""
        return math.exp(-2 * self.bound)

    def traits(self, number: int) -> Traits:  # noqa: ARG002 (of the protocol)
        """Upload the weighted change and the weight; keep the log-weight."""
        most = math.exp(self.bound)
        return Traits(scalars=(AGNOSTIC_WEIGHT,), most=most, loss=True, keeps=True)

    def initial_state(self, size: int) -> State:  # noqa: ARG002 (of the protocol)
        """Return the range of w Δ, and a mean weight of 1."""
        return {RANGE + UPDATE: np.array(INITIAL_RANGE), MEAN_WEIGHT: np.array(1.0)}

    def correction(self, state: NamedTensors, kept: FloatVector | None) -> None:
        """Gradients stay as they are."""

    def parts(self, work: LocalWork) -> dict[str, FloatVector]:
        """Return w_k Δ_k and w_k."""
        if work.loss is None:
            raise RunStateError("AFL needs the mean loss at the received model")
        before = 0.0 if work.kept is None else float(work.kept[0])
        growth = self.weight_rate * work.loss - float(np.log(work.state[MEAN_WEIGHT][()]))
        weight = float(np.exp(np.clip(before + growth, -self.bound, self.bound)))
        return {UPDATE: weight * work.change, AGNOSTIC_WEIGHT: np.array([weight])}

    def next_kept(
        self,
        sent: Mapping[str, FloatVector],
        work: LocalWork,  # noqa: ARG002 (of the protocol)
    ) -> FloatVector:
        """Return λ_k."""
        return np.log(sent[AGNOSTIC_WEIGHT])

    def apply(self, state: NamedTensors, sums: Sums) -> State:
        """Move the model by the weighted mean."""
        total = sums.scalars[AGNOSTIC_WEIGHT]
        rate = self.plan.server_rate(trained_of(state), least_weight=self.least_weight)
        moved = moved_model(state, sums.segments[UPDATE] / total, rate)
        moved[MEAN_WEIGHT] = np.array(total / sums.survivors)
        return moved

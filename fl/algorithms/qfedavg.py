"""q-FedAvg: silos whose loss is high count for more, so that accuracies come out more alike.

With F_k the mean loss at x and L = 1/η, silo k uploads

    [ρ_k F_k^q · L Δ_k]   and the number   ρ_k (q F_k^(q−1) ‖L Δ_k‖² + L F_k^q)

and the server moves x += η_g · Σ first / Σ second. q = 0 is FedAvg. The coordinator learns one
linear functional of the Δ_k, with coefficients ρ_k F_k^q that nobody knows, and one sum of numbers
that are no linear function of them. K_k is in no coefficient.

Source: Li et al. 2020 (q-FFL), algorithm 2; there ρ_k = 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from fl.algorithms.base import UPDATE, LocalWork, Sums, Traits, moved_model
from fl.algorithms.settings import Settings, require_plain
from fl.errors import NonFiniteUpdateError, RunStateError
from fl.ports import FloatVector, NamedTensors
from fl.ranges import INITIAL_RANGE
from fl.state import RANGE, State, trained_of

if TYPE_CHECKING:
    from fl.plan import TrainingPlan

CURVATURE: Final = "curvature"
# q − 1 may be negative; a loss of zero has nothing to move for anyway.
_LEAST_LOSS: Final = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class QFedAvg:
    """q-FedAvg.

    Attributes:
        plan: of the run.
        q: 0 or more; the larger, the more alike.
    """

    plan: "TrainingPlan"
    q: float

    @classmethod
    def of(cls, plan: "TrainingPlan") -> "QFedAvg":
        """Return the algorithm with the setting `q` (default 1).

        Raises:
            PlanError: q out of range, or a local solver that is not plain: L = 1/η is its step's.
        """
        settings = Settings(plan)
        q = settings.number("q", 1.0, 0, 100)
        settings.end()
        require_plain(plan, because="L = 1/η estimates the curvature of plain steps")
        return cls(plan=plan, q=q)

    def traits(self, number: int) -> Traits:  # noqa: ARG002 (of the protocol)
        """Upload the scaled change and the number it is divided by."""
        return Traits(scalars=(CURVATURE,), loss=True)

    def initial_state(self, size: int) -> State:  # noqa: ARG002 (of the protocol)
        """Return the range of F^q L Δ."""
        return {RANGE + UPDATE: np.array(INITIAL_RANGE / self.plan.local.learning_rate)}

    def correction(self, state: NamedTensors, kept: FloatVector | None) -> None:
        """Gradients stay as they are."""

    def parts(self, work: LocalWork) -> dict[str, FloatVector]:
        """Return F_k^q L Δ_k and its divisor's summand.

        Raises:
            NonFiniteUpdateError: the loss is negative, so that its power means nothing.
        """
        if work.loss is None:
            raise RunStateError("q-FedAvg needs the mean loss at the received model")
        if not work.loss >= 0:
            raise NonFiniteUpdateError("q-FedAvg needs a loss that is never negative")
        loss = max(work.loss, _LEAST_LOSS)
        slope = work.change / self.plan.local_rate(trained_of(work.state))
        lipschitz = 1 / self.plan.local_rate(trained_of(work.state))
        power = loss**self.q
        second = self.q * loss ** (self.q - 1) * float(slope @ slope) + lipschitz * power
        return {UPDATE: power * slope, CURVATURE: np.array([second])}

    def next_kept(self, sent: Mapping[str, FloatVector], work: LocalWork) -> None:
        """Nothing is kept."""

    def apply(self, state: NamedTensors, sums: Sums) -> State:
        """Move the model."""
        rate = self.plan.server_rate(trained_of(state))
        return moved_model(state, sums.segments[UPDATE] / sums.scalars[CURVATURE], rate)

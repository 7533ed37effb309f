"""FedSGD: one full-batch gradient a round from each silo, and one step of the server.

Uplink [ρ_k g_k], g_k the gradient of the silo's mean loss at x over all its examples. Server:
x −= η_g Σ ρ_k g_k / Σ ρ_k. With ρ_k = n_k / n_cap this is gradient descent on the pooled data. The
coordinator learns one linear functional of the g_k, with coefficients ρ_k.

Source: McMahan et al. 2017, section 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from fl import fields
from fl.algorithms.base import LocalWork, Sums, Traits, moved_model
from fl.algorithms.settings import Settings, require_plain, require_work
from fl.errors import RunStateError
from fl.ports import FloatVector, NamedTensors
from fl.ranges import INITIAL_RANGE
from fl.state import RANGE, State, trained_of
from fl.work import Work

if TYPE_CHECKING:
    from fl.plan import TrainingPlan

GRADIENT: Final = "gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class FedSgd:
    """x −= η_g · mean g_k; the local learning rate plays no part."""

    plan: "TrainingPlan"

    @classmethod
    def of(cls, plan: "TrainingPlan") -> "FedSgd":
        """Return the algorithm; PlanError if the plan has silos take steps or batches."""
        Settings(plan).end()
        because = "fedsgd uploads one full-batch gradient"
        require_plain(plan, because=because)
        require_work(plan, Work.FIXED, because=because)
        if plan.local.local_steps != 1 or plan.local.batch_size != 0:
            fields.refuse(
                "local",
                f"local_steps = 1 and batch_size = 0: {because}",
                (plan.local.local_steps, plan.local.batch_size),
            )
        if plan.personal:
            fields.refuse("personal", f"none: {because} and trains nothing", list(plan.personal))
        return cls(plan=plan)

    def traits(self, number: int) -> Traits:  # noqa: ARG002 (of the protocol)
        """Upload the gradient; nothing is trained."""
        return Traits(segments=(GRADIENT,), trains=False, gradient=True)

    def initial_state(self, size: int) -> State:  # noqa: ARG002 (of the protocol)
        """Return the range of the gradient."""
        return {RANGE + GRADIENT: np.array(INITIAL_RANGE)}

    def correction(self, state: NamedTensors, kept: FloatVector | None) -> None:
        """Gradients stay as they are."""

    def parts(self, work: LocalWork) -> dict[str, FloatVector]:
        """Return g_k."""
        if work.gradient is None:
            raise RunStateError("FedSGD needs the gradient at the received model")
        return {GRADIENT: work.gradient}

    def next_kept(self, sent: Mapping[str, FloatVector], work: LocalWork) -> None:
        """Nothing is kept."""

    def apply(self, state: NamedTensors, sums: Sums) -> State:
        """Step down the mean gradient."""
        rate = self.plan.server_rate(trained_of(state))
        return moved_model(state, sums.mean(GRADIENT), -rate)

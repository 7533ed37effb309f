"""What a privacy plan makes of an algorithm: one segment, and SCAFFOLD in one noised vector.

Under `silo` and `central` SCAFFOLD uploads u_k = Δ_k + Kη (c − c_k), which is −Kη times the mean
local gradient, and nothing else (privacy.md 4.4). The server's step is post-processing of the one
noised sum: x += η_g · Σu/W and c += (|S|/N) (−Σu / (|S| Kη) − c); the silo keeps c_k = −u_k / (Kη),
u_k as its clipped and rounded integers have it, before its noise share. Deriving c from the noisy
sum of the Δ_k would add up the noise of all rounds; building c_k from noised integers would let a
share of the noise steer later uploads.

Under `fedsgd` and `patient` the units' own steps are summed, so the model moves by their mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dp.plan import Mode, PrivacyPlan
from fl import fields
from fl.algorithms.base import UPDATE, Algorithm, LocalWork, Sums, Traits, moved_model
from fl.algorithms.fedavg import FedAvg
from fl.algorithms.scaffold import SERVER_VARIATE, Option, Scaffold, server_variate
from fl.ports import FloatVector, NamedTensors
from fl.state import RANGE, State, enrolled_of, trained_of

if TYPE_CHECKING:
    from fl.plan import TrainingPlan


def privately(plan: "TrainingPlan", algorithm: Algorithm, privacy: PrivacyPlan) -> Algorithm:
    """Return the algorithm as it runs under the privacy plan.

    Raises:
        PlanError: it uploads more than one vector, or what the plan's mode cannot noise.
    """
    mode = privacy.mode
    if isinstance(algorithm, Scaffold) and mode in {Mode.SILO, Mode.CENTRAL}:
        algorithm = OneVectorScaffold(plan=plan, inner=algorithm)
    if mode is Mode.FEDSGD:
        return FedAvg(plan=plan)
    traits = algorithm.traits(plan.first_training_round)
    if len(traits.segments) != 1 or traits.scalars or traits.loss:
        fields.refuse(
            "algorithm", "one that uploads one vector under a privacy plan", plan.algorithm
        )
    if traits.gradient and mode not in {Mode.SILO, Mode.CENTRAL}:
        fields.refuse("algorithm", f"no exact gradient in mode {mode}", plan.algorithm)
    return algorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class OneVectorScaffold:
    """SCAFFOLD, option II, in one vector of sensitivity C."""

    plan: "TrainingPlan"
    inner: Scaffold

    def __post_init__(self) -> None:
        """Refuse option I: its gradients would be a second release."""
        if self.inner.option is not Option.STEPS:
            fields.refuse("algorithm_settings.option", "II under a privacy plan", "I")

    def traits(self, number: int) -> Traits:
        """Upload one vector."""
        return self.inner.traits(number)

    def initial_state(self, size: int) -> State:
        """Return c = 0 and a range that the privacy plan replaces."""
        return {SERVER_VARIATE: np.zeros(size), RANGE + UPDATE: np.array(1.0)}

    def correction(self, state: NamedTensors, kept: FloatVector | None) -> FloatVector:
        """Return c − c_k."""
        return self.inner.correction(state, kept)

    def parts(self, work: LocalWork) -> dict[str, FloatVector]:
        """Return u_k."""
        path = self._path(work.state)
        return {UPDATE: work.change + path * self.inner.correction(work.state, work.kept)}

    def next_kept(self, sent: Mapping[str, FloatVector], work: LocalWork) -> FloatVector:
        """Return c_k⁺ = −u_k / (Kη)."""
        return -sent[UPDATE] / self._path(work.state)

    def apply(self, state: NamedTensors, sums: Sums) -> State:
        """Move the model and c by the one noised sum."""
        total = sums.segments[UPDATE]
        moved = moved_model(state, sums.mean(UPDATE), self.plan.server_rate(trained_of(state)))
        before = enrolled_of(state) / sums.enrolled * server_variate(state)
        delta = -total / (sums.survivors * self._path(state)) - server_variate(state)
        moved[SERVER_VARIATE] = before + sums.survivors / sums.enrolled * delta
        return moved

    def _path(self, state: NamedTensors) -> float:
        return self.plan.local.local_steps * self.plan.local_rate(trained_of(state))

"""What a privacy plan makes of an algorithm: one segment, and SCAFFOLD in one noised vector.

Under `silo` and `central` SCAFFOLD uploads u_k = Δ_k + Kη (c − c_k), which is −Kη times the mean
local gradient, and nothing else (privacy.md 4.4). The server's step is post-processing of the one
noised sum: x += η_g · Σu/W and c += (|S|/N) (−Σu / (|S| Kη) − c); the silo keeps c_k = −u_k / (Kη),
u_k as its clipped and rounded integers have it, before its noise share. Deriving c from the noisy
sum of the Δ_k would add up the noise of all rounds; building c_k from noised integers would let a
share of the noise steer later uploads.

Under `fedsgd`, `patient` and `isrl` the units' own steps are what is summed, as changes of the
model, so it moves by their mean: FedSGD there is one step of η, and FedNova, whose a_k are equal
when K is the plan's, is FedAvg.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dp.plan import Mode, PrivacyPlan
from fl import fields
from fl.algorithms.base import UPDATE, Algorithm, LocalWork, Sums, Traits, moved_model
from fl.algorithms.fedavg import FedAvg
from fl.algorithms.fednova import FedNova
from fl.algorithms.fedsgd import FedSgd
from fl.algorithms.scaffold import SERVER_VARIATE, Scaffold, server_variate
from fl.ports import FloatVector, NamedTensors
from fl.state import RANGE, State, enrolled_of, trained_of

if TYPE_CHECKING:
    from fl.plan import TrainingPlan


def privately(plan: "TrainingPlan", algorithm: Algorithm, privacy: PrivacyPlan) -> Algorithm:
    """Return the algorithm as it runs under the privacy plan.

    Raises:
        PlanError: it uploads more than one vector. dp.admission has refused such by their names;
            this is for one that it does not know.
    """
    mode = privacy.mode
    is_whole_silos = mode in {Mode.SILO, Mode.CENTRAL}
    if isinstance(algorithm, Scaffold) and is_whole_silos:
        return OneVectorScaffold(plan=plan, inner=algorithm)
    if isinstance(algorithm, FedSgd | FedNova) and not is_whole_silos:
        # A gradient is one step of −η; with one K, FedNova's a_k cancel.
        return FedAvg(plan=plan)
    traits = algorithm.traits(plan.first_training_round)
    if len(traits.segments) != 1 or traits.scalars or traits.loss:
        fields.refuse(
            "algorithm", "one that uploads one vector under a privacy plan", plan.algorithm
        )
    return algorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class OneVectorScaffold:
    """SCAFFOLD, option II (dp.admission refuses I), in one vector of sensitivity C."""

    plan: "TrainingPlan"
    inner: Scaffold

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

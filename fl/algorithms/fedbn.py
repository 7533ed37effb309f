"""FedBN and personal layers: parameters that match a pattern stay at the silo.

The rest is FedAvg's. Any algorithm may have personal layers: `personal` in the plan takes matching
parameters out of the model that is sent, summed and released; a silo trains its own from the common
start and keeps them in its memory. Under this name the plan must have some. The coordinator learns
nothing of them.

Running statistics and counters of BatchNorm are buffers and stay at the silo under every algorithm
(fl.training.bridge); FedBN keeps its scale and shift there too.

Source: Li et al. 2021 (FedBN); Arivazhagan et al. 2019 (personal layers).
"""

from typing import TYPE_CHECKING

from fl import fields
from fl.algorithms.fedavg import FedAvg

if TYPE_CHECKING:
    from fl.plan import TrainingPlan


def fedbn(plan: "TrainingPlan") -> FedAvg:
    """Return FedAvg over what is not personal.

    Raises:
        PlanError: the plan keeps no parameter at the silos.
    """
    if not plan.personal:
        fields.refuse("personal", "patterns such as ['*bn*'] for fedbn", plan.personal)
    return FedAvg.of(plan)

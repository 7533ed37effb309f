"""FedProx: FedAvg whose local loss holds the silo's model near the received one.

Locally y −= η (g + μ (y − x)), the gradient of F_k(y) + μ/2 ‖y − x‖². Silos may do different
amounts of work (WorkPlan): partial work is kept, not dropped, and μ bounds its drift. Uplink,
server step and what the coordinator learns are FedAvg's; K_k is in no coefficient.

Source: Li et al. 2020, algorithm 2.
"""

from typing import TYPE_CHECKING

from fl import fields
from fl.algorithms.fedavg import FedAvg
from fl.algorithms.settings import Settings

if TYPE_CHECKING:
    from fl.plan import TrainingPlan


def fedprox(plan: "TrainingPlan") -> FedAvg:
    """Return FedProx, whose μ is `local.proximal`.

    Raises:
        PlanError: μ is 0, which is fedavg.
    """
    Settings(plan).end()
    if not plan.local.proximal:
        fields.refuse("local.proximal", "μ above 0 for fedprox", plan.local.proximal)
    return FedAvg(plan=plan)

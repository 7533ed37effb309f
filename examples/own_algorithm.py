"""An aggregation rule of one's own, and a run with it: `python examples/own_algorithm.py`.

A package offers the same factory as an entry point, here of the group `secagg.aggregation_rules`;
local optimizers and cohort samplers have groups of their own (fl.plugins). The rule sees the
released mean only, and so does everybody: it can leak nothing more.
"""

from collections.abc import Mapping

import numpy as np

from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.plugins import Group, register
from fl.ports import FloatVector, NamedTensors
from fl.simulation import simulate
from fl.state import State
from fl.testing import least_squares_toy

MOMENTUM = "server/momentum"


class Lion:
    """The model moves by the sign of a moving mean of the silos' mean changes."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.decay = float(str(settings.get("decay", 0.5)))

    def initial(self, size: int) -> State:
        """Return what the rule keeps in the run's state."""
        return {MOMENTUM: np.zeros(size)}

    def step(self, state: NamedTensors, mean: FloatVector) -> tuple[FloatVector, State]:
        """Return the step, before the server's learning rate, and what is kept."""
        momentum = self.decay * state[MOMENTUM].astype(np.float64) + mean
        return np.sign(momentum), {MOMENTUM: momentum}


register(Group.AGGREGATION_RULE, "lion", Lion)

plan = TrainingPlan(
    task=TaskPlan(name="fl.testing:toy_task"),
    local=LocalPlan(local_steps=5, learning_rate=0.01),
    rounds=40,
    max_silos=5,
    algorithm="lion",
    algorithm_settings={"decay": 0.3},
    server_learning_rate=0.1,
)
result = simulate(plan, least_squares_toy(1, silos=5))
print(f"{result.status}: loss {result.reports[0].loss:.3f} to {result.reports[-1].loss:.3f}")

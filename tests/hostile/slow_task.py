"""A toy task that takes its time, another in each round at each silo."""

import time
from collections.abc import Mapping

from fl.plan import LocalPlan
from fl.ports import FloatVector, LocalResult, NamedTensors
from fl.testing import LeastSquaresTask, toy_task


class SlowTask(LeastSquaresTask):
    """Sleeps, then trains."""

    silo = 1
    sleep_s = 0.0
    spin_s = 0.0

    def train(
        self,
        model: NamedTensors,
        correction: FloatVector | None,
        local: LocalPlan,
        seed: int,
        round_number: int,
        /,
    ) -> LocalResult:
        """Wait a fixed time and one that changes, and keep the interpreter busy for a while."""
        time.sleep(self.sleep_s + (self.silo * 7 + round_number * 13) % 10 * 0.03)
        until = time.monotonic() + self.spin_s
        while time.monotonic() < until:
            pass
        return super().train(model, correction, local, seed, round_number)


def factory(settings: Mapping[str, object]) -> SlowTask:
    """Make silo number `silo`'s task; it sleeps `sleep_s` and computes `spin_s` seconds a round."""
    number = int(str(settings.get("silo", 1)))
    own = toy_task({"silo": number})
    task = SlowTask(own.inputs, own.targets)
    task.silo = number
    task.sleep_s = float(str(settings.get("sleep_s", 0)))
    task.spin_s = float(str(settings.get("spin_s", 0)))
    return task

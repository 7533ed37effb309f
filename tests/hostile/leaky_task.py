"""A task that would leak if anybody let it: it fails with its data in the error's text."""

from collections.abc import Mapping

from fl.plan import LocalPlan
from fl.ports import FloatVector, LocalResult, NamedTensors
from fl.testing import LeastSquaresTask, least_squares_toy

POINTS = 7919
SEED = 20261130
CANARY = "canary: patient Erika Mustermann, row 4711"


class LeakyTask(LeastSquaresTask):
    """Trains well, but fails in one round of one silo."""

    fails_in = 0
    updates: list[FloatVector] = []  # noqa: RUF012 - one list for all silos of the process

    def train(
        self,
        model: NamedTensors,
        correction: FloatVector | None,
        local: LocalPlan,
        seed: int,
        round_number: int,
        /,
    ) -> LocalResult:
        """Take the steps, and remember what came out."""
        if round_number == self.fails_in:
            raise ValueError(f"{CANARY}: {self.targets[:2]}")
        result = super().train(model, correction, local, seed, round_number)
        self.updates.append(result.model_after)
        return result


def factory(settings: Mapping[str, object]) -> LeakyTask:
    """Make silo number `silo`'s task; it fails in round `fails_in`, if one is named."""
    number = int(str(settings["silo"]))
    own = least_squares_toy(SEED, silos=number, points=POINTS)[f"silo-{number:02}"]
    task = LeakyTask(own.inputs, own.targets)
    task.fails_in = int(str(settings.get("fails_in", 0)))
    return task

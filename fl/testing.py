"""Tasks and memories for tests, simulations and first steps; numpy only.

`LeastSquaresTask` has a closed-form optimum, so a run can be compared with the truth. With
`task = "fl.testing:toy_task"` real processes can run it without torch.
"""

import math
from collections.abc import Mapping

import numpy as np

from fl.errors import PlanError
from fl.optimizers import optimizer_of, proximal_gradient
from fl.plan import LocalPlan
from fl.ports import FeatureMoments, FloatVector, LocalResult, Metrics, NamedTensors, Tensor
from fl.seeding import generator

_WEIGHTS = "weights"


class LeastSquaresTask:
    """Fits y ≈ X·w with the loss mean (y − X·w)².

    Args:
        inputs: X, shape (n, f), float64.
        targets: y, shape (n,), float64.
    """

    def __init__(self, inputs: FloatVector, targets: FloatVector) -> None:
        self.inputs = inputs
        self.targets = targets

    @property
    def n_examples(self) -> int:
        """Return n."""
        return len(self.targets)

    def initial_model(self, _seed: int, /) -> dict[str, Tensor]:
        """Return w = 0."""
        return {_WEIGHTS: np.zeros(self.inputs.shape[1])}

    def statistics(self) -> FeatureMoments:
        """Return the moments of X's columns x0, x1, …."""
        return FeatureMoments(
            names=tuple(f"x{place}" for place in range(self.inputs.shape[1])),
            counts=np.full(self.inputs.shape[1], self.n_examples, dtype=np.int64),
            sums=self.inputs.sum(axis=0),
            squares=np.square(self.inputs).sum(axis=0),
        )

    def prepare(self, _preprocess: Mapping[str, FloatVector], /) -> None:
        """Use X as it is."""

    def train(
        self,
        model: NamedTensors,
        correction: FloatVector | None,
        local: LocalPlan,
        seed: int,
        round_number: int,
        /,
    ) -> LocalResult:
        """Take the optimizer's steps, each with a fresh batch."""
        start = model[_WEIGHTS].astype(np.float64)
        weights, optimizer = start, optimizer_of(local)
        draws = generator(seed, "batches", round_number)
        for _ in range(local.local_steps):
            rows: slice | np.ndarray[tuple[int], np.dtype[np.int64]] = slice(None)
            if 0 < local.batch_size < self.n_examples:
                rows = draws.choice(self.n_examples, local.batch_size, replace=False)
            step = self._gradient(weights, self.inputs[rows], self.targets[rows])
            if correction is not None:
                step = step + correction
            step = step + proximal_gradient(weights, start, local.proximal)
            weights = weights - local.learning_rate * optimizer.direction(step)
        return LocalResult(model_after=weights, steps=local.local_steps)

    def gradient(self, model: NamedTensors, /) -> FloatVector:
        """Return the gradient over all examples."""
        return self._gradient(model[_WEIGHTS].astype(np.float64), self.inputs, self.targets)

    def evaluate(self, model: NamedTensors, /) -> Metrics:
        """Return the sum of squared residuals; nothing is ever "correct"."""
        residuals = self.inputs @ model[_WEIGHTS].astype(np.float64) - self.targets
        loss_sum = float(residuals @ residuals)
        return Metrics(loss_sum=loss_sum, correct=0, examples=self.n_examples)

    @staticmethod
    def _gradient(weights: FloatVector, inputs: FloatVector, targets: FloatVector) -> FloatVector:
        gradient: FloatVector = 2 / len(targets) * (inputs.T @ (inputs @ weights - targets))
        return gradient


def quadratic_task(curvature: float, optimum: float) -> LeastSquaresTask:
    """Return the task with the loss curvature · (w − optimum)² / 2 and one parameter."""
    root = math.sqrt(curvature / 2)
    return LeastSquaresTask(np.array([[root]]), np.array([root * optimum]))


def least_squares_toy(
    seed: int, *, silos: int = 10, points: int = 30, noise: float = 0.1, slopes: bool = True
) -> dict[str, LeastSquaresTask]:
    """Return the first sanity run's silos: x ~ N(0, 1), y = w_k x + noise, w_k ~ U(0.5, 5).

    Args:
        seed: of the data.
        silos: how many, named silo-01, silo-02, ….
        points: of each silo.
        noise: standard deviation of y's noise.
        slopes: False gives every silo the first one's w_k: independent draws of one population.
    """
    tasks = {}
    common = float(generator(seed, "slope", 1).uniform(0.5, 5))
    for number in range(1, silos + 1):
        slope = float(generator(seed, "slope", number).uniform(0.5, 5)) if slopes else common
        draws = generator(seed, "points", number)
        x = draws.normal(size=points)
        y = slope * x + noise * draws.normal(size=points)
        tasks[f"silo-{number:02}"] = LeastSquaresTask(x[:, None], y)
    return tasks


def pooled_solution(tasks: Mapping[str, LeastSquaresTask]) -> FloatVector:
    """Return the optimum of the mean of the silos' losses, each silo counting the same."""
    parts = tasks.values()
    products = np.sum([t.inputs.T @ t.inputs / t.n_examples for t in parts], axis=0)
    moments = np.sum([t.inputs.T @ t.targets / t.n_examples for t in parts], axis=0)
    return np.linalg.solve(products, moments).astype(np.float64)


def toy_task(settings: Mapping[str, object]) -> LeastSquaresTask:
    """Return one silo of `least_squares_toy`; a task factory for `task = "fl.testing:toy_task"`.

    Args:
        settings: "seed" and "points" as there; "silo", whose number from 1 it is (default 1).

    Raises:
        PlanError: an unknown setting or not a whole number.
    """
    values = {"seed": 0, "points": 30, "silo": 1, **settings}
    unknown = sorted(values.keys() - {"seed", "points", "silo"})
    if unknown or not all(type(value) is int for value in values.values()):
        raise PlanError(
            "toy_task: expected whole numbers for 'seed', 'points' and 'silo', got "
            f"{dict(settings)}"
        )
    seed, points, silo = (int(str(values[name])) for name in ("seed", "points", "silo"))
    return least_squares_toy(seed, silos=silo, points=points)[f"silo-{silo:02}"]


class DictMemory:
    """A silo's memory that lasts as long as the object."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}

    def read(self, name: str, /) -> bytes | None:
        """Return the entry, None if there is none."""
        return self.entries.get(name)

    def write(self, values: Mapping[str, bytes | None], /) -> None:
        """Write or remove the entries."""
        for name, value in values.items():
            if value is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = value

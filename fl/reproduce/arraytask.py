"""Two arrays and an objective as a silo's task; batches come as a shuffling loader gives them."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from fl import fields
from fl.optimizers import SGD
from fl.plan import LocalPlan
from fl.ports import FeatureMoments, FloatVector, LocalResult, Metrics, NamedTensors, Tensor
from fl.reproduce.objectives import Objective, Reals
from fl.seeding import generator
from fl.update import TensorLayout


class ArrayTask:
    """A silo of an experiment.

    The loader goes on from round to round, reshuffles at each pass and keeps the last, smaller
    batch; where round r begins in it follows from r, so that a round trained twice is the same.

    Args:
        objective: the model and its loss.
        inputs: shape (n, …), in the dtype that is trained in.
        targets: n rows.
    """

    def __init__(self, objective: Objective, inputs: Reals, targets: Reals) -> None:
        self._objective = objective
        self._inputs = inputs
        self._targets = targets

    @property
    def n_examples(self) -> int:
        """Return n."""
        return len(self._inputs)

    def initial_model(self, seed: int, /) -> dict[str, Tensor]:
        """Return the objective's parameters at the start."""
        return self._objective.initial(seed)

    def statistics(self) -> FeatureMoments:
        """Return no moments: the features are used as they are."""
        none = np.zeros(0)
        return FeatureMoments(names=(), counts=none.astype(np.int64), sums=none, squares=none)

    def prepare(self, _preprocess: Mapping[str, FloatVector], /) -> None:
        """Do nothing."""

    def train(
        self,
        model: NamedTensors,
        correction: FloatVector | None,
        local: LocalPlan,
        seed: int,
        round_number: int,
        /,
    ) -> LocalResult:
        """Take the plan's steps from `model`, in the dtype of the inputs.

        Raises:
            PlanError: the steps are not plain; no published setting here has others.
        """
        if local.optimizer != SGD:
            fields.refuse("local.optimizer", "'sgd' for a reproduction's task", local.optimizer)
        start = after = self._flat(model)
        shift = None if correction is None else correction.astype(start.dtype)
        steps = local.local_steps
        size = local.batch_size or self.n_examples
        for rows in _batches(self.n_examples, size, seed, (round_number - 1) * steps, steps):
            slope = self._objective.gradient(after, self._inputs[rows], self._targets[rows])
            if shift is not None:
                slope = slope + shift
            if local.proximal:
                slope = slope + local.proximal * (after - start)
            after = after - local.learning_rate * slope
        return LocalResult(model_after=after.astype(np.float64), steps=steps)

    def gradient(self, model: NamedTensors, /) -> FloatVector:
        """Return the gradient over all rows."""
        slope = self._objective.gradient(self._flat(model), self._inputs, self._targets)
        return slope.astype(np.float64)

    def evaluate(self, model: NamedTensors, /) -> Metrics:
        """Return loss and correct rows."""
        flat = self._flat(model)
        return Metrics(
            loss_sum=self._objective.loss_sum(flat, self._inputs, self._targets),
            correct=self._objective.correct(flat, self._inputs, self._targets),
            examples=self.n_examples,
        )

    def accuracy_of(self, model: NamedTensors) -> float:
        """Return the share of rows that are classified correctly."""
        return self._objective.correct(self._flat(model), self._inputs, self._targets) / len(
            self._inputs
        )

    def _flat(self, model: NamedTensors) -> Reals:
        flat: Reals = TensorLayout.of(model).flatten(model).astype(self._inputs.dtype)
        return flat


def _batches(
    rows: int, size: int, seed: int, first: int, count: int
) -> Iterator[NDArray[np.int64] | slice]:
    """Yield `count` batches of an endless loader, from batch `first` on."""
    if size >= rows:
        yield from (slice(None) for _ in range(count))
        return
    in_pass = -(-rows // size)
    order, current = np.zeros(0, dtype=np.int64), -1
    for batch in range(first, first + count):
        number, place = divmod(batch, in_pass)
        if number != current:
            order, current = generator(seed, "pass", number).permutation(rows), number
        yield order[place * size : (place + 1) * size]

"""A task that costs nothing to train and has as many parameters as one likes; numpy only."""

from collections.abc import Mapping

import numpy as np

from fl.plan import LocalPlan
from fl.ports import FeatureMoments, FloatVector, LocalResult, Metrics, NamedTensors, Tensor

_WEIGHTS = "weights"


class WideTask:
    """Moves every parameter a little.

    Args:
        dim: number of parameters.
    """

    n_examples = 1

    def __init__(self, dim: int) -> None:
        self._dim = dim

    def initial_model(self, _seed: int, /) -> dict[str, Tensor]:
        """Return zeros."""
        return {_WEIGHTS: np.zeros(self._dim, np.float32)}

    def statistics(self) -> FeatureMoments:
        """Return no moments."""
        none = np.zeros(0)
        return FeatureMoments(names=(), counts=none.astype(np.int64), sums=none, squares=none)

    def prepare(self, _preprocess: Mapping[str, FloatVector], /) -> None:
        """Do nothing."""

    def train(
        self,
        model: NamedTensors,
        _correction: FloatVector | None,
        local: LocalPlan,
        _seed: int,
        round_number: int,
        /,
    ) -> LocalResult:
        """Add a wave that is another one in each round."""
        wave = np.sin(np.arange(self._dim) * float(round_number))
        after = model[_WEIGHTS].astype(np.float64) + local.learning_rate * wave
        return LocalResult(model_after=after, steps=local.local_steps)

    def gradient(self, _model: NamedTensors, /) -> FloatVector:
        """Return zeros."""
        return np.zeros(self._dim)

    def evaluate(self, _model: NamedTensors, /) -> Metrics:
        """Return one example without loss."""
        return Metrics(loss_sum=0.0, correct=0, examples=1)


def wide_task(settings: Mapping[str, object]) -> WideTask:
    """Return the task of the plan's "dim"; a factory for `task = "bench.wide:wide_task"`."""
    return WideTask(int(str(settings["dim"])))

"""What a run needs from outside: a silo's task, which owns the data, and a silo's memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fl.plan import LocalPlan

FloatVector = NDArray[np.float64]
Tensor = NDArray[np.generic]
NamedTensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalResult:
    """What local training leaves behind.

    Attributes:
        model_after: shape (d,), float64; the model y after the last step, in the layout's order.
        steps: optimizer steps that were really taken.
    """

    model_after: FloatVector
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What a silo measured on its own examples; only sums over silos are ever released.

    Attributes:
        loss_sum: the loss summed (not averaged) over the examples.
        correct: examples classified correctly; 0 where that means nothing.
        examples: examples looked at.
        labels: shape (n,), int64, 0 or 1, for an AUC; None where there is none. It stays here.
        scores: shape (n,), in [0, 1], of class 1; likewise.
        pairs: concordant, tied and comparable pairs within the silo, for a C-index.
    """

    loss_sum: float
    correct: int
    examples: int
    labels: NDArray[np.int64] | None = field(default=None, compare=False)
    scores: FloatVector | None = field(default=None, compare=False)
    pairs: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureMoments:
    """Counts, sums and sums of squares of a silo's numeric features, missing values left out.

    Attributes:
        names: f feature names, the same at every silo.
        counts: shape (f,), int64.
        sums: shape (f,), float64; sum of x.
        squares: shape (f,), float64; sum of x squared.
    """

    names: tuple[str, ...]
    counts: NDArray[np.int64]
    sums: FloatVector
    squares: FloatVector


class LocalTask(Protocol):
    """A silo's model and data. Only this object ever sees an example."""

    @property
    def n_examples(self) -> int:
        """Return the number of training examples."""
        ...

    def initial_model(self, seed: int, /) -> dict[str, Tensor]:
        """Return the model at the run's start; the same tensors at every silo for one seed."""
        ...

    def statistics(self) -> FeatureMoments:
        """Return the moments of the numeric features; none (f = 0) where there are none."""
        ...

    def prepare(self, preprocess: Mapping[str, FloatVector], /) -> None:
        """Use these released statistics ("mean", "scale", each (f,)); empty without them.

        Called before each round's first `evaluate` or `train`.
        """
        ...

    def train(
        self,
        model: NamedTensors,
        correction: FloatVector | None,
        local: "LocalPlan",
        seed: int,
        round_number: int,
        /,
    ) -> LocalResult:
        """Take `local.local_steps` steps y -= learning_rate * direction from x.

        The direction is fl.optimizers' for gradient + correction + proximal * (y - x).

        Args:
            model: the received model x; never changed in place.
            correction: shape (d,), float64, c - c_k in the layout's order; None means zero.
            local: steps, batch size (0 = all examples), learning rate of this round, optimizer
                and proximal term.
            seed: this silo's seed of the run; with `round_number` it fixes the batches.
            round_number: the round's number.
        """
        ...

    def gradient(self, model: NamedTensors, /) -> FloatVector:
        """Return the gradient of the mean loss over all examples at `model`, shape (d,)."""
        ...

    def evaluate(self, model: NamedTensors, /) -> Metrics:
        """Return the sums of the metrics over the silo's training examples at `model`."""
        ...


class SiloMemory(Protocol):
    """What a silo remembers between rounds and restarts: small named blobs on its own disk."""

    def read(self, name: str, /) -> bytes | None:
        """Return what was last written under `name`, None if nothing."""
        ...

    def write(self, values: Mapping[str, bytes | None], /) -> None:
        """Write all of `values` or nothing, durably; None removes the name."""
        ...

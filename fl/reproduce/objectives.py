"""Losses of the published models over one flat vector, in numpy.

Their batches are small, so a step costs what its Python costs: numpy takes a step of McMahan's 2NN
(batch 10) in three quarters of the time that torch takes on one thread.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl.ports import Tensor
from fl.seeding import generator

# float32 where that is faster, float64 elsewhere.
Reals: TypeAlias = NDArray[np.floating]
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

_TINY: Final = 1e-12


class Objective(Protocol):
    """A model and its loss. Flat vectors hold the tensors in the order of their sorted names."""

    @property
    def shapes(self) -> Shapes:
        """The parameters' shapes, in the order of their sorted names."""
        ...

    def initial(self, seed: int, /) -> dict[str, Tensor]:
        """Return the parameters at the start."""
        ...

    def gradient(self, flat: Reals, inputs: Reals, targets: Reals, /) -> Reals:
        """Return the gradient of the batch's mean loss, shape (d,), in the dtype of `flat`."""
        ...

    def loss_sum(self, flat: Reals, inputs: Reals, targets: Reals, /) -> float:
        """Return the loss summed over the rows."""
        ...

    def correct(self, flat: Reals, inputs: Reals, targets: Reals, /) -> int:
        """Return how many rows are classified correctly; 0 where that means nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """inputs → one score, with a bias; drawn from ±1/√inputs as torch draws it.

    Attributes:
        inputs: number of features.
    """

    inputs: int

    @property
    def shapes(self) -> Shapes:
        """The bias, then the weights."""
        return {"bias": (1,), "weight": (self.inputs,)}

    def initial(self, seed: int, /) -> dict[str, Tensor]:
        """Return float64 parameters."""
        reach = 1 / math.sqrt(self.inputs)
        return {
            name: generator(seed, "initial", name).uniform(-reach, reach, shape)
            for name, shape in self.shapes.items()
        }

    @staticmethod
    def scores(flat: Reals, inputs: Reals) -> Reals:
        """Return the rows' scores."""
        scores: Reals = inputs @ flat[1:] + flat[0]
        return scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Logistic(Linear):
    """Binary cross entropy of the score's logistic function; targets 0 or 1."""

    def gradient(self, flat: Reals, inputs: Reals, targets: Reals, /) -> Reals:
        """Return the gradient."""
        residual = (_logistic(self.scores(flat, inputs)) - targets) / len(targets)
        return np.concatenate([[residual.sum()], residual @ inputs])

    def loss_sum(self, flat: Reals, inputs: Reals, targets: Reals, /) -> float:
        """Return the summed loss."""
        scores = self.scores(flat, inputs)
        return float((np.logaddexp(0, scores) - targets * scores).sum())

    def correct(self, flat: Reals, inputs: Reals, targets: Reals, /) -> int:
        """Return how many rows lie on their side of one half."""
        return int(((self.scores(flat, inputs) > 0) == (targets > 0.5)).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cox(Linear):
    """Cox's partial likelihood within the batch, ties by their order; targets are (event, time).

    The loss is the mean over the batch's rows of log Σ exp(score of those still at risk) − score,
    for rows with an event.

    Source: FLamby's Fed-TCGA-BRCA baseline loss.
    """

    def gradient(self, flat: Reals, inputs: Reals, targets: Reals, /) -> Reals:
        """Return the gradient."""
        order = np.argsort(-targets[:, 1], kind="stable")
        rows, events = inputs[order], targets[order, 0]
        scores = self.scores(flat, rows)
        log_risk = np.logaddexp.accumulate(scores)
        # Row i's risk set is rows 0..i: the share of j in it, for each event i.
        shares = np.exp(np.minimum(scores[None, :] - log_risk[:, None], 0)) * events[:, None]
        slope = (np.tril(shares).sum(axis=0) - events) / len(events)
        return np.concatenate([[slope.sum()], slope @ rows])

    def loss_sum(self, flat: Reals, inputs: Reals, targets: Reals, /) -> float:
        """Return the summed loss, all rows one batch."""
        order = np.argsort(-targets[:, 1], kind="stable")
        scores = self.scores(flat, inputs[order])
        return float((targets[order, 0] * (np.logaddexp.accumulate(scores) - scores)).sum())

    def correct(self, _flat: Reals, _inputs: Reals, _targets: Reals, /) -> int:
        """Return 0."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """Dense layers with ReLU between them and cross entropy at the end; softmax without hidden.

    Attributes:
        sizes: inputs, hidden layers, classes.
    """

    sizes: tuple[int, ...]

    @property
    def shapes(self) -> Shapes:
        """Each layer's bias and weight (inputs, outputs)."""
        pairs = list(zip(self.sizes, self.sizes[1:], strict=False))
        found: dict[str, tuple[int, ...]] = {}
        for place, (inputs, outputs) in enumerate(pairs):
            found[f"layer{place}.bias"] = (outputs,)
            found[f"layer{place}.weight"] = (inputs, outputs)
        return found

    def initial(self, seed: int, /) -> dict[str, Tensor]:
        """Return float32 parameters: zero without hidden layers, else ±1/√inputs."""
        model: dict[str, Tensor] = {}
        for place, inputs in enumerate(self.sizes[:-1]):
            reach = 1 / math.sqrt(inputs) if len(self.sizes) > 2 else 0.0
            for part in ("bias", "weight"):
                name = f"layer{place}.{part}"
                draws = generator(seed, "initial", name)
                model[name] = draws.uniform(-reach, reach, self.shapes[name]).astype(np.float32)
        return model

    def gradient(self, flat: Reals, inputs: Reals, targets: Reals, /) -> Reals:
        """Return the gradient by back-propagation."""
        layers = self._layers(flat)
        activities, scores = self._forward(layers, inputs)
        slope = _softmax(scores)
        slope[np.arange(len(slope)), targets.astype(np.int64)] -= 1
        slope /= len(slope)
        result = np.empty_like(flat)
        parts = self._layers(result)
        for place in range(len(layers) - 1, -1, -1):
            bias, weight = parts[place]
            np.matmul(activities[place].T, slope, out=weight)
            slope.sum(axis=0, out=bias)
            if place:
                slope = (slope @ layers[place][1].T) * (activities[place] > 0)
        return result

    def loss_sum(self, flat: Reals, inputs: Reals, targets: Reals, /) -> float:
        """Return the summed cross entropy."""
        _, scores = self._forward(self._layers(flat), inputs)
        right = _softmax(scores)[np.arange(len(scores)), targets.astype(np.int64)]
        return float(-np.log(right.astype(np.float64) + _TINY).sum())

    def correct(self, flat: Reals, inputs: Reals, targets: Reals, /) -> int:
        """Return how many rows' highest score is the right one."""
        _, scores = self._forward(self._layers(flat), inputs)
        return int((scores.argmax(axis=1) == targets).sum())

    def _layers(self, flat: Reals) -> list[tuple[Reals, Reals]]:
        """Return views of each layer's bias and weight."""
        layers = []
        start = 0
        for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False):
            weights = start + outputs
            stop = weights + inputs * outputs
            layers.append((flat[start:weights], flat[weights:stop].reshape(inputs, outputs)))
            start = stop
        return layers

    @staticmethod
    def _forward(layers: list[tuple[Reals, Reals]], inputs: Reals) -> tuple[list[Reals], Reals]:
        """Return each layer's inputs, and the scores."""
        activities = [inputs]
        scores = inputs
        for place, (bias, weight) in enumerate(layers):
            scores = activities[-1] @ weight + bias
            if place < len(layers) - 1:
                activities.append(np.maximum(scores, 0))
        return activities, scores


def _logistic(scores: Reals) -> Reals:
    chances: Reals = 0.5 * (1 + np.tanh(0.5 * scores))
    return chances


def _softmax(scores: Reals) -> Reals:
    shares: Reals = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return shares

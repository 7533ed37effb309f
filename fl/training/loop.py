"""Local training: K steps of gradient descent with the algorithm's correction, from seeded batches.

A step is y −= η d, d the optimizer's direction (fl.optimizers) for g + (c − c_k) + μ (y − x),
with g the gradient of the mean loss of one batch (SCAFFOLD, Karimireddy et al. 2020, algorithm 1,
line 10; FedProx, Li et al. 2020; FedAvg has neither). K counts executed steps, neither passes over
the data nor examples (SCA-04). Plain steps are taken in place; other optimizers see flat vectors.
torch's own are not used: building one imports torch's compiler, which costs more than a demo's
training.

Everything random is fixed by (seed, round): the batches, and torch's own generator for dropout,
which is put back afterwards. So a silo that trains a round again after a crash gets the same
result.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl.errors import DataError
from fl.metrics import Ranking
from fl.optimizers import LocalOptimizer, Sgd, optimizer_of
from fl.plan import LocalPlan
from fl.ports import FloatVector, LocalResult, Metrics
from fl.seeding import derive_seed, generator
from fl.training import bridge

# The mean of a batch's losses, a 0-d tensor, from the module's outputs and the targets.
LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# How many of a batch's outputs are right.
CorrectFunction = Callable[[torch.Tensor, torch.Tensor], int]
# Outputs and targets of all examples to what an AUC or a C-index needs of them.
RankFunction = Callable[[torch.Tensor, torch.Tensor], Ranking]
Rows = NDArray[np.int64]

# Full gradients and evaluations take this many examples at a time, for memory's sake.
_PIECE_ROWS: Final = 4096


class Examples(Protocol):
    """A silo's training examples."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def take(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets of these rows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorExamples:
    """Examples that are two tensors with one row for each example."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets) or len(self.inputs) == 0:
            raise DataError(
                "expected inputs and targets with one row for each example, at least one"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets of these rows."""
        chosen = torch.from_numpy(rows)
        return self.inputs[chosen], self.targets[chosen]


class Dataset(Protocol):
    """A map-style dataset: a length, and (input, target) by number."""

    def __len__(self) -> int:
        """Return how many examples there are."""
        ...

    def __getitem__(self, index: int, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one example."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetExamples:
    """Examples that a dataset loads when they are needed."""

    dataset: Dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets of these rows, stacked."""
        inputs, targets = zip(*(self.dataset[int(row)] for row in rows), strict=True)
        return torch.stack(inputs), torch.stack(targets)


def train(
    module: nn.Module,
    loss: LossFunction,
    examples: Examples,
    *,
    local: LocalPlan,
    correction: FloatVector | None,
    seed: int,
    round_number: int,
) -> LocalResult:
    """Take `local.local_steps` steps from the parameters that the module holds.

    Args:
        module: its trainable parameters are changed in place; buffers as training mode does.
        loss: the mean over a batch, 0-d.
        examples: one or more.
        local: steps K, batch size (0, or more than there are examples: all), learning rate η,
            optimizer and proximal μ.
        correction: shape (d,), float64, c − c_k in the layout's order; None means zero.
        seed: this silo's seed of the run.
        round_number: with `seed` fixes every random choice.

    Raises:
        SpecMismatchError: the correction has another length.
        NonFiniteUpdateError: training ended in NaN or infinity; names the parameters.
        DataError: the loss is no 0-d tensor.
    """
    parameters = list(bridge.trainable(module).values())
    corrections = [] if correction is None else list(bridge.pieces(module, correction))
    batches = _batches(len(examples), local.batch_size, seed, round_number)
    anchors = [p.detach().clone() for p in parameters] if local.proximal else []
    optimizer = optimizer_of(local)
    steps = 0
    module.train()
    with _own_randomness(seed, round_number):
        while steps < local.local_steps:
            _backward(module, loss, examples, next(batches))
            with torch.no_grad():
                _step(module, local, optimizer, corrections, anchors)
            steps += 1
    after = bridge.export_model(module)
    return LocalResult(model_after=bridge.layout(module).flatten(after), steps=steps)


def gradient(module: nn.Module, loss: LossFunction, examples: Examples) -> FloatVector:
    """The gradient of the mean loss over all examples, shape (d,), float64.

    The module is in training mode, as for the steps that this gradient corrects; its buffers and
    torch's generator are put back.

    Raises:
        DataError: the loss is no 0-d tensor.
    """
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    total = np.zeros(bridge.layout(module).size)
    module.train()
    with _own_randomness(0, 0):
        for rows in _row_pieces(len(examples)):
            _backward(module, loss, examples, rows)
            total += bridge.flat_gradient(module) * (len(rows) / len(examples))
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    return total


def evaluate(
    module: nn.Module,
    loss: LossFunction,
    examples: Examples,
    correct: CorrectFunction | None,
    rank: RankFunction | None = None,
) -> Metrics:
    """Sums over all examples, with the module in evaluation mode.

    Args:
        module: unchanged.
        loss: the mean over a batch, 0-d.
        examples: one or more.
        correct: counts right outputs; None where that means nothing.
        rank: of all outputs and targets, what an AUC or a C-index needs; None for neither.
    """
    ranked: list[tuple[torch.Tensor, torch.Tensor]] = []
    loss_sum = 0.0
    right = 0
    module.eval()
    with torch.no_grad():
        for rows in _row_pieces(len(examples)):
            inputs, targets = _take(module, examples, rows)
            outputs = module(inputs)
            loss_sum += float(loss(outputs, targets)) * len(rows)
            right += 0 if correct is None else int(correct(outputs, targets))
            if rank is not None:
                ranked.append((outputs, targets))
    metrics = Metrics(loss_sum=loss_sum, correct=right, examples=len(examples))
    if rank is None:
        return metrics
    outputs, targets = (torch.cat(parts) for parts in zip(*ranked, strict=True))
    found = rank(outputs, targets)
    return replace(metrics, labels=found.labels, scores=found.scores, pairs=found.pairs)


def _step(
    module: nn.Module,
    local: LocalPlan,
    optimizer: LocalOptimizer,
    corrections: list[tuple[nn.Parameter, torch.Tensor]],
    anchors: list[torch.Tensor],
) -> None:
    """Move the parameters once; `anchors` are x where there is a proximal term."""
    parameters = bridge.trainable(module).values()
    pulls = [p - x for p, x in zip(parameters, anchors, strict=True)] if anchors else []
    if not isinstance(optimizer, Sgd):
        flat = bridge.flat_gradient(module)
        for extra in ([piece for _, piece in corrections], [local.proximal * p for p in pulls]):
            if extra:
                flat += bridge.flattened(extra)
        direction = optimizer.direction(flat)
        for parameter, piece in bridge.pieces(module, direction):
            parameter.add_(piece, alpha=-local.learning_rate)
        return
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.add_(parameter.grad, alpha=-local.learning_rate)
    for parameter, piece in corrections:
        parameter.add_(piece, alpha=-local.learning_rate)
    for parameter, pull in zip(parameters, pulls, strict=False):
        parameter.add_(pull, alpha=-local.learning_rate * local.proximal)


def _backward(module: nn.Module, loss: LossFunction, examples: Examples, rows: Rows) -> None:
    """Leave the gradient of these rows' mean loss in the parameters."""
    inputs, targets = _take(module, examples, rows)
    module.zero_grad(set_to_none=True)
    value = loss(module(inputs), targets)
    if value.ndim != 0:
        raise DataError(
            f"the loss function must return the batch's mean as a 0-d tensor, got shape"
            f" {tuple(value.shape)}"
        )
    value.backward()  # type: ignore[no-untyped-call] # torch ships this method without types


def _take(module: nn.Module, examples: Examples, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """These rows on the module's device."""
    device = next(module.parameters()).device
    inputs, targets = examples.take(rows)
    return inputs.to(device), targets.to(device)


def _batches(count: int, size: int, seed: int, round_number: int) -> Iterator[Rows]:
    """Endless batches of exactly `size` rows, cut from shuffled passes laid end to end.

    A short batch at the end of a pass would be a noisier step, and one of a single row breaks
    BatchNorm.
    """
    if size == 0 or size >= count:
        while True:
            yield np.arange(count)
    draws = generator(seed, "batches", round_number)
    waiting = np.zeros(0, dtype=np.int64)
    while True:
        while len(waiting) < size:
            waiting = np.concatenate([waiting, draws.permutation(count)])
        yield waiting[:size]
        waiting = waiting[size:]


def _row_pieces(count: int) -> Iterator[Rows]:
    """All rows in order, in pieces."""
    for start in range(0, count, _PIECE_ROWS):
        yield np.arange(start, min(start + _PIECE_ROWS, count))


@contextmanager
def _own_randomness(seed: int, round_number: int) -> Iterator[None]:
    """Let torch's generator (dropout) start from the seed and the round, and put it back."""
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, "torch", round_number))
        yield

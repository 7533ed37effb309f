"""Silos over an image set, and the test accuracy that their runs are measured by."""

from collections.abc import Callable, Sequence

from fl.partition import Rows
from fl.ports import NamedTensors
from fl.reproduce.arraytask import ArrayTask
from fl.reproduce.datasets import Split
from fl.reproduce.objectives import Dense

SOFTMAX = Dense(sizes=(784, 10))
TWO_LAYERS = Dense(sizes=(784, 200, 200, 10))  # McMahan's 2NN, 199,210 parameters


def silos_of(split: Split, model: Dense, rows: Sequence[Rows]) -> dict[str, ArrayTask]:
    """Return one task for each silo's training rows."""
    return {
        f"silo-{place:03}": ArrayTask(model, split.inputs[own], split.targets[own])
        for place, own in enumerate(rows, start=1)
    }


def accuracy_on(split: Split, model: Dense) -> Callable[[NamedTensors], float]:
    """Return what measures a model's accuracy on the test rows."""
    return ArrayTask(model, split.test_inputs, split.test_targets).accuracy_of

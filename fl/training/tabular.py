"""The built-in task: a silo's table and a model of dense layers.

Torch is loaded by the first `train` or `gradient`. Evaluation is numpy's, with the function that
`secagg model evaluate` uses.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dp.plan import PrivacyPlan
from fl.errors import DataError, RunStateError
from fl.models import TabularModel, initial_parameters, losses, predict
from fl.plan import LocalPlan
from fl.ports import FeatureMoments, FloatVector, LocalResult, Metrics, NamedTensors, Tensor
from fl.privacy import IntVector, PrivateStep
from fl.schema import FeatureSchema, Table

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fl.training.loop import TensorExamples


class TabularTask:
    """Trains the model of a plan's `tabular` settings on one silo's rows.

    Args:
        settings: see TabularModel.parse.
        table: this silo's training rows, with labels.

    Raises:
        SchemaError: the settings are wrong.
        DataError: the table has no rows or no labels.
    """

    def __init__(self, settings: Mapping[str, object], table: Table) -> None:
        self._settings = settings
        self._model = TabularModel.parse(settings)
        if table.labels is None or len(table) == 0:
            raise DataError("training needs a table with labels and at least one row")
        self._table = table
        self._labels = table.labels
        self._inputs: FloatVector | None = None
        self._module: nn.Module | None = None

    @classmethod
    def from_csv(cls, settings: Mapping[str, object], path: Path) -> "TabularTask":
        """Read the silo's file.

        Raises:
            SchemaError: the settings are wrong, or the file does not fit; lists every problem.
            DataError: the file cannot be read.
        """
        return cls(settings, TabularModel.parse(settings).schema.read_csv(path))

    @property
    def schema(self) -> FeatureSchema:
        """The schema that the table fits."""
        return self._model.schema

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done with cells that are missing, for the silo's own screen."""
        return self._table.notes

    @property
    def n_examples(self) -> int:
        """Return the number of training examples."""
        return len(self._table)

    def initial_model(self, seed: int, /) -> dict[str, Tensor]:
        """Return the model at the run's start."""
        return dict(initial_parameters(self._settings, seed))

    def statistics(self) -> FeatureMoments:
        """Return the moments of the numeric features, in units of each one's scale."""
        values = self._table.numeric
        return FeatureMoments(
            names=tuple(feature.name for feature in self._model.schema.numeric),
            counts=np.count_nonzero(~np.isnan(values), axis=0).astype(np.int64),
            sums=np.nansum(values, axis=0),
            squares=np.nansum(values**2, axis=0),
        )

    def prepare(self, preprocess: Mapping[str, FloatVector], /) -> None:
        """Encode the rows with the released mean and scale, if there are any.

        Raises:
            SchemaError: they do not fit the schema.
        """
        self._inputs = self._model.schema.encode(
            self._table, preprocess.get("mean"), preprocess.get("scale")
        )

    def train(
        self,
        model: NamedTensors,
        correction: FloatVector | None,
        local: LocalPlan,
        seed: int,
        round_number: int,
        /,
    ) -> LocalResult:
        """Take the plan's local steps from `model`."""
        from fl.training import loop

        module, examples = self._loaded(model)
        return loop.train(
            module,
            self._loss,
            examples,
            local=local,
            correction=correction,
            seed=seed,
            round_number=round_number,
        )

    def gradient(self, model: NamedTensors, /) -> FloatVector:
        """Return the gradient of the mean loss over all rows at `model`, shape (d,)."""
        from fl.training import loop

        module, examples = self._loaded(model)
        return loop.gradient(module, self._loss, examples)

    def check_private(self, plan: PrivacyPlan, /) -> None:
        """Refuse what clipping each row does not protect; a row is a record, and a patient."""
        from fl.training import private

        self.prepare({})
        module, examples = self._loaded(self.initial_model(0))
        private.check(module, self._loss, examples, plan, None)

    def train_private(self, model: NamedTensors, step: PrivateStep, /) -> FloatVector | IntVector:
        """Take a round's private steps from `model`."""
        from fl.training import private

        module, examples = self._loaded(model)
        return private.step(module, self._loss, examples, step, correct=_right)

    def measure_private(self, model: NamedTensors, step: PrivateStep, /) -> IntVector:
        """Return a metric release's noised integers at `model`, under isrl."""
        from fl.training import private

        module, examples = self._loaded(model)
        return private.measure(module, self._loss, examples, step, correct=_right)

    def evaluate(self, model: NamedTensors, /) -> Metrics:
        """Return the summed loss and the correct predictions over all rows at `model`."""
        inputs = self._encoded()
        probabilities = predict(self._model, model, inputs)
        is_binary = probabilities.shape[1] == 2
        return Metrics(
            loss_sum=float(losses(self._model, model, inputs, self._labels).sum()),
            correct=int((probabilities.argmax(axis=1) == self._labels).sum()),
            examples=self.n_examples,
            labels=self._labels if is_binary else None,
            scores=probabilities[:, 1] if is_binary else None,
        )

    def _encoded(self) -> FloatVector:
        if self._inputs is None:
            raise RunStateError(
                "the task has not been prepared; call prepare() in each round first"
            )
        return self._inputs

    def _loaded(self, model: NamedTensors) -> "tuple[nn.Module, TensorExamples]":
        """The module with the model's parameters, and the rows as tensors."""
        import torch

        from fl.training import bridge
        from fl.training.loop import TensorExamples

        if self._module is None:
            self._module = build_module(self._model)
        bridge.load_model(self._module, model)
        inputs = torch.tensor(self._encoded(), dtype=torch.float32)
        return self._module, TensorExamples(inputs=inputs, targets=torch.tensor(self._labels))

    def _loss(self, outputs: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
        from torch.nn import functional

        if outputs.shape[1] == 1:
            return functional.binary_cross_entropy_with_logits(
                outputs[:, 0], targets.to(outputs.dtype)
            )
        return functional.cross_entropy(outputs, targets)


def _right(outputs: "torch.Tensor", targets: "torch.Tensor") -> int:
    """Count right outputs: of one logit by its sign, of several by the largest."""
    if outputs.shape[1] == 1:
        return int(((outputs[:, 0] > 0) == (targets == 1)).sum())
    return int((outputs.argmax(dim=1) == targets).sum())


def build_module(model: TabularModel) -> "nn.Module":
    """The torch module whose parameters fl.models describes, initialized as torch does."""
    from torch import nn

    stack = nn.Sequential()
    for name, inputs, outputs in model.layers:
        stack.add_module(name, nn.Linear(inputs, outputs))
        if name != "output":
            stack.add_module(f"{name}_relu", nn.ReLU())
    return stack

"""A silo's own model: `task = "package.module:factory"`, code that lives at the silo.

The factory is called with the task's settings. It returns an `OwnModel`, or any object with the
methods of fl.ports.LocalTask, for models that are not torch's.
"""

import difflib
import importlib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from dp.plan import PrivacyPlan
from fl.errors import DataError, LearningError, PlanError
from fl.plan import LocalPlan
from fl.ports import (
    FeatureMoments,
    FloatVector,
    LocalResult,
    LocalTask,
    Metrics,
    NamedTensors,
    Tensor,
)
from fl.privacy import IntVector, PrivateStep
from fl.seeding import derive_seed

if TYPE_CHECKING:
    from torch import nn

    from fl.training.loop import CorrectFunction, Examples, LossFunction, RankFunction

_TASK_METHODS: Final = (
    "n_examples",
    "initial_model",
    "statistics",
    "prepare",
    "train",
    "gradient",
    "evaluate",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnModel:
    """A torch model with its data.

    Args:
        build: makes the module, freshly initialized; every silo's must have the same names and
            shapes. Called under a seed, so it may draw from torch's generator.
        examples: the training rows, as fl.training.loop.TensorExamples or DatasetExamples.
        loss: (outputs, targets) to the batch's mean loss, 0-d.
        correct: (outputs, targets) to the number of right outputs; None where that means nothing.
        rank: (outputs, targets) of all examples to the fl.metrics.Ranking that a run with AUC or
            C-index asks for; None where there is neither.
        unit_of: each row's patient, numbered from 0 without gaps, for a privacy plan of the unit
            patient; None: every row is a unit.
    """

    build: "Callable[[], nn.Module]"
    examples: "Examples"
    loss: "LossFunction"
    correct: "CorrectFunction | None" = None
    rank: "RankFunction | None" = None
    unit_of: IntVector | None = None


class OwnTask:
    """An OwnModel as a LocalTask. Its data are used as they come: no federated standardization."""

    def __init__(self, own: OwnModel) -> None:
        self._own = own
        self._module = self._built(seed=0)

    @property
    def n_examples(self) -> int:
        """Return the number of training examples."""
        return len(self._own.examples)

    @property
    def knows_patients(self) -> bool:
        """Whether each row's patient is known; else every row is taken for one."""
        return self._own.unit_of is not None

    def initial_model(self, seed: int, /) -> dict[str, Tensor]:
        """Return the trainable parameters of a module built under `seed`."""
        from fl.training import bridge

        return bridge.export_model(self._built(seed))

    def statistics(self) -> FeatureMoments:
        """Return no moments: an own model's features are not known here."""
        none = np.zeros(0)
        return FeatureMoments(names=(), counts=none.astype(np.int64), sums=none, squares=none)

    def prepare(self, preprocess: Mapping[str, FloatVector], /) -> None:
        """Do nothing: there is nothing to standardize."""

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
        from fl.training import bridge, loop

        bridge.load_model(self._module, model)
        return loop.train(
            self._module,
            self._own.loss,
            self._own.examples,
            local=local,
            correction=correction,
            seed=seed,
            round_number=round_number,
        )

    def gradient(self, model: NamedTensors, /) -> FloatVector:
        """Return the gradient of the mean loss over all examples at `model`, shape (d,)."""
        from fl.training import bridge, loop

        bridge.load_model(self._module, model)
        return loop.gradient(self._module, self._own.loss, self._own.examples)

    def check_private(self, plan: PrivacyPlan, /) -> None:
        """Refuse a module, loss or data that clipping each unit does not protect."""
        from fl.training import private

        own = self._own
        private.check(self._module, own.loss, own.examples, plan, own.unit_of)

    def train_private(self, model: NamedTensors, step: PrivateStep, /) -> FloatVector | IntVector:
        """Take a round's private steps from `model`."""
        from fl.training import bridge, private

        own = self._own
        bridge.load_model(self._module, model)
        return private.step(
            self._module, own.loss, own.examples, step, unit_of=own.unit_of, correct=own.correct
        )

    def measure_private(self, model: NamedTensors, step: PrivateStep, /) -> IntVector:
        """Return a metric release's noised integers at `model`, under isrl."""
        from fl.training import bridge, private

        own = self._own
        bridge.load_model(self._module, model)
        return private.measure(
            self._module, own.loss, own.examples, step, unit_of=own.unit_of, correct=own.correct
        )

    def evaluate(self, model: NamedTensors, /) -> Metrics:
        """Return the sums over all examples at `model`."""
        from fl.training import bridge, loop

        bridge.load_model(self._module, model)
        own = self._own
        return loop.evaluate(self._module, own.loss, own.examples, own.correct, own.rank)

    def _built(self, seed: int) -> "nn.Module":
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(derive_seed(seed, "build"))
            return self._own.build()


def load_task(reference: str, settings: Mapping[str, object]) -> LocalTask:
    """Import a factory and make the silo's task.

    Args:
        reference: "package.module:factory", importable in the silo's environment.
        settings: handed to the factory.

    Raises:
        PlanError: the reference is malformed, cannot be imported, or gives no task.
        DataError: the factory failed; its error's text, which may quote data, is only its cause.
    """
    module_name, _, factory_name = reference.partition(":")
    if not module_name or not factory_name:
        raise PlanError(f"task: expected 'package.module:factory', got {reference!r}")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise PlanError(
            f"task {reference!r}: importing {module_name} failed: {error}; is it installed"
            " here, or on PYTHONPATH?"
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        close = difflib.get_close_matches(factory_name, dir(module), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise PlanError(f"task {reference!r}: {module_name} has no function {factory_name!r}{hint}")
    try:
        made = factory(settings)
    except LearningError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise DataError(
            f"task {reference!r}: the factory failed with {type(error).__name__} at"
            f" {Path(frame.filename).name}:{frame.lineno}; call it by hand to see the whole error"
        ) from error
    if isinstance(made, OwnModel):
        return OwnTask(made)
    lacking = [name for name in _TASK_METHODS if not hasattr(made, name)]
    if lacking:
        raise PlanError(
            f"task {reference!r}: the factory must return an OwnModel or an object with the methods"
            f" of LocalTask; {type(made).__name__} lacks {', '.join(lacking)}"
        )
    return cast("LocalTask", made)  # its methods were looked for just above

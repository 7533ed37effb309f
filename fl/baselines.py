"""What the federation is compared with: one task trained on its own, with the same loop and plan.

Given all silos' rows as one task, it is the pooled training that a federation cannot do; given one
silo's rows, it is what that silo would have without the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fl.plan import TrainingPlan
from fl.ports import FloatVector, LocalTask, Tensor
from fl.statistics import moment_values, standardization
from fl.update import TensorLayout, summed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Baseline:
    """A model trained alone.

    Args:
        model: parameters by name.
        preprocess: "mean" and "scale" of the task's own rows; empty if the plan does not
        standardize.
    """

    model: Mapping[str, Tensor]
    preprocess: Mapping[str, FloatVector]


def train_alone(task: LocalTask, plan: TrainingPlan) -> Baseline:
    """Train as many rounds of as many local steps as the plan has, without anybody else.

    Args:
        task: of any LocalTask; it is left prepared with its own statistics.
        plan: its algorithm, weights and server step play no part: with one silo they change
        nothing.

    Raises:
        LearningError: what the task refuses.
    """
    preprocess: Mapping[str, FloatVector] = {}
    if plan.standardize:
        preprocess = standardization(moment_values(task.statistics(), n_max=1))
    task.prepare(preprocess)
    model = task.initial_model(plan.seed)
    layout = TensorLayout.of(summed(model))
    for number in range(plan.first_training_round, plan.last_round + 1):
        result = task.train(model, None, plan.local, plan.seed, number)
        model |= layout.unflatten(result.model_after)
    return Baseline(model=model, preprocess=preprocess)

"""The toy tasks do what they say."""

from dataclasses import replace

import numpy as np
import pytest

from fl.errors import PlanError
from fl.plan import LocalPlan
from fl.testing import (
    DictMemory,
    LeastSquaresTask,
    least_squares_toy,
    pooled_solution,
    quadratic_task,
    toy_task,
)
from fl.training.custom import load_task

STEPS = LocalPlan(local_steps=3, learning_rate=0.1)


def test_training_is_gradient_descent_with_the_correction() -> None:
    """Three steps on (w − 1)² / 2 with an extra gradient of 0.5, by hand."""
    task = quadratic_task(1, 1)
    model = task.initial_model(0)
    w = 0.0
    for _ in range(3):
        w -= 0.1 * ((w - 1) + 0.5)
    result = task.train(model, np.array([0.5]), STEPS, 0, 1)
    np.testing.assert_allclose(result.model_after, [w])
    assert result.steps == 3
    assert model["weights"].tolist() == [0.0]
    np.testing.assert_allclose(task.gradient(model), [-1.0])
    assert task.evaluate(model).loss_sum == pytest.approx(0.5)


def test_batches_follow_the_seed_and_the_round() -> None:
    """Small batches differ by seed and round, and repeat."""
    task = least_squares_toy(0, silos=1)["silo-01"]
    small = replace(STEPS, batch_size=4)
    model = task.initial_model(0)
    ends = [
        float(task.train(model, None, small, seed, number).model_after[0])
        for seed, number in ((1, 1), (1, 1), (1, 2), (2, 1))
    ]
    assert ends[0] == ends[1]
    assert len(set(ends)) == 3


def test_pooled_solution_has_zero_gradient() -> None:
    """The mean of the silos' gradients vanishes there."""
    toy = least_squares_toy(0, silos=4)
    model = {"weights": pooled_solution(toy)}
    mean = np.mean([task.gradient(model) for task in toy.values()], axis=0)
    np.testing.assert_allclose(mean, 0, atol=1e-12)


def test_toy_task_is_a_task_factory() -> None:
    """Processes load it by name; the silo's own settings say which silo it is."""
    task = load_task("fl.testing:toy_task", {"seed": 3, "points": 12, "silo": 2})
    same = least_squares_toy(3, silos=2, points=12)["silo-02"]
    assert isinstance(task, LeastSquaresTask)
    np.testing.assert_array_equal(task.inputs, same.inputs)
    np.testing.assert_array_equal(task.targets, same.targets)
    for wrong in ({"silos": 2}, {"silo": "2"}, {"points": True}):
        with pytest.raises(PlanError, match="toy_task"):
            toy_task(wrong)


def test_memory_removes_with_none() -> None:
    """None takes an entry away."""
    memory = DictMemory()
    memory.write({"a": b"1", "b": b"2"})
    memory.write({"a": None, "c": None})
    assert (memory.read("a"), memory.read("b")) == (None, b"2")

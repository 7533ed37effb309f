"""Own tasks: loaded by name, wrapped, and refused with a reason."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fl.errors import DataError, PlanError
from fl.metrics import Ranking, auc, concordance_pairs
from fl.plan import LocalPlan
from fl.training.custom import OwnModel, OwnTask, load_task
from fl.training.loop import TensorExamples
from fl.update import TensorLayout

EXAMPLES = Path(__file__).parents[3] / "examples"


def own() -> OwnModel:
    """A model with a frozen part and a counter of correct outputs."""

    def build() -> nn.Module:
        frozen = nn.Linear(2, 2).requires_grad_(requires_grad=False)
        return nn.Sequential(frozen, nn.Linear(2, 2))

    draws = np.random.default_rng(1)
    inputs = torch.tensor(draws.normal(size=(20, 2)), dtype=torch.float32)
    return OwnModel(
        build=build,
        examples=TensorExamples(inputs=inputs, targets=(inputs[:, 0] > 0).long()),
        loss=nn.functional.cross_entropy,
        correct=lambda outputs, targets: int((outputs.argmax(dim=1) == targets).sum()),
    )


def test_the_example_runs_as_its_docstring_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipped example's factory, on a CSV file, learns y = a − b."""
    path = tmp_path / "patients.csv"
    lines = [f"{a / 10},{b / 10},{(a - b) / 10}" for a in range(-5, 6) for b in range(-5, 6)]
    path.write_text("\n".join(["age,pressure,risk", *lines]), encoding="utf-8")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "own_task", raising=False)
    settings = {"csv": str(path), "inputs": ["age", "pressure"], "target": "risk"}
    task = load_task("own_task:make", settings)
    model = task.initial_model(1)
    before = task.evaluate(model)
    local = LocalPlan(local_steps=100, batch_size=16, learning_rate=0.1)
    after = TensorLayout.of(model).unflatten(task.train(model, None, local, 1, 1).model_after)
    assert task.evaluate(after).loss_sum < 0.1 * before.loss_sum
    assert before.examples == task.n_examples == 121


def test_a_wrapped_model_starts_alike_everywhere_and_trains() -> None:
    """One seed gives every silo the same start; only the trainable part is exchanged."""
    task, elsewhere = OwnTask(own()), OwnTask(own())
    torch.manual_seed(3)
    model, other = task.initial_model(5), elsewhere.initial_model(5)
    assert model.keys() == other.keys() == {"1.weight", "1.bias"}
    for name, tensor in model.items():
        assert np.array_equal(tensor, other[name])
    assert not np.array_equal(model["1.weight"], task.initial_model(6)["1.weight"])
    task.prepare({})
    assert task.statistics().names == ()
    local = LocalPlan(local_steps=50, learning_rate=0.5)
    result = task.train(model, None, local, 1, 1)
    after = TensorLayout.of(model).unflatten(result.model_after)
    assert task.evaluate(after).loss_sum < task.evaluate(model).loss_sum
    assert task.evaluate(after).correct > 15
    slope = task.gradient(model)
    small = LocalPlan(local_steps=1, learning_rate=1e-3)
    step = task.train(model, None, small, 1, 1).model_after - TensorLayout.of(model).flatten(model)
    assert np.allclose(step, -1e-3 * slope, atol=1e-7)


def test_an_own_model_may_be_ranked() -> None:
    """An AUC from secure histograms, a C-index from pairs: what a run asks of a task."""

    def rank(outputs: torch.Tensor, targets: torch.Tensor) -> Ranking:
        scores = outputs.softmax(dim=1)[:, 1].double().numpy()
        times, events = np.arange(20.0), np.ones(20, dtype=np.int64)
        pairs = concordance_pairs(times, events, scores)
        return Ranking(labels=targets.numpy(), scores=scores, pairs=pairs)

    task = OwnTask(replace(own(), rank=rank))
    metrics = task.evaluate(task.initial_model(1))
    assert metrics.labels is not None
    assert metrics.scores is not None
    assert 0 <= auc(metrics.labels, metrics.scores) <= 1
    assert metrics.scores.shape == (20,)
    assert metrics.pairs[2] == 190
    plain = OwnTask(own()).evaluate(task.initial_model(1))
    assert (plain.labels, plain.pairs) == (None, (0, 0, 0))
    assert plain.loss_sum == metrics.loss_sum


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("my_tasks", "expected 'package.module:factory', got 'my_tasks'"),
        (":make", "expected 'package.module:factory'"),
        ("no_such_module_here:make", "importing no_such_module_here failed.*PYTHONPATH"),
        ("tasks_of_a_test:maek", "no function 'maek'; did you mean 'make'"),
        ("tasks_of_a_test:number", "no function 'number'"),
        (
            "tasks_of_a_test:make",
            "dict lacks n_examples, initial_model, statistics, prepare, train",
        ),
    ],
)
def test_a_task_that_cannot_be_made_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, said: str
) -> None:
    """Form, module, function and result: each is named with what to do."""
    source = "number = 1\n\ndef make(settings):\n    return {}\n"
    (tmp_path / "tasks_of_a_test.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tasks_of_a_test", raising=False)
    with pytest.raises(PlanError, match=said):
        load_task(reference, {})


def test_a_factory_that_fails_is_a_data_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named by type and place, so that a silo can refuse with it; its text may quote data."""
    source = 'def make(settings):\n    return {}["patient 4711"]\n'
    (tmp_path / "failing_tasks_of_a_test.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DataError, match=r"KeyError at failing_tasks_of_a_test\.py:2") as caught:
        load_task("failing_tasks_of_a_test:make", {})
    assert "4711" not in str(caught.value)


def test_a_task_without_torch_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any object with LocalTask's methods will do; its settings reach the factory."""
    methods = ("initial_model", "statistics", "prepare", "train", "gradient", "evaluate")
    source = "class Task:\n    n_examples = 3\n"
    source += "".join(f"    def {name}(self, *_): ...\n" for name in methods)
    source += (
        "def make(settings):\n    task = Task()\n    task.settings = settings\n    return task\n"
    )
    (tmp_path / "numpy_tasks_of_a_test.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    task = load_task("numpy_tasks_of_a_test:make", {"depth": 3})
    assert task.n_examples == 3
    assert vars(task) == {"settings": {"depth": 3}}

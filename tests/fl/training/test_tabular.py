"""The built-in task: a CSV file in, a LocalTask that learns, with and without torch agreeing."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fl.errors import DataError, RunStateError, SchemaError
from fl.plan import LocalPlan
from fl.ports import LocalTask
from fl.training import configure_threads
from fl.training.tabular import TabularTask
from fl.update import TensorLayout

SCHEMA = {
    "features": [
        {"name": "size", "missing": "mean"},
        {"name": "big", "scale": 1000},
        {"name": "kind", "kind": "categorical", "categories": ["a", "b"], "missing": "category"},
    ],
    "target": {"name": "label", "classes": ["0", "1", "2"]},
}
BINARY = {"schema": SCHEMA | {"target": {"name": "label", "positive": 1}}}
MULTICLASS = {"schema": SCHEMA, "model": "mlp", "hidden": [8]}
DRAWS = np.random.default_rng(2)
STATISTICS = {"mean": np.array([0.0, 1.0]), "scale": np.array([2.0, 0.5])}


def written(folder: Path, classes: int) -> Path:
    """A learnable table: the label follows size, with some cells missing."""
    size = DRAWS.normal(size=120)
    label = np.clip(np.floor(size + classes / 2), 0, classes - 1).astype(int)
    big = 1000 + 500 * DRAWS.normal(size=120)
    kinds = DRAWS.choice(["a", "b", ""], 120)
    path = folder / "silo.csv"
    lines = [
        f"{'' if row % 17 == 0 else size[row]},{big[row]},{kinds[row]},{label[row]}"
        for row in range(120)
    ]
    path.write_text("\n".join(["size,big,kind,label", *lines]), encoding="utf-8")
    return path


@pytest.mark.parametrize(("settings", "classes"), [(BINARY, 2), (MULTICLASS, 3)])
def test_training_reduces_the_loss_that_numpy_evaluates(
    tmp_path: Path, settings: dict[str, object], classes: int
) -> None:
    """A few rounds through flat vectors learn most labels; torch trains what numpy measures."""
    task: LocalTask = TabularTask.from_csv(settings, written(tmp_path, classes))
    task.prepare(STATISTICS)
    model = task.initial_model(1)
    layout = TensorLayout.of(model)
    before = task.evaluate(model)
    local = LocalPlan(local_steps=60, batch_size=32, learning_rate=0.5)
    for number in (1, 2, 3):
        result = task.train(model, None, local, 1, number)
        assert result.steps == 60
        model = layout.unflatten(result.model_after)
    after = task.evaluate(model)
    assert before.examples == after.examples == task.n_examples == 120
    assert after.loss_sum < 0.7 * before.loss_sum
    assert after.correct > 90


@pytest.mark.parametrize(("settings", "classes"), [(BINARY, 2), (MULTICLASS, 3)])
def test_torchs_gradient_is_the_slope_of_numpys_loss(
    tmp_path: Path, settings: dict[str, object], classes: int
) -> None:
    """A central difference of the evaluated mean loss, coordinate by coordinate."""
    task = TabularTask.from_csv(settings, written(tmp_path, classes))
    task.prepare(STATISTICS)
    model = {name: t.astype(np.float32) + np.float32(0.1) for name, t in start(task).items()}
    layout = TensorLayout.of(model)
    flat = layout.flatten(model)
    wide = TensorLayout(
        tensors=tuple((name, shape, "float64") for name, shape, _ in layout.tensors)
    )
    gradient = task.gradient(model)
    for coordinate in range(0, layout.size, 5):
        step = np.zeros(layout.size)
        step[coordinate] = 1e-5
        high, low = (
            task.evaluate(wide.unflatten(flat + sign * step)).loss_sum / 120 for sign in (1, -1)
        )
        assert gradient[coordinate] == pytest.approx((high - low) / 2e-5, abs=1e-5)


def start(task: TabularTask) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """The task's start, in float64."""
    return {name: tensor.astype(np.float64) for name, tensor in task.initial_model(1).items()}


def test_training_from_the_same_model_gives_the_same_bits(tmp_path: Path) -> None:
    """The received model is not changed and no trace of an earlier round is left."""
    task = TabularTask.from_csv(MULTICLASS, written(tmp_path, 3))
    task.prepare(STATISTICS)
    model = task.initial_model(1)
    kept = {name: tensor.copy() for name, tensor in model.items()}
    local = LocalPlan(local_steps=3, batch_size=16, learning_rate=0.1)
    first = task.train(model, None, local, 5, 1).model_after
    task.train(model, None, local, 5, 2)
    assert np.array_equal(first, task.train(model, None, local, 5, 1).model_after)
    for name, tensor in model.items():
        assert np.array_equal(tensor, kept[name])


def test_moments_leave_missing_cells_out_and_are_in_units_of_the_scale(tmp_path: Path) -> None:
    """What the federated standardization sums."""
    path = tmp_path / "silo.csv"
    path.write_text("size,big,kind,label\n1,1000,a,0\n,3000,b,1\n3,5000,a,1\n", encoding="utf-8")
    moments = TabularTask.from_csv(BINARY, path).statistics()
    assert moments.names == ("size", "big")
    assert moments.counts.tolist() == [2, 3]
    assert moments.sums.tolist() == [4.0, 9.0]
    assert moments.squares.tolist() == [10.0, 35.0]


def test_without_statistics_raw_values_are_used(tmp_path: Path) -> None:
    """A plan that does not standardize prepares with nothing; missing means are then refused."""
    path = tmp_path / "silo.csv"
    path.write_text("size,big,kind,label\n1,1000,a,0\n2,3000,b,1\n", encoding="utf-8")
    task = TabularTask.from_csv(BINARY, path)
    with pytest.raises(RunStateError, match="not been prepared"):
        task.evaluate(task.initial_model(1))
    task.prepare({})
    assert task.evaluate(task.initial_model(1)).loss_sum == pytest.approx(2 * np.log(2))
    with pytest.raises(SchemaError, match="standardize = true"):
        TabularTask.from_csv(BINARY, written(tmp_path, 2)).prepare({})


def test_a_silo_process_can_be_held_to_few_threads() -> None:
    """Silos that share a machine must not fight for its cores."""
    before = torch.get_num_threads()
    try:
        configure_threads(before + 1)
        assert torch.get_num_threads() == before + 1
        configure_threads()
        assert torch.get_num_threads() == 1
    finally:
        configure_threads(before)


def test_a_table_without_labels_or_rows_cannot_be_trained_on(tmp_path: Path) -> None:
    """It is refused when the task is made, not in a round."""
    path = tmp_path / "silo.csv"
    path.write_text("size,big,kind\n1,1000,a\n", encoding="utf-8")
    task = TabularTask.from_csv(BINARY, written(tmp_path, 2))
    rows = task.schema.read_csv(path, with_target=False)
    with pytest.raises(DataError, match="labels"):
        TabularTask(BINARY, rows)

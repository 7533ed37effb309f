"""Baselines: the same loop without a federation."""

from pathlib import Path

import numpy as np
import pytest

from fl.baselines import train_alone
from fl.plan import LocalPlan, TaskPlan, TrainingPlan

SETTINGS: dict[str, object] = {
    "schema": {
        "features": [{"name": "a"}, {"name": "b"}],
        "target": {"name": "y", "classes": ["0", "1"]},
    }
}


def plan(*, standardize: bool) -> TrainingPlan:
    """Two rounds of three steps."""
    return TrainingPlan(
        task=TaskPlan(settings=SETTINGS),
        local=LocalPlan(local_steps=3, batch_size=0, learning_rate=0.5),
        rounds=2,
        max_silos=5,
        standardize=standardize,
        seed=4,
    )


@pytest.mark.parametrize("standardize", [True, False])
def test_a_baseline_takes_all_rounds_steps_by_gradient_descent(
    tmp_path: Path, *, standardize: bool
) -> None:
    """Six full-batch steps on own standardized rows, as numpy does them by hand."""
    pytest.importorskip("torch")
    from fl.training.tabular import TabularTask

    draws = np.random.default_rng(1)
    rows = draws.normal(size=(40, 2)) * [1.0, 3.0] + [0.0, 2.0]
    labels = (rows[:, 0] > 0).astype(np.int64)
    path = tmp_path / "all.csv"
    lines = [f"{a},{b},{y}" for (a, b), y in zip(rows, labels, strict=True)]
    path.write_text("\n".join(["a,b,y", *lines]), encoding="utf-8")

    baseline = train_alone(TabularTask.from_csv(SETTINGS, path), plan(standardize=standardize))

    if standardize:
        assert np.allclose(baseline.preprocess["mean"], rows.mean(axis=0))
        assert np.allclose(baseline.preprocess["scale"], rows.std(axis=0))
        rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    else:
        assert baseline.preprocess == {}
    weight, bias = np.zeros(2), 0.0
    for _ in range(6):
        error = 1 / (1 + np.exp(-(rows @ weight + bias))) - labels
        weight, bias = weight - 0.5 * (error @ rows) / 40, bias - 0.5 * error.mean()
    assert np.allclose(baseline.model["output.weight"], weight, atol=1e-5)
    assert np.allclose(baseline.model["output.bias"], bias, atol=1e-5)

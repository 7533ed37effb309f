"""An own model in a federation: a tiny torch network on a silo's CSV file.

In silo.toml:

    task = "own_task:make"

    [settings]                        # the silo's own affair
    csv = "patients.csv"

and in the run's settings for the task, the same for every silo:

    inputs = ["age", "pressure"]
    target = "risk"

Try it without a federation: `python examples/own_task.py`.
"""

import csv
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from fl.plan import LocalPlan
from fl.training.custom import OwnModel, load_task
from fl.training.loop import TensorExamples
from fl.update import TensorLayout


def make(settings: Mapping[str, object]) -> OwnModel:
    """The factory: called at the silo with the run's settings and the silo's."""
    inputs, target = settings["inputs"], settings["target"]
    if not isinstance(inputs, list):
        raise TypeError("inputs must be a list of column names")
    with Path(str(settings["csv"])).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return OwnModel(
        build=lambda: nn.Sequential(nn.Linear(len(inputs), 4), nn.Tanh(), nn.Linear(4, 1)),
        examples=TensorExamples(
            inputs=torch.tensor([[float(row[name]) for name in inputs] for row in rows]),
            targets=torch.tensor([[float(row[str(target)])] for row in rows]),
        ),
        loss=nn.functional.mse_loss,
    )


def main() -> None:
    """Train a few rounds on made-up numbers and print the mean loss."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "patients.csv"
        lines = [f"{x / 10},{y / 10},{(x - y) / 10}" for x in range(-9, 10) for y in range(-9, 10)]
        path.write_text("\n".join(["age,pressure,risk", *lines]), encoding="utf-8")
        task = load_task(
            "own_task:make",
            {"csv": str(path), "inputs": ["age", "pressure"], "target": "risk"},
        )
    model = task.initial_model(7)
    local = LocalPlan(local_steps=50, batch_size=32, learning_rate=0.1)
    for number in range(1, 4):
        metrics = task.evaluate(model)
        print(f"before round {number}: mean loss {metrics.loss_sum / metrics.examples:.4f}")
        after = task.train(model, None, local, 7, number).model_after
        model = TensorLayout.of(model).unflatten(after)
    metrics = task.evaluate(model)
    print(f"at the end: mean loss {metrics.loss_sum / metrics.examples:.4f}")


if __name__ == "__main__":
    main()

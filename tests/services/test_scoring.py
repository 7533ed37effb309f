"""A released model on a file: figures and predictions that one can check by hand."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fl.errors import DataError, SchemaError
from fl.modelfile import ModelFile, save_model
from services.scoring import evaluate_file, predict_file

# p(ill) = 1 / (1 + exp(-(age - 50) / 10)), for the statistics are part of the model.
MODEL = ModelFile(
    tensors={
        "output.weight": np.array([[1.0]], dtype=np.float32),
        "output.bias": np.array([0.0], dtype=np.float32),
    },
    task="tabular",
    settings={
        "model": "logistic",
        "schema": {
            "features": [{"name": "age", "kind": "numeric"}],
            "target": {"name": "ill", "classes": ["no", "yes"]},
        },
    },
    preprocess={"mean": np.array([50.0]), "scale": np.array([10.0])},
    plan_digest=bytes(32),
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The model as a file."""
    path = tmp_path / "model.safetensors"
    save_model(path, MODEL)
    return path


def _table(folder: Path, *lines: str) -> Path:
    path = folder / "patients.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_figures_of_four_rows(model: Path, tmp_path: Path) -> None:
    """One of four on the wrong side; three of the four pairs in order."""
    data = _table(tmp_path, "age,ill", "40,no", "60,yes", "70,yes", "65,no")
    figures = evaluate_file(model, data)
    log_odds = np.array([1.0, 1.0, 2.0, -1.5])  # of the true class
    assert figures == {
        "rows": 4.0,
        "loss": pytest.approx(np.log1p(np.exp(-log_odds)).mean(), rel=1e-6),
        "accuracy": 0.75,
        "auc": 0.75,
    }


def test_predictions_need_no_target(model: Path, tmp_path: Path) -> None:
    """A row of probabilities for each row, in order."""
    output = tmp_path / "out.csv"
    assert predict_file(model, _table(tmp_path, "age", "50", "60"), output) == 2
    header, *rows = csv.reader(output.read_text(encoding="utf-8").splitlines())
    assert header == ["probability_of_no", "probability_of_yes"]
    high = 1 / (1 + np.exp(-1.0))
    found = [[float(cell) for cell in row] for row in rows]
    np.testing.assert_allclose(found, [[0.5, 0.5], [1 - high, high]], atol=1e-6)


def test_a_file_without_the_column_is_refused(model: Path, tmp_path: Path) -> None:
    """By name, before anything is written."""
    output = tmp_path / "out.csv"
    with pytest.raises(SchemaError, match="'age' is not in the file"):
        predict_file(model, _table(tmp_path, "agee", "50"), output)
    assert not output.exists()


def test_a_model_of_an_own_task_is_not_scored_here(tmp_path: Path) -> None:
    """Its code is its owner's."""
    path = tmp_path / "own.safetensors"
    save_model(
        path,
        ModelFile(
            tensors=MODEL.tensors,
            task="mine:make",
            settings={},
            preprocess={},
            plan_digest=bytes(32),
        ),
    )
    with pytest.raises(DataError, match="own task mine:make"):
        evaluate_file(path, _table(tmp_path, "age,ill", "50,no"))


def test_a_folder_that_is_not_there_is_a_message(model: Path, tmp_path: Path) -> None:
    """At the command line: the path and what to do, exit code 5, no traceback."""
    data, output = _table(tmp_path, "age", "50"), tmp_path / "nowhere/out.csv"
    command = [sys.executable, "-m", "services.cli", "model", "predict", str(model)]
    done = subprocess.run(
        [*command, "--data", data, "-o", output],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 5
    assert f"error: {output}: No such file or directory; check the path" in done.stderr
    assert "Traceback" not in done.stderr

"""A released model on a CSV file: predictions and figures, without torch."""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl.errors import DataError
from fl.metrics import accuracy, auc, log_loss
from fl.modelfile import ModelFile, load_model
from fl.models import TabularModel, predict
from fl.plan import TABULAR


def evaluate_file(model_path: Path, data: Path) -> dict[str, float]:
    """Figures of the model on labelled rows.

    Raises:
        DataError: the file is no tabular model, or the data cannot be read.
        SchemaError: the data do not fit the model's schema.
    """
    file, model = _tabular(model_path)
    table = model.schema.read_csv(data)
    assert table.labels is not None  # read with the target
    return figures(table.labels, _probabilities(file, model, data))


def figures(labels: NDArray[np.int64], probabilities: NDArray[np.float64]) -> dict[str, float]:
    """Rows, loss, accuracy, and the AUC where there are two classes.

    Args:
        labels: shape (rows,), from 0.
        probabilities: shape (rows, classes).
    """
    found = {
        "rows": float(len(labels)),
        "loss": log_loss(labels, probabilities),
        "accuracy": accuracy(labels, probabilities),
    }
    if probabilities.shape[1] == 2:
        found["auc"] = auc(labels, probabilities[:, 1])
    return found


def predict_file(model_path: Path, data: Path, output: Path) -> int:
    """Write one row of class probabilities for each row of the data; returns their number.

    Raises:
        DataError, SchemaError: as `evaluate_file`.
    """
    file, model = _tabular(model_path)
    probabilities = _probabilities(file, model, data)
    with output.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow([f"probability_of_{name}" for name in model.schema.target.class_names])
        writer.writerows(probabilities.tolist())
    return len(probabilities)


def _tabular(path: Path) -> tuple[ModelFile, TabularModel]:
    file = load_model(path)
    if file.task != TABULAR:
        raise DataError(f"{path} was made by the own task {file.task}; score it with its own code")
    return file, TabularModel.parse(file.settings)


def _probabilities(file: ModelFile, model: TabularModel, data: Path) -> NDArray[np.float64]:
    table = model.schema.read_csv(data, with_target=False)
    inputs = model.schema.encode(table, file.preprocess.get("mean"), file.preprocess.get("scale"))
    return predict(model, file.tensors, inputs)

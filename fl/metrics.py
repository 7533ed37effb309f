"""How good predictions are: area under the ROC curve, accuracy, log loss, in numpy."""

import numpy as np
from numpy.typing import NDArray

from fl.errors import DataError


def auc(labels: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
    """The chance that a positive row scores above a negative one, ties counting half.

    Args:
        labels: (rows,), 0 or 1.
        scores: (rows,), finite; only their order matters.

    Raises:
        DataError: the shapes differ, or one of the two classes has no row.

    Source: the Mann-Whitney statistic with average ranks for ties.
    """
    _require_rows(labels, scores.shape[0])
    positive = labels == 1
    positives = int(positive.sum())
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0:
        raise DataError("the AUC needs rows of both classes; this table has only one of them")
    _, place, ties = np.unique(scores, return_inverse=True, return_counts=True)
    average_rank = np.cumsum(ties) - (ties - 1) / 2
    rank_sum = float(average_rank[place][positive].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def accuracy(labels: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """The share of rows whose most probable class is the right one; the lower class wins a tie.

    Args:
        labels: (rows,), from 0.
        probabilities: (rows, classes).

    Raises:
        DataError: the shapes differ or there is no row.
    """
    _require_rows(labels, probabilities.shape[0])
    return float((probabilities.argmax(axis=1) == labels).mean())


def log_loss(labels: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """The mean of −log of the right class's probability, in nats.

    Probabilities are kept at least one float64 epsilon away from 0, so the result is finite.

    Args:
        labels: (rows,), from 0.
        probabilities: (rows, classes), each row sums to 1.

    Raises:
        DataError: the shapes differ or there is no row.
    """
    _require_rows(labels, probabilities.shape[0])
    right = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(right, np.finfo(np.float64).eps)).mean())


def _require_rows(labels: NDArray[np.int64], rows: int) -> None:
    if labels.shape != (rows,) or rows == 0:
        raise DataError(
            f"expected one label for each prediction and at least one row,"
            f" got shapes {labels.shape} and ({rows},)"
        )

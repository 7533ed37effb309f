"""How good predictions are: AUC, C-index, accuracy, log loss, in numpy.

AUC and C-index have a second form that is made of sums, for secure evaluation: score histograms of
both classes, and counts of pairs within each silo.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranking:
    """What an AUC or a C-index needs of a silo's examples; it stays there.

    Attributes:
        labels: (n,), int64, 0 or 1, for an AUC; None where there is none.
        scores: (n,), in [0, 1], of class 1; likewise.
        pairs: concordant, tied and comparable pairs, for a C-index.
    """

    labels: NDArray[np.int64] | None = None
    scores: NDArray[np.float64] | None = None
    pairs: tuple[int, int, int] = (0, 0, 0)


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


def score_histogram(
    labels: NDArray[np.int64] | None, scores: NDArray[np.float64] | None, bins: int
) -> NDArray[np.int64]:
    """Return counts of negatives, then of positives, in equal bins of the score.

    Args:
        labels: (rows,), 0 or 1; None gives zeros.
        scores: (rows,), in [0, 1].
        bins: per class.

    Returns:
        (2 · bins,), int64.
    """
    if labels is None or scores is None:
        return np.zeros(2 * bins, dtype=np.int64)
    place = np.clip((scores * bins).astype(np.int64), 0, bins - 1)
    return np.bincount(place + bins * labels, minlength=2 * bins).astype(np.int64)


def auc_of_histogram(counts: NDArray[np.int64]) -> float | None:
    """Return the AUC of summed histograms, a tie within a bin counting half.

    It differs from the exact AUC by at most half the share of pairs that fall into one bin.

    Args:
        counts: as `score_histogram` gives, summed.

    Returns:
        None where one of the classes has no row.
    """
    negatives, positives = np.split(counts.astype(np.float64), 2)
    pairs = negatives.sum() * positives.sum()
    if not pairs:
        return None
    below = np.cumsum(negatives) - negatives
    return float(positives @ (below + negatives / 2) / pairs)


def concordance_pairs(
    times: NDArray[np.float64], events: NDArray[np.int64], risks: NDArray[np.float64]
) -> tuple[int, int, int]:
    """Return concordant, tied and comparable pairs of survival data.

    A pair is comparable if the one with the shorter time had the event, or of equal times the one
    alone; it is concordant if that one has the higher risk.

    Args:
        times: (rows,), until event or censoring.
        events: (rows,), 1 for an event.
        risks: (rows,), higher for an earlier event.

    Source: Harrell et al. 1982.
    """
    _require_rows(events, len(times))
    concordant = tied = comparable = 0
    for row in np.flatnonzero(events == 1):
        later = (times > times[row]) | ((times == times[row]) & (events == 0))
        comparable += int(later.sum())
        concordant += int((risks[later] < risks[row]).sum())
        tied += int((risks[later] == risks[row]).sum())
    return concordant, tied, comparable


def concordance_index(concordant: int, tied: int, comparable: int) -> float | None:
    """Return the C-index of (summed) pairs, ties counting half; None without pairs."""
    return (concordant + tied / 2) / comparable if comparable else None


def _require_rows(labels: NDArray[np.int64], rows: int) -> None:
    if labels.shape != (rows,) or rows == 0:
        raise DataError(
            f"expected one label for each prediction and at least one row,"
            f" got shapes {labels.shape} and ({rows},)"
        )

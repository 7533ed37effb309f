"""Metrics against hand counts and against scikit-learn."""

import numpy as np
import pytest

from fl.errors import DataError
from fl.metrics import (
    accuracy,
    auc,
    auc_of_histogram,
    concordance_index,
    concordance_pairs,
    log_loss,
    score_histogram,
)


def test_hand_counted() -> None:
    """Four rows that can be checked on paper; the tie counts half."""
    labels = np.array([0, 0, 1, 1])
    assert auc(labels, np.array([0.1, 0.4, 0.4, 0.8])) == 3.5 / 4
    assert auc(labels, -np.array([0.1, 0.2, 0.3, 0.8])) == 0.0
    assert auc(labels, np.zeros(4)) == 0.5
    probabilities = np.array([[0.9, 0.1], [0.5, 0.5], [0.5, 0.5], [0.25, 0.75]])
    assert accuracy(labels, probabilities) == 0.75
    expected = -np.log([0.9, 0.5, 0.5, 0.75]).mean()
    assert log_loss(labels, probabilities) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("ties", [3, 1000])
def test_equal_to_scikit_learn(ties: int) -> None:
    """The same numbers as the library that everybody compares with."""
    reference = pytest.importorskip("sklearn.metrics")
    draws = np.random.default_rng(ties)
    labels = draws.integers(0, 2, 400)
    scores = draws.integers(0, ties, 400) / ties
    assert auc(labels, scores) == pytest.approx(reference.roc_auc_score(labels, scores), abs=1e-12)
    labels = draws.integers(0, 3, 400)
    probabilities = draws.dirichlet([1, 1, 1], 400)
    assert log_loss(labels, probabilities) == pytest.approx(
        reference.log_loss(labels, probabilities), rel=1e-12
    )
    assert accuracy(labels, probabilities) == reference.accuracy_score(
        labels, probabilities.argmax(axis=1)
    )


def test_a_certain_mistake_is_finite() -> None:
    """A probability of 0 for what happened costs much, not infinity."""
    assert log_loss(np.array([1]), np.array([[1.0, 0.0]])) == pytest.approx(36.04, abs=0.01)


def test_unusable_input_is_refused() -> None:
    """One class has no AUC; rows and labels must pair."""
    with pytest.raises(DataError, match="both classes"):
        auc(np.ones(3, dtype=np.int64), np.arange(3.0))
    with pytest.raises(DataError, match="one label for each"):
        auc(np.array([0, 1]), np.arange(3.0))
    with pytest.raises(DataError, match="at least one row"):
        accuracy(np.zeros(0, dtype=np.int64), np.zeros((0, 2)))


def test_an_auc_from_summed_histograms() -> None:
    """Three silos' histograms give the pooled AUC, within half the share of pairs in one bin."""
    draws = np.random.default_rng(4)
    labels = draws.integers(0, 2, 900)
    scores = np.clip(draws.normal(0.4 + 0.2 * labels, 0.2), 0, 1)
    for bins in (1, 10, 200):
        parts = zip(np.split(labels, 3), np.split(scores, 3), strict=True)
        total = np.sum([score_histogram(y, s, bins) for y, s in parts], axis=0)
        negatives, positives = np.split(total, 2)
        assert (negatives.sum(), positives.sum()) == ((labels == 0).sum(), (labels == 1).sum())
        bound = 0.5 * float(negatives @ positives) / (negatives.sum() * positives.sum())
        found = auc_of_histogram(total)
        assert found is not None
        assert abs(found - auc(labels, scores)) <= bound + 1e-12
    assert auc_of_histogram(score_histogram(np.ones(3, int), np.ones(3), 5)) is None
    assert score_histogram(None, None, 5).tolist() == [0] * 10


def test_concordance_on_paper() -> None:
    """Censored rows are compared with earlier events only."""
    times = np.array([1.0, 2.0, 3.0, 4.0])
    events = np.array([1, 0, 1, 1])
    # Comparable: row 0 with the three later ones, row 2 with row 3.
    assert concordance_pairs(times, events, np.array([4.0, 1.0, 3.0, 2.0])) == (4, 0, 4)
    assert concordance_pairs(times, events, np.array([1.0, 4.0, 1.0, 0.0])) == (2, 1, 4)
    # At one time, an event comes before a censoring; two events tell nothing.
    same, risks = np.array([2.0, 2.0, 2.0]), np.array([3.0, 2.0, 1.0])
    assert concordance_pairs(same, np.array([0, 1, 1]), risks) == (0, 0, 2)
    assert concordance_pairs(same, np.array([1, 0, 1]), risks) == (1, 0, 2)
    assert concordance_index(2, 1, 4) == 2.5 / 4
    assert concordance_index(0, 0, 0) is None

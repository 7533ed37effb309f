"""Every rule deals each row once, the same every time, and is as skewed as it says."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl.errors import DataError, PlanError
from fl.partition import PartitionKind, PartitionRule, by_column, by_dirichlet, by_quantity

DEALING_ALL = {PartitionKind.IID, PartitionKind.DIRICHLET, PartitionKind.QUANTITY}


@given(
    kind=st.sampled_from([kind for kind in PartitionKind if kind is not PartitionKind.COLUMN]),
    silos=st.integers(1, 12),
    rows=st.integers(60, 200),
    classes=st.integers(1, 5),
    alpha=st.floats(0.01, 100),
    similarity=st.floats(0, 1),
    shards=st.integers(1, 4),
    least=st.integers(0, 5),
    seed=st.integers(0, 2**32),
)
def test_rows_are_dealt_once_and_by_the_seed(
    kind: PartitionKind, silos: int, rows: int, classes: int, seed: int, **settings: Any
) -> None:
    """None twice; all of them, or as many as divide evenly; none of a silo's below the least."""
    rule = PartitionRule(kind=kind, silos=silos, **settings)
    labels = np.arange(rows) % classes
    dealt = rule.rows(labels, seed)
    assert len(dealt) == silos
    every = np.concatenate(dealt).tolist()
    assert len(set(every)) == len(every)
    assert set(every) <= set(range(rows))
    parts = silos * rule.shards if kind is PartitionKind.SHARDS else silos
    assert len(every) == (rows if kind in DEALING_ALL else rows - rows % parts)
    if kind in (PartitionKind.DIRICHLET, PartitionKind.QUANTITY):
        assert min(map(len, dealt)) >= rule.least
    again = rule.rows(labels, seed)
    assert [one.tolist() for one in again] == [one.tolist() for one in dealt]


@given(values=st.lists(st.sampled_from(["north", "south", "east"]), min_size=1, max_size=30))
def test_a_column_gives_a_silo_for_each_value(values: list[str]) -> None:
    """In the values' order, with all of their rows."""
    silos = by_column(values)
    assert list(silos) == sorted(set(values))
    for name, rows in silos.items():
        assert rows.tolist() == [place for place, value in enumerate(values) if value == name]
    rule = PartitionRule(kind=PartitionKind.COLUMN)
    dealt = rule.rows(np.zeros(len(values)), 0, values)
    assert [rows.tolist() for rows in dealt] == [rows.tolist() for rows in silos.values()]


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_similarity_mixes_labels(share: float) -> None:
    """At 0 a silo has one label or two neighbors, at 1 nearly all."""
    labels = np.repeat(np.arange(10.0), 20)
    rule = PartitionRule(kind=PartitionKind.SIMILARITY, silos=10, similarity=share)
    kinds = [len(np.unique(labels[own])) for own in rule.rows(labels, 1)]
    assert max(kinds) == 1 if share == 0 else min(kinds) >= 2
    assert share != 1 or min(kinds) >= 5


def test_shards_hold_few_labels() -> None:
    """Two shards of one label each."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10.0), 20))
    rule = PartitionRule(kind=PartitionKind.SHARDS, silos=10, shards=2)
    assert all(len(np.unique(labels[own])) <= 2 for own in rule.rows(labels, 1))


def test_small_alphas_are_skewed_and_large_ones_are_not() -> None:
    """In a silo's largest share of a label, and in the silos' sizes."""
    labels = np.repeat(np.arange(10), 1000)

    def purest(alpha: float) -> float:
        silos = by_dirichlet(labels, 10, alpha, 1)
        return float(np.mean([np.bincount(labels[own]).max() / len(own) for own in silos]))

    assert purest(0.05) > 0.6
    assert purest(1000.0) < 0.15
    sizes = [[len(own) for own in by_quantity(10_000, 10, alpha, 1)] for alpha in (0.3, 1000.0)]
    assert max(sizes[0]) > 3 * np.median(sizes[0])
    assert max(sizes[1]) < 1.2 * np.median(sizes[1])


@pytest.mark.parametrize("kind", [kind for kind in PartitionKind if kind != "column"])
def test_too_few_rows_are_refused(kind: PartitionKind) -> None:
    """Instead of silos without any."""
    with pytest.raises(DataError, match="needs at least"):
        PartitionRule(kind=kind, silos=10).rows(np.zeros(9), 1)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"silos": 0}, "partition.silos"),
        ({"similarity": 1.5}, "partition.similarity"),
        ({"shards": 0}, "partition.shards"),
        ({"alpha": 0.0}, "partition.alpha"),
        ({"least": -1}, "partition.least"),
    ],
)
def test_other_rules_are_refused(values: dict[str, Any], word: str) -> None:
    """The field is named."""
    with pytest.raises(PlanError, match=word):
        PartitionRule(**values)

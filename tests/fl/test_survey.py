"""Statistics and advice over silos' CSV files, against the pooled table."""

from pathlib import Path

import numpy as np
import pytest

from fl.advisor import Circumstances
from fl.errors import DataError, PlanError, SchemaError
from fl.queries import CategoricalColumn, Columns, NumericColumn, StatisticsQuery, read_table
from fl.survey import advice, ask

QUERY = StatisticsQuery(
    numeric=(NumericColumn(name="age", low=0, high=100, bins=10),),
    categorical=(CategoricalColumn(name="sick", categories=("no", "yes")),),
)


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    """Write a silo's file."""
    path.write_text("age,sick\n" + "".join(f"{age},{sick}\n" for age, sick in rows), "utf-8")
    return path


def tables(tmp_path: Path, shares: tuple[float, ...], rows: int = 200) -> dict[str, Columns]:
    """Silos with these shares of the sick, and one missing age each."""
    found = {}
    for place, share in enumerate(shares):
        ages = np.random.default_rng(place).integers(20, 80, rows)
        lines = [(str(age), "yes" if row < share * rows else "no") for row, age in enumerate(ages)]
        path = write(tmp_path / f"{place}.csv", [("", "maybe"), *lines])
        found[f"silo-{place}"] = read_table(QUERY, path)
    return found


def test_the_whole_tables_figures_come_back(tmp_path: Path) -> None:
    """Counts, missing cells, mean and variance are the pooled table's."""
    silos = tables(tmp_path, (0.5, 0.1, 0.9))
    result = ask(QUERY, silos)
    ages = np.concatenate([np.asarray(table["age"], dtype=np.float64) for table in silos.values()])
    age = result.numeric["age"]
    assert result.rows == 603
    assert age.missing == 3
    assert age.moments is not None
    assert age.moments.mean == pytest.approx(np.nanmean(ages), abs=1e-9)
    assert age.moments.variance == pytest.approx(np.nanvar(ages), abs=1e-9)
    assert age.counts[1:-1].tolist() == np.histogram(ages, bins=10, range=(0, 100))[0].tolist()
    assert result.categorical["sick"].counts == {"no": 300, "yes": 300}
    assert result.categorical["sick"].other == 3


@pytest.mark.parametrize(
    ("shares", "algorithm"), [((0.5, 0.5, 0.5), "fedavg"), ((0.0, 0.5, 1.0), "scaffold")]
)
def test_advice_follows_the_skew(tmp_path: Path, shares: tuple[float, ...], algorithm: str) -> None:
    """Alike silos get the baseline, silos with one label each get control variates."""
    known = Circumstances(parameters=10, participation=1.0, uplink_bits_per_s=1e7, silos=3)
    found = advice(QUERY, tables(tmp_path, shares), known, target="sick")
    assert found.algorithm == algorithm
    assert found.reasons


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    """Columns and lines, never a cell; too few silos; a target that was not asked for."""
    with pytest.raises(
        SchemaError, match=r"'age': 3 cells \(line 3, 4, 5\) not a number"
    ) as caught:
        read_table(
            QUERY,
            write(
                tmp_path / "a.csv", [("1", "no"), ("secret", "no"), ("inf", "no"), ("1_0", "no")]
            ),
        )
    assert "secret" not in str(caught.value)
    silos = tables(tmp_path, (0.5, 0.5))
    with pytest.raises(DataError, match="three silos at least, got 2"):
        ask(QUERY, silos)
    known = Circumstances(parameters=10, participation=1.0, uplink_bits_per_s=1e7, silos=3)
    with pytest.raises(PlanError, match="no categorical column 'age'"):
        advice(QUERY, silos, known, target="age")

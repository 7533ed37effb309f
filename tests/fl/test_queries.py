"""Statistics of all silos together equal those of the pooled table, through the secure sum."""

from typing import Any

import numpy as np
import pytest

from fl.errors import DataError, PlanError
from fl.queries import CategoricalColumn, NumericColumn, StatisticsQuery, StatisticsResult
from secagg.testing import RoundHarness, make_federation, make_parameters

QUERY = StatisticsQuery(
    numeric=(
        NumericColumn(name="age", low=0, high=100, bins=50),
        NumericColumn(name="crp", low=0, high=10, bins=10),
    ),
    categorical=(CategoricalColumn(name="sex", categories=("f", "m")),),
)


def table(seed: int) -> dict[str, Any]:
    """One silo's rows, some of them incomplete, some out of the bins' range."""
    draws = np.random.default_rng(seed)
    rows = 40 + 10 * seed
    crp = draws.lognormal(1, 1, rows)
    crp[::9] = np.nan
    return {
        "age": draws.normal(50 + seed, 15, rows).clip(0, 100),
        "crp": crp,
        "sex": draws.choice(["f", "m", "x", ""], rows).tolist(),
    }


def asked(query: StatisticsQuery, tables: dict[int, dict[str, Any]]) -> StatisticsResult:
    """The released answer of one secure round."""
    federation = make_federation(len(tables))
    spec = query.spec(n_max=len(tables))
    outcome = RoundHarness(
        federation=federation,
        parameters=make_parameters(federation.roster, spec, kind="statistics", n_max=len(tables)),
        state=query.document(),
        train=lambda seat, _parameters, state: StatisticsQuery.parse(state).values(
            tables[seat], len(tables)
        ),
    ).run()
    assert outcome.aggregate is not None
    return query.result(outcome.aggregate.values)


def test_the_answer_is_the_pooled_table_s() -> None:
    """Counts, means, variances and bins exactly; quantiles to a bin's width."""
    tables = {seat: table(seat) for seat in range(1, 5)}
    result = asked(QUERY, tables)
    assert result.rows == sum(len(one["age"]) for one in tables.values())
    for name in ("age", "crp"):
        pooled = np.concatenate([one[name] for one in tables.values()])
        values = pooled[~np.isnan(pooled)]
        found = result.numeric[name]
        assert found.moments is not None
        assert found.moments.count == len(values)
        assert found.missing == len(pooled) - len(values)
        assert found.moments.mean == pytest.approx(values.mean(), rel=1e-9)
        assert found.moments.variance == pytest.approx(values.var(), rel=1e-7)
        inside, _ = np.histogram(values, found.edges)
        np.testing.assert_array_equal(found.counts[1:-1], inside)
        assert found.counts[-1] == (values > found.edges[-1]).sum()
        for share in (0.1, 0.25, 0.5, 0.7):
            quantile = found.quantile(share)
            assert quantile is not None
            assert abs(quantile - np.quantile(values, share)) <= found.quantile_error
    assert result.numeric["crp"].quantile(0.999) is None  # above the last edge
    sexes = [value for one in tables.values() for value in one["sex"]]
    counted = result.categorical["sex"]
    assert counted.counts == {"f": sexes.count("f"), "m": sexes.count("m")}
    assert (counted.other, counted.missing) == (sexes.count("x"), sexes.count(""))


def test_a_column_without_a_value_has_no_moments() -> None:
    """Nothing is made up for it."""
    empty = {"age": np.full(3, np.nan)}
    query = StatisticsQuery(numeric=(NumericColumn(name="age", low=0, high=1, bins=2),))
    found = asked(query, dict.fromkeys((1, 2, 3), empty)).numeric["age"]
    assert (found.moments, found.missing, found.quantile(0.5)) == (None, 9, None)


def test_edges_belong_to_one_bin_each() -> None:
    """A lower edge to its bin, the highest to the last."""
    column = NumericColumn(name="x", low=0, high=2, bins=2)
    assert column.counts(np.array([-0.1, 0.0, 0.9, 1.0, 2.0, 2.1])).tolist() == [1, 2, 2, 1]


def test_a_table_that_does_not_fit_is_refused() -> None:
    """The column is named; no value is."""
    with pytest.raises(DataError, match="no column 'crp', 'sex'"):
        QUERY.values({"age": np.zeros(2)}, 3)
    with pytest.raises(DataError, match="differ in length"):
        QUERY.values({"age": np.zeros(2), "crp": np.zeros(3), "sex": ["f", "m"]}, 3)
    with pytest.raises(DataError, match="'age'"):
        QUERY.values({"age": np.full(2, 1e30), "crp": np.zeros(2), "sex": ["f", "m"]}, 3)


def test_documents() -> None:
    """One query, one document."""
    assert StatisticsQuery.parse(QUERY.document()) == QUERY
    for document in (b"{}", b"[]", b"x", QUERY.document() + b" "):
        with pytest.raises(PlanError, match="statistics query"):
            StatisticsQuery.parse(document)


def many(columns: int) -> tuple[NumericColumn, ...]:
    """So many columns of the most bins."""
    names = map(str, range(columns))
    return tuple(NumericColumn(name=name, low=0, high=1, bins=100_000) for name in names)


def test_a_million_cells_are_not_too_many() -> None:
    """One more column is, see below."""
    assert len(StatisticsQuery(numeric=many(10)).names) == 10


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: NumericColumn(name="x", low=1, high=1), "x.high"),
        (lambda: NumericColumn(name="x", low=0, high=float("inf")), "x.high"),
        (lambda: NumericColumn(name="x", low=0, high=1, bins=0), "x.bins"),
        (lambda: CategoricalColumn(name="x", categories=("a", "a")), "x.categories"),
        (lambda: CategoricalColumn(name="x", categories=()), "x.categories"),
        (StatisticsQuery, "columns"),
        (lambda: StatisticsQuery(numeric=QUERY.numeric[:1] * 2), "columns"),
        (lambda: StatisticsQuery(numeric=many(11)), "bins and categories"),
    ],
    ids=range(8),
)
def test_other_queries_are_refused(make: Any, word: str) -> None:
    """The field is named."""
    with pytest.raises(PlanError, match=word):
        make()

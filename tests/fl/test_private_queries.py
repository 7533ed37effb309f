"""Noised statistics: bounded by the query, near the truth at little noise, and no exact count."""

from typing import Any

import numpy as np
import pytest

from dp.plan import Adjacency, PrivacyPlan, grid_sensitivity, share_noise_std
from dp.rng import NoiseStream, ReplayStream
from fl.errors import DataError, PlanError
from fl.private_queries import (
    STATISTICS,
    count_noise,
    noised_answer,
    query_norm,
    query_plan,
    query_spec,
)
from fl.queries import CategoricalColumn, NumericColumn, StatisticsQuery
from fl.survey import ask, ask_privately

QUERY = StatisticsQuery(
    numeric=(NumericColumn(name="age", low=0, high=100, bins=10),),
    categorical=(CategoricalColumn(name="sex", categories=("f", "m")),),
)


def table(seed: int, rows: int = 300) -> dict[str, Any]:
    """One silo's rows, some of them incomplete, some out of the bins' range."""
    draws = np.random.default_rng(seed)
    age = draws.normal(60, 25, rows)
    age[::9] = np.nan
    return {"age": age, "sex": draws.choice(["f", "m", "x", ""], rows).tolist()}


TABLES = {f"silo-{number}": table(number) for number in range(4)}


def plan(z: float = 1.0, **changes: Any) -> PrivacyPlan:
    """Of the query, for four silos of at most 400 rows."""
    values: dict[str, Any] = {
        "silos": 4,
        "delta": 1e-6,
        "most_rows": 400,
        "adjacency": Adjacency.ZERO_OUT,
    }
    return query_plan(QUERY, z=z, **(values | changes))


def test_little_noise_gives_the_truth() -> None:
    """Counts, mean and spread within what the noise explains."""
    used = plan(z=0.05)
    exact, noised = ask(QUERY, TABLES), ask_privately(QUERY, TABLES, used)
    off = 8 * count_noise(QUERY, used) + 1
    found, right = noised.numeric["age"], exact.numeric["age"]
    assert np.abs(found.counts - right.counts).max() < off
    assert abs(found.missing - right.missing) < off
    assert abs(noised.rows - exact.rows) < 8 * off
    for name, count in exact.categorical["sex"].counts.items():
        assert abs(noised.categorical["sex"].counts[name] - count) < off
    clipped = np.concatenate([np.clip(one["age"], 0, 100) for one in TABLES.values()])
    assert found.moments is not None
    assert found.moments.mean == pytest.approx(np.nanmean(clipped), abs=0.5)
    assert found.moments.variance**0.5 == pytest.approx(np.nanstd(clipped), abs=1.0)


def test_one_record_moves_the_integers_by_at_most_d2() -> None:
    """A record of extremes, and one that is missing everywhere; equal coins and shares."""
    used = plan()
    for age, sex in ((100.0, "f"), (1e9, "x"), (-5.0, ""), (float("nan"), "m")):
        sums = []
        for more in (0, 1):
            whole = table(1)
            rows: dict[str, Any] = {
                "age": np.append(whole["age"], [age] * more),
                "sex": [*whole["sex"], *[sex] * more],
            }
            answer = noised_answer(QUERY, rows, used, ReplayStream(b"same"))
            sums.append(answer[STATISTICS].astype(np.float64))
        assert np.linalg.norm(sums[1] - sums[0]) <= grid_sensitivity(used)


def test_what_a_silo_sends_is_one_noised_vector() -> None:
    """A fresh share each time; its spread is the plan's, and its size a constant of the query."""
    used = plan()
    (segment,) = query_spec(used, 4).segments
    sent = [noised_answer(QUERY, TABLES["silo-1"], used, NoiseStream()) for _ in range(30)]
    assert {tuple(one) for one in sent} == {(STATISTICS,)}
    values = np.array([one[STATISTICS] for one in sent])
    assert values.shape == (30, segment.length)
    sigma = share_noise_std(used)
    assert 0.9 < values[:, : used.dimension].std(axis=0).mean() / sigma < 1.1
    assert query_norm(QUERY) == pytest.approx(2.0)


def test_many_rows_are_summed_in_larger_steps() -> None:
    """The ring holds them then; the noise on a count hardly grows, and the figures are right."""
    fine, coarse = plan(z=1.0), plan(z=1.0, most_rows=1_000_000)
    assert fine.grid_bound == 4096
    assert coarse.grid_bound == 512
    off = count_noise(QUERY, coarse)
    assert count_noise(QUERY, fine) < off < 1.2 * count_noise(QUERY, fine)
    exact, noised = ask(QUERY, TABLES), ask_privately(QUERY, TABLES, coarse)
    found, right = noised.numeric["age"], exact.numeric["age"]
    assert np.abs(found.counts - right.counts).max() < 8 * off + 1
    with pytest.raises(PlanError, match="beyond the 32-bit ring"):
        plan(most_rows=10**9)


def test_what_is_refused() -> None:
    """More rows than the public most, a missing column, a plan that says nothing."""
    with pytest.raises(DataError) as caught:
        ask_privately(QUERY, TABLES, plan(most_rows=200))
    assert "300" not in str(caught.value)
    with pytest.raises(DataError, match="no column"):
        noised_answer(QUERY, {"age": np.zeros(3)}, plan(), NoiseStream())
    with pytest.raises(PlanError, match="statistics"):
        plan(z=-1.0)


def test_a_query_without_rows_has_no_moments() -> None:
    """Noise alone: counts are never negative, and nothing is divided by zero."""
    empty: dict[str, Any] = {name: {"age": np.zeros(0), "sex": []} for name in TABLES}
    found = ask_privately(QUERY, empty, plan(z=0.01), noise=lambda: ReplayStream(b"s"))
    assert min(found.numeric["age"].counts) >= 0
    assert found.rows <= 2

"""A statistics query as one noised release over records.

A record brings, for each numeric column, the bin that it falls in (below, above and missing are
bins, too) and its value over the column's range with its square, both between -1 and 1; for each
categorical column its category. Its vector has a norm that the query alone fixes, so the sum over
all records is one Gaussian release at q = 1 (privacy.md 4.5): bounded, noised in shares inside the
secure sum, and charged before it is made.

Values beyond a column's range count as its end in mean and variance: the range is public, and the
only bound that one record has.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import numpy as np

from dp import mechanisms
from dp.errors import PrivacyError
from dp.plan import (
    Adjacency,
    Mode,
    PrivacyPlan,
    Unit,
    bound_on_grid,
    share_noise_std,
)
from dp.rng import NoiseSource
from fl.errors import DataError, PlanError, RunStateError
from fl.ports import FloatVector
from fl.privacy import grid_spec
from fl.queries import (
    CategoricalColumn,
    CategoricalResult,
    Columns,
    NumericColumn,
    NumericResult,
    StatisticsQuery,
    StatisticsResult,
)
from fl.statistics import IntVector, Moments
from secagg.parameters import VectorSpec, threshold

STATISTICS: Final = "statistics"

# A record's norm in steps of the grid, where the default's sum would not fit the ring.
_COARSER: Final = tuple(float(2**bits) for bits in range(11, 4, -1))


def query_norm(query: StatisticsQuery) -> float:
    """The largest norm of one record's vector: √3 a numeric column, 1 a categorical one."""
    return math.sqrt(3 * len(query.numeric) + len(query.categorical))


def query_plan(
    query: StatisticsQuery,
    *,
    silos: int,
    z: float,
    delta: float,
    most_rows: int,
    adjacency: Adjacency,
) -> PrivacyPlan:
    """The privacy plan of a query.

    Args:
        query: the columns.
        silos: who is asked.
        z: noise multiplier.
        delta: at which its epsilon is read.
        most_rows: the most that one silo has, a public number.
        adjacency: what makes two tables neighbors.

    Raises:
        PlanError: privacy.md refuses it.
    """
    n_c = max((silos - 1) // 3, 1)

    def plan(grid_bound: float | None) -> PrivacyPlan:
        return PrivacyPlan(
            unit=Unit.RECORD,
            adjacency=adjacency,
            mode=Mode.FEDSGD,
            clip=1.0,
            z=z,
            rounds=1,
            delta=delta,
            dimension=sum(_lengths(query)),
            cohort_size=silos,
            denominator=1.0,
            n_c=n_c,
            h_dp=max(threshold(silos, n_c) - n_c, 1),
            max_units_per_silo=most_rows,
            grid_bound=grid_bound,
        )

    try:
        return plan(None)
    except PrivacyError as error:
        for grid_bound in _COARSER:  # many rows fit the ring in larger steps
            with suppress(PrivacyError):
                return plan(grid_bound)
        raise PlanError(f"statistics: {error}") from error


def query_spec(plan: PrivacyPlan, silos: int) -> VectorSpec:
    """What is summed."""
    return grid_spec(plan, STATISTICS, silos)


def require_rows(table: Columns, plan: PrivacyPlan) -> None:
    """Refuse a table with more rows than the plan's most.

    Raises:
        DataError: it has; the message does not say how many.
    """
    rows = len(next(iter(table.values())))
    if rows > plan.max_units_per_silo:
        raise DataError(f"this silo has more rows than the query's {plan.max_units_per_silo}")


def noised_answer(
    query: StatisticsQuery, table: Columns, plan: PrivacyPlan, source: NoiseSource
) -> dict[str, IntVector]:
    """Return a silo's integers, its share of noise in them.

    Args:
        query: the columns.
        table: the silo's.
        plan: by `query_plan`.
        source: a fresh stream.

    Raises:
        DataError: the table does not fit the query, or has more rows than the plan's most; the
            message does not say how many.
    """
    query.require(table)
    require_rows(table, plan)
    parts = [_numeric(one, np.asarray(table[one.name], np.float64)) for one in query.numeric]
    parts += [_categorical(one, [str(v) for v in table[one.name]]) for one in query.categorical]
    total = np.concatenate(parts) / query_norm(query)
    share = mechanisms.draw_share(plan, source).values
    return {STATISTICS: mechanisms.encode(total, plan, source) + share}


def released(
    query: StatisticsQuery, total: Mapping[str, IntVector], plan: PrivacyPlan
) -> StatisticsResult:
    """Return what a noised sum says; counts are rounded and never below zero.

    Raises:
        RunStateError: the sum is so large that the ring may have wrapped.
    """
    try:
        coordinates, _ = mechanisms.split_padding(total[STATISTICS], plan)
        (sums,) = mechanisms.decode(coordinates, plan).segments.values()
    except PrivacyError as error:
        raise RunStateError(f"statistics: {error}") from error
    pieces = np.split(sums * query_norm(query), np.cumsum(_lengths(query))[:-1])
    numeric = {
        one.name: _read(one, piece) for one, piece in zip(query.numeric, pieces, strict=False)
    }
    categorical = {}
    for one, piece in zip(query.categorical, pieces[len(query.numeric) :], strict=True):
        missing, *counts = _counts(piece).tolist()
        named = dict(zip(one.categories, counts[:-1], strict=True))
        categorical[one.name] = CategoricalResult(counts=named, other=counts[-1], missing=missing)
    sizes = [int(one.counts.sum()) + one.missing for one in numeric.values()]
    sizes += [sum(one.counts.values()) + one.other + one.missing for one in categorical.values()]
    return StatisticsResult(
        rows=round(float(np.mean(sizes))), numeric=numeric, categorical=categorical
    )


def count_noise(query: StatisticsQuery, plan: PrivacyPlan) -> float:
    """Std of the noise on one released count, all silos surviving."""
    in_grid = share_noise_std(plan) * math.sqrt(plan.cohort_size)
    return in_grid / bound_on_grid(plan) * query_norm(query)


def _lengths(query: StatisticsQuery) -> list[int]:
    """Coordinates by column: missing and bins, and two sums for a numeric one."""
    return [one.bins + 5 for one in query.numeric] + [
        len(one.categories) + 2 for one in query.categorical
    ]


def _numeric(column: NumericColumn, values: FloatVector) -> FloatVector:
    present = values[~np.isnan(values)]
    half = (column.high - column.low) / 2
    scaled = np.clip((present - column.low) / half - 1, -1.0, 1.0)
    sums = [scaled.sum(), (2 * scaled**2 - 1).sum()]
    return np.concatenate([[len(values) - len(present)], column.counts(present), sums])


def _categorical(column: CategoricalColumn, values: list[str]) -> FloatVector:
    missing = sum(not value for value in values)
    return np.concatenate([[missing], column.counts(values)]).astype(np.float64)


def _read(column: NumericColumn, piece: FloatVector) -> NumericResult:
    missing, *counts = _counts(piece[:-2]).tolist()
    total = sum(counts)
    moments = None
    if total:
        half = (column.high - column.low) / 2
        mean = float(np.clip(piece[-2] / total, -1.0, 1.0))
        square = float(np.clip((piece[-1] / total + 1) / 2, mean**2, 1.0))
        moments = Moments(
            count=total, mean=column.low + half * (mean + 1), variance=half**2 * (square - mean**2)
        )
    return NumericResult(
        moments=moments, missing=missing, edges=column.edges, counts=np.array(counts, np.int64)
    )


def _counts(piece: FloatVector) -> IntVector:
    return np.rint(np.maximum(piece, 0.0)).astype(np.int64)

"""A statistics query over silos in this process: their tables, the secure sums, the advice.

Every sum goes through secagg's state machines, as a real federation's would. Queries over a running
federation are not here: a coordinator plans training runs only.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dp.plan import PrivacyPlan
from dp.rng import NoiseSource, NoiseStream
from fl.advisor import (
    Advice,
    Circumstances,
    advise,
    divergence_spec,
    divergence_values,
    feature_divergence,
    label_divergence,
)
from fl.csvfile import CsvFile
from fl.errors import DataError, PlanError, RunStateError, SchemaError
from fl.ports import FloatVector
from fl.private_queries import noised_answer, query_spec, released
from fl.queries import Columns, StatisticsQuery, StatisticsResult
from fl.statistics import IntVector
from secagg.canonical import u64
from secagg.messages import plan_hash
from secagg.parameters import VectorSpec
from secagg.testing import RoundHarness, make_federation, make_parameters


def read_table(query: StatisticsQuery, path: Path) -> Columns:
    """Return a silo's columns of a query from its CSV file; an empty cell is a missing value.

    Raises:
        SchemaError: lists every column and line that does not fit.
        DataError: the file cannot be read.
    """
    file = CsvFile.read(path)
    file.require([one.name for one in query.numeric])
    file.require([one.name for one in query.categorical])
    table: dict[str, FloatVector | list[str]] = {
        one.name: file.cells(one.name) for one in query.categorical
    }
    for column in query.numeric:
        cells = file.cells(column.name)
        values = np.array([_number(cell) for cell in cells])
        bad = np.flatnonzero(np.isinf(values))
        file.report(column.name, bad.tolist(), "not a number")
        table[column.name] = values
    if file.problems:
        raise SchemaError(f"{path} does not fit the query: {'; '.join(file.problems)}")
    return table


def ask(
    query: StatisticsQuery, tables: Mapping[str, Columns], *, seed: int = 0
) -> StatisticsResult:
    """Return what a query says of all silos' tables together.

    Args:
        query: the columns.
        tables: silo name to its table; three at least.
        seed: of the simulated keys and masks.

    Raises:
        DataError: a table does not fit the query.
        RunStateError: the sum failed; says why.
    """
    n_max = len(tables)
    values = {name: query.values(table, n_max) for name, table in tables.items()}
    return query.result(_summed(query, query.spec(n_max), values, number=1, seed=seed))


def ask_privately(
    query: StatisticsQuery,
    tables: Mapping[str, Columns],
    plan: PrivacyPlan,
    *,
    seed: int = 0,
    noise: Callable[[], NoiseSource] = NoiseStream,
) -> StatisticsResult:
    """Return a query's noised answer; whoever owns the tables has charged it before.

    Args:
        query: the columns.
        tables: silo name to its table; three at least.
        plan: by `fl.private_queries.query_plan`.
        seed: of the simulated keys and masks, never of the noise.
        noise: gives each silo a fresh source.

    Raises:
        DataError: a table does not fit the query or the plan.
        RunStateError: the sum failed; says why.
    """
    values = {name: noised_answer(query, table, plan, noise()) for name, table in tables.items()}
    spec = query_spec(plan, len(tables))
    total = _summed(query, spec, values, number=1, seed=seed, privacy=plan)
    return released(query, total, plan)


def advice(
    query: StatisticsQuery,
    tables: Mapping[str, Columns],
    known: Circumstances,
    *,
    target: str,
    seed: int = 0,
) -> Advice:
    """Return where to start: one sum for the totals, one for the silos' distances from them.

    Args:
        query: the features and the target, which is categorical.
        tables: silo name to its table.
        known: of the federation.
        target: the label's column.
        seed: as for `ask`.

    Raises:
        PlanError: the query does not ask for the target.
    """
    if target not in {one.name for one in query.categorical}:
        raise PlanError(f"the query has no categorical column {target!r}; add the target to it")
    total = ask(query, tables, seed=seed)
    distances = {}
    for name, table in tables.items():
        own = query.result(query.values(table, len(tables)))
        labels = label_divergence(_labels(own, target), _labels(total, target))
        features = feature_divergence(
            [one.moments for one in own.numeric.values()],
            [one.moments for one in total.numeric.values()],
        )
        distances[name] = divergence_values(max(labels, features))
    return advise(_summed(query, divergence_spec(), distances, number=2, seed=seed), known)


def _labels(result: StatisticsResult, target: str) -> NDArray[np.int64]:
    return np.array(list(result.categorical[target].counts.values()), dtype=np.int64)


def _summed(
    query: StatisticsQuery,
    spec: VectorSpec,
    values: Mapping[str, Mapping[str, IntVector]],
    *,
    number: int,
    seed: int,
    privacy: PrivacyPlan | None = None,
) -> Mapping[str, IntVector]:
    """Return one secure sum; the query stands for the plan that all have agreed on."""
    if len(values) < 3:
        raise DataError(f"a secure sum needs three silos at least, got {len(values)}")
    names, document = sorted(values), query.document()
    federation = make_federation(len(names), seed=seed)
    private: dict[str, object] = {}
    if privacy is not None:
        private = {"n_c": privacy.n_c, "h_dp": privacy.h_dp, "dp": privacy.to_bytes()}
    parameters = make_parameters(
        federation.roster,
        spec,
        kind="statistics",
        round=number,
        training_plan=plan_hash(document),
        **private,
    )
    outcome = RoundHarness(
        federation=federation,
        parameters=parameters,
        state=u64(number),
        plan=document,
        train=lambda seat, *_: values[names[seat - 1]],
        seed=seed,
    ).run()
    if outcome.aggregate is None:
        reason = outcome.aborted.reason if outcome.aborted else "the round did not end"
        raise RunStateError(f"the secure sum failed: {reason}")
    return outcome.aggregate.values


def _number(cell: str) -> float:
    """Return a cell's number, NaN for an empty one and infinity for what is none."""
    if not cell:
        return float("nan")
    try:
        value = float(cell)
    except ValueError:
        return float("inf")
    return value if np.isfinite(value) else float("inf")

"""A statistics run over silos in this process: their tables, the secure sums, the advice.

What is summed is what a running federation sums (`fl.query_run`), and every sum goes through
secagg's state machines; only the network, the disks and the ledgers are missing.
"""

from collections.abc import Callable, Mapping
from typing import Final

from dp.plan import PrivacyPlan
from dp.rng import NoiseSource, NoiseStream
from fl.advisor import Advice, Circumstances, advise
from fl.errors import DataError, RunStateError
from fl.privacy import as_settings, document_of, privacy_of
from fl.queries import Columns, StatisticsQuery, StatisticsResult
from fl.query_plan import QueryKind, QueryPlan, QueryState, result_of
from fl.query_run import QueryParticipant, QueryRun
from fl.rounds import RoundFailure, RoundRequest
from fl.testing import DictMemory
from secagg.ids import RunId
from secagg.parameters import RoundParameters
from secagg.testing import Federation, RoundHarness, make_federation, make_parameters

_RUN: Final = RunId(bytes(16))
_LEAST: Final = 3


def ask(
    query: StatisticsQuery, tables: Mapping[str, Columns], *, seed: int = 0
) -> StatisticsResult:
    """Return what a query says of all silos' tables together.

    Args:
        query: the columns.
        tables: silo name to its table; three at least.
        seed: of the simulated keys and masks.

    Raises:
        DataError: a table does not fit the query, or there are too few.
        RunStateError: the sum failed; says why.
    """
    plan = QueryPlan(kind=QueryKind.DESCRIBE, query=query, max_silos=_most(tables))
    return result_of(plan, _answered(plan, tables, seed=seed))


def ask_privately(
    query: StatisticsQuery,
    tables: Mapping[str, Columns],
    privacy: PrivacyPlan,
    *,
    seed: int = 0,
    noise: Callable[[], NoiseSource] = NoiseStream,
) -> StatisticsResult:
    """Return a query's noised answer; nothing is charged: there is no ledger here.

    Args:
        query: the columns.
        tables: silo name to its table; three at least.
        privacy: by `fl.private_queries.query_plan`.
        seed: of the simulated keys and masks, never of the noise.
        noise: gives each silo a fresh source.

    Raises:
        DataError: a table does not fit the query or the plan, or there are too few.
        RunStateError: the sum failed; says why.
    """
    plan = QueryPlan(
        kind=QueryKind.DESCRIBE,
        query=query,
        max_silos=_most(tables),
        privacy=as_settings(privacy),
    )
    return result_of(plan, _answered(plan, tables, seed=seed, noise=noise))


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
        tables: silo name to its table; three at least.
        known: of the federation.
        target: the label's column.
        seed: as for `ask`.

    Raises:
        PlanError: the query does not ask for the target.
        DataError, RunStateError: as for `ask`.
    """
    plan = QueryPlan(kind=QueryKind.ADVISE, query=query, max_silos=_most(tables), target=target)
    return advise(_answered(plan, tables, seed=seed).sums[-1], known)


def _most(tables: Mapping[str, Columns]) -> int:
    """Return n_max, for which a plan wants three at least; `_answered` says if there are fewer."""
    return max(len(tables), _LEAST)


def _answered(
    plan: QueryPlan,
    tables: Mapping[str, Columns],
    *,
    seed: int,
    noise: Callable[[], NoiseSource] = NoiseStream,
) -> QueryState:
    """Return the last state of a statistics run over these tables."""
    if len(tables) < _LEAST:
        raise DataError(f"a secure sum needs three silos at least, got {len(tables)}")
    federation = make_federation(len(tables), seed=seed)
    names = dict(zip(federation.roster.indices, sorted(tables), strict=True))
    run = QueryRun(plan, run=_RUN, names=names)
    silos = {
        seat: QueryParticipant(plan, run=_RUN, table=tables[name], memory=DictMemory(), noise=noise)
        for seat, name in names.items()
    }
    while isinstance(request := run.next(), RoundRequest):
        parameters = _parameters(federation, plan, request)
        for silo in silos.values():
            silo.check(parameters, plan.document())
        known = {seat: silo.standpoint() for seat, silo in silos.items()}
        outcome = RoundHarness(
            federation=federation,
            parameters=parameters,
            state=request.state,
            standpoints={seat: one for seat, one in known.items() if one is not None},
            plan=plan.document(),
            train=lambda seat, asked, state: silos[seat].contribute(asked, state),
            seed=seed,
        ).run()
        if outcome.aggregate is None:
            reason = outcome.aborted.reason if outcome.aborted else "the round did not end"
            raise RunStateError(f"the secure sum failed: {reason}")
        made = run.receive(outcome.aggregate)
        if isinstance(made, RoundFailure):
            raise RunStateError(made.reason)
        for silo in silos.values():
            silo.settle(outcome.aggregate, request.state)
    return QueryState.decode(run.state, plan)


def _parameters(federation: Federation, plan: QueryPlan, request: RoundRequest) -> RoundParameters:
    private: dict[str, object] = {}
    if (privacy := privacy_of(plan)) is not None:
        private = {"n_c": privacy.n_c, "h_dp": privacy.h_dp, "dp": document_of(plan)}
    return make_parameters(
        federation.roster,
        request.spec,
        run=_RUN,
        kind=request.kind.value,
        round=request.number,
        training_plan=plan.digest(),
        **private,
    )

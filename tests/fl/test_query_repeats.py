"""Queries one after another, over silos that remember: no two show the table of one (2.5 v)."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import pytest

from dp.plan import Adjacency
from fl.errors import SpecMismatchError
from fl.privacy import document_of, privacy_of
from fl.queries import CategoricalColumn, NumericColumn, StatisticsQuery, StatisticsResult
from fl.query_plan import QueryKind, QueryPlan, QueryState, result_of
from fl.query_run import QueryParticipant, QueryRun
from fl.rounds import RoundRequest
from fl.testing import DictMemory
from secagg.ids import RunId
from secagg.journal import SiloHistory
from secagg.parameters import RoundParameters
from secagg.phases import Phase
from secagg.testing import RoundHarness, make_federation, make_parameters

SILOS = 7
LAST = SILOS  # the silo whose table somebody is after
AGE = NumericColumn(name="age", low=0, high=100, bins=4)
WEIGHT = NumericColumn(name="weight", low=0, high=200, bins=4)
SICK = CategoricalColumn(name="sick", categories=("no", "yes"))
QUERY = StatisticsQuery(numeric=(AGE, WEIGHT), categorical=(SICK,))
ALL = tuple(range(1, SILOS + 1))


def describe(query: StatisticsQuery) -> QueryPlan:
    """Exact sums of these columns."""
    return QueryPlan(kind=QueryKind.DESCRIBE, query=query, max_silos=SILOS)


ADVISE = QueryPlan(kind=QueryKind.ADVISE, query=QUERY, max_silos=SILOS, target="sick")
NOISED = QueryPlan.private(
    QUERY,
    max_silos=SILOS,
    silos=SILOS,
    z=4.0,
    delta=1e-6,
    most_rows=50,
    adjacency=Adjacency.ZERO_OUT,
)


class Silos:
    """Seven silos with their journals and their tables, and a coordinator that asks them."""

    def __init__(self) -> None:
        self.federation = make_federation(SILOS)
        self.histories = {seat: SiloHistory() for seat in ALL}
        rng = np.random.default_rng(1)
        self.tables: dict[int, dict[str, Any]] = {
            seat: {
                "age": rng.integers(20, 90, 12).astype(float),
                "weight": rng.integers(50, 99, 12).astype(float),
                "sick": list(rng.choice(["no", "yes"], 12)),
            }
            for seat in ALL
        }
        self.memories = {seat: DictMemory() for seat in ALL}
        self.asked = 0

    def ask(
        self,
        plan: QueryPlan,
        *,
        without: Collection[int] = (),
        from_round: int = 1,
        fail_first: Phase | None = None,
        restart: bool = False,
    ) -> tuple[StatisticsResult | None, tuple[int, ...], str]:
        """Run a query to its end.

        Args:
            plan: the query.
            without: seats that drop out, from sum `from_round` on.
            from_round: see `without`.
            fail_first: all but one silo are gone from this phase on in the first attempt.
            restart: whether the coordinator goes on from a snapshot after every step.

        Returns:
            the result, the last survivors, and why there is none.
        """
        self.asked += 1
        self.released: list[Mapping[str, Any]] = []
        run = RunId(self.asked.to_bytes(16, "big"))
        names = {seat: str(seat) for seat in ALL}
        ones = {
            seat: QueryParticipant(
                plan, run=run, table=self.tables[seat], memory=self.memories[seat]
            )
            for seat in ALL
        }
        course = QueryRun(plan, run=run, names=names)
        survivors: tuple[int, ...] = ()
        while isinstance(request := course.next(), RoundRequest):
            gone = without if request.number >= from_round else ()
            drop = dict.fromkeys(gone, Phase.SHARE)
            if fail_first and request.attempt == 0:
                drop = dict.fromkeys(ALL[1:], fail_first)
            outcome = self._attempt(plan, run, request, ones, drop)
            if outcome.aggregate is None:
                reason = outcome.aborted.detail if outcome.aborted else "no end"
                reason += "; ".join(str(one) for one in self.refusals.values())
                if not (fail_first and request.attempt == 0):
                    return None, survivors, reason
                course.fail(reason)
            else:
                survivors = outcome.aggregate.survivors
                course.receive(outcome.aggregate)
                self.released.append(outcome.aggregate.values)
                for seat, aggregate in outcome.silo_aggregates.items():
                    ones[seat].settle(aggregate, request.state)
            if restart:
                course = QueryRun.restore(course.snapshot(), names)
        return result_of(plan, QueryState.decode(course.state, plan)), survivors, ""

    def _attempt(
        self,
        plan: QueryPlan,
        run: RunId,
        request: RoundRequest,
        ones: dict[int, QueryParticipant],
        drop: dict[int, Phase],
    ) -> Any:
        private: dict[str, Any] = {}
        if (privacy := privacy_of(plan)) is not None:
            private = {"n_c": privacy.n_c, "h_dp": privacy.h_dp, "dp": document_of(plan)}
        parameters = make_parameters(
            self.federation.roster,
            request.spec,
            run=run,
            kind=request.kind.value,
            round=request.number,
            attempt=request.attempt,
            n_max=SILOS,
            training_plan=plan.digest(),
            **private,
        )
        for one in ones.values():
            one.check(parameters, plan.document())
        known = {seat: one.standpoint() for seat, one in ones.items()}
        self.refusals: dict[int, SpecMismatchError] = {}

        def answer(seat: int, asked: RoundParameters, state: bytes) -> Mapping[str, Any] | None:
            try:
                return ones[seat].contribute(asked, state)
            except SpecMismatchError as error:
                self.refusals[seat] = error
                return None

        return RoundHarness(
            federation=self.federation,
            parameters=parameters,
            state=request.state,
            standpoints={seat: one for seat, one in known.items() if one is not None},
            train=answer,
            plan=plan.document(),
            drop=drop,
            histories=self.histories,
            seed=f"{run}/{request.number}/{request.attempt}",
        ).run()


@pytest.mark.parametrize(
    "again",
    [
        lambda: describe(QUERY),
        lambda: describe(StatisticsQuery(numeric=(WEIGHT, AGE), categorical=(SICK,))),
        lambda: describe(StatisticsQuery(numeric=(AGE,), categorical=(SICK,))),
        lambda: describe(
            StatisticsQuery(
                numeric=(NumericColumn(name="age", low=0, high=100, bins=5),), categorical=(SICK,)
            )
        ),
        lambda: ADVISE,
    ],
    ids=["same", "order", "fewer", "bins", "advise"],
)
def test_another_query_over_other_silos_is_refused(again: Callable[[], QueryPlan]) -> None:
    """Of all, then of all but one: whatever the second asks, the difference is one table."""
    silos = Silos()
    found, survivors, _ = silos.ask(describe(QUERY))
    assert (found is not None, survivors) == (True, ALL)
    found, _, reason = silos.ask(again(), without=(LAST,))
    assert found is None
    assert "were in a sum over this state with other survivors" in reason


def test_of_the_same_silos_anything_may_be_asked() -> None:
    """One query after another, an advice among them."""
    silos = Silos()
    fewer = StatisticsQuery(categorical=(SICK,))
    for plan in (describe(QUERY), describe(fewer), ADVISE, describe(QUERY)):
        found, survivors, _ = silos.ask(plan)
        assert (found is not None, survivors) == (True, ALL)


def test_the_second_sum_of_an_advice_is_over_the_silos_of_the_first() -> None:
    """Else the count of distances over all but one would show the range of that one."""
    silos = Silos()
    found, survivors, reason = silos.ask(ADVISE, without=(LAST,), from_round=2)
    assert (found, survivors) == (None, ALL)  # the first sum's
    assert "were in a sum over this state with other survivors" in reason


def test_who_was_missing_in_the_first_exact_sum_is_missing_in_all() -> None:
    """The others' sum is opened again without it, though it is there."""
    silos = Silos()
    for plan, without in ((describe(QUERY), (LAST,)), (ADVISE, ()), (describe(QUERY), ())):
        found, survivors, _ = silos.ask(plan, without=without)
        assert found is not None
        assert survivors == ALL[:-1]


@pytest.mark.parametrize("restart", [False, True], ids=["same-process", "restart"])
@pytest.mark.parametrize("plan", [describe(QUERY), ADVISE, NOISED], ids=["one", "two", "noised"])
def test_a_failed_attempt_is_tried_again(plan: QueryPlan, restart: bool) -> None:
    """Also by a coordinator that has been started again in between."""
    silos = Silos()
    found, survivors, _ = silos.ask(plan, fail_first=Phase.ADVERTISE, restart=restart)
    assert (found is not None, survivors) == (True, ALL)


def test_a_noised_query_waives_the_rule() -> None:
    """It is charged each time, so other silos may be asked, after an exact one as well."""
    silos = Silos()
    silos.ask(describe(QUERY))
    for without in ((), (LAST,), (LAST - 1,)):
        found, survivors, reason = silos.ask(NOISED, without=without)
        assert found is not None, reason
        assert survivors == tuple(seat for seat in ALL if seat not in without)


def advise_on(*numeric: NumericColumn, sick: CategoricalColumn = SICK) -> QueryPlan:
    """An advice about these columns."""
    query = StatisticsQuery(numeric=numeric, categorical=(sick,))
    return QueryPlan(kind=QueryKind.ADVISE, query=query, max_silos=SILOS, target="sick")


def test_the_same_advice_is_given_again() -> None:
    """Totals that a silo knows tell nothing new, whatever else is asked beside."""
    silos = Silos()
    finer = NumericColumn(name="age", low=0, high=100, bins=9)
    for plan in (ADVISE, advise_on(), ADVISE, advise_on(finer)):
        assert silos.ask(plan)[0] is not None
        assert silos.refusals == {}
        assert sum(silos.released[-1]["divergences"]) == SILOS


@pytest.mark.parametrize(
    ("again", "column"),
    [
        (lambda: ADVISE, "age, sick"),
        (advise_on, "sick"),
        (lambda: advise_on(AGE), "age, sick"),
        (lambda: advise_on(sick=CategoricalColumn(name="sick", categories=("yes", "no"))), "sick"),
    ],
    ids=["same", "label", "fewer", "order"],
)
def test_other_totals_of_a_column_are_not_measured_from(
    again: Callable[[], QueryPlan], column: str
) -> None:
    """Else a silo that adds what it likes bisects for one honest silo's counts."""
    silos = Silos()
    assert silos.ask(ADVISE)[0] is not None
    own = silos.tables[LAST]
    own["age"], own["sick"] = own["age"] + 1000, ["yes"] * 40 + ["no"] * 2
    own["age"], own["weight"] = np.resize(own["age"], 42), np.resize(own["weight"], 42)
    _, _, reason = silos.ask(again())
    assert len(silos.released) == 1  # the first sum, which is described as well
    assert silos.refusals.keys() == set(ALL)
    assert f"advice: {column}" in reason
    assert silos.ask(describe(QUERY))[0] is not None

"""A statistics run's plan, its state between sums, and both sides of it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dp.plan import Adjacency
from dp.rng import ReplayStream
from fl.errors import DataError, PlanError, RunStateError, SpecMismatchError
from fl.plan import LocalPlan, RoundKind, TaskPlan, TrainingPlan
from fl.privacy import document_of, privacy_of
from fl.private_queries import STATISTICS
from fl.queries import CategoricalColumn, NumericColumn, StatisticsQuery
from fl.query_plan import (
    QueryKind,
    QueryPlan,
    QueryState,
    decode_result,
    encode_result,
    parse_plan,
    result_of,
)
from fl.query_run import QueryParticipant, QueryRun
from fl.rounds import RoundFailure, RoundReport, RoundRequest, RunFinished, RunStatus
from fl.testing import DictMemory
from secagg.chain import Standpoint
from secagg.effects import Aggregate
from secagg.ids import RunId
from secagg.messages import model_hash
from secagg.parameters import RoundParameters
from secagg.testing import make_federation, make_parameters

QUERY = StatisticsQuery(
    numeric=(NumericColumn(name="age", low=0, high=100, bins=4),),
    categorical=(CategoricalColumn(name="sick", categories=("no", "yes")),),
)
NAMES = {1: "a", 2: "b", 3: "c"}
RUN = RunId(bytes(16))
ROSTER = make_federation(3).roster
DESCRIBE = QueryPlan(kind=QueryKind.DESCRIBE, query=QUERY, max_silos=4)
ADVISE = QueryPlan(kind=QueryKind.ADVISE, query=QUERY, max_silos=4, target="sick")
NOISED = QueryPlan.private(
    QUERY, max_silos=4, silos=3, z=2.0, delta=1e-6, most_rows=50, adjacency=Adjacency.ZERO_OUT
)


def table(seat: int) -> dict[str, Any]:
    """A silo's ten rows."""
    return {
        "age": np.arange(10) * 7.0 + seat,
        "sick": ["yes" if row < 3 * seat else "no" for row in range(10)],
    }


def parameters_of(plan: QueryPlan, request: RoundRequest, **changes: Any) -> RoundParameters:
    """What a coordinator asks for a request."""
    privacy = privacy_of(plan)
    values: dict[str, Any] = {
        "run": RUN,
        "kind": request.kind.value,
        "round": request.number,
        "attempt": request.attempt,
        "n_c": privacy.n_c if privacy else 0,
        "h_dp": privacy.h_dp if privacy else 0,
        "dp": document_of(plan),
        "n_max": plan.max_silos,
        "training_plan": plan.digest(),
        "spec": request.spec,
    }
    return make_parameters(ROSTER, **(values | changes))


def asked(run: QueryRun) -> RoundRequest:
    """What the run wants."""
    step = run.next()
    assert isinstance(step, RoundRequest)
    return step


def summed(plan: QueryPlan, request: RoundRequest, silos: dict[int, QueryParticipant]) -> Aggregate:
    """The sum of what these silos answer, as if it had passed its checks."""
    parameters = parameters_of(plan, request)
    answers = [one.contribute(parameters, request.state) for one in silos.values()]
    total = {name: np.sum([one[name] for one in answers], axis=0) for name in answers[0]}
    return Aggregate(
        parameters=parameters,
        values=total,
        survivors=tuple(silos),
        cohort=tuple(silos),
        state_hash=request.state_hash,
        public_coins=b"",
    )


def participants(plan: QueryPlan) -> dict[int, QueryParticipant]:
    """Three silos."""
    return {
        seat: QueryParticipant(
            plan,
            run=RUN,
            table=table(seat),
            memory=DictMemory(),
            noise=lambda: ReplayStream(b"noise"),
        )
        for seat in NAMES
    }


def test_a_description_is_one_sum() -> None:
    """Its result is the pooled table's, and the file that is kept says it again."""
    run, silos = QueryRun(DESCRIBE, run=RUN, names=NAMES), participants(DESCRIBE)
    request = asked(run)
    assert (request.kind, request.number, run.preview()) == (RoundKind.STATISTICS, 1, None)
    report = run.receive(summed(DESCRIBE, request, silos))
    assert isinstance(report, RoundReport)
    assert run.figures(report) == {}
    assert run.status is RunStatus.COMPLETED
    plan, state = decode_result(encode_result(DESCRIBE, run.state))
    found = result_of(plan, state)
    pooled = np.concatenate([table(seat)["age"] for seat in NAMES])
    age = found.numeric["age"]
    assert found.rows == 30
    assert age.moments is not None
    assert age.moments.mean == pytest.approx(pooled.mean())
    assert found.categorical["sick"].counts == {"no": 12, "yes": 18}


def test_advice_is_two_sums_and_silos_know_the_second_ones_state() -> None:
    """A silo that was in the first sum accepts exactly what follows from it."""
    run, silos = QueryRun(ADVISE, run=RUN, names=NAMES), participants(ADVISE)
    first = asked(run)
    ahead = run.preview()
    assert ahead is not None
    total = summed(ADVISE, first, silos)
    run.receive(total)
    second = asked(run)
    assert (second.number, second.spec) == (2, ahead.spec)
    for silo in silos.values():
        assert silo.standpoint() is None
        assert silo.settle(total, first.state) == run.state
        assert silo.standpoint() == Standpoint(round=1, model_hash=second.state_hash)
        silo.check(parameters_of(ADVISE, second), ADVISE.document())
    last = summed(ADVISE, second, silos)
    assert sum(last.values["divergences"]) == 3
    assert isinstance(run.receive(last), RoundReport)
    finished = run.next()
    assert isinstance(finished, RunFinished)
    assert finished.status is RunStatus.COMPLETED
    state = silos[1].settle(last, second.state)
    assert state == finished.state
    assert silos[1].settle(last, second.state) == state  # the result came again
    assert silos[1].standpoint() == Standpoint(round=1, model_hash=second.state_hash)


def test_a_run_goes_on_after_a_restart() -> None:
    """Between two sums, in a second attempt, with the names it began with."""
    run, silos = QueryRun(ADVISE, run=RUN, names=NAMES), participants(ADVISE)
    run.fail("too few")
    run.receive(summed(ADVISE, asked(run), silos))
    run.fail("too few")
    again = QueryRun.restore(run.snapshot(), NAMES)
    assert asked(again) == asked(run)
    assert (asked(again).number, asked(again).attempt) == (2, 1)
    with pytest.raises(RunStateError, match="other silos"):
        QueryRun.restore(run.snapshot(), NAMES | {1: "z"})


def test_three_failures_end_the_run_and_a_wrong_sum_is_no_sum() -> None:
    """The reason is kept; a sum of another attempt is refused."""
    run = QueryRun(DESCRIBE, run=RUN, names=NAMES, max_attempts=3)
    early = summed(DESCRIBE, asked(run), participants(DESCRIBE))
    assert [run.fail("no answer").retried for _ in range(2)] == [True, True]
    with pytest.raises(RunStateError, match="attempt 2"):
        run.receive(early)
    assert not run.fail("no answer").retried
    ended = run.next()
    assert isinstance(ended, RunFinished)
    assert "no answer" in ended.reason
    with pytest.raises(RunStateError, match="room for 4"):
        QueryRun(DESCRIBE, run=RUN, names={seat: str(seat) for seat in range(1, 6)})


def test_a_noised_answer_is_fresh_in_every_attempt_and_says_its_price() -> None:
    """Noise is never repeated; what it costs stands in the report; a wrapped sum is an alarm."""
    run = QueryRun(NOISED, run=RUN, names=NAMES)
    silo = QueryParticipant(NOISED, run=RUN, table=table(1), memory=DictMemory())
    request = asked(run)
    first, again = (
        silo.contribute(parameters_of(NOISED, request), request.state)[STATISTICS] for _ in range(2)
    )
    assert np.count_nonzero(first != again) > len(first) // 2
    total = summed(NOISED, request, participants(NOISED))
    huge = {name: np.full_like(one, 2**31 - 1) for name, one in total.values.items()}
    made = QueryRun(NOISED, run=RUN, names=NAMES).receive(replace(total, values=huge))
    assert isinstance(made, RoundFailure)
    assert not made.retried
    report = run.receive(total)
    assert isinstance(report, RoundReport)
    assert run.figures(report).keys() == {"epsilon", "std_of_a_count"}
    few = QueryPlan.private(
        QUERY, max_silos=4, silos=3, z=2.0, delta=1e-6, most_rows=9, adjacency=Adjacency.ZERO_OUT
    )
    with pytest.raises(DataError, match="more rows") as caught:
        QueryParticipant(few, run=RUN, table=table(1), memory=DictMemory())
    assert "10" not in str(caught.value)


def test_all_exact_sums_are_bound_to_one_state() -> None:
    """Neither what is asked, nor who may take part, nor the run is an escape from 2.5 (v)."""
    other = StatisticsQuery(categorical=QUERY.categorical)
    runs = [QueryRun(plan, run=RUN, names=NAMES) for plan in (DESCRIBE, ADVISE)]
    runs.append(QueryRun(DESCRIBE, run=RunId(b"another run, yes"), names=NAMES))
    plan = QueryPlan(kind=QueryKind.DESCRIBE, query=other, max_silos=9)
    runs.append(QueryRun(plan, run=RUN, names={}))
    hashes = {asked(run).state_hash for run in runs}
    runs[1].receive(summed(ADVISE, asked(runs[1]), participants(ADVISE)))
    hashes.add(asked(runs[1]).state_hash)  # of the second sum
    assert len(hashes) == 1
    noised = {
        asked(QueryRun(NOISED, run=run, names=NAMES)).state_hash
        for run in (RUN, RunId(b"another run, yes"))
    }
    assert len(noised | hashes) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 2},
        {"kind": "training"},
        {"n_max": 3},
        {"run": RunId(b"another run, yes")},
        {"training_plan": bytes(32)},
        {"spec": ADVISE.spec(2)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_silo_refuses_what_the_plan_does_not_say(changes: dict[str, Any]) -> None:
    """By the field that differs."""
    silo, request = participants(DESCRIBE)[1], asked(QueryRun(DESCRIBE, run=RUN, names=NAMES))
    silo.check(parameters_of(DESCRIBE, request), DESCRIBE.document())
    with pytest.raises(SpecMismatchError):
        silo.check(parameters_of(DESCRIBE, request, **changes), DESCRIBE.document())


def test_a_silo_does_not_answer_for_less_noise() -> None:
    """The round must name the plan's own noise, and honest shares enough."""
    silo, request = participants(NOISED)[1], asked(QueryRun(NOISED, run=RUN, names=NAMES))
    silo.check(parameters_of(NOISED, request), NOISED.document())
    for changes in ({"dp": b""}, {"h_dp": 1}, {"n_c": 0}):
        with pytest.raises(SpecMismatchError):
            silo.check(parameters_of(NOISED, request, **changes), NOISED.document())


def broken(change: Callable[[dict[str, Any]], None]) -> bytes:
    """The document of a noised plan after a change."""
    content = json.loads(NOISED.document())
    change(content)
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan["privacy"].update(dimension=3),
        lambda plan: plan["privacy"].update(unit="silo"),
        lambda plan: plan["query"]["categorical"].append({"name": "x", "categories": ["a"]}),
        lambda plan: plan.update(max_silos=2),
        lambda plan: plan.update(kind="advise", target="sick"),
        lambda plan: plan.update(target="sick"),
        lambda plan: plan.update(more=1),
        lambda plan: plan.pop("query"),
        lambda plan: plan.update(query=[]),
    ],
    ids=["dimension", "unit", "column", "silos", "advise", "target", "more", "less", "query"],
)
def test_a_plan_that_promises_what_its_query_does_not_keep_is_none(
    change: Callable[[dict[str, Any]], None],
) -> None:
    """The privacy plan is computed from the query again; so is the form of everything else."""
    assert QueryPlan.parse(NOISED.document()) == NOISED
    with pytest.raises(PlanError):
        parse_plan(broken(change))


def test_plans_of_both_kinds_are_told_apart() -> None:
    """By their documents alone."""
    training = TrainingPlan(
        task=TaskPlan(), local=LocalPlan(local_steps=1, learning_rate=0.1), rounds=1, max_silos=3
    )
    for plan in (training, DESCRIBE, ADVISE, NOISED):
        assert parse_plan(plan.document()) == plan
    for junk in (b"", b"[]", b'{"kind":', b'{"kind":"describe"}', DESCRIBE.document() + b" "):
        with pytest.raises(PlanError):
            parse_plan(junk)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"query":{},"sums":[]}',
        QueryState(query=QUERY).encode() + b" ",
        QueryState(query=QUERY, sums=({"rows": np.array([1])},)).encode(),
        QueryState(query=QUERY).encode().replace(b'"sums":[]', b'"sums":[{"rows":[1.5]}]'),
        QueryState(query=QUERY)
        .encode()
        .replace(b'"sums":[]', b'"sums":[{"rows":[' + b"9" * 30 + b"]}]"),
        QueryState(query=QUERY).encode().replace(b"age", b"egg"),
    ],
    ids=["empty", "list", "deep", "bare", "blank", "sum", "real", "huge", "query"],
)
def test_a_state_that_is_not_the_querys_is_refused(data: bytes) -> None:
    """Whatever it holds, as an error of this package."""
    with pytest.raises(SpecMismatchError):
        QueryState.decode(data, DESCRIBE)


def test_a_sum_is_answered_on_its_own_state_only() -> None:
    """A noised query's is its run's; an exact one's holds no sum that a silo might believe."""
    silo, run = participants(ADVISE)[1], QueryRun(ADVISE, run=RUN, names=NAMES)
    first = asked(run)
    run.receive(summed(ADVISE, first, participants(ADVISE)))
    elsewhere = asked(QueryRun(NOISED, run=RunId(b"another run, yes"), names=NAMES))
    noised = participants(NOISED)[1]
    for state in (elsewhere.state, run.state, first.state):
        with pytest.raises(SpecMismatchError, match="expected the state"):
            noised.contribute(parameters_of(NOISED, elsewhere), state)
    for state in (elsewhere.state, run.state, b""):
        with pytest.raises(SpecMismatchError, match="expected the state"):
            silo.contribute(parameters_of(ADVISE, first), state)
    with pytest.raises(SpecMismatchError, match="no sum yet"):
        result_of(ADVISE, QueryState(query=QUERY))
    assert model_hash("statistics", first.state) == first.state_hash


def test_a_silo_measures_its_distance_from_totals_that_it_checked_itself() -> None:
    """One that was away in the first sum says nothing in the second; a restarted one does."""
    run, silos = QueryRun(ADVISE, run=RUN, names=NAMES), participants(ADVISE)
    first = asked(run)
    total = summed(ADVISE, first, silos)
    run.receive(total)
    second = asked(run)
    asks = parameters_of(ADVISE, second)
    with pytest.raises(SpecMismatchError, match="has not settled the sum before"):
        silos[1].contribute(asks, second.state)
    memory = DictMemory()

    def process() -> QueryParticipant:
        return QueryParticipant(ADVISE, run=RUN, table=table(1), memory=memory)

    process().settle(total, first.state)
    assert sum(process().contribute(asks, second.state)["divergences"]) == 1

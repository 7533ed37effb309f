"""The moments that training runs standardize with are exact statistics like any other.

Two such sums over silos that differ by one would tell that silo's rows, means and variances.
"""

from collections.abc import Collection

import numpy as np
import pytest

from fl.participant import RunParticipant
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.ports import Tensor
from fl.queries import NumericColumn, StatisticsQuery
from fl.query_plan import QueryKind, QueryPlan
from fl.query_run import QueryParticipant, QueryRun
from fl.rounds import Participant, RoundReport, RoundRequest
from fl.run import TrainingRun
from fl.state import decode_state
from fl.testing import DictMemory, LeastSquaresTask, least_squares_toy
from secagg.chain import Standpoint
from secagg.ids import RunId
from secagg.journal import SiloHistory
from secagg.messages import Succession
from secagg.phases import Phase
from secagg.testing import RoundHarness, SeededRng, make_federation, make_parameters

SILOS = 7
ALL = tuple(range(1, SILOS + 1))
LAST = ALL[-1]
NAMES = {seat: str(seat) for seat in ALL}
QUERY = QueryPlan(
    kind=QueryKind.DESCRIBE,
    query=StatisticsQuery(numeric=(NumericColumn(name="age", low=0, high=100, bins=2),)),
    max_silos=SILOS,
)


def training(seed: int = 1, *, standardize: bool = True, algorithm: str = "fedavg") -> TrainingPlan:
    """A run of one training round; another seed is another first model."""
    return TrainingPlan(
        task=TaskPlan(name="tests:toy"),
        local=LocalPlan(local_steps=1, learning_rate=0.01),
        rounds=1,
        max_silos=SILOS,
        seed=seed,
        standardize=standardize,
        algorithm=algorithm,
    )


class Seeded(LeastSquaresTask):
    """Whose first model follows from the seed."""

    def initial_model(self, seed: int, /) -> dict[str, Tensor]:
        """Return one weight."""
        return {name: one + seed for name, one in super().initial_model(seed).items()}


class Silos:
    """Seven silos with their journals and their data."""

    def __init__(self) -> None:
        self.federation = make_federation(SILOS)
        self.histories = {seat: SiloHistory() for seat in ALL}
        toys = least_squares_toy(1, silos=SILOS).values()
        self.tasks = {
            seat: Seeded(one.inputs, one.targets) for seat, one in enumerate(toys, start=1)
        }
        ages = np.random.default_rng(1).integers(20, 90, (SILOS, 12)).astype(float)
        self.tables = {seat: {"age": ages[seat - 1]} for seat in ALL}
        self.asked = 0

    def ask(
        self, plan: TrainingPlan | QueryPlan, *, without: Collection[int] = ()
    ) -> tuple[list[tuple[int, ...]], str]:
        """Run a plan to its end, or to the first round that fails.

        Returns:
            the survivors of each sum, and why there was no other.
        """
        self.asked += 1
        run = RunId(self.asked.to_bytes(16, "big"))
        course: TrainingRun | QueryRun
        ones: dict[int, Participant]
        if isinstance(plan, QueryPlan):
            course = QueryRun(plan, run=run, names=NAMES)
            ones = {
                seat: QueryParticipant(plan, run=run, table=self.tables[seat], memory=DictMemory())
                for seat in ALL
            }
        else:
            first = self.tasks[1].initial_model(plan.seed)
            features = 1 if plan.standardize else 0
            course = TrainingRun(plan, model=first, names=NAMES, features=features)
            ones = {
                seat: RunParticipant(
                    plan,
                    run=run,
                    seat=seat,
                    names=NAMES,
                    task=self.tasks[seat],
                    memory=DictMemory(),
                    rng=SeededRng(seat),
                )
                for seat in ALL
            }
        found: list[tuple[int, ...]] = []
        while isinstance(request := course.next(), RoundRequest):
            parameters = make_parameters(
                self.federation.roster,
                request.spec,
                run=run,
                kind=request.kind.value,
                round=request.number,
                n_max=SILOS,
                training_plan=plan.digest(),
            )
            known = self._standpoints(ones)
            words = [
                one.settled(
                    federation=self.federation.roster.federation,
                    run=run,
                    seat=seat,
                    identity=self.federation.identities[seat],
                )
                for seat, one in known.items()
            ]
            outcome = RoundHarness(
                federation=self.federation,
                parameters=parameters,
                state=request.state,
                train=lambda seat, asked, state: ones[seat].contribute(asked, state),
                plan=plan.document(),
                drop=dict.fromkeys(without, Phase.SHARE),
                histories=self.histories,
                standpoints=known,
                succession=Succession.of(*words[: parameters.n_c + 1]) if words else None,
                seed=str(self.asked),
            ).run()
            if outcome.aggregate is None:
                return found, outcome.aborted.detail if outcome.aborted else "no end"
            found.append(outcome.aggregate.survivors)
            assert isinstance(course.receive(outcome.aggregate), RoundReport)
            for seat, aggregate in outcome.silo_aggregates.items():
                assert ones[seat].settle(aggregate, request.state) == course.state
        self.state = course.state
        return found, ""

    def _standpoints(self, ones: dict[int, Participant]) -> dict[int, Standpoint]:
        """Where the silos stand that have settled a round."""
        known = {seat: one.standpoint() for seat, one in ones.items()}
        return {seat: one for seat, one in known.items() if one is not None}


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_moments_of_all_but_one_silo_are_not_summed_after_those_of_all(algorithm: str) -> None:
    """With another seed, first model and plan: the difference would be one silo's moments."""
    silos = Silos()
    assert silos.ask(training(1, algorithm=algorithm)) == ([ALL, ALL], "")
    found, why = silos.ask(training(2, algorithm=algorithm), without=(LAST,))
    assert found == []
    assert "were in a sum over this state with other survivors" in why
    assert "standardize = false" in why


@pytest.mark.parametrize("is_query_first", [True, False])
def test_a_query_and_a_runs_moments_are_over_the_same_silos(is_query_first: bool) -> None:
    """Both hold the number of rows."""
    silos = Silos()
    first, second = (QUERY, training()) if is_query_first else (training(), QUERY)
    found, _ = silos.ask(first)
    assert set(found) == {ALL}
    found, why = silos.ask(second, without=(LAST,))
    assert found == []
    assert "were in a sum over this state with other survivors" in why


def test_who_comes_later_trains_on_the_moments_of_those_before() -> None:
    """The next run is standardized by the silos of the first, and all of them train."""
    silos = Silos()
    found, _ = silos.ask(training(1), without=(LAST,))
    assert found == [ALL[:-1], ALL[:-1]]
    found, _ = silos.ask(training(2))
    assert found == [ALL[:-1], ALL]
    inputs = np.concatenate([silos.tasks[seat].inputs for seat in ALL[:-1]])
    mean = decode_state(silos.state, 10**6)["preprocess/mean"].astype(np.float64)
    np.testing.assert_allclose(mean, inputs.mean(0), atol=1e-9)


def test_who_comes_later_is_left_out_of_a_run_that_begins_as_one_before_it() -> None:
    """The same first model over one silo more: the sums would differ by its update."""
    silos = Silos()
    silos.ask(training(1), without=(LAST,))
    assert silos.ask(training(1)) == ([ALL[:-1], ALL[:-1]], "")


def test_without_moments_other_silos_may_train() -> None:
    """The control: what a run sums over its own model is bound to its own state."""
    silos = Silos()
    silos.ask(training(1))
    assert silos.ask(training(2, standardize=False), without=(LAST,)) == ([ALL[:-1]], "")

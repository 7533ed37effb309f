"""A statistics run's two sides: what the coordinator sums next, and what a silo answers.

Security: the coordinator's part sees released sums only. A silo answers the plan's own query, bound
to the state that `fl.query_plan.bound_to` gives; over which silos it may be summed, `secagg.silo`
decides (SA1 spec 2.5 v). What follows from an earlier sum it computes from its own copy, never from
one that came.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from dp.rng import NoiseSource, NoiseStream
from dp.trust import plan_epsilon
from fl.advisor import divergence_values, feature_divergence, label_divergence
from fl.errors import LearningError, SpecMismatchError
from fl.memory import RunMemory
from fl.plan import RoundKind
from fl.ports import SiloMemory
from fl.privacy import privacy_of
from fl.private_queries import count_noise, noised_answer, require_rows
from fl.queries import Columns, StatisticsResult
from fl.query_plan import QueryPlan, QueryState, bound_to, result_of
from fl.rounds import (
    MAX_ATTEMPTS,
    Course,
    RoundFailure,
    RoundPreview,
    RoundReport,
    read_snapshot,
    require_round,
)
from fl.statistics import IntVector
from secagg.canonical import digest, text
from secagg.chain import Standpoint
from secagg.effects import Aggregate
from secagg.ids import RunId
from secagg.messages import model_hash
from secagg.parameters import COMMON_COEFFICIENTS, RoundParameters, VectorSpec

_SNAPSHOT: Final = "query-run"
# A silo's runs may answer in threads: of two first totals of a column only one may be noted.
_ONE_AT_A_TIME: Final = Lock()


class QueryRun(Course):
    """One statistics run at the coordinator.

    Args:
        plan: what is asked.
        run: the run's id.
        names: seat to silo name of the enrolled silos.
        max_attempts: tries of one sum before the run fails.
    """

    def __init__(
        self,
        plan: QueryPlan,
        *,
        run: RunId,
        names: Mapping[int, str],
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        super().__init__(names, max_silos=plan.max_silos, max_attempts=max_attempts)
        self.plan: Final = plan
        self._run: Final = run
        self._state = QueryState(query=plan.query)

    @property
    def state(self) -> bytes:
        """The canonical bytes of the columns and their sums so far."""
        return self._state.encode()

    @property
    def basis(self) -> bytes:
        """The state that each of the run's sums is bound to."""
        return bound_to(self.plan, self._run)

    def preview(self) -> RoundPreview | None:
        """The sum after the current one, if there is another."""
        number = self._number + 1
        if number > self.plan.last_round:
            return None
        return RoundPreview(
            kind=RoundKind.STATISTICS,
            number=number,
            spec=self.plan.spec(number),
            coefficients=COMMON_COEFFICIENTS,
        )

    def receive(self, aggregate: Aggregate) -> RoundReport | RoundFailure:
        """Add a sum to the state.

        Raises:
            RunStateError: the sum is not of the round that `next` asked for.
        """
        self._require_sum(aggregate)
        following = self._state.with_sum(aggregate.values)
        try:
            result_of(self.plan, following)
        except LearningError as error:  # a noised sum beyond the ring's half: the alarm
            return self._failed(str(error), retried=False)
        report = RoundReport(
            kind=RoundKind.STATISTICS,
            number=self._number,
            attempt=self._attempt,
            survivors=aggregate.survivors,
            steps={},
        )
        self._state = following
        self._go_on(is_done=self._number == self.plan.last_round)
        return report

    def figures(self, report: RoundReport) -> dict[str, float]:
        """Return what the answer has cost and how far a count is off; nothing of exact sums."""
        del report  # the same for every sum
        privacy = privacy_of(self.plan)
        if privacy is None:
            return {}
        return {
            "epsilon": plan_epsilon(privacy).eps,
            "std_of_a_count": count_noise(self.plan.query, privacy),
        }

    def snapshot(self) -> bytes:
        """Return all that `restore` needs to go on."""
        return self._written(_SNAPSHOT, self.plan.document(), run=self._run.hex)

    @classmethod
    def restore(cls, snapshot: bytes, names: Mapping[int, str]) -> Self:
        """Return the run of a snapshot.

        Args:
            snapshot: of `snapshot`.
            names: as at the start; the snapshot knows who joined or was dismissed since.

        Raises:
            RunStateError: a seat has another name than it had.
        """
        document, counters, state = read_snapshot(_SNAPSHOT, snapshot, names)
        run = cls(
            plan := QueryPlan.parse(document),
            run=RunId.parse(counters["run"]),
            names=counters["names"],
            max_attempts=counters["max_attempts"],
        )
        run._state = QueryState.decode(state, plan)
        run._restore_counters(counters)
        return run

    def _kind(self) -> RoundKind:
        return RoundKind.STATISTICS

    def _spec(self) -> VectorSpec:
        return self.plan.spec(self._number)


class QueryParticipant:
    """A silo in a statistics run.

    Args:
        plan: the run's, as the silo accepted it.
        run: the run's id.
        table: the silo's columns.
        memory: the silo's disk. Names start with the run's id.
        noise: gives a fresh source of noise for each attempt. Only dp.rng.NoiseStream is private.

    Raises:
        DataError: the table does not fit the query or the plan; never how many rows it has.
    """

    def __init__(
        self,
        plan: QueryPlan,
        *,
        run: RunId,
        table: Columns,
        memory: SiloMemory,
        noise: Callable[[], NoiseSource] = NoiseStream,
    ) -> None:
        self._plan = plan
        self._run = run
        self._table = table
        self._privacy = privacy_of(plan)
        self._memory = RunMemory(memory, run)
        self._noise = noise
        plan.query.require(table)
        if self._privacy is not None:
            require_rows(table, self._privacy)

    def know(self, names: Mapping[int, str], /) -> None:
        """Silos that came since change nothing here."""

    def check(self, parameters: RoundParameters, plan_document: bytes, /) -> None:
        """Refuse a round that is not one of this run as the plan has it.

        Raises:
            SpecMismatchError: says which field differs.
        """
        number, last = parameters.round, self._plan.last_round
        if not 1 <= number <= last:
            raise SpecMismatchError(f"round {number}: the plan has rounds 1 to {last}")
        require_round(
            parameters,
            plan_document,
            plan=self._plan,
            run=self._run,
            kind=RoundKind.STATISTICS,
            spec=self._plan.spec(number),
        )

    def standpoint(self) -> Standpoint | None:
        """Return where this silo left the run, None if it has settled no round of it."""
        return self._memory.standpoint()

    def contribute(
        self, parameters: RoundParameters, state_bytes: bytes, _coins: bytes = b"", /
    ) -> dict[str, IntVector]:
        """Return the silo's answer; the same in every attempt, but for noise, which is fresh.

        Raises:
            SpecMismatchError: the sum is bound to another state, or follows from one that this silo
                has not settled.
            DataError: the table's sums are too large.
        """
        state = self._before(parameters.round, state_bytes)
        if parameters.round > 1:
            return self._divergence(state)
        if self._privacy is None:
            return self._plan.query.values(self._table, self._plan.max_silos)
        source = self._noise()
        return noised_answer(self._plan.query, self._table, self._privacy, source)

    def settle(self, aggregate: Aggregate, state_bytes: bytes, /) -> bytes:
        """Add the verified sum to those before it; return their bytes.

        Raises:
            SpecMismatchError: it is bound to another state, or follows from a sum that this silo
                has not settled.
        """
        parameters = aggregate.parameters
        if model_hash(parameters.kind, state_bytes) != aggregate.state_hash:
            raise SpecMismatchError("the sum was computed on another state than the one given")
        state = self._before(parameters.round, state_bytes)
        following = state.with_sum(aggregate.values).encode()
        if parameters.round == self._plan.last_round:
            self._memory.settle(parameters.round, None, keeps=False)
        else:
            self._memory.keep_sums(following)
            self._memory.settle(parameters.round, aggregate.state_hash, keeps=False)
        return following

    def _before(self, number: int, state_bytes: bytes) -> QueryState:
        """Return the sums that sum `number` follows from, as this silo has checked them."""
        if state_bytes != bound_to(self._plan, self._run):
            raise SpecMismatchError(
                f"round {number}: expected the state that all exact statistics have, or a noised "
                "query's own; both sides need the same version"
            )
        if number == 1:
            return QueryState(query=self._plan.query)
        kept = self._memory.sums()
        if kept is None:
            raise SpecMismatchError(
                f"round {number}: this silo has not settled the sum before it; ask anew"
            )
        return QueryState.decode(kept, self._plan)

    def _divergence(self, state: QueryState) -> dict[str, IntVector]:
        """Return in which range the larger of the two distances from all silos together lies."""
        plan = self._plan
        own = plan.query.result(plan.query.values(self._table, plan.max_silos))
        total = result_of(plan, state)
        self._require_same_totals(total)
        labels = label_divergence(_labels(own, plan.target), _labels(total, plan.target))
        features = feature_divergence(
            [one.moments for one in own.numeric.values()],
            [one.moments for one in total.numeric.values()],
        )
        return divergence_values(max(labels, features))

    def _require_same_totals(self, total: StatisticsResult) -> None:
        """Refuse totals of a column other than those that this silo has measured itself against.

        Security: who may choose the totals, as a silo that sends counts of its own choice does,
        finds one honest silo's counts by bisection. So there is one choice for each column of this
        silo's data, in all runs together; it is written down before the answer leaves.

        Raises:
            SpecMismatchError: names the columns.
        """
        shown = {
            name: digest("advice-total", text(name), text(f"{one.moments}"))
            for name, one in total.numeric.items()
        }
        target = self._plan.target
        counts = list(total.categorical[target].counts.items())
        shown[target] = digest("advice-total", text(target), text(f"{counts}"))
        with _ONE_AT_A_TIME:
            known = {name: self._memory.total(name) for name in shown}
            odd = [name for name in sorted(shown) if known[name] not in (None, shown[name])]
            if odd:
                raise SpecMismatchError(
                    f"advice: {', '.join(odd)}: expected the totals of the first advice that this "
                    "silo answered about it; what is measured from others, again and again, shows "
                    "one silo's counts. Use that advice, or describe"
                )
            self._memory.keep_totals(shown)


def _labels(result: StatisticsResult, target: str) -> NDArray[np.int64]:
    return np.array(list(result.categorical[target].counts.values()), dtype=np.int64)

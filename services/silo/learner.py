"""This silo's part in runs: which plans it accepts, what it trains, which models it keeps.

Everything here blocks (files, torch) and runs in threads of the node. The model that a run
releases lies in `runs/<run>/model.safetensors`; after a sum that passed its checks the silo has
computed the next state itself, so its file needs no trust in the coordinator. A silo that was away
in the last round keeps the coordinator's, and marks it.
"""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fl.errors import NoRoomError, SpecMismatchError
from fl.memory import RunMemory
from fl.participant import RunParticipant
from fl.plan import TABULAR, RoundKind
from fl.privacy import privacy_of
from fl.query_plan import QueryPlan, parse_plan
from fl.query_run import QueryParticipant
from fl.rounds import Participant
from secagg.chain import Standpoint
from secagg.effects import Aggregate
from secagg.ids import RunId
from secagg.messages import RoundOpen
from secagg.parameters import RoundParameters
from secagg.ring import IntVector
from secagg.rng import Rng
from secagg.roster import Roster
from services import faults
from services.config import SiloConfig
from services.errors import NotFoundError, NotNowError
from services.files import write_atomic
from services.observe.logs import Logger
from services.released import released_bytes, released_name
from services.silo.declared import declared_units, require_rows
from services.silo.ledger import SiloLedgers
from services.silo.memory import StoredMemory
from services.silo.statistics import check_moments, check_query, query_table
from services.silo.tasks import build_task
from services.storage.silo import SiloStore

# Lies beside a file that this silo has from the coordinator's word alone.
UNVERIFIED: Final = "unverified"
# Likewise: what the operator called the run.
NAME: Final = "name"
# Runs kept in memory, each with its table: only the coordinator says when one is over.
_MOST_RUNS: Final = 2
_PLAN: Final = "plan"
_ENDED: Final = "ended"


def open_runs(store: SiloStore) -> list[RunId]:
    """The runs that this silo has taken part in and of whose end it has not heard."""
    return [run for run in store.runs() if _goes_on(store, run)]


def _goes_on(store: SiloStore, run: RunId) -> bool:
    return store.recall(run, _PLAN) is not None and store.recall(run, _ENDED) is None


def leave(store: SiloStore, run: RunId) -> None:
    """Make the silo's next contribution to a run its last: its control variate goes with it.

    Raises:
        NotFoundError: the silo is in no such run.
        NotNowError: a silo leaves such a run by taking part no more.
    """
    document = store.recall(run, _PLAN)
    if document is None or store.recall(run, _ENDED) is not None:
        raise NotFoundError(f"this silo is in no run {run} that goes on")
    plan = parse_plan(document)
    if isinstance(plan, QueryPlan) or plan.privacy:
        raise NotNowError(
            "under a privacy plan, and from a statistics run, a silo leaves by taking part no more"
        )
    RunMemory(StoredMemory(store), run).leave()


@dataclass(slots=True, kw_only=True)
class Learner:
    """The silo's participants, one a run."""

    config: SiloConfig
    seat: int
    roster: Roster
    store: SiloStore
    ledgers: SiloLedgers
    rng: Rng
    log: Logger
    _participants: dict[RunId, Participant] = field(default_factory=dict)
    _settled: dict[RunId, tuple[int, bytes]] = field(default_factory=dict)

    def adopt(self, roster: Roster) -> None:
        """Know a newer roster's silos: they may join the runs that this one is in."""
        self.roster = roster
        for participant in self._participants.values():
            participant.know(self._names())

    def admit(self, message: RoundOpen) -> None:
        """Check a round against its plan, this silo's task and its data.

        Raises:
            LearningError: this silo does not take part; says which field or column does not fit.
        """
        parameters, plan = message.parameters, parse_plan(message.plan)
        self._require_member(parameters.run)
        self._require_room(parameters)
        if isinstance(plan, QueryPlan):
            check_query(plan, self.config)
        else:
            check_moments(plan, self.config)
        if self.store.recall(parameters.run, _PLAN) not in {None, message.plan}:
            raise SpecMismatchError("the round names another plan than the run began with")
        # Before the table is read: whether it fits is an answer about patients, too.
        self.ledgers.check_round(parameters, plan)
        participant = self._participants.get(parameters.run)
        if participant is None:
            participant = self._make_participant(parameters.run, message.plan)
        participant.check(parameters, message.plan)
        if parameters.run not in self._participants:
            self.store.remember(parameters.run, {_PLAN: message.plan, _ENDED: None})
            self._participants[parameters.run] = participant
            for run in list(self._participants)[:-_MOST_RUNS]:
                del self._participants[run]  # it can be made again from what is stored
                self._settled.pop(run, None)

    def members(self, message: RoundOpen) -> frozenset[int] | None:
        """Which seats the U1 of an admitted attempt may hold; None for any."""
        return self.ledgers.members(message.parameters, parse_plan(message.plan))

    def _require_member(self, run: RunId) -> None:
        """Raise LeftRunError if this silo has left the run, unless it is admitted again."""
        memory = RunMemory(StoredMemory(self.store), run)
        if self.store.recall(run, _ENDED) is not None:
            memory.come_back()  # it had been dismissed since
        memory.require_member()

    def _require_room(self, parameters: RoundParameters) -> None:
        """Raise NoRoomError unless the disk has room for a round; says how much is missing.

        The masked vector, the sum, and the state as it is received, kept and released.
        """
        folder = self.config.storage
        values = sum(segment.length for segment in parameters.spec.segments)
        state = 8 * values  # float64
        needed = 2 * parameters.wire_spec.wire_bytes + 4 * state + self.config.free_bytes
        if (free := shutil.disk_usage(folder).free) < needed:
            raise NoRoomError(
                f"this silo's disk: a round needs {needed} bytes, {free} are free; make room, or "
                "lower free_bytes in its settings"
            )

    def standpoint(self, run: RunId) -> Standpoint | None:
        """Where this silo left the run; None if it has settled no round of it."""
        return RunMemory(StoredMemory(self.store), run).standpoint()

    def train(
        self, parameters: RoundParameters, state: bytes, coins: bytes
    ) -> Mapping[str, IntVector]:
        """Train on the received state and encode what is contributed; coins are the attempt's."""
        faults.hit("silo.before-training", parameters.round)
        if parameters.kind == RoundKind.TRAINING:
            self._limit_torch()
        plan = parse_plan(self._plan_of(parameters.run))
        self.ledgers.charge(parameters, plan)
        return self._participants[parameters.run].contribute(parameters, state, coins)

    def settle(self, aggregate: Aggregate, state: bytes) -> None:
        """Take the server's step on a checked sum and keep the next state."""
        parameters = aggregate.parameters
        faults.hit("silo.before-settle", parameters.round)
        participant = self._participants.get(parameters.run)
        if participant is None:  # the sum of an attempt that an earlier process took part in
            participant = self._make_participant(parameters.run, self._plan_of(parameters.run))
        following = participant.settle(aggregate, state)
        self._settled[parameters.run] = (parameters.round, following)
        self.ledgers.settle(aggregate, parse_plan(self._plan_of(parameters.run)))
        faults.hit("silo.after-settle", parameters.round)

    def takes_part_in(self, run: RunId) -> bool:
        """Whether this silo has accepted a round of the run, and has not heard of its end."""
        return _goes_on(self.store, run)

    def own_state(self, run: RunId, round_number: int) -> bytes | None:
        """The state after this round as this silo computed it, None if it did not."""
        settled, state = self._settled.get(run, (0, b""))
        return state if settled == round_number else None

    def release(self, run: RunId, state: bytes, *, name: str, is_own: bool) -> Path:
        """Write the run's file, marked if this silo has not computed the state itself.

        The name beside it is the coordinator's word, for people only.
        """
        plan = parse_plan(self._plan_of(run))
        path = self.config.storage / "runs" / run.hex / released_name(plan)
        path.parent.mkdir(parents=True, exist_ok=True)
        mark = path.with_name(UNVERIFIED)
        if is_own:
            mark.unlink(missing_ok=True)
        else:
            mark.touch()
        write_atomic(path.with_name(NAME), name.encode())
        write_atomic(path, released_bytes(plan, state))
        return path

    def end(self, run: RunId) -> None:
        """Forget what only a running run needs; a second word of its end says nothing new."""
        self.store.remember(run, {_ENDED: b"\x01"})
        self._participants.pop(run, None)
        self._settled.pop(run, None)

    def _make_participant(self, run: RunId, document: bytes) -> Participant:
        plan = parse_plan(document)
        memory = StoredMemory(self.store)
        if isinstance(plan, QueryPlan):
            table = query_table(plan.query, self.config)
            require_rows(len(next(iter(table.values()))), self.config.privacy)
            return QueryParticipant(plan, run=run, table=table, memory=memory)
        task = build_task(plan, self.config)
        for note in getattr(task, "notes", ()):
            self.log.warning("cells-filled", run=run.hex, note=note)
        return RunParticipant(
            plan,
            run=run,
            seat=self.seat,
            names=self._names(),
            task=task,
            memory=memory,
            rng=self.rng,
            least_change=self.config.policy.least_change,
            most_units=declared_units(privacy_of(plan), self.config.privacy),
            first_states=self.config.policy.silo_policy().first_states or frozenset(),
        )

    def _names(self) -> dict[int, str]:
        return {seat.index: seat.silo.name for seat in self.roster.seats}

    def _plan_of(self, run: RunId) -> bytes:
        document = self.store.recall(run, _PLAN)
        assert document is not None  # asked only for runs that this silo has accepted
        return document

    def _limit_torch(self) -> None:
        """One thread: silos that share a machine would fight for its cores otherwise."""
        if self.config.task == TABULAR or "torch" in sys.modules:
            from fl.training import configure_threads

            configure_threads(1)

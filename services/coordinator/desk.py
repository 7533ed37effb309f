"""The runs' desk: accepts runs from operators, keeps one of them going, answers about all.

One run at a time: the next one is refused by name until the current one has ended. Runs that a
coordinator's restart interrupted go on by themselves.
"""

import asyncio
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from dp.errors import PrivacyError
from fl.plan import TABULAR, TrainingPlan
from fl.ports import NamedTensors
from fl.privacy import privacy_of
from fl.query_plan import QueryPlan, parse_plan
from fl.query_run import QueryRun
from fl.rounds import Course, RunPlan
from fl.run import TrainingRun
from fl.state import decode_state, encode_state
from secagg.ids import RunId
from secagg.keys import IdentityKey
from secagg.messages import MAX_STATE_BYTES, STATE, Settled
from services import evidence
from services.clock import utc_now
from services.config import CoordinatorConfig
from services.coordinator.attempt import AttemptDriver
from services.coordinator.attempts import ATTEMPTS, Attempts
from services.coordinator.cohorts import Cohorts, asked_n_c
from services.coordinator.hub import Hub
from services.coordinator.ledger import LEDGERS, RunLedger
from services.coordinator.published import PublishedSum
from services.coordinator.recent import Recent
from services.coordinator.recovery import Recovery
from services.coordinator.run import RunDriver
from services.coordinator.settlements import Settlements
from services.coordinator.standing import Standing
from services.errors import (
    ConfigError,
    CorruptError,
    InvalidRequestError,
    NotFoundError,
    NotNowError,
    ServiceError,
    StorageError,
    TooLargeError,
)
from services.ledger.messages import LedgerAnswer
from services.ledger.parties import COORDINATOR, Party
from services.ledger.run_book import require_accountable
from services.observe.logs import Logger
from services.plans import plan_of, read_run
from services.query_config import QueryConfig
from services.released import released_name
from services.run_config import RunConfig
from services.security.identity import Peer
from services.storage.blobs import FileVectorStore
from services.storage.coordinator import CoordinatorStore, RunRecord
from services.wire.calls import (
    CHUNK_BYTES,
    Chunk,
    MemberChange,
    RunState,
    RunStatus,
    RunSummary,
    ShowReply,
    StartCall,
    VectorId,
    WatchReply,
)

INITIAL: Final = "initial"
# Runs that ended before their plan was done, for a reason that may be gone.
_CAN_GO_ON: Final = frozenset({RunState.FAILED, RunState.STOPPED})


@dataclass(slots=True, kw_only=True)
class RunDesk:
    """What the coordinator does for operators (`services.wire.servicers.RunHandler`)."""

    hub: Hub
    store: CoordinatorStore
    config: CoordinatorConfig
    signing_key: IdentityKey
    log: Logger
    _driver: RunDriver | None = None
    _task: "asyncio.Task[None] | None" = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _recent: Recent[VectorId] = field(default_factory=Recent)
    _uploads: dict[RunId, FileVectorStore] = field(default_factory=dict)
    _broken: "asyncio.Future[StorageError]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def driver(self) -> RunDriver | None:
        """The run that goes on, or the one that did last."""
        return self._driver

    # --- for operators ------------------------------------------------------------------------

    async def start_run(self, peer: Peer, call: StartCall, /) -> RunSummary:
        """Accept a run and drive it, or go on with one that has failed or was stopped.

        The same run again changes nothing while it goes on, or once it has finished. Of several
        that are asked for at once, one is accepted.
        """
        async with self._starting:
            try:
                return await self._start_run(peer, call)
            except ServiceError:
                await asyncio.to_thread(self._drop_upload, call.run)
                raise

    async def _start_run(self, peer: Peer, call: StartCall) -> RunSummary:
        records = {record.run: record for record in await asyncio.to_thread(self.store.runs)}
        known = records.get(call.run)
        is_over = known is not None and known.state in _CAN_GO_ON
        if (
            (known is None or is_over)
            and self._driver is not None
            and not self._driver.standing.state.is_final
        ):
            raise NotNowError(
                f"run {self._driver.run} ({self._driver.standing.record.name}) goes on; wait for "
                "its end or stop it: this coordinator drives one run at a time",
                remote_code="RUN_ACTIVE",
            )
        config = read_run(call.config, source="the run's configuration")
        seats = len(self.hub.roster.seats)
        if (wanted := config.run.min_silos or seats) > seats:
            raise ConfigError(
                f"run.min_silos: expected at most the roster's {seats} silos, got {wanted}",
                keys=("run.min_silos",),
            )
        plan = plan_of(config, max_silos=seats)
        _require_accountable(plan, config)
        if config.recompute.redundancy and not asked_n_c(self.hub.roster, plan):
            raise ConfigError(
                f"recompute.redundancy: expected 0 with a roster of {seats} silos: who recomputes "
                "sees what the coordinator sees, and so few are safe against nobody",
                keys=("recompute.redundancy",),
            )
        begin = b""  # a statistics run begins with its query, which is in the plan
        if isinstance(plan, TrainingPlan):
            begin = encode_state(await self._initial_model(call, plan))
        record = RunRecord(
            run=call.run,
            name=config.run.name,
            algorithm=plan.algorithm,
            config=call.config,
            plan=plan.document(),
            cohort=(),
            rounds_total=plan.last_round,
            created_unix_s=utc_now().timestamp(),
        )
        kept = await asyncio.to_thread(self.store.add_run, record, begin)
        if known is not None and not is_over:
            return _summary(kept, rounds_done=kept.round)
        self.log.info("run-accepted", run=call.run.hex, operator=peer.name, name=record.name)
        await asyncio.to_thread(self._clear_up, kept.run)
        if is_over:
            kept = await asyncio.to_thread(self.store.set_state, kept.run, RunState.WAITING)
        self._driver = self._make_driver(kept, config)
        self._driver.restore()
        self._start_driving()
        assert self._driver is not None  # `_drive` has just set it
        return self._driver.standing.summary()

    async def watch_run(
        self, peer: Peer, run: RunId, after_revision: int, wait_s: float, after_round: int, /
    ) -> WatchReply:
        """Wait for something new about a run."""
        del peer  # every operator may watch every run
        driver = self._find_driver(run)
        if driver is None:
            status = await asyncio.to_thread(self._stored_status, run, after_round)
            return WatchReply(revision=1, status=status)
        await driver.standing.progress.wait(after_revision, wait_s)
        return WatchReply(
            revision=driver.standing.progress.revision, status=driver.status(after_round)
        )

    async def list_runs(self, peer: Peer, /) -> tuple[RunSummary, ...]:
        """List runs, the newest first."""
        del peer  # every operator may list
        records = await asyncio.to_thread(self.store.runs)
        return tuple(_summary(record, rounds_done=record.round) for record in records)

    async def show_run(self, peer: Peer, run: RunId, /) -> ShowReply:
        """Show a run with all its rounds."""
        del peer  # every operator may look
        record = await asyncio.to_thread(self.store.run, run)
        driver = self._find_driver(run)
        if driver is not None:
            return ShowReply(status=driver.status(), config=record.config)
        status = await asyncio.to_thread(self._stored_status, run, 0)
        return ShowReply(status=status, config=record.config)

    async def stop_run(self, peer: Peer, run: RunId, reason: str, /) -> RunSummary:
        """End a run; the model of its last complete round stays."""
        record = await asyncio.to_thread(self.store.run, run)
        driver = self._find_driver(run)
        if driver is None:
            return _summary(record, rounds_done=record.round)
        self.log.info("run-stopped", run=run.hex, operator=peer.name, reason=reason)
        await driver.stop(reason)
        return driver.standing.summary()

    async def change_member(
        self, peer: Peer, run: RunId, silo: str, change: MemberChange, /
    ) -> RunSummary:
        """Let a silo of the roster join a run that goes on, or invite one no more."""
        driver = self._find_driver(run)
        if driver is None or driver.standing.state is not RunState.RUNNING:
            raise NotNowError(f"run {run} does not go on: members change while it does")
        seats = {self.hub.name(seat): seat for seat in driver.cohorts.seats}  # revoked ones, too
        where = "run"
        if change is MemberChange.ADMIT:
            seats = {seat.silo.name: seat.index for seat in self.hub.roster.seats}
            where = "roster"
        if silo not in seats:
            raise NotFoundError(f"the {where} has no silo {silo!r}; it has {', '.join(seats)}")
        await driver.change_member(seats[silo], change)
        self.log.info("member", run=run.hex, operator=peer.name, silo=silo, change=change.value)
        return driver.standing.summary()

    async def fetch_model(self, peer: Peer, run: RunId, index: int, /) -> Chunk:
        """Read a chunk of the newest released file: a model, or a statistics run's sums."""
        del peer  # it is released
        record = await asyncio.to_thread(self.store.run, run)
        vector = VectorId(run=run, round=record.round, attempt=0, name="model")
        name = released_name(parse_plan(record.plan))
        data = await self._recent.read(vector, lambda: self.store.artifact(run, name))
        return _piece(vector, data, index)

    # --- for silos ----------------------------------------------------------------------------

    def find_attempt(self, run: RunId, number: int, attempt: int) -> AttemptDriver | None:
        """The attempt, if it is the open one or the one before it."""
        driver = self._find_driver(run)
        return None if driver is None else driver.attempts.live.get((number, attempt))

    def find_recovery(self, run: RunId, number: int, attempt: int) -> Recovery | None:
        """What is asked about an attempt that an earlier process of the coordinator opened."""
        driver = self._find_driver(run)
        return None if driver is None else driver.attempts.recoveries.get((number, attempt))

    def ledger_answer(self, seat: int, answer: LedgerAnswer) -> None:
        """Take a silo's word on the privacy ledger of the run that goes on."""
        driver = self._find_driver(answer.run)
        if driver is not None and driver.ledger is not None:
            driver.ledger.receive(seat, answer)

    def take_settled(self, seat: int, message: Settled) -> None:
        """Keep what a silo has signed of where the run stands; of no use once the run is over."""
        driver = self._find_driver(message.run)
        if driver is not None:
            driver.settlements.take(seat, message)

    def position(self) -> str:
        """Where the coordinator stands, for a silo that is elsewhere."""
        if self._driver is None or not self._driver.attempts.live:
            return "no round is open"
        number, attempt = list(self._driver.attempts.live)[-1]
        return f"the coordinator is at round {number}, attempt {attempt}"

    def find_sum(self, run: RunId, number: int, attempt: int) -> PublishedSum | None:
        """A sum that an earlier process published and that silos may still want."""
        driver = self._find_driver(run)
        return None if driver is None else driver.attempts.sums.get((number, attempt))

    async def welcome(self, seat: int, incarnation: bytes) -> None:
        """A silo has said Hello; if its process is new, nothing of the old one is awaited."""
        if self._driver is not None:
            await self._driver.welcome(seat, incarnation)

    async def put_initial(self, chunk: Chunk) -> int:
        """Store a piece of the model that a run shall start from."""
        if chunk.vector.name != INITIAL or chunk.vector.round != 0:
            raise InvalidRequestError(f"operators put {INITIAL!r} of round 0, got {chunk.vector}")
        most = self.config.limits.state_bytes
        if chunk.count > -(-most // CHUNK_BYTES):
            raise TooLargeError(
                f"an initial model has at most {most} bytes (limits.state_bytes), got "
                f"{chunk.count} chunks of up to {CHUNK_BYTES}"
            )
        store = self._upload(chunk.vector.run)
        if chunk.index == store.chunks(INITIAL):
            await asyncio.to_thread(store.write, INITIAL, chunk.index, chunk.data)
        return store.chunks(INITIAL)

    async def newest_state(self, vector: VectorId, index: int) -> Chunk:
        """Read a piece of a run's newest state: what every silo of the run may have."""
        if vector.name != STATE:
            raise NotFoundError(f"there is no vector {vector}")
        record = await asyncio.to_thread(self.store.run, vector.run)
        if not record.cohort:
            raise NotFoundError(f"run {vector.run} has no state yet")
        key = replace(vector, round=record.round)
        return _piece(vector, await self._recent.read(key, lambda: self._state_of(record)), index)

    # --- driving ------------------------------------------------------------------------------

    async def resume(self) -> None:
        """Go on with the run that was going on when this coordinator ended last.

        If it had ended, silos that have not heard so are told once more. Call it before they can
        call.
        """
        records = await asyncio.to_thread(self.store.runs)
        open_runs = [record for record in records if not record.state.is_final]
        for record in (open_runs or records)[:1]:
            config = read_run(record.config, source=f"run {record.run}")
            try:
                self._driver = self._make_driver(record, config)
            except CorruptError as error:
                self.log.error("run-lost", run=record.run.hex, reason=str(error))  # noqa: TRY400 - a damaged file, no bug
                if not record.state.is_final:
                    await asyncio.to_thread(
                        self.store.set_state, record.run, RunState.FAILED, str(error)
                    )
                continue
            self._driver.restore()
            if record.state.is_final:
                self._driver.repeat_end()
            else:
                self.log.info("run-resumed", run=record.run.hex, round=record.round)
                self._start_driving()

    async def close(self) -> None:
        """Let go of the run; it goes on when the coordinator is back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def interrupt(self) -> None:
        """End open polls, silos' and operators'; each is answered with what there is."""
        self.hub.interrupt()
        if self._driver is not None:
            self._driver.standing.progress.note()

    async def broken(self) -> None:
        """Wait for an error that ends this process: the disk or the database has failed.

        Raises:
            StorageError: what happened.
        """
        raise await self._broken

    def _clear_up(self, following: RunId) -> None:
        """Before another run: remove the last one's vectors, and runs of long ago."""
        if self._driver is not None and self._driver.run != following:
            shutil.rmtree(self._folder(self._driver.run) / ATTEMPTS, ignore_errors=True)
        for run in self.store.forget_ended(self.config.limits.ended_runs):
            shutil.rmtree(self._folder(run), ignore_errors=True)

    def _make_driver(self, record: RunRecord, config: RunConfig | QueryConfig) -> RunDriver:
        plan = parse_plan(record.plan)
        snapshot = self.store.snapshot(record.run)
        course = self._restore(record, snapshot) if record.cohort else None
        hub, log, directory = self.hub, self.log.bind(run=record.run.hex), self._folder(record.run)
        ledger = self._ledger(record, plan, config)
        standing = Standing(
            record=record,
            hub=hub,
            store=self.store,
            log=log,
            reports=list(self.store.reports(record.run)),
        )
        attempts = Attempts(
            run=record.run,
            plan=plan,
            hub=hub,
            signing_key=self.signing_key,
            deadlines=self.config.deadlines,
            directory=directory,
            changed=standing.progress.note,
            hold=self.store.hold,
            log=log,
            ledger=ledger,
        )
        cases = self.config.storage / evidence.FOLDER
        return RunDriver(
            standing=standing,
            attempts=attempts,
            cohorts=Cohorts(
                run=record.run,
                plan=plan,
                hub=hub,
                redundancy=config.recompute.redundancy,
                enrolled=record.cohort,
            ),
            settlements=Settlements(run=record.run, hub=hub, store=self.store, log=log),
            plan=plan,
            course=course,
            begin=_beginning(plan, record.run, b"" if record.cohort else snapshot),
            min_silos=config.run.min_silos or plan.max_silos,
            hub=hub,
            store=self.store,
            deadlines=self.config.deadlines,
            free_bytes=self.config.limits.free_bytes,
            directory=directory,
            cases=cases,
            dealers=evidence.DealerCases(cases, log),
            log=log,
            ledger=ledger,
        )

    def _start_driving(self) -> None:
        assert self._driver is not None  # the caller has just set it
        self._task = asyncio.create_task(self._driver.drive())
        self._task.add_done_callback(self._note_end)

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StorageError) and not self._broken.done():
            self._broken.set_result(error)

    def _ledger(
        self, record: RunRecord, plan: RunPlan, config: RunConfig | QueryConfig
    ) -> RunLedger | None:
        """The ledger of a run with a privacy plan."""
        privacy = privacy_of(plan)
        if privacy is None:
            return None
        return RunLedger(
            run=record.run,
            name=record.name,
            plan=privacy,
            folder=self.config.storage / LEDGERS,
            writer=Party(COORDINATOR, self.signing_key),
            roster=self.hub.roster,
            mailbox=self.hub.mailbox,
            now=utc_now,
            log=self.log.bind(run=record.run.hex),
            epsilon=_budget(config),
        )

    def _restore(self, record: RunRecord, snapshot: bytes) -> Course:
        listed = self.hub.roster.seats
        names = {one.index: one.silo.name for one in listed if one.index in record.cohort}
        is_query = isinstance(parse_plan(record.plan), QueryPlan)
        return (QueryRun if is_query else TrainingRun).restore(snapshot, names)

    def _state_of(self, record: RunRecord) -> bytes:
        return self._restore(record, self.store.snapshot(record.run)).state

    async def _initial_model(self, call: StartCall, plan: TrainingPlan) -> NamedTensors:
        """The model to start from: the operator's, or the built-in task's own."""
        if call.initial_state is not None:
            store = self._upload(call.run)
            if store.chunks(INITIAL) != call.initial_state.chunks:
                raise NotFoundError(f"the initial model of run {call.run} was not put completely")
            data = b"".join(store.read(INITIAL, i) for i in range(call.initial_state.chunks))
            return decode_state(data, self.config.limits.state_bytes)
        if plan.task.name != TABULAR:
            raise ConfigError(
                f"task {plan.task.name!r}: its code is not at the coordinator; `secagg run start` "
                "makes the initial model where the task can be imported"
            )
        from fl.models import initial_parameters

        return dict(initial_parameters(plan.task.settings, plan.seed))

    def _upload(self, run: RunId) -> FileVectorStore:
        return self._uploads.setdefault(run, FileVectorStore(self._folder(run) / INITIAL))

    def _drop_upload(self, run: RunId) -> None:
        """Remove the model that a refused run was to start from."""
        if (store := self._uploads.pop(run, None)) is not None:
            store.close()
            folder = self._folder(run)
            shutil.rmtree(folder / INITIAL, ignore_errors=True)
            with suppress(OSError):  # the run was accepted before, and has more than that
                folder.rmdir()

    def _find_driver(self, run: RunId) -> RunDriver | None:
        driver = self._driver
        return driver if driver is not None and driver.run == run else None

    def _stored_status(self, run: RunId, after_round: int) -> RunStatus:
        record = self.store.run(run)
        return RunStatus(
            summary=_summary(record, rounds_done=record.round),
            rounds=self.store.reports(run, after_round),
        )

    def _folder(self, run: RunId) -> Path:
        folder = self.config.storage / "runs" / run.hex
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _budget(config: RunConfig | QueryConfig) -> float | None:
    """The limit of the run's account, None for the privacy plan's own."""
    limited = config.privacy if isinstance(config, RunConfig) else config.noise
    return limited.budget if limited else None


def _require_accountable(plan: RunPlan, config: RunConfig | QueryConfig) -> None:
    """Refuse a privacy plan that the accountant would refuse at the first charge."""
    if (privacy := privacy_of(plan)) is None:
        return
    try:
        require_accountable(privacy, config.run.name, _budget(config))
    except PrivacyError as error:
        raise ConfigError(f"the privacy plan: {error}", keys=("privacy",)) from error


def _summary(record: RunRecord, *, rounds_done: int) -> RunSummary:
    return RunSummary(
        run=record.run,
        name=record.name,
        algorithm=record.algorithm,
        state=record.state,
        reason=record.reason,
        rounds_done=rounds_done,
        rounds_total=record.rounds_total,
        created_unix_s=record.created_unix_s,
    )


def _beginning(
    plan: TrainingPlan | QueryPlan, run: RunId, snapshot: bytes
) -> Callable[[Mapping[int, str]], Course]:
    """How a run begins, once its first cohort is there."""

    def begin(names: Mapping[int, str]) -> Course:
        if isinstance(plan, QueryPlan):
            return QueryRun(plan, run=run, names=names)
        return TrainingRun(
            plan,
            model=decode_state(snapshot, MAX_STATE_BYTES),
            names=names,
            features=_numeric_features(plan),
        )

    return begin


def _numeric_features(plan: TrainingPlan) -> int:
    """How many features a plan that standardizes has moments of; 0 for an own task."""
    if plan.task.name != TABULAR:
        return 0
    from fl.models import TabularModel

    return len(TabularModel.parse(plan.task.settings).schema.numeric)


def _piece(vector: VectorId, data: bytes, index: int) -> Chunk:
    count = -(-len(data) // CHUNK_BYTES)
    if not 0 <= index < count:
        raise NotFoundError(f"{vector} has {count} chunks, there is no chunk {index}")
    start = index * CHUNK_BYTES
    return Chunk(vector=vector, index=index, count=count, data=data[start : start + CHUNK_BYTES])

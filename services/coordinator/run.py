"""The driver of one run: rounds one after the other, attempts within them, until the plan is done.

What to do next is `fl.run.TrainingRun`'s decision, how a round goes is `secagg.server`'s. This
driver gathers a cohort, opens attempts, commits what they release before it goes on, and tells the
operator and the silos. Every wait has a bound.
"""

import asyncio
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from fl.errors import BudgetExhaustedError, VariateLostError
from fl.plan import TrainingPlan
from fl.ports import NamedTensors
from fl.privacy import central_noise, document_of, privacy_of
from fl.run import (
    RoundFailure,
    RoundPreview,
    RoundReport,
    RoundRequest,
    RunFinished,
    TrainingRun,
)
from fl.run import RunStatus as TrainingStatus
from fl.state import decode_state, ranges_of
from secagg.canonical import peek_label
from secagg.effects import Aborted, Aggregate, Finished
from secagg.errors import SecAggError
from secagg.ids import AttemptId, RunId
from secagg.keys import IdentityKey
from secagg.messages import MAX_STATE_BYTES, STATE, STATE_CHUNK_BYTES, Abandon, Result
from secagg.parameters import RoundParameters
from secagg.policy import SiloPolicy
from secagg.roster import Seat
from secagg.server import PhaseDeadlines, ServerRound
from services import evidence
from services.clock import monotonic, utc_now
from services.config import Deadlines
from services.coordinator.attempt import AttemptDriver
from services.coordinator.hub import Hub
from services.coordinator.ledger import BudgetSpentError, LedgerUnsignedError, RunLedger
from services.coordinator.logbook import Event, Logbook, has_logbook
from services.coordinator.progress import Progress
from services.coordinator.published import PublishedSum
from services.coordinator.recovery import Recovery
from services.errors import CorruptError, StorageError
from services.observe.logs import Logger, where
from services.released import released_bytes
from services.storage.blobs import FileVectorStore
from services.storage.coordinator import CoordinatorStore, RunRecord
from services.wire import calls
from services.wire.calls import ClosedEnvelope, Envelope, ProtocolEnvelope, RunState, SeatStatus

MODEL_FILE: Final = "model.safetensors"
ATTEMPTS: Final = "attempts"
# The one that is open, the one before it, and the one that is opened ahead.
_KEPT_ATTEMPTS: Final = 3
# Sums that are kept for survivors who have been away since.
_MOST_SUMS: Final = 64
# A silo without its control variate is no unwilling one: a refresh round gives it a new one.
_LOST_VARIATE: Final = VariateLostError.__name__
# How a refusal begins by which a silo's privacy budget ends the run.
_SPENT: Final = BudgetExhaustedError.__name__
# How often a wait for free disk looks again.
_SPACE_S: Final = 5.0
# How often a wait for silos looks again, beside being woken by a Hello.
_GLANCE_S: Final = 1.0
# What the coordinator asks where nobody asked for more; silos refuse less (secagg.policy).
_ASKED: Final = SiloPolicy()


# How long a recovery waits for promises; silos may have to find the coordinator again first.
_RECOVERY_S: Final = 15.0


class TooFewSilosError(Exception):
    """Too few silos are connected, and the wait for more has had its time."""


class NoSpaceError(Exception):
    """The disk has no room for a round, and the wait for some has had its time."""


@dataclass(slots=True, kw_only=True)
class RunDriver:
    """One run.

    Attributes:
        record: as the store keeps it.
        training: the run across rounds; None until the first cohort is there.
        initial_model: the tensors to start from.
        features: how many numeric features the task has, for a plan that standardizes.
        min_silos: connected silos to wait for before the first round.
        directory: holds the attempts' vectors.
        free_bytes: that a round leaves free on the disk.
        attempts: the open attempt and the one before it, by round and attempt.
        recoveries: attempts of an earlier process that cannot go on, likewise.
        sums: attempts of an earlier process that have ended well, likewise.
        ledger: of a run with a privacy plan.
    """

    record: RunRecord
    plan: TrainingPlan
    training: TrainingRun | None
    initial_model: NamedTensors
    features: int
    min_silos: int
    hub: Hub
    store: CoordinatorStore
    signing_key: IdentityKey
    deadlines: Deadlines
    directory: Path
    log: Logger
    free_bytes: int = 0
    progress: Progress = field(default_factory=Progress)
    state: RunState = RunState.WAITING
    reason: str = ""
    attempts: dict[tuple[int, int], AttemptDriver] = field(default_factory=dict)
    recoveries: dict[tuple[int, int], Recovery] = field(default_factory=dict)
    sums: dict[tuple[int, int], PublishedSum] = field(default_factory=dict)
    reports: list[calls.RoundReport] = field(default_factory=list)
    _resumed: AttemptDriver | None = None
    ledger: RunLedger | None = None
    _refusals: dict[int, str] = field(default_factory=dict)
    _abandons: tuple[Abandon, ...] = ()
    _current: AttemptDriver | None = None
    _ahead: AttemptDriver | None = None
    _preparing: "asyncio.Task[None] | None" = None
    _stop_reason: str | None = None

    # --- the run, from the first cohort to the last message -----------------------------------

    async def drive(self) -> None:
        """Run to the end, whatever it is, and tell everybody."""
        try:
            await self._rounds()
        except BudgetSpentError as error:
            await self._end(RunState.BUDGET_EXHAUSTED, str(error))
        except LedgerUnsignedError as error:
            await self._end(RunState.FAILED, str(error))
        except (TooFewSilosError, NoSpaceError) as error:
            spent = any(why.startswith(_SPENT) for why in self._refusals.values())
            await self._end(RunState.BUDGET_EXHAUSTED if spent else RunState.FAILED, str(error))
        except (asyncio.CancelledError, StorageError):
            raise  # the coordinator goes down; the run goes on when it is back
        except Exception as error:  # noqa: BLE001 - a bug ends this run, not the coordinator
            self.log.error(  # noqa: TRY400 - a traceback's text may quote values
                "run-crashed", code=type(error).__name__, where=where(error)
            )
            await self._end(RunState.FAILED, f"internal error: {type(error).__name__}")

    async def _rounds(self) -> None:
        if self.training is None:
            cohort = await self._gather(self.min_silos)
            if self._stop_reason is not None:
                await self._end(RunState.STOPPED, self._stop_reason)
                return
            self.training = TrainingRun(
                self.plan,
                model=self.initial_model,
                names={seat.index: seat.silo.name for seat in cohort},
                features=self.features,
            )
            self.record = await asyncio.to_thread(
                self.store.begin,
                self.record.run,
                tuple(seat.index for seat in cohort),
                self.training.snapshot(),
            )
        await self._enter(RunState.RUNNING, "")
        await self._commit_privacy(self.training)
        while self._stop_reason is None:
            request = self.training.next()
            if isinstance(request, RunFinished):
                done = request.status is TrainingStatus.COMPLETED
                await self._end(RunState.FINISHED if done else RunState.FAILED, request.reason)
                return
            await self._attempt(self.training, request)
        await self._end(RunState.STOPPED, self._stop_reason)

    async def _commit_privacy(self, training: TrainingRun) -> None:
        """Have the silos sign the privacy plan before the first round."""
        request = training.next()
        if self.ledger is not None and isinstance(request, RoundRequest):
            parameters = self._parameters(request, request.attempt)
            wait_s = self.deadlines.registration_s
            await self.ledger.commit(self.record.cohort, parameters, wait_s=wait_s)

    async def stop(self, reason: str) -> None:
        """End the run; the model of the last complete round stays."""
        if self.state.is_final or self._stop_reason is not None:
            return
        self._stop_reason = reason or "stopped by an operator"
        self.hub.presence.wake()
        for attempt in list(self.attempts.values()):
            await attempt.stop(self._stop_reason)

    async def welcome(self, seat: int, incarnation: bytes) -> None:
        """A process of this silo has said Hello: an earlier one's part in an attempt is over."""
        self._refusals.pop(seat, None)
        for attempt in list(self.attempts.values()):
            await attempt.meet(seat, incarnation)

    # --- after a restart ----------------------------------------------------------------------

    def restore(self) -> None:
        """Find what an earlier process left: the open attempt, and sums that silos may still want.

        Call it before the silos can call.
        """
        folders: dict[int, list[tuple[int, Path]]] = {}
        for folder in self.directory.glob(f"{ATTEMPTS}/*-*"):
            number, attempt = map(int, folder.name.split("-"))
            folders.setdefault(number, []).append((attempt, folder))
        for number, tries in sorted(folders.items()):
            attempt, folder = max(tries)  # an earlier one has failed
            try:
                is_kept = has_logbook(folder) and self._restore_attempt(number, attempt, folder)
            except (CorruptError, SecAggError) as error:
                self.log.error("attempt-lost", round=number, attempt=attempt, reason=str(error))  # noqa: TRY400 - a damaged file, no bug
                is_kept = False
            for _, other in tries:
                if other != folder or not is_kept:
                    shutil.rmtree(other, ignore_errors=True)

    def _restore_attempt(self, number: int, attempt: int, folder: Path) -> bool:
        """Take an attempt up again; False if nothing can be done with it."""
        logbook = Logbook(folder)
        if not logbook.found:
            return False  # killed before it said anything
        opening = logbook.opening
        parameters = opening.message.parameters
        boxes = {seat: self.hub.mailbox(seat) for seat in opening.cohort}
        if number <= self.record.round:
            result = logbook.result
            if result is not None:
                published = PublishedSum(
                    attempt=parameters.attempt_id,
                    result=result,
                    cohort=boxes,
                    store=FileVectorStore(folder),
                )
                published.post()
                self.sums[number, attempt] = published
            return result is not None
        if self.training is None or parameters != self._expected(self.training, number, attempt):
            return False
        store = FileVectorStore(folder)
        driver = self._make_driver(
            parameters, opening.incarnations, store, logbook, opening.message.abandons
        )
        driver.replay()
        self._abandons = opening.message.abandons
        driver.log.warning("resumed", phase=driver.phase.value)
        if isinstance(request := self.training.next(), RoundRequest) and request.number == number:
            self._resumed = driver
        else:
            self._ahead = driver
            self._preparing = asyncio.create_task(driver.prepare())
        return True

    def _expected(self, training: TrainingRun, number: int, attempt: int) -> RoundParameters | None:
        """What an attempt of this round would be made of now; None if it would not be opened."""
        for asked in (training.next(), training.preview()):
            if isinstance(asked, RoundRequest | RoundPreview) and asked.number == number:
                return self._parameters(asked, attempt)
        return None

    def repeat_end(self) -> None:
        """Tell everybody once more that this run has ended, and how."""
        self.state, self.reason = self.record.state, self.record.reason
        self._post_end()

    # --- one attempt --------------------------------------------------------------------------

    async def _attempt(self, training: TrainingRun, request: RoundRequest) -> None:
        if self._ahead is not None and self._ahead.parameters.round == request.number:
            await self._use_ahead(training, request)
            return
        if self._resumed is not None:
            driver, self._resumed = self._resumed, None
            training.skip_to(driver.parameters.attempt)
            await self._run_attempt(training, request, driver)
            return
        cohort = await self._gather(self._least(request))
        if self._stop_reason is not None:
            return
        number = await asyncio.to_thread(self.store.next_attempt, self.record.run, request.number)
        if number > request.attempt:
            await self._recover(training, request, number)
            return
        await self._drive_attempt(training, request, number, cohort)

    async def _use_ahead(self, training: TrainingRun, request: RoundRequest) -> None:
        """Call the roll: what was exchanged ahead serves if it is for the same vector and silos.

        Else the round begins with its next attempt, whose keys are fresh.
        """
        ahead, preparing = self._ahead, self._preparing
        assert ahead is not None  # the caller looked
        assert preparing is not None  # begins with it
        await preparing
        self._ahead = self._preparing = None
        available = tuple(seat.index for seat in self._present()[0])
        present = set(training.cohort(available, least=self._least(request)))
        is_same = ahead.parameters == self._parameters(request, request.attempt)
        if is_same and ahead.is_intact and present <= ahead.sharers:
            await self._run_attempt(training, request, ahead)
            return
        await ahead.stop("the silos or the vector are others than when it was opened ahead")
        training.fail("what was exchanged ahead could not be used")

    async def _drive_attempt(
        self, training: TrainingRun, request: RoundRequest, number: int, cohort: tuple[Seat, ...]
    ) -> None:
        available = tuple(seat.index for seat in cohort)
        seats = training.cohort(available, least=self._least(request))
        parameters = self._parameters(request, number)
        await self._require_space(parameters, len(seats), len(request.state))
        if self._stop_reason is not None:
            return
        if self.ledger is not None:
            await self.ledger.charge(parameters, seats)
        driver = await self._open(parameters, seats)
        await self._run_attempt(training, request, driver)

    async def _require_space(self, parameters: RoundParameters, silos: int, state: int) -> None:
        """Wait, with a bound, until the disk has room for an attempt's vectors.

        Raises:
            NoSpaceError: says how much is needed and how much is free; the log says where.
        """
        # Uploads, their sum, the state; and the next snapshot with its model file.
        needed = (silos + 1) * parameters.wire_spec.wire_bytes + 3 * state + self.free_bytes
        give_up = monotonic() + self.deadlines.registration_s
        while (free := shutil.disk_usage(self.directory).free) < needed:
            self.reason = f"the coordinator's disk: a round needs {needed} bytes, {free} are free"
            self.log.error("no-space", folder=str(self.directory), reason=self.reason)
            self.progress.note()
            left = give_up - monotonic()
            if self._stop_reason is not None:
                return
            if left <= 0:
                raise NoSpaceError(self.reason)
            await asyncio.sleep(min(left, _SPACE_S))

    async def _run_attempt(
        self, training: TrainingRun, request: RoundRequest, driver: AttemptDriver
    ) -> None:
        """Give an attempt its state and see it through, opening the next round beside it."""
        await asyncio.to_thread(_put_state, driver.store, request.state)
        self._current = driver
        running = asyncio.create_task(driver.run())
        try:
            if await driver.has_masks():
                await self._open_ahead(training)
            outcome = await running
        finally:
            running.cancel()
        if driver.server.evidence:
            folder = self.directory / evidence.FOLDER
            await asyncio.to_thread(
                evidence.keep_evidence, folder, driver.server.evidence, self.log
            )
        self._refusals.update(
            {
                seat: driver.refusals[seat]
                for seat in driver.unwilling
                if not driver.refusals[seat].startswith(_LOST_VARIATE)
            }
        )
        match outcome:
            case Finished():
                await self._commit(training, driver, outcome)
            case Aborted():
                await self._give_up(training, driver, outcome)
        lost = any(why.startswith(_LOST_VARIATE) for why in driver.refusals.values())
        if lost and training.status is TrainingStatus.RUNNING:
            training.request_refresh()
        self._forget_attempts()

    async def _recover(self, training: TrainingRun, request: RoundRequest, given: int) -> None:
        """Attempts up to `given` were opened by an earlier process: have them abandoned."""
        mailboxes = {seat: self.hub.mailbox(seat) for seat in self.record.cohort}
        for attempt in range(request.attempt, given):
            if self._is_harmless(request.number, attempt):
                continue
            recovery = Recovery(
                attempt=AttemptId(run=self.record.run, round=request.number, attempt=attempt),
                roster=self.hub.roster,
                cohort=mailboxes,
            )
            self.recoveries[request.number, attempt] = recovery
            self.log.warning("recovering", round=request.number, attempt=attempt)
            recovery.ask()
            await recovery.wait(_RECOVERY_S)
            self._abandons += tuple(recovery.abandons.values())
            if self.ledger is not None:
                parameters = self._parameters(request, attempt)
                await self.ledger.fail(parameters, recovery.abandons.values, "restarted")
        training.skip_to(given)
        following = training.next()
        assert isinstance(following, RoundRequest)  # the run is RUNNING
        cohort = await self._gather(self._least(following))
        if self._stop_reason is None:
            await self._drive_attempt(training, following, given, cohort)

    def _is_harmless(self, number: int, attempt: int) -> bool:
        """Whether no silo can have masked a vector in this attempt: its state was not announced."""
        if (known := self.attempts.get((number, attempt))) is not None:
            return known.server.may_retry
        folder = self._folder(number, attempt)
        if not has_logbook(folder):
            return False  # never opened, or lost: who knows
        try:
            logbook = Logbook(folder)
        except CorruptError:
            return False
        logbook.close()
        return not logbook.has(Event.STATE)

    async def _open_ahead(self, training: TrainingRun) -> None:
        """While silos train, let them exchange keys and shares for the next round (2.2, 1).

        One round ahead at most, and only for its first attempt. A silo that is lost before that
        round begins costs a new attempt with fresh keys and nothing else.
        """
        if self.ledger is not None:
            return  # a round is charged before it is opened, the one before it settled first
        preview = training.preview()
        if preview is None or self._ahead is not None or self._stop_reason is not None:
            return
        available = tuple(seat.index for seat in self._present()[0])
        least = self._least(preview)
        seats = training.cohort(available, preview.number, least=least)
        if len(seats) < least:
            return
        number = await asyncio.to_thread(self.store.next_attempt, self.record.run, preview.number)
        if number > 0:
            return  # an earlier process opened it; `_attempt` recovers that
        self._ahead = await self._open(self._parameters(preview, 0), seats)
        self._preparing = asyncio.create_task(self._ahead.prepare())

    async def _open(self, parameters: RoundParameters, cohort: tuple[int, ...]) -> AttemptDriver:
        folder = self._folder(parameters.round, parameters.attempt)
        presence, roster = self.hub.presence, self.hub.roster
        # Another roster may have come since the cohort was chosen: who was revoked is not invited.
        parameters = replace(
            parameters,
            roster_digest=roster.digest(),
            n_c=max(_ASKED.colluding(roster), parameters.n_c),
        )
        silos = {seat.index: seat.silo for seat in roster.seats if seat.index in cohort}
        cohort = tuple(silos)
        incarnations = {seat: presence.incarnation(silo) for seat, silo in silos.items()}
        driver = self._make_driver(
            parameters, incarnations, FileVectorStore(folder), Logbook(folder), self._abandons
        )
        driver.log.info("attempt", kind=parameters.kind, cohort=cohort)
        self.progress.note()
        return driver

    def _make_driver(
        self,
        parameters: RoundParameters,
        incarnations: Mapping[int, bytes],
        store: FileVectorStore,
        logbook: Logbook,
        abandons: tuple[Abandon, ...],
    ) -> AttemptDriver:
        cohort = tuple(incarnations)
        driver = AttemptDriver(
            server=ServerRound(
                parameters=parameters,
                plan=self.plan.document(),
                roster=self.hub.roster,
                signing_key=self.signing_key,
                store=store,
                cohort=cohort,
                deadlines=_phase_deadlines(self.deadlines),
                abandons=abandons,
            ),
            cohort={seat: self.hub.mailbox(seat) for seat in cohort},
            store=store,
            logbook=logbook,
            incarnations=incarnations,
            silent=lambda: self.hub.silent(cohort),
            changed=self.progress.note,
            release=None if self.ledger is None else partial(self._release, parameters),
            noise=central_noise(self.plan),
            log=self.log.bind(round=parameters.round, attempt=parameters.attempt),
        )
        self.attempts[parameters.round, parameters.attempt] = driver
        return driver

    async def _release(self, parameters: RoundParameters, survivors: tuple[int, ...]) -> None:
        assert self.ledger is not None  # only then a driver releases
        await self.ledger.release(parameters, survivors, wait_s=self.deadlines.survivors_s)

    async def _commit(
        self, training: TrainingRun, driver: AttemptDriver, outcome: Finished
    ) -> None:
        """Take the server's step and bring it to the disk before anything follows from it."""
        parameters, survivors = outcome.aggregate.parameters, outcome.aggregate.survivors
        made = await asyncio.to_thread(training.receive, outcome.aggregate)
        if isinstance(made, RoundFailure):
            driver.log.error("no-step", reason=made.reason)
            return
        report = calls.RoundReport(
            round=parameters.round,
            attempts=parameters.attempt + 1,
            kind=parameters.kind,
            survivors=survivors,
            dropouts=driver.dropouts(survivors),
            absent=driver.absent(),
            metrics=_figures(made, training.state) | self._noise_figures(outcome.aggregate),
            costs=driver.costs,
            committed_unix_s=utc_now().timestamp(),
        )
        await asyncio.to_thread(self._save, training, report)
        self._abandons = ()
        self.reports.append(report)
        driver.log.info("committed", survivors=survivors, dropouts=report.dropouts)
        self.progress.note()

    def _noise_figures(self, aggregate: Aggregate) -> dict[str, float]:
        return {} if self.ledger is None else self.ledger.padding(aggregate)

    def _save(self, training: TrainingRun, report: calls.RoundReport) -> None:
        state = decode_state(training.state, MAX_STATE_BYTES)
        self.store.commit_round(
            self.record.run,
            snapshot=training.snapshot(),
            report=report,
            artifacts={MODEL_FILE: released_bytes(self.plan, state)},
        )

    async def _give_up(
        self, training: TrainingRun, driver: AttemptDriver, outcome: Aborted
    ) -> None:
        missing = self._names(outcome.missing)
        reason = f"{outcome.reason}: {outcome.detail}" if outcome.detail else str(outcome.reason)
        reason += f"; missing: {missing}" if missing else ""
        reason += "".join(
            f"; {self._names((seat,))} says {why}" for seat, why in driver.refusals.items()
        )
        driver.log.error("aborted", reason=reason)
        await driver.gather_abandons(self.deadlines.survivors_s)
        self._abandons += driver.server.abandons
        if self.ledger is not None:
            await self.ledger.fail(driver.parameters, lambda: driver.server.abandons, reason)
        if self._stop_reason is None:
            training.fail(reason, may_retry=driver.server.may_retry)
            self.reason = reason
            self.progress.note()

    # --- cohorts ------------------------------------------------------------------------------

    async def _gather(self, wanted: int) -> tuple[Seat, ...]:
        """Wait, with a bound, until `wanted` silos of the run are connected.

        Raises:
            TooFewSilosError: names those that are missing, and who refused and why.
        """
        give_up = monotonic() + self.deadlines.registration_s
        while self._stop_reason is None:
            present, missing = self._present()
            if len(present) >= wanted:
                self.reason = ""
                return present
            refused = "".join(
                f"; {self._names((seat,))} says {why}" for seat, why in self._refusals.items()
            )
            text = f"{len(present)} of {wanted} silos connected, missing {missing}{refused}"
            if text != self.reason:
                self.reason = text
                self.log.warning("waiting", reason=text)
                self.progress.note()
            left = give_up - monotonic()
            if left <= 0:
                raise TooFewSilosError(text)
            await self.hub.presence.changed(min(left, _GLANCE_S))
        return ()

    def _present(self) -> tuple[tuple[Seat, ...], str]:
        """The seats that can be invited now, and the names of the others of this run."""
        enrolled = self.record.cohort or self.hub.roster.indices
        connected = {seat.index for seat in self.hub.connected()}
        can = connected & set(enrolled) - set(self._refusals)
        seats = tuple(seat for seat in self.hub.roster.seats if seat.index in can)
        most = self.plan.max_silos
        return seats[:most], self._names(tuple(sorted(set(enrolled) - can)))

    def _least(self, request: RoundRequest | RoundPreview) -> int:
        """The least cohort whose own floor it can meet."""
        parameters = self._parameters(request, 0)
        return next(n for n in range(1, parameters.n_max + 1) if n >= parameters.floor(n))

    def _parameters(self, request: RoundRequest | RoundPreview, attempt: int) -> RoundParameters:
        roster, privacy = self.hub.roster, privacy_of(self.plan)
        return RoundParameters(
            federation=roster.federation,
            run=self.record.run,
            roster_digest=roster.digest(),
            kind=request.kind.value,
            round=request.number,
            attempt=attempt,
            n_c=max(_ASKED.colluding(roster), privacy.n_c if privacy else 0),
            h_dp=privacy.h_dp if privacy else 0,
            dp=document_of(self.plan),
            h_min=_ASKED.h_min,
            n_min=_ASKED.n_min,
            n_orgs=_ASKED.n_orgs,
            n_max=self.plan.max_silos,
            spec=request.spec,
            training_plan=self.plan.digest(),
            coefficients=request.coefficients,
        )

    # --- what others see ----------------------------------------------------------------------

    def summary(self) -> calls.RunSummary:
        """The run in one line."""
        return calls.RunSummary(
            run=self.record.run,
            name=self.record.name,
            algorithm=self.record.algorithm,
            state=self.state,
            reason=self.reason,
            rounds_done=len(self.reports),
            rounds_total=self.record.rounds_total,
            created_unix_s=self.record.created_unix_s,
        )

    def status(self, after_round: int = 0) -> calls.RunStatus:
        """Where the run stands, with the reports after a round."""
        current = self._current
        refusals = self._refusals | (current.refusals if current is not None else {})
        is_open = current is not None and current.outcome is None
        return calls.RunStatus(
            summary=self.summary(),
            round=current.parameters.round if current is not None and is_open else 0,
            attempt=current.parameters.attempt if current is not None and is_open else 0,
            phase=current.phase if current is not None and is_open else None,
            deadline_s=current.deadline_s if current is not None and is_open else 0.0,
            seats=tuple(
                SeatStatus(
                    seat=seat.index,
                    silo=seat.silo.name,
                    organization=seat.organization,
                    connected=self.hub.is_connected(seat.silo),
                    completed=current.completed.get(seat.index) if current else None,
                    refusal=refusals.get(seat.index, "")[:1000],
                )
                for seat in self.hub.roster.seats
            ),
            rounds=tuple(report for report in self.reports if report.round > after_round),
        )

    async def _enter(self, state: RunState, reason: str) -> None:
        self.state, self.reason = state, reason
        await asyncio.to_thread(self.store.set_state, self.record.run, state, reason)
        self.log.info("run", state=state.value, reason=reason)
        self.progress.note()

    async def _end(self, state: RunState, reason: str) -> None:
        if self._ahead is not None:
            await self._ahead.stop("the run has ended")
        await self._enter(state, reason[:4000])
        if self.ledger is not None:
            self.ledger.share(self.record.cohort)
        self._post_end()

    def _post_end(self) -> None:
        last = self.reports[-1].round if self.reports else 0
        closed = ClosedEnvelope(
            run=self.record.run, state=self.state, reason=self.reason, round=last
        )
        for seat in self.record.cohort or self.hub.roster.indices:
            self.hub.mailbox(seat).post(closed)

    def _names(self, seats: tuple[int, ...]) -> str:
        return ", ".join(map(self.hub.name, seats))

    def _folder(self, number: int, attempt: int) -> Path:
        return self.directory / ATTEMPTS / f"{number}-{attempt}"

    def _forget_attempts(self) -> None:
        """Let go of attempts that are over, but not of a sum that a survivor has yet to check.

        A silo that was away keeps its submission open, and sits out, until it has the result
        (SA1 spec 2.5 v). What it needs stays as long as disk is reasonable to spend on it; a silo
        that was left out of a sum needs the message only, which stays in its mailbox.
        """
        for number, attempt in list(self.attempts)[:-_KEPT_ATTEMPTS]:
            driver = self.attempts[number, attempt]
            is_of = partial(_is_of, run=self.record.run, number=number, attempt=attempt)
            is_result = partial(_is_result, is_of=is_of)
            boxes = {seat: self.hub.mailbox(seat) for seat in driver.cohort}
            for box in boxes.values():
                box.drop(lambda item: is_of(item) and not is_result(item))  # noqa: B023 - used at once
            awaited = any(boxes[seat].holds(is_result) for seat in driver.server.survivors)
            if awaited and len(self.attempts) <= _MOST_SUMS:
                driver.drop_uploads()
                continue
            self.attempts.pop((number, attempt)).close()
            shutil.rmtree(self._folder(number, attempt), ignore_errors=True)
        for (number, attempt), published in list(self.sums.items()):
            if not published.is_awaited:
                self.sums.pop((number, attempt)).store.close()
                shutil.rmtree(self._folder(number, attempt), ignore_errors=True)


def _is_of(envelope: Envelope, *, run: RunId, number: int, attempt: int) -> bool:
    """Whether a message speaks of this attempt."""
    return isinstance(envelope, ProtocolEnvelope) and (
        (envelope.run, envelope.round, envelope.attempt) == (run, number, attempt)
    )


def _is_result(envelope: Envelope, *, is_of: Callable[[Envelope], bool]) -> bool:
    """Whether it is the attempt's Result."""
    return (
        is_of(envelope)
        and isinstance(envelope, ProtocolEnvelope)
        and peek_label(envelope.message) == Result.LABEL
    )


def _phase_deadlines(deadlines: Deadlines) -> PhaseDeadlines:
    return PhaseDeadlines(
        advertise_s=deadlines.advertise_s,
        share_s=deadlines.share_s,
        mask_s=deadlines.mask_s,
        survivors_s=deadlines.survivors_s,
        unmask_s=deadlines.unmask_s,
    )


def _put_state(store: FileVectorStore, state: bytes) -> None:
    for piece, start in enumerate(range(0, len(state), STATE_CHUNK_BYTES)):
        store.write(STATE, piece, state[start : start + STATE_CHUNK_BYTES])


def _figures(report: RoundReport, state: bytes) -> dict[str, float]:
    """The report's numbers by name, and the clip ranges that the next round uses."""
    figures = {
        "examples": report.examples,
        "loss": report.loss,
        "accuracy": report.accuracy,
        "model_norm": report.model_norm,
        "update_norm": report.update_norm,
        "cosine": report.cosine,
        "saturated": report.saturated,
    }
    for name, clip_range in ranges_of(decode_state(state, MAX_STATE_BYTES)).items():
        figures[f"range.{name}"] = clip_range
    return {name: float(value) for name, value in figures.items() if value is not None}

"""The driver of one run: rounds one after the other, attempts within them, until the plan is done.

What to sum next is its course's decision (`fl.rounds`), how a round goes is `secagg.server`'s. This
driver gathers a cohort, opens attempts, commits what they release before it goes on, and tells the
operator and the silos. Every wait has a bound.
"""

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from dp.errors import PrivacyError
from fl.errors import NoRoomError, RenewedError, VariateLostError
from fl.plan import RoundKind
from fl.rounds import (
    Course,
    RoundFailure,
    RoundPreview,
    RoundRequest,
    RunFinished,
    RunPlan,
    RunStatus,
)
from secagg.blame import suspects
from secagg.effects import Aborted, AbortReason, Aggregate, Finished
from secagg.ids import RunId
from secagg.messages import STATE, STATE_CHUNK_BYTES, Abandon
from secagg.parameters import RoundParameters
from secagg.rng import Rng, SystemRng
from secagg.roster import Seat
from services.clock import monotonic, utc_now
from services.config import Deadlines
from services.coordinator.attempt import AttemptDriver
from services.coordinator.attempts import Attempts
from services.coordinator.cohorts import Cohorts, under
from services.coordinator.complaints import keep_complaints, load_complaints
from services.coordinator.hub import Hub
from services.coordinator.ledger import BudgetSpentError, LedgerUnsignedError, RunLedger
from services.coordinator.settlements import Settlements
from services.coordinator.standing import Standing
from services.errors import NotNowError, StorageError, UnavailableError
from services.evidence import DealerCases, accused, keep_evidence
from services.observe.logs import Logger, where
from services.released import released_bytes, released_name
from services.storage.blobs import FileVectorStore
from services.storage.coordinator import CoordinatorStore
from services.wire import calls
from services.wire.calls import RunState

# A silo without its control variate is no unwilling one: a refresh round gives it a new one.
_LOST_VARIATE: Final = VariateLostError.__name__
# Whoever refused for one of these reasons is invited again.
_PASSING: Final = (_LOST_VARIATE, NoRoomError.__name__, RenewedError.__name__)
# How often a wait for free disk looks again.
_SPACE_S: Final = 5.0
# How often a wait for silos looks again, beside being woken by a Hello.
_GLANCE_S: Final = 1.0
# How long a recovery waits for promises; silos may have to find the coordinator again first.
_RECOVERY_S: Final = 15.0
# Between the begins of the third attempt and the one before it, at most; twice that for each more.
_REST_S: Final = 5.0
# For a silo knows of no sum that it is in, or is not in, but from the run itself (2.5 v).
_UNSETTLED: Final = (
    "; a silo that has sent exact statistics to a run that was stopped or failed meanwhile sends "
    "no others before it knows who was in that sum: resume that run first"
)
# How long a sum that silos are opening is awaited when the run is stopped: given up, its round
# could never be summed, and the run not be taken up again.
_SUM_S: Final = 5.0
# How long the promises that give a charge back are awaited when the run is stopped.
_PROMISES_S: Final = 2.0


class TooFewSilosError(Exception):
    """Too few silos take part, and waiting is over or of no use."""


class NoSpaceError(Exception):
    """The disk has no room for a round, and the wait for some has had its time."""


@dataclass(slots=True, kw_only=True)
class RunDriver:
    """One run.

    Attributes:
        standing: what others see of it.
        attempts: those of its rounds.
        cohorts: who can be invited.
        settlements: what silos have signed of its states.
        course: the run across rounds; None until the first cohort is there.
        begin: makes it, of the first cohort's names by seat.
        min_silos: connected silos to wait for before the first round.
        directory: holds the attempts' vectors and the complaints that count.
        cases: where evidence against silos is kept.
        dealers: what of it silos may have to see again.
        free_bytes: that a round leaves free on the disk.
        ledger: of a run with a privacy plan.
        rng: spreads the rests between attempts.
    """

    standing: Standing
    attempts: Attempts
    cohorts: Cohorts
    settlements: Settlements
    plan: RunPlan
    course: Course | None
    begin: Callable[[Mapping[int, str]], Course]
    min_silos: int
    hub: Hub
    store: CoordinatorStore
    deadlines: Deadlines
    directory: Path
    cases: Path
    dealers: DealerCases
    log: Logger
    free_bytes: int = 0
    ledger: RunLedger | None = None
    rng: Rng = field(default_factory=SystemRng)
    _abandons: tuple[Abandon, ...] = ()
    _current: AttemptDriver | None = None
    _resumed: AttemptDriver | None = None
    _ahead: AttemptDriver | None = None
    _preparing: "asyncio.Task[None] | None" = None
    _stop_reason: str | None = None
    _failures: int = 0
    _begun: float = 0.0
    _rest_until: float = 0.0
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _changes: dict[int, calls.MemberChange] = field(default_factory=dict)
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def run(self) -> RunId:
        """The run's name."""
        return self.standing.record.run

    # --- the run, from the first cohort to the last message -----------------------------------

    async def drive(self) -> None:
        """Run to the end, whatever it is, and tell everybody."""
        try:
            await self._rounds()
        except BudgetSpentError as error:
            await self._end(RunState.BUDGET_EXHAUSTED, str(error))
        except (LedgerUnsignedError, PrivacyError) as error:
            if self._stop_reason is None:
                await self._end(RunState.FAILED, str(error))
            else:
                await self._end(RunState.STOPPED, self._stop_reason)
        except (TooFewSilosError, NoSpaceError) as error:
            state = RunState.BUDGET_EXHAUSTED if self.cohorts.spent else RunState.FAILED
            await self._end(state, str(error))
        except (asyncio.CancelledError, StorageError):
            raise  # the coordinator goes down; the run goes on when it is back
        except Exception as error:  # noqa: BLE001 - a bug ends this run, not the coordinator
            self.log.error(  # noqa: TRY400 - a traceback's text may quote values
                "run-crashed", code=type(error).__name__, where=where(error)
            )
            await self._end(RunState.FAILED, f"internal error: {type(error).__name__}")

    async def _rounds(self) -> None:
        if self.course is None:
            cohort = await self._gather(self.min_silos)
            if self._stop_reason is not None:
                await self._end(RunState.STOPPED, self._stop_reason)
                return
            self.course = self.begin({seat.index: seat.silo.name for seat in cohort})
            self.cohorts.enrolled = tuple(seat.index for seat in cohort)
            self.standing.record = await asyncio.to_thread(
                self.store.begin, self.run, self.cohorts.enrolled, self.course.snapshot()
            )
        await self.standing.enter(RunState.RUNNING)
        await self._commit_privacy(self.course)
        while self._stop_reason is None:
            await self._change_members(self.course)
            request = self.course.next()
            if isinstance(request, RunFinished):
                done = request.status is RunStatus.COMPLETED
                await self._end(RunState.FINISHED if done else RunState.FAILED, request.reason)
                return
            await self._attempt(self.course, request)
            await self._rest()
        await self._end(RunState.STOPPED, self._stop_reason)

    async def change_member(self, seat: int, change: calls.MemberChange) -> None:
        """Let a silo join the run, or invite it no more, from the next attempt on.

        It is on the disk when this returns: another process would carry it out, too.

        Raises:
            NotNowError: it cannot be; says why.
        """
        async with self._changing:
            self._require_change(seat, change)
            await asyncio.to_thread(self.store.ask_change, self.run, seat, change)
            self._changes[seat] = change

    def _require_change(self, seat: int, change: calls.MemberChange) -> None:
        asked = {**self._changes, seat: change}
        gone = {one for one, what in asked.items() if what is not calls.MemberChange.ADMIT}
        members = ({*self.cohorts.enrolled, *asked}) - gone
        if self.ledger is not None:
            reason = "under a privacy plan the silos are those that signed it"
        elif len(members) > self.plan.max_silos:
            reason = f"the plan has room for {self.plan.max_silos} silos"
        elif len(members) < self.min_silos:
            reason = f"run.min_silos = {self.min_silos} silos would not be left"
        else:
            return
        raise NotNowError(f"{self.cohorts.names(seat)} cannot be changed: {reason}")

    async def _change_members(self, course: Course) -> None:
        """Between two attempts, carry out what operators asked for, and bring it to the disk.

        What was exchanged ahead is given up: it may hold who is invited no more.
        """
        request = course.next()
        if not self._changes or self._resumed is not None or isinstance(request, RunFinished):
            return
        if (ahead := self._ahead) is not None:
            if ahead.parameters.round != request.number:
                return  # a round is tried again; the one ahead is the next, and is given up then
            assert self._preparing is not None  # begins with it
            await self._preparing
            self._ahead = self._preparing = None
            await ahead.stop("the run's silos have changed")
            course.skip_to(ahead.parameters.attempt + 1)
        changes, self._changes = self._changes, {}
        members = set(self.cohorts.enrolled)
        joining = {s for s, change in changes.items() if change is calls.MemberChange.ADMIT}
        for seat in members & (changes.keys() - joining):
            course.dismiss(seat)
            members.remove(seat)
            self.standing.tell_end((seat,), RunState.STOPPED, "an operator has dismissed it")
            if changes[seat] is calls.MemberChange.LOST:
                course.request_refresh()
        for seat in sorted(joining):
            course.admit(seat, self.cohorts.names(seat))
            members.add(seat)
            self.cohorts.refusals.pop(seat, None)
        self.cohorts.enrolled = tuple(sorted(members))
        self.standing.record = await asyncio.to_thread(
            self.store.begin, self.run, self.cohorts.enrolled, course.snapshot(), changes
        )
        self.log.info("members", seats=self.cohorts.enrolled)

    async def _commit_privacy(self, course: Course) -> None:
        """Have the silos sign the privacy plan before the first round."""
        request = course.next()
        if self.ledger is not None and isinstance(request, RoundRequest):
            parameters = self.cohorts.parameters(request, request.attempt)
            wait_s = self.deadlines.registration_s
            await self.ledger.commit(self.cohorts.enrolled, parameters, wait_s=wait_s)
            self.cohorts.least_n_c = self.ledger.committed_n_c()

    async def stop(self, reason: str) -> None:
        """End the run; the model of the last complete round stays."""
        if self.standing.state.is_final or self._stop_reason is not None:
            return
        self._stop_reason = reason or "stopped by an operator"
        self._stopping.set()
        self.hub.presence.wake()
        for attempt in list(self.attempts.live.values()):
            await attempt.stop(self._stop_reason, wait_s=_SUM_S)
        if self.ledger is not None:
            self.ledger.give_up()  # not before: a sum that silos have opened waits for its release

    async def welcome(self, seat: int, incarnation: bytes) -> None:
        """A process of this silo has said Hello: an earlier one's part in an attempt is over."""
        self.cohorts.refusals.pop(seat, None)
        for attempt in list(self.attempts.live.values()):
            await attempt.meet(seat, incarnation)

    # --- after a restart ----------------------------------------------------------------------

    def restore(self) -> None:
        """Find what an earlier process left: the open attempt, changes, sums silos may still want.

        Call it before the silos can call.
        """
        self._changes = self.store.changes(self.run)
        if self.ledger is not None:
            with suppress(PrivacyError):  # `drive` meets it again, and ends the run with its words
                self.cohorts.least_n_c = self.ledger.committed_n_c()
                if self.cohorts.least_n_c:
                    # Before the open attempt's messages: a silo may lack the charge that it checks.
                    self.ledger.share(self.cohorts.enrolled)
        following = None if self.course is None else self.course.next()
        for complaint in load_complaints(self.directory):
            self.cohorts.suspect(suspects([], [complaint]))
        self.cohorts.accused |= accused(self.cases)
        self.settlements.restore()
        for driver in self.attempts.restore(self.standing.record.round, self._expected):
            self._abandons = driver.logbook.opening.message.abandons
            if isinstance(following, RoundRequest) and following.number == driver.parameters.round:
                self._resumed = driver
            else:
                self._ahead = driver
                self._preparing = asyncio.create_task(driver.prepare())

    def _expected(self, number: int, attempt: int) -> RoundParameters | None:
        """What an attempt of this round would be made of now; None if it would not be opened."""
        if self.course is None:
            return None
        for asked in (self.course.next(), self.course.preview()):
            if isinstance(asked, RoundRequest | RoundPreview) and asked.number == number:
                return self.cohorts.parameters(asked, attempt)
        return None

    def repeat_end(self) -> None:
        """Tell everybody once more that this run has ended, and how."""
        record = self.standing.record
        self.standing.state, self.standing.reason = record.state, record.reason
        self.standing.tell_end(self.cohorts.seats)

    # --- one attempt --------------------------------------------------------------------------

    async def _attempt(self, course: Course, request: RoundRequest) -> None:
        await self._note_suspects()
        if self._ahead is not None and self._ahead.parameters.round == request.number:
            await self._use_ahead(course, request)
            return
        if self._resumed is not None:
            driver, self._resumed = self._resumed, None
            course.skip_to(driver.parameters.attempt)
            await self._run_attempt(course, request, driver)
            return
        cohort = await self._gather(self.cohorts.least(request))
        if self._stop_reason is not None:
            return
        number = await asyncio.to_thread(self.store.next_attempt, self.run, request.number)
        if number > request.attempt:
            await self._recover(course, request, number)
            return
        await self._drive_attempt(course, request, number, cohort)

    async def _use_ahead(self, course: Course, request: RoundRequest) -> None:
        """Call the roll: what was exchanged ahead serves if it is for the same vector and silos.

        Else the round begins with its next attempt, whose keys are fresh; that is no failure.
        """
        ahead, preparing = self._ahead, self._preparing
        assert ahead is not None  # the caller looked
        assert preparing is not None  # begins with it
        await preparing
        self._ahead = self._preparing = None
        available = tuple(seat.index for seat in self.cohorts.present())
        present = set(course.cohort(available, least=self.cohorts.least(request)))
        is_same = ahead.parameters == self.cohorts.parameters(request, request.attempt)
        is_trusted = not ahead.cohort.keys() & self.cohorts.left_out.keys()
        if is_same and is_trusted and ahead.is_intact and present <= ahead.sharers:
            await self._run_attempt(course, request, ahead)
            return
        await self._note_suspects(ahead)
        await ahead.stop("the silos or the vector are others than when it was opened ahead")
        course.skip_to(ahead.parameters.attempt + 1)

    async def _drive_attempt(
        self, course: Course, request: RoundRequest, number: int, cohort: tuple[Seat, ...]
    ) -> None:
        available = tuple(seat.index for seat in cohort)
        seats = course.cohort(available, least=self.cohorts.least(request))
        parameters = self.cohorts.parameters(request, number)
        await self._require_space(parameters, len(seats), len(request.state))
        if self._stop_reason is not None:
            return
        if self.ledger is not None:
            await self.ledger.charge(parameters, seats)
        driver = self._open(parameters, seats)
        await self._run_attempt(course, request, driver)

    async def _require_space(self, parameters: RoundParameters, silos: int, state: int) -> None:
        """Wait, with a bound, until the disk has room for an attempt's vectors.

        Raises:
            NoSpaceError: says how much is needed and how much is free; the log says where.
        """
        # Uploads, their sum, the state; and the next snapshot with its model file.
        needed = (silos + 1) * parameters.wire_spec.wire_bytes + 3 * state + self.free_bytes
        give_up = monotonic() + self.deadlines.registration_s
        while (free := shutil.disk_usage(self.directory).free) < needed:
            reason = f"the coordinator's disk: a round needs {needed} bytes, {free} are free"
            self.log.error("no-space", folder=str(self.directory), reason=reason)
            self.standing.explain(reason)
            left = give_up - monotonic()
            if left <= 0:
                raise NoSpaceError(reason)
            await self._unless_stopped(asyncio.sleep(min(left, _SPACE_S)))
            if self._stop_reason is not None:
                return

    async def _run_attempt(
        self, course: Course, request: RoundRequest, driver: AttemptDriver
    ) -> None:
        """Give an attempt its state and see it through, opening the next round beside it."""
        await asyncio.to_thread(_put_state, driver.store, request.state)
        driver.cases = await asyncio.to_thread(self.dealers.under, self.hub.roster)
        self._current, self._begun = driver, monotonic()
        vouched = partial(
            self.settlements.succession,
            self.standing.reports[-1].round if self.standing.reports else 0,
            request.state_hash,
            needed=driver.parameters.n_c + 1,
            cohort=driver.cohort,
        )
        running = asyncio.create_task(driver.run(vouched))
        try:
            if await driver.has_masks():
                await self._open_ahead(course)
            outcome = await running
        finally:
            running.cancel()
        await self._note_suspects(driver)
        self.cohorts.refusals.update(
            {
                seat: driver.refusals[seat]
                for seat in driver.unwilling
                if not driver.refusals[seat].startswith(_PASSING)
            }
        )
        match outcome:
            case Finished():
                self.attempts.show(driver)
                await self._commit(course, driver, outcome)
            case Aborted():
                await self._give_up(course, driver, outcome)
                if self._stop_reason is None:
                    self._require_willing(self.cohorts.least(request))
        lost = any(why.startswith(_LOST_VARIATE) for why in driver.refusals.values())
        if lost and course.status is RunStatus.RUNNING:
            course.request_refresh()
        self.attempts.forget()

    async def _note_suspects(self, driver: AttemptDriver | None = None) -> None:
        """Leave out who has lied, and keep what proves it (SA1 spec 3.4).

        Args:
            driver: of the attempt that is over, whose complaint counts from now on. A proof may
                come later than that: the sum did not need the liar's share.
        """
        before = len(self.cohorts.complaints)
        servers = [one.server for one in self.attempts.live.values()]
        found = [one for server in servers for one in server.suspects if one.is_proven]
        if driver is not None:
            found += driver.server.suspects
        for seat, why in self.cohorts.suspect(found).items():
            self.log.error("suspect", silo=self.cohorts.names(seat), reason=why)
        if len(self.cohorts.complaints) > before:
            await asyncio.to_thread(keep_complaints, self.directory, self.cohorts.complaints)
        cases = [case for server in servers for case in server.evidence]
        if cases:
            await asyncio.to_thread(keep_evidence, self.cases, cases, self.log)

    async def _recover(self, course: Course, request: RoundRequest, given: int) -> None:
        """Attempts up to `given` were opened by an earlier process: have them abandoned."""
        for attempt in range(request.attempt, given):
            recovery = self.attempts.recover(request.number, attempt, self.cohorts.enrolled)
            if recovery is None:
                continue
            await self._unless_stopped(recovery.wait(_RECOVERY_S))
            self._abandons += tuple(recovery.abandons.values())
            if self.ledger is not None:
                parameters = self.cohorts.parameters(request, attempt)
                await self.ledger.fail(parameters, recovery.abandons.values, "restarted")
        course.skip_to(given)
        following = course.next()
        assert isinstance(following, RoundRequest)  # the run is RUNNING
        cohort = await self._gather(self.cohorts.least(following))
        if self._stop_reason is None:
            await self._drive_attempt(course, following, given, cohort)

    async def _open_ahead(self, course: Course) -> None:
        """While silos train, let them exchange keys and shares for the next round (2.2, 1).

        One round ahead at most, and only for its first attempt. A silo that is lost before that
        round begins costs a new attempt with fresh keys and nothing else.
        """
        if self.ledger is not None:
            return  # a round is charged before it is opened, the one before it settled first
        preview = course.preview()
        if preview is None or self._ahead is not None or self._stop_reason is not None:
            return
        available = tuple(seat.index for seat in self.cohorts.present())
        least = self.cohorts.least(preview)
        seats = course.cohort(available, preview.number, least=least)
        if len(seats) < least:
            return
        number = await asyncio.to_thread(self.store.next_attempt, self.run, preview.number)
        if number > 0:
            return  # an earlier process opened it; `_attempt` recovers that
        self._ahead = self._open(self.cohorts.parameters(preview, 0), seats)
        self._preparing = asyncio.create_task(self._ahead.prepare())

    def _open(self, parameters: RoundParameters, seats: tuple[int, ...]) -> AttemptDriver:
        """Open an attempt under the roster in force: who was revoked is not invited."""
        current = under(self.hub.roster, parameters)
        return self.attempts.open(current, seats, self._abandons)

    async def _commit(self, course: Course, driver: AttemptDriver, outcome: Finished) -> None:
        """Take the server's step and bring it to the disk before anything follows from it."""
        parameters, survivors = outcome.aggregate.parameters, outcome.aggregate.survivors
        taken = [driver.take_sum()]
        noise = self._noise_figures(taken[0])
        # Popped, so that nothing but the course holds the sum while it takes the step.
        made = await asyncio.to_thread(lambda: course.receive(taken.pop()))
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
            metrics=course.figures(made) | noise,
            costs=driver.costs,
            committed_unix_s=utc_now().timestamp(),
            reasons=driver.reasons(survivors),
        )
        await asyncio.to_thread(self._save, course, report)
        self._abandons, self._failures, self._rest_until = (), 0, 0.0
        self.standing.reports.append(report)
        driver.log.info("committed", survivors=survivors, dropouts=report.dropouts)
        self.standing.progress.note()

    def _noise_figures(self, aggregate: Aggregate) -> dict[str, float]:
        """What there is to say of the round's noise; without a plan, that there is none."""
        if self.ledger is None:
            self.log.warning("no-privacy-plan", round=aggregate.parameters.round)
            return {"private": 0.0}
        return {"private": 1.0, **self.ledger.padding(aggregate)}

    def _save(self, course: Course, report: calls.RoundReport) -> None:
        self.store.commit_round(
            self.run,
            snapshot=course.snapshot(),
            report=report,
            artifacts={released_name(self.plan): released_bytes(self.plan, course.state)},
        )

    async def _give_up(self, course: Course, driver: AttemptDriver, outcome: Aborted) -> None:
        missing = self.cohorts.names(*outcome.missing)
        reason = f"{outcome.reason}: {outcome.detail}" if outcome.detail else str(outcome.reason)
        reason += f"; missing: {missing}" if missing else ""
        reason += "".join(
            f"; {self.cohorts.names(seat)} says {why}" for seat, why in driver.refusals.items()
        )
        is_statistics = driver.parameters.kind == RoundKind.STATISTICS
        if is_statistics and outcome.reason is AbortReason.TOO_FEW_MASKED:
            reason += _UNSETTLED
        driver.log.error("aborted", reason=reason)
        # Another attempt needs promises, but a round whose shares are open and bad gets none.
        # A run that was stopped wants no attempt, but perhaps a charge back, and a silo that can
        # promise does so at once.
        is_lost = outcome.reason is AbortReason.BAD_DEALER
        if self._stop_reason is None and not is_lost:
            await driver.gather_abandons(self.deadlines.survivors_s)
        elif self.ledger is not None and not is_lost:
            await driver.gather_abandons(min(self.deadlines.survivors_s, _PROMISES_S))
        self._abandons += driver.server.abandons
        if self.ledger is not None:
            await self.ledger.fail(driver.parameters, lambda: driver.server.abandons, reason)
        if self._stop_reason is None:
            may_retry = driver.server.may_retry
            failure = course.fail(reason, may_retry=may_retry, is_proven=is_lost)
            self.standing.explain(reason)
            if failure.retried and not may_retry:  # a new process must not open that round again
                self.standing.record = await asyncio.to_thread(
                    self.store.begin, self.run, self.cohorts.enrolled, course.snapshot()
                )
            self._failures += 1
            if failure.retried:
                self._rest_until = self._begun + rest_s(self._failures, self.rng)

    async def _rest(self) -> None:
        """Wait before an attempt, and say why, if the ones before it have failed quickly."""
        if (left := self._rest_until - monotonic()) > 0:
            reason = f"{self.standing.reason}; the next attempt begins in {left:.0f} s"
            self.log.warning("resting", failures=self._failures, seconds=round(left, 1))
            self.standing.explain(reason)
            await self._unless_stopped(asyncio.sleep(left))

    async def _unless_stopped(self, waiting: Coroutine[None, None, None]) -> None:
        """Wait, but not when the run is stopped; only for what may be canceled anywhere."""
        wait, stop = asyncio.create_task(waiting), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((wait, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            wait.cancel()
            stop.cancel()

    async def _gather(self, wanted: int) -> tuple[Seat, ...]:
        """Wait, with a bound, until `wanted` silos of the run are connected.

        Raises:
            TooFewSilosError: names those that are missing, and who refused and why.
            BudgetSpentError: without the silos whose budget is spent there are too few.
        """
        give_up = monotonic() + self.deadlines.registration_s
        while self._stop_reason is None:
            self._require_willing(wanted)
            present = self.cohorts.present()
            if len(present) >= wanted:
                self.standing.reason = ""
                return present
            missing = self.cohorts.missing()
            text = f"{len(present)} of the {wanted} silos needed can take part; {missing}"
            if text != self.standing.reason:
                self.log.warning("waiting", reason=text)
                self.standing.explain(text)
            left = give_up - monotonic()
            if left <= 0:
                raise TooFewSilosError(text)
            await self.hub.presence.changed(min(left, _GLANCE_S))
        return ()

    def _require_willing(self, wanted: int) -> None:
        """No wait gives a spent budget back (privacy.md 3), or changes what a silo's owner has set.

        Raises:
            BudgetSpentError: without the silos whose budget is spent, `wanted` are not left.
            TooFewSilosError: they are not without those that refuse for good, either.
        """
        spent, refused = self.cohorts.spent, self.cohorts.refused_for_good()
        seats = len(self.cohorts.seats)
        if spent and seats - len(spent) < wanted:
            names = self.cohorts.names(*spent)
            raise BudgetSpentError(
                f"a round needs {wanted} silos, and {seats - len(spent)} are left: the data-set "
                f"budget is spent at {names}"
            )
        if refused and seats - len(refused) < wanted:
            said = "; ".join(f"{self.cohorts.names(seat)} says {refused[seat]}" for seat in refused)
            raise TooFewSilosError(
                f"a round needs {wanted} silos, and {seats - len(refused)} are left: {said}"
            )

    def status(self, after_round: int = 0) -> calls.RunStatus:
        """Where the run stands, with the reports after a round."""
        why = self.cohorts.refusals | self.cohorts.left_out
        return self.standing.status(self._current, why, after_round)

    async def _end(self, state: RunState, reason: str) -> None:
        if self._ahead is not None:
            with suppress(UnavailableError):  # its disk has failed: nothing more follows from it
                await self._ahead.stop("the run has ended")
        await self.standing.enter(state, reason)
        if self.ledger is not None:
            self.ledger.share(self.cohorts.enrolled)
        self.standing.tell_end(self.cohorts.seats)


def rest_s(failures: int, rng: Rng) -> float:
    """How long after a failed attempt's begin the next one may begin, in seconds.

    The first retry is free: a silo that was lost once is no reason to wait. What fails again and
    again, and quickly, has a reason that lasts longer than an attempt.

    Args:
        failures: attempts of one round that have failed, one after the other; at least one.
        rng: spreads the rests.
    """
    if failures < 2:
        return 0.0
    draw = int.from_bytes(rng.bytes(4)) / 2**32
    return float(_REST_S * 2 ** (failures - 2) * (0.5 + draw / 2))


def _put_state(store: FileVectorStore, state: bytes) -> None:
    for piece, start in enumerate(range(0, len(state), STATE_CHUNK_BYTES)):
        store.write(STATE, piece, state[start : start + STATE_CHUNK_BYTES])

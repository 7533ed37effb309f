"""A silo's long-lived loop: say Hello, ask for the next message, handle it, train beside it.

One message is handled at a time. Local training runs in one thread of its own while the loop goes
on polling, so that a slow silo stays connected, learns that it is late and still helps the others.
A run's failure never ends the loop; what ends it is a stop, a refusal to talk to this process at
all, or a coordinator out of reach for too long.
"""

import asyncio
import shutil
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, assert_never

from fl.errors import (
    BudgetExhaustedError,
    DataError,
    LearningError,
    NonFiniteUpdateError,
    SchemaError,
    WeightError,
)
from secagg.chain import Standpoint
from secagg.effects import Aborted, Aggregate, TrainingWanted
from secagg.errors import ReplayError, SecAggError
from secagg.ids import AttemptId, RunId
from secagg.journal import JournalEvent, SiloHistory, decode_line
from secagg.keys import IdentityKey
from secagg.messages import (
    STATE,
    AbandonRequest,
    Refusal,
    RoundOpen,
    ServerMessage,
    Settled,
    StateNotice,
    attachments,
    decode_message,
    signed,
)
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.recall import RecalledRound, resend
from secagg.ring import IntVector
from secagg.rng import Rng
from secagg.silo import SiloRound
from services import evidence
from services.clock import monotonic
from services.errors import InvalidRequestError, NotNowError, RemoteError, ServiceError
from services.ledger.messages import LedgerAnswer, LedgerNotice, is_ledger
from services.observe.logs import Logger, where
from services.silo.attempt import AttemptDriver, Outcome
from services.silo.greeting import Greeting
from services.silo.learner import Learner
from services.silo.ledger import SPENT
from services.silo.link import Link
from services.silo.metrics import SiloMetrics
from services.storage.blobs import FileVectorStore
from services.storage.silo import SiloStore
from services.wire.calls import (
    WAIT_S,
    ClosedEnvelope,
    NextCall,
    NextReply,
    ProtocolEnvelope,
    RunState,
    SubmitCall,
    VectorId,
)

# One round runs while the next one exchanges keys and shares (SA1 spec 2.2, 1; check A2).
MOST_OPEN_ROUNDS: Final = 2
# Attempts between two shortenings of the journal.
_SHORTENED_EVERY: Final = 8
# Sums that wait to be recomputed; a coordinator that does not show one costs no more than this.
_MOST_RECOMPUTED: Final = 8
_MOST_STRANGE_PROMISES: Final = 16
# After `linger_s`, for what ends by itself.
_GRACE_S: Final = 2.0
_Integers = Mapping[str, IntVector]
# What the data or their update are the reason of.
_OF_DATA: Final = (DataError, NonFiniteUpdateError, SchemaError, WeightError)


@dataclass(slots=True)
class _Training:
    driver: AttemptDriver
    future: "asyncio.Future[_Integers]"
    since: float


@dataclass(slots=True, kw_only=True)
class SiloNode:
    """One silo process.

    Attributes:
        directory: holds the attempts' vectors.
        history: the journal, replayed.
        runs: those that the journal speaks of.
        once: leave when a run that this silo took part in, or refused, has ended.
        linger_s: how long to stay in a round that goes on when told to stop.
    """

    seat: int
    identity: IdentityKey
    policy: SiloPolicy
    store: SiloStore
    history: SiloHistory
    runs: set[RunId]
    greeting: Greeting
    learner: Learner
    link: Link
    directory: Path
    rng: Rng
    log: Logger
    metrics: SiloMetrics
    once: bool = False
    linger_s: float = 0.0
    _accused: set[RunId] = field(default_factory=set)
    _strange_promises: int = 0
    _refused: set[RunId] = field(default_factory=set)
    _leave_at: float | None = None
    _live: dict[AttemptId, AttemptDriver] = field(default_factory=dict)
    _training: _Training | None = None
    _sequence: int = 0
    _opened_here: int = 0
    _ended: RunState | None = None
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _trainer: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="training")
    )

    async def run(self, stop: asyncio.Event) -> RunState | None:
        """Take part until told to stop; with `once`, returns how the run ended.

        A stop is obeyed at once by a silo that nobody has greeted yet, and after `linger_s` by one
        whose calls do not get through.

        Raises:
            ServiceError: this process cannot go on; another one may.
        """
        work = asyncio.create_task(self._take_part(stop))
        patience = asyncio.create_task(self._lose_patience(stop))
        try:
            await asyncio.wait({work, patience}, return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else self._ended
        finally:
            patience.cancel()
            work.cancel()
            await asyncio.wait({work})

    async def _lose_patience(self, stop: asyncio.Event) -> None:
        """Return when this process has to end, whatever it waits for."""
        await stop.wait()
        if self.greeting.coordinator:
            await asyncio.sleep(self.linger_s + _GRACE_S)
        self.log.info("left", reason="told to stop")

    async def _take_part(self, stop: asyncio.Event) -> RunState | None:
        await self._greet()
        await self._send_again()
        stopped = asyncio.create_task(stop.wait())
        stopped.add_done_callback(self._wake)
        poll: asyncio.Task[NextReply] | None = None
        try:
            while not self._has_ended() and not self._may_leave(stop):
                if poll is None:
                    poll = asyncio.create_task(self._ask())
                    poll.add_done_callback(self._wake)
                await self._woken.wait()
                self._woken.clear()
                if self._training is not None and self._training.future.done():
                    await self._finish_training()
                if poll.done():
                    reply, poll = poll.result(), None
                    await self._handle(reply)
        finally:
            stopped.cancel()
            if poll is not None:
                poll.cancel()
            self._trainer.shutdown(wait=False, cancel_futures=True)
            for driver in self._live.values():
                driver.store.close()
        return self._ended

    def _has_ended(self) -> bool:
        """Whether the one run is over, and its last sum recomputed where that is due."""
        waits = any(driver.is_recomputing for driver in self._live.values())
        return self._ended is not None and not (waits and self._lingers())

    def _may_leave(self, stop: asyncio.Event) -> bool:
        """Whether this process is told to stop and no round loses by it what it counts on.

        It stays, for a while, to submit what it trains and to help open what it has submitted.
        """
        if not stop.is_set():
            return False
        lingers = self._lingers()
        counted_on = any(one.has_submitted and not one.is_over for one in self._live.values())
        is_needed = counted_on or self._training is not None
        return not (is_needed and lingers)

    def _lingers(self) -> bool:
        """Whether this process, which is about to leave, may stay a while; nothing new begins."""
        if self._leave_at is None:
            self._leave_at = monotonic() + self.linger_s
            asyncio.get_running_loop().call_later(self.linger_s, self._wake, None)
            self.log.info("leaving", within_s=self.linger_s)
        return monotonic() < self._leave_at

    def _wake(self, _done: object) -> None:
        self._woken.set()

    async def _greet(self) -> None:
        is_new = await self.greeting.say(self.link)
        if is_new:
            self._sequence = 0  # another process of the coordinator numbers from the start
        self.learner.adopt(self.greeting.roster)
        if is_new:
            for run in sorted(self.runs):
                if await asyncio.to_thread(self.learner.takes_part_in, run):
                    standpoint = await asyncio.to_thread(self.learner.standpoint, run)
                    await self._say_settled(run, standpoint)

    async def _ask(self) -> NextReply:
        """Ask for the next message; says Hello again where the coordinator has forgotten us."""
        while True:
            try:
                reply = await self.link.next(
                    NextCall(
                        incarnation=self.greeting.incarnation,
                        after_sequence=self._sequence,
                        wait_s=WAIT_S,
                    )
                )
            except NotNowError as error:
                if error.remote_code != "HELLO_FIRST":
                    raise
                await self._greet()
                continue
            if reply.incarnation == self.greeting.coordinator:
                return reply
            await self._greet()

    async def _handle(self, reply: NextReply) -> None:
        match reply.envelope:
            case None:
                return
            case ProtocolEnvelope() as envelope:
                await self._guarded(self._on_protocol(envelope))
            case ClosedEnvelope() as envelope:
                await self._guarded(self._on_closed(envelope))
            case _:
                assert_never(reply.envelope)
        self._sequence = reply.sequence

    async def _guarded(self, work: Coroutine[object, object, None]) -> None:
        """Do one piece of work; what goes wrong in it ends the attempt, not the silo."""
        heartbeat = asyncio.create_task(self.greeting.keep_alive(self.link))
        try:
            await work
        except RemoteError as error:
            # Too late, or against the protocol: the attempt is lost to this silo, as a dropout.
            self.metrics.rounds.labels("refused").inc()
            self.log.warning("refused", code=error.remote_code, reason=str(error))
        except (SecAggError, LearningError) as error:
            self.metrics.rounds.labels("left").inc()
            code = getattr(error, "code", type(error).__name__)
            self.log.warning("left-attempt", code=code, reason=str(error))
        except ServiceError:
            raise  # this process cannot go on
        except Exception as error:  # noqa: BLE001 - a bug costs an attempt, not the silo
            self.log.error(  # noqa: TRY400 - a traceback's text may quote values
                "bug", code=type(error).__name__, where=where(error)
            )
        finally:
            heartbeat.cancel()

    async def _on_protocol(self, envelope: ProtocolEnvelope) -> None:
        attempt = AttemptId(run=envelope.run, round=envelope.round, attempt=envelope.attempt)
        if is_ledger(envelope.message):
            await self._on_ledger(attempt, LedgerNotice.decode(envelope.message))
            return
        message = self._opened(envelope, attempt)
        driver = await self._driver(attempt, message)
        if driver is None or driver.has_handled(envelope.message):
            return
        try:
            if isinstance(message, StateNotice) and isinstance(driver.round, SiloRound):
                # An attempt may be opened ahead: only now is the last round's result settled.
                standpoint = await asyncio.to_thread(self.learner.standpoint, attempt.run)
                driver.round.standpoint = standpoint
            outcome = await driver.receive(message, envelope.vectors)
            await self._follow(driver, outcome)
        except (ServiceError, SecAggError, LearningError):
            raise
        except Exception as error:
            await self._refuse(driver, error)  # a bug: the others need not wait for this silo
            raise
        finally:
            if isinstance(driver.round, SiloRound) and driver.round.evidence:
                await asyncio.to_thread(
                    evidence.keep_evidence, self._cases, tuple(driver.round.evidence), driver.log
                )
                await self._leave_run(attempt.run)
            if not driver.is_live:
                driver.store.close()

    @property
    def _cases(self) -> Path:
        return self.directory.parent / evidence.FOLDER

    async def _leave_run(self, run: RunId) -> None:
        """Contribute nothing more to a run whose coordinator is proven to lie."""
        if run in self._accused:
            return
        self._accused.add(run)
        for attempt, driver in list(self._live.items()):
            if attempt.run == run and not driver.is_over:
                del self._live[attempt]
                driver.store.close()
                with suppress(RemoteError):  # the attempt may be over there
                    await self._refuse(driver, CoordinatorAccusedError(run))

    async def _on_ledger(self, attempt: AttemptId, notice: LedgerNotice) -> None:
        """Take what the coordinator's privacy ledger has come to, and answer with its head."""
        answer = await asyncio.to_thread(self.learner.ledgers.receive, notice)
        if answer.code:
            self._refused.add(notice.run)
            self.log.warning("ledger-refused", code=answer.code, reason=answer.reason)
        await self._submit(attempt, answer)

    def _opened(self, envelope: ProtocolEnvelope, attempt: AttemptId) -> ServerMessage:
        """The message in an envelope, if it belongs there and its vectors are not too long."""
        message = decode_message(envelope.message)
        if not isinstance(message, ServerMessage):
            raise InvalidRequestError(f"a coordinator does not send {type(message).__name__}")
        if isinstance(message, RoundOpen) and message.parameters.attempt_id != attempt:
            raise InvalidRequestError(f"an opening of another attempt came as {attempt}")
        expected = {(attempt, item.name) for item in attachments(message)}
        for reference in envelope.vectors:
            vector = reference.vector
            owner = AttemptId(run=vector.run, round=vector.round, attempt=vector.attempt)
            if (owner, vector.name) not in expected:
                raise InvalidRequestError(f"{message.LABEL} does not come with {vector}")
            if reference.nbytes > self.policy.max_state_bytes:
                raise InvalidRequestError(
                    f"{reference.vector} has {reference.nbytes} bytes; this silo's policy allows "
                    f"{self.policy.max_state_bytes}"
                )
        return message

    async def _driver(self, attempt: AttemptId, message: ServerMessage) -> AttemptDriver | None:
        """The attempt's driver: the live one, a new one, or one that recalls the journal."""
        if attempt in self._live:
            return self._live[attempt]
        is_known = self.history.has(attempt, JournalEvent.OPENED)
        if is_known or (isinstance(message, AbandonRequest) and self._may_promise(attempt)):
            return self._recall(attempt)
        if not isinstance(message, RoundOpen) or self._leave_at is not None:
            return None
        self._drop_finished(opened=attempt)
        await self._admit(message)
        self.runs.add(attempt.run)
        members = await asyncio.to_thread(self.learner.members, message)
        self._live[attempt] = self._begin(attempt, members)
        self._forget_attempts()
        await self._shorten_journal()
        return self._live[attempt]

    def _may_promise(self, attempt: AttemptId) -> bool:
        """Whether to say that nothing was opened in an attempt that never reached this silo.

        A coordinator that has lost its logbook waits for that. Each promise stays in the journal,
        so runs that this silo has never met get a few.
        """
        if attempt.run in self.runs:
            return True
        self._strange_promises += 1
        return self._strange_promises <= _MOST_STRANGE_PROMISES

    def _drop_finished(self, opened: AttemptId) -> None:
        """Let go of attempts that are over or overtaken.

        Overtaken are others of the round that is opened anew, those of another run, and rounds of
        long ago in which nothing was submitted: a coordinator that gave them up owes no notice.

        Raises:
            ReplayError: two other rounds are open; one may run while the next exchanges keys.
        """
        for attempt, driver in list(self._live.items()):
            is_same = (attempt.run, attempt.round) == (opened.run, opened.round)
            is_stale = attempt.round < opened.round - 1 and not driver.has_submitted
            is_recent = attempt.round > opened.round - _MOST_RECOMPUTED
            if driver.is_recomputing and is_recent and attempt.run == opened.run:
                continue
            if driver.is_over or is_same or is_stale or attempt.run != opened.run:
                if driver.is_recomputing:
                    driver.log.warning("not-recomputed", reason="the sum was not shown in time")
                driver.store.close()
                del self._live[attempt]
        others = sorted(attempt for attempt, driver in self._live.items() if not driver.is_over)
        if len(others) >= MOST_OPEN_ROUNDS:
            rounds = ", ".join(map(str, others))
            raise ReplayError(f"{opened} was opened while {rounds} are open")

    def _begin(self, attempt: AttemptId, members: frozenset[int] | None) -> AttemptDriver:
        """A live round: this process makes its secrets."""
        store = FileVectorStore(self._folder(attempt))
        protocol = SiloRound(
            seat=self.seat,
            identity=self.identity,
            roster=self.greeting.roster,
            policy=self.policy,
            history=self.history,
            store=store,
            rng=self.rng,
            members=members,
        )
        return self._make_driver(attempt, protocol, store)

    def _recall(self, attempt: AttemptId) -> AttemptDriver:
        """A round of which only the journal is left."""
        store = FileVectorStore(self._folder(attempt))
        return self._make_driver(attempt, self._recalled(attempt, store), store)

    def _recalled(self, attempt: AttemptId, store: FileVectorStore) -> RecalledRound:
        return RecalledRound(
            attempt,
            seat=self.seat,
            identity=self.identity,
            roster=self.greeting.roster,
            history=self.history,
            store=store,
        )

    def _make_driver(
        self, attempt: AttemptId, protocol: SiloRound | RecalledRound, store: FileVectorStore
    ) -> AttemptDriver:
        return AttemptDriver(
            attempt=attempt,
            round=protocol,
            store=store,
            link=self.link,
            append=self.store.append_journal,
            settle=self._settle,
            recall=partial(self._recalled, attempt, store),
            log=self.log.bind(run=attempt.run.hex, round=attempt.round, attempt=attempt.attempt),
        )

    async def _admit(self, message: RoundOpen) -> None:
        """Check the plan and the data; a refusal is told to the coordinator by its code."""
        try:
            await asyncio.to_thread(self._check_coordinator, message.parameters.run)
            await asyncio.to_thread(self.learner.admit, message)
        except LearningError as error:
            self._refused.add(message.parameters.run)
            refusal = Refusal(
                ctx=message.parameters.ctx(),
                seat=self.seat,
                code=_code(error),
                reason=_told(error),
            )
            await self._submit(message.parameters.attempt_id, signed(refusal, self.identity))
            raise

    def _check_coordinator(self, run: RunId) -> None:
        if run in self._accused or evidence.COORDINATOR in evidence.accused(self._cases, run):
            self._accused.add(run)
            raise CoordinatorAccusedError(run)

    async def _follow(self, driver: AttemptDriver, outcome: Outcome | None) -> None:
        match outcome:
            case None | Aborted():
                return
            case TrainingWanted():
                assert isinstance(driver.round, SiloRound)  # a recalled round wants no training
                state = await asyncio.to_thread(driver.state)
                loop = asyncio.get_running_loop()
                coins = driver.round.public_coins
                future = loop.run_in_executor(
                    self._trainer, self.learner.train, outcome.parameters, state, coins
                )
                if self._training is not None:
                    self._training.future.cancel()  # of an attempt that is over
                future.add_done_callback(self._wake)
                self._training = _Training(driver, future, monotonic())
                driver.log.info("training")
            case _:
                assert_never(outcome)

    async def _settle(self, driver: AttemptDriver, aggregate: Aggregate) -> None:
        """Take the server's step and say so; later rounds must have the state that it gives.

        It is said before the journal closes the submission: a process that is killed in between is
        told the result again.
        """
        state = await asyncio.to_thread(driver.state)
        await asyncio.to_thread(self.learner.settle, aggregate, state)
        driver.log.info("settled", survivors=aggregate.survivors)
        self.metrics.rounds.labels("settled").inc()
        standpoint = await asyncio.to_thread(self.learner.standpoint, driver.attempt.run)
        for attempt, live in self._live.items():
            if attempt.run == driver.attempt.run and isinstance(live.round, SiloRound):
                live.round.standpoint = standpoint
        await self._say_settled(driver.attempt.run, standpoint)

    async def _say_settled(self, run: RunId, standpoint: Standpoint | None) -> None:
        """Sign which state follows from this silo's last round, for silos that were away."""
        if standpoint is None:
            return
        settled = standpoint.settled(
            federation=self.greeting.roster.federation,
            run=run,
            seat=self.seat,
            identity=self.identity,
        )
        with suppress(RemoteError):  # the coordinator needs it no more; the sum is settled anyway
            await self._submit(AttemptId(run=run, round=standpoint.round, attempt=0), settled)

    async def _finish_training(self) -> None:
        """Contribute what was trained, or go late if training failed or took too long."""
        training, self._training = self._training, None
        if training is None or training.future.cancelled():
            return
        driver, error = training.driver, training.future.exception()
        self.metrics.training.observe(monotonic() - training.since)
        protocol = driver.round
        is_awaited = isinstance(protocol, SiloRound) and protocol.phase is Phase.MASK
        if error is not None:
            known = str(error) if isinstance(error, LearningError) else ""
            driver.log.error(
                "training-failed", code=type(error).__name__, reason=known, where=where(error)
            )
        if not is_awaited or self._live.get(driver.attempt) is not driver:
            driver.log.info("late", reason="training ended after the round went on without it")
            return
        assert isinstance(protocol, SiloRound)  # is_awaited says so
        await self._guarded(self._contribute(driver, protocol, training.future, error))

    async def _contribute(
        self,
        driver: AttemptDriver,
        protocol: SiloRound,
        future: "asyncio.Future[_Integers]",
        error: BaseException | None,
    ) -> None:
        if error is None:
            effects = await asyncio.to_thread(protocol.contribute, future.result())
            await self._follow(driver, await driver.carry_out(effects))
            return
        await driver.carry_out(protocol.go_late())
        await self._refuse(driver, error)

    async def _refuse(self, driver: AttemptDriver, error: BaseException) -> None:
        """Tell the coordinator that nothing more comes in this attempt, and why."""
        if isinstance(driver.round, SiloRound):
            refusal = Refusal(
                ctx=driver.round.parameters.ctx(),
                seat=self.seat,
                code=_code(error),
                reason=_told(error),
            )
            await self._submit(driver.attempt, signed(refusal, self.identity))

    async def _on_closed(self, envelope: ClosedEnvelope) -> None:
        """The run is over: keep its model, the same file at every silo."""
        takes_part = await asyncio.to_thread(self.learner.takes_part_in, envelope.run)
        if not takes_part and envelope.run not in self._refused:
            return
        log = self.log.bind(run=envelope.run.hex)
        log.info("run-ended", state=envelope.state.value, reason=envelope.reason)
        self._refused.discard(envelope.run)
        if not takes_part:
            if self.once:
                self._ended = envelope.state
            return
        if envelope.round > 0 and envelope.run not in self._accused:
            state = self.learner.own_state(envelope.run, envelope.round)
            is_own = state is not None
            if state is None:
                newest = VectorId(run=envelope.run, round=0, attempt=0, name=STATE)
                state = await self.link.fetch(newest, max_bytes=self.policy.max_state_bytes)
            path = await asyncio.to_thread(
                self.learner.release, envelope.run, state, name=envelope.name, is_own=is_own
            )
            log.info("model-kept", file=str(path), recomputed_here=is_own)
        await asyncio.to_thread(self.learner.end, envelope.run)
        self._forget_attempts()
        if self.once:
            self._ended = envelope.state

    async def _send_again(self) -> None:
        """After a restart: send again what may not have arrived, byte for byte (SA1 spec 3.5)."""
        for attempt in self._open_submissions():
            if self.history.has(attempt, JournalEvent.REFUSED):
                continue
            driver = self._recall(attempt)
            again = resend(self.history, attempt, JournalEvent.SUBMITTED)
            try:
                await driver.carry_out([again])
            except (RemoteError, KeyError) as error:
                driver.log.info("not-taken-again", reason=str(error))
            finally:
                driver.store.close()
        self._forget_attempts()

    async def _submit(self, attempt: AttemptId, message: Refusal | LedgerAnswer | Settled) -> None:
        await self.link.submit(
            SubmitCall(
                run=attempt.run,
                round=attempt.round,
                attempt=attempt.attempt,
                message=message.encode(),
            )
        )

    def _open_submissions(self) -> list[AttemptId]:
        """Attempts with a masked vector of this silo whose fate it does not know."""
        return [
            attempt for run in sorted(self.runs) for attempt in self.history.open_submissions(run)
        ]

    def _folder(self, attempt: AttemptId) -> Path:
        return self.directory / f"{attempt.run.hex}-{attempt.round}-{attempt.attempt}"

    def _forget_attempts(self) -> None:
        """Delete the vectors of attempts that are over; open submissions keep theirs."""
        kept = {self._folder(attempt) for attempt in self._open_submissions()}
        kept |= {self._folder(attempt) for attempt in self._live}
        for folder in self.directory.iterdir():
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    async def _shorten_journal(self) -> None:
        """Every now and then, reduce what is long settled to its summary."""
        self._opened_here += 1
        if self._opened_here % _SHORTENED_EVERY == 0:
            lines = [decode_line(line) for line in await asyncio.to_thread(self.store.journal)]
            short = self.history.summarize(lines)
            await asyncio.to_thread(self.store.replace_journal, [one.encode() for one in short])


class CoordinatorAccusedError(LearningError):
    """This silo holds evidence against the coordinator."""

    def __init__(self, run: RunId) -> None:
        super().__init__(
            f"this silo holds evidence that the coordinator lied in run {run}; it takes no part "
            "in it any more"
        )


def _code(error: BaseException) -> str:
    """The code that the coordinator is told: one, whatever it is about the data that does not fit.

    Whether a column has a cell that is no number, or rows are too many, is an answer about them.
    """
    return DataError.__name__ if isinstance(error, _OF_DATA) else type(error).__name__


def _told(error: BaseException) -> str:
    """What the coordinator is told of an error: nothing that may speak of this silo's data.

    A schema's problems name columns and count cells, a weight's say whether rows are too few or too
    many, a budget's what other runs have spent, and a foreign error's text may quote anything; they
    stay in this silo's own log.
    """
    if isinstance(error, BudgetExhaustedError):
        return SPENT
    if isinstance(error, _OF_DATA):
        return "this silo's data or update cannot be used; its own log says why"
    return str(error)[:2000] if isinstance(error, LearningError) else "an error at this silo"

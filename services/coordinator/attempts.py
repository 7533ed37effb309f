"""The attempts of one run: opened, found on disk after a restart, kept for whom they still concern.

Each attempt has a folder with its logbook and its vectors. How an attempt goes is its driver's
affair, which one comes next the run's.
"""

import asyncio
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from fl.privacy import central_noise
from fl.rounds import RunPlan
from secagg.canonical import peek_label
from secagg.errors import SecAggError
from secagg.ids import AttemptId, RunId
from secagg.keys import IdentityKey
from secagg.messages import Abandon, Result
from secagg.parameters import RoundParameters
from secagg.server import PhaseDeadlines, ServerRound
from services.config import Deadlines
from services.coordinator.attempt import AttemptDriver
from services.coordinator.hub import Hub
from services.coordinator.ledger import RunLedger
from services.coordinator.logbook import Event, Logbook, has_logbook
from services.coordinator.published import PublishedSum
from services.coordinator.recovery import Recovery
from services.errors import CorruptError
from services.observe.logs import Logger
from services.storage.blobs import FileVectorStore
from services.wire.calls import Envelope, ProtocolEnvelope

ATTEMPTS: Final = "attempts"
# The one that is open, the one before it, and the one that is opened ahead.
_KEPT_ATTEMPTS: Final = 3
# Sums that are kept for survivors who have been away since.
_MOST_SUMS: Final = 64


@dataclass(slots=True, kw_only=True)
class Attempts:
    """One run's attempts, by round and attempt.

    Attributes:
        directory: holds a folder for each.
        changed: called after each change that an operator can see.
        hold: raises LeaseLostError if another coordinator has taken over.
        ledger: of a run with a privacy plan.
        live: the open attempt and the one before it.
        recoveries: attempts of an earlier process that cannot go on.
        sums: attempts of an earlier process that have ended well.
    """

    run: RunId
    plan: RunPlan
    hub: Hub
    signing_key: IdentityKey
    deadlines: Deadlines
    directory: Path
    changed: Callable[[], None]
    hold: Callable[[], None]
    log: Logger
    ledger: RunLedger | None = None
    live: dict[tuple[int, int], AttemptDriver] = field(default_factory=dict)
    recoveries: dict[tuple[int, int], Recovery] = field(default_factory=dict)
    sums: dict[tuple[int, int], PublishedSum] = field(default_factory=dict)
    _shows: set["asyncio.Task[None]"] = field(default_factory=set)

    def open(
        self,
        parameters: RoundParameters,
        seats: tuple[int, ...],
        abandons: tuple[Abandon, ...],
    ) -> AttemptDriver:
        """Open an attempt with those of the seats that are in the roster in force."""
        folder, presence = self.folder(parameters.round, parameters.attempt), self.hub.presence
        silos = {seat.index: seat.silo for seat in self.hub.roster.seats if seat.index in seats}
        incarnations = {seat: presence.incarnation(silo) for seat, silo in silos.items()}
        driver = self._make(
            parameters,
            incarnations,
            FileVectorStore(folder),
            Logbook(folder),
            abandons=abandons,
        )
        driver.log.info("attempt", kind=parameters.kind, cohort=tuple(silos))
        self.changed()
        return driver

    def restore(
        self, committed: int, expected: Callable[[int, int], RoundParameters | None]
    ) -> list[AttemptDriver]:
        """Find what an earlier process left; returns the attempts that go on.

        Call it before the silos can call.

        Args:
            committed: the last round whose step is taken.
            expected: what an attempt of this round would be made of now; None for no attempt.
        """
        folders: dict[int, list[tuple[int, Path]]] = {}
        for folder in self.directory.glob(f"{ATTEMPTS}/*-*"):
            number, attempt = map(int, folder.name.split("-"))
            folders.setdefault(number, []).append((attempt, folder))
        resumed = []
        for number, tries in sorted(folders.items()):
            attempt, folder = max(tries)  # an earlier one has failed
            found: AttemptDriver | PublishedSum | None = None
            try:
                if has_logbook(folder) and (logbook := Logbook(folder)).found:
                    if number <= committed:
                        found = self._restore_sum(number, attempt, logbook)
                    else:
                        found = self._restore_attempt(expected(number, attempt), logbook, folder)
            except (CorruptError, SecAggError) as error:
                self.log.error("attempt-lost", round=number, attempt=attempt, reason=str(error))  # noqa: TRY400 - a damaged file, no bug
            if isinstance(found, AttemptDriver):
                resumed.append(found)
            for _, other in tries:
                if other != folder or found is None:
                    shutil.rmtree(other, ignore_errors=True)
        return resumed

    def _restore_sum(self, number: int, attempt: int, logbook: Logbook) -> PublishedSum | None:
        """Tell a result of an earlier process again, if it published one."""
        if (result := logbook.result) is None:
            return None
        opening = logbook.opening
        published = PublishedSum(
            attempt=opening.message.parameters.attempt_id,
            result=result,
            cohort={seat: self.hub.mailbox(seat) for seat in opening.cohort},
            store=FileVectorStore(self.folder(number, attempt)),
        )
        published.post()
        self.sums[number, attempt] = published
        return published

    def _restore_attempt(
        self, expected: RoundParameters | None, logbook: Logbook, folder: Path
    ) -> AttemptDriver | None:
        """Take an attempt up again; None if nothing can be done with it."""
        opening = logbook.opening
        parameters = opening.message.parameters
        if parameters != expected:
            return None
        driver = self._make(
            parameters,
            opening.incarnations,
            FileVectorStore(folder),
            logbook,
            abandons=opening.message.abandons,
        )
        driver.replay()
        driver.log.warning("resumed", phase=driver.phase.value)
        return driver

    def _make(
        self,
        parameters: RoundParameters,
        incarnations: Mapping[int, bytes],
        store: FileVectorStore,
        logbook: Logbook,
        *,
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
            changed=self.changed,
            hold=self.hold,
            release=None if self.ledger is None else partial(self._release, parameters),
            noise=central_noise(self.plan),
            log=self.log.bind(round=parameters.round, attempt=parameters.attempt),
        )
        self.live[parameters.round, parameters.attempt] = driver
        return driver

    async def _release(self, parameters: RoundParameters, survivors: tuple[int, ...]) -> None:
        """Settle the ledger with the survivors before their sum is opened."""
        assert self.ledger is not None  # only then a driver releases
        await asyncio.to_thread(self.hold)
        await self.ledger.release(parameters, survivors, wait_s=self.deadlines.survivors_s)

    def recover(self, number: int, attempt: int, seats: tuple[int, ...]) -> Recovery | None:
        """Ask the silos to abandon what an earlier process opened; None if nothing was masked."""
        if self._is_harmless(number, attempt):
            return None
        recovery = Recovery(
            attempt=AttemptId(run=self.run, round=number, attempt=attempt),
            roster=self.hub.roster,
            cohort={seat: self.hub.mailbox(seat) for seat in seats},
        )
        self.recoveries[number, attempt] = recovery
        self.log.warning("recovering", round=number, attempt=attempt)
        recovery.ask()
        return recovery

    def _is_harmless(self, number: int, attempt: int) -> bool:
        """Whether no silo can have masked a vector in this attempt: its state was not announced."""
        if (known := self.live.get((number, attempt))) is not None:
            return known.server.may_retry
        folder = self.folder(number, attempt)
        if not has_logbook(folder):
            return False  # never opened, or lost: who knows
        try:
            logbook = Logbook(folder)
        except CorruptError:
            return False
        logbook.close()
        return not logbook.has(Event.STATE)

    def show(self, driver: AttemptDriver) -> None:
        """Let silos recompute this attempt's sum beside what comes next, if ctx asks for it."""
        if driver.parameters.redundancy:
            showing = asyncio.create_task(driver.show(self.deadlines.closed_s))
            self._shows.add(showing)
            showing.add_done_callback(self._shows.discard)

    def folder(self, number: int, attempt: int) -> Path:
        """Where an attempt's files lie."""
        return self.directory / ATTEMPTS / f"{number}-{attempt}"

    def forget(self) -> None:
        """Let go of attempts that are over, but not of a sum that a survivor has yet to check.

        A silo that was away keeps its submission open, and sits out, until it has the result
        (SA1 spec 2.5 v). What it needs stays as long as disk is reasonable to spend on it; a silo
        that was left out of a sum needs the message only, which stays in its mailbox.
        """
        for number, attempt in list(self.live)[:-_KEPT_ATTEMPTS]:
            driver = self.live[number, attempt]
            if driver.is_shown or driver.outcome is None:
                continue  # the latter is opened ahead, for when the round that is tried again ends
            is_of = partial(_is_of, run=self.run, number=number, attempt=attempt)
            is_result = partial(_is_result, is_of=is_of)
            boxes = {seat: self.hub.mailbox(seat) for seat in driver.cohort}
            for box in boxes.values():
                box.drop(lambda item: is_of(item) and not is_result(item))  # noqa: B023 - used at once
            awaited = any(boxes[seat].holds(is_result) for seat in driver.server.survivors)
            if awaited and len(self.live) <= _MOST_SUMS:
                driver.drop_uploads()
                continue
            self.live.pop((number, attempt)).close()
            shutil.rmtree(self.folder(number, attempt), ignore_errors=True)
        for (number, attempt), published in list(self.sums.items()):
            if not published.is_awaited:
                self.sums.pop((number, attempt)).store.close()
                shutil.rmtree(self.folder(number, attempt), ignore_errors=True)


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
        closed_s=deadlines.closed_s,
    )

"""How a run stands: what the store keeps of it, and what operators and silos are told."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.coordinator.attempt import AttemptDriver
from services.coordinator.hub import Hub
from services.coordinator.progress import Progress
from services.observe.logs import Logger
from services.storage.coordinator import CoordinatorStore, RunRecord
from services.wire.calls import (
    ClosedEnvelope,
    RoundReport,
    RunState,
    RunStatus,
    RunSummary,
    SeatStatus,
)

_LONGEST_REASON = 4000


@dataclass(slots=True, kw_only=True)
class Standing:
    """One run, as others see it.

    Attributes:
        record: as the store keeps it.
        reason: why the run has ended, or what it waits for.
        reports: of the committed rounds.
    """

    record: RunRecord
    hub: Hub
    store: CoordinatorStore
    log: Logger
    state: RunState = RunState.WAITING
    reason: str = ""
    reports: list[RoundReport] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)

    async def enter(self, state: RunState, reason: str = "") -> None:
        """Let the run be in this state from now on, on the disk, too."""
        self.state, self.reason = state, reason[:_LONGEST_REASON]
        await asyncio.to_thread(self.store.set_state, self.record.run, state, self.reason)
        self.log.info("run", state=state.value, reason=self.reason)
        self.progress.note()

    def explain(self, reason: str) -> None:
        """Say what the run waits for, or what went wrong last."""
        self.reason = reason
        self.progress.note()

    def tell_end(
        self, seats: tuple[int, ...], state: RunState | None = None, reason: str = ""
    ) -> None:
        """Tell silos that the run has ended, and how; with a state: for them alone."""
        last = self.reports[-1].round if self.reports else 0
        closed = ClosedEnvelope(
            run=self.record.run,
            state=state or self.state,
            reason=reason if state else self.reason,
            round=last,
            name=self.record.name,
        )
        for seat in seats:
            self.hub.mailbox(seat).post(closed)

    def summary(self) -> RunSummary:
        """The run in one line."""
        return RunSummary(
            run=self.record.run,
            name=self.record.name,
            algorithm=self.record.algorithm,
            state=self.state,
            reason=self.reason,
            rounds_done=len(self.reports),
            rounds_total=self.record.rounds_total,
            created_unix_s=self.record.created_unix_s,
        )

    def status(
        self, current: AttemptDriver | None, refusals: Mapping[int, str], after_round: int
    ) -> RunStatus:
        """Where the run stands, with the reports after a round.

        Args:
            current: the attempt that is open, or the one that was last.
            refusals: why a silo takes no part in the run.
            after_round: the last round that the caller knows.
        """
        refusals = {**refusals, **(current.refusals if current else {})}
        is_open = current is not None and current.outcome is None
        return RunStatus(
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

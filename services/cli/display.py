"""A run on the terminal: a bar for the rounds, the open phase, the silos, the latest figures."""

import sys
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from services.wire.calls import Phase, RoundReport, RunStatus, RunSummary, SeatStatus

_PHASES: Final = (Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.SURVIVORS, Phase.UNMASK)
_SHOWN_ROUNDS: Final = 5


class RunDisplay:
    """Shows a run live where somebody looks, else one line a round."""

    def __init__(self, console: Console | None = None) -> None:
        """Write to `console`, or to stdout."""
        self._console = console or Console(file=sys.stdout)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._rounds: list[RoundReport] = []
        self._told: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def update(self, status: RunStatus) -> None:
        """Show a newer status."""
        self._rounds += status.rounds
        if self._console.is_terminal:
            self._live.update(self._render(status), refresh=True)
            return
        names = {seat.seat: seat.silo for seat in status.seats}
        for report in status.rounds:
            self._print(round_line(report, status.summary.rounds_total))
            for seat, reason in sorted(report.reasons.items()):
                self._explain(names.get(seat, f"seat {seat}"), reason)
        for one in status.seats:
            self._explain(one.silo, one.refusal)
        if not status.summary.state.is_final:
            self._explain("waiting", status.summary.reason)

    def tell(self, text: str) -> None:
        """Say something beside the rounds; on stderr where a program may read stdout."""
        console = self._console if self._console.is_terminal else Console(stderr=True)
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _explain(self, who: str, reason: str) -> None:
        """Say once why a silo is not in the sum, or what the run waits for."""
        if reason and self._told.get(who) != reason:
            self._told[who] = reason
            self._print(f"  {who}: {reason}")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _render(self, status: RunStatus) -> RenderableType:
        summary = status.summary
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Text(f"{summary.name} ({summary.algorithm})", style="bold"),
            ProgressBar(total=summary.rounds_total, completed=summary.rounds_done, width=40),
            f"{summary.rounds_done}/{summary.rounds_total}",
            summary.state.value,
        )
        parts: list[RenderableType] = [head]
        if status.phase is not None:
            where = f"round {status.round}, attempt {status.attempt + 1}: {status.phase.value}"
            parts.append(Text(f"  {where}, {status.deadline_s:.0f} s left", style="dim"))
        if summary.reason:
            parts.append(Text(f"  {summary.reason}", style="yellow"))
        parts.append(Text("  ").append_text(_seats(status.seats)))
        names = {seat.seat: seat.silo for seat in status.seats}
        for report in self._rounds[-_SHOWN_ROUNDS:]:
            parts.append(Text("  " + round_line(report, summary.rounds_total)))
            parts += [
                Text(f"    {names.get(seat, f'seat {seat}')}: {reason}", style="dim")
                for seat, reason in sorted(report.reasons.items())
            ]
        return Group(*parts)


def state_line(summary: RunSummary) -> str:
    """How a run stands, and why if there is anything to say of it."""
    return f"{summary.state.value}{': ' if summary.reason else ''}{summary.reason}"


def round_line(report: RoundReport, rounds_total: int) -> str:
    """One round in one line: who was in the sum, what was learned, what it cost."""
    seconds = sum(cost.duration_s for cost in report.costs)
    received = sum(cost.received_bytes for cost in report.costs)
    sent = sum(cost.sent_bytes for cost in report.costs)
    parts = [f"round {report.round:>3}/{rounds_total}", f"{len(report.survivors)} in the sum"]
    if report.dropouts:
        parts.append(f"{len(report.dropouts)} dropped out, its masks removed by the others")
    if report.absent:
        parts.append(f"{len(report.absent)} absent")
    if "loss" in report.metrics:
        accuracy = report.metrics.get("accuracy")
        parts.append(f"loss {report.metrics['loss']:.4f}")
        parts.append("accuracy –" if accuracy is None else f"accuracy {accuracy:.4f}")
    parts.append(f"{seconds:.2f} s")
    parts.append(f"{received / 1024:.0f} KiB in, {sent / 1024:.0f} KiB out")
    return ", ".join(parts)


def _seats(seats: tuple[SeatStatus, ...]) -> Text:
    """Each silo with one mark for every phase that it has completed."""
    line = Text()
    for seat in seats:
        done = 0 if seat.completed is None else _PHASES.index(seat.completed) + 1
        style = "green" if seat.connected else "red"
        line.append(f"{seat.silo} ", style=style)
        line.append("●" * done + "○" * (len(_PHASES) - done) + "  ")
        if seat.refusal:
            line.append(f"({seat.refusal}) ", style="yellow")
    return line

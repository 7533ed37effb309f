"""A run followed without a terminal: a line a round, and why a silo is not in it, said once."""

from dataclasses import replace
from io import StringIO

from rich.console import Console

from secagg.ids import RunId
from services.cli.display import RunDisplay, round_line
from services.wire.calls import RoundReport, RunState, RunStatus, RunSummary, SeatStatus

SEATS = tuple(
    SeatStatus(seat=seat, silo=f"silo-{seat}", organization="o", connected=True)
    for seat in (1, 2, 3)
)


def report(number: int, **changes: object) -> RoundReport:
    """A round that silo 3 is not in."""
    fields: dict[str, object] = {
        "round": number,
        "attempts": 1,
        "kind": "training",
        "survivors": (1, 2),
        "dropouts": (3,),
        "absent": (),
        "metrics": {"loss": 0.5, "accuracy": 0.25},
        "costs": (),
        "committed_unix_s": 0.0,
        "reasons": {3: "its process is gone"},
        **changes,
    }
    return RoundReport(**fields)  # type: ignore[arg-type]  # checked by the tests that read it


def status(*rounds: RoundReport, reason: str = "", refusal: str = "") -> RunStatus:
    """Where the run stands."""
    summary = RunSummary(
        run=RunId(bytes(16)),
        name="a run",
        algorithm="fedavg",
        state=RunState.RUNNING,
        reason=reason,
        rounds_done=len(rounds),
        rounds_total=9,
        created_unix_s=0.0,
    )
    seats = (*SEATS[:2], replace(SEATS[2], refusal=refusal))
    return RunStatus(summary=summary, seats=seats, rounds=rounds)


def test_reasons_are_told_once_without_a_terminal() -> None:
    """Until another one comes; what the run waits for is told likewise."""
    out = StringIO()
    with RunDisplay(Console(file=out, width=80)) as display:
        display.update(status(reason="2 of 3 silos connected"))
        display.update(status(report(1), reason="2 of 3 silos connected"))
        display.update(status(report(2)))
        display.update(status(refusal="DataError: its own log says why"))
    lines = out.getvalue().splitlines()
    assert [line.strip() for line in lines if line.startswith("  ")] == [
        "waiting: 2 of 3 silos connected",
        "silo-3: its process is gone",
        "silo-3: DataError: its own log says why",
    ]
    assert len(lines) == 5


def test_what_a_task_does_not_count_has_a_dash() -> None:
    """An accuracy of 0 would be a claim; without metrics there is neither."""
    assert "loss 0.5000, accuracy 0.2500, " in round_line(report(1), 9)
    assert "loss 0.5000, accuracy –, " in round_line(report(1, metrics={"loss": 0.5}), 9)
    assert "accuracy" not in round_line(report(1, metrics={}), 9)


def test_brackets_in_a_reason_are_shown() -> None:
    """A reason that names a TOML table is no markup."""
    out = StringIO()
    RunDisplay(Console(file=out, width=200)).update(status(reason="add [privacy] to them"))
    assert "waiting: add [privacy] to them" in out.getvalue()

"""`secagg run`: what an operator does with runs."""

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from services.cli.options import (
    AsJson,
    Bundle,
    Config,
    Directory,
    Name,
    enroll_here,
    install_here,
    show,
)

if TYPE_CHECKING:
    from secagg.ids import RunId
    from services.wire.calls import RunState

app = typer.Typer(
    no_args_is_help=True, help="Start and follow runs, with an operator's certificate."
)

Operator = Annotated[
    Path,
    typer.Option("--operator", help="operator.toml: coordinator and certificate folder."),
]
Run = Annotated[str, typer.Argument(help="The run's id, or how it begins.")]
Silo = Annotated[str, typer.Argument(help="The silo's name in the roster.")]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        help="Go on with this run, which failed or was stopped: its id, or how it begins.",
    ),
]

STOPPED_EXIT: Final = 10
BUDGET_EXIT: Final = 11
OPERATOR_FILE: Final = Path("operator.toml")
_T = TypeVar("_T")


@app.command(epilog="Example: secagg run enroll -d alice -n alice")
def enroll(directory: Directory, name: Name, as_json: AsJson = False) -> None:
    """Make an operator's keys and signing request."""
    from services.security.identity import Role

    enroll_here(directory, name, Role.OPERATOR, as_json=as_json)


@app.command(epilog="Example: secagg run install -d alice authority/issued/alice")
def install(directory: Directory, bundle: Bundle) -> None:
    """Put the authority's answer beside the operator's keys."""
    install_here(bundle, directory)


@app.command(epilog="Example: secagg run start --config run.toml --watch")
def start(
    config: Config,
    operator: Operator = OPERATOR_FILE,
    watch_too: Annotated[bool, typer.Option("--watch", help="Stay and follow the run.")] = False,
    resume: Resume = None,
    as_json: AsJson = False,
) -> None:
    """Start a run; prints its id. The coordinator takes one run at a time.

    What a crash interrupts goes on by itself; --resume is for a run that has ended too early. Its
    settings must be those it began with, and it goes on after its last complete round.
    """
    from services.cli.operator import load_run
    from services.plans import warnings

    for warning in warnings(load_run(config)[0]):
        typer.echo(f"note: {warning}", err=True)
    run, state = _do(_start(config, operator, resume))
    show({"run": run.hex, "state": state}, run.hex, as_json=as_json)
    if not watch_too:  # on stderr: a script reads nothing but the id on stdout
        short = run.hex[:8]
        typer.echo(
            f"{state}; follow it with `secagg run watch {short}`, end it with "
            f"`secagg run stop {short}`",
            err=True,
        )
    else:
        raise typer.Exit(_do(_watch(operator, run.hex, as_json=as_json)))


@app.command(epilog="Example: secagg run watch 0f3a… --operator operator.toml")
def watch(run: Run, operator: Operator = OPERATOR_FILE, as_json: AsJson = False) -> None:
    """Follow a run to its end. Exit code 0: finished, 1: failed, 10: stopped, 11: budget spent."""
    raise typer.Exit(_do(_watch(operator, run, as_json=as_json)))


@app.command("list", epilog="Example: secagg run list --json")
def list_runs(operator: Operator = OPERATOR_FILE, as_json: AsJson = False) -> None:
    """List all runs, the newest first: id, state, rounds, algorithm or kind of query, name."""
    from services.cli.operator import run_client

    async def fetch() -> list[dict[str, object]]:
        async with run_client(operator) as client:
            return [_plain(asdict(summary)) for summary in await client.list_runs()]

    runs = _do(fetch())
    lines = [
        f"{one['run']}  {one['state']:<9} {one['rounds_done']}/{one['rounds_total']}  "
        f"{one['algorithm']:<8}  {one['name']}"
        for one in runs
    ]
    show({"runs": runs}, "\n".join(lines) or "no runs yet", as_json=as_json)


@app.command("show", epilog="Example: secagg run show 0f3a… --json")
def show_run(run: Run, operator: Operator = OPERATOR_FILE, as_json: AsJson = False) -> None:
    """Show a run with all its rounds and its settings."""
    from services.cli.display import round_line, state_line
    from services.cli.operator import find_run, run_client

    async def fetch() -> tuple[dict[str, object], str]:
        async with run_client(operator) as client:
            reply = await client.show_run(await find_run(client, run))
        summary = reply.status.summary
        lines = [f"{summary.name} ({summary.algorithm}): {state_line(summary)}"]
        lines += [round_line(report, summary.rounds_total) for report in reply.status.rounds]
        facts = _plain(asdict(reply.status)) | {"config": reply.config.decode()}
        return facts, "\n".join([*lines, "", reply.config.decode()])

    facts, text = _do(fetch())
    show(facts, text, as_json=as_json)


@app.command(epilog="Example: secagg run stop 0f3a… --reason 'wrong learning rate'")
def stop(
    run: Run,
    operator: Operator = OPERATOR_FILE,
    reason: Annotated[str, typer.Option("--reason", help="Why; all silos are told.")] = "",
) -> None:
    """End a run; the model of its last complete round stays."""
    from services.cli.display import state_line
    from services.cli.operator import find_run, run_client

    async def ask() -> str:
        async with run_client(operator) as client:
            summary = await client.stop_run(await find_run(client, run), reason)
        if summary.state.is_final:
            return state_line(summary)
        return f"asked to stop; {summary.state.value} until its open attempt has ended"

    typer.echo(_do(ask()))


@app.command(epilog="Example: secagg run admit 0f3a… hospital-f")
def admit(run: Run, silo: Silo, operator: Operator = OPERATOR_FILE) -> None:
    """Let a silo of the roster join a run that goes on, from its next attempt."""
    typer.echo(_do(_change(operator, run, silo, "admit")))


@app.command(epilog="Example: secagg run dismiss 0f3a… hospital-f --lost")
def dismiss(
    run: Run,
    silo: Silo,
    operator: Operator = OPERATOR_FILE,
    lost: Annotated[
        bool,
        typer.Option(
            "--lost", help="It did not leave in good order: control variates are renewed."
        ),
    ] = False,
) -> None:
    """Invite a silo to a run no more, from its next attempt; the run ends for it."""
    typer.echo(_do(_change(operator, run, silo, "lost" if lost else "dismiss")))


@app.command(epilog="Example: secagg run fetch 0f3a… --output model.safetensors")
def fetch(
    run: Run,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the file.")],
    operator: Operator = OPERATOR_FILE,
) -> None:
    """Fetch what a run has released last: its model, or the sums of a statistics run."""
    from services.cli.operator import fetch_model
    from services.files import write_atomic

    data = _do(fetch_model(operator, run))
    write_atomic(output, data)
    typer.echo(f"{output}: {len(data)} bytes")


async def _start(config: Path, operator: Path, resume: str | None) -> "tuple[RunId, str]":
    from services.cli.operator import run_client, run_to_start, start_run

    async with run_client(operator) as client:
        run = await run_to_start(client, resume)
        return run, (await start_run(client, config, run)).state.value


async def _change(operator: Path, run: str, silo: str, change: str) -> str:
    from services.cli.operator import find_run, run_client
    from services.wire.calls import MemberChange

    async with run_client(operator) as client:
        found = await find_run(client, run)
        await client.change_member(found, silo, MemberChange(change))
        seats = (await client.show_run(found)).status.seats
    if change != MemberChange.ADMIT.value:
        return f"{silo} is not invited from the next attempt on"
    is_away = not any(seat.connected for seat in seats if seat.silo == silo)
    return f"{silo} is invited from the next attempt on" + (
        "; it is not connected now" if is_away else ""
    )


async def _watch(operator: Path, run: str, *, as_json: bool) -> int:
    from services.cli.display import RunDisplay, state_line
    from services.cli.operator import find_run, follow, run_client

    last = None
    async with run_client(operator) as client:
        found = await find_run(client, run)
        with RunDisplay() as display:
            async for status in follow(client, found, display.tell):
                last = status.summary
                if as_json:
                    typer.echo(json.dumps(_plain(asdict(status)), default=str))
                else:
                    display.update(status)
    assert last is not None  # `follow` gives at least the final status
    if not as_json:
        typer.echo(state_line(last))
    return exit_code(last.state)


def exit_code(state: "RunState") -> int:
    """What a command that followed a run to its end exits with."""
    return {"finished": 0, "stopped": STOPPED_EXIT, "budget_exhausted": BUDGET_EXIT}.get(state, 1)


def _do(work: Coroutine[object, object, _T]) -> _T:
    return asyncio.run(work)


def _plain(value: dict[str, object]) -> dict[str, object]:
    """The same facts with run ids as text; enums are text already."""
    return {
        key: _plain(item) if isinstance(item, dict) and "value" not in item else _hex(item)
        for key, item in value.items()
    }


def _hex(item: object) -> object:
    raw = item.get("value") if isinstance(item, dict) else item
    return raw.hex() if isinstance(raw, bytes) else item

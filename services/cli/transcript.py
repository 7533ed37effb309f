"""`secagg transcript`: check evidence of misbehavior, offline and without trusting its author."""

from pathlib import Path
from typing import Annotated, Final

import typer

from services.cli.options import AsJson, show

app = typer.Typer(
    no_args_is_help=True, help="Check evidence that a silo or the coordinator misbehaved; offline."
)

_NOT_PROVEN: Final = 1
_UNREADABLE: Final = 2


@app.callback()
def _group() -> None:
    """Keep `verify` a command of its own."""


@app.command(
    epilog="Example: secagg transcript verify case.evidence --roster roster.json --trust trust.json"
)
def verify(
    file: Annotated[Path, typer.Argument(help="An evidence file.", show_default=False)],
    roster: Annotated[
        Path,
        typer.Option(
            "--roster", help="The roster.json that was in force then.", show_default=False
        ),
    ],
    trust: Annotated[
        Path | None,
        typer.Option("--trust", help="The trust.json whose roots must have signed the roster."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether the statements in the file prove what it claims.

    Leaves with 0 if they do, 1 if they do not, 2 if a file cannot be read. The verdict is as good
    as the roster, which names the keys: give --trust unless you know where the roster comes from.
    """
    from secagg.errors import EvidenceError
    from secagg.evidence import judge
    from services.enrollment.roster_file import load_roster, load_signed, load_trust
    from services.errors import ServiceError
    from services.evidence import load_evidence

    try:
        case = load_evidence(file)
        keys = load_roster(roster, load_trust(trust)) if trust else load_signed(roster).roster
    except ServiceError as error:
        typer.echo(f"unreadable: {error}", err=True)
        raise typer.Exit(_UNREADABLE) from error
    where = case.parameters
    facts: dict[str, object] = {
        "kind": case.kind.value,
        "run": where.run.hex,
        "round": where.round,
        "attempt": where.attempt,
    }
    place = f"run {where.run.hex}, round {where.round}, attempt {where.attempt}"
    try:
        verdict = judge(case, keys)
    except EvidenceError as error:
        text = f"not proven: {case.kind} ({place}): {error}"
        show(facts | {"proven": False, "reason": str(error)}, text, as_json=as_json)
        raise typer.Exit(_NOT_PROVEN) from error
    facts |= {"proven": True, "accused": verdict.accused, "finding": verdict.finding}
    text = f"proven: {verdict.accused}: {verdict.finding} ({place})"
    show(facts, text, as_json=as_json)

"""`secagg`: the command tree, and where an error becomes a message and an exit code."""

import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from services.cli import (
    audit,
    authority,
    coordinator,
    ledger,
    model,
    plan,
    reproduce,
    run,
    silo,
    simulate,
    stats,
    transcript,
)

app = typer.Typer(
    name="secagg",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,  # help speaks of [tables] of TOML, which markup would swallow
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: secagg demo",
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from services.release import software_version

        typer.echo(f"secagg {software_version()}")
        raise typer.Exit


@app.callback()
def _all(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the release and exit."
        ),
    ] = False,
) -> None:
    """Secure aggregation for cross-silo federated learning: nobody sees anything but the sum."""


app.add_typer(authority.app, name="authority")
app.add_typer(silo.app, name="silo")
app.add_typer(coordinator.app, name="coordinator")
app.add_typer(run.app, name="run")
app.add_typer(model.app, name="model")
app.add_typer(stats.app, name="stats")
app.add_typer(transcript.app, name="transcript")
app.add_typer(ledger.app, name="ledger")
app.command("audit", epilog="Example: secagg audit --config run.toml")(audit.audit)
app.command("plan", epilog="Example: secagg plan -n 10 -d 650 -N 5000 -T 50 --q 0.1")(plan.plan)
app.command("simulate", epilog="Example: secagg simulate --config run.toml --silos 10")(
    simulate.simulate
)
app.command("demo", epilog="Example: secagg demo")(simulate.demo)
app.command("reproduce", epilog="Example: secagg reproduce toy --quick")(reproduce.reproduce)


def main() -> None:
    """Run the command line and leave with an exit code that means something.

    0 done, 1 failed, 2 wrong usage, 130 interrupted; the others are the error's own
    (`services.errors`). A user's error never shows a traceback; anything else is a bug and does.
    """
    from fl.errors import LearningError
    from secagg.errors import SecAggError
    from services.errors import ServiceError, StorageError

    # gRPC's own lines say less than our messages, and come before them; whoever wants them asks.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without UTF-8 shows "?", and no bug
            stream.reconfigure(errors="replace")
    try:
        app()
    except ServiceError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except (LearningError, SecAggError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            raise
        hint = "check the path and its permissions"
        typer.echo(f"error: {error.filename}: {error.strerror}; {hint}", err=True)
        sys.exit(StorageError.exit_code)

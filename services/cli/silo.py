"""`secagg silo`: an organization's own process, from its keys to its part in runs."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import (
    AsJson,
    Bundle,
    Config,
    Directory,
    Name,
    enroll_here,
    install_here,
    pick_run,
    show,
    whole_id,
)

app = typer.Typer(no_args_is_help=True, help="A silo: it holds data and opens no inbound port.")


@app.command(epilog="Example: secagg silo enroll -d hospital-a -n hospital-a")
def enroll(directory: Directory, name: Name, as_json: AsJson = False) -> None:
    """Make the silo's keys and its signing request; private keys never leave the folder."""
    from services.security.identity import Role

    enroll_here(directory, name, Role.SILO, as_json=as_json)


@app.command(epilog="Example: secagg silo install -d hospital-a authority/issued/hospital-a")
def install(directory: Directory, bundle: Bundle) -> None:
    """Put the authority's answer beside the silo's keys."""
    install_here(bundle, directory)


@app.command(epilog="Example: secagg silo check --config silo.toml --run run.toml")
def check(
    config: Config,
    run: Annotated[
        Path | None,
        typer.Option("--run", help="A run's settings: checks the data against its schema too."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check everything before joining: certificate, roster, connection, disk, policy, data."""
    from services.config import SiloConfig
    from services.settings import load_config
    from services.silo.check import check_silo

    findings = check_silo(load_config(config, SiloConfig), run)
    lines = [f"{'ok ' if one.is_fine else 'BAD'}  {one.what}: {one.finding}" for one in findings]
    bad = [one for one in findings if not one.is_fine]
    show(
        {"ok": not bad, "checks": {one.what: one.finding for one in findings}},
        "\n".join(lines),
        as_json=as_json,
    )
    if bad:
        raise typer.Exit(bad[0].exit_code)


@app.command(epilog="Example: secagg silo join --config silo.toml")
def join(
    config: Config,
    once: Annotated[
        bool,
        typer.Option("--once", help="Leave when the first run has ended; exit code 1 if not well."),
    ] = False,
) -> None:
    """Stay connected and take part in every run that this silo's policy allows."""
    import asyncio

    from services.config import SiloConfig
    from services.observe.logs import configure
    from services.release import software_version
    from services.settings import load_config
    from services.silo.join import join as join_now
    from services.wire.calls import RunState

    settings = load_config(config, SiloConfig)
    configure(level=settings.log.level, style=settings.log.format)
    ended = asyncio.run(join_now(settings, software=software_version(), once=once))
    if once and ended is not RunState.FINISHED:
        raise typer.Exit(1)


@app.command(epilog="Example: secagg silo leave 0f3a… --config silo.toml")
def leave(
    run: Annotated[str, typer.Argument(help="The run's id, or how it begins.")],
    config: Config,
) -> None:
    """Make this silo's next contribution to a run its last.

    Stop `silo join` before, and start it again after.
    Only SCAFFOLD's silos have something to take with them; a dismissal is enough for the others.
    When that round is done, the operator dismisses the silo.
    """
    from contextlib import closing

    from services.config import SiloConfig
    from services.settings import load_config
    from services.silo.learner import leave as leave_run
    from services.silo.learner import open_runs
    from services.storage.silo import SiloStore

    settings = load_config(config, SiloConfig)
    with closing(SiloStore(settings.storage)) as store:
        found = whole_id(run) or pick_run(run, open_runs(store), hint="see the log of `silo join`")
        leave_run(store, found)
    typer.echo(f"the next contribution to run {found} is the last")


@app.command(epilog="Example: secagg silo status --config silo.toml")
def status(config: Config, as_json: AsJson = False) -> None:
    """Show what this silo's data set has spent and has left, its runs' files, and its evidence."""
    from dataclasses import asdict

    from services.config import SiloConfig
    from services.settings import load_config
    from services.silo.check import budget_status, evidence_files, released_models

    settings = load_config(config, SiloConfig)
    models = released_models(settings.storage)
    budget = budget_status(settings)
    lines = [str(model) for model in models] or [f"{settings.storage}: no run has ended yet"]
    lines += [str(budget)] if budget is not None else []
    cases = evidence_files(settings.storage)
    lines += [f"evidence: {path}; see `secagg transcript verify`" for path in cases]
    show(
        {
            "models": [asdict(model) for model in models],
            "budget": None if budget is None else asdict(budget),
            "evidence": [str(path) for path in cases],
        },
        "\n".join(lines),
        as_json=as_json,
    )


@app.command(epilog="Example: secagg silo forgive --config silo.toml --by 'A. Mayer, DPO'")
def forgive(
    config: Config,
    by: Annotated[
        str, typer.Option("--by", help="Who decides it; kept in said.jsonl.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Answer the privacy plans of new runs again, after eight that have charged nothing.

    The risk: whether a plan is signed is a yes or no about what the data set's budget has left, and
    a coordinator that asks often enough can find it out. Look at the runs first, in `plan-answered`
    of the log of `silo join`: were they real, and who let them fail? Nothing is deleted: the note
    says who, when and which runs, and each run's plan stays answered once.
    """
    from services.clock import utc_now
    from services.config import SiloConfig
    from services.errors import ConfigError
    from services.settings import load_config
    from services.silo.check import charged_runs
    from services.silo.ledger import LEDGERS
    from services.silo.said import forgive as forgive_runs

    settings = load_config(config, SiloConfig)
    if not by.strip():
        raise ConfigError("--by: expected who decides it")
    runs = forgive_runs(
        settings.storage / LEDGERS, charged_runs(settings), by=by.strip(), now=utc_now()
    )
    words = [f"{run}: counts no longer" for run in runs] or ["no run is in the way; nothing noted"]
    show({"forgiven": runs, "by": by.strip()}, "\n".join(words), as_json=as_json)

"""`secagg simulate` and `secagg demo`: a whole federation on one machine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.options import AsJson, Config, show

if TYPE_CHECKING:
    from fl.plan import TrainingPlan
    from fl.ports import LocalTask
    from fl.schema import FeatureSchema, Table
    from services.run_config import RunConfig, Simulation


def simulate(
    config: Config,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", help="One CSV file a silo, or one that [simulation] deals out."),
    ] = None,
    silos: Annotated[
        int, typer.Option("--silos", help="How many silos, for an own task.", min=3)
    ] = 5,
    plain: Annotated[
        bool, typer.Option("--plain", help="Sum floats instead: the reference without protection.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a training plan over silos in this process, with the very objects of a real run.

    An own task's factory gets the setting `silo`, from 1 on, beside the plan's. With the settings'
    table [simulation], one file is dealt to as many silos as it says.
    """
    from contextlib import nullcontext

    from rich.progress import Progress, TextColumn

    from fl.plan import TABULAR
    from fl.rounds import RoundFailure, RoundReport, RunStatus
    from fl.run import TrainingRun
    from fl.simulation import simulate as run_simulation
    from services.plans import build_plan
    from services.run_config import RunConfig
    from services.settings import load_config

    settings = load_config(config, RunConfig)
    files, dealing = data or [], settings.simulation
    tables = _dealt(settings, dealing, files) if dealing and settings.task.name == TABULAR else []
    count = len(tables) or (dealing.silos if dealing else len(files) or silos)
    plan = build_plan(settings, max_silos=count)
    tasks = _tables(plan, tables) if tables else _tasks(plan, files, count)
    # A bar where somebody looks, else one line a round.
    is_seen = sys.stdout.isatty() and not as_json
    bar = Progress(*Progress.get_default_columns(), TextColumn("{task.fields[loss]}"))
    row = bar.add_task(plan.algorithm, total=plan.last_round, loss="", visible=is_seen)

    def tell(outcome: RoundReport | RoundFailure, _run: TrainingRun) -> None:
        if isinstance(outcome, RoundFailure):
            typer.echo(f"round {outcome.number} failed: {outcome.reason}", err=True)
            return
        loss = "" if outcome.loss is None else f"loss {outcome.loss:.6f}"
        bar.update(row, completed=outcome.number, loss=loss)
        if not is_seen and not as_json:
            survivors = f"{len(outcome.survivors)} silos"
            shown = ", ".join(filter(None, (survivors, loss)))
            typer.echo(f"round {outcome.number}/{plan.last_round}: {shown}")

    with bar if is_seen else nullcontext():
        result = run_simulation(
            plan,
            tasks,
            secure=not plain,
            seed=plan.seed,
            on_round=tell,
            colluding=dealing.colluding if dealing else None,
        )
    losses = [report.loss for report in result.reports if report.loss is not None]
    show(
        {"status": result.status.value, "reason": result.reason, "losses": losses},
        f"{result.status.value} {result.reason}".strip(),
        as_json=as_json,
    )
    if result.status is not RunStatus.COMPLETED:
        raise typer.Exit(1)


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder under which the demo keeps its files.")
    ] = Path("runs"),
    rounds: Annotated[int, typer.Option("--rounds", min=3, help="Training rounds a run.")] = 20,
    privacy: Annotated[
        bool, typer.Option("--privacy", help="One run with differential privacy and its report.")
    ] = False,
) -> None:
    """Run a real federation on this machine: five hospitals, FedAvg and SCAFFOLD, over mTLS.

    A silo is killed in the middle of a round of both runs and comes back. With --privacy there is
    one run whose patients are protected by noise; it ends with a report and a verified ledger.
    """
    if privacy:
        from services.demo.privacy import run_privacy_demo

        raise typer.Exit(run_privacy_demo(output, rounds=rounds))
    from services.demo.main import run_demo

    raise typer.Exit(run_demo(output, rounds=rounds))


def _dealt(settings: "RunConfig", dealing: "Simulation", files: list[Path]) -> "list[Table]":
    """Read the one file and deal it to silos."""
    from fl.csvfile import CsvFile
    from fl.partition import PartitionKind, PartitionRule
    from fl.schema import FeatureSchema
    from services.errors import ConfigError

    if len(files) != 1:
        raise ConfigError(
            f"[simulation] deals out one table: expected one --data, got {len(files)}",
            hint="without [simulation], each file is a silo",
        )
    rule = PartitionRule(
        kind=PartitionKind(dealing.partition),
        silos=dealing.silos,
        similarity=dealing.similarity,
        shards=dealing.shards,
        alpha=dealing.alpha,
        least=dealing.least,
    )
    schema = FeatureSchema.parse(
        {"features": list(settings.task.features), "target": settings.task.target}
    )
    table = _read(schema, files[0])
    assert table.labels is not None  # read with its target
    column: list[str] = []
    if dealing.column is not None:
        file = CsvFile.read(files[0])
        if dealing.column not in file.header:
            raise ConfigError(
                f"simulation.column: {files[0]} has no column {dealing.column!r}",
                hint=f"it has {', '.join(file.header)}",
            )
        column = [row[file.header[dealing.column]] for row in file.rows]
    rows = rule.rows(table.labels, settings.run.seed, column)
    return [table.take(own) for own in rows]


def _read(schema: "FeatureSchema", file: Path) -> "Table":
    """Read a silo's file and tell what fills its blank cells."""
    table = schema.read_csv(file)
    for note in table.notes:
        typer.echo(f"note: {file}: {note}", err=True)
    return table


def _tables(plan: "TrainingPlan", tables: "list[Table]") -> "dict[str, LocalTask]":
    from fl.training.tabular import TabularTask

    return {
        f"silo-{place:03}": TabularTask(plan.task.settings, table)
        for place, table in enumerate(tables, start=1)
    }


def _tasks(plan: "TrainingPlan", data: list[Path], silos: int) -> "dict[str, LocalTask]":
    from fl.plan import TABULAR
    from services.errors import ConfigError

    if plan.task.name == TABULAR:
        from fl.models import TabularModel
        from fl.training.tabular import TabularTask

        if len(data) < 3:
            raise ConfigError(
                f'task = "tabular": expected --data for three silos at least, got {len(data)}',
                hint="name one CSV file a silo; --silos is for an own task",
            )
        schema = TabularModel.parse(plan.task.settings).schema
        return {
            f"silo-{place:03}": TabularTask(plan.task.settings, _read(schema, path))
            for place, path in enumerate(data, start=1)
        }
    from fl.training.custom import load_task

    return {
        f"silo-{place:03}": load_task(plan.task.name, {**plan.task.settings, "silo": place})
        for place in range(1, silos + 1)
    }

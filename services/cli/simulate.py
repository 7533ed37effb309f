"""`secagg simulate` and `secagg demo`: a whole federation on one machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.options import AsJson, Config, show

if TYPE_CHECKING:
    from fl.plan import TrainingPlan
    from fl.ports import LocalTask


def simulate(
    config: Config,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", help="One CSV file a silo, for the built-in task."),
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

    An own task's factory gets the setting `silo`, from 1 on, beside the plan's.
    """
    from fl.run import RoundFailure, RoundReport, RunStatus, TrainingRun
    from fl.simulation import simulate as run_simulation
    from services.config import RunConfig, load_config
    from services.plans import build_plan

    count = len(data) if data else silos
    plan = build_plan(load_config(config, RunConfig), max_silos=count)
    tasks = _tasks(plan, data or [], count)

    def tell(outcome: RoundReport | RoundFailure, _run: TrainingRun) -> None:
        if isinstance(outcome, RoundFailure):
            typer.echo(f"round {outcome.number} failed: {outcome.reason}", err=True)
        elif not as_json:
            loss = "" if outcome.loss is None else f", loss {outcome.loss:.6f}"
            survivors = len(outcome.survivors)
            typer.echo(f"round {outcome.number}/{plan.last_round}: {survivors} silos{loss}")

    result = run_simulation(plan, tasks, secure=not plain, seed=plan.seed, on_round=tell)
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


def _tasks(plan: "TrainingPlan", data: list[Path], silos: int) -> "dict[str, LocalTask]":
    from fl.plan import TABULAR
    from services.errors import ConfigError

    if plan.task.name == TABULAR:
        from fl.training.tabular import TabularTask

        if len(data) < 3:
            raise ConfigError(
                f'task = "tabular": expected --data for three silos at least, got {len(data)}',
                hint="name one CSV file a silo; --silos is for an own task",
            )
        return {
            f"silo-{place:03}": TabularTask.from_csv(plan.task.settings, path)
            for place, path in enumerate(data, start=1)
        }
    from fl.training.custom import load_task

    return {
        f"silo-{place:03}": load_task(plan.task.name, {**plan.task.settings, "silo": place})
        for place in range(1, silos + 1)
    }

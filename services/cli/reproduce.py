"""`secagg reproduce`: published results run again, theirs beside ours."""

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fl.reproduce.report import Report


class Name(StrEnum):
    """What can be reproduced: the names of fl.reproduce.catalog, without its imports."""

    TOY = "toy"
    HEART = "flamby-heart"
    HEART_DP = "flamby-heart-dp"
    TCGA = "flamby-tcga"
    SCAFFOLD = "scaffold-fashion"
    COMPRESSION = "compression"
    DROPOUTS = "dropouts"
    MCMAHAN = "mcmahan-mnist"
    QFFL = "qffl-adult"


def reproduce(
    names: Annotated[list[Name], typer.Argument(help="What to reproduce.", show_default=False)],
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Folder of the public data sets.")
    ] = Path("../shared/data"),
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, help="Seeds; by default as many as each one's table needs."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The short form, a minute or so.")] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for results, tables and plots.")
    ] = Path("runs/reproduce"),
) -> None:
    """Run published settings and print their figures beside ours.

    Each result is written as soon as it is there: stop with Ctrl-C and start again, and what is
    done is not done again. Leaves with 1 if a figure is not what is to be shown.
    """
    # Batches are small, and a machine's cores are better used by several commands.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    reports = [
        _one(name, data_dir=data_dir, seeds=seeds, quick=quick, output=output) for name in names
    ]
    failed = [report.name for report in reports if not report.holds]
    if failed:
        typer.echo(f"not as it should be: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def _one(name: Name, *, data_dir: Path, seeds: int | None, quick: bool, output: Path) -> "Report":
    from fl.reproduce.catalog import CATALOG
    from fl.reproduce.session import Session

    folder = output / name.value
    session = Session(
        folder,
        data=data_dir,
        tell=lambda line: typer.echo(f"  {line}", err=True),
        clock=perf_counter,
        is_quick=quick,
        seeds=seeds,
    )
    chosen = CATALOG[name.value]
    minutes = chosen.seconds[quick] / 60
    form = "; another number of seeds changes that" if seeds else ""
    typer.echo(
        f"{name.value}: {chosen.about}. About {minutes:.1f} min on one free core{form}; "
        f"{session.kept} results of earlier runs are in {folder}.",
        err=True,
    )
    report = chosen.run(session)
    typer.echo(f"{report.text()}\n")
    (folder / f"{name.value}.csv").write_text(report.csv(), "utf-8")
    for path in _plots(report, folder):
        typer.echo(f"{path}", err=True)
    return report


def _plots(report: "Report", folder: Path) -> Sequence[Path]:
    try:
        from fl.reproduce.plots import draw
    except ImportError:
        typer.echo("no plot: install the extra `demo` for matplotlib", err=True)
        return ()
    return draw(report, folder)

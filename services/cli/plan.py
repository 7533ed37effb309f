"""`secagg plan`: what a privacy plan will cost, before anything runs."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.options import AsJson, show

if TYPE_CHECKING:
    from dp.planning import NoiseRow, TighterFigure  # numpy comes with them

_EPSILONS = (1.0, 3.0, 8.0)


def plan(
    *,
    silos: Annotated[int, typer.Option("--silos", "-n", help="Silos in a round.", min=3)],
    dimension: Annotated[int, typer.Option("--dimension", "-d", help="Trained parameters.", min=1)],
    units: Annotated[
        int, typer.Option("--units", "-N", help="Records or patients in all silos.", min=1)
    ],
    rounds: Annotated[int, typer.Option("--rounds", "-T", min=1)],
    epsilon: Annotated[float, typer.Option("--epsilon", "-e", help="The target.")] = 8.0,
    delta: Annotated[float, typer.Option("--delta", help="Below one over the persons.")] = 1e-5,
    q: Annotated[float, typer.Option("--q", help="Sampling rate within a silo.")] = 1.0,
    local_steps: Annotated[int, typer.Option("--local-steps", "-K", min=1)] = 1,
    n_c: Annotated[int | None, typer.Option("--n-c", help="Colluding silos.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Show which mode fits, and the noise that targets need: nobody should train on noise."""
    from dp.errors import PrivacyError
    from dp.planning import Setting, Verdict, advise, noise_table, tighter_figures
    from secagg.parameters import threshold
    from secagg.policy import SiloPolicy
    from services.errors import ConfigError

    colluding = max((silos - 1) // 3, 1) if n_c is None else n_c
    h_min = SiloPolicy().h_min
    if colluding + h_min > silos:
        raise ConfigError(
            f"--n-c: expected at most {silos - h_min} of {silos} silos, got {colluding}: every sum "
            f"needs {h_min} honest ones"
        )
    if delta * units >= 1.0:
        typer.echo(
            f"note: delta {delta:g} is not below one over {units} persons: it would allow giving "
            "one person's data away",
            err=True,
        )
    try:
        setting = Setting(
            silos=silos,
            dimension=dimension,
            units=units,
            epsilon=epsilon,
            delta=delta,
            rounds=rounds,
            q=q,
            local_steps=local_steps,
            n_c=colluding,
            h_dp=max(threshold(silos, colluding) - colluding, 1),
        )
        advice = advise(setting)
        counts = sorted({max(rounds // 4, 1), max(rounds // 2, 1), rounds, 2 * rounds})
        table = noise_table(setting, sorted({*_EPSILONS, epsilon}), counts)
        tighter = tighter_figures(setting)
    except PrivacyError as error:
        raise ConfigError(str(error)) from error
    lines = [f"{'mode':<9}{'unit':<9}{'verdict':<9}{'z':>9}  at best"]
    for one in advice:
        z = "–" if one.verdict is Verdict.REFUSED else f"{one.z:.3f}"
        lines.append(f"{one.mode:<9}{one.unit:<9}{one.verdict:<9}{z:>9}  {one.reason}")
    lines += [*_tighter_lines(tighter, rounds), "", *_table_lines(table, delta, q)]
    rows = [
        {"epsilon": row.epsilon, "rounds": row.rounds, **asdict(one)}
        for row in table
        for one in row.modes
    ]
    show(
        {
            "modes": [asdict(one) for one in advice],
            "noise": rows,
            "tighter": [asdict(one) for one in tighter],
        },
        "\n".join(lines),
        as_json=as_json,
    )


def _tighter_lines(figures: "tuple[TighterFigure, ...]", rounds: int) -> list[str]:
    """PRV's figure beside the enforced one, or why there is none."""
    lines = [""] if figures else []
    for one in figures:
        names = ", ".join(one.modes)
        by_prv = (
            f"no figure by PRV ({one.shown.note})"
            if one.shown.note
            else f"{one.shown.eps:.3f} by PRV: tighter, shown only"
        )
        lines.append(
            f"epsilon of {rounds} rounds, {names}: {one.enforced:.3f} enforced (RDP); {by_prv}"
        )
    return lines


def _table_lines(table: "tuple[NoiseRow, ...]", delta: float, q: float) -> list[str]:
    """A line for each target and number of rounds, a column for each mode."""
    from dp.planning import Verdict

    marks = {Verdict.FITS: "*", Verdict.WEAK: "", Verdict.USELESS: "x", Verdict.REFUSED: ""}
    lines = [
        f"noise multiplier z / signal to noise at best, for delta {delta:g}, q {q:g}",
        "(* fits, x useless, – refused):",
        _line("epsilon", "rounds", (one.mode for one in table[0].modes)),
    ]
    for row in table:
        cells = (
            "–" if one.z == 0.0 else f"{one.z:.4g}/{one.signal_to_noise:.2g}{marks[one.verdict]}"
            for one in row.modes
        )
        lines.append(_line(f"{row.epsilon:g}", str(row.rounds), cells))
    return lines


def _line(epsilon: str, rounds: str, cells: Iterable[str]) -> str:
    return f"{epsilon:<9}{rounds:<8}{''.join(f'{cell:<16}' for cell in cells)}".rstrip()

"""`secagg plan`: what a privacy plan will cost, before anything runs."""

from dataclasses import asdict
from typing import Annotated

import typer

from services.cli.options import AsJson, show

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
    from dp.planning import Setting, Verdict, advise, noise_table
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
        table = noise_table(sorted({*_EPSILONS, epsilon}), (rounds,), delta=delta, q=q)
    except PrivacyError as error:
        raise ConfigError(str(error)) from error
    lines = [f"{'mode':<9}{'unit':<9}{'verdict':<9}{'z':>9}  at best"]
    for one in advice:
        z = "–" if one.verdict is Verdict.REFUSED else f"{one.z:.3f}"
        lines.append(f"{one.mode:<9}{one.unit:<9}{one.verdict:<9}{z:>9}  {one.reason}")
    lines += ["", f"noise multiplier z for {rounds} rounds, delta {delta:g}, q {q:g}:"]
    lines += [f"  epsilon {row.epsilon:<6g} z = {row.z:.4f}" for row in table]
    show(
        {"modes": [asdict(one) for one in advice], "noise": [asdict(row) for row in table]},
        "\n".join(lines),
        as_json=as_json,
    )

"""`secagg audit`: how much noise there really is, measured in a rehearsal without patients."""

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from services.cli.options import AsJson, Config, show

_MOST_RELEASES: Final = 10


def audit(
    config: Config,
    canaries: Annotated[int, typer.Option("--canaries", "-k", help="Virtual silos.", min=4)] = 40,
    dimension: Annotated[
        int, typer.Option("--dimension", "-d", help="Parameters of the rehearsal's model.")
    ] = 20_000,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", "-T", help="Releases to sum; by default the plan's, 10 at most."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write seed and findings.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Rehearse a run's privacy plan with canaries. Exit code 1: more leaks than is claimed.

    The canaries go through clip, rounding, noise, masks and sum as any contribution. The bounds
    hold with 95 % confidence; an audit that finds less than the claim proves nothing.
    """
    from fl.privacy import privacy_of
    from fl.rehearsal import Rehearsal, canary_audit, one_run_audit
    from secagg.rng import SystemRng
    from services.config import RunConfig, load_config
    from services.errors import ConfigError
    from services.files import write_atomic
    from services.plans import build_plan

    privacy = privacy_of(build_plan(load_config(config, RunConfig), max_silos=200))
    if privacy is None:
        raise ConfigError(f"{config}: expected [privacy], found none; nothing is claimed")
    releases = min(privacy.rounds, _MOST_RELEASES) if rounds is None else rounds
    rehearsal = Rehearsal(
        privacy=privacy,
        dimension=dimension,
        count=canaries,
        rounds=releases,
        seed=SystemRng().bytes(32),
    )
    typer.echo(f"canaries committed to: {rehearsal.commitment.hex()}", err=True)
    found = {"cosine": canary_audit(rehearsal), "one-run": one_run_audit(rehearsal)}
    facts = {
        "commitment": rehearsal.commitment.hex(),
        "seed": rehearsal.seed.hex(),
        "plan_digest": privacy.digest.hex(),
        "rounds": releases,
        "audits": {
            name: {"lower": one.lower, "estimate": one.estimate, "claimed": one.claimed}
            for name, one in found.items()
        },
    }
    lines = [
        f"{name:<8} epsilon at least {one.lower:.3f}, claimed {one.claimed:.3f}: "
        + ("ALARM, look for a bug in the noise" if one.is_alarm else "consistent")
        for name, one in found.items()
    ]
    show(facts, "\n".join(lines), as_json=as_json)
    if output is not None:
        write_atomic(output, json.dumps(facts, indent=2).encode() + b"\n")
    if any(one.is_alarm for one in found.values()):
        raise typer.Exit(1)

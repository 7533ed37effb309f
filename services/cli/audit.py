"""`secagg audit`: how much noise there really is, measured in a rehearsal without patients."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from services.cli.options import AsJson, Config, require_apart, show

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fl.ports import LocalTask
    from fl.rehearsal import Rehearsal

_MOST_RELEASES: Final = 10


def audit(
    config: Config,
    *,
    canaries: Annotated[int, typer.Option("--canaries", "-k", help="Virtual units.", min=4)] = 40,
    dimension: Annotated[
        int, typer.Option("--dimension", help="Parameters of the rehearsal's model.")
    ] = 20_000,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", "-T", help="Releases to sum; by default the plan's, 10 at most."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write seed and findings.")
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", help="A ledger of this plan, to append the findings to."),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--directory", "-d", help="With --ledger: the folder of its writer's key."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rehearse a run's privacy plan with canaries. Exit code 1: more leaks than is claimed.

    The canaries go through clip, rounding, noise, masks and sum as any contribution. All bounds
    of a rehearsal hold together with 95 % confidence; an audit that finds less than the claim
    proves nothing. Append to a ledger when its run has ended: a round that goes on would lose its
    place.
    """
    from fl.privacy import UNIT_MODES, privacy_of
    from fl.rehearsal import Rehearsal, canary_audit, one_run_audit
    from secagg.rng import SystemRng
    from services.clock import utc_now
    from services.errors import ConfigError
    from services.files import write_atomic
    from services.ledger.audits import RehearsalFacts, quantity, record_audit
    from services.ledger.parties import stamp
    from services.plans import build_plan
    from services.run_config import RunConfig
    from services.security.credentials import load_identity
    from services.settings import load_config

    if output is not None:
        require_apart(output, config, *([] if ledger is None else [ledger]))
    if (ledger is None) != (directory is None):
        raise ConfigError("expected --ledger and --directory together, or neither")
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
        unit_task=_unit_task if privacy.mode in UNIT_MODES else None,
    )
    typer.echo(f"canaries committed to: {rehearsal.commitment.hex()}", err=True)
    found = {"cosine": canary_audit(rehearsal), **one_run_audit(rehearsal)}
    facts = {
        "commitment": rehearsal.commitment.hex(),
        "seed": rehearsal.seed.hex(),
        "plan_digest": privacy.digest.hex(),
        "rounds": releases,
        "silos": rehearsal.silos,
        "audits": {
            name: {"lower": one.lower, "estimate": one.estimate, "claimed": one.claimed}
            for name, one in found.items()
        },
    }
    lines = [
        f"{name:<8} {quantity(name)} at least {one.lower:.3f}, claimed {one.claimed:.3f}: "
        + ("ALARM, look for a bug" if one.is_alarm else "consistent")
        for name, one in found.items()
    ]
    lines.append(f"measured: {_covered(rehearsal)}")
    show(facts, "\n".join(lines), as_json=as_json)
    if ledger is not None and directory is not None:
        known = RehearsalFacts(
            plan_digest=privacy.digest.hex(),
            rounds=releases,
            silos=rehearsal.silos,
            commitment=rehearsal.commitment.hex(),
            seed=rehearsal.seed.hex(),
            figures=found,
        )
        record_audit(ledger, load_identity(directory), known, time_utc=stamp(utc_now()))
        typer.echo(f"{ledger}: findings appended", err=True)
    if output is not None:
        write_atomic(output, json.dumps(facts, indent=2).encode() + b"\n")
    if any(one.is_alarm for one in found.values()):
        raise typer.Exit(1)


def _covered(rehearsal: "Rehearsal") -> str:
    """What these figures are about, and what they are not."""
    if not rehearsal.is_sampled:
        return "the noise of releases in which every unit takes part"
    return (
        "noise, by cosine with every unit in every release; noise and Poisson sampling together, "
        "by one-run; how often a unit is sampled, by sampling. Not measured: whether others could "
        "know who was sampled"
    )


def _unit_task(vectors: "NDArray[np.float64]") -> "LocalTask":
    """A silo of canary units; torch is loaded only for the modes that have them."""
    from fl.training.canaries import canary_task

    return canary_task(vectors)

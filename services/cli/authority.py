"""`secagg authority`: the federation's certificates and its signed roster, offline."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import AsJson, show

app = typer.Typer(
    no_args_is_help=True, help="The federation's certificate authority and signed roster; offline."
)

Home = Annotated[
    Path, typer.Option("--directory", "-d", help="The authority's folder.", show_default=False)
]


@app.command(epilog="Example: secagg authority init -d authority --federation north")
def init(
    directory: Home,
    federation: Annotated[
        str, typer.Option("--federation", "-f", help="The federation's name.", show_default=False)
    ],
) -> None:
    """Make the authority's keys. Keep this folder offline: who has it decides who is a silo."""
    from secagg.rng import SystemRng
    from services.clock import utc_now
    from services.enrollment import authority

    authority.init(directory, federation=federation, now=utc_now(), rng=SystemRng())
    typer.echo(f"{directory}: the authority of {federation}; issue the coordinator's request first")


@app.command(epilog="Example: secagg authority issue -d authority a/request.json -o 'Hospital A'")
def issue(
    directory: Home,
    request: Annotated[Path, typer.Argument(help="The request.json that `enroll` made.")],
    organization: Annotated[
        str, typer.Option("--organization", "-o", help="The legal entity behind a silo.")
    ] = "",
    coordinator: Annotated[
        bool, typer.Option("--coordinator", help="Grant the role of the coordinator.")
    ] = False,
    operator: Annotated[
        bool, typer.Option("--operator", help="Grant the role of an operator, who starts runs.")
    ] = False,
    *,
    as_json: AsJson = False,
) -> None:
    """Sign a request: a certificate, and a line in the next version of the roster.

    Without --coordinator or --operator the holder becomes a silo.
    """
    from services.clock import utc_now
    from services.enrollment import authority
    from services.errors import ConfigError
    from services.security.identity import Role

    if coordinator and operator:
        raise ConfigError(
            "expected --coordinator or --operator, got both: one certificate, one role"
        )
    role = Role.COORDINATOR if coordinator else Role.OPERATOR if operator else Role.SILO
    issued = authority.issue(
        directory, request, organization=organization, role=role, now=utc_now()
    )
    show(
        {"bundle": issued.bundle, "roster_version": issued.roster_version, "role": role.value},
        f"{issued.bundle}: send this folder back. Roster version {issued.roster_version} is in "
        "every bundle; install the coordinator's again and restart it",
        as_json=as_json,
    )

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

Days = Annotated[
    int, typer.Option("--days", help="How long a certificate lasts; short ones are renewed often.")
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
    *,
    organization: Annotated[
        str, typer.Option("--organization", "-o", help="The legal entity behind a silo.")
    ] = "",
    coordinator: Annotated[
        bool, typer.Option("--coordinator", help="Grant the role of the coordinator.")
    ] = False,
    operator: Annotated[
        bool, typer.Option("--operator", help="Grant the role of an operator, who starts runs.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="With --coordinator: revoke the present one's keys."),
    ] = False,
    days: Days = 365,
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
        directory,
        request,
        organization=organization,
        role=role,
        now=utc_now(),
        valid_days=days,
        replace_coordinator=replace,
    )
    show(
        {"bundle": issued.bundle, "roster_version": issued.roster_version, "role": role.value},
        f"{issued.bundle}: send this folder back. Roster version {issued.roster_version} is in "
        "every bundle; install the coordinator's again, it need not be restarted",
        as_json=as_json,
    )


@app.command(epilog="Example: secagg authority renew -d authority --days 30")
def renew(directory: Home, days: Days = 365, *, as_json: AsJson = False) -> None:
    """Issue every listed holder's certificate again, with the same keys and the same roster.

    The coordinator hands out what lies in its `issued` folder; silos fetch theirs by themselves.
    """
    from services.clock import utc_now
    from services.enrollment import authority

    renewed = authority.renew_all(directory, now=utc_now(), valid_days=days)
    bundles = [str(one.bundle) for one in renewed]
    show(
        {"bundles": bundles, "roster_version": renewed[0].roster_version},
        f"{len(bundles)} certificates are renewed; copy {directory / 'issued'} to the "
        "coordinator's folder, and install the coordinator's own bundle",
        as_json=as_json,
    )


@app.command(epilog="Example: secagg authority revoke hospital-a -d authority")
def revoke(
    name: Annotated[str, typer.Argument(help="A silo or an operator.", show_default=False)],
    directory: Home,
    *,
    as_json: AsJson = False,
) -> None:
    """Take a silo or an operator out of the roster; the others' certificates stay as they are."""
    from services.enrollment import authority

    version = authority.revoke(directory, name)
    show(
        {"revoked": name, "roster_version": version},
        f"{name} is not in roster version {version}; install the coordinator's bundle now: from "
        "then on it is refused, also on open connections",
        as_json=as_json,
    )

"""`secagg coordinator`: the process that relays, sums and plans."""

from typing import Annotated

import typer

from services.cli.options import AsJson, Bundle, Config, Directory, Name, enroll_here, install_here

app = typer.Typer(no_args_is_help=True, help="The coordinator: it sees sums and never an input.")


@app.command(epilog="Example: secagg coordinator enroll -d coord -n hub --host hub.example.org")
def enroll(
    directory: Directory,
    name: Name,
    host: Annotated[
        list[str],
        typer.Option("--host", help="DNS name or address by which silos dial it; repeatable."),
    ],
    as_json: AsJson = False,
) -> None:
    """Make the coordinator's keys and its signing request."""
    from services.security.identity import Role

    enroll_here(directory, name, Role.COORDINATOR, tuple(host), as_json=as_json)


@app.command(epilog="Example: secagg coordinator install -d coord authority/issued/hub")
def install(directory: Directory, bundle: Bundle) -> None:
    """Put the authority's answer beside the coordinator's keys."""
    install_here(bundle, directory)


@app.command(epilog="Example: secagg coordinator serve --config coordinator.toml")
def serve(config: Config) -> None:
    """Serve silos and operators until told to stop."""
    import asyncio

    from services.config import CoordinatorConfig
    from services.coordinator.serve import serve as serve_now
    from services.observe.logs import configure
    from services.settings import load_config

    settings = load_config(config, CoordinatorConfig)
    configure(level=settings.log.level, style=settings.log.format)
    asyncio.run(serve_now(settings))

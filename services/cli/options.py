"""Options that several commands share, and what they do alike."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from services.security.identity import Role

Config = Annotated[
    Path, typer.Option("--config", "-c", help="The settings file, TOML.", show_default=False)
]
Directory = Annotated[
    Path,
    typer.Option("--directory", "-d", help="Folder of keys and certificate.", show_default=False),
]
Name = Annotated[
    str, typer.Option("--name", "-n", help="Name in the federation.", show_default=False)
]
Bundle = Annotated[
    Path, typer.Argument(help="The folder that `authority issue` made.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def show(facts: Mapping[str, object], text: str, *, as_json: bool) -> None:
    """Print facts as one line of JSON, or the text for people."""
    typer.echo(json.dumps(facts, default=str) if as_json else text)


def require_apart(output: Path, *inputs: Path) -> None:
    """Refuse to write a command's result over what it reads.

    Raises:
        ConfigError: the output is one of the inputs, under whatever name.
    """
    from services.errors import ConfigError

    for other in inputs:
        is_same = output.samefile(other) if output.exists() and other.exists() else output == other
        if is_same:
            raise ConfigError(f"{output}: expected another file than the input {other}")


def enroll_here(
    directory: Path, name: str, role: "Role", hosts: tuple[str, ...] = (), *, as_json: bool
) -> None:
    """Make keys and a signing request in `directory`, and say what to do with it."""
    from secagg.rng import SystemRng
    from services.enrollment.request import enroll

    request = enroll(directory, name=name, role=role, hosts=hosts, rng=SystemRng())
    show(
        {"request": request},
        f"{request}: send this file to the authority; the keys beside it never leave this folder",
        as_json=as_json,
    )


def install_here(bundle: Path, directory: Path) -> None:
    """Put the authority's answer beside the keys that it belongs to."""
    from services.enrollment.authority import install

    roster = install(bundle, directory)
    typer.echo(f"{directory}: certificate and roster version {roster.version} are in place")

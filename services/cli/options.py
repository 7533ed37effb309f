"""Options that several commands share, and what they do alike."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from secagg.ids import RunId
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

_WHOLE_ID: Final = re.compile("[0-9a-f]{32}")
_ID_START: Final = re.compile("[0-9a-f]{4,31}")


def whole_id(text: str) -> "RunId | None":
    """The run that this text names in full, None if it is the beginning of an id.

    Raises:
        ConfigError: it is neither.
    """
    from secagg.ids import RunId
    from services.errors import ConfigError

    if _WHOLE_ID.fullmatch(text):
        return RunId.parse(text)
    if _ID_START.fullmatch(text) is None:
        raise ConfigError(f"expected a run's id or 4 of its first digits at least, got {text!r}")
    return None


def pick_run(text: str, runs: "Iterable[RunId]", *, hint: str) -> "RunId":
    """The only one of these runs whose id begins so.

    Raises:
        ConfigError: none begins so, or several do; names them.
    """
    from services.errors import ConfigError

    found = sorted((run for run in runs if run.hex.startswith(text)), key=lambda run: run.hex)
    if len(found) == 1:
        return found[0]
    names = ": " + ", ".join(run.hex for run in found) if found else ""
    raise ConfigError(
        f"expected one run whose id begins with {text}, got {len(found)}{names}", hint=hint
    )


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

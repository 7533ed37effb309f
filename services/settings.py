"""Reading settings files: TOML in, frozen models out, and errors that a person can act on.

An unknown key is an error with a suggestion, also when it stands in the wrong table. Values are
taken strictly: "3" is not 3. Relative paths count from the file's own folder, so that a command
means the same from everywhere. Nothing secret is ever in these files: keys lie in files of their
own, which the settings name.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Final, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Strict, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails

from services.errors import ConfigError

_MAX_BYTES: Final = 1024 * 1024
_FACTORY: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
# By which top-level keys a file is known; the first that fits counts.
_MARKS: Final[tuple[tuple[set[str], str], ...]] = (
    ({"run"}, "run.toml"),
    ({"storage", "coordinator"}, "silo.toml"),
    ({"storage"}, "coordinator.toml"),
    ({"coordinator"}, "operator.toml"),
)


def _from_base(value: object, info: ValidationInfo) -> object:
    base = (info.context or {}).get("base")
    return Path(base) / value if isinstance(value, str) and isinstance(base, Path) else value


def _check_task(value: object) -> str:
    if isinstance(value, str) and (value == "tabular" or _FACTORY.fullmatch(value)):
        return value
    raise ValueError('"tabular" or "package.module:factory"')


class SecretValueError(ValueError):
    """The value is wrong, and not to be shown."""


FilePath = Annotated[Path, Strict(strict=False), BeforeValidator(_from_base)]
TaskName = Annotated[str, BeforeValidator(_check_task)]
Table = dict[str, object]
T = TypeVar("T")
Many = Annotated[tuple[T, ...], Strict(strict=False)]


class Settings(BaseModel):
    """A table of a settings file; `file_name` says which where it is a whole file."""

    file_name: ClassVar[str] = "settings file"
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Model = TypeVar("Model", bound=Settings)


def load_config(path: Path, model: type[Model]) -> Model:
    """Read a settings file.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or does not fit; names file, key, what was
            expected and what came.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}", hint="check the path and its permissions"
        ) from error
    return parse_config(text, model, source=str(path), base=path.absolute().parent)


def parse_config(text: bytes, model: type[Model], *, source: str, base: Path) -> Model:
    """Read settings from a TOML document; relative paths count from `base`.

    Raises:
        ConfigError: see load_config; `source` stands for the file.
    """
    if len(text) > _MAX_BYTES:
        raise ConfigError(f"{source}: expected at most {_MAX_BYTES} bytes, got {len(text)}")
    try:
        table = tomllib.loads(text.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{source}: expected UTF-8, got another encoding at byte {error.start}"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: expected TOML: {error}") from error
    try:
        return model.model_validate(table, context={"base": base})
    except ValidationError as error:
        problems = _without_echoes(error.errors(include_url=False), model)
        lines = "\n".join(f"  {_explain(problem, model)}" for problem in problems)
        keys = tuple(_dotted(problem["loc"]) for problem in problems)
        lines += _looks_like(table, model)
        raise ConfigError(f"{source}: {len(keys)} problem(s)\n{lines}", keys=keys) from error


def _without_echoes(problems: list[ErrorDetails], model: type[BaseModel]) -> list[ErrorDetails]:
    """Leave out the keys that are missing only because one beside them is misspelled."""
    meant = {
        _meant(_dotted(problem["loc"]), model)
        for problem in problems
        if problem["type"] == "extra_forbidden"
    }
    return [
        problem
        for problem in problems
        if problem["type"] != "missing" or _dotted(problem["loc"]) not in meant
    ]


def _explain(problem: ErrorDetails, model: type[BaseModel]) -> str:
    """Say in one line what is wrong with one key."""
    key = _dotted(problem["loc"])
    match problem["type"]:
        case "extra_forbidden":
            return f"{key}: unknown key{_suggest(key, model)}"
        case "missing":
            return f"{key}: expected a value, got none"
        case "value_error":
            wanted = str(problem["ctx"]["error"])
        case "model_type" | "dict_type":
            wanted = "a table of keys"
        case _:
            wanted = problem["msg"].removeprefix("Input should be ")
    is_secret = isinstance(problem.get("ctx", {}).get("error"), SecretValueError)
    is_hidden = is_secret or isinstance(problem["input"], dict)
    got = "" if is_hidden else f", got {problem['input']!r:.120}"
    return f"{key or 'the file'}: expected {wanted}{got}"


def _looks_like(table: dict[str, object], model: type[Settings]) -> str:
    """Say which kind of file this is instead, if it has the marks of another one."""
    looks = next((name for mark, name in _MARKS if mark <= table.keys()), model.file_name)
    if looks == model.file_name:
        return ""
    return f"\n  it looks like a {looks}; expected a {model.file_name}"


def _dotted(location: tuple[int | str, ...]) -> str:
    """Write a location as TOML people do: task.features[0].kind."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _suggest(key: str, model: type[BaseModel]) -> str:
    """Name the known key that was probably meant, and the keys of the same table."""
    beside = _beside(key, model)
    here = f"; known here: {', '.join(sorted(beside))}" if beside else ""
    meant = _meant(key, model)
    return f"; did you mean {meant}?{here.replace('; k', ' K')}" if meant else here


def _meant(key: str, model: type[BaseModel]) -> str:
    """Find the known key that was probably meant: in the same table first, else anywhere."""
    anywhere = {other.rpartition(".")[2]: other for other in reversed(list(_keys(model)))}
    for names, cutoff in ((_beside(key, model), 0.6), (anywhere, 0.75)):
        if close := difflib.get_close_matches(key.rpartition(".")[2], names, n=1, cutoff=cutoff):
            return names[close[0]]
    return ""


def _beside(key: str, model: type[BaseModel]) -> dict[str, str]:
    """The known keys of the key's own table by their last part."""
    return {
        other.rpartition(".")[2]: other for other in _keys(model) if _table(other) == _table(key)
    }


def _table(key: str) -> str:
    return key.rpartition(".")[0]


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Give all dotted keys of a model and of the models in it."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _keys(part, f"{prefix}{name}.")

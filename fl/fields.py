"""Checks of a plan's fields: each returns the value it accepts or names the field it refuses."""

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from typing import NoReturn

from fl.errors import PlanError


def dump(content: object) -> bytes:
    """Return canonical JSON; floats as Python writes them, the shortest that reads back equal."""
    return json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def json_copy(name: str, content: object) -> dict[str, object]:
    """Return a deep copy that later changes of the original do not reach."""
    if not isinstance(content, Mapping):
        refuse(name, "a table of settings", type(content).__name__)
    try:
        copied: dict[str, object] = json.loads(dump(dict(content)))
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"training plan: {name}: expected text, finite numbers, lists and tables only"
        ) from error
    return copied


def number(name: str, value: object, low: float, high: float = math.inf) -> float:
    """Return a finite number of [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(name, "a number", value)
    if not (math.isfinite(value) and low <= value <= high):
        limit = "" if math.isinf(high) else f" and at most {high}"
        refuse(name, f"a finite number of at least {low}{limit}", value)
    return float(value)


def positive(name: str, value: object) -> float:
    """Return a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(name, "a number above 0", value)
    if not (math.isfinite(value) and value > 0):
        refuse(name, "a finite number above 0", value)
    return float(value)


def share(name: str, value: object) -> float:
    """Return a number above 0 and at most 1."""
    if positive(name, value) > 1:
        refuse(name, "a number above 0 and at most 1", value)
    return positive(name, value)


def whole(name: str, value: object, low: int, high: int) -> int:
    """Return a whole number of [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        refuse(name, f"a whole number from {low} to {high}", value)
    return value


def text(name: str, value: object) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        refuse(name, "a name", value)
    return value


def flag(name: str, value: object) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        refuse(name, "true or false", value)
    return value


def sequence(name: str, value: object) -> tuple[object, ...]:
    """Return a list's or a tuple's entries; JSON knows lists only."""
    if not isinstance(value, list | tuple):
        refuse(name, "a list", value)
    return tuple(value)


def close_to(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that suggests the name that was probably meant, if one is."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def refuse(name: str, expected: str, got: object) -> NoReturn:
    """Raise PlanError for a field."""
    raise PlanError(f"training plan: {name}: expected {expected}, got {got!r}")

"""Canonical JSON without floats: equal values are equal bytes, in every language.

Keys are sorted, there are no blanks, the text is UTF-8, and numbers are integers or decimal
strings, so that strangers can recompute every hash of a ledger (privacy.md 7.1).
"""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TypeAlias

from dp.errors import PlanError

Json: TypeAlias = "str | int | bool | list[Json] | tuple[Json, ...] | Mapping[str, Json] | None"

_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")


def canonical_json(value: Json) -> bytes:
    """Write a value in its one form.

    Raises:
        PlanError: a float, or anything else that has no canonical form, is inside.
    """
    _require_exact(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def parse_canonical(data: bytes) -> Json:
    """Read a value back, and refuse any other spelling of it.

    Raises:
        PlanError: not JSON, or not in canonical form.
    """
    try:
        value: Json = json.loads(data.decode())
        again = canonical_json(value)
    except (ValueError, RecursionError) as error:
        raise PlanError("expected canonical JSON, got bytes that are not JSON") from error
    if again != data:
        raise PlanError("expected canonical JSON, got another spelling of it")
    return value


def decimal(value: float) -> str:
    """Write a finite float as a plain decimal that reads back as the same float."""
    text = format(Decimal(repr(float(value) + 0.0)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def parse_decimal(text: object, name: str) -> float:
    """Read a plain decimal string.

    Raises:
        PlanError: not a string of digits with at most a sign and a point.
    """
    if not isinstance(text, str) or not _DECIMAL.fullmatch(text):
        raise PlanError(f'{name}: expected a plain decimal string such as "0.01"')
    return float(text)


def _require_exact(value: object) -> None:
    if value is None or isinstance(value, str | int):
        return
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise PlanError("canonical JSON: expected text as keys")
        for item in value.values():
            _require_exact(item)
        return
    if isinstance(value, list | tuple):
        for item in value:
            _require_exact(item)
        return
    raise PlanError(
        f"canonical JSON holds text, integers, lists and objects, got {type(value).__name__}; "
        "write a real number as a decimal string"
    )

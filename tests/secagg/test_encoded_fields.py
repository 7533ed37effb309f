"""No field of a record may be missing from its bytes: each, changed alone, changes them."""

from copy import copy
from dataclasses import fields, replace
from enum import StrEnum
from typing import TypeVar

import pytest

from secagg.codec import Record
from secagg.ids import AttemptId, FederationId, RunId, SiloId
from secagg.messages import DistantRoot
from secagg.parameters import CoefficientVector
from secagg.secretbytes import Secret
from tests.secagg.examples import example, examples

R = TypeVar("R", bound=Record)


def _with(record: R, name: str, value: object) -> R:
    """A copy with another value, which need not make sense."""
    changed = copy(record)
    object.__setattr__(changed, name, value)
    return changed


def _other(value: object) -> object:  # noqa: C901  # one case a type
    """Another value of the same type, or nothing in place of an optional record."""
    match value:
        case StrEnum():
            return next(member for member in type(value) if member is not value)
        case int():
            return value - 1 if value else 1
        case str():
            return f"{value}-x"
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:] if value else b"x"
        case Secret():
            return Secret(bytes(len(value)))
        case FederationId() | SiloId():
            return type(value)(f"{value.name}-x")
        case RunId():
            return RunId(b"x" * 16)
        case AttemptId():
            return replace(value, round=value.round + 1)
        case Record():
            first = fields(value)[0].name  # type: ignore[arg-type]  # records are dataclasses
            return _with(value, first, _other(getattr(value, first)))
        case (first, *rest):
            return (_other(first), *rest)
        case _:
            raise TypeError(f"expected a field with a value in the longest example, got {value!r}")


@pytest.mark.parametrize("kind", sorted(examples(), key=str))
def test_each_field_changes_the_bytes(kind: type[Record]) -> None:
    """The longest example of each kind, with something in what is empty there."""
    filled = {
        "cases": (b"a case",),
        "distant": (example(DistantRoot),),
        "prior": (1, 2),
        "public_coefficients": (example(CoefficientVector),),
        "survivors": (1, 2),
    }
    record = example(kind)
    before = record.encode()
    for item in fields(kind):  # type: ignore[arg-type]  # records are dataclasses
        value = getattr(record, item.name)
        other = filled[item.name] if value == () else _other(value)
        assert _with(record, item.name, other).encode() != before, item.name

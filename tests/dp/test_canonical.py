"""Canonical JSON of plans and ledgers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp.canonical import canonical_json, decimal, parse_canonical, parse_decimal
from dp.errors import PlanError

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=10,
)


@given(VALUES)
def test_a_value_comes_back_from_its_bytes(value: object) -> None:
    """Writing and reading are inverse."""
    assert parse_canonical(canonical_json(value)) == value  # type: ignore[arg-type]  # drawn from what the type allows


@pytest.mark.parametrize(
    "data",
    [
        b'{"b":1,"a":2}',
        b'{"a": 1}',
        b'{"a":1,"a":1}',
        b'"\\u0061"',
        b"1.0",
        b"NaN",
        b"{",
        b"\xff",
        b'"\\ud800"',
    ],
)
def test_other_spellings_are_refused(data: bytes) -> None:
    """One value has one form; floats have none."""
    with pytest.raises(PlanError):
        parse_canonical(data)


@pytest.mark.parametrize("value", [1.0, {1: "a"}, {"a": {1.5}}, [b"x"]])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    """Floats, bytes, sets and keys that are no text."""
    with pytest.raises(PlanError):
        canonical_json(value)  # type: ignore[arg-type]  # the point


def test_deep_nesting_is_refused_not_a_crash() -> None:
    """A peer's bytes cannot exhaust the stack."""
    with pytest.raises(PlanError):
        parse_canonical(b"[" * 100_000)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_decimals_read_back_as_the_same_float(value: float) -> None:
    """No digit is lost, and there is no exponent."""
    text = decimal(value)
    assert parse_decimal(text, "x") == value
    assert "e" not in text


@pytest.mark.parametrize("text", ["1e-5", "+1", "01", ".5", "5.", "", "nan", "inf", " 1", 1, None])
def test_other_numbers_are_refused(text: object) -> None:
    """Plain decimals only."""
    with pytest.raises(PlanError):
        parse_decimal(text, "x")

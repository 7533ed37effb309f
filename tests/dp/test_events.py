"""Events: validated, written and read without loss, unknown ones refused."""

import math
from typing import Any

import pytest

from dp.errors import PlanError, UnsupportedEventError
from dp.events import (
    Event,
    GaussianEvent,
    NonPrivateEvent,
    PoissonGaussianEvent,
    SkellamEvent,
    event_from_json,
    event_to_json,
)

EVENTS: list[Event] = [
    GaussianEvent(z=4.0),
    PoissonGaussianEvent(q=0.01, z=1.1, count=100, delta_impl=1e-12),
    SkellamEvent(mu=1e9, d1=3e5, d2=4096.5),
    NonPrivateEvent(count=3),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_from_its_json(event: Event) -> None:
    """Decimal strings keep every digit."""
    assert event_from_json(event_to_json(event)) == event


def test_the_json_is_the_ledgers() -> None:
    """Field names and decimal strings of privacy.md 7.1."""
    assert event_to_json(PoissonGaussianEvent(q=0.01, z=1.1)) == {
        "type": "poisson_gaussian",
        "q": "0.01",
        "z": "1.1",
        "count": 1,
        "delta_impl": "0",
    }


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["z", "q", "delta_impl"])
def test_impossible_numbers_are_refused(name: str, bad: float) -> None:
    """No accountant ever sees a NaN, an infinity or a negative number (DPA-02)."""
    values: dict[str, Any] = {"z": 1.0, "q": 0.5, "delta_impl": 0.0, name: bad}
    with pytest.raises(PlanError, match=name):
        PoissonGaussianEvent(**values)


def test_a_rate_above_one_and_a_negative_count_are_refused() -> None:
    """Ranges have two ends."""
    with pytest.raises(PlanError, match="q"):
        PoissonGaussianEvent(q=1.5, z=1.0)
    with pytest.raises(PlanError, match="count"):
        GaussianEvent(z=1.0, count=-5)
    with pytest.raises(PlanError, match="mu"):
        SkellamEvent(mu=-1.0, d1=1.0, d2=1.0)
    with pytest.raises(PlanError, match="count"):
        NonPrivateEvent(count=-1)


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"type": 1},
        {"type": "laplace", "count": 1, "delta_impl": "0"},
        {"type": "gaussian", "count": 1, "delta_impl": "0"},
        {"type": "gaussian", "z": "1", "q": "0.1", "count": 1, "delta_impl": "0"},
    ],
)
def test_what_cannot_be_read_cannot_be_accounted_for(data: object) -> None:
    """Unknown types and fields fail closed."""
    with pytest.raises(UnsupportedEventError):
        event_from_json(data)


@pytest.mark.parametrize("change", [{"count": "1"}, {"count": True}, {"z": 1.0}, {"z": "-1"}])
def test_values_of_another_type_are_refused(change: dict[str, object]) -> None:
    """Counts are whole numbers, the rest decimal strings."""
    with pytest.raises(PlanError):
        event_from_json({**event_to_json(GaussianEvent(z=1.0)), **change})

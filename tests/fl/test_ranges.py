"""Clip ranges follow the updates by themselves."""

import numpy as np
import pytest

from fl.ranges import INITIAL_RANGE, next_range, usage


def test_usage_counts() -> None:
    """Beyond C, and beyond C/8."""
    values = np.array([0.0, 0.125, -0.126, 1.0, -1.5, 0.1])
    assert usage(values, 1.0).tolist() == [1, 4 - 1]


def test_saturation_widens_and_silence_narrows() -> None:
    """Four times up, a quarter down, else unchanged."""
    assert next_range(1.0, 1, 5) == 4.0
    assert next_range(1.0, 0, 5) == 1.0
    assert next_range(1.0, 0, 0) == 0.25


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 400.0, 1e6])
def test_any_size_of_update_is_found(size: float) -> None:
    """From the first guess the range settles where the update neither saturates nor drowns."""
    clip_range = INITIAL_RANGE
    update = np.array([size, -size / 3])
    for _ in range(25):
        saturated, large = usage(update, clip_range)
        clip_range = next_range(clip_range, int(saturated), int(large))
    assert size <= clip_range <= 8 * size


@pytest.mark.parametrize(("drift", "rounds"), [(1.0, 60), (1.7, 60), (0.8, 200)])
def test_drift_never_fails(drift: float, rounds: int) -> None:
    """A growing or shrinking update saturates in at most every other round, and is followed."""
    clip_range, size, saturations = INITIAL_RANGE, 1.0, 0
    for _ in range(rounds):
        saturated, large = usage(np.array([size]), clip_range)
        saturations += int(saturated)
        clip_range = next_range(clip_range, int(saturated), int(large))
        size *= drift
    assert saturations <= rounds / 2
    assert size / 4 <= clip_range <= 64 * size


def test_zero_updates_do_not_reach_zero_range() -> None:
    """After convergence the range stops shrinking above underflow."""
    clip_range = INITIAL_RANGE
    for _ in range(1000):
        clip_range = next_range(clip_range, 0, 0)
    assert clip_range == 2.0**-60

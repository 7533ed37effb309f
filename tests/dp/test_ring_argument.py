"""privacy.md 6.1: the ring's discrete noise is no worse than the Gaussian it is booked as."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from dp.closed_form import gaussian_epsilon

DELTA = 1e-5
LOSS_STEP = 1e-4


def noise_mass(share: float, silos: int) -> NDArray[np.float64]:
    """Return the distribution of a sum of discrete Gaussians, centered in an odd window."""
    reach = math.ceil(14 * share)
    k = np.arange(-reach, reach + 1)
    one = np.exp(-(k**2) / (2 * share**2))
    one /= one.sum()
    total = one
    for _ in range(silos - 1):
        total = np.convolve(total, one)
    return total


def exact_epsilon(mass: NDArray[np.float64], moved: int, releases: int) -> float:
    """Return epsilon of T releases from the privacy loss distribution, losses rounded up."""
    here, there = mass[moved:], mass[:-moved]
    keep = (here > 0) & (there > 0)
    losses = np.ceil(np.log(here[keep] / there[keep]) / LOSS_STEP).astype(np.int64)
    low, high = int(losses.min()), int(losses.max())
    single = np.zeros(high - low + 1)
    np.add.at(single, losses - low, here[keep])
    composed = single
    for _ in range(releases - 1):
        composed = np.maximum(fftconvolve(composed, single), 0.0)
    grid = (np.arange(len(composed)) + releases * low) * LOSS_STEP

    def delta(epsilon: float) -> float:
        above = grid > epsilon
        return float(np.sum(composed[above] * -np.expm1(epsilon - grid[above])))

    below, over = 0.0, float(grid[-1])
    while over - below > 1e-6:
        middle = (below + over) / 2
        below, over = (middle, over) if delta(middle) > DELTA else (below, middle)
    return over


@pytest.mark.parametrize(
    ("share", "silos", "moved", "releases"), [(4.0, 9, 3, 20), (4.0, 1, 4, 5), (6.0, 3, 5, 10)]
)
def test_exact_epsilon_is_below_the_closed_form(
    share: float, silos: int, moved: int, releases: int
) -> None:
    """One coordinate, z = sqrt(S² - 1/12)/D: the exact figure lies just below the booked one."""
    total = silos * share**2
    booked = gaussian_epsilon(math.sqrt(releases / (total - 1 / 12)) * moved, DELTA)
    # Losses were rounded up, by half a step each on average.
    exact = exact_epsilon(noise_mass(share, silos), moved, releases) - releases * LOSS_STEP / 2
    assert 0.99 * booked < exact < booked
    if (share, silos, moved, releases) == (4.0, 9, 3, 20):
        assert booked == pytest.approx(4.9850, abs=1e-4)
        assert exact == pytest.approx(4.9833, abs=1e-3)

"""Rényi divergence: what a release costs at one order, and what that means for epsilon and delta.

For releases in which everybody takes part the formulas are here; the Poisson-sampled ones are
Opacus', called by `dp.accountant`.
"""

import math
from typing import Final

from dp.events import GaussianEvent, SkellamEvent

# Opacus' own orders, the gap at 11 and the large ones that a small epsilon needs (privacy.md 1.1).
ORDERS: Final = (
    *(1.0 + step / 10.0 for step in range(1, 100)),
    11.0,
    *(float(order) for order in range(12, 64)),
    128.0,
    256.0,
    512.0,
    1024.0,
)


def gaussian_rdp(event: GaussianEvent, order: float) -> float:
    """All releases of the event at one order: count·α/(2z²)."""
    if event.z == 0.0:
        return math.inf
    return event.count * order / (2.0 * event.z**2)


def skellam_rdp(event: SkellamEvent, order: float) -> float:
    """All releases of the event at one order; infinite at an order that is no whole number.

    Source: Agarwal, Kairouz, Liu 2021, theorem 3.5.
    """
    if event.mu == 0.0 or order < 2.0 or not order.is_integer():
        return math.inf
    main = order * event.d2**2 / (2.0 * event.mu)
    close = ((2.0 * order - 1.0) * event.d2**2 + 6.0 * event.d1) / (4.0 * event.mu**2)
    return event.count * (main + min(close, 3.0 * event.d1 / (2.0 * event.mu)))


def epsilon_at(order: float, rdp: float, delta: float) -> float:
    """ε(δ) from one order, at least 0.

    Source: Balle et al. 2020, theorem 21 (also Canonne, Kamath, Steinke 2020, proposition 12).
    """
    return max(0.0, rdp - _price(order, delta))


def delta_at(order: float, rdp: float, epsilon: float) -> float:
    """δ(ε) from one order, at most 1: the same bound, solved for delta."""
    log_delta = (order - 1.0) * (rdp + math.log1p(-1.0 / order) - epsilon) - math.log(order)
    return math.exp(min(log_delta, 0.0))


def rdp_limit(order: float, epsilon: float, delta: float) -> float:
    """The most divergence at one order that keeps ε(δ) within `epsilon`; not above 0 if none."""
    return epsilon + _price(order, delta)


def best_order(epsilon: float, delta: float) -> int:
    """The whole order that buys the most Gaussian rounds for a limit: fixed before any is run."""
    whole = [int(order) for order in ORDERS if order.is_integer()]
    return max(whole, key=lambda order: rdp_limit(order, epsilon, delta) / order)


def _price(order: float, delta: float) -> float:
    """Minus what the conversion adds to the divergence."""
    return (math.log(delta) + math.log(order)) / (order - 1.0) - math.log1p(-1.0 / order)

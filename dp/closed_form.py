"""The exact curve of the Gaussian mechanism: epsilon, delta and mu = 1/z, each from the others.

T releases in which every unit takes part compose exactly to one with mu² = sum of 1/z²; no
accountant is tighter, so this is the figure that is enforced at q = 1.
"""

import math
from typing import Final

from dp.errors import CalibrationError

# Root finding stops here; results are moved to the safe side by as much.
_TOLERANCE: Final = 1e-12


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of a Gaussian mechanism.

    Args:
        mu: sensitivity over std, above 0.
        epsilon: at least 0.

    Source: Balle and Wang 2018, theorem 8: δ = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ).
    """
    from scipy.special import erfcx, log_ndtr, ndtr

    upper = mu / 2.0 - epsilon / mu
    lower = upper - mu
    if upper > 0.0:
        return float(ndtr(upper) - math.exp(epsilon + log_ndtr(lower)))
    # Both terms are φ(upper) times a Mills ratio: no digit is lost where they nearly cancel.
    mills = erfcx(-upper / math.sqrt(2.0)) - erfcx(-lower / math.sqrt(2.0))
    return float(0.5 * math.exp(-(upper**2) / 2.0) * mills)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε(δ) of a Gaussian mechanism, rounded up.

    Args:
        mu: sensitivity over std, above 0.
        delta: 0 < delta < 1.
    """
    from scipy.optimize import brentq

    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # The classic tail bound ε <= μ²/2 + μ·sqrt(2·ln(1/δ)) brackets the root.
    most = mu**2 / 2.0 + mu * math.sqrt(2.0 * math.log(1.0 / delta)) + 1.0
    root = brentq(
        lambda epsilon: gaussian_delta(mu, epsilon) - delta,
        0.0,
        most,
        xtol=_TOLERANCE,
        rtol=_TOLERANCE,
    )
    return float(root) * (1.0 + _TOLERANCE) + _TOLERANCE


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose ε(δ) is at most `epsilon`, rounded down.

    Args:
        epsilon: above 0.
        delta: 0 < delta < 1.

    Raises:
        CalibrationError: epsilon is so large that no double holds its mu.
    """
    if epsilon > 1e6:
        raise CalibrationError(f"epsilon: expected at most 1e6, got {epsilon!r}")
    low, high = 0.0, 1.0
    while gaussian_epsilon(high, delta) <= epsilon:
        high *= 2.0
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2.0
        if gaussian_epsilon(middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low

"""The noise multiplier for a target: never less private than asked, never much more.

Where every unit takes part the closed form is inverted; otherwise, and under Skellam noise, RDP is
bisected.
"""

import math
from collections.abc import Callable
from typing import Final, Literal

from dp.accountant import epsilon
from dp.closed_form import gaussian_mu
from dp.errors import CalibrationError, PlanError
from dp.events import PoissonGaussianEvent
from dp.plan import RESERVE, Mode, PrivacyPlan
from dp.trust import plan_epsilon

# z is at most this much above the smallest that reaches the target, relatively.
PRECISION: Final = 1e-4

_MIN_Z: Final = 0.05
# Beyond it RDP's conversion, not the noise, decides; and the series takes seconds to converge.
_MAX_Z: Final = 2.0**10
_MAX_STEPS: Final = 10**9


def calibrate_z(
    eps: float,
    delta: float,
    *,
    steps: int,
    q: float = 1.0,
    method: Literal["closed", "rdp"] | None = None,
) -> float:
    """The smallest z that keeps `steps` releases within (eps, delta).

    Args:
        eps: the target, above 0.
        delta: 0 < delta < 1.
        steps: releases, at least 1.
        q: Poisson sampling rate; 1 without sampling.
        method: by default the enforced one: "closed" for q = 1, else "rdp".

    Returns:
        z, dimensionless, with ε(z) <= eps and ε(z·(1 − 1e-4)) > eps.

    Raises:
        PlanError: an argument is out of range.
        CalibrationError: no z in 0.05 .. 1024 reaches the target by RDP, or all do.
    """
    if not 0.0 < eps < math.inf:
        raise PlanError(f"epsilon: expected a finite number above 0, got {eps!r}")
    if not 0.0 < delta < 1.0:
        raise PlanError(f"delta: expected 0 < delta < 1, got {delta!r}")
    if not 0.0 < q <= 1.0:
        raise PlanError(f"q: expected 0 < q <= 1, got {q!r}")
    if type(steps) is not int or not 1 <= steps <= _MAX_STEPS:
        raise PlanError(f"steps: expected a whole number from 1 to {_MAX_STEPS}, got {steps!r}")
    if method is None:
        method = "closed" if q == 1.0 else "rdp"
    if method == "closed":
        if q < 1.0:
            raise PlanError("the closed form needs q = 1; use rdp")
        return math.sqrt(steps) / gaussian_mu(eps, delta)

    def spent(z: float) -> float:
        event = PoissonGaussianEvent(q=q, z=z, count=steps)
        return epsilon([event], delta, method="rdp").eps

    return _bisect(spent, eps)


def plan_z(
    eps: float,
    delta: float,
    *,
    mode: Mode,
    rounds: int,
    local_steps: int = 1,
    q: float = 1.0,
    metrics: bool = False,
) -> float:
    """Z for a plan that promises (eps, delta) over its rounds, with the reserve left in delta.

    Raises:
        PlanError: an argument is out of range.
        CalibrationError: no z reaches the target.
    """
    steps = rounds * (local_steps + metrics if mode is Mode.ISRL else 1)
    return calibrate_z(eps, delta * (1.0 - RESERVE), steps=steps, q=q)


def search_z(make: Callable[[float], PrivacyPlan], eps: float) -> float:
    """Z for noise whose cost depends on the whole plan, as Skellam's on the grid's sensitivities.

    Args:
        make: the plan with this z.
        eps: what the plan may promise at most, by the accountant that it is enforced with.

    Raises:
        PlanError: a plan that was tried is refused.
        CalibrationError: no z reaches the target.
    """
    return _bisect(lambda z: plan_epsilon(make(z)).eps, eps)


def _bisect(spent: Callable[[float], float], target: float) -> float:
    low = high = 1.0
    while spent(high) > target:
        low, high = high, 2.0 * high
        if high > _MAX_Z:
            raise CalibrationError(
                f"no noise multiplier up to {_MAX_Z:g} reaches epsilon {target!r} by RDP: raise "
                "epsilon or delta"
            )
    while spent(low) <= target:
        high, low = low, low / 2.0
        if low < _MIN_Z:
            raise CalibrationError(
                f"even z = {_MIN_Z} stays below epsilon {target!r}: the target limits nothing"
            )
    while high > low * (1.0 + PRECISION / 2.0):
        middle = math.sqrt(low * high)
        if spent(middle) <= target:
            high = middle
        else:
            low = middle
    return high

"""Three trust lines: one plan's epsilon, depending on whom a silo has to trust.

Nobody colludes; the coordinator colludes with n_c silos (the enforced one in ring modes); secure
aggregation fails wholly. All three are always shown (privacy.md 0 and 5.1).
"""

import math
from dataclasses import dataclass, replace

from dp.accountant import EpsResult, enforced_epsilon
from dp.errors import NoiseShortfallError
from dp.events import Event, NonPrivateEvent
from dp.plan import (
    RESERVE,
    Adjacency,
    Mode,
    PrivacyPlan,
    Unit,
    delta_terms,
    event_of,
    honest_shares,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustLines:
    """What a plan promises, and against whom.

    Attributes:
        unit: whose participation is hidden; named beside every epsilon.
        adjacency: what makes two data sets neighbors.
        delta: at which all three are read.
        nobody_colludes: against anyone who sees only what is released.
        coordinator_colludes: against the coordinator with n_c silos.
        aggregation_fails: against whoever sees each silo's vector.
        enforced: the line that budgets are charged with.
    """

    unit: Unit
    adjacency: Adjacency
    delta: float
    nobody_colludes: EpsResult
    coordinator_colludes: EpsResult
    aggregation_fails: EpsResult
    enforced: EpsResult


def trust_lines(plan: PrivacyPlan, *, floor: int | None = None) -> TrustLines:
    """The three figures of a whole plan.

    Args:
        plan: the plan.
        floor: F, the fewest survivors the protocol accepts; n_c + h_dp if not given.

    Raises:
        NoiseShortfallError: the floor is below n_c + h_dp.
        PlanError: integers cost more than the plan's reserve of delta.
    """
    enforced = plan_epsilon(plan)
    if plan.is_ring:
        survivors = plan.n_c + plan.h_dp if floor is None else floor
        _require_floor(plan, survivors)
        shares = honest_shares(plan)
        nobody = _line(plan, plan.z * math.sqrt(survivors / shares))
        lines = (nobody, enforced, _line(plan, plan.z / math.sqrt(shares)))
    elif plan.mode is Mode.CENTRAL:
        # The coordinator sees the exact sum before it adds the one draw.
        exposed = EpsResult(eps=math.inf, method=enforced.method, order=None, upper=True)
        lines = (enforced, exposed, exposed)
    else:
        # isrl: every silo adds all of the noise by itself.
        lines = (enforced, enforced, enforced)
    return TrustLines(
        unit=plan.unit,
        adjacency=plan.adjacency,
        delta=plan.delta,
        nobody_colludes=lines[0],
        coordinator_colludes=lines[1],
        aggregation_fails=lines[2],
        enforced=enforced,
    )


def plan_epsilon(plan: PrivacyPlan) -> EpsResult:
    """The enforced epsilon of a whole plan, read at delta less the reserve.

    Raises:
        PlanError: integers cost more than the plan's reserve of delta.
    """
    result = _line(plan, plan.z)
    delta_terms(plan, epsilon=result.eps)
    return result


def local_event(plan: PrivacyPlan, event: Event) -> Event:
    """A round's event as it counts when secure aggregation fails: for a limit on that line."""
    if plan.mode is Mode.CENTRAL:
        return NonPrivateEvent(count=event.count)
    local_z = plan.z / math.sqrt(honest_shares(plan))
    return event_of(plan, z=local_z, delta_impl=event.delta_impl)


def realized_z(plan: PrivacyPlan, survivors: int) -> float:
    """What the honest survivors' shares really amount to: shown beside the planned z (6.3).

    Raises:
        NoiseShortfallError: fewer survivors than the plan counts on.
    """
    if not plan.is_ring:
        return plan.z
    _require_floor(plan, survivors)
    return plan.z * math.sqrt((survivors - plan.n_c) / plan.h_dp)


def _line(plan: PrivacyPlan, z: float) -> EpsResult:
    event = event_of(plan, z=z)
    whole = replace(event, count=event.count * plan.rounds)
    return enforced_epsilon([whole], plan.delta * (1.0 - RESERVE))


def _require_floor(plan: PrivacyPlan, survivors: int) -> None:
    if survivors < plan.n_c + plan.h_dp:
        raise NoiseShortfallError(survivors, plan.n_c, plan.h_dp)

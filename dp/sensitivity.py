"""How far one unit can move a release of a plan, and how much noise follows from that.

Functions of a plan that both sides and the auditor compute alike. Everything that multiplies a
unit's influence is inside the sensitivity; z has no factor of its own (privacy.md, head).
"""

import math
from typing import TYPE_CHECKING, Final

from dp import grid
from dp.errors import PlanError
from dp.events import Event, GaussianEvent, PoissonGaussianEvent, SkellamEvent
from dp.terms import METRICS, Adjacency, Clipping, Mode, Noise, Participation, Unit

if TYPE_CHECKING:
    from dp.plan import PrivacyPlan  # a plan checks itself with these functions

# Part of delta kept for rounding, ring noise and sampler (privacy.md 6.1).
RESERVE: Final = 0.01


def sensitivity(plan: "PrivacyPlan") -> float:
    """Δ: how far one unit can move a release, L2, in parameter units, rounded up.

    Everything that multiplies is inside: replace-one, weights, several silos, the clip bit, and
    what the integer grid adds. The noise's std is z times this.
    """
    return math.nextafter(grid_sensitivity(plan) / steps_per_unit(plan), math.inf)


def grid_sensitivity(plan: "PrivacyPlan") -> float:
    """D2: the same in grid steps (privacy.md 6.1)."""
    norm = bound_on_grid(plan) * weight_inside(plan) * grid.CLIP_SLACK
    bit = 0.0 if plan.adaptive is None else bit_scale(plan) / 2.0
    pair = metric_scale(plan) / math.sqrt(2.0) if rides_along(plan) else 0.0
    norm *= math.hypot(1.0, bit, pair)
    moved = grid.rounded_norm(norm, plan.dimension)
    if plan.max_units_per_silo > 1 and not plan.strict:
        moved += grid.float_sum_error(plan.max_units_per_silo, norm, plan.dimension)
    return math.nextafter(moved * moved_vectors(plan), math.inf)


def weight_inside(plan: "PrivacyPlan") -> float:
    """The largest weight that a clipped vector is multiplied by before it is noised.

    Only a silo's whole vector is. Records and patients are clipped and noised unweighted; in isrl
    a silo's weight comes after its noise.
    """
    return plan.max_weight if plan.unit is Unit.SILO else 1.0


def bound_on_grid(plan: "PrivacyPlan") -> float:
    """S = C·s, the clip norm in grid steps: a constant of the plan."""
    assert plan.grid_bound is not None, "set in __post_init__"
    return plan.grid_bound


def steps_per_unit(plan: "PrivacyPlan") -> float:
    """The grid's s at the plan's clip norm, in steps per parameter unit."""
    return bound_on_grid(plan) / plan.clip


def moved_vectors(plan: "PrivacyPlan") -> int:
    """How many clipped vectors one unit can move: its silos, twice when it is replaced."""
    return plan.max_silos_per_unit * (2 if plan.adjacency is Adjacency.REPLACE_ONE else 1)


def honest_shares(plan: "PrivacyPlan") -> int:
    """How many shares the noise is divided by: h_dp, or 1 where one party adds all of it."""
    return max(plan.h_dp, 1)


def total_noise_std(plan: "PrivacyPlan") -> float:
    """S: std of the honest noise of one release, in grid steps."""
    return grid.total_noise_std(plan.z, grid_sensitivity(plan))


def share_noise_std(plan: "PrivacyPlan") -> float:
    """sigma_g: std of what one party adds, in grid steps (privacy.md 6.3).

    A silo's share in the ring, the coordinator's one draw in `central`, a silo's full noise in
    every step of `isrl`; the same for everyone and every cohort size.
    """
    return total_noise_std(plan) / math.sqrt(honest_shares(plan))


def rides_along(plan: "PrivacyPlan") -> bool:
    """Whether metrics are coordinates of the update's own sum; in isrl they are a step apart."""
    return plan.metrics is not None and plan.mode is not Mode.ISRL


def trained_coordinates(plan: "PrivacyPlan") -> int:
    """How many of the noised coordinates are the model's."""
    return plan.dimension - (plan.adaptive is not None) - METRICS * rides_along(plan)


def spent_aside(plan: "PrivacyPlan") -> float:
    """What clip bit and metrics take of z^-2: (2·sigma_b)^-2 + z_m^-2 (privacy.md 4.2, 4.5)."""
    bit = 0.0 if plan.adaptive is None else (2.0 * plan.adaptive.count_noise_std) ** -2
    if plan.metrics is None or plan.metrics.z is None:
        return bit
    return bit + plan.metrics.z**-2


def update_z(plan: "PrivacyPlan") -> float:
    """z_delta: std of the noise over the clip norm; what rides along has its part of z.

    z^-2 = z_delta^-2 + (2·sigma_b)^-2 + z_m^-2.
    """
    aside = spent_aside(plan)
    return 1.0 / math.sqrt(plan.z**-2 - aside) if aside else plan.z


def bit_scale(plan: "PrivacyPlan") -> float:
    """g/C, by which the centered bit is multiplied in a vector of norm 1: z_delta/sigma_b."""
    assert plan.adaptive is not None, "only an adaptive plan has a bit"
    return update_z(plan) / plan.adaptive.count_noise_std


def metric_scale(plan: "PrivacyPlan") -> float:
    """By what a metric's half is multiplied in a vector of norm 1: z_delta·√2/z_m, in isrl √2.

    Two coordinates of at most 1/2 then have the norm z_delta/z_m together, in isrl 1.
    """
    assert plan.metrics is not None, "only some plans have metrics"
    of_norm = 1.0 if plan.metrics.z is None else update_z(plan) / plan.metrics.z
    return math.sqrt(2.0) * of_norm


def segment_scales(plan: "PrivacyPlan") -> dict[str, float]:
    """What each segment is multiplied by before the one joint vector of norm C (4.3, 4.4)."""
    if plan.clipping is Clipping.FLAT:
        return {part.name: plan.clip / part.bound for part in plan.segments}
    return {
        part.name: 1.0 if part.z is None else plan.z * plan.clip / (part.z * part.bound)
        for part in plan.segments
    }


def round_event(plan: "PrivacyPlan", *, epsilon: float) -> Event:
    """What one round of the plan releases.

    Args:
        plan: the plan.
        epsilon: the largest epsilon at which delta will be read: the plan's own, or the limit of
            the account it is booked on; what integers cost in delta grows with it.

    Raises:
        PlanError: the integers cost more than the plan's reserve.
    """
    cost = delta_terms(plan, epsilon=epsilon).total / plan.rounds
    return event_of(plan, z=plan.z, delta_impl=cost)


def event_of(plan: "PrivacyPlan", *, z: float, delta_impl: float = 0.0) -> Event:
    """A round of the plan with another noise multiplier, as a trust line needs it."""
    if plan.noise is Noise.SKELLAM:
        d2 = grid_sensitivity(plan)
        d1 = d2 * min(math.sqrt(plan.dimension), d2)
        return SkellamEvent(mu=(z * d2) ** 2, d1=d1, d2=d2, delta_impl=delta_impl)
    count = releases_per_round(plan)
    if plan.participation is Participation.POISSON:
        return PoissonGaussianEvent(q=plan.q, z=z, count=count, delta_impl=delta_impl)
    return GaussianEvent(z=z, count=count, delta_impl=delta_impl)


def releases_per_round(plan: "PrivacyPlan") -> int:
    """One; in isrl each of K local steps, and the metrics, against everyone outside the silo."""
    if plan.mode is not Mode.ISRL:
        return 1
    return plan.local_steps + (plan.metrics is not None)


def delta_terms(plan: "PrivacyPlan", *, epsilon: float) -> grid.DeltaTerms:
    """What rounding, ring noise and sampler cost in delta over the whole plan.

    Args:
        plan: the plan.
        epsilon: the largest epsilon at which delta will be read: the plan's own, or the limit of
            the account it is booked on.

    Raises:
        PlanError: they exceed the 1 % of delta that the plan reserves.
    """
    terms = grid.delta_terms(
        total_std=total_noise_std(plan),
        h_dp=honest_shares(plan),
        dimension=plan.dimension,
        releases=plan.rounds * releases_per_round(plan),
        rounded=moved_vectors(plan),
        epsilon=epsilon,
    )
    if not terms.total <= RESERVE * plan.delta:
        raise PlanError(
            f"delta: integer noise costs {terms.total:.3g} at epsilon {epsilon:.4g}, expected at "
            f"most 1 % of {plan.delta!r}; double grid_bound, or choose a larger delta"
        )
    return terms


def noise_on_mean(plan: "PrivacyPlan") -> float:
    """Expected L2 norm of a round's noise after the division by W, all n silos surviving.

    In parameter units. In the ring each of n silos adds a share; in `isrl` each of n silos adds
    K steps of full noise.
    """
    parties = plan.cohort_size if plan.mode is not Mode.CENTRAL else 1
    steps = plan.local_steps if plan.mode is Mode.ISRL else 1
    coordinate = share_noise_std(plan) / steps_per_unit(plan) * math.sqrt(parties * steps)
    return coordinate * math.sqrt(plan.dimension) / plan.denominator


def metric_noise(plan: "PrivacyPlan") -> float:
    """Std of the noise on a released share in [0, 1], all n silos surviving.

    In the ring each of n silos adds a share, in `isrl` full noise; the units are the plan's W, in
    `isrl` n times q times the most units of a silo.
    """
    parties = plan.cohort_size if plan.mode is not Mode.CENTRAL else 1
    unit = metric_scale(plan) * bound_on_grid(plan)
    units = counted_units(plan)
    return share_noise_std(plan) * math.sqrt(parties) / (unit * units)


def counted_units(plan: "PrivacyPlan") -> float:
    """How many units a round's metrics are about, a public constant.

    In `isrl` W counts silos; each silo then counts as q times the most units it may have.
    """
    if plan.mode is not Mode.ISRL:
        return plan.denominator
    return plan.denominator * plan.q * plan.max_units_per_silo

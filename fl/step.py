"""The server's step: one state and one released sum make the next state, bit for bit.

The coordinator takes it to go on, every silo to know what state it must see next (protocol.md
2.5 v). It is a pure function of what both have: plan, state, round number, sum and survivors.

N, over which SCAFFOLD's c is the mean, changes in sums only. A silo that the state has not met, or
that has left, takes part with c_k = 0 and adds 1 to `members`: c is scaled by N_old / N_new. One
that leaves in good order adds −1 with Δc_k = −c_k. A refresh round starts the book anew: c becomes
the secure mean of its survivors' renewed c_k, N their number; whoever was absent joins again. It
leaves the model, and the state says so: over one model a gradient is summed once (fl.contribution).
"""

from collections.abc import Mapping

import numpy as np

from fl.algorithms import SERVER_VARIATE, Sums, algorithm_of
from fl.errors import RunStateError, WeightError
from fl.personal import split_personal
from fl.pipeline import MEMBERS, VARIATE, WEIGHT, Decoded, scalar_sums, usage_name
from fl.plan import RoundKind, TrainingPlan, Weighting
from fl.ports import NamedTensors, Tensor
from fl.privacy import check_size, first_range, next_clip, privacy_of
from fl.ranges import INITIAL_RANGE, next_range
from fl.state import (
    ENROLLED,
    LAST_ROUND,
    MODEL,
    PERSONAL,
    PREPROCESS,
    RANGE,
    RENEWED,
    SEATS,
    TRAINED,
    State,
    enrolled_of,
    ranges_of,
    seats_of,
    trained_of,
)
from fl.statistics import standardization
from fl.update import summed
from fl.weights import declared_weight


def initial_state(plan: TrainingPlan, model: NamedTensors, seats: tuple[int, ...]) -> State:
    """Return the state that a run starts from.

    Args:
        plan: of the run.
        model: the initial model, personal layers included.
        seats: the seats enrolled at the start.

    Raises:
        PlanError: the algorithm refuses the plan, or `personal` does not fit the model.
    """
    shared, personal = split_personal(model, plan.personal)
    size = sum(tensor.size for tensor in summed(shared).values())
    algorithm = algorithm_of(plan)
    state: State = {MODEL + name: tensor for name, tensor in shared.items()}
    state.update({PERSONAL + name: tensor for name, tensor in personal.items()})
    state.update(algorithm.initial_state(size))
    if algorithm.traits(plan.first_training_round).has_variate:
        # A gradient has the size of Δ_k / (Kη).
        path = plan.local.local_steps * plan.local.learning_rate
        state[RANGE + VARIATE] = np.array(INITIAL_RANGE / path)
        state[RENEWED] = np.array(-1, dtype=np.int64)
    privacy = privacy_of(plan)
    if privacy is not None:
        check_size(privacy, size)
        name = algorithm.traits(plan.first_training_round).segments[0]
        state[RANGE + name] = np.array(first_range(plan, privacy))
    state[SEATS] = np.array(sorted(seats), dtype=np.int64)
    state[LAST_ROUND] = np.zeros(len(seats), dtype=np.int64)
    state[ENROLLED] = np.array(len(seats), dtype=np.int64)
    state[TRAINED] = np.array(0, dtype=np.int64)
    return state


def next_state(
    plan: TrainingPlan,
    state: NamedTensors,
    number: int,
    released: Decoded,
    survivors: Mapping[int, str],
) -> State:
    """Return the state after round `number`; `state` itself is not changed.

    Args:
        plan: of the run.
        state: what the survivors worked on.
        number: the round's.
        released: the decoded sum.
        survivors: seat to silo name of everyone in the sum.

    Raises:
        WeightError: the survivors' weights sum to zero (AGG-01).
        NonFiniteUpdateError: the next model would not be finite.
        RunStateError: every silo has left.
    """
    moved: dict[str, Tensor] = dict(state)
    if plan.kind_of(number) is RoundKind.STATISTICS:
        found = standardization(released.meta)
        moved.update({PREPROCESS + name: values for name, values in found.items()})
        # Each silo begins with its own initial state, which names no seats: the sum does.
        moved[SEATS] = np.array(sorted(survivors), dtype=np.int64)
        moved[LAST_ROUND] = np.zeros(len(survivors), dtype=np.int64)
        moved[ENROLLED] = np.array(len(survivors), dtype=np.int64)
        return moved
    weight = total_weight(plan, released, survivors)
    if VARIATE in released.bulk:
        moved.update(_refreshed(released, weight, number, survivors))
        moved[RENEWED] = np.array(trained_of(state), dtype=np.int64)
    else:
        moved.update(_trained(plan, state, number, released, survivors))
    ranges = ranges_of(state)
    privacy = privacy_of(plan)
    if privacy is not None:
        name = next(iter(released.bulk))
        moved[RANGE + name] = np.array(next_clip(privacy, ranges[name], released.bulk))
        return moved
    for name in released.bulk:
        saturated, large = (int(count) for count in released.meta[usage_name(name)])
        moved[RANGE + name] = np.array(next_range(ranges[name], saturated, large))
    return moved


def _trained(
    plan: TrainingPlan,
    state: NamedTensors,
    number: int,
    released: Decoded,
    survivors: Mapping[int, str],
) -> State:
    """Return what a training round changes: the algorithm's part, and the record of silos."""
    algorithm = algorithm_of(plan)
    met = seats_of(state)
    seats = sorted({*met, *survivors})
    members = int(released.meta[MEMBERS][0]) if MEMBERS in released.meta else len(seats) - len(met)
    enrolled = enrolled_of(state) + members
    if enrolled < 1:
        raise RunStateError("every silo has left the run; nothing is to be averaged any more")
    shares: tuple[tuple[str, float], ...] = ()
    if plan.weighting is not Weighting.HIDDEN:
        shares = tuple(
            (survivors[s], _public_weight(plan, survivors[s])) for s in sorted(survivors)
        )
    sums = Sums(
        segments=released.bulk,
        weight=total_weight(plan, released, survivors),
        survivors=len(survivors),
        enrolled=enrolled,
        number=number,
        scalars=scalar_sums(algorithm.traits(number).scalars, released.meta),
        shares=shares,
    )
    moved = algorithm.apply(state, sums)
    before = dict(zip(met, state[LAST_ROUND].tolist(), strict=True))
    last = [number if seat in survivors else before[seat] for seat in seats]
    moved[SEATS] = np.array(seats, dtype=np.int64)
    moved[LAST_ROUND] = np.array(last, dtype=np.int64)
    moved[ENROLLED] = np.array(enrolled, dtype=np.int64)
    moved[TRAINED] = np.array(trained_of(state) + 1, dtype=np.int64)
    return moved


def _refreshed(
    released: Decoded, weight: float, number: int, survivors: Mapping[int, str]
) -> State:
    """Return c and the record of silos after a refresh; the model stays."""
    seats = sorted(survivors)
    return {
        SERVER_VARIATE: released.bulk[VARIATE] / weight,
        SEATS: np.array(seats, dtype=np.int64),
        LAST_ROUND: np.full(len(seats), number, dtype=np.int64),
        ENROLLED: np.array(len(seats), dtype=np.int64),
    }


def total_weight(plan: TrainingPlan, released: Decoded, survivors: Mapping[int, str]) -> float:
    """Return Σ ρ over the survivors, of the same sum as the updates (AGG-03).

    Under a privacy plan it is the plan's public constant: a divisor that follows from the data
    would be a release of its own (privacy.md 4.1).
    """
    privacy = privacy_of(plan)
    if privacy is not None:
        return privacy.denominator
    if plan.weighting is Weighting.HIDDEN:
        total = int(released.meta[WEIGHT][0]) / plan.n_cap
    else:
        total = sum(_public_weight(plan, survivors[seat]) for seat in sorted(survivors))
    if not total > 0:
        raise WeightError(
            "the survivors' weights sum to zero, so there is no mean; the model is kept. Check "
            "that the silos have examples"
        )
    return total


def _public_weight(plan: TrainingPlan, silo: str) -> float:
    return declared_weight(plan, silo) if plan.weighting is Weighting.DECLARED else 1.0

"""The server's step: one state and one released sum make the next state, bit for bit.

The coordinator takes it to go on, every silo to know what state it must see next (protocol.md
2.5 v). It is a pure function of what both have: plan, state, round number, sum and survivors.
"""

from collections.abc import Mapping

import numpy as np

from fl.algorithms import Sums, algorithm_of
from fl.errors import SpecMismatchError, WeightError
from fl.pipeline import WEIGHT, Decoded, usage_name
from fl.plan import RoundKind, TrainingPlan, Weighting
from fl.ports import NamedTensors, Tensor
from fl.ranges import next_range
from fl.state import LAST_ROUND, MODEL, PREPROCESS, RANGE, SEATS, State, ranges_of, seats_of
from fl.statistics import standardization
from fl.weights import declared_weight


def initial_state(plan: TrainingPlan, model: NamedTensors, seats: tuple[int, ...]) -> State:
    """Return the state that a run starts from.

    Args:
        plan: of the run.
        model: the initial model.
        seats: the seats enrolled at the start.
    """
    size = sum(t.size for t in model.values() if np.issubdtype(t.dtype, np.floating))
    state: State = {MODEL + name: tensor for name, tensor in model.items()}
    state.update(algorithm_of(plan).initial_state(size))
    state[SEATS] = np.array(sorted(seats), dtype=np.int64)
    state[LAST_ROUND] = np.zeros(len(seats), dtype=np.int64)
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
        SpecMismatchError: a survivor is not enrolled.
    """
    moved: dict[str, Tensor] = dict(state)
    if plan.kind_of(number) is RoundKind.STATISTICS:
        found = standardization(released.meta)
        moved.update({PREPROCESS + name: values for name, values in found.items()})
        return moved
    enrolled = seats_of(state)
    if not set(survivors) <= set(enrolled):
        raise SpecMismatchError(
            f"the sum holds seats {sorted(survivors)}, enrolled are {sorted(enrolled)}"
        )
    sums = Sums(
        segments=released.bulk,
        weight=_total_weight(plan, released, survivors),
        survivors=len(survivors),
        enrolled=len(enrolled),
    )
    moved.update(algorithm_of(plan).apply(state, sums))
    for name, clip_range in ranges_of(state).items():
        saturated, large = (int(count) for count in released.meta[usage_name(name)])
        moved[RANGE + name] = np.array(next_range(clip_range, saturated, large))
    last = state[LAST_ROUND].copy()
    last[[enrolled.index(seat) for seat in sorted(survivors)]] = number
    moved[LAST_ROUND] = last
    return moved


def _total_weight(plan: TrainingPlan, released: Decoded, survivors: Mapping[int, str]) -> float:
    """Return Σ ρ over the survivors, of the same sum as the updates (AGG-03)."""
    total = float(len(survivors))
    if plan.weighting is Weighting.HIDDEN:
        total = int(released.meta[WEIGHT][0]) / plan.n_cap
    elif plan.weighting is Weighting.DECLARED:
        total = sum(declared_weight(plan, survivors[seat]) for seat in sorted(survivors))
    if not total > 0:
        raise WeightError(
            "the survivors' weights sum to zero, so there is no mean; the model is kept. Check "
            "that the silos have examples"
        )
    return total

"""The server's step: pure, deterministic, and strict about its inputs."""

from typing import Any

import numpy as np
import pytest

from fl.errors import NonFiniteUpdateError, RunStateError, WeightError
from fl.pipeline import Decoded
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.state import ENROLLED, LAST_ROUND, SEATS, encode_state, enrolled_of, model_of, ranges_of
from fl.step import initial_state, next_state

NAMES = {1: "a", 2: "b", 3: "c"}


def plan(**changes: Any) -> TrainingPlan:
    """A plan without metrics."""
    values: dict[str, Any] = {
        "task": TaskPlan(),
        "local": LocalPlan(local_steps=2, learning_rate=0.1),
        "rounds": 3,
        "max_silos": 10,
        "metrics": False,
        **changes,
    }
    return TrainingPlan(**values)


def released(update: Any, usage: Any = (0, 1), **meta: int) -> Decoded:
    """A decoded sum."""
    integers = {name: np.array([value]) for name, value in meta.items()}
    return Decoded(
        bulk={"update": np.asarray(update, np.float64)},
        meta={"usage_update": np.array(usage), **integers},
    )


def start(one: TrainingPlan) -> Any:
    """The first state of a model with a float32 tensor and a counter."""
    model = {"w": np.array([1.0, 2.0], np.float32), "counter": np.array(7)}
    return initial_state(one, model, (1, 2, 3))


@pytest.mark.parametrize(
    ("changes", "sum_of_weights"),
    [
        ({}, {}),
        ({"weighting": "hidden", "n_cap": 8}, {"weight": 16}),
        ({"weighting": "declared", "declared": {"a": 0.5, "c": 1.0, "b": 0.25}}, {}),
    ],
    ids=["uniform", "hidden", "declared"],
)
def test_the_divisor_is_the_survivors_weight(
    changes: dict[str, Any], sum_of_weights: dict[str, int]
) -> None:
    """Two of three survive; whatever the weights, a common change is the model's change."""
    one = plan(**changes)
    total = 1.5 if "declared" in changes else 2.0
    survivors = {1: "a", 3: "c"}
    moved = next_state(one, start(one), 1, released([total, 0], **sum_of_weights), survivors)
    assert model_of(moved)["w"].tolist() == [2.0, 2.0]


def test_step_keeps_dtypes_counters_and_the_old_state() -> None:
    """float32 stays float32, an integer tensor stays what it is (ENC-01), inputs stay untouched."""
    one = plan()
    state = start(one)
    before = encode_state(state)
    moved = next_state(one, state, 2, released([3.0, 3.0]), NAMES)
    assert model_of(moved)["w"].dtype == np.float32
    assert model_of(moved)["counter"].item() == 7
    assert moved[LAST_ROUND].tolist() == [2, 2, 2]
    assert encode_state(state) == before


def test_ranges_move_with_the_counts() -> None:
    """Part of the state, so that every silo computes the same next range."""
    one = plan()
    for usage, expected in (((0, 0), 2.0), ((0, 3), 8.0), ((1, 3), 32.0)):
        moved = next_state(one, start(one), 1, released([0, 0], usage), NAMES)
        assert ranges_of(moved) == {"update": expected}


def test_zero_weight_is_a_typed_error() -> None:
    """No NaN, no empty model (AGG-01)."""
    one = plan(weighting="hidden", n_cap=8)
    with pytest.raises(WeightError, match="sum to zero"):
        next_state(one, start(one), 1, released([0.0, 0.0], weight=0), NAMES)


def test_a_model_that_would_not_be_finite_is_refused() -> None:
    """A check on the decoded sum, too: the coordinator cannot see single inputs (ENC-08)."""
    one = plan()
    with pytest.raises(NonFiniteUpdateError, match="'w'"):
        next_state(one, start(one), 1, released([np.inf, 0.0]), NAMES)


def test_overflow_of_a_narrow_dtype_is_refused() -> None:
    """A finite float64 that float32 cannot hold is no finite model."""
    one = plan()
    with pytest.raises(NonFiniteUpdateError):
        next_state(one, start(one), 1, released([1e300, 0.0]), NAMES)


def test_a_new_survivor_joins() -> None:
    """The record of seats grows with it."""
    one = plan()
    moved = next_state(one, start(one), 1, released([0, 0]), {1: "a", 9: "z"})
    assert moved[SEATS].tolist() == [1, 2, 3, 9]
    assert moved[LAST_ROUND].tolist() == [1, 0, 0, 1]
    assert enrolled_of(moved) == 4


def test_the_last_silo_cannot_leave() -> None:
    """There would be nothing left to average over."""
    one = plan(algorithm="scaffold")
    sums = released([0.0, 0.0], members=-3)
    with pytest.raises(RunStateError, match="every silo has left"):
        next_state(one, start(one), 1, sums, NAMES)


def test_statistics_move_the_preprocessing_and_say_who_was_there() -> None:
    """The model waits for round 2; N is the silos in the sum, which every silo has seen."""
    one = plan(standardize=True)
    sums = Decoded(
        bulk={},
        meta={
            "moments_count": np.array([4]),
            "moments_hi": np.array([8, 32]),
            "moments_lo": np.array([0, 0]),
        },
    )
    state = start(one)
    moved = next_state(one, state, 1, sums, {1: "a", 3: "c"})
    assert moved["preprocess/mean"].tolist() == [2.0]
    assert moved["preprocess/scale"].tolist() == [2.0]
    assert (moved[SEATS].tolist(), moved[LAST_ROUND].tolist()) == ([1, 3], [0, 0])
    assert moved[ENROLLED] == 2
    for name in state.keys() - {SEATS, LAST_ROUND, ENROLLED}:
        assert moved[name] is state[name]

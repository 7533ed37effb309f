"""The vector of a round: its spec, and both halves of the pipeline."""

from typing import Any

import numpy as np
import pytest

from fl.errors import NonFiniteUpdateError, SpecMismatchError
from fl.pipeline import (
    Decoded,
    ReleasedMetrics,
    decode_aggregate,
    encode_contribution,
    metric_values,
    released_metrics,
    vector_spec,
    with_usage,
)
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.ports import Metrics
from secagg.ids import RunId
from secagg.parameters import RoundParameters, VectorSpec
from secagg.testing import make_federation, make_parameters

RUN = RunId(bytes(16))


def plan(**changes: Any) -> TrainingPlan:
    """A plan for ten silos."""
    values: dict[str, Any] = {
        "task": TaskPlan(),
        "local": LocalPlan(local_steps=2, learning_rate=0.1),
        "rounds": 3,
        "max_silos": 10,
        **changes,
    }
    return TrainingPlan(**values)


def encoded(spec: VectorSpec, update: Any, clip_range: float = 8.0) -> Any:
    """One silo's encoding of an update without metrics."""
    ranges = {"update": clip_range}
    parts = {"update": np.asarray(update)}
    return encode_contribution(
        Decoded(bulk=parts, meta=with_usage(parts, {}, ranges)),
        spec=spec,
        ranges=ranges,
        secret=bytes(32),
        run=RUN,
        number=2,
    )


@pytest.mark.parametrize(
    ("changes", "number", "names"),
    [
        ({}, 1, "update usage_update accuracy loss"),
        (
            {"weighting": "hidden", "n_cap": 9},
            1,
            "update usage_update weight examples correct loss_sum",
        ),
        ({"metrics": False}, 1, "update usage_update"),
        ({"metrics": False, "algorithm": "scaffold"}, 1, "update usage_update members"),
        (
            {"metrics": False, "algorithm": "scaffold", "algorithm_settings": {"option": "I"}},
            1,
            "update variate_delta usage_update usage_variate_delta members",
        ),
        ({"metrics": False, "weighting": "hidden", "n_cap": 9}, 1, "update usage_update weight"),
        ({"standardize": True}, 1, "moments_count moments_hi moments_lo"),
        ({"standardize": True, "metrics": False}, 2, "update usage_update"),
    ],
    ids=range(8),
)
def test_segments_follow_from_the_plan(changes: dict[str, Any], number: int, names: str) -> None:
    """Option II and uniform weights upload nothing beyond the update."""
    assert " ".join(vector_spec(plan(**changes), number, 5).names) == names


@pytest.mark.parametrize("max_silos", [3, 10, 200])
@pytest.mark.parametrize("standardize", [False, True])
def test_every_spec_passes_the_protocol(max_silos: int, standardize: bool) -> None:
    """Whatever a plan allows, n_max silos cannot wrap a segment (ENC-02)."""
    one = plan(
        max_silos=max_silos,
        standardize=standardize,
        weighting="hidden",
        n_cap=2**31 - 1,
        value_bits=32,
        first_value_bits=32,
    )
    roster = make_federation(3).roster
    for number in range(1, one.last_round + 1):
        spec = vector_spec(one, number, 7)
        made = make_parameters(roster, spec, n_max=max_silos)
        assert isinstance(made, RoundParameters)


def test_precision_of_the_first_training_round() -> None:
    """More bits while the range is a guess."""
    one = plan(standardize=True)
    assert vector_spec(one, 2, 5).segment("update").value_bits == 24
    assert vector_spec(one, 3, 5).segment("update").value_bits == 16


def test_a_contribution_comes_back_within_a_step() -> None:
    """Encode, decode: each value within the quantizer's step, the own integers exactly."""
    spec = vector_spec(plan(metrics=False), 2, 4)
    update = [0.5, -1.0, 7.9, 0.0]
    one = encoded(spec, update)
    back = decode_aggregate(one.segments, spec=spec, ranges={"update": 8.0})
    np.testing.assert_array_equal(back.bulk["update"], one.decoded["update"])
    assert np.abs(one.decoded["update"] - update).max() <= 8.0 / (2**15 - 1)
    assert back.meta["usage_update"].tolist() == [0, 1]


def test_saturation_is_counted_and_touches_nothing_else() -> None:
    """A value beyond the range is clipped and reported; the others are what they were (ENC-05)."""
    spec = vector_spec(plan(metrics=False), 2, 4)
    fits, beyond = encoded(spec, [0.5, 1.0, 2.0, 4.0]), encoded(spec, [0.5, 1.0, 2.0, 400.0])
    assert (fits.saturated, beyond.saturated) == (0, 1)
    assert beyond.segments["usage_update"].tolist()[0] == 1
    assert beyond.decoded["update"][3] == 8.0
    np.testing.assert_array_equal(beyond.segments["update"][:3], fits.segments["update"][:3])


def test_error_grows_with_the_range_only() -> None:
    """Max error at most one step for every range (ENC-07)."""
    draws = np.random.default_rng(1)
    values = draws.uniform(-1, 1, 1000)
    spec = vector_spec(plan(metrics=False), 2, 1000)
    for clip_range in (1.0, 8.0, 100.0, 1e4):
        one = encoded(spec, values, clip_range)
        assert np.abs(one.decoded["update"] - values).max() <= clip_range / (2**15 - 1)


def test_negative_values_and_zero_sums() -> None:
    """Signs survive, and a sum that is zero decodes to zero within its steps (ENC-10)."""
    spec = vector_spec(plan(metrics=False), 2, 3)
    minus = encoded(spec, [-1.0, -1e-6, 1.0])
    plus = encoded(spec, [-1.0, 1e-6, -1.0])
    total = {name: minus.segments[name] + plus.segments[name] for name in minus.segments}
    back = decode_aggregate(total, spec=spec, ranges={"update": 8.0}).bulk["update"]
    assert np.abs(back - [-2.0, 0.0, 0.0]).max() <= 2 * 8.0 / (2**15 - 1)


def test_missing_or_misshapen_segments_are_refused() -> None:
    """A part that is not there is never a zero (SCA-09)."""
    option_one = {"algorithm": "scaffold", "algorithm_settings": {"option": "I"}}
    spec = vector_spec(plan(metrics=False, **option_one), 2, 2)
    ranges = {"update": 1.0, "variate_delta": 1.0}
    with pytest.raises(SpecMismatchError, match=r"'variate_delta'.*nothing"):
        encode_contribution(
            Decoded(bulk={"update": np.zeros(2)}, meta={}),
            spec=spec,
            ranges=ranges,
            secret=bytes(32),
            run=RUN,
            number=2,
        )
    with pytest.raises(SpecMismatchError, match=r"'update'.*\(3,\)"):
        decode_aggregate({"update": np.zeros(3, np.int64)}, spec=spec, ranges=ranges)
    with pytest.raises(SpecMismatchError, match="no clip range"):
        decode_aggregate({"update": np.zeros(2, np.int64)}, spec=spec, ranges={})


def test_metrics_travel_exactly() -> None:
    """Whole numbers never pass a float32 (ENC-16); the loss has 16 fraction bits."""
    one = plan(weighting="hidden", n_cap=100)
    values = metric_values(one, Metrics(loss_sum=2.5, correct=3, examples=16_777_216))
    more = metric_values(one, Metrics(loss_sum=0.25, correct=1, examples=1))
    total = {name: values[name] + more[name] for name in values}
    count = 16_777_217
    assert released_metrics(total, 2) == ReleasedMetrics(
        loss=2.75 / count, accuracy=4 / count, examples=count
    )
    assert released_metrics({}, 2) is None
    assert released_metrics({name: 0 * value for name, value in total.items()}, 2) is None


@pytest.mark.parametrize("weighting", ["uniform", "declared"])
def test_without_hidden_weights_nothing_tells_how_many_examples(weighting: str) -> None:
    """Else two sums whose survivors differ by one silo would show its count (SA1 spec 2.4)."""
    declared = {"a": 1.0} if weighting == "declared" else {}
    one = plan(weighting=weighting, declared=declared)
    few = metric_values(one, Metrics(loss_sum=5.0, correct=3, examples=4))
    many = metric_values(one, Metrics(loss_sum=5e5, correct=300_000, examples=400_000))
    assert few == many
    assert few.keys() == {"accuracy", "loss"}
    assert {"weight", "examples"}.isdisjoint(vector_spec(one, 1, 1).names)
    total = {name: few[name] + 3 * many[name] for name in few}
    assert released_metrics(total, 4) == ReleasedMetrics(loss=1.25, accuracy=0.75)


def test_a_diverged_loss_counts_as_the_bound_and_nan_is_refused() -> None:
    """Infinity is clipped to the segment's bound; NaN is an error."""
    one = plan()
    values = metric_values(one, Metrics(loss_sum=float("inf"), correct=0, examples=1))
    assert int(values["loss"][0]) == vector_spec(one, 1, 1).segment("loss").bound
    with pytest.raises(NonFiniteUpdateError):
        metric_values(one, Metrics(loss_sum=float("nan"), correct=0, examples=1))

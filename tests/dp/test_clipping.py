"""Clipping: the bound holds for every input, NaN included; the adaptive rule has the right sign."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dp.clipping import clip, clip_groups, clip_joint, noised_blocks, update_clip
from dp.errors import InfeasibleError, PlanError
from dp.plan import AdaptiveClip

SLACK = 1 + 2.0**-20
ANY = st.floats(allow_nan=False, allow_infinity=False)


def norm(vector: NDArray[np.float64]) -> float:
    """Return the L2 norm in wide arithmetic."""
    return float(np.sqrt(np.sum(np.square(vector.astype(np.longdouble)))))


def rule(gamma: float = 0.5) -> AdaptiveClip:
    """Return an update rule whose limits are far away."""
    return AdaptiveClip(count_noise_std=7.0, quantile=gamma, clip_min=1e-9, clip_max=1e9)


def test_dpn_01_a_zero_update_stays_zero() -> None:
    """DPN-01: norm 0 has factor 1, not C/0."""
    result = clip(np.zeros(4), 5.0)
    assert result.values.tolist() == [0.0] * 4
    assert result.is_unclipped
    assert result.is_finite
    assert clip(np.zeros(0), 5.0).is_unclipped


def test_dpn_01_a_subnormal_update_is_kept() -> None:
    """DPN-01: a norm of 1e-320 passes unchanged, although its square is zero."""
    vector = np.array([1e-320, 0.0])
    result = clip(vector, 5.0)
    assert result.values.tolist() == vector.tolist()
    assert result.is_unclipped


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_dpn_01_a_non_finite_update_is_the_zero_vector(bad: float) -> None:
    """DPN-01: under a plan nothing aborts; the silo goes on with zeros and its noise."""
    result = clip(np.array([1.0, bad, 2.0]), 5.0)
    assert result.values.tolist() == [0.0, 0.0, 0.0]
    assert not result.is_unclipped
    assert not result.is_finite


def test_huge_finite_values_are_scaled_not_lost() -> None:
    """Squares beyond float64 still give the right direction."""
    result = clip(np.array([3e300, 4e300]), 1.0)
    assert result.values == pytest.approx([0.6, 0.8])
    assert result.is_finite


@given(st.lists(ANY, min_size=1, max_size=20), st.floats(1e-300, 1e300))
def test_no_input_passes_the_bound(values: list[float], clip_norm: float) -> None:
    """The norm is at most C(1 + 2^-20); a shorter vector is untouched; directions stay."""
    vector = np.array(values)
    result = clip(vector, clip_norm)
    assert norm(result.values) <= clip_norm * SLACK
    if result.is_unclipped:
        assert result.values.tolist() == values
        assert norm(vector) <= clip_norm * SLACK
    else:
        assert norm(vector) >= clip_norm / SLACK
        assert np.all(np.sign(result.values) * np.sign(vector) >= 0)
    assert result.values is not vector


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_that_bounds_nothing_is_refused(clip_norm: float) -> None:
    """Clip norms and segment bounds are finite and above 0."""
    with pytest.raises(PlanError, match="clip norm"):
        clip(np.ones(2), clip_norm)
    with pytest.raises(PlanError, match="bound above 0"):
        clip_joint({"a": np.ones(2)}, {"a": clip_norm}, 1.0)
    with pytest.raises(PlanError, match="bound above 0"):
        clip_groups({"a": np.ones(2)}, {"a": clip_norm})


def test_dpn_03_global_and_per_layer_clipping_differ_as_declared() -> None:
    """DPN-03: norms 3 and 4 become 0.6 and 0.8 by one norm, 1 and 1 by one each."""
    blocks = {"a": np.array([3.0, 0.0]), "b": np.array([0.0, 4.0])}
    ones = {"a": 1.0, "b": 1.0}
    flat = clip_joint(blocks, ones, 1.0)
    assert flat.values == pytest.approx([0.6, 0.0, 0.0, 0.8])
    layers = clip_groups(blocks, ones)
    assert layers.values == pytest.approx([1.0, 0.0, 0.0, 1.0])
    assert norm(layers.values) == pytest.approx(math.sqrt(2))
    assert not layers.is_unclipped
    assert clip_groups(blocks, {"a": 3.0, "b": 4.0}).is_unclipped


def test_joint_clipping_divides_each_segment_by_its_bound() -> None:
    """Update and control variate of different scales share one norm of 1."""
    blocks = {"update": np.array([2.0]), "variate_delta": np.array([300.0])}
    result = clip_joint(blocks, {"update": 2.0, "variate_delta": 100.0}, 1.0)
    assert result.values == pytest.approx(np.array([1.0, 3.0]) / math.sqrt(10))


@given(st.lists(ANY, min_size=2, max_size=10), st.floats(1e-200, 1e200))
def test_joint_clipping_bounds_the_whole(values: list[float], bound: float) -> None:
    """Whatever the bounds, overflow on division included, the joint norm is at most C."""
    vector = np.array(values)
    result = clip_joint({"a": vector[:1], "b": vector[1:]}, {"a": bound, "b": 1.0}, 1.0)
    assert norm(result.values) <= SLACK


def test_a_nan_in_one_group_takes_the_unit_out() -> None:
    """Half a contribution would tell which half was broken."""
    result = clip_groups({"a": np.ones(1), "b": np.array([math.nan])}, {"a": 1.0, "b": 1.0})
    assert result.values.tolist() == [0.0, 0.0]
    assert not result.is_finite


def test_segments_and_bounds_must_match() -> None:
    """A segment without a bound, or none at all, is a plan error."""
    with pytest.raises(PlanError, match="bound for each segment"):
        clip_joint({"a": np.ones(1)}, {}, 1.0)
    with pytest.raises(PlanError, match="bound for each segment"):
        clip_groups({}, {})


def test_dpn_04_counters_stay_home_and_odd_types_are_refused() -> None:
    """DPN-04: int64 counters are left out, complex and object parameters are not sent at all."""
    floats = {f"w{i}": np.full(2, 0.5, np.float32) for i in range(606)}
    counters = {f"n{i}": np.array(3, np.int64) for i in range(121)}
    blocks = noised_blocks({**floats, **counters}, list(floats))
    assert list(blocks) == list(floats)
    assert all(block.dtype == np.float64 for block in blocks.values())
    for odd in (np.ones(1, np.complex128), np.array([None]), np.array([1], np.int64)):
        with pytest.raises(PlanError, match="keep it local"):
            noised_blocks({"w": odd}, ["w"])
    with pytest.raises(PlanError, match="missing"):
        noised_blocks(floats, ["w606"])


def test_dpn_07_buffers_do_not_swell_the_norm() -> None:
    """DPN-07: only parameters count, in float64: norm 0.05 under C = 0.1 is not clipped."""
    delta: dict[str, NDArray[np.generic]] = {
        "weight": np.full(25, 0.01, np.float16),
        "bn.num_batches_tracked": np.array(1000, np.int64),
        "bn.running_var": np.full(1, 30.0, np.float32),
    }
    blocks = noised_blocks(delta, ["weight"])
    result = clip_joint(blocks, {"weight": 1.0}, 0.1)
    assert result.is_unclipped
    assert norm(result.values) == pytest.approx(0.05, rel=1e-3)


def test_the_norm_is_not_taken_in_half_precision() -> None:
    """DPN-07: 70 000 half-precision ones have norm 264.6, beyond what their own sums can hold."""
    blocks = noised_blocks({"w": np.ones(70_000, np.float16)}, ["w"])
    assert norm(clip_joint(blocks, {"w": 1.0}, 264.6).values) == pytest.approx(264.575, rel=1e-5)


def drive(start: float, *, is_mutant: bool) -> float:
    """Run 400 rounds of adaptive clipping on norms of median 1.02, without noise."""
    norms = np.exp(np.random.default_rng(3).normal(0.02, 0.5, 1001))
    clip_norm = start
    for _ in range(400):
        counted = norms > clip_norm if is_mutant else norms <= clip_norm
        clip_norm = update_clip(clip_norm, float(np.sum(counted - 0.5)), len(norms), rule())
    return clip_norm


@pytest.mark.parametrize("start", [0.1, 10.0])
def test_the_sign_of_the_adaptive_rule(start: float) -> None:
    """The clip norm settles at the median from both sides; the opposite bit runs away."""
    assert drive(start, is_mutant=False) == pytest.approx(1.02, rel=0.05)
    assert not 1e-4 < drive(start, is_mutant=True) < 1e4


def test_the_quantile_is_the_share_left_unclipped() -> None:
    """All unclipped lowers C by exp(-rate·(1 - gamma)), none raises it by exp(rate·gamma)."""
    assert update_clip(1.0, 50.0, 100, rule(0.9)) == pytest.approx(math.exp(-0.2 * 0.1))
    assert update_clip(1.0, -50.0, 100, rule(0.9)) == pytest.approx(math.exp(0.2 * 0.9))
    # Noise beyond the possible counts is cut to it.
    assert update_clip(1.0, 1e9, 100, rule(0.9)) == update_clip(1.0, 50.0, 100, rule(0.9))


def test_the_clip_norm_stays_within_its_limits() -> None:
    """clip_min and clip_max are hard."""
    tight = AdaptiveClip(count_noise_std=7.0, clip_min=0.9, clip_max=1.05)
    assert update_clip(1.0, -50.0, 100, tight) == 1.05
    assert update_clip(0.95, 50.0, 100, tight) == 0.9


@pytest.mark.parametrize(("count", "units"), [(math.nan, 100), (1.0, 0), (math.inf, 5)])
def test_a_count_of_nothing_is_infeasible(count: float, units: float) -> None:
    """No units or no number: no update."""
    with pytest.raises(InfeasibleError, match="finite count"):
        update_clip(1.0, count, units, rule())

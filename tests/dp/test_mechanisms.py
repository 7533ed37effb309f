"""Mechanisms: sensitivity on integers, shares, the central draw, the way back, the alarms."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dp.errors import NoiseShortfallError, OverflowAlarmError, PlanError
from dp.mechanisms import (
    ALARM,
    GridNoise,
    UnitMetrics,
    UnitSum,
    add_central_noise,
    centered_metrics,
    check_range,
    check_survivors,
    contribution,
    decode,
    draw_share,
    encode,
    full_noise,
    metric_means,
    metrics_from_grid,
    noised_metrics,
    split_padding,
    split_segments,
)
from dp.plan import (
    AdaptiveClip,
    Adjacency,
    Clipping,
    MetricRelease,
    Mode,
    Noise,
    PrivacyPlan,
    Segment,
    Unit,
    Weights,
    bit_scale,
    bound_on_grid,
    grid_sensitivity,
    share_noise_std,
    update_z,
)
from dp.rng import NoiseStream, ReplayStream

FloatVector = NDArray[np.float64]


def plan(**changes: Any) -> PrivacyPlan:
    """Return a small plan of mode silo; `changes` replace fields."""
    fields: dict[str, Any] = {
        "unit": Unit.SILO,
        "adjacency": Adjacency.ZERO_OUT,
        "mode": Mode.SILO,
        "clip": 2.0,
        "z": 4.0,
        "rounds": 5,
        "delta": 1e-5,
        "dimension": 20,
        "cohort_size": 10,
        "denominator": 10.0,
        "n_c": 3,
        "h_dp": 4,
        "padding": 8,
    }
    return PrivacyPlan(**(fields | changes))


def central(**changes: Any) -> PrivacyPlan:
    """Return a plan of mode central."""
    return plan(mode=Mode.CENTRAL, n_c=0, h_dp=0, padding=0, **changes)


def units_plan(**changes: Any) -> PrivacyPlan:
    """Return a plan over records, five to a silo."""
    return plan(
        unit=Unit.RECORD,
        adjacency=Adjacency.ADD_REMOVE,
        mode=Mode.FEDSGD,
        max_units_per_silo=5,
        **changes,
    )


def one(vector: FloatVector, of: PrivacyPlan, **more: Any) -> FloatVector:
    """Return the contribution of a vector without segments."""
    return contribution({"update": vector}, of, **more)


def rows(count: int, dimension: int, seed: int) -> list[FloatVector]:
    """Return vectors of very different norms, one of them not finite."""
    generator = np.random.default_rng(seed)
    made = [
        generator.normal(size=dimension) * 10.0 ** generator.integers(-3, 4) for _ in range(count)
    ]
    if seed % 3 == 0:
        made[0][0] = math.nan
    return made


def distance(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
    """Return the L2 distance of two integer vectors."""
    return math.sqrt(float(np.sum(np.square((a - b).astype(np.float64)))))


@given(st.integers(0, 10**6), st.sampled_from([1.0, 0.5]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_silo_moves_the_integers_by_at_most_d2(seed: int, weight: float, replaces: bool) -> None:
    """Unit silo: the submitted integers against zero, or against another silo's, same coins."""
    used = plan(
        adjacency=Adjacency.REPLACE_ONE if replaces else Adjacency.ZERO_OUT,
        max_weight=weight,
        weights=Weights.DECLARED,
    )
    mine, other = rows(2, 20, seed)
    coins = seed.to_bytes(4, "big")
    here = encode(one(mine, used, weight=weight), used, ReplayStream(coins))
    there = (
        encode(one(other, used, weight=weight), used, ReplayStream(coins + b"other"))
        if replaces
        else np.zeros_like(here)
    )
    assert distance(here, there) <= grid_sensitivity(used)


@given(st.integers(0, 10**6), st.booleans(), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_a_unit_moves_a_silos_integers_by_at_most_d2(seed: int, strict: bool, gone: int) -> None:
    """Unit record: sums with and without one unit, the same coins, a clip bit along."""
    used = units_plan(
        strict=strict,
        dimension=21,
        denominator=200.0,
        adaptive=AdaptiveClip(count_noise_std=6.56, clip_min=0.1, clip_max=10.0),
    )
    assert used.strict is strict

    def total(skip: int | None) -> NDArray[np.int64]:
        gathered = UnitSum(used, ReplayStream(seed.to_bytes(4, "big")))
        for place, row in enumerate(rows(5, 20, seed)):
            # Rounded one by one, a unit has coins of its own: the absent one's are skipped.
            gathered.add(one(row, used) if place != skip else np.zeros(21))
        return gathered.integers()

    assert distance(total(None), total(gone)) <= grid_sensitivity(used)


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_segments_are_bounded_jointly(seed: int) -> None:
    """Two segments, clipped by one norm or each by its own, move the integers by at most D2."""
    a, b = (row[:10] for row in rows(2, 20, seed))
    flat = plan(
        segments=(Segment(name="y", length=10, bound=3.0), Segment(name="c", length=10, bound=50.0))
    )
    own = plan(
        clipping=Clipping.SEGMENTS,
        clip=5.0,
        segments=(Segment(name="y", length=10, bound=3.0), Segment(name="c", length=10, bound=4.0)),
    )
    weighted = plan(
        clipping=Clipping.SEGMENTS,
        z=1 / math.hypot(1 / 5, 1 / 10),
        segments=(
            Segment(name="y", length=10, bound=3.0, z=5.0),
            Segment(name="c", length=10, bound=4.0, z=10.0),
        ),
    )
    for used in (flat, own, weighted):
        values = contribution({"y": a, "c": b}, used)
        assert np.linalg.norm(values) <= 1 + 2**-20
        integers = encode(values, used, ReplayStream(b"coins"))
        assert distance(integers, np.zeros_like(integers)) <= grid_sensitivity(used)


def test_encode_then_decode_is_the_clipped_vector() -> None:
    """Within one grid step per coordinate, for one segment, scaled segments and an adaptive C."""
    step = 2.0 / bound_on_grid(plan())
    vector = np.linspace(-0.3, 0.3, 20)
    integers = encode(one(vector, plan()), plan(), ReplayStream(b""))
    assert integers.shape == (28,)
    values, padding = split_padding(integers, plan())
    assert not padding.any()
    assert decode(values, plan()).segments["update"] == pytest.approx(vector, abs=step)
    assert decode(values, plan()).noisy_count is None

    parts = plan(
        segments=(Segment(name="y", length=15, bound=3.0), Segment(name="c", length=5, bound=50.0))
    )
    blocks = {"y": vector[:15], "c": vector[15:]}
    values, _ = split_padding(encode(contribution(blocks, parts), parts, ReplayStream(b"")), parts)
    back = decode(values, parts).segments
    assert list(back) == ["y", "c"]
    assert back["y"] == pytest.approx(vector[:15], abs=step * 1.5)
    assert back["c"] == pytest.approx(vector[15:], abs=step * 25)


def test_an_adaptive_clip_norm_moves_without_the_grid() -> None:
    """C of the round scales the vector, the grid stays; the bit comes back as ±1/2."""
    used = plan(
        dimension=21,
        cohort_size=100,
        adaptive=AdaptiveClip(count_noise_std=6.56, clip_min=0.1, clip_max=100.0),
        allow_low_utility=True,
    )
    vector = np.full(20, 1.0)  # norm 4.47
    for clip_norm, bit in ((2.0, -0.5), (8.0, 0.5)):
        values, _ = split_padding(
            encode(one(vector, used, clip_norm=clip_norm), used, ReplayStream(b"")), used
        )
        back = decode(values, used, clip_norm=clip_norm)
        assert back.noisy_count == pytest.approx(bit, abs=1e-3)
        expected = vector * min(1.0, clip_norm / math.sqrt(20))
        assert back.segments["update"] == pytest.approx(expected, abs=clip_norm / 1000)
    with pytest.raises(PlanError, match="adaptive range"):
        one(vector, used, clip_norm=1000.0)
    with pytest.raises(PlanError, match="adaptive range"):
        one(vector, plan(), clip_norm=3.0)


def test_the_bits_noise_is_sigma_b() -> None:
    """The common noise z_delta·C over g gives std sigma_b on the count, and z on the whole."""
    used = plan(
        z=4.0,
        dimension=21,
        cohort_size=100,
        adaptive=AdaptiveClip(count_noise_std=6.56, clip_min=0.1, clip_max=100.0),
        allow_low_utility=True,
    )
    total_std = share_noise_std(used) * math.sqrt(used.h_dp)
    count_std = total_std / bound_on_grid(used) / bit_scale(used)
    # D2 is up to 0.2 % above C·s, and the noise with it.
    assert count_std == pytest.approx(6.56, rel=0.02)
    assert count_std >= 6.56
    assert total_std / grid_sensitivity(used) == pytest.approx(4.0, rel=1e-6)


METRIC = MetricRelease(loss_cap=2.0, z=20.0)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    loss=st.floats(allow_nan=True, allow_infinity=True),
    correct=st.floats(0.0, 1.0),
)
def test_a_unit_with_metrics_moves_the_integers_by_at_most_d2(
    seed: int, loss: float, correct: float
) -> None:
    """Whatever the loss is, NaN and infinities too: the joint sensitivity is the plan's."""
    of = units_plan(dimension=22, metrics=METRIC, allow_low_utility=True)
    measured = UnitMetrics(loss=loss, correct=correct)
    sums = []
    for present in (False, True):
        total = UnitSum(of, ReplayStream(seed.to_bytes(4)))
        for place, vector in enumerate(rows(3, 20, seed)):
            total.add(one(vector, of, metrics=UnitMetrics(loss=0.5, correct=place / 2)))
        if present:
            total.add(one(100.0 * rows(1, 20, seed + 1)[0], of, metrics=measured))
        sums.append(total.integers())
    assert distance(sums[0], sums[1]) <= grid_sensitivity(of)


def test_metrics_come_back_as_means_of_the_public_number_of_units() -> None:
    """Losses beyond the cap count as the cap; who could not be measured counts as half."""
    of = units_plan(dimension=22, metrics=METRIC, denominator=4.0, allow_low_utility=True)
    total = UnitSum(of, ReplayStream(b"coins"))
    for measured in (
        UnitMetrics(loss=0.5, correct=1.0),
        UnitMetrics(loss=99.0, correct=0.0),
        UnitMetrics(loss=math.nan, correct=1.0),
        None,
    ):
        total.add(one(np.zeros(20), of, metrics=measured))
    integers, _ = split_padding(total.integers(), of)
    found = decode(integers, of)
    assert found.metrics is not None
    loss, accuracy = metric_means(found.metrics, of)
    assert loss == pytest.approx((0.5 + 2.0 + 2.0 + 1.0) / 4, abs=1e-2)
    assert accuracy == pytest.approx((1.0 + 0.0 + 1.0 + 0.5) / 4, abs=1e-2)


def test_the_metrics_noise_is_their_own_z() -> None:
    """The common noise, z_delta·C, is z_m times what one unit moves the two metrics by."""
    of = units_plan(dimension=22, metrics=METRIC, allow_low_utility=True)
    halves = centered_metrics(UnitMetrics(loss=5.0, correct=1.0), of)
    moved = float(np.linalg.norm(halves)) * bound_on_grid(of)
    assert math.sqrt(of.h_dp) * share_noise_std(of) / moved == pytest.approx(20.0, rel=1e-2)
    assert update_z(of) == pytest.approx((of.z**-2 - 20.0**-2) ** -0.5)


def test_isrl_metrics_carry_full_noise_in_every_silo() -> None:
    """One further step: std z of what one unit can do, and the mean comes back."""
    of = plan(
        unit=Unit.RECORD, mode=Mode.ISRL, n_c=0, h_dp=0, padding=0, z=1.0, denominator=10.0,
        max_units_per_silo=4, metrics=MetricRelease(loss_cap=2.0), local_steps=2,
    )  # fmt: skip
    units = [UnitMetrics(loss=0.5, correct=1.0)] * 3 + [None]
    drawn = [noised_metrics(units, of, ReplayStream(bytes([seed]))) for seed in range(200)]
    assert not drawn[0].is_private
    found = np.array([metrics_from_grid(one.values, of) for one in drawn])
    assert found.mean(axis=0) == pytest.approx([3 * -0.25, 3 * 0.5], abs=0.2)
    # One unit moves the pair by 1/√2 at most, in halves: the plan's z = 1 is a std of that.
    assert found.std(axis=0) == pytest.approx(math.sqrt(0.5), rel=0.2)


def test_metrics_without_a_plan_for_them_are_refused() -> None:
    """Nothing is released that nobody planned."""
    with pytest.raises(PlanError, match="no metrics"):
        centered_metrics(None, plan())


def test_weights_multiply_inside_and_are_bounded() -> None:
    """A weight scales the clipped vector; above the plan's most it is refused."""
    used = plan(max_weight=0.5, weights=Weights.DECLARED)
    whole = one(np.full(20, 100.0), used, weight=0.5)
    assert np.linalg.norm(whole) == pytest.approx(0.5)
    for weight in (0.51, -0.1, math.nan):
        with pytest.raises(PlanError, match="weight"):
            one(np.ones(20), used, weight=weight)


def test_contributions_must_be_the_plans_segments() -> None:
    """Names, lengths and order are the plan's."""
    used = plan(
        segments=(Segment(name="y", length=15, bound=3.0), Segment(name="c", length=5, bound=5.0))
    )
    good = {"y": np.ones(15), "c": np.ones(5)}
    contribution(good, used)
    for bad in (
        {"c": np.ones(5), "y": np.ones(15)},
        {"y": np.ones(20)},
        {"y": np.ones(15), "c": np.ones(4)},
    ):
        with pytest.raises(PlanError, match="segments"):
            contribution(bad, used)
    assert list(split_segments(np.ones(20), used)) == ["y", "c"]
    with pytest.raises(PlanError, match="coordinates"):
        split_segments(np.ones(21), used)
    with pytest.raises(PlanError, match="contributions"):
        encode(np.ones(19), used, ReplayStream(b""))


def test_a_silos_sum_is_cut_to_its_reach() -> None:
    """More than M units' worth on one coordinate is cut to ±M·C·s, rounded once or one by one."""
    spike = np.zeros(20)
    spike[0] = 100.0
    for strict in (False, True):
        used = units_plan(strict=strict)
        gathered = UnitSum(used, ReplayStream(b""))
        for _ in range(7):
            gathered.add(one(spike, used))
        integers = gathered.integers()
        assert integers[0] == pytest.approx(5 * bound_on_grid(used), abs=1)
        assert integers.shape == (28,)
        assert not UnitSum(used, ReplayStream(b"")).integers().any()


@pytest.mark.parametrize("noise", [Noise.GAUSSIAN, Noise.SKELLAM])
def test_a_share_covers_padding_and_says_whose_noise_it_is(noise: Noise) -> None:
    """Noise on coordinates and padding; a test generator's share is marked as not private."""
    used = plan(noise=noise)
    share = draw_share(used, NoiseStream())
    assert share.values.shape == (28,)
    assert share.values.dtype == np.int64
    assert share.is_private
    assert not draw_share(used, ReplayStream(b"")).is_private


def test_dpn_08_two_silos_and_two_runs_never_share_noise() -> None:
    """DPN-08: with all general-purpose seeds equal, shares differ everywhere."""
    import random

    drawn = []
    for _ in range(3):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002  # the global state is the point
        drawn.append(draw_share(plan(), NoiseStream()).values)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert np.count_nonzero(drawn[a] == drawn[b]) <= 1


def test_a_restarted_silo_draws_other_noise_on_the_same_integers() -> None:
    """A second attempt may repeat the rounding; the share is new (privacy.md 6.3)."""
    vector = np.linspace(0.0, 0.2, 20)
    attempts = [
        (
            encode(one(vector, plan()), plan(), ReplayStream(b"silo secret")),
            draw_share(plan(), NoiseStream()),
        )
        for _ in range(2)
    ]
    assert np.array_equal(attempts[0][0], attempts[1][0])
    assert not np.array_equal(attempts[0][1].values, attempts[1][1].values)


def test_modes_get_the_noise_that_is_theirs() -> None:
    """Shares in the ring only, full noise outside it only, the central draw in central only."""
    with pytest.raises(PlanError, match="no noise shares"):
        draw_share(central(), NoiseStream())
    with pytest.raises(PlanError, match="into shares"):
        full_noise(plan(), NoiseStream())
    with pytest.raises(PlanError, match="mode central"):
        add_central_noise(np.zeros(20, np.int64), plan(), NoiseStream())
    with pytest.raises(PlanError, match="20 coordinates"):
        add_central_noise(np.zeros(19, np.int64), central(), NoiseStream())


def test_the_central_draw_keeps_integers_and_is_marked() -> None:
    """The sum comes back with noise of std z·D2 around it, still on the grid."""
    pytest.importorskip("opacus", reason="the central draw is the optimizer's")
    used = central(dimension=4000, allow_low_utility=True)
    total = np.arange(4000, dtype=np.int64)
    noised = add_central_noise(total, used, NoiseStream())
    assert noised.is_private
    assert noised.values.dtype == np.int64
    spread = float(np.std(noised.values - total)) / (4.0 * grid_sensitivity(used))
    assert spread == pytest.approx(1.0, abs=5 / math.sqrt(2 * 4000))
    assert not add_central_noise(total, used, ReplayStream(b"")).is_private


def test_grid_noise_rounds_before_it_adds() -> None:
    """What comes out is on the grid, whatever went in: no fraction of the sum survives."""
    noise = GridNoise(step=0.25, sigma=8.0, source=ReplayStream(b"grid"))
    out = noise.add(np.full(1000, 0.1))
    assert np.array_equal(out / 0.25, np.round(out / 0.25))
    assert abs(float(np.mean(out)) - 0.1) < 5 * 2.0 / math.sqrt(1000)
    assert not noise.is_private


def test_the_count_of_draws_is_a_constant_of_the_plan() -> None:
    """Neither values nor units change how many words are used: time tells nothing."""
    ends = []
    for scale, units in ((0.0, 1), (1e6, 1), (0.3, 4)):
        coins = ReplayStream(b"coins")
        gathered = UnitSum(units_plan(), coins)
        for _ in range(units):
            gathered.add(one(np.full(20, scale), units_plan()))
        gathered.integers()
        ends.append(int(coins.words(1)[0]))
    assert len(set(ends)) == 1


def test_too_few_survivors_are_refused_before_unmasking() -> None:
    """n_c + h_dp = 7 survivors pass, 6 do not; outside the ring anyone passes."""
    check_survivors(7, plan())
    check_survivors(0, central())
    with pytest.raises(NoiseShortfallError):
        check_survivors(6, plan())


def test_a_sum_near_the_rings_edge_raises_the_alarm() -> None:
    """±2^30 is allowed, one more is not; decode and the central draw look too."""
    check_range(np.array([ALARM, -ALARM]))
    for value in (ALARM + 1, -ALARM - 1):
        total = np.zeros(20, np.int64)
        total[3] = value
        with pytest.raises(OverflowAlarmError, match="1 of 20"):
            check_range(total)
        with pytest.raises(OverflowAlarmError):
            decode(total, plan())
        with pytest.raises(OverflowAlarmError):
            add_central_noise(total, central(), NoiseStream())


def test_other_lengths_are_refused() -> None:
    """Padding is split off before decoding."""
    with pytest.raises(PlanError, match="28 coordinates"):
        split_padding(np.zeros(20, np.int64), plan())
    with pytest.raises(PlanError, match="20 coordinates"):
        decode(np.zeros(28, np.int64), plan())


def test_conditional_rounding_is_not_offered() -> None:
    """A vector whose rounding is longer than the norm is kept: redrawing would depend on data."""
    used = plan(dimension=20, grid_bound=64.0, z=2.0)
    vector = np.full(20, 0.03)
    coins = ReplayStream(b"once")
    encode(one(vector, used), used, coins)
    twin = ReplayStream(b"once")
    twin.words(20)
    assert coins.words(1) == twin.words(1)


@pytest.mark.parametrize("metrics", [False, True], ids=["update", "metrics"])
@pytest.mark.parametrize("weight", [1.0, 0.02])
def test_isrl_noise_is_z_times_what_a_unit_moves_whatever_a_silo_weighs(
    weight: float, metrics: bool
) -> None:
    """A silo's class is multiplied in after its noise, so it is no part of the sensitivity."""
    of = plan(
        unit=Unit.RECORD, mode=Mode.ISRL, n_c=0, h_dp=0, padding=0, z=4.0, denominator=10.0,
        max_units_per_silo=4, weights=Weights.DECLARED, max_weight=weight, local_steps=2,
        allow_low_utility=True, metrics=MetricRelease(loss_cap=2.0) if metrics else None,
    )  # fmt: skip
    noise = full_noise(of, NoiseStream())
    assert noise.sigma * noise.step / of.clip >= of.z
    if metrics:
        pair = centered_metrics(UnitMetrics(loss=9.0, correct=1.0), of)
        assert noise.sigma >= of.z * float(np.linalg.norm(pair)) * bound_on_grid(of)

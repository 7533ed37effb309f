"""The privacy plan: its bytes, its sensitivity, and everything it refuses."""

import json
import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from dp import grid
from dp.errors import InfeasibleError, PlanError
from dp.events import GaussianEvent, PoissonGaussianEvent, SkellamEvent
from dp.plan import (
    AdaptiveClip,
    Adjacency,
    Clipping,
    MetricRelease,
    Mode,
    Noise,
    Participation,
    PrivacyPlan,
    Segment,
    Unit,
    Weights,
    bit_scale,
    counted_units,
    delta_terms,
    event_of,
    grid_sensitivity,
    metric_scale,
    noise_on_mean,
    releases_per_round,
    round_event,
    segment_scales,
    sensitivity,
    share_noise_std,
    steps_per_unit,
    total_noise_std,
    trained_coordinates,
    update_z,
)

SILO: dict[str, Any] = {
    "unit": Unit.SILO,
    "adjacency": Adjacency.ZERO_OUT,
    "mode": Mode.SILO,
    "clip": 1.0,
    "z": 4.0,
    "rounds": 50,
    "delta": 1e-5,
    "dimension": 100,
    "cohort_size": 10,
    "denominator": 10.0,
    "n_c": 3,
    "h_dp": 4,
}
CENTRAL = {**SILO, "mode": Mode.CENTRAL, "n_c": 0, "h_dp": 0}
FEDSGD = {
    **SILO,
    "unit": Unit.RECORD,
    "mode": Mode.FEDSGD,
    "q": 0.1,
    "participation": Participation.POISSON,
    "denominator": 500.0,
    "max_units_per_silo": 600,
}
PATIENT = {**FEDSGD, "unit": Unit.PATIENT, "mode": Mode.PATIENT, "local_steps": 5}
ISRL = {**FEDSGD, "mode": Mode.ISRL, "n_c": 0, "h_dp": 0, "local_steps": 5}
ADAPTIVE = AdaptiveClip(count_noise_std=6.56, clip_min=0.01, clip_max=10.0)
WIDE = {**SILO, "cohort_size": 100, "denominator": 100.0}


@pytest.mark.parametrize("values", [SILO, CENTRAL, FEDSGD, PATIENT, ISRL], ids=lambda v: v["mode"])
def test_each_mode_has_a_plan_whose_bytes_come_back(values: dict[str, Any]) -> None:
    """Reading what was written gives the same plan, the same bytes and the same digest."""
    plan = PrivacyPlan(**values)
    again = PrivacyPlan.from_bytes(plan.to_bytes())
    assert again == plan
    assert again.digest == plan.digest


def test_segments_and_adaptive_clipping_come_back_from_the_bytes() -> None:
    """Nested parts too."""
    parts = (
        Segment(name="delta", length=90, bound=1.0),
        Segment(name="variate", length=9, bound=2.0),
    )
    plan = PrivacyPlan(**WIDE, segments=parts, adaptive=ADAPTIVE)
    assert PrivacyPlan.from_bytes(plan.to_bytes()) == plan


def test_every_field_changes_the_digest() -> None:
    """A silo that pins the digest notices any change."""
    plan = PrivacyPlan(**SILO, allow_low_utility=True)
    other: dict[str, Any] = {
        "adjacency": Adjacency.REPLACE_ONE, "clip": 2.0, "z": 5.0, "rounds": 51, "delta": 2e-5,
        "dimension": 99, "cohort_size": 11, "denominator": 11.0, "local_steps": 2, "n_c": 2,
        "h_dp": 3, "weights": Weights.DECLARED, "grid_bound": 8192.0,
        "padding": 512, "allow_low_utility": False, "noise": Noise.SKELLAM,
        "participation": Participation.FIXED,
        "segments": (Segment(name="all", length=100, bound=1.0),),
    }  # fmt: skip
    digests = {replace(plan, **{name: value}).digest for name, value in other.items()}
    assert len(digests | {plan.digest}) == len(other) + 1
    tied = {
        "unit",
        "mode",
        "q",
        "max_units_per_silo",
        "max_silos_per_unit",
        "clipping",
        "adaptive",
        "metrics",
        "max_weight",
        "strict",
    }
    assert set(other) | tied == {item.name for item in fields(PrivacyPlan)}
    digests = {PrivacyPlan(**values).digest for values in (SILO, CENTRAL, FEDSGD, PATIENT, ISRL)}
    assert len(digests) == 5


def test_adjacency_has_no_default() -> None:
    """A guarantee whose relation nobody chose is none."""
    with pytest.raises(TypeError, match="adjacency"):
        PrivacyPlan(**{name: value for name, value in SILO.items() if name != "adjacency"})


@pytest.mark.parametrize(
    "change",
    [
        {"z": 0.0}, {"z": -1.0}, {"z": math.nan}, {"z": math.inf}, {"z": "4"}, {"z": True},
        {"q": 0.0}, {"q": -0.1}, {"q": 1.5}, {"q": math.nan},
        {"delta": 0.0}, {"delta": 1.0}, {"delta": -1e-5}, {"delta": math.nan},
        {"clip": 0.0}, {"clip": -1.0}, {"clip": math.nan},
        {"rounds": 0}, {"rounds": -5}, {"rounds": 1.5}, {"rounds": True},
        {"dimension": 0}, {"cohort_size": 0}, {"local_steps": 0}, {"padding": -1},
        {"max_weight": 1.5}, {"denominator": 0.0}, {"grid_bound": 0.0},
        {"unit": "silo"}, {"mode": None}, {"strict": 1},
    ],
    ids=str,
)  # fmt: skip
def test_dpa_02_impossible_values_are_refused(change: dict[str, Any]) -> None:
    """A plan is where sigma, q and delta out of range are refused; z = 0 is no plan (DPA-02)."""
    name = next(iter(change))
    with pytest.raises(PlanError, match=name):
        PrivacyPlan(**{**SILO, **change})


@pytest.mark.parametrize("delta", [0.1, 0.5])
def test_dpa_12_a_delta_as_large_as_one_silo_is_refused(delta: float) -> None:
    """Ten silos hold at least ten persons, so delta 0.1 protects nobody (DPA-12)."""
    with pytest.raises(PlanError, match="persons"):
        PrivacyPlan(**{**SILO, "delta": delta})


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    # What each mode protects.
    (SILO, {"unit": Unit.RECORD}, "protects the unit"),
    (CENTRAL, {"unit": Unit.PATIENT}, "protects the unit"),
    (FEDSGD, {"unit": Unit.SILO}, "protects the unit"),
    (PATIENT, {"unit": Unit.RECORD}, "protects the unit"),
    (ISRL, {"unit": Unit.SILO}, "protects the unit"),
    # A removed silo takes its share along.
    (SILO, {"adjacency": Adjacency.ADD_REMOVE}, "noise share"),
    (SILO, {"max_units_per_silo": 2}, "one unit a silo"),
    (SILO, {"max_silos_per_unit": 2}, "one unit a silo"),
    # The counterexample of 5.2.
    (FEDSGD, {"local_steps": 2}, "3.00"),
    # Sampling.
    (SILO, {"q": 0.1, "participation": Participation.POISSON}, "the coordinator knows"),
    (SILO, {"q": 0.1}, "Poisson"),
    (FEDSGD, {"participation": Participation.FIXED}, "booked as q = 1"),
    (FEDSGD, {"q": 1.0}, "say participation all"),
    (FEDSGD, {"adjacency": Adjacency.REPLACE_ONE}, "no RDP rule"),
    (FEDSGD, {"max_silos_per_unit": 2}, "needs q = 1"),
    (FEDSGD, {"noise": Noise.SKELLAM}, "q = 1 only"),
    # Who adds the noise.
    (CENTRAL, {"h_dp": 4}, "no noise into shares"),
    (ISRL, {"n_c": 1}, "no noise into shares"),
    (CENTRAL, {"padding": 5}, "no noise into shares"),
    (CENTRAL, {"noise": Noise.SKELLAM}, "option of the ring"),
    (SILO, {"n_c": 0}, "n_c"),
    (SILO, {"h_dp": 0}, "h_dp"),
    (SILO, {"h_dp": 8}, "no round could succeed"),
    # Weights.
    (FEDSGD, {"weights": Weights.HIDDEN}, "one patient"),
    (FEDSGD, {"weights": Weights.DECLARED}, "multiply nothing in mode fedsgd"),
    (PATIENT, {"weights": Weights.DECLARED}, "multiply nothing in mode patient"),
    (SILO, {"max_weight": 0.5}, "expected 1 with uniform"),
    (SILO, {"strict": True}, "anyway"),
    # Two integers round by more than one.
    (
        ISRL,
        {"dimension": 1, "metrics": MetricRelease(loss_cap=1.0), "allow_low_utility": True},
        "2 parameters",
    ),
    # Segments.
    (SILO, {"clipping": Clipping.SEGMENTS}, "got none"),
    (SILO, {"segments": (Segment(name="a", length=99, bound=1.0),)}, "coordinates"),
    (SILO, {"segments": (Segment(name="a", length=50, bound=1.0),) * 2}, "distinct"),
    (SILO, {"segments": (Segment(name="a", length=100, bound=1.0, z=4.0),)}, "one z"),
    # The ring and the grid.
    (FEDSGD, {"max_units_per_silo": 10**6}, "32-bit ring"),
    (SILO, {"grid_bound": 1.0, "z": 0.01}, "too coarse"),
    # Utility.
    (SILO, {"dimension": 10_000}, "allow_low_utility"),
]  # fmt: skip


@pytest.mark.parametrize(("base", "change", "reason"), REFUSED)
def test_combinations_are_refused_with_their_reason(
    base: dict[str, Any], change: dict[str, Any], reason: str
) -> None:
    """Every refusal of the specification says why."""
    with pytest.raises(PlanError, match=reason):
        PrivacyPlan(**{**base, **change})


def test_low_utility_is_allowed_by_name() -> None:
    """Who asks for a useless plan by name gets it."""
    plan = PrivacyPlan(**{**SILO, "dimension": 10_000, "allow_low_utility": True})
    assert noise_on_mean(plan) > 10 * plan.clip


@pytest.mark.parametrize(
    "part",
    [
        {"name": ""}, {"name": 5}, {"length": 0}, {"length": 1.0}, {"bound": 0.0}, {"z": -1.0},
    ],
    ids=str,
)  # fmt: skip
def test_impossible_segments_are_refused(part: dict[str, Any]) -> None:
    """A segment has a name, coordinates and a bound."""
    with pytest.raises(PlanError, match="segment"):
        Segment(**{"name": "a", "length": 1, "bound": 1.0, **part})


@pytest.mark.parametrize(
    "change",
    [{"quantile": 0.0}, {"quantile": 1.0}, {"count_noise_std": 0.0}, {"clip_min": 20.0}],
    ids=str,
)
def test_impossible_adaptive_clips_are_refused(change: dict[str, float]) -> None:
    """The update rule needs a quantile strictly inside and ordered bounds."""
    with pytest.raises(PlanError, match="adaptive"):
        replace(ADAPTIVE, **change)


class TestMetrics:
    """Loss and right predictions draw on the plan's own z (privacy.md 4.5)."""

    def test_the_parts_of_z_add_up_as_in_the_design(self) -> None:
        """z_grad = 4 beside metrics at 40 is z = 3.980, whose sensitivity is the joint one."""
        plan = PrivacyPlan(
            **{**PATIENT, "z": (4.0**-2 + 40.0**-2) ** -0.5, "dimension": 102},
            metrics=MetricRelease(loss_cap=2.0, z=40.0),
        )
        assert plan.z == pytest.approx(3.980, abs=5e-4)
        assert update_z(plan) == pytest.approx(4.0)
        assert trained_coordinates(plan) == 100
        bare = replace(plan, metrics=None)
        # What one unit moves, in clip norms, times z is the common noise: z_delta.
        ratio = grid_sensitivity(plan) / grid_sensitivity(bare)
        assert ratio * plan.z == pytest.approx(4.0, rel=1e-4)
        assert event_of(plan, z=plan.z) == event_of(bare, z=plan.z)
        assert PrivacyPlan.from_bytes(plan.to_bytes()) == plan

    def test_bit_and_metrics_ride_together(self) -> None:
        """Three parts of one z."""
        plan = PrivacyPlan(
            **{**PATIENT, "dimension": 103},
            adaptive=replace(ADAPTIVE, count_noise_std=20.0),
            metrics=MetricRelease(loss_cap=2.0, z=30.0),
        )
        parts = (update_z(plan), 40.0, 30.0)
        assert sum(part**-2 for part in parts) == pytest.approx(plan.z**-2)
        assert trained_coordinates(plan) == 100

    def test_in_isrl_they_are_one_more_noised_step(self) -> None:
        """Everyone outside the silo sees them under that step's noise alone."""
        bare = PrivacyPlan(**ISRL)
        plan = replace(bare, metrics=MetricRelease(loss_cap=2.0))
        assert releases_per_round(plan) == plan.local_steps + 1
        assert event_of(plan, z=1.0).count == plan.local_steps + 1
        assert grid_sensitivity(plan) == grid_sensitivity(bare)
        assert metric_scale(plan) == pytest.approx(math.sqrt(2.0))
        expected = plan.denominator * plan.q * plan.max_units_per_silo
        assert counted_units(plan) == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("values", "error", "word"),
        [
            ({**PATIENT, "dimension": 102, "metrics": (2.0, None)}, PlanError, "metrics.z"),
            ({**ISRL, "metrics": (2.0, 4.0)}, PlanError, "metrics.z"),
            ({**PATIENT, "dimension": 2, "metrics": (2.0, 40.0)}, PlanError, "dimension"),
            ({**PATIENT, "dimension": 102, "metrics": (2.0, 0.5)}, InfeasibleError, "budget"),
            ({**SILO, "dimension": 102, "metrics": (2.0, 40.0)}, PlanError, "public data"),
            (
                {
                    **PATIENT,
                    "dimension": 102,
                    "metrics": (2.0, 40.0),
                    "clipping": Clipping.SEGMENTS,
                    "segments": (Segment(name="all", length=100, bound=1.0),),
                },
                PlanError,
                "flat",
            ),
        ],
        ids=["no z", "isrl z", "no model", "overspent", "useless", "segments"],
    )
    def test_what_is_refused(
        self, values: dict[str, Any], error: type[Exception], word: str
    ) -> None:
        """Each with its reason."""
        loss_cap, z = values["metrics"]
        with pytest.raises(error, match=word):
            PrivacyPlan(**{**values, "metrics": MetricRelease(loss_cap=loss_cap, z=z)})

    @pytest.mark.parametrize("change", [{"loss_cap": 0.0}, {"z": -1.0}], ids=str)
    def test_impossible_metrics_are_refused(self, change: dict[str, float]) -> None:
        """A cap and a multiplier above zero."""
        with pytest.raises(PlanError, match="metrics"):
            MetricRelease(**{"loss_cap": 1.0, **change})


class TestBytes:
    def altered(self, **changes: object) -> bytes:
        body = json.loads(PrivacyPlan(**SILO).to_bytes())
        body.update(changes)
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    @pytest.mark.parametrize(
        "changes",
        [
            {"extra": 1}, {"version": 1}, {"unit": "person"}, {"unit": 1}, {"z": 4}, {"z": "4e0"},
            {"metrics": {"z": "4"}},
            {"rounds": "50"}, {"segments": {}}, {"segments": [{"name": "a"}]}, {"adaptive": {}},
            {"adaptive": 1}, {"strict": "no"}, {"z": "0"}, {"padding": "1024"},
            {"segments": [{"name": 1, "length": 100, "bound": "1", "z": None}]},
        ],
        ids=str,
    )  # fmt: skip
    def test_a_peers_plan_is_checked_like_an_own_one(self, changes: dict[str, object]) -> None:
        """Unknown fields, other types and refused values."""
        with pytest.raises(PlanError):
            PrivacyPlan.from_bytes(self.altered(**changes))

    def test_bytes_that_are_no_plan_are_refused(self) -> None:
        """A list, and another spelling."""
        for data in (b"[]", b"{}", PrivacyPlan(**SILO).to_bytes() + b" "):
            with pytest.raises(PlanError):
                PrivacyPlan.from_bytes(data)

    def test_whole_numbers_and_floats_are_the_same_bytes(self) -> None:
        """clip=1 and clip=1.0 are one plan."""
        assert PrivacyPlan(**{**SILO, "clip": 1, "z": 4}).digest == PrivacyPlan(**SILO).digest


class TestSensitivity:
    @pytest.mark.parametrize(
        ("exponent", "ratio"),
        [(6, 8.127), (8, 2.256), (10, 1.1229), (12, 1.0088), (14, 1.0007), (16, 1.00009)],
    )
    def test_the_grids_cost_is_the_published_table(self, exponent: int, ratio: float) -> None:
        """D2/(Cs) at d = 2^20 (privacy.md 6.1)."""
        plan = PrivacyPlan(
            **{**SILO, "dimension": 2**20, "grid_bound": 2.0**exponent, "allow_low_utility": True}
        )
        assert grid_sensitivity(plan) / 2.0**exponent == pytest.approx(ratio, rel=3e-4)

    def test_the_default_grid_costs_at_most_a_fifth_of_a_percent(self) -> None:
        """S is a power of two times C, at least 4096 and 11.2·sqrt(d)."""
        for dimension in (1, 1000, 2**20, 10**8):
            plan = PrivacyPlan(
                **{**SILO, "clip": 0.3, "dimension": dimension, "allow_low_utility": True}
            )
            assert math.log2(steps_per_unit(plan)).is_integer()
            assert 0.3 * steps_per_unit(plan) >= max(11.2 * math.sqrt(dimension), 4096)
            assert 1.0 <= sensitivity(plan) / 0.3 <= 1.002

    def test_everything_that_multiplies_is_inside(self) -> None:
        """Replace-one, weights and several silos scale the sensitivity, and with it the noise."""
        plan = PrivacyPlan(**SILO, allow_low_utility=True)
        one = sensitivity(plan)
        assert sensitivity(replace(plan, adjacency=Adjacency.REPLACE_ONE)) == pytest.approx(2 * one)
        light = replace(plan, weights=Weights.DECLARED, max_weight=0.25)
        assert sensitivity(light) == pytest.approx(one / 4, rel=5e-3)
        shared = PrivacyPlan(
            **{**FEDSGD, "q": 1.0, "participation": Participation.ALL, "max_silos_per_unit": 3}
        )
        single = replace(shared, max_silos_per_unit=1)
        assert sensitivity(shared) == pytest.approx(3 * sensitivity(single))

    @pytest.mark.parametrize(
        "values", [SILO, CENTRAL, FEDSGD, PATIENT, ISRL], ids=lambda v: v["mode"]
    )
    @pytest.mark.parametrize("weights", list(Weights))
    def test_a_weight_counts_only_where_it_is_inside(
        self, values: dict[str, Any], weights: Weights
    ) -> None:
        """Records and patients are noised unweighted: no class makes their noise smaller."""
        fields = {**values, "weights": weights, "allow_low_utility": True}
        whole = {**values, "allow_low_utility": True}
        of_units = values["unit"] is not Unit.SILO
        unweighted = values["mode"] in {Mode.FEDSGD, Mode.PATIENT}
        if weights is Weights.UNIFORM or unweighted or (of_units and weights is Weights.HIDDEN):
            with pytest.raises(PlanError, match="weight"):
                PrivacyPlan(**fields, max_weight=0.02)
            return
        light = PrivacyPlan(**fields, max_weight=0.02)
        ratio = share_noise_std(light) / share_noise_std(PrivacyPlan(**whole))
        assert ratio == pytest.approx(1.0 if of_units else 0.02, rel=0.1)

    def test_a_float_sum_costs_more_than_a_strict_one(self) -> None:
        """Summing many units in float64 adds its rounding; strict rounds each by itself."""
        plan = PrivacyPlan(**FEDSGD)
        extra = grid_sensitivity(plan) - grid_sensitivity(replace(plan, strict=True))
        assert 0 < extra < 1e-3 * grid_sensitivity(plan)

    def test_random_rounding_stays_within_the_bound(self) -> None:
        """Rounded neighbors are D2 apart at most: the bound of 6.1, tried on random vectors."""
        rng = np.random.default_rng(5)
        for dimension in (1, 30, 1000):
            plan = PrivacyPlan(**{**SILO, "dimension": dimension, "allow_low_utility": True})
            bound = grid_sensitivity(plan)
            for _ in range(50):
                unit = rng.normal(size=dimension)
                unit *= plan.grid_bound / np.linalg.norm(unit)  # type: ignore[operator]  # set by the plan
                base = rng.uniform(-1e4, 1e4, size=dimension)
                coins = rng.random(dimension)
                apart = np.floor(base + unit + coins) - np.floor(base + coins)
                assert np.linalg.norm(apart) <= bound


class TestAdaptive:
    def test_the_bit_and_the_update_share_the_budget_exactly(self) -> None:
        """Common noise z_delta·C over the joint sensitivity is z (privacy.md 4.2)."""
        assert update_z(PrivacyPlan(**WIDE)) == 4.0
        plan = PrivacyPlan(**{**WIDE, "dimension": 101}, adaptive=ADAPTIVE)
        z_delta = update_z(plan)
        assert z_delta**-2 + (2 * ADAPTIVE.count_noise_std) ** -2 == pytest.approx(plan.z**-2)
        assert bit_scale(plan) * ADAPTIVE.count_noise_std == pytest.approx(z_delta)
        noise = z_delta * plan.grid_bound  # type: ignore[operator]  # set by the plan
        assert total_noise_std(plan) == pytest.approx(noise, rel=2e-3)
        assert total_noise_std(plan) >= noise

    @pytest.mark.parametrize(("z", "sigma_b", "real"), [(1.0, 1.64, 0.956), (4.0, 2.5, 3.123)])
    def test_noise_z_times_c_would_not_be_z(self, z: float, sigma_b: float, real: float) -> None:
        """With z·C on a vector that carries the bit, less is bought than is booked."""
        wrong = z / math.hypot(1.0, z / (2 * sigma_b))
        assert wrong == pytest.approx(real, rel=2e-3)

    def test_dpn_adaptive_needs_many_units_or_patients(self) -> None:
        """Ten silos cannot count with useful noise; a hundred can, patients can (4.2)."""
        with pytest.raises(InfeasibleError, match="n = 10"):
            PrivacyPlan(**SILO, adaptive=ADAPTIVE)
        with pytest.raises(InfeasibleError, match="n = 50"):
            PrivacyPlan(**{**FEDSGD, "denominator": 50.0}, adaptive=ADAPTIVE)
        for values in (WIDE, {**PATIENT, "denominator": 50.0}, FEDSGD):
            assert PrivacyPlan(**values, adaptive=ADAPTIVE).adaptive == ADAPTIVE

    def test_the_bits_noise_must_leave_budget(self) -> None:
        """It does with z < 2·sigma_b only."""
        with pytest.raises(InfeasibleError, match="sigma_b"):
            PrivacyPlan(**WIDE, adaptive=replace(ADAPTIVE, count_noise_std=2.0))

    def test_other_refusals(self) -> None:
        """Not in isrl, the first clip within its bounds, one norm only."""
        with pytest.raises(PlanError, match="isrl"):
            PrivacyPlan(**ISRL, adaptive=ADAPTIVE)
        with pytest.raises(PlanError, match="clip"):
            PrivacyPlan(**{**WIDE, "clip": 20.0}, adaptive=ADAPTIVE)
        parts = (Segment(name="a", length=99, bound=1.0),)
        with pytest.raises(PlanError, match="one norm"):
            PrivacyPlan(**WIDE, adaptive=ADAPTIVE, clipping=Clipping.SEGMENTS, segments=parts)


class TestSegments:
    def test_dpn_03_own_bounds_have_the_root_of_the_squares(self) -> None:
        """Two tensors clipped to 1 each move sqrt(2) together; a clip of 1 is refused (DPN-03)."""
        parts = tuple(Segment(name=name, length=50, bound=1.0) for name in "ab")
        own = {**SILO, "clipping": Clipping.SEGMENTS, "segments": parts}
        with pytest.raises(PlanError, match=r"1\.414"):
            PrivacyPlan(**own)
        plan = PrivacyPlan(**{**own, "clip": math.sqrt(2)})
        assert sensitivity(plan) == pytest.approx(math.sqrt(2), rel=2e-3)
        assert segment_scales(plan) == {"a": 1.0, "b": 1.0}
        shrunk = tuple(replace(part, bound=1 / math.sqrt(2)) for part in parts)
        assert sensitivity(PrivacyPlan(**{**own, "segments": shrunk})) == pytest.approx(
            1.0, rel=2e-3
        )

    def test_multipliers_by_segment_compose(self) -> None:
        """With z 4 for the gradient and 40 for all metrics, z is 3.980 (privacy.md 4.5)."""
        parts = (
            Segment(name="gradient", length=90, bound=2.0, z=4.0),
            Segment(name="metrics", length=10, bound=0.5, z=40.0),
        )
        own = {**SILO, "clipping": Clipping.SEGMENTS, "segments": parts}
        with pytest.raises(PlanError, match=r"3\.980"):
            PrivacyPlan(**own)
        plan = PrivacyPlan(**{**own, "z": (4.0**-2 + 40.0**-2) ** -0.5})
        scales = segment_scales(plan)
        joint = math.hypot(*(scales[part.name] * part.bound for part in parts))
        assert joint == pytest.approx(plan.clip)
        for part in parts:
            assert plan.z * plan.clip / (scales[part.name] * part.bound) == pytest.approx(part.z)

    def test_a_z_for_some_segments_is_refused(self) -> None:
        """All or none."""
        parts = (
            Segment(name="a", length=90, bound=1.0, z=4.0),
            Segment(name="b", length=10, bound=1.0),
        )
        with pytest.raises(PlanError, match="all of them or to none"):
            PrivacyPlan(**SILO, clipping=Clipping.SEGMENTS, segments=parts)

    def test_a_joint_clip_divides_each_part_by_its_bound(self) -> None:
        """[delta/C_y ; variate/C_c], one norm (privacy.md 4.4)."""
        parts = (
            Segment(name="delta", length=50, bound=2.0),
            Segment(name="variate", length=50, bound=8.0),
        )
        assert segment_scales(PrivacyPlan(**SILO, segments=parts)) == {
            "delta": 0.5,
            "variate": 0.125,
        }


class TestNoise:
    def test_shares_of_the_honest_add_up_to_the_plan(self) -> None:
        """h_dp shares have variance (z·D2)² + 1/12 together, whatever the cohort (6.3)."""
        plan = PrivacyPlan(**SILO)
        total = (plan.z * grid_sensitivity(plan)) ** 2 + 1 / 12
        assert 4 * share_noise_std(plan) ** 2 == pytest.approx(total)
        assert grid.total_noise_std(3.0, 2.0) ** 2 == pytest.approx(36 + 1 / 12)
        assert share_noise_std(replace(plan, cohort_size=20)) == share_noise_std(plan)

    def test_one_party_adds_all_of_it_elsewhere(self) -> None:
        """The coordinator's draw, and each silo's in isrl."""
        for values in (CENTRAL, ISRL):
            plan = PrivacyPlan(**values)
            assert share_noise_std(plan) == total_noise_std(plan)

    def test_dpn_10_the_sums_noise_by_mode(self) -> None:
        """N = 16, z·C = 1: central 1, distributed sqrt(16/h_dp), local 4 (DPN-10)."""
        base = {**SILO, "z": 1.0, "cohort_size": 16, "denominator": 1.0, "dimension": 1}
        cases: list[tuple[dict[str, Any], float]] = [
            ({"mode": Mode.CENTRAL, "n_c": 0, "h_dp": 0}, 1.0),
            ({"n_c": 1, "h_dp": 10}, math.sqrt(1.6)),
            ({"n_c": 1, "h_dp": 15}, math.sqrt(16 / 15)),
        ]
        for change, std in cases:
            plan = PrivacyPlan(**{**base, **change})
            assert noise_on_mean(plan) == pytest.approx(std, rel=2e-3)
        local = {**base, "mode": Mode.ISRL, "unit": Unit.RECORD, "n_c": 0, "h_dp": 0}
        assert noise_on_mean(PrivacyPlan(**local)) == pytest.approx(4.0, rel=2e-3)

    def test_silo_noise_on_the_mean_is_the_published_figure(self) -> None:
        """With n = 10, eps 8, T = 50, z = 4.244: 0.42·C per coordinate (decision 1)."""
        plan = PrivacyPlan(**{**CENTRAL, "z": 4.244, "dimension": 1})
        assert noise_on_mean(plan) == pytest.approx(0.42, abs=0.006)

    def test_what_integers_cost_is_far_inside_the_reserve(self) -> None:
        """With the default grid: below 1e-8 for T = 1000, eps = 8 (6.1)."""
        plan = PrivacyPlan(
            **{**SILO, "z": 1.0, "rounds": 1000, "dimension": 10**8, "allow_low_utility": True}
        )
        terms = delta_terms(plan, epsilon=8.0)
        assert 0 < terms.total < 1e-8
        assert min(terms.rounding, terms.ring, terms.sampler) > 0

    def test_a_grid_too_coarse_for_delta_is_refused(self) -> None:
        """Doubling s divides the distance by 16; a coarse one exceeds the reserve."""
        plan = PrivacyPlan(**{**SILO, "z": 1.0, "grid_bound": 16.0})
        with pytest.raises(PlanError, match="double grid_bound"):
            delta_terms(plan, epsilon=8.0)
        assert delta_terms(replace(plan, grid_bound=1024.0), epsilon=8.0).total < 1e-7

    def test_replacing_a_unit_moves_two_rounded_vectors(self) -> None:
        """Each may exceed its bound."""
        plan = PrivacyPlan(**SILO, allow_low_utility=True)
        twice = replace(plan, adjacency=Adjacency.REPLACE_ONE)
        one, two = (delta_terms(x, epsilon=1.0).rounding for x in (plan, twice))
        assert (one, two) == (50 * grid.BETA, 100 * grid.BETA)

    @pytest.mark.parametrize("share", [1.0, 1.5, 4.0])
    def test_tau_is_the_published_one(self, share: float) -> None:
        """At two shares: 5.4e-4 at sigma_g 1, 2.3e-9 at 1.5, 2.6e-68 at 4 (6.1)."""
        figures = {1.0: 5.4e-4, 1.5: 2.3e-9, 4.0: 2.6e-68}
        terms = grid.delta_terms(
            total_std=share * math.sqrt(2), h_dp=2, dimension=1, releases=1, rounded=1, epsilon=0.0
        )
        gap = 8.6e-4 / (share * math.sqrt(2)) ** 4
        tau = terms.ring / 2 - gap
        if share < 4:
            assert tau == pytest.approx(figures[share], rel=0.1)
        else:
            assert math.exp(-(math.pi**2) * share**2) * 10 == pytest.approx(figures[share], rel=0.1)


class TestEvents:
    def test_the_event_has_the_plans_z_and_its_share_of_the_integers(self) -> None:
        """No factor anywhere: z in, z out."""
        plan = PrivacyPlan(**SILO)
        event = round_event(plan, epsilon=8.6)
        assert isinstance(event, GaussianEvent)
        assert (event.z, event.count) == (4.0, 1)
        assert event.delta_impl * 50 == pytest.approx(delta_terms(plan, epsilon=8.6).total)

    def test_dpa_05_a_fixed_choice_is_booked_as_everybody(self) -> None:
        """Fixed cohorts amplify nothing: a q = 1 event (DPA-05)."""
        plan = PrivacyPlan(**{**SILO, "participation": Participation.FIXED})
        assert event_of(plan, z=1.0) == GaussianEvent(z=1.0)

    def test_isrl_releases_every_local_step(self) -> None:
        """K events a round against everyone outside the silo."""
        assert event_of(PrivacyPlan(**ISRL), z=4.0) == PoissonGaussianEvent(q=0.1, z=4.0, count=5)
        assert event_of(PrivacyPlan(**PATIENT), z=4.0).count == 1

    def test_skellam_noise_is_an_event_of_its_own(self) -> None:
        """Variance (z·D2)², and an L1 bound that follows from L2."""
        plan = PrivacyPlan(**{**SILO, "noise": Noise.SKELLAM})
        event = event_of(plan, z=plan.z)
        assert isinstance(event, SkellamEvent)
        assert event.d2 == grid_sensitivity(plan)
        assert event.mu == pytest.approx((4 * event.d2) ** 2)
        assert event.d1 == pytest.approx(10 * event.d2)

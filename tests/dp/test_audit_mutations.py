"""privacy.md 8.3: each mistake that hides in a noised sum is caught by an audit or a check.

Every check passes on the real code and must fail on the mutant, which is our own function replaced
by one with the mistake in it. What needs a round's other parts (tags, control variates, counts
beside the update, accounts) is tested where those parts are.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dp import grid, mechanisms, sensitivity
from dp.audit import AuditFigure, canaries, cosine_bound, cosines, padding_test
from dp.clipping import Clipped
from dp.closed_form import gaussian_epsilon
from dp.errors import PlanError
from dp.mechanisms import UnitSum, contribution, decode, draw_share, encode, split_padding
from dp.plan import (
    AdaptiveClip,
    Adjacency,
    Clipping,
    Mode,
    PrivacyPlan,
    Segment,
    Unit,
    bound_on_grid,
    grid_sensitivity,
    share_noise_std,
)
from dp.rng import ReplayStream
from dp.sampling import round_randomly

D = 4000
SEED = bytes(range(32))
DELTA = 1e-5
Check = Callable[[PrivacyPlan], bool]
Mutation = Callable[[pytest.MonkeyPatch], None]


def plan(**changes: Any) -> PrivacyPlan:
    """Return a ring plan with z = 1 over 4 000 coordinates; `changes` replace fields."""
    fields: dict[str, Any] = {
        "unit": Unit.SILO,
        "adjacency": Adjacency.ZERO_OUT,
        "mode": Mode.SILO,
        "clip": 1.0,
        "z": 1.0,
        "rounds": 2,
        "delta": DELTA,
        "dimension": D,
        "cohort_size": 10,
        "denominator": 10.0,
        "n_c": 3,
        "h_dp": 4,
        "allow_low_utility": True,
    }
    return PrivacyPlan(**(fields | changes))


def segmented() -> PrivacyPlan:
    """Return a plan whose second half is a control variate."""
    half = D // 2
    return plan(
        segments=(
            Segment(name="update", length=half, bound=1.0),
            Segment(name="variate_delta", length=half, bound=1.0),
        )
    )


def blocks(vector: NDArray[np.float64], used: PrivacyPlan) -> dict[str, NDArray[np.float64]]:
    """Cut a vector into the plan's segments."""
    return mechanisms.split_segments(vector, used)


def rehearsal(used: PrivacyPlan, survivors: int) -> tuple[AuditFigure, float]:
    """Run one release of zero updates with canaries beside them; return figure and padding p.

    Canaries are five times too long before the clip, so that a missing clip shows.
    """
    vectors = canaries(SEED, 150, D, 1.0)
    total = np.zeros(D + (used.padding or 0), np.int64)
    for silo in range(survivors):
        total += draw_share(used, ReplayStream(f"share {silo}".encode())).values
    for place, canary in enumerate(vectors):
        coins = ReplayStream(f"coins {place}".encode())
        total += encode(contribution(blocks(5.0 * canary, used), used), used, coins)
    values, padding = split_padding(total, used)
    released = np.concatenate(list(decode(values, used).segments.values()))
    estimate, lower = cosine_bound(cosines(vectors, released), D, DELTA)
    claimed = gaussian_epsilon(1.0 / (used.z * math.sqrt(survivors / used.h_dp)), DELTA)
    _, p = padding_test(padding, math.sqrt(survivors) * planned_share(used))
    return AuditFigure(estimate=estimate, lower=lower, claimed=claimed), p


def planned_share(used: PrivacyPlan) -> float:
    """Return the share's std from the formulas of privacy.md 6.1 and 6.3, by themselves."""
    bound = bound_on_grid(used) * (1 + 2.0**-20)
    root = math.sqrt(used.dimension)
    tail = math.sqrt(2 * 40 * math.log(2))
    d2 = math.sqrt(
        min((bound + root) ** 2, bound**2 + used.dimension / 4 + tail * (bound + root / 2))
    )
    return math.sqrt(((used.z * d2) ** 2 + 1 / 12) / used.h_dp)


def canaries_alarm(used: PrivacyPlan) -> bool:
    """Tell whether the cosine audit's lower bound passes the claim."""
    return rehearsal(used, 10)[0].is_alarm


def canaries_alarm_after_dropouts(used: PrivacyPlan) -> bool:
    """Tell the same where two of ten silos vanished: eight shares are in the sum."""
    return rehearsal(used, 8)[0].is_alarm


def padding_shows_it(used: PrivacyPlan) -> bool:
    """Tell whether the padding's variance is not the planned one."""
    return rehearsal(used, 10)[1] < 1e-4


def a_unit_moves_too_far(used: PrivacyPlan) -> bool:
    """Tell whether some neighbors' integers are further apart than D2.

    The worst neighbors: a vector of norm C against nothing or, under replace-one, its opposite;
    concentrated, or spread so that rounding lengthens it.
    """
    length = used.dimension - (used.adaptive is not None)
    spike = np.zeros(length)
    spike[0] = used.clip
    flat = np.full(length, used.clip / math.sqrt(length) * (1 - 1e-9))
    for vector in (spike, flat):
        ours = encode(contribution({"update": vector}, used), used, ReplayStream(b"a"))
        other = np.zeros_like(ours)
        if used.adjacency is Adjacency.REPLACE_ONE:
            other = encode(contribution({"update": -vector}, used), used, ReplayStream(b"b"))
        if np.linalg.norm((ours - other).astype(np.float64)) > grid_sensitivity(used):
            return True
    return False


def d2_is_not_the_worst_case(used: PrivacyPlan) -> bool:
    """Tell whether D2 is off the distance of the worst neighbors by more than 5 %."""
    worst = 2.0 if used.adjacency is Adjacency.REPLACE_ONE else 1.0
    return not 1.0 <= grid_sensitivity(used) / (worst * bound_on_grid(used)) < 1.05


def honest_noise_falls_short(used: PrivacyPlan) -> bool:
    """Tell whether the honest shares at the floor are less than z·D2 (error rate below 1e-6)."""
    honest = np.zeros(D + (used.padding or 0), np.int64)
    for silo in range(used.h_dp):
        honest += draw_share(used, ReplayStream(f"honest {silo}".encode())).values
    measured = math.sqrt(float(np.mean(np.square(honest.astype(np.float64)))))
    return measured < used.z * grid_sensitivity(used) * (1 - 5 / math.sqrt(2 * len(honest)))


def coins_depend_on_data(used: PrivacyPlan) -> bool:
    """Tell whether encoding different vectors uses different numbers of coins."""
    ends = set()
    for scale in (0.0, 0.3, 1.0):
        coins = ReplayStream(b"coins")
        encode(contribution({"update": np.full(D, scale)}, used), used, coins)
        ends.add(int(coins.words(1)[0]))
    return len(ends) > 1


def no_noise(patch: pytest.MonkeyPatch) -> None:
    """Draw zeros."""

    class Silent:
        bins = 1

        def draw(self, count: int, _source: Any) -> NDArray[np.int64]:
            """Return no noise at all."""
            return np.zeros(count, np.int64)

    patch.setattr(mechanisms, "_sampler", lambda _: Silent())


def half_noise(patch: pytest.MonkeyPatch) -> None:
    """Halve the std."""
    patch.setattr(mechanisms, "share_noise_std", lambda used: share_noise_std(used) / 2)


def std_split_instead_of_variance(patch: pytest.MonkeyPatch) -> None:
    """Divide the std by h_dp instead of its root."""
    patch.setattr(
        mechanisms, "share_noise_std", lambda used: share_noise_std(used) / math.sqrt(used.h_dp)
    )


def share_of_all_silos(patch: pytest.MonkeyPatch) -> None:
    """Divide by the number of silos instead of the honest shares at the floor."""
    patch.setattr(
        mechanisms,
        "share_noise_std",
        lambda used: share_noise_std(used) * math.sqrt(used.h_dp / used.cohort_size),
    )


def share_of_those_who_sent(patch: pytest.MonkeyPatch) -> None:
    """Divide by |U3|, the eight whose vectors came, as if all of them were honest."""
    patch.setattr(
        mechanisms, "share_noise_std", lambda used: share_noise_std(used) * math.sqrt(used.h_dp / 8)
    )


def clip_skipped(patch: pytest.MonkeyPatch) -> None:
    """Let every norm pass, and let the range follow."""

    def keep(parts: Any, _bounds: Any, _norm: float) -> Clipped:
        return Clipped(
            values=np.concatenate(list(parts.values())), is_unclipped=True, is_finite=True
        )

    patch.setattr(mechanisms, "clip_joint", keep)


def variate_not_noised(patch: pytest.MonkeyPatch) -> None:
    """Noise the first half only."""
    real = mechanisms._sampler

    class Half:
        def __init__(self, used: PrivacyPlan) -> None:
            self.inner = real(used)
            self.bins = self.inner.bins

        def draw(self, count: int, source: Any) -> NDArray[np.int64]:
            """Return noise that leaves the second segment alone."""
            values = self.inner.draw(count, source)
            values[D // 2 : D] = 0
            return values

    patch.setattr(mechanisms, "_sampler", Half)


def replace_one_as_zero_out(patch: pytest.MonkeyPatch) -> None:
    """Forget that a replaced unit moves twice."""
    patch.setattr(sensitivity, "moved_vectors", lambda _: 1)


def factor_two_twice(patch: pytest.MonkeyPatch) -> None:
    """Count it twice too often."""
    patch.setattr(sensitivity, "moved_vectors", lambda _: 4)


def bit_left_out_of_the_norm(patch: pytest.MonkeyPatch) -> None:
    """Noise of z·C although the bit is in the vector."""
    patch.setattr(sensitivity, "bit_scale", lambda _: 0.0)


def rounding_left_out(patch: pytest.MonkeyPatch) -> None:
    """Take C·s for the sensitivity of the rounded vector."""
    patch.setattr(grid, "rounded_norm", lambda norm, _: norm)


def conditional_rounding(patch: pytest.MonkeyPatch) -> None:
    """Redraw until the rounded vector is short enough."""

    def redraw(scaled: NDArray[np.float64], source: Any) -> NDArray[np.int64]:
        longest = float(np.linalg.norm(scaled)) + 0.1
        while True:
            rounded = round_randomly(scaled, source)
            if np.linalg.norm(rounded.astype(np.float64)) <= longest:
                return rounded
            longest += 1.0

    patch.setattr(mechanisms, "round_randomly", redraw)


ADAPTIVE = {
    "cohort_size": 100,
    "adaptive": AdaptiveClip(count_noise_std=0.8, clip_min=0.1, clip_max=9.0),
}
MUTANTS: list[tuple[Mutation, PrivacyPlan, Check]] = [
    (no_noise, plan(), canaries_alarm),
    (no_noise, plan(), padding_shows_it),
    (half_noise, plan(), canaries_alarm),
    (half_noise, plan(), padding_shows_it),
    (half_noise, plan(), honest_noise_falls_short),
    (std_split_instead_of_variance, plan(), canaries_alarm),
    (std_split_instead_of_variance, plan(), honest_noise_falls_short),
    (share_of_all_silos, plan(), canaries_alarm),
    (share_of_all_silos, plan(), honest_noise_falls_short),
    (share_of_those_who_sent, plan(), canaries_alarm_after_dropouts),
    (share_of_those_who_sent, plan(), honest_noise_falls_short),
    (clip_skipped, plan(), canaries_alarm),
    (variate_not_noised, segmented(), canaries_alarm),
    (replace_one_as_zero_out, plan(adjacency=Adjacency.REPLACE_ONE), a_unit_moves_too_far),
    (factor_two_twice, plan(adjacency=Adjacency.REPLACE_ONE), d2_is_not_the_worst_case),
    (bit_left_out_of_the_norm, plan(**ADAPTIVE), a_unit_moves_too_far),
    (rounding_left_out, plan(grid_bound=64.0), a_unit_moves_too_far),
    (conditional_rounding, plan(grid_bound=64.0), coins_depend_on_data),
]


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("mutate", "used", "check"),
    MUTANTS,
    ids=[f"{mutate.__name__}-{check.__name__}" for mutate, _, check in MUTANTS],
)
def test_the_mutant_is_caught(
    mutate: Mutation, used: PrivacyPlan, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check is silent on the real code and speaks on the mutant."""
    assert not check(used)
    mutate(monkeypatch)
    assert check(used)


@pytest.mark.parametrize("is_mutant", [False, True])
def test_a_noise_key_used_in_two_rounds_is_caught(is_mutant: bool) -> None:
    """The difference of two releases has the noise of both, unless a key came back."""
    used = plan()
    first = draw_share(used, ReplayStream(b"round 1")).values
    second = draw_share(used, ReplayStream(b"round 1" if is_mutant else b"round 2")).values
    spread = math.sqrt(float(np.mean(np.square((first - second).astype(np.float64)))))
    assert (spread < share_noise_std(used)) is is_mutant


def test_weights_above_one_are_caught() -> None:
    """No plan has them, and no contribution takes more than its plan's."""
    with pytest.raises(PlanError, match="max_weight"):
        plan(max_weight=1.5)
    with pytest.raises(PlanError, match="weight"):
        contribution({"update": np.ones(D)}, plan(), weight=1.5)


@pytest.mark.parametrize("is_mutant", [False, True])
def test_standardizing_by_own_statistics_is_caught(is_mutant: bool) -> None:
    """Unit record: with a silo's own mean and sd one outlier moves everyone's gradient.

    The joint-sensitivity check on whole silos sees it: integers further apart than D2.
    """
    used = plan(
        unit=Unit.RECORD,
        adjacency=Adjacency.ADD_REMOVE,
        mode=Mode.FEDSGD,
        dimension=8,
        max_units_per_silo=201,
    )
    generator = np.random.default_rng(7)
    features = generator.normal(1.0, 1.0, (200, 8))
    outlier = np.full((1, 8), 500.0)

    def total(rows: NDArray[np.float64]) -> NDArray[np.int64]:
        if is_mutant:
            rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
        gathered = UnitSum(used, ReplayStream(b"coins"))
        for row in rows:
            gathered.add(contribution({"update": row}, used))
        return gathered.integers()

    moved = total(np.concatenate([features, outlier])) - total(features)
    is_too_far = float(np.linalg.norm(moved.astype(np.float64))) > grid_sensitivity(used)
    assert is_too_far is is_mutant


def test_each_segment_clipped_alone_is_not_one_norm() -> None:
    """Two clips under one C have the sensitivity of both: a plan that says C alone is refused."""
    parts = (
        Segment(name="y", length=D // 2, bound=1.0),
        Segment(name="c", length=D // 2, bound=1.0),
    )
    with pytest.raises(PlanError, match="joint sensitivity"):
        plan(clipping=Clipping.SEGMENTS, segments=parts)

"""How much noise is in what is opened, mode by mode; fixed seeds, five standard errors."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dp.accountant import epsilon
from dp.audit import padding_test
from dp.errors import NoiseShortfallError
from dp.events import GaussianEvent
from dp.mechanisms import (
    add_central_noise,
    check_survivors,
    contribution,
    decode,
    draw_share,
    encode,
    full_noise,
    split_padding,
)
from dp.plan import (
    AdaptiveClip,
    Adjacency,
    Mode,
    PrivacyPlan,
    Unit,
    bit_scale,
    bound_on_grid,
    grid_sensitivity,
    share_noise_std,
)
from dp.rng import ReplayStream

pytestmark = pytest.mark.statistical

D = 20_000


def plan(mode: Mode, **changes: Any) -> PrivacyPlan:
    """Return a plan with sigma = z = 1, C = 1 and 20 000 coordinates."""
    fields: dict[str, Any] = {
        "unit": Unit.RECORD if mode is Mode.ISRL else Unit.SILO,
        "adjacency": Adjacency.ZERO_OUT,
        "mode": mode,
        "clip": 1.0,
        "z": 1.0,
        "rounds": 10,
        "delta": 1e-5,
        "dimension": D,
        "cohort_size": 16,
        "denominator": 16.0,
        "allow_low_utility": True,
    }
    if mode is Mode.SILO:
        fields |= {"n_c": 4, "h_dp": 8}
    return PrivacyPlan(**(fields | changes))


def zeros(used: PrivacyPlan) -> NDArray[np.int64]:
    """Return what a silo with a zero update submits before noise."""
    lengths = used.dimension - (used.adaptive is not None)
    return encode(contribution({"update": np.zeros(lengths)}, used), used, ReplayStream(b"coins"))


def opened(used: PrivacyPlan, survivors: int, seed: str = "silo") -> NDArray[np.int64]:
    """Return the opened sum of zero updates with each survivor's share."""
    total = zeros(used) * 0
    for silo in range(survivors):
        share = draw_share(used, ReplayStream(f"{seed} {silo}".encode()))
        total += zeros(used) + share.values
    return total


def std(values: NDArray[np.generic]) -> float:
    """Return the standard deviation around zero."""
    return float(np.sqrt(np.mean(np.square(values.astype(np.float64)))))


def test_dpn_10_noise_is_added_once() -> None:
    """DPN-10: 16 zero updates, C = sigma = 1: central 1, shared sqrt(16/h_dp), local 4."""
    pytest.importorskip("opacus", reason="the central draw is the optimizer's")
    close = 5 / math.sqrt(2 * D)
    used = plan(Mode.CENTRAL)
    exact = zeros(used) * 16
    central = add_central_noise(exact, used, ReplayStream(b"central"))
    assert not exact.any()
    assert std(decode(central.values, used).segments["update"]) == pytest.approx(
        1.0, abs=0.003 + close
    )

    for h_dp, shared, share in (
        (8, math.sqrt(2.0), 1 / math.sqrt(8)),
        (15, math.sqrt(16 / 15), 1 / math.sqrt(15)),
    ):
        ring = plan(Mode.SILO, n_c=1, h_dp=h_dp)
        total, _ = split_padding(opened(ring, 16), ring)
        ratio = grid_sensitivity(ring) / bound_on_grid(ring)  # the grid's 0.2 %
        assert std(decode(total, ring).segments["update"]) == pytest.approx(
            shared * ratio, rel=close
        )
        one, _ = split_padding(opened(ring, 1), ring)
        assert std(decode(one, ring).segments["update"]) == pytest.approx(share * ratio, rel=close)

    local = plan(Mode.ISRL)
    summed = sum(
        full_noise(local, ReplayStream(f"isrl {silo}".encode())).add(np.zeros(D))
        for silo in range(16)
    )
    assert std(np.asarray(summed)) == pytest.approx(4.0, rel=0.003 + close)


@pytest.mark.parametrize("survivors", [12, 14, 16])
def test_dpn_10_every_allowed_survivor_set_has_enough(survivors: int) -> None:
    """DPN-10: from the floor n_c + h_dp = 12 up, honest noise alone is at least z·D2."""
    used = plan(Mode.SILO)
    check_survivors(survivors, used)
    honest, _ = split_padding(opened(used, survivors - used.n_c), used)
    expected = grid_sensitivity(used) * math.sqrt((survivors - 4) / 8)
    assert std(honest) == pytest.approx(expected, rel=5 / math.sqrt(2 * D))
    assert expected >= grid_sensitivity(used)


def test_dpn_02_seven_of_ten_still_carry_the_booked_noise() -> None:
    """DPN-02: shares are sized for the floor; a tenth each would book 17.86 and be 22.60."""
    used = plan(Mode.SILO, cohort_size=10, denominator=10.0, n_c=1, h_dp=6)
    total, _ = split_padding(opened(used, 7), used)
    assert std(total) >= grid_sensitivity(used)  # 7/6 of the variance
    assert std(total) == pytest.approx(
        grid_sensitivity(used) * math.sqrt(7 / 6), rel=5 / math.sqrt(2 * D)
    )
    with pytest.raises(NoiseShortfallError):
        check_survivors(6, used)
    for z, figure in ((1.0, 17.86), (math.sqrt(0.7), 22.60), (math.sqrt(0.5), 28.37)):
        spent = epsilon([GaussianEvent(z=z, count=10)], 1e-5, method="closed")
        assert spent.eps == pytest.approx(figure, abs=0.005)


def test_the_sum_of_shares_is_gaussian() -> None:
    """Excess kurtosis and the two-sigma tails are those of a normal distribution."""
    used = plan(Mode.SILO)
    total, padding = split_padding(opened(used, 12), used)
    relative = total / (share_noise_std(used) * math.sqrt(12))
    kurtosis = float(np.mean(relative**4)) - 3.0
    assert abs(kurtosis) < 5 * math.sqrt(24 / D)
    beyond = float(np.mean(np.abs(relative) > 2.0))
    assert beyond == pytest.approx(0.0455, abs=5 * math.sqrt(0.0455 / D))
    assert padding_test(padding, share_noise_std(used) * math.sqrt(12))[1] > 1e-3


def test_shares_of_different_silos_are_uncorrelated() -> None:
    """The correlation of two silos' shares is zero within five standard errors."""
    used = plan(Mode.SILO)
    a, b = (draw_share(used, ReplayStream(seed)).values.astype(np.float64) for seed in (b"a", b"b"))
    correlation = float(np.mean(a * b)) / (std(a) * std(b))
    assert abs(correlation) < 5 / math.sqrt(len(a))


def test_the_clip_bits_noise_has_std_sigma_b() -> None:
    """Adaptive clipping: on the count's scale the honest noise has std sigma_b, not z."""
    used = plan(
        Mode.SILO,
        cohort_size=100,
        n_c=1,
        h_dp=4,
        adaptive=AdaptiveClip(count_noise_std=1.64, clip_min=0.1, clip_max=10.0),
    )
    noise = sum(
        (draw_share(used, ReplayStream(bytes([silo]))).values for silo in range(4)),
        start=np.zeros(D + 1024, np.int64),
    )
    ratio = grid_sensitivity(used) / bound_on_grid(used) / math.hypot(1.0, bit_scale(used) / 2)
    measured = std(noise) / bound_on_grid(used) / bit_scale(used)
    assert measured == pytest.approx(1.64 * ratio, rel=5 / math.sqrt(2 * D))
    assert 1.0 <= ratio < 1.01


def test_two_attempts_share_no_noise() -> None:
    """The difference of two attempts' sums keeps the noise of both: never zero."""
    used = plan(Mode.SILO)
    first, second = opened(used, 12, "attempt 0"), opened(used, 12, "attempt 1")
    expected = share_noise_std(used) * math.sqrt(24)
    assert std(first - second) == pytest.approx(expected, rel=5 / math.sqrt(2 * D))

"""The advisor: what is released, and what follows from it."""

from typing import Any

import numpy as np
import pytest

from fl.advisor import (
    DIVERGENCES,
    EDGES,
    Circumstances,
    Skew,
    advise,
    divergence_spec,
    divergence_values,
    feature_divergence,
    label_divergence,
)
from fl.errors import PlanError
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.statistics import Moments
from secagg.testing import RoundHarness, make_federation, make_parameters

KNOWN: dict[str, Any] = {
    "parameters": 10_000,
    "participation": 1.0,
    "uplink_bits_per_s": 1e7,
    "silos": 6,
}
ALIKE, MILD, STRONG = [0.01] * 6, [0.15] * 6, [0.9] * 5 + [0.1]


def released(divergences: list[float]) -> Any:
    """The third round's sum over silos with these divergences, through the secure sum."""
    federation = make_federation(len(divergences))
    outcome = RoundHarness(
        federation=federation,
        parameters=make_parameters(
            federation.roster, divergence_spec(), kind="statistics", n_max=len(divergences)
        ),
        state=b"the totals",
        train=lambda seat, *_: divergence_values(divergences[seat - 1]),
    ).run()
    assert outcome.aggregate is not None
    return outcome.aggregate.values


def test_divergences() -> None:
    """Zero for equal shares, half a nat for nine tenths of one of two even classes."""
    total = np.array([5000, 5000])
    assert label_divergence(np.array([500, 500]), total) == pytest.approx(0, abs=1e-6)
    skewed = label_divergence(np.array([900, 100]), total)
    assert skewed == pytest.approx(0.9 * np.log(1.8) + 0.1 * np.log(0.2), abs=0.01)
    assert np.isfinite(label_divergence(np.array([1000, 0]), total))
    alike = Moments(count=9, mean=1.0, variance=4.0)
    shifted = Moments(count=9, mean=3.0, variance=4.0)
    assert feature_divergence([alike], [alike]) == 0
    assert feature_divergence([shifted, alike], [alike, alike]) == pytest.approx(0.25)
    constant = Moments(count=9, mean=1.0, variance=0.0)
    assert feature_divergence([None, alike], [alike, constant]) == 0


def test_only_counts_of_silos_are_released() -> None:
    """One from each, in the range of its divergence."""
    total = released([0.0, 0.03, 0.15, 0.15, 9.0, EDGES[0]])
    assert total[DIVERGENCES].tolist() == [1, 2, 0, 2, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("divergences", "changes", "algorithm", "proximal"),
    [
        (ALIKE, {}, "fedavg", 0),
        (ALIKE, {"participation": 0.1}, "fedavg", 0),
        (ALIKE, {"equal_work": False}, "fedprox", 0.02),
        (MILD, {}, "scaffold", 0),
        (MILD, {"participation": 0.2}, "fedprox", 0.02),
        (STRONG, {}, "scaffold", 0),
        (STRONG, {"participation": 0.2}, "fedprox", 0.2),
        (STRONG, {"equal_work": False}, "fedprox", 0.2),
    ],
)
def test_what_is_advised(
    divergences: list[float], changes: dict[str, Any], algorithm: str, proximal: float
) -> None:
    """SCAFFOLD for high participation only, a starting μ for FedProx, and always the baseline."""
    advice = advise(released(divergences), Circumstances(**{**KNOWN, **changes}))
    assert (advice.algorithm, advice.proximal) == (algorithm, proximal)
    assert " ".join(advice.reasons).count("FedAvg") == 1
    assert " ".join(advice.reasons).count("the baseline that anything else must beat") == 1
    assert len(advice.reasons) == (3 if algorithm == "fedavg" else 4)
    assert any(algorithm == reason.partition(":")[0].lower() for reason in advice.reasons)
    plan = TrainingPlan(
        task=TaskPlan(),
        local=LocalPlan(local_steps=5, learning_rate=0.1, proximal=advice.proximal),
        rounds=1,
        max_silos=6,
        algorithm=advice.algorithm,
        compression=advice.compression,
        value_bits=advice.value_bits,
    )
    assert plan.algorithm == algorithm


def test_a_few_very_different_silos_make_the_skew_mild() -> None:
    """The median alone would not see them."""
    advice = advise(released([0.01] * 4 + [3.0] * 2), Circumstances(**KNOWN))
    assert advice.skew is Skew.MILD
    assert "more than 1.5 nats" in advice.reasons[0]


def test_slow_uplinks_are_advised_to_compress() -> None:
    """With the error and the factor stated."""
    slow = Circumstances(**{**KNOWN, "uplink_bits_per_s": 1e3})
    advice = advise(released(ALIKE), slow)
    assert advice.compression.rotate
    assert advice.value_bits == 8
    assert "times smaller than float32" in advice.reasons[-1]
    assert not advise(released(ALIKE), Circumstances(**KNOWN)).compression.rotate


@pytest.mark.parametrize("field", list(KNOWN))
def test_circumstances_out_of_range(field: str) -> None:
    """The field is named."""
    with pytest.raises(PlanError, match=field):
        Circumstances(**{**KNOWN, field: 0})

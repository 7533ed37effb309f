"""Weights: validated at the silo, capped, never guessed."""

import numpy as np
import pytest

from fl.errors import WeightError
from fl.plan import LocalPlan, TaskPlan, TrainingPlan, Weighting
from fl.weights import check_examples, silo_weight


def plan(weighting: str, **changes: object) -> TrainingPlan:
    """A plan with this weighting."""
    return TrainingPlan(
        task=TaskPlan(),
        local=LocalPlan(local_steps=1, learning_rate=0.1),
        rounds=1,
        max_silos=5,
        weighting=Weighting(weighting),
        **changes,  # type: ignore[arg-type] # n_cap or declared, by test
    )


@pytest.mark.parametrize(
    "count", [None, -5, 0, 2.5, float("nan"), True, "100", 2**63, 10**12, np.int64(4)]
)
def test_odd_counts_are_refused(count: object) -> None:
    """No count falls back to weight one; the message does not show it (AGG-05)."""
    for one in (plan("uniform"), plan("hidden", n_cap=100)):
        with pytest.raises(WeightError, match="n_examples") as caught:
            silo_weight(one, "a", count)
        if isinstance(count, int):
            assert str(abs(count)) not in str(caught.value).replace("at least 1", "").replace(
                "1 to", ""
            )


def test_the_three_weightings() -> None:
    """Uniform is one, hidden is capped, declared is looked up."""
    assert silo_weight(plan("uniform"), "a", 3) == 1.0
    assert silo_weight(plan("hidden", n_cap=100), "a", 25) == 0.25
    assert silo_weight(plan("hidden", n_cap=100), "a", 400) == 1.0
    declared = plan("declared", declared={"a": 0.5})
    assert silo_weight(declared, "a", 400) == 0.5
    with pytest.raises(WeightError, match="'b'"):
        silo_weight(declared, "b", 400)
    assert check_examples(2**31 - 1) == 2**31 - 1

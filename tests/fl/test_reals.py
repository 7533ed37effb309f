"""Real numbers cut into limbs and summed exactly."""

import numpy as np
import pytest

from fl.errors import DataError
from fl.reals import META_LIMIT, UNIT, real_segments, real_totals, real_values


def test_sums_are_exact_to_the_unit() -> None:
    """Tiny and huge together: no clip range, no float in between."""
    numbers = np.array([[1e9, -2.5, 2.0**-38], [-1e9 + 0.5, 2.25, 2.0**-38]])
    parts = [real_values("x", one, 3) for one in numbers]
    total = {name: parts[0][name] + parts[1][name] for name in parts[0]}
    assert real_totals("x", total) == [UNIT // 2, -UNIT // 4, 2]
    for segment in real_segments("x", 3, 3):
        assert segment.length == 3
        assert all(np.abs(part[segment.name]).max() <= segment.bound for part in parts)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 2.0 * META_LIMIT])
def test_what_does_not_fit_is_refused_unseen(number: float) -> None:
    """The name is told, the number is not."""
    with pytest.raises(DataError, match=r"^x: a number is not finite or too large"):
        real_values("x", np.array([0.0, number]), 3)

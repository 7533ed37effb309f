"""Federated standardization equals the pooled one."""

import numpy as np
import pytest

from fl.errors import DataError, SpecMismatchError
from fl.ports import FeatureMoments, FloatVector
from fl.statistics import COUNTS, moment_values, standardization, statistics_segments


def moments(rows: FloatVector) -> FeatureMoments:
    """A silo's moments of columns that may hold NaN for missing."""
    return FeatureMoments(
        names=tuple(f"x{place}" for place in range(rows.shape[1])),
        counts=np.count_nonzero(~np.isnan(rows), axis=0).astype(np.int64),
        sums=np.nansum(rows, axis=0),
        squares=np.nansum(rows**2, axis=0),
    )


def summed(silos: list[FloatVector]) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """What the secure sum releases of these silos."""
    parts = [moment_values(moments(rows), 10) for rows in silos]
    return {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}


def test_mean_and_scale_are_the_pooled_ones() -> None:
    """Negative means, large offsets, missing values: as numpy computes them on all rows."""
    draws = np.random.default_rng(3)
    silos = [draws.normal([-3.0, 1e4, 2e-3], [2.0, 3.0, 1e-3], size=(n, 3)) for n in (3, 40, 170)]
    silos[1][::3, 0] = np.nan
    found = standardization(summed(silos))
    pooled = np.concatenate(silos)
    np.testing.assert_allclose(found["mean"], np.nanmean(pooled, axis=0), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(found["scale"], np.nanstd(pooled, axis=0), rtol=1e-5)


def test_constant_and_absent_features_get_scale_one() -> None:
    """Nothing is divided by rounding noise, or by zero."""
    rows = np.full((7, 3), 0.1)
    rows[:, 1] = np.nan
    rows[:, 2] = 12345.678
    found = standardization(summed([rows, rows[:2]]))
    np.testing.assert_allclose(found["mean"], [0.1, 0.0, 12345.678], rtol=1e-9)
    assert found["scale"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("bad", [np.inf, -np.inf, 1e14])
def test_sums_out_of_range_name_feature_and_remedy(bad: float) -> None:
    """The silo refuses before it uploads, and says what to set."""
    rows = np.zeros((2, 2))
    rows[0, 1] = bad
    with pytest.raises(DataError, match=r"'x1'.*`scale`") as caught:
        moment_values(moments(rows), 10)
    assert "1e14" not in str(caught.value)


def test_values_lie_within_their_segments() -> None:
    """What a silo encodes obeys the bounds of ctx, negative sums too."""
    values = moment_values(moments(np.array([[-1e-13], [-5.5]])), 10)
    for segment in statistics_segments(1, 10):
        assert values[segment.name].shape == (segment.length,)
        assert abs(values[segment.name]).max() <= segment.bound
    assert (values["moments_lo"] >= 0).all()


def test_contradicting_lengths_are_refused() -> None:
    """Two moments for each count."""
    values = {COUNTS: np.array([1]), "moments_hi": np.zeros(4, int), "moments_lo": np.zeros(4, int)}
    with pytest.raises(SpecMismatchError):
        standardization(values)

"""Moments of numeric columns from one secure sum: counts, means, variances, standardization.

Each silo adds, per feature, its count, Σx and Σx², the reals exactly (fl.reals): a feature's scale
does not matter as long as its sums fit; a schema's `scale` brings one that does not into range.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl import fields
from fl.errors import DataError, SpecMismatchError
from fl.ports import FeatureMoments, FloatVector
from fl.reals import UNIT, beyond_reach, real_segments, real_totals, real_values
from secagg.parameters import Segment, meta

COUNTS: Final = "moments_count"

_MOMENTS: Final = "moments"
# The one state that every exact sum of statistics is bound to, in whatever run: a silo that was in
# one of them is in another with the same silos only (SA1 spec 2.5 v).
EXACT_SUMS: Final = fields.dump({"statistics": "exact"})
_MAX_COUNT: Final = 2**31 - 1
# Below these a feature counts as constant: what is left of its variance is rounding.
_LEAST_VARIANCE: Final = 2.0**-32
_LEAST_RELATIVE_VARIANCE: Final = 1e-9

IntVector = NDArray[np.int64]


def statistics_segments(features: int, n_max: int) -> tuple[Segment, ...]:
    """Return the segments of a statistics round over f features and at most n_max silos."""
    return (
        meta(COUNTS, features, bound=_MAX_COUNT),
        *real_segments(_MOMENTS, 2 * features, n_max),
    )


def moment_values(moments: FeatureMoments, n_max: int) -> dict[str, IntVector]:
    """Return a silo's moments as the integers of their segments.

    Raises:
        DataError: a sum is not finite or too large; names the feature, not the sum.
    """
    sums = np.concatenate([moments.sums, moments.squares])
    bad = beyond_reach(sums, n_max)
    if bad.any():
        place = int(np.flatnonzero(bad)[0]) % len(moments.names)
        raise DataError(
            f"feature {moments.names[place]!r}: the sum of its values or squares is not finite or "
            "too large for the secure sum; set its `scale` in the schema to a typical magnitude"
        )
    return {COUNTS: moments.counts.astype(np.int64), **real_values(_MOMENTS, sums, n_max)}


def standardization(values: Mapping[str, IntVector]) -> dict[str, FloatVector]:
    """Return "mean" and "scale", each (f,), of summed moments.

    The scale is the population's standard deviation; 1 for a feature that is constant or that no
    silo has, whose mean is 0 then.

    Raises:
        SpecMismatchError: the segments' lengths contradict each other.
    """
    found = released_moments(values)
    mean = np.array([0.0 if one is None else one.mean for one in found])
    scale = np.ones(len(found))
    for place, one in enumerate(found):
        least = max(_LEAST_VARIANCE, _LEAST_RELATIVE_VARIANCE * mean[place] ** 2)
        if one is not None and one.variance > least:
            scale[place] = math.sqrt(one.variance)
    return {"mean": mean, "scale": scale}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """A numeric column over all survivors.

    Attributes:
        count: values that are there.
        mean: of them.
        variance: the population's, of them.
    """

    count: int
    mean: float
    variance: float


def released_moments(values: Mapping[str, IntVector]) -> list[Moments | None]:
    """Return each column's moments from their sums; None for one without a value.

    Computed in whole numbers up to the last division, so that Σx² − (Σx)²/n loses nothing.

    Raises:
        SpecMismatchError: the segments' lengths contradict each other.
    """
    counts = [int(count) for count in values[COUNTS]]
    totals = real_totals(_MOMENTS, values)
    if len(totals) != 2 * len(counts):
        raise SpecMismatchError("statistics: expected two moments for each feature's count")
    found: list[Moments | None] = []
    for place, count in enumerate(counts):
        if count < 1:
            found.append(None)
            continue
        total, squares = totals[place], totals[len(counts) + place]
        variance = (count * squares * UNIT - total * total) / (count * UNIT) ** 2
        mean = total / (count * UNIT)
        found.append(Moments(count=count, mean=mean, variance=max(variance, 0.0)))
    return found

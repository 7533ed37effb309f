"""Federated standardization: means and scales of numeric features from one secure sum.

Each silo adds, per feature, its count, Σx and Σx². A sum of reals is one number in units of 2^-38
cut into two limbs, whole part and rest, each a bounded integer of the meta ring. The limbs add up
exactly, so nothing depends on a clip range and a feature's scale does not matter as long as its
sums fit; a schema's `scale` brings a feature that does not fit into range.
"""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl.errors import DataError, SpecMismatchError
from fl.ports import FeatureMoments, FloatVector
from secagg.parameters import Segment, meta

COUNTS: Final = "moments_count"
HIGH: Final = "moments_hi"
LOW: Final = "moments_lo"

_UNIT: Final = 2**38
_META_LIMIT: Final = 2**47 - 1  # n_max times a bound stays below 2^47 (protocol.md 4)
_MAX_COUNT: Final = 2**31 - 1
# Below these a feature counts as constant: what is left of its variance is rounding.
_LEAST_VARIANCE: Final = 2.0**-32
_LEAST_RELATIVE_VARIANCE: Final = 1e-9

IntVector = NDArray[np.int64]


def statistics_segments(features: int, n_max: int) -> tuple[Segment, ...]:
    """Return the segments of a statistics round over f features and at most n_max silos."""
    return (
        meta(COUNTS, features, bound=_MAX_COUNT),
        meta(HIGH, 2 * features, bound=_META_LIMIT // n_max),
        meta(LOW, 2 * features, bound=_UNIT),
    )


def moment_values(moments: FeatureMoments, n_max: int) -> dict[str, IntVector]:
    """Return a silo's moments as the integers of their segments.

    Raises:
        DataError: a sum is not finite or too large; names the feature, not the sum.
    """
    sums = np.concatenate([moments.sums, moments.squares])
    whole = np.floor(sums)
    bad = ~(np.abs(whole) <= _META_LIMIT // n_max)  # NaN fails, too
    if bad.any():
        place = int(np.flatnonzero(bad)[0]) % len(moments.names)
        raise DataError(
            f"feature {moments.names[place]!r}: the sum of its values or squares is not finite or "
            "too large for the secure sum; set its `scale` in the schema to a typical magnitude"
        )
    rest = np.rint((sums - whole) * _UNIT)
    return {
        COUNTS: moments.counts.astype(np.int64),
        HIGH: whole.astype(np.int64),
        LOW: rest.astype(np.int64),
    }


def standardization(values: Mapping[str, IntVector]) -> dict[str, FloatVector]:
    """Return "mean" and "scale", each (f,), of summed moments.

    The scale is the population's standard deviation; 1 for a feature that is constant or that no
    silo has, whose mean is 0 then. Computed in whole numbers up to the last division, so that
    Σx² − (Σx)²/n loses nothing.

    Raises:
        SpecMismatchError: the segments' lengths contradict each other.
    """
    counts = [int(count) for count in values[COUNTS]]
    totals = [
        int(high) * _UNIT + int(low) for high, low in zip(values[HIGH], values[LOW], strict=True)
    ]
    if len(totals) != 2 * len(counts):
        raise SpecMismatchError("statistics: expected two moments for each feature's count")
    mean = np.zeros(len(counts))
    scale = np.ones(len(counts))
    for place, count in enumerate(counts):
        if count < 1:
            continue
        total, squares = totals[place], totals[len(counts) + place]
        mean[place] = total / (count * _UNIT)
        variance = (count * squares * _UNIT - total * total) / (count * _UNIT) ** 2
        if variance > max(_LEAST_VARIANCE, _LEAST_RELATIVE_VARIANCE * mean[place] ** 2):
            scale[place] = math.sqrt(variance)
    return {"mean": mean, "scale": scale}

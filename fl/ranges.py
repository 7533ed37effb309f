"""Clip ranges that nobody sets by hand: each round's follows from the round before.

Two counts, summed over silos like everything else, steer a segment's range C: how many
coordinates lay beyond C (they were saturated) and how many beyond C/8. The mean would not do: at
a fixed point of FedAvg the mean vanishes while the silos' updates do not. A saturated coordinate
widens the range fourfold; a round in which nobody came near C/8 narrows it to a quarter, which
still leaves twice the room. So C follows the updates down as a run converges, and with it the
quantizer's step: 16 value bits then reach any precision.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl.ports import FloatVector

# Wide on purpose: the first training round is encoded with more bits (TrainingPlan).
INITIAL_RANGE: Final = 8.0

_FACTOR: Final = 4.0
_QUIET_FRACTION: Final = 1 / 8
# Where updates are exactly zero, as after convergence, the range stops here, far above underflow.
_MIN_RANGE: Final = 2.0**-60
_MAX_RANGE: Final = 2.0**60


def usage(values: FloatVector, clip_range: float) -> NDArray[np.int64]:
    """Return how many values lie beyond the range and beyond an eighth of it, shape (2,)."""
    magnitudes = np.abs(values)
    beyond = np.count_nonzero(magnitudes > clip_range)
    large = np.count_nonzero(magnitudes > clip_range * _QUIET_FRACTION)
    return np.array([beyond, large], dtype=np.int64)


def next_range(clip_range: float, saturated: int, large: int) -> float:
    """Return the next round's range.

    Args:
        clip_range: C of the round that was summed.
        saturated: coordinates of all survivors beyond C.
        large: coordinates of all survivors beyond C/8, the saturated ones too.
    """
    if saturated:
        return min(clip_range * _FACTOR, _MAX_RANGE)
    if large:
        return clip_range
    return max(clip_range / _FACTOR, _MIN_RANGE)

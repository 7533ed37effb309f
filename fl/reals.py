"""Real numbers in the meta ring: summed exactly, without a clip range.

A number is taken in units of 2^-38 and cut into two limbs, whole part and rest, each a bounded
integer. The limbs add up exactly, so nothing depends on a guess of the numbers' size as long as
their whole parts fit.
"""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl.errors import DataError
from fl.ports import FloatVector
from secagg.parameters import Segment, meta

UNIT: Final = 2**38
META_LIMIT: Final = 2**47 - 1  # n_max times a bound stays below 2^47 (protocol.md 4)

IntVector = NDArray[np.int64]


def real_segments(
    name: str, length: int, n_max: int, most: float | None = None
) -> tuple[Segment, Segment]:
    """Return the two segments of `length` real numbers of at most n_max silos.

    Args:
        name: of the numbers.
        length: how many.
        n_max: silos in a sum.
        most: by size, where a number has a natural bound: a silo that lies then moves a sum by no
            more than n_max times this. None: what the ring holds.
    """
    limit = META_LIMIT // n_max
    return (
        meta(f"{name}_hi", length, bound=limit if most is None else min(limit, math.ceil(most))),
        meta(f"{name}_lo", length, bound=UNIT),
    )


def beyond_reach(numbers: FloatVector, n_max: int) -> NDArray[np.bool_]:
    """Return which numbers are not finite or too large."""
    return ~(np.abs(np.floor(numbers)) <= META_LIMIT // n_max)  # NaN fails, too


def real_values(name: str, numbers: FloatVector, n_max: int) -> dict[str, IntVector]:
    """Return a silo's numbers as the integers of their segments.

    Raises:
        DataError: one is not finite or too large; the message does not show it.
    """
    if beyond_reach(numbers, n_max).any():
        raise DataError(f"{name}: a number is not finite or too large for the secure sum")
    whole = np.floor(numbers)
    rest = np.rint((numbers - whole) * UNIT)
    return {f"{name}_hi": whole.astype(np.int64), f"{name}_lo": rest.astype(np.int64)}


def real_totals(name: str, values: Mapping[str, IntVector]) -> list[int]:
    """Return the sums in units of 2^-38, as whole numbers of any size."""
    limbs = zip(values[f"{name}_hi"], values[f"{name}_lo"], strict=True)
    return [int(high) * UNIT + int(low) for high, low in limbs]

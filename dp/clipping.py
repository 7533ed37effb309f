"""Clipping bounds what one unit can move: norms in float64, whatever the values, never an abort.

Whatever a unit brings ends as a vector of norm at most C·(1 + 2**-20): zero and subnormal vectors
stay as they are, finite ones beyond C are scaled down without overflow, and a vector with a NaN or
an infinity becomes the zero vector, because staying away would tell (privacy.md 4.1). The caller
may count such vectors in a log that never leaves the silo.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dp.errors import InfeasibleError, PlanError
from dp.plan import AdaptiveClip

FloatVector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clipped:
    """What is left of one unit's vector; all of it stays in the silo until it is noised.

    Attributes:
        values: shape (d,), float64, finite, norm at most C·(1 + 2**-20).
        is_unclipped: whether the norm was at most C; the bit of adaptive clipping.
        is_finite: whether the vector was finite; if not, values are zero.
    """

    values: FloatVector
    is_unclipped: bool
    is_finite: bool


def clip(vector: FloatVector, clip_norm: float) -> Clipped:
    """Scale a vector down to the norm C if it is longer.

    Args:
        vector: shape (d,), float64.
        clip_norm: C, finite and above 0, in the vector's units.

    Raises:
        PlanError: clip_norm is no such number.
    """
    if not 0.0 < clip_norm < math.inf:
        raise PlanError(f"expected a finite clip norm above 0, got {clip_norm!r}")
    largest = float(np.max(np.abs(vector), initial=0.0))
    if not math.isfinite(largest):  # NaN passes through max, so this sees both
        return Clipped(values=np.zeros(len(vector)), is_unclipped=False, is_finite=False)
    if largest == 0.0:
        return Clipped(values=np.zeros(len(vector)), is_unclipped=True, is_finite=True)
    # Relative to the largest value no square overflows, and none that matters underflows.
    relative = vector / largest
    length = math.sqrt(float(np.sum(np.square(relative))))
    if largest <= clip_norm / length:
        return Clipped(values=vector.copy(), is_unclipped=True, is_finite=True)
    relative *= clip_norm / length
    return Clipped(values=relative, is_unclipped=False, is_finite=True)


def clip_joint(
    blocks: Mapping[str, FloatVector], bounds: Mapping[str, float], clip_norm: float
) -> Clipped:
    """Clip several segments by one norm, each first divided by its bound (privacy.md 4.4).

    Two segments clipped by themselves would have the sensitivity of both bounds together; one
    norm over all of them is one release with one z.

    Args:
        blocks: segments by name, shape (d_i,) each, float64; their order is the vector's.
        bounds: a finite number above 0 for each name, in that segment's units.
        clip_norm: C, dimensionless.

    Returns:
        the concatenated, divided vector, clipped as a whole.

    Raises:
        PlanError: names differ, or a bound is no such number.
    """
    _check_bounds(blocks, bounds)
    with np.errstate(over="ignore"):  # an overflow is an infinity, and that has its rule
        parts = [block / bounds[name] for name, block in blocks.items()]
    return clip(np.concatenate(parts), clip_norm)


def clip_groups(blocks: Mapping[str, FloatVector], bounds: Mapping[str, float]) -> Clipped:
    """Clip each segment to a bound of its own; the sensitivity is sqrt(∑ C_g²) (privacy.md 4.3).

    A NaN anywhere takes the whole unit out, not only its segment.

    Returns:
        the concatenated vector in the segments' units; is_unclipped if no segment was clipped.

    Raises:
        PlanError: names differ, or a bound is no such number.
    """
    _check_bounds(blocks, bounds)
    parts = [clip(block, bounds[name]) for name, block in blocks.items()]
    is_finite = all(part.is_finite for part in parts)
    values = np.concatenate([part.values for part in parts])
    return Clipped(
        values=values if is_finite else np.zeros(len(values)),
        is_unclipped=all(part.is_unclipped for part in parts),
        is_finite=is_finite,
    )


def noised_blocks(
    tensors: Mapping[str, NDArray[np.generic]], parameters: Collection[str]
) -> dict[str, FloatVector]:
    """Pick from a result what is clipped, noised and sent: the named float parameters.

    Everything else, such as counters and running statistics, stays in the silo: it is outside the
    guarantee and would only swell the norm.

    Args:
        tensors: a *difference* of models, by name.
        parameters: the plan's parameter names, in the vector's order.

    Returns:
        flat float64 vectors in the order of `parameters`.

    Raises:
        PlanError: a parameter is missing or not real floating point. What cannot be noised is
            not sent.
    """
    blocks = {}
    for name in parameters:
        if name not in tensors:
            raise PlanError(f"expected parameter {name!r} in the result, it is missing")
        tensor = tensors[name]
        if not np.issubdtype(tensor.dtype, np.floating):
            raise PlanError(
                f"parameter {name!r}: expected a real floating-point type, got {tensor.dtype}: it "
                "cannot be noised, so it is not sent; keep it local"
            )
        blocks[name] = tensor.astype(np.float64).ravel()
    return blocks


def update_clip(clip_norm: float, noisy_count: float, n_public: float, rule: AdaptiveClip) -> float:
    """Move C toward the quantile, from the noised number of *unclipped* units.

    More unclipped units than wanted make C smaller. The sign matters: counting clipped ones with
    the same exponent runs away to zero or to infinity (privacy.md 4.2).

    Args:
        clip_norm: C of the round that was released.
        noisy_count: the released ∑ (b_k - 1/2), noise included, over all units.
        n_public: planned number of units: silos, or q times the declared patients.
        rule: quantile, rate and limits.

    Returns:
        the next round's C, within the rule's limits; public, and part of the round's state.

    Raises:
        InfeasibleError: nothing was counted, or the count is not a number.
    """
    if not (n_public > 0 and math.isfinite(noisy_count)):
        raise InfeasibleError(f"expected a finite count of n > 0 units, got n = {n_public!r}")
    share = min(max(noisy_count / n_public + 0.5, 0.0), 1.0)
    moved = clip_norm * math.exp(-rule.learning_rate * (share - rule.quantile))
    return min(max(moved, rule.clip_min), rule.clip_max)


def _check_bounds(blocks: Mapping[str, FloatVector], bounds: Mapping[str, float]) -> None:
    if set(blocks) != set(bounds) or not blocks:
        raise PlanError(
            f"expected a bound for each segment, got segments {sorted(blocks)} and bounds "
            f"for {sorted(bounds)}"
        )
    for name, bound in bounds.items():
        if not 0.0 < bound < math.inf:
            raise PlanError(f"segment {name!r}: expected a finite bound above 0, got {bound!r}")

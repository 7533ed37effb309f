"""Both halves of a round's vector side by side: encode at the silo, decode for everybody.

A training round's segments, in order: the algorithm's bulk segments, for each of them its
`usage_…` (saturated and large coordinates, fl.ranges), with hidden weights `weight` (capped
examples), with metrics `examples`, `correct` and `loss_sum` (fixed point). A statistics round has
the three of fl.statistics. All of it follows from the plan, the round's number and one size, so
silo and coordinator compute the vector's spec apart from each other and compare.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from fl.algorithms import algorithm_of
from fl.errors import NonFiniteUpdateError, SpecMismatchError
from fl.plan import MAX_EXAMPLES, RoundKind, TrainingPlan, Weighting
from fl.ports import FloatVector, Metrics
from fl.ranges import usage
from fl.statistics import statistics_segments
from secagg.ids import RunId
from secagg.parameters import Segment, SegmentKind, VectorSpec, bulk, meta
from secagg.prg import rounding_coins
from secagg.quantizer import Quantizer

WEIGHT: Final = "weight"
EXAMPLES: Final = "examples"
CORRECT: Final = "correct"
LOSS_SUM: Final = "loss_sum"

_USAGE: Final = "usage_"
_LOSS_SCALE: Final = 2**16
_META_LIMIT: Final = 2**47 - 1  # n_max times a bound stays below 2^47 (protocol.md 4)

IntVector = NDArray[np.int64]
_Number = TypeVar("_Number", np.float64, np.int64)


def usage_name(segment: str) -> str:
    """Return the meta segment that counts how a bulk segment fills its range."""
    return _USAGE + segment


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedContribution:
    """What a silo hands to the secure sum, and what its integers say.

    Attributes:
        segments: every data segment's integers, int64.
        decoded: each bulk segment's integers as reals again, float64.
        saturated: coordinates that lay beyond their range; for the silo's own log.
    """

    segments: dict[str, IntVector]
    decoded: dict[str, FloatVector]
    saturated: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoded:
    """A vector as numbers again: one silo's or a sum's.

    Attributes:
        bulk: name to reals, shape (d,), float64.
        meta: name to integers, int64.
    """

    bulk: dict[str, FloatVector]
    meta: dict[str, IntVector]


def vector_spec(plan: TrainingPlan, number: int, size: int) -> VectorSpec:
    """Return what round `number` sums.

    Args:
        plan: of the run.
        number: the round's; its kind and precision follow.
        size: d, the model's floating parameters; in a statistics round the numeric features.
    """
    if plan.kind_of(number) is RoundKind.STATISTICS:
        return VectorSpec(segments=statistics_segments(size, plan.max_silos))
    names = algorithm_of(plan).segments
    bits = plan.value_bits_of(number)
    segments: list[Segment] = [
        bulk(name, size, value_bits=bits, n_max=plan.max_silos) for name in names
    ]
    segments += [meta(usage_name(name), 2, bound=size) for name in names]
    if plan.weighting is Weighting.HIDDEN:
        segments.append(meta(WEIGHT, 1, bound=plan.n_cap))
    if plan.metrics:
        segments += [
            meta(EXAMPLES, 1, bound=MAX_EXAMPLES),
            meta(CORRECT, 1, bound=MAX_EXAMPLES),
            meta(LOSS_SUM, 1, bound=_META_LIMIT // plan.max_silos),
        ]
    return VectorSpec(segments=tuple(segments))


def metric_values(plan: TrainingPlan, metrics: Metrics) -> dict[str, IntVector]:
    """Return a silo's metrics as the integers of their segments.

    A loss beyond the segment's bound counts as the bound: a diverged model is no reason to stop.

    Raises:
        NonFiniteUpdateError: the loss is NaN.
    """
    if math.isnan(metrics.loss_sum):
        raise NonFiniteUpdateError("the loss at the received model is NaN; check the silo's data")
    bound = _META_LIMIT // plan.max_silos
    loss = min(max(metrics.loss_sum * _LOSS_SCALE, -bound), bound)
    return {
        EXAMPLES: np.array([metrics.examples], dtype=np.int64),
        CORRECT: np.array([metrics.correct], dtype=np.int64),
        LOSS_SUM: np.array([round(loss)], dtype=np.int64),
    }


def released_metrics(values: Mapping[str, IntVector]) -> Metrics | None:
    """Return the summed metrics of a decoded sum, None where the plan has none."""
    if LOSS_SUM not in values:
        return None
    return Metrics(
        loss_sum=int(values[LOSS_SUM][0]) / _LOSS_SCALE,
        correct=int(values[CORRECT][0]),
        examples=int(values[EXAMPLES][0]),
    )


def with_usage(
    parts: Mapping[str, FloatVector], values: Mapping[str, IntVector], ranges: Mapping[str, float]
) -> dict[str, IntVector]:
    """Return the meta values, the usage of each part's range included."""
    used = {usage_name(name): usage(part, ranges[name]) for name, part in parts.items()}
    return {**values, **used}


def encode_contribution(
    contribution: Decoded,
    *,
    spec: VectorSpec,
    ranges: Mapping[str, float],
    secret: bytes,
    run: RunId,
    number: int,
) -> EncodedContribution:
    """Quantize a silo's parts and put its integers in place.

    Args:
        contribution: weighted parts, and the meta values.
        spec: of the round.
        ranges: clip range of each bulk segment, from the state.
        secret: 32 bytes that only this silo knows; keys the rounding coins, so that a new attempt
            of the round repeats the same integers.
        run: of the round.
        number: of the round.

    Raises:
        SpecMismatchError: a part or value is missing, or has another length than its segment.
    """
    segments: dict[str, IntVector] = {}
    decoded: dict[str, FloatVector] = {}
    saturated = 0
    for segment in spec.segments:
        if segment.kind is SegmentKind.META:
            segments[segment.name] = _of_length(segment, contribution.meta.get(segment.name))
            continue
        values = _of_length(segment, contribution.bulk.get(segment.name))
        quantizer = _quantizer(segment, ranges)
        coins = rounding_coins(secret, run, number, segment.name)
        encoded = quantizer.encode(values, rand=coins)
        segments[segment.name] = encoded.values
        decoded[segment.name] = quantizer.decode(encoded.values)
        saturated += encoded.saturated
    return EncodedContribution(segments=segments, decoded=decoded, saturated=saturated)


def decode_aggregate(
    values: Mapping[str, IntVector], *, spec: VectorSpec, ranges: Mapping[str, float]
) -> Decoded:
    """Return a secure sum's integers as numbers.

    Args:
        values: every data segment's sum.
        spec: of the round.
        ranges: clip range of each bulk segment, from the state that the silos trained on.

    Raises:
        SpecMismatchError: a segment is missing or has another length.
    """
    decoded = Decoded(bulk={}, meta={})
    for segment in spec.segments:
        total = _of_length(segment, values.get(segment.name))
        if segment.kind is SegmentKind.META:
            decoded.meta[segment.name] = total
        else:
            decoded.bulk[segment.name] = _quantizer(segment, ranges).decode(total)
    return decoded


def quantizer_steps(spec: VectorSpec, ranges: Mapping[str, float]) -> dict[str, float]:
    """Return the distance of neighboring values of each bulk segment."""
    return {
        segment.name: _quantizer(segment, ranges).step
        for segment in spec.segments
        if segment.kind is SegmentKind.BULK
    }


def _quantizer(segment: Segment, ranges: Mapping[str, float]) -> Quantizer:
    """Return the segment's quantizer with the state's range."""
    clip_range = ranges.get(segment.name)
    if clip_range is None:
        raise SpecMismatchError(f"the state holds no clip range for segment {segment.name!r}")
    return Quantizer(value_bits=segment.value_bits, clip_range=clip_range)


def _of_length(segment: Segment, values: NDArray[_Number] | None) -> NDArray[_Number]:
    """Return the values if there are as many as the segment has coordinates (SCA-09)."""
    if values is None or values.shape != (segment.length,):
        came = "nothing" if values is None else f"shape {values.shape}"
        raise SpecMismatchError(
            f"segment {segment.name!r}: expected shape ({segment.length},), got {came}"
        )
    return values

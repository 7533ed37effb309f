"""Both halves of a round's vector side by side: encode at the silo, decode for everybody.

A training round's segments, in order: the algorithm's bulk segments, for each of them its `usage_…`
(saturated and large coordinates, fl.ranges), the algorithm's real numbers (fl.reals), with hidden
weights `weight` (capped examples), with control variates `members` (1 from a silo that joins, -1
from one that leaves), with metrics the silo's mean `accuracy` and `loss` or, where hidden weights
count examples anyhow, `examples`, `correct` and `loss_sum` (fixed point), and as the plan asks
`score_bins` and `pairs`. Under a privacy plan fl.privacy says what is summed. A refresh round sums
control variates anew: `variate`, its usage, and the weight. A statistics round has the three of
fl.statistics. All of it follows from the plan, the round's number and one size, so silo and
coordinator compute the vector's spec apart from each other and compare.

A refresh is a training round to the protocol, of the same kind: its inputs are gradients at a model
at which others may have trained, and kinds whose inputs can be images of one another share one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from dp.plan import PrivacyPlan
from fl.algorithms import algorithm_of
from fl.compression import Compressor
from fl.errors import NonFiniteUpdateError, SpecMismatchError
from fl.metrics import score_histogram
from fl.plan import MAX_EXAMPLES, RoundKind, TrainingPlan, Weighting
from fl.ports import FloatVector, Metrics
from fl.privacy import GRID_MODES, decoded_sum, grid_step, privacy_of, private_spec
from fl.ranges import usage
from fl.reals import META_LIMIT, UNIT, real_segments, real_totals
from fl.statistics import statistics_segments
from secagg.ids import RunId
from secagg.parameters import Segment, SegmentKind, VectorSpec, bulk, meta
from secagg.prg import rounding_coins
from secagg.quantizer import Quantizer

WEIGHT: Final = "weight"
EXAMPLES: Final = "examples"
CORRECT: Final = "correct"
LOSS_SUM: Final = "loss_sum"
LOSS: Final = "loss"
ACCURACY: Final = "accuracy"
MEMBERS: Final = "members"
SCORE_BINS: Final = "score_bins"
PAIRS: Final = "pairs"
VARIATE: Final = "variate"

_USAGE: Final = "usage_"
_LOSS_SCALE: Final = 2**16
# Coarse enough that a share of right predictions does not tell of how many (ADR 10).
_SHARE_SCALE: Final = 2**10

IntVector = NDArray[np.int64]
Compressors = Mapping[str, Compressor]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedMetrics:
    """What a sum says of all its silos.

    Attributes:
        loss: mean over their examples, or over the silos where these send no count.
        accuracy: likewise; None where it means nothing.
        examples: of all of them; None where they send no count.
    """

    loss: float
    accuracy: float | None
    examples: int | None = None


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
    traits = algorithm_of(plan).traits(number)
    privacy = privacy_of(plan)
    if privacy is not None:
        return private_spec(plan, privacy, traits.segments[0], size)
    sent, bits = plan.compression.size(size), plan.value_bits_of(number)
    n_max = plan.max_silos
    segments: list[Segment] = [
        bulk(name, sent, value_bits=bits, n_max=n_max) for name in traits.segments
    ]
    segments += [meta(usage_name(name), 2, bound=sent) for name in traits.segments]
    for name in traits.scalars:
        segments += real_segments(name, 1, n_max, traits.most)
    segments += _weight_segments(plan)
    if traits.has_variate:
        segments.append(meta(MEMBERS, 1, bound=1))
    return VectorSpec(segments=(*segments, *_metric_segments(plan)))


def refresh_spec(plan: TrainingPlan, size: int) -> VectorSpec:
    """Return what a refresh round sums: all silos' control variates, renewed at the current x."""
    return VectorSpec(
        segments=(
            bulk(VARIATE, size, value_bits=plan.first_value_bits, n_max=plan.max_silos),
            meta(usage_name(VARIATE), 2, bound=size),
            *_weight_segments(plan),
        )
    )


def _weight_segments(plan: TrainingPlan) -> list[Segment]:
    is_hidden = plan.weighting is Weighting.HIDDEN
    return [meta(WEIGHT, 1, bound=plan.n_cap)] if is_hidden else []


def _metric_segments(plan: TrainingPlan) -> list[Segment]:
    if not plan.metrics:
        return []
    most = META_LIMIT // plan.max_silos
    if plan.weighting is Weighting.HIDDEN:
        segments = [
            meta(EXAMPLES, 1, bound=MAX_EXAMPLES),
            meta(CORRECT, 1, bound=MAX_EXAMPLES),
            meta(LOSS_SUM, 1, bound=most),
        ]
    else:
        segments = [meta(ACCURACY, 1, bound=_SHARE_SCALE), meta(LOSS, 1, bound=most)]
    if plan.auc_bins:
        segments.append(meta(SCORE_BINS, 2 * plan.auc_bins, bound=MAX_EXAMPLES))
    if plan.concordance:
        segments.append(meta(PAIRS, 3, bound=most))
    return segments


def metric_values(plan: TrainingPlan, metrics: Metrics) -> dict[str, IntVector]:
    """Return a silo's metrics as the integers of their segments.

    A loss beyond the segment's bound counts as the bound: a diverged model is no reason to stop.
    Without hidden weights there is no count among them: it is the same in every round, and two
    sums whose survivors differ by one silo would show that silo's (SA1 spec 2.4).

    Raises:
        NonFiniteUpdateError: the loss is NaN.
    """
    if math.isnan(metrics.loss_sum):
        raise NonFiniteUpdateError("the loss at the received model is NaN; check the silo's data")
    bound = META_LIMIT // plan.max_silos
    if plan.weighting is Weighting.HIDDEN:
        numbers = {
            EXAMPLES: metrics.examples,
            CORRECT: metrics.correct,
            LOSS_SUM: metrics.loss_sum * _LOSS_SCALE,
        }
    else:
        numbers = {
            ACCURACY: metrics.correct / metrics.examples * _SHARE_SCALE,
            LOSS: metrics.loss_sum / metrics.examples * _LOSS_SCALE,
        }
    values = {
        name: np.array([round(min(max(number, -bound), bound))], dtype=np.int64)
        for name, number in numbers.items()
    }
    if plan.auc_bins:
        # A task without scores adds nothing; its AUC is never released.
        values[SCORE_BINS] = score_histogram(metrics.labels, metrics.scores, plan.auc_bins)
    if plan.concordance:
        values[PAIRS] = np.minimum(np.array(metrics.pairs, dtype=np.int64), bound)
    return values


def released_metrics(values: Mapping[str, IntVector], silos: int) -> ReleasedMetrics | None:
    """Return what a decoded sum over so many silos says; None where the plan has no metrics."""
    if LOSS in values:
        return ReleasedMetrics(
            loss=int(values[LOSS][0]) / _LOSS_SCALE / silos,
            accuracy=int(values[ACCURACY][0]) / _SHARE_SCALE / silos,
        )
    examples = int(values[EXAMPLES][0]) if EXAMPLES in values else 0
    if not examples:
        return None
    return ReleasedMetrics(
        loss=int(values[LOSS_SUM][0]) / _LOSS_SCALE / examples,
        accuracy=int(values[CORRECT][0]) / examples,
        examples=examples,
    )


def compressors(plan: TrainingPlan, spec: VectorSpec, size: int, coins: bytes) -> Compressors:
    """Return the round's linear map of each bulk segment.

    Args:
        plan: of the run.
        spec: of the round.
        size: d.
        coins: the attempt's public coins; unused where the plan does not compress.

    Raises:
        RunStateError: the plan compresses, and the coins are missing.
    """
    return {
        segment.name: Compressor(plan.compression, size, coins, segment.name)
        for segment in spec.segments
        if segment.kind is SegmentKind.BULK and segment.name != VARIATE
    }


def compressed(parts: Mapping[str, FloatVector], maps: Compressors) -> dict[str, FloatVector]:
    """Return bulk segments in the coordinates that are sent."""
    return {name: maps[name].forward(p) if name in maps else p for name, p in parts.items()}


def expanded(values: Mapping[str, FloatVector], maps: Compressors) -> dict[str, FloatVector]:
    """Return bulk segments in the model's coordinates again."""
    return {
        name: maps[name].backward(part) if name in maps else part for name, part in values.items()
    }


def scalar_sums(names: tuple[str, ...], values: Mapping[str, IntVector]) -> dict[str, float]:
    """Return the released real numbers of an algorithm."""
    return {name: real_totals(name, values)[0] / UNIT for name in names}


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
    coins: bytes = b"",
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
        coins: the attempt's public coins if they shaped the parts: rounding coins are for one
            vector only.

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
        label = f"{segment.name}/{coins.hex()}" if coins else segment.name
        encoded = quantizer.encode(values, rand=rounding_coins(secret, run, number, label))
        segments[segment.name] = encoded.values
        decoded[segment.name] = quantizer.decode(encoded.values)
        saturated += encoded.saturated
    return EncodedContribution(segments=segments, decoded=decoded, saturated=saturated)


def decode_aggregate(
    values: Mapping[str, IntVector],
    *,
    spec: VectorSpec,
    ranges: Mapping[str, float],
    privacy: PrivacyPlan | None = None,
) -> Decoded:
    """Return a secure sum's integers as numbers.

    Args:
        values: every data segment's sum.
        spec: of the round.
        ranges: clip range of each bulk segment, from the state that the silos trained on.
        privacy: the run's privacy plan; its grid is the vector's where it has one.

    Raises:
        SpecMismatchError: a segment is missing or has another length.
        RunStateError: a noised sum may have wrapped around the ring.
    """
    decoded = Decoded(bulk={}, meta={})
    for segment in spec.segments:
        total = _of_length(segment, values.get(segment.name))
        if privacy is not None and privacy.mode in GRID_MODES:
            name, clip_norm = segment.name, ranges[segment.name]
            decoded.bulk.update(decoded_sum(total, privacy, name=name, clip_norm=clip_norm))
            continue
        if segment.kind is SegmentKind.META:
            decoded.meta[segment.name] = total
        else:
            decoded.bulk[segment.name] = _quantizer(segment, ranges).decode(total)
    return decoded


def quantizer_steps(
    spec: VectorSpec, ranges: Mapping[str, float], privacy: PrivacyPlan | None = None
) -> dict[str, float]:
    """Return the distance of neighboring values of each bulk segment."""
    if privacy is not None and privacy.mode in GRID_MODES:
        return {segment.name: grid_step(privacy, ranges[segment.name]) for segment in spec.segments}
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

"""Which algorithm to start with, from released sums only, with the reasons.

Two rounds: the label counts and feature moments of all silos are summed (fl.queries); each silo
computes how far its own are from the released totals, a Kullback-Leibler divergence in nats; and
how many silos lie in which range of divergence is summed, one count from each. That histogram, who
takes part and how fast the uplinks are decide. The sums are exact, no noise is in them. The
histogram does not say whose divergence is whose, but everybody learns it: where one silo stands
out, whoever knows which one that must be knows its range. Against totals that colluders choose the
ranges would give one silo's counts by bisection; so a silo answers for one total of each column
only, in all runs together (fl.query_run).

The advice is where to start, not where to end: FedAvg is the baseline to run, too, whatever it
says. Thresholds are rules of thumb: half a nat is what a silo with nine tenths of one of two even
classes has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl import fields
from fl.compression import CompressionPlan, stated_error
from fl.ports import FloatVector
from fl.statistics import Moments
from secagg.parameters import VectorSpec, meta

DIVERGENCES: Final = "divergences"
# Upper ends of the ranges, in nats; the last range has none.
EDGES: Final = (0.02, 0.05, 0.1, 0.2, 0.35, 0.7, 1.5)

_BASELINE: Final = "fedavg"
_MILD: Final = 0.05
_STRONG: Final = 0.35
# SCAFFOLD's variates are as old as a silo's last round; below this its edge is lost (measured in
# its own paper at 1 to 5 %, and here from a third on).
_HIGH_PARTICIPATION: Final = 0.5
_SLOW_UPLOAD_S: Final = 30.0
_SHORT_UPLOAD_S: Final = 0.05
_BITS_PER_BYTE: Final = 8
_PSEUDO_COUNT: Final = 0.5


class Skew(StrEnum):
    """How unlike the silos are."""

    NONE = "none"
    MILD = "mild"
    STRONG = "strong"


def label_divergence(own: NDArray[np.int64], total: NDArray[np.int64]) -> float:
    """Return KL(own ‖ total) of label shares in nats, half a row added to each class.

    Args:
        own: rows of each class at this silo, shape (classes,).
        total: of all silos.
    """
    mine, theirs = own + _PSEUDO_COUNT, total + _PSEUDO_COUNT
    p, q = mine / mine.sum(), theirs / theirs.sum()
    return float((p * np.log(p / q)).sum())


def feature_divergence(own: list[Moments | None], total: list[Moments | None]) -> float:
    """Return the mean KL divergence of normal distributions with these moments, in nats.

    Columns without values or without spread anywhere count as alike.
    """
    found = []
    for mine, theirs in zip(own, total, strict=True):
        if mine is None or theirs is None or not theirs.variance > 0:
            continue
        ratio = max(mine.variance / theirs.variance, 1e-3)
        shift = (mine.mean - theirs.mean) ** 2 / theirs.variance
        found.append(0.5 * (ratio + shift - 1 - np.log(ratio)))
    return float(np.mean(found)) if found else 0.0


def divergence_spec() -> VectorSpec:
    """Return the vector of the second round."""
    return VectorSpec(segments=(meta(DIVERGENCES, len(EDGES) + 1, bound=1),))


def divergence_values(divergence: float) -> dict[str, NDArray[np.int64]]:
    """Return a silo's count in the range of its divergence."""
    counts = np.zeros(len(EDGES) + 1, dtype=np.int64)
    counts[int(np.searchsorted(EDGES, divergence, side="right"))] = 1
    return {DIVERGENCES: counts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the operator knows of the federation.

    Attributes:
        parameters: of the model, d.
        participation: share of the silos in a round that one expects.
        uplink_bits_per_s: of the slowest silo.
        equal_work: whether all silos can take the same number of local steps.
        silos: enrolled.
    """

    parameters: int
    participation: float
    uplink_bits_per_s: float
    silos: int
    equal_work: bool = True

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        fields.whole("parameters", self.parameters, 1, 2**40)
        fields.share("participation", self.participation)
        fields.positive("uplink_bits_per_s", self.uplink_bits_per_s)
        fields.whole("silos", self.silos, 2, 200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Where to start.

    Attributes:
        algorithm: its name in a plan.
        proximal: μ, 0 where the algorithm has none.
        compression: for the uplink.
        value_bits: likewise.
        skew: as judged.
        reasons: one sentence each, in order.
    """

    algorithm: str
    proximal: float = 0.0
    compression: CompressionPlan = field(default_factory=CompressionPlan)
    value_bits: int = 16
    skew: Skew
    reasons: tuple[str, ...]


def advise(total: Mapping[str, NDArray[np.int64]], known: Circumstances) -> Advice:
    """Return the advice for a released histogram of divergences.

    Args:
        total: the second round's sum.
        known: of the federation.
    """
    counts = total[DIVERGENCES].astype(np.float64)
    typical, worst = _quantile(counts, 0.5), _quantile(counts, 0.9)
    skew = _skew(typical, worst)
    reasons = [
        f"Skew is {skew}: half of the silos lie within {_shown(typical)} of all data together, "
        f"nine tenths within {_shown(worst)}.",
    ]
    algorithm, proximal = _method(skew, known, reasons)
    if algorithm != _BASELINE:
        reasons.append("Run FedAvg beside it: it is the baseline that anything else must beat.")
    compression, bits = _uplink(known, reasons)
    return Advice(
        algorithm=algorithm,
        proximal=proximal,
        compression=compression,
        value_bits=bits,
        skew=skew,
        reasons=tuple(reasons),
    )


def _method(skew: Skew, known: Circumstances, reasons: list[str]) -> tuple[str, float]:
    share = f"{known.participation:.0%}"
    if skew is Skew.NONE and known.equal_work:
        reasons.append(
            "FedAvg: silos are so alike that their local steps hardly drift apart; it is the "
            "baseline that anything else must beat."
        )
        return _BASELINE, 0.0
    if skew is not Skew.NONE and known.equal_work and known.participation >= _HIGH_PARTICIPATION:
        reasons.append(
            f"SCAFFOLD: with {share} of the silos in a round, control variates are fresh enough to "
            "take the drift out; FedProx would only slow it down."
        )
        return "scaffold", 0.0
    mu = 0.2 if skew is Skew.STRONG else 0.02
    why = (
        "silos do unequal work, which its proximal term bounds and SCAFFOLD cannot take"
        if not known.equal_work
        else f"with {share} of the silos in a round SCAFFOLD's variates would be stale"
    )
    span = "0.1 to 0.3" if skew is Skew.STRONG else "0.01 to 0.03"
    reasons.append(f"FedProx: {why}. Start at μ = {mu} and try {span}.")
    return "fedprox", mu


def _uplink(known: Circumstances, reasons: list[str]) -> tuple[CompressionPlan, int]:
    plain = stated_error(
        CompressionPlan(),
        length=known.parameters,
        silos=known.silos,
        n_max=known.silos,
        value_bits=16,
    )
    upload_s = known.parameters * plain.ring_bits / known.uplink_bits_per_s
    if upload_s <= _SLOW_UPLOAD_S:
        seconds = (
            f"about {upload_s:.1f} s" if upload_s >= _SHORT_UPLOAD_S else "no time to speak of"
        )
        reasons.append(f"No compression: an upload takes {seconds}.")
        return CompressionPlan(), 16
    rotated = CompressionPlan(rotate=True)
    small = stated_error(
        rotated, length=known.parameters, silos=known.silos, n_max=known.silos, value_bits=8
    )
    megabytes = known.parameters * plain.ring_bits / _BITS_PER_BYTE / 1e6
    reasons.append(
        f"Compress: {megabytes:.1f} MB take about {upload_s:.0f} s. Rotated values of 8 bits are "
        f"{small.ratio:.1f} times smaller than float32, with an error of {small.typical:.1%} of "
        "the range; add random blocks if that is not enough."
    )
    return rotated, 8


def _skew(typical: float, worst: float) -> Skew:
    if typical > _STRONG:
        return Skew.STRONG
    return Skew.MILD if typical > _MILD or worst > _STRONG else Skew.NONE


def _quantile(counts: FloatVector, share: float) -> float:
    """Return the upper end of the range in which that share of the silos is reached."""
    reached = np.cumsum(counts) >= share * counts.sum()
    return [*EDGES, np.inf][int(np.argmax(reached))]


def _shown(edge: float) -> str:
    return f"{edge} nats" if np.isfinite(edge) else f"more than {EDGES[-1]} nats"

"""Step sizes that change from round to round, and when a run has learned enough.

Both are functions of the plan, the number of training rounds done, and released sums, so that all
sides agree and nothing private decides (privacy.md 5.3).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fl import fields

_MAX_ROUNDS = 100_000


class Curve(StrEnum):
    """How a step size changes.

    `constant`: not at all. `exponential`: times `factor` each round. `steps`: times `factor` at
    each round of `at`. `cosine`: half a cosine from 1 down to 0 over the run.
    """

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"
    STEPS = "steps"
    COSINE = "cosine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A factor on a step size for each training round.

    Attributes:
        curve: the shape.
        factor: in (0, 1], of `exponential` and `steps`.
        at: training rounds done (from 1), ascending, at which `steps` multiplies.
    """

    curve: Curve = Curve.CONSTANT
    factor: float = 1.0
    at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what the curve does not use."""
        if self.curve not in list(Curve):
            fields.refuse("schedule.curve", ", ".join(Curve), self.curve)
        curve = Curve(self.curve)
        at = tuple(
            fields.whole("schedule.at", one, 1, _MAX_ROUNDS)
            for one in fields.sequence("schedule.at", self.at)
        )
        factor = fields.share("schedule.factor", self.factor)
        if (curve in (Curve.EXPONENTIAL, Curve.STEPS)) != (factor != 1.0):
            fields.refuse("schedule.factor", "below 1 with exponential and steps only", factor)
        if (curve is Curve.STEPS) != bool(at) or list(at) != sorted(set(at)):
            fields.refuse("schedule.at", "ascending rounds with steps only", list(at))
        object.__setattr__(self, "curve", curve)
        object.__setattr__(self, "factor", factor)
        object.__setattr__(self, "at", at)

    def factor_at(self, done: int, rounds: int) -> float:
        """Return the factor of the round after `done` of `rounds` training rounds."""
        match self.curve:
            case Curve.CONSTANT:
                return 1.0
            case Curve.EXPONENTIAL:
                return self.factor**done
            case Curve.STEPS:
                passed: float = self.factor ** sum(one <= done for one in self.at)
                return passed
            case Curve.COSINE:
                return 0.5 * (1 + math.cos(math.pi * done / rounds))


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """End a run whose released loss no longer falls.

    Attributes:
        patience: rounds without a gain after which the run ends; 0 never ends it early.
        least_gain: what counts as a gain, in the loss's unit.
    """

    patience: int = 0
    least_gain: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        fields.whole("early_stop.patience", self.patience, 0, _MAX_ROUNDS)
        gain = fields.number("early_stop.least_gain", self.least_gain, 0)
        object.__setattr__(self, "least_gain", gain)

    def is_reached(self, losses: Sequence[float]) -> bool:
        """Return whether the newest `patience` losses are no gain over the best one before."""
        if self.patience == 0 or len(losses) <= self.patience:
            return False
        before, newest = losses[: -self.patience], losses[-self.patience :]
        return min(newest) > min(before) - self.least_gain - 1e-15

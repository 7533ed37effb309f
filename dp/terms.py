"""The words of a privacy plan: its closed choices, its segments and its adaptive clip."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dp.errors import PlanError

MAX_DIMENSION: Final = 10**9


class Unit(StrEnum):
    """Whose participation is hidden."""

    RECORD = "record"
    PATIENT = "patient"
    SILO = "silo"


class Adjacency(StrEnum):
    """What makes two data sets neighbors."""

    ADD_REMOVE = "add_remove"
    ZERO_OUT = "zero_out"
    REPLACE_ONE = "replace_one"


class Mode(StrEnum):
    """Who clips what, and where the noise is (privacy.md 5.1)."""

    CENTRAL = "central"
    SILO = "silo"
    FEDSGD = "fedsgd"
    PATIENT = "patient"
    ISRL = "isrl"


class Participation(StrEnum):
    """How units come into a release."""

    ALL = "all"
    POISSON = "poisson"  # each in secret, by itself, with probability q
    FIXED = "fixed"  # a public or fixed-size choice: no amplification, booked as q = 1


class Weights(StrEnum):
    """How much a silo counts (protocol.md 2.4)."""

    UNIFORM = "uniform"
    DECLARED = "declared"
    HIDDEN = "hidden"


class Clipping(StrEnum):
    """What is clipped to which bound."""

    FLAT = "flat"  # one norm over all segments, each first divided by its bound
    SEGMENTS = "segments"  # every segment to its own bound


class Noise(StrEnum):
    """The integer noise of the ring."""

    GAUSSIAN = "gaussian"
    SKELLAM = "skellam"


RING_MODES: Final = frozenset({Mode.SILO, Mode.FEDSGD, Mode.PATIENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of the noised vector with a bound of its own.

    Attributes:
        name: as in the vector spec, or a layer's.
        length: coordinates, at least 1.
        bound: L2 bound of one unit's part, in that part's own units, a public constant.
        z: noise multiplier of this part alone; given for all segments or for none.
    """

    name: str
    length: int
    bound: float
    z: float | None = None

    def __post_init__(self) -> None:
        """Refuse an unnamed, empty or unbounded segment."""
        _require_name(self.name)
        require_count("segment.length", self.length, 1, MAX_DIMENSION)
        require_positive("segment.bound", self.bound)
        if self.z is not None:
            require_positive("segment.z", self.z)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClip:
    """Quantile clipping whose bit rides in the same vector (Andrew et al. 2021, privacy.md 4.2).

    Attributes:
        count_noise_std: sigma_b, std of the noise on the number of unclipped units.
        learning_rate: of the geometric update of the clip norm.
        quantile: gamma, the share of units that should stay unclipped.
        clip_min: the clip norm never falls below it.
        clip_max: nor rises above this.
    """

    count_noise_std: float
    learning_rate: float = 0.2
    quantile: float = 0.5
    clip_min: float
    clip_max: float

    def __post_init__(self) -> None:
        """Refuse an update rule that cannot settle."""
        for name in ("count_noise_std", "learning_rate", "clip_min", "clip_max"):
            require_positive(f"adaptive.{name}", getattr(self, name))
        if not 0.0 < self.quantile < 1.0:
            raise PlanError(f"adaptive.quantile: expected 0 < quantile < 1, got {self.quantile!r}")
        if self.clip_min > self.clip_max:
            raise PlanError("adaptive: expected clip_min <= clip_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRelease:
    """A round's loss and share of right predictions, noised in the same sum (privacy.md 4.5).

    Each unit brings two coordinates between -1/2 and 1/2, so no count of units is needed.

    Attributes:
        loss_cap: L; a unit's mean loss counts from 0 to L, a public constant.
        z: noise multiplier of the two alone, in the modes that sum them with the update. None in
            `isrl`, where they are one more noised step with the plan's own z.
    """

    loss_cap: float
    z: float | None = None

    def __post_init__(self) -> None:
        """Refuse a cap or multiplier that bounds nothing."""
        require_positive("metrics.loss_cap", self.loss_cap)
        if self.z is not None:
            require_positive("metrics.z", self.z)


# Coordinates of a metric release: loss and right predictions.
METRICS: Final = 2


def require_positive(name: str, value: object) -> None:
    """Refuse anything but a finite number above 0."""
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    if not ok or not (0.0 < value < math.inf):  # type: ignore[operator] # a number, checked before; NaN fails
        raise PlanError(f"{name}: expected a finite number above 0, got {value!r}")


def require_count(name: str, value: object, least: int, most: int) -> None:
    """Refuse anything but a whole number in a range."""
    if type(value) is not int or not least <= value <= most:
        raise PlanError(f"{name}: expected a whole number from {least} to {most}, got {value!r}")


def _require_name(value: object) -> None:
    if not isinstance(value, str) or not value:
        raise PlanError("segment.name: expected a name")

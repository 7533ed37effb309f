"""The training plan: what is trained and how, one frozen document by whose hash a run is known.

A silo reads it before it joins and pins it if it likes; every round names its digest in ctx. All
that both sides must agree on follows from the plan and a round's number: the round's kind, its
precision, the algorithm and the local steps. The document is canonical JSON (sorted keys, no
blanks, UTF-8), so that equal plans are equal bytes.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, NoReturn

from fl.errors import PlanError
from secagg.canonical import digest

TABULAR: Final = "tabular"
# The agreed maximum of AGG-05; so many examples of 200 silos stay far inside the meta ring.
MAX_EXAMPLES: Final = 2**31 - 1

_MAX_VALUE_BITS: Final = 32
_MIN_VALUE_BITS: Final = 4
# Two limbs of 38 bits and all counts must fit the meta ring for n_max silos (protocol.md 4).
_MAX_SILOS: Final = 200
_MAX_ROUNDS: Final = 100_000
_SEED_LIMIT: Final = 2**64


class RoundKind(StrEnum):
    """What a round sums."""

    TRAINING = "training"
    STATISTICS = "statistics"


class Weighting(StrEnum):
    """How much a silo counts.

    `uniform`: all the same. `declared`: coarse public classes in the plan. `hidden`: by its
    number of examples, which is itself only summed; hidden within one round and for a cohort
    that never changes (protocol.md 2.4).
    """

    UNIFORM = "uniform"
    DECLARED = "declared"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """Which task the silos run.

    Attributes:
        name: "tabular", or "package.module:factory" for an own one.
        settings: what the task reads, the same for all silos; JSON values only.
    """

    name: str = TABULAR
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an unusable name and settings that JSON cannot hold."""
        _require_text("task.name", self.name)
        object.__setattr__(self, "settings", _json_copy("task.settings", self.settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlan:
    """A silo's work in one round.

    Attributes:
        local_steps: K, optimizer steps; the same at every silo (protocol.md 2.3).
        batch_size: examples a step; 0 for all of them.
        learning_rate: η, the local step size.
        optimizer: "sgd", without momentum: control variates correct plain gradients.
    """

    local_steps: int
    learning_rate: float
    batch_size: int = 0
    optimizer: str = "sgd"

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        _require_int("local.local_steps", self.local_steps, 1, 1_000_000)
        _require_int("local.batch_size", self.batch_size, 0, MAX_EXAMPLES)
        rate = _positive("local.learning_rate", self.learning_rate)
        object.__setattr__(self, "learning_rate", rate)
        if self.optimizer != "sgd":
            _refuse("local.optimizer", "'sgd'", self.optimizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """What is trained and how.

    Attributes:
        task: the silos' task.
        algorithm: "fedavg" or "scaffold".
        algorithm_settings: what the algorithm reads, such as SCAFFOLD's {"option": "II"}.
        local: a silo's work in one round.
        rounds: training rounds.
        max_silos: n_max; the ring is sized for so many silos.
        server_learning_rate: η_g, the server's step size.
        weighting: how much a silo counts.
        n_cap: examples from which on a silo counts fully; needed for hidden weights.
        declared: silo name to weight class in (0, 1]; needed for declared weights.
        value_bits: precision of one silo's values.
        first_value_bits: precision of the first training round, whose clip ranges are guesses.
        metrics: whether the sums of loss, correct and examples are released each round.
        standardize: whether round 1 sums feature statistics.
        seed: from which all reproducible randomness follows.
    """

    task: TaskPlan
    local: LocalPlan
    rounds: int
    max_silos: int
    algorithm: str = "fedavg"
    algorithm_settings: Mapping[str, object] = field(default_factory=dict)
    server_learning_rate: float = 1.0
    weighting: Weighting = Weighting.UNIFORM
    n_cap: int = 0
    declared: Mapping[str, float] = field(default_factory=dict)
    value_bits: int = 16
    first_value_bits: int = 24
    metrics: bool = True
    standardize: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values out of range and combinations that contradict each other."""
        _require_int("rounds", self.rounds, 1, _MAX_ROUNDS)
        _require_int("max_silos", self.max_silos, 2, _MAX_SILOS)
        _require_int("value_bits", self.value_bits, _MIN_VALUE_BITS, _MAX_VALUE_BITS)
        _require_int("first_value_bits", self.first_value_bits, _MIN_VALUE_BITS, _MAX_VALUE_BITS)
        _require_int("seed", self.seed, 0, _SEED_LIMIT - 1)
        _require_text("algorithm", self.algorithm)
        for name in ("metrics", "standardize"):
            if not isinstance(getattr(self, name), bool):
                _refuse(name, "true or false", getattr(self, name))
        rate = _positive("server_learning_rate", self.server_learning_rate)
        settings = _json_copy("algorithm_settings", self.algorithm_settings)
        object.__setattr__(self, "server_learning_rate", rate)
        object.__setattr__(self, "algorithm_settings", settings)
        self._check_weighting()

    def _check_weighting(self) -> None:
        if self.weighting not in list(Weighting):
            _refuse("weighting", ", ".join(Weighting), self.weighting)
        object.__setattr__(self, "weighting", Weighting(self.weighting))
        lowest = 1 if self.weighting is Weighting.HIDDEN else 0
        _require_int("n_cap", self.n_cap, lowest, MAX_EXAMPLES if lowest else 0)
        declared = _json_copy("declared", self.declared)
        if bool(declared) != (self.weighting is Weighting.DECLARED):
            _refuse("declared", "a class for each silo if and only if weights are declared", "")
        classes = {name: _positive(f"declared.{name}", share) for name, share in declared.items()}
        for name, share in classes.items():
            if share > 1:
                _refuse(f"declared.{name}", "a number above 0 and at most 1", share)
        object.__setattr__(self, "declared", classes)

    @property
    def first_training_round(self) -> int:
        """The number of the first training round; numbers start at 1."""
        return 2 if self.standardize else 1

    @property
    def last_round(self) -> int:
        """The number of the run's last round."""
        return self.first_training_round + self.rounds - 1

    def kind_of(self, number: int) -> RoundKind:
        """Return what round `number` sums."""
        _require_int("round number", number, 1, self.last_round)
        training = number >= self.first_training_round
        return RoundKind.TRAINING if training else RoundKind.STATISTICS

    def value_bits_of(self, number: int) -> int:
        """Return the precision of round `number`: no value of ctx depends on a released sum."""
        first = number == self.first_training_round
        return self.first_value_bits if first else self.value_bits

    def document(self) -> bytes:
        """Return the plan as canonical JSON."""
        return _dump(asdict(self))

    def digest(self) -> bytes:
        """Return the 32 bytes that every round names."""
        return digest("plan", self.document())

    @classmethod
    def parse(cls, document: bytes) -> "TrainingPlan":
        """Return the plan of a document that `document` wrote.

        Raises:
            PlanError: not such a document; names the key that is missing, unknown or wrong.
        """
        try:
            content = json.loads(document, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise PlanError("training plan: expected JSON in UTF-8, got other bytes") from error
        values = _keys_of(cls, "", content)
        values["task"] = TaskPlan(**_keys_of(TaskPlan, "task.", values["task"]))
        values["local"] = LocalPlan(**_keys_of(LocalPlan, "local.", values["local"]))
        plan = cls(**values)
        if plan.document() != document:
            raise PlanError(
                "training plan: the document is not in canonical form; send the bytes that "
                "TrainingPlan.document() gives"
            )
        return plan


def _keys_of(
    cls: type[TrainingPlan | TaskPlan | LocalPlan], path: str, content: object
) -> dict[str, Any]:
    """Return the members of a JSON object that has exactly the fields of `cls`.

    Their types are checked where they are used: in `__post_init__`.
    """
    if not isinstance(content, dict):
        _refuse(path.rstrip(".") or "document", "an object", type(content).__name__)
    known = {entry.name for entry in fields(cls)}
    unknown, missing = sorted(content.keys() - known), sorted(known - content.keys())
    if unknown or missing:
        listed = [f"unknown {path}{key}" for key in unknown]
        listed += [f"missing {path}{key}" for key in missing]
        raise PlanError(f"training plan: {', '.join(listed)}; both sides need the same version")
    return dict(content)


def _dump(content: object) -> bytes:
    """Return canonical JSON; floats as Python writes them, the shortest that reads back equal."""
    return json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def _json_copy(name: str, content: object) -> dict[str, object]:
    """Return a deep copy that later changes of the original do not reach."""
    if not isinstance(content, Mapping):
        _refuse(name, "a table of settings", type(content).__name__)
    try:
        copied: dict[str, object] = json.loads(_dump(dict(content)))
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"training plan: {name}: expected text, finite numbers, lists and tables only"
        ) from error
    return copied


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(name, "a number above 0", value)
    if not (math.isfinite(value) and value > 0):
        _refuse(name, "a finite number above 0", value)
    return float(value)


def _require_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        _refuse(name, f"a whole number from {low} to {high}", value)


def _require_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        _refuse(name, "a name", value)


def _refuse(name: str, expected: str, got: object) -> NoReturn:
    raise PlanError(f"training plan: {name}: expected {expected}, got {got!r}")

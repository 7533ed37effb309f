"""The training plan: what is trained and how, one frozen document by whose hash a run is known.

A silo reads it before it joins and pins it if it likes; every round names its digest in ctx. All
that both sides must agree on follows from the plan and a round's number: the round's kind, its
precision, the algorithm and the local steps. The document is canonical JSON (sorted keys, no
blanks, UTF-8), so that equal plans are equal bytes.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from dataclasses import fields as fields_of
from enum import StrEnum
from typing import Any, Final, NoReturn

from fl import fields
from fl.compression import CompressionPlan
from fl.errors import PlanError
from fl.participation import ParticipationPlan
from fl.privacy import check_privacy
from fl.schedules import EarlyStop, Schedule
from fl.work import WorkPlan
from secagg.canonical import digest

TABULAR: Final = "tabular"
# The agreed maximum of AGG-05; so many examples of 200 silos stay far inside the meta ring.
MAX_EXAMPLES: Final = 2**31 - 1
# With 10^-300 the next state would be the last one under another hash, and a second sum over it the
# difference to one silo's input (protocol.md 8).
LEAST_SERVER_RATE: Final = 1e-3

_MAX_VALUE_BITS: Final = 32
_MIN_VALUE_BITS: Final = 4
# Two limbs of 38 bits and all counts must fit the meta ring for n_max silos (protocol.md 4).
_MAX_SILOS: Final = 200
_MAX_ROUNDS: Final = 100_000
_MAX_BINS: Final = 10_000
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
        fields.text("task.name", self.name)
        object.__setattr__(self, "settings", fields.json_copy("task.settings", self.settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlan:
    """A silo's work in one round.

    Attributes:
        local_steps: K, optimizer steps; what WorkPlan says of other silos' comes on top.
        batch_size: examples a step; 0 for all of them.
        learning_rate: η, the local step size.
        optimizer: "sgd", "momentum" or a plugin's name; its state lasts for one round.
        optimizer_settings: such as {"momentum": 0.9}.
        proximal: μ of FedProx's term μ/2 ‖y − x‖² in the local loss; 0 for none.
    """

    local_steps: int
    learning_rate: float
    batch_size: int = 0
    optimizer: str = "sgd"
    optimizer_settings: Mapping[str, object] = field(default_factory=dict)
    proximal: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        fields.whole("local.local_steps", self.local_steps, 1, 1_000_000)
        fields.whole("local.batch_size", self.batch_size, 0, MAX_EXAMPLES)
        fields.text("local.optimizer", self.optimizer)
        rate = fields.positive("local.learning_rate", self.learning_rate)
        settings = fields.json_copy("local.optimizer_settings", self.optimizer_settings)
        object.__setattr__(self, "learning_rate", rate)
        object.__setattr__(self, "optimizer_settings", settings)
        object.__setattr__(self, "proximal", fields.number("local.proximal", self.proximal, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """What is trained and how.

    Attributes:
        task: the silos' task.
        algorithm: one of fl.algorithms, or an aggregation rule's plugin.
        algorithm_settings: what the algorithm reads, such as SCAFFOLD's {"option": "II"}.
        local: a silo's work in one round.
        rounds: training rounds.
        max_silos: n_max; the ring is sized for so many silos.
        server_learning_rate: η_g, the server's step size; 0.001 or more, whatever the schedule,
            also times the smallest declared class over the largest.
        weighting: how much a silo counts.
        n_cap: examples from which on a silo counts fully; needed for hidden weights.
        declared: silo name to weight class in (0, 1]; needed for declared weights.
        value_bits: precision of one silo's values.
        first_value_bits: precision of the first training round, whose clip ranges are guesses.
        metrics: whether the sums of loss, correct and examples are released each round.
        auc_bins: with metrics: score bins for the released AUC; 0 for none.
        concordance: with metrics: whether pairs for the C-index are counted and summed.
        standardize: whether round 1 sums feature statistics.
        seed: from which all reproducible randomness follows.
        work: who sets a silo's number of local steps.
        participation: which silos a round invites.
        local_schedule, server_schedule: factors on the two step sizes.
        early_stop: when a run has learned enough.
        compression: what is done to bulk segments before they are quantized.
        personal: patterns such as "*bn*"; parameters whose names match stay at the silo.
        max_refreshes: rounds that a run may insert to renew lost control variates.
        privacy: the privacy plan's document (dp.plan), as fl.privacy.as_settings gives it; empty
            for a run without one.
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
    auc_bins: int = 0
    concordance: bool = False
    standardize: bool = False
    seed: int = 0
    work: WorkPlan = field(default_factory=WorkPlan)
    participation: ParticipationPlan = field(default_factory=ParticipationPlan)
    local_schedule: Schedule = field(default_factory=Schedule)
    server_schedule: Schedule = field(default_factory=Schedule)
    early_stop: EarlyStop = field(default_factory=EarlyStop)
    compression: CompressionPlan = field(default_factory=CompressionPlan)
    personal: tuple[str, ...] = ()
    max_refreshes: int = 8
    privacy: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse values out of range and combinations that contradict each other."""
        fields.whole("rounds", self.rounds, 1, _MAX_ROUNDS)
        fields.whole("max_silos", self.max_silos, 2, _MAX_SILOS)
        fields.whole("value_bits", self.value_bits, _MIN_VALUE_BITS, _MAX_VALUE_BITS)
        fields.whole("first_value_bits", self.first_value_bits, _MIN_VALUE_BITS, _MAX_VALUE_BITS)
        fields.whole("seed", self.seed, 0, _SEED_LIMIT - 1)
        fields.whole("max_refreshes", self.max_refreshes, 0, _MAX_ROUNDS)
        fields.text("algorithm", self.algorithm)
        for name in ("metrics", "standardize", "concordance"):
            fields.flag(name, getattr(self, name))
        fields.whole("auc_bins", self.auc_bins, 0, _MAX_BINS if self.metrics else 0)
        # A privacy plan may release noised metrics instead: `check_privacy` looks.
        stops_early = self.early_stop.patience and not self.privacy
        if not self.metrics and (self.concordance or stops_early):
            fields.refuse("metrics", "true for concordance and early_stop", self.metrics)
        patterns = fields.sequence("personal", self.personal)
        personal = tuple(fields.text("personal", one) for one in patterns)
        rate = fields.positive("server_learning_rate", self.server_learning_rate)
        settings = fields.json_copy("algorithm_settings", self.algorithm_settings)
        object.__setattr__(self, "server_learning_rate", rate)
        object.__setattr__(self, "algorithm_settings", settings)
        object.__setattr__(self, "personal", personal)
        object.__setattr__(self, "privacy", fields.json_copy("privacy", self.privacy))
        self._check_weighting()
        self.require_moving("server_learning_rate", rate * self.least_weight)
        check_privacy(self)

    def _check_weighting(self) -> None:
        if self.weighting not in list(Weighting):
            fields.refuse("weighting", ", ".join(Weighting), self.weighting)
        object.__setattr__(self, "weighting", Weighting(self.weighting))
        lowest = 1 if self.weighting is Weighting.HIDDEN else 0
        fields.whole("n_cap", self.n_cap, lowest, MAX_EXAMPLES if lowest else 0)
        declared = fields.json_copy("declared", self.declared)
        if bool(declared) != (self.weighting is Weighting.DECLARED):
            fields.refuse(
                "declared", "a class for each silo if and only if weights are declared", ""
            )
        classes = {name: fields.share(f"declared.{name}", one) for name, one in declared.items()}
        least = LEAST_SERVER_RATE * max(classes.values(), default=0.0)
        for name, one in classes.items():
            if one < least:
                fields.refuse(
                    f"declared.{name}",
                    f"at least {LEAST_SERVER_RATE:g} of the largest class: beside it the step of "
                    "the others is next to nothing if that silo sends zeros",
                    one,
                )
        object.__setattr__(self, "declared", classes)

    @property
    def first_training_round(self) -> int:
        """The number of the first training round; numbers start at 1."""
        return 2 if self.standardize else 1

    @property
    def last_round(self) -> int:
        """The number of the run's last round, if no refresh round is inserted."""
        return self.first_training_round + self.rounds - 1

    @property
    def highest_round(self) -> int:
        """The highest number that a round can have.

        A refresh may skip a failed round's, too, and each bad dealer costs the run one.
        """
        return self.last_round + 2 * self.max_refreshes + self.max_silos

    def kind_of(self, number: int) -> RoundKind:
        """Return what round `number` sums; refresh rounds count as training (fl.pipeline)."""
        fields.whole("round number", number, 1, self.highest_round)
        training = number >= self.first_training_round
        return RoundKind.TRAINING if training else RoundKind.STATISTICS

    def value_bits_of(self, number: int) -> int:
        """Return the precision of round `number`: no value of ctx depends on a released sum."""
        first = number == self.first_training_round
        return self.first_value_bits if first else self.value_bits

    def local_rate(self, done: int) -> float:
        """Return η of the training round after `done` others."""
        return self.local.learning_rate * self.local_schedule.factor_at(done, self.rounds)

    @property
    def least_weight(self) -> float:
        """The smallest declared class as a share of the largest; 1 for other weights.

        By so much the silo of the largest class makes the others' step smaller if it sends zeros.
        """
        classes = self.declared.values()
        return min(classes) / max(classes) if classes else 1.0

    def server_rate(self, done: int, *, least_weight: float = 1.0) -> float:
        """Return η_g of the training round after `done` others; the schedule ends at the least.

        Args:
            done: training rounds.
            least_weight: the smallest weight as a share of the largest, if the algorithm sets them.
        """
        rate = self.server_learning_rate * self.server_schedule.factor_at(done, self.rounds)
        return max(rate, LEAST_SERVER_RATE / (least_weight * self.least_weight))

    @staticmethod
    def require_moving(name: str, step: float) -> None:
        """Refuse a server's step that would leave the model practically where it was.

        Args:
            name: of the setting that makes it so small.
            step: the model's step for each unit of the released mean, times the smallest weight as
                a share of the largest.
        """
        if step < LEAST_SERVER_RATE * (1 - 1e-9):  # rounded
            fields.refuse(
                name,
                f"a step of at least {LEAST_SERVER_RATE:g} of the released mean, also times the "
                "smallest weight over the largest: over a model that hardly moves, two sums with "
                "other survivors differ by one silo's input",
                step,
            )

    def document(self) -> bytes:
        """Return the plan as canonical JSON."""
        return fields.dump(asdict(self))

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
        for name, part in _PARTS.items():
            values[name] = part(**_keys_of(part, f"{name}.", values[name]))
        plan = cls(**values)
        if plan.document() != document:
            raise PlanError(
                "training plan: the document is not in canonical form; send the bytes that "
                "TrainingPlan.document() gives"
            )
        return plan


_PARTS: Final[Mapping[str, type[Any]]] = {
    "task": TaskPlan,
    "local": LocalPlan,
    "work": WorkPlan,
    "participation": ParticipationPlan,
    "local_schedule": Schedule,
    "server_schedule": Schedule,
    "early_stop": EarlyStop,
    "compression": CompressionPlan,
}


def _keys_of(cls: type[Any], path: str, content: object) -> dict[str, Any]:
    """Return the members of a JSON object that has exactly the fields of `cls`.

    Their types are checked where they are used: in `__post_init__`.
    """
    if not isinstance(content, dict):
        fields.refuse(path.rstrip(".") or "document", "an object", type(content).__name__)
    known = {entry.name for entry in fields_of(cls)}
    unknown, missing = sorted(content.keys() - known), sorted(known - content.keys())
    if unknown or missing:
        listed = [f"unknown {path}{key}" for key in unknown]
        listed += [f"missing {path}{key}" for key in missing]
        raise PlanError(f"training plan: {', '.join(listed)}; both sides need the same version")
    return dict(content)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)

"""How many local steps a silo takes in a round, and who may know.

K enters an algorithm in two ways. FedAvg and its relatives sum ρ_k Δ_k: K_k is in none of the
coefficients, so a silo may keep its own K_k to itself. FedNova's ρ_k / a_k and SCAFFOLD's variates
depend on it: two releases with different K_k in them can be combined until one silo is left
(protocol.md 2.3), so there K is the plan's.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from fl import fields
from fl.errors import SpecMismatchError
from fl.seeding import generator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fl.plan import TrainingPlan


class Work(StrEnum):
    """Who sets K_k.

    `fixed`: `local_steps` for all. `declared`: the plan, by silo. `drawn`: from `least` to
    `local_steps`, by the plan's seed, silo and round; public. `own`: each silo, at most
    `local_steps`; known to it alone.
    """

    FIXED = "fixed"
    DECLARED = "declared"
    DRAWN = "drawn"
    OWN = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPlan:
    """Who does how much.

    Attributes:
        kind: see Work.
        least: with `drawn`: the fewest steps.
        steps: with `declared`: silo name to its K_k.
    """

    kind: Work = Work.FIXED
    least: int = 0
    steps: "Mapping[str, int]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what the kind does not use."""
        if self.kind not in list(Work):
            fields.refuse("work.kind", ", ".join(Work), self.kind)
        object.__setattr__(self, "kind", Work(self.kind))
        lowest = 1 if self.kind is Work.DRAWN else 0
        fields.whole("work.least", self.least, lowest, 1_000_000 if lowest else 0)
        steps = fields.json_copy("work.steps", self.steps)
        if bool(steps) != (self.kind is Work.DECLARED):
            fields.refuse("work.steps", "steps of each silo if and only if they are declared", "")
        declared = {n: fields.whole(f"work.steps.{n}", k, 1, 1_000_000) for n, k in steps.items()}
        object.__setattr__(self, "steps", declared)


def public_steps(plan: "TrainingPlan", silo: str, number: int) -> int | None:
    """Return K_k of a silo in round `number`, None where only the silo knows it.

    Raises:
        SpecMismatchError: the plan declares none for it.
    """
    work, most = plan.work, plan.local.local_steps
    match work.kind:
        case Work.FIXED:
            return most
        case Work.DECLARED:
            if silo not in work.steps:
                raise SpecMismatchError(f"the plan declares no local steps for silo {silo!r}")
            return work.steps[silo]
        case Work.DRAWN:
            return int(generator(plan.seed, "work", silo, number).integers(work.least, most + 1))
        case Work.OWN:
            return None

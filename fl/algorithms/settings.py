"""An algorithm's settings: taken one by one, and none left over."""

from typing import TYPE_CHECKING

from fl import fields
from fl.errors import PlanError
from fl.work import Work

if TYPE_CHECKING:
    from fl.plan import TrainingPlan


class Settings:
    """The settings of a plan's algorithm.

    Args:
        plan: whose `algorithm_settings` are read.
    """

    def __init__(self, plan: "TrainingPlan") -> None:
        self._name = plan.algorithm
        self._left = dict(plan.algorithm_settings)
        self._known: list[str] = []

    def number(self, name: str, default: float, low: float, high: float = float("inf")) -> float:
        """Take a number of [low, high]."""
        return fields.number(f"algorithm_settings.{name}", self._take(name, default), low, high)

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        """Take a whole number of [low, high]."""
        return fields.whole(f"algorithm_settings.{name}", self._take(name, default), low, high)

    def choice(self, name: str, default: str, known: tuple[str, ...]) -> str:
        """Take one of some words."""
        value = self._take(name, default)
        if value not in known:
            fields.refuse(
                f"algorithm_settings.{name}", " or ".join(repr(str(one)) for one in known), value
            )
        return str(value)

    def _take(self, name: str, default: object) -> object:
        self._known.append(name)
        return self._left.pop(name, default)

    def end(self) -> None:
        """Refuse what was not taken."""
        if self._left:
            first = min(self._left)
            raise PlanError(
                f"training plan: algorithm_settings: {self._name} does not know "
                f"{sorted(self._left)}{fields.close_to(first, self._known)}"
            )


def require_plain(plan: "TrainingPlan", *, because: str) -> None:
    """Refuse local momentum, plugins and the proximal term.

    Raises:
        PlanError: names the field, and why the algorithm needs plain steps.
    """
    if plan.local.optimizer != "sgd":
        fields.refuse("local.optimizer", f"'sgd': {because}", plan.local.optimizer)
    require_no_proximal(plan, because=because)


def require_no_proximal(plan: "TrainingPlan", *, because: str) -> None:
    """Refuse the proximal term."""
    if plan.local.proximal:
        fields.refuse("local.proximal", f"0: {because}", plan.local.proximal)


def require_work(plan: "TrainingPlan", *allowed: Work, because: str) -> None:
    """Refuse unequal numbers of steps where they are not allowed (protocol.md 2.3)."""
    if plan.work.kind not in allowed:
        known = " or ".join(repr(kind.value) for kind in allowed)
        fields.refuse("work.kind", f"{known}: {because}", plan.work.kind.value)

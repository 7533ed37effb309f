"""The local optimizer: which way a silo's model moves, given the gradients of one round so far.

The gradient that comes in has the algorithm's correction and the proximal term in it. State lasts
for one round: a momentum buffer that outlived it would carry one round's drift into the next.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol, cast

from fl import fields
from fl.plugins import Group, find
from fl.ports import FloatVector

if TYPE_CHECKING:
    from fl.plan import LocalPlan

SGD: Final = "sgd"
MOMENTUM: Final = "momentum"
_BUILTIN = (SGD, MOMENTUM)


class LocalOptimizer(Protocol):
    """Turns gradients into directions. One object for each silo and round."""

    def direction(self, gradient: FloatVector, /) -> FloatVector:
        """Return d of the step y −= η d; shape (d,), float64, and `gradient` unchanged."""
        ...


class Sgd:
    """d = g."""

    def direction(self, gradient: FloatVector, /) -> FloatVector:
        """Return the gradient."""
        return gradient


class Momentum:
    """v ← ρ v + g, d = v."""

    def __init__(self, momentum: float) -> None:
        self._momentum = momentum
        self._velocity: FloatVector | None = None

    def direction(self, gradient: FloatVector, /) -> FloatVector:
        """Return the velocity."""
        before = self._velocity
        self._velocity = gradient if before is None else self._momentum * before + gradient
        return self._velocity


def optimizer_of(local: "LocalPlan") -> LocalOptimizer:
    """Return a fresh optimizer as the plan sets it.

    Raises:
        PlanError: an unknown name, or settings that it does not have.
    """
    if local.optimizer == SGD:
        if local.optimizer_settings:
            fields.refuse("local.optimizer_settings", "none with sgd", local.optimizer_settings)
        return Sgd()
    if local.optimizer == MOMENTUM:
        return Momentum(momentum_of(local))
    factory = find(Group.LOCAL_OPTIMIZER, local.optimizer, _BUILTIN, "local.optimizer")
    # The factory's contract is the group's.
    return cast("LocalOptimizer", factory(local.optimizer_settings))


def momentum_of(local: "LocalPlan") -> float:
    """Return ρ of a plan with local momentum.

    Raises:
        PlanError: it is missing or out of range, or not the only setting.
    """
    settings: Mapping[str, object] = local.optimizer_settings
    if set(settings) != {"momentum"}:
        fields.refuse("local.optimizer_settings", "momentum, and nothing else", settings)
    rho = fields.number("local.optimizer_settings.momentum", settings["momentum"], 0)
    if rho >= 1:
        fields.refuse("local.optimizer_settings.momentum", "a number below 1", rho)
    return rho


def proximal_penalty(model: FloatVector, start: FloatVector, mu: float) -> float:
    """Return μ/2 · ‖y − x‖², FedProx's addition to a silo's loss (with the square, AGG-08)."""
    distance = model - start
    return mu / 2 * float(distance @ distance)


def proximal_gradient(model: FloatVector, start: FloatVector, mu: float) -> FloatVector:
    """Return the penalty's gradient μ (y − x)."""
    return mu * (model - start)

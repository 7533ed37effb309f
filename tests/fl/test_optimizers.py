"""Local optimizers as formulas, and FedProx's penalty with its square."""

from collections.abc import Mapping

import numpy as np
import pytest

from fl.errors import PlanError
from fl.optimizers import optimizer_of, proximal_gradient, proximal_penalty
from fl.plan import LocalPlan
from fl.plugins import Group, register
from fl.ports import FloatVector


def local(optimizer: str, **settings: object) -> LocalPlan:
    """A plan with this optimizer."""
    return LocalPlan(
        local_steps=1, learning_rate=0.1, optimizer=optimizer, optimizer_settings=settings
    )


def test_sgd_is_the_gradient() -> None:
    """Nothing is kept from step to step."""
    made = optimizer_of(local("sgd"))
    assert made.direction(np.array([1.0])).tolist() == [1.0]
    assert made.direction(np.array([2.0])).tolist() == [2.0]


def test_momentum_starts_fresh_in_each_round() -> None:
    """V ← ρ v + g, zero at the start of every round."""
    for _ in range(2):
        made = optimizer_of(local("momentum", momentum=0.5))
        seen = [float(made.direction(np.array([g]))[0]) for g in (1.0, 2.0, -1.0)]
        assert seen == [1.0, 2.5, 0.25]


def test_the_proximal_term_has_its_square() -> None:
    """W = (3, 4), w_global = 0, μ = 0.1: penalty 1.25, gradient (0.3, 0.4) (AGG-08)."""
    model, start = np.array([3.0, 4.0]), np.zeros(2)
    assert proximal_penalty(model, start, 0.1) == pytest.approx(1.25)
    np.testing.assert_allclose(proximal_gradient(model, start, 0.1), [0.3, 0.4])


class Halved:
    """A plugin's optimizer."""

    def direction(self, gradient: FloatVector, /) -> FloatVector:
        return gradient / 2


def test_a_plugin_is_found_by_name() -> None:
    """With the plan's settings."""
    seen: list[Mapping[str, object]] = []

    def make(settings: Mapping[str, object]) -> Halved:
        seen.append(settings)
        return Halved()

    register(Group.LOCAL_OPTIMIZER, "halved", make)
    made = optimizer_of(local("halved", a=1))
    assert made.direction(np.array([4.0])).tolist() == [2.0]
    assert seen == [{"a": 1}]


@pytest.mark.parametrize(
    ("plan", "word"),
    [
        (local("adam"), "local.optimizer"),
        (local("sgd", momentum=0.9), "local.optimizer_settings"),
        (local("momentum"), "momentum, and nothing else"),
        (local("momentum", momentum=1), "below 1"),
        (local("momentum", momentum=0.9, nesterov=True), "momentum, and nothing else"),
    ],
)
def test_others_are_refused(plan: LocalPlan, word: str) -> None:
    """The field is named."""
    with pytest.raises(PlanError, match=word):
        optimizer_of(plan)

"""Unequal work: public where an algorithm's coefficients hold it, the silo's own elsewhere."""

from typing import Any

import numpy as np
import pytest

from fl.errors import PlanError, SpecMismatchError
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.ports import FloatVector, LocalResult, NamedTensors
from fl.rounds import RunStatus
from fl.simulation import simulate
from fl.testing import LeastSquaresTask, quadratic_task
from fl.work import Work, WorkPlan, public_steps


def plan(work: WorkPlan, **changes: Any) -> TrainingPlan:
    """A plan of ten steps at most."""
    values: dict[str, Any] = {
        "task": TaskPlan(name="fl.testing:toy_task"),
        "local": LocalPlan(local_steps=10, learning_rate=0.1),
        "rounds": 1,
        "max_silos": 4,
        "metrics": False,
        "work": work,
        **changes,
    }
    return TrainingPlan(**values)


def test_who_sets_the_steps() -> None:
    """The plan, the plan by silo, the plan's seed, or the silo."""
    assert public_steps(plan(WorkPlan()), "a", 1) == 10
    declared = plan(WorkPlan(kind=Work.DECLARED, steps={"a": 3}))
    assert public_steps(declared, "a", 1) == 3
    with pytest.raises(SpecMismatchError, match="'b'"):
        public_steps(declared, "b", 1)
    assert public_steps(plan(WorkPlan(kind=Work.OWN)), "a", 1) is None


def test_drawn_steps_are_uniform_and_the_same_for_everybody() -> None:
    """From the seed, the silo and the round."""
    one = plan(WorkPlan(kind=Work.DRAWN, least=2))
    drawn = [public_steps(one, silo, n) for silo in "abc" for n in range(300)]
    assert drawn == [public_steps(one, silo, n) for silo in "abc" for n in range(300)]
    assert set(drawn) == set(range(2, 11))
    assert np.abs(np.bincount([d for d in drawn if d])[2:] - 100).max() < 50


@pytest.mark.parametrize("secure", [False, True])
def test_partial_work_counts(secure: bool) -> None:
    """Stragglers' steps are kept: each silo's own K_k is in the mean, and in nothing else."""
    tasks = {f"silo-{place}": quadratic_task(1, place) for place in (1, 2, 3, 4)}
    steps = {"silo-1": 1, "silo-2": 4, "silo-3": 10, "silo-4": 99}  # more than all is all
    one = plan(WorkPlan(kind=Work.OWN))
    result = simulate(one, tasks, secure=secure, own_steps=lambda silo, _number: steps[silo])
    assert result.status is RunStatus.COMPLETED, result.reason
    changes = [place * (1 - 0.9 ** min(steps[f"silo-{place}"], 10)) for place in (1, 2, 3, 4)]
    expected = pytest.approx(np.mean(changes), abs=1e-5)
    assert float(result.model()["weights"].astype(np.float64)[0]) == expected


class Lazy(LeastSquaresTask):
    """A task that stops after two steps."""

    def train(
        self,
        model: NamedTensors,
        correction: FloatVector | None,
        local: LocalPlan,
        seed: int,
        round_number: int,
        /,
    ) -> LocalResult:
        result = super().train(model, correction, local, seed, round_number)
        return LocalResult(model_after=result.model_after, steps=2)


@pytest.mark.parametrize("kind", [Work.FIXED, Work.OWN])
def test_a_straggler_is_left_behind_where_steps_are_fixed(kind: Work) -> None:
    """It goes late with the reason, never with fewer steps than the algorithm divides by."""
    tasks: dict[str, LeastSquaresTask] = {f"silo-{n}": quadratic_task(1, n) for n in (1, 2, 3)}
    tasks["silo-4"] = Lazy(np.ones((1, 1)), np.ones(1))
    result = simulate(plan(WorkPlan(kind=kind)), tasks, secure=False)
    assert result.reports[0].survivors == ((1, 2, 3) if kind is Work.FIXED else (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"kind": "random"}, "work.kind"),
        ({"least": 1}, "work.least"),
        ({"kind": "drawn"}, "work.least"),
        ({"kind": "declared"}, "work.steps"),
        ({"steps": {"a": 1}}, "work.steps"),
        ({"kind": "declared", "steps": {"a": 0}}, r"work\.steps\.a"),
    ],
)
def test_other_plans_are_refused(values: dict[str, Any], word: str) -> None:
    """The field is named."""
    with pytest.raises(PlanError, match=word):
        WorkPlan(**values)

"""Step sizes over the rounds, and when it is enough."""

from typing import Any

import pytest

from fl.errors import PlanError
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.rounds import RunStatus
from fl.schedules import Curve, EarlyStop, Schedule
from fl.simulation import simulate
from fl.testing import least_squares_toy


def factors(schedule: Schedule, rounds: int = 4) -> list[float]:
    """The factor of each round."""
    return [schedule.factor_at(done, rounds) for done in range(rounds)]


def test_curves() -> None:
    """Each from its first round on."""
    assert factors(Schedule()) == [1, 1, 1, 1]
    assert factors(Schedule(curve=Curve.EXPONENTIAL, factor=0.5)) == [1, 0.5, 0.25, 0.125]
    assert factors(Schedule(curve=Curve.STEPS, factor=0.1, at=(1, 3))) == [
        1,
        0.1,
        0.1,
        pytest.approx(0.01),
    ]
    cosine = factors(Schedule(curve=Curve.COSINE))
    assert cosine[0] == 1
    assert cosine[2] == pytest.approx(0.5)
    assert cosine == sorted(cosine, reverse=True)
    assert min(cosine) > 0


def test_an_early_stop_waits_for_its_patience() -> None:
    """The newest two are no gain over the best before them."""
    stop = EarlyStop(patience=2, least_gain=0.1)
    assert not stop.is_reached([])
    assert not stop.is_reached([3.0, 2.0])
    assert not stop.is_reached([3.0, 2.0, 1.0])
    assert not stop.is_reached([3.0, 2.0, 1.0, 1.0])
    assert stop.is_reached([3.0, 2.0, 1.0, 1.0, 0.95])
    assert not stop.is_reached([3.0, 2.0, 1.0, 1.0, 0.8])
    assert not EarlyStop().is_reached([1.0] * 50)


@pytest.mark.parametrize("secure", [False, True])
def test_a_run_ends_early_and_keeps_its_model(secure: bool) -> None:
    """By the released loss, which no longer falls; the state's count says after how many."""
    plan = TrainingPlan(
        task=TaskPlan(name="fl.testing:toy_task"),
        local=LocalPlan(local_steps=5, learning_rate=0.05),
        rounds=200,
        max_silos=4,
        early_stop=EarlyStop(patience=3, least_gain=0.01),
    )
    result = simulate(plan, least_squares_toy(1, silos=4), secure=secure)
    assert result.status is RunStatus.COMPLETED
    losses = [report.loss for report in result.reports]
    assert 4 < len(losses) < 50
    assert None not in losses
    assert plan.early_stop.is_reached([loss for loss in losses if loss is not None])


@pytest.mark.parametrize(
    ("made", "values", "word"),
    [
        (Schedule, {"curve": "linear"}, "schedule.curve"),
        (Schedule, {"factor": 0.5}, "schedule.factor"),
        (Schedule, {"curve": "exponential"}, "schedule.factor"),
        (Schedule, {"curve": "steps", "factor": 0.5}, "schedule.at"),
        (Schedule, {"curve": "steps", "factor": 0.5, "at": (3, 2)}, "schedule.at"),
        (Schedule, {"curve": "steps", "factor": 0.5, "at": 3}, "schedule.at"),
        (EarlyStop, {"patience": -1}, "early_stop.patience"),
        (EarlyStop, {"least_gain": -1}, "early_stop.least_gain"),
    ],
)
def test_other_plans_are_refused(made: Any, values: dict[str, Any], word: str) -> None:
    """The field is named."""
    with pytest.raises(PlanError, match=word):
        made(**values)

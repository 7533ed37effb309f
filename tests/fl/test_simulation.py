"""The simulator itself: seats, callbacks and refusals; whole runs are in tests/scenarios."""

import numpy as np
import pytest

from fl.errors import PlanError
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.rounds import MAX_ATTEMPTS, RoundFailure, RoundReport, RunStatus
from fl.run import TrainingRun
from fl.simulation import simulate
from fl.testing import LeastSquaresTask, quadratic_task


def plan(algorithm: str = "fedavg") -> TrainingPlan:
    """Two rounds of one step."""
    return TrainingPlan(
        task=TaskPlan(),
        local=LocalPlan(local_steps=1, learning_rate=0.5),
        rounds=2,
        max_silos=5,
        algorithm=algorithm,
    )


@pytest.mark.parametrize("secure", [False, True])
def test_every_attempt_is_told_with_the_run_after_it(secure: bool) -> None:
    """Curvature 1 and half a step: the distance to the mean optimum 2.5 halves each round."""
    tasks = {f"silo-{n}": quadratic_task(1, n) for n in (4, 3, 2, 1)}
    seen: list[tuple[int, float]] = []

    def note(outcome: RoundReport | RoundFailure, run: TrainingRun) -> None:
        seen.append((outcome.number, float(run.model()["weights"].astype(np.float64)[0])))

    result = simulate(plan(), tasks, secure=secure, on_round=note)
    assert [number for number, _ in seen] == [1, 2]
    np.testing.assert_allclose([w for _, w in seen], [1.25, 1.875], atol=1e-3 if secure else 1e-12)
    assert [report.survivors for report in result.reports] == [(1, 2, 3, 4)] * 2
    assert result.variates == dict.fromkeys(tasks)
    assert result.reason == ""


def test_too_few_silos_for_the_policy_fail_the_run_without_a_model() -> None:
    """Two silos are below every policy (DRP-03); the plain reference takes them."""
    tasks = {"a": quadratic_task(1, 1), "b": quadratic_task(3, -1)}
    result = simulate(plan(), tasks)
    assert result.status is RunStatus.FAILED
    assert all(isinstance(entry, RoundFailure) for entry in result.history)
    assert result.reason
    assert simulate(plan(), tasks, secure=False).status is RunStatus.COMPLETED


def test_nobody_left_in_the_reference() -> None:
    """A plain round without any contribution is a failure, too."""

    class NoExamples(LeastSquaresTask):
        @property
        def n_examples(self) -> int:
            return 0

    task = NoExamples(np.ones((1, 1)), np.ones(1))
    result = simulate(plan(), {"a": task, "b": task}, secure=False)
    assert (result.status, len(result.history)) == (RunStatus.FAILED, MAX_ATTEMPTS)
    assert "no silo contributed; seat 1: n_examples" in result.reason


def test_unknown_algorithms_do_not_start() -> None:
    """The plan's error comes before any round."""
    with pytest.raises(PlanError, match=r"fedavg.*scaffold.*plugin"):
        simulate(plan("unknown"), {"a": quadratic_task(1, 1)})

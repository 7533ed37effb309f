"""Whole runs in the simulator: dropouts in every phase, retries, failures, weights, statistics."""

from typing import Any

import numpy as np
import pytest

from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.rounds import MAX_ATTEMPTS, RoundFailure, RoundReport, RunStatus
from fl.simulation import SimulationResult, simulate
from fl.state import LAST_ROUND, decode_state
from fl.testing import LeastSquaresTask, least_squares_toy
from secagg.phases import Phase


def plan(algorithm: str = "scaffold", **changes: Any) -> TrainingPlan:
    """A short plan for up to six silos."""
    values: dict[str, Any] = {
        "task": TaskPlan(name="fl.testing:toy_task"),
        "local": LocalPlan(local_steps=3, learning_rate=0.02),
        "rounds": 5,
        "max_silos": 6,
        "algorithm": algorithm,
        **changes,
    }
    return TrainingPlan(**values)


def uneven(silos: int) -> dict[str, LeastSquaresTask]:
    """Silos of 10, 20, 30 … points."""
    full = least_squares_toy(3, silos=silos, points=10 * silos)
    return {
        name: LeastSquaresTask(task.inputs[: 10 * place], task.targets[: 10 * place])
        for place, (name, task) in enumerate(full.items(), start=1)
    }


def weight_of(result: SimulationResult) -> float:
    """The toy's one parameter."""
    return float(result.model()["weights"].astype(np.float64)[0])


def invariant(result: SimulationResult) -> None:
    """Check c = mean c_k over all silos."""
    server = decode_state(result.state, 10**6)["server_variate"].astype(np.float64)
    mine = [0 * server if v is None else v for v in result.variates.values()]
    np.testing.assert_allclose(server, np.mean(mine, axis=0), atol=1e-10)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    "phase", [Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.SURVIVORS, Phase.UNMASK]
)
def test_a_silo_may_vanish_in_any_phase(phase: Phase, secure: bool) -> None:
    """It misses a round or its result, comes back, and c = mean c_k all along (SCA-02)."""
    result = simulate(
        plan(), least_squares_toy(1, silos=5), secure=secure, dropouts={2: {4: phase}}
    )
    assert result.status is RunStatus.COMPLETED
    counted = phase in (Phase.SURVIVORS, Phase.UNMASK)
    survivors = [report.survivors for report in result.reports]
    assert survivors[1] == ((1, 2, 3, 4, 5) if counted else (1, 2, 3, 5))
    assert all(one == (1, 2, 3, 4, 5) for one in survivors[2:])
    invariant(result)


def test_dropouts_move_the_mean_to_those_who_stayed() -> None:
    """Secure and plain agree on the model, with and without a dropout (AGG-03)."""
    tasks = least_squares_toy(1, silos=5)
    models = {
        (secure, bool(gone)): weight_of(
            simulate(plan("fedavg"), tasks, secure=secure, dropouts=gone)
        )
        for secure in (False, True)
        for gone in ({}, {number: {5: Phase.MASK} for number in range(1, 6)})
    }
    for gone in (False, True):
        assert models[True, gone] == pytest.approx(models[False, gone], abs=1e-3)
    assert abs(models[False, True] - models[False, False]) > 0.05


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
@pytest.mark.parametrize("weighting", ["uniform", "hidden", "declared"])
def test_secure_and_plain_agree_under_every_weighting(algorithm: str, weighting: str) -> None:
    """To the quantizer's error, and uneven weights do matter."""
    tasks = uneven(4)
    changes: dict[str, Any] = {"weighting": weighting}
    if weighting == "hidden":
        changes["n_cap"] = 30  # one silo lies above it
    if weighting == "declared":
        changes["declared"] = {name: 0.25 * place for place, name in enumerate(tasks, start=1)}
    one = plan(algorithm, **changes)
    plain, secure = simulate(one, tasks, secure=False), simulate(one, tasks)
    assert plain.status is secure.status is RunStatus.COMPLETED
    assert weight_of(secure) == pytest.approx(weight_of(plain), abs=2e-3)
    if weighting != "uniform":
        uniform = simulate(plan(algorithm), tasks, secure=False)
        assert abs(weight_of(uniform) - weight_of(plain)) > 0.02
    counted = 10 + 20 + 30 + 40 if weighting == "hidden" else None
    for report in secure.reports:
        assert report.examples == counted
        assert report.loss is not None


def test_weighted_invariant_with_everybody() -> None:
    """Hidden weights, all survive: c = Σ ρ_k c_k / Σ ρ_k."""
    tasks = uneven(4)
    result = simulate(plan(weighting="hidden", n_cap=40), tasks)
    server = decode_state(result.state, 10**6)["server_variate"].astype(np.float64)
    mine = np.array([variate for variate in result.variates.values() if variate is not None])
    weights = np.array([0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(server, np.average(mine, axis=0, weights=weights), atol=1e-9)


def test_a_failed_attempt_is_tried_again() -> None:
    """Too many vanish once; the second attempt has everybody, and c = mean c_k (DRP-03)."""
    gone = {3: {1: Phase.MASK, 2: Phase.MASK, 3: Phase.SHARE}}
    result = simulate(plan(), least_squares_toy(1, silos=5), dropouts=gone)
    assert result.status is RunStatus.COMPLETED, result.reason
    (failure,) = [entry for entry in result.history if isinstance(entry, RoundFailure)]
    assert (failure.number, failure.attempt, failure.retried) == (3, 0, True)
    assert [report.attempt for report in result.reports] == [0, 0, 1, 0, 0]
    invariant(result)


class Spoiled(LeastSquaresTask):
    """A task without examples."""

    @property
    def n_examples(self) -> int:
        return 0


def test_a_run_without_enough_silos_ends_with_the_reason() -> None:
    """Bounded tries, the first state kept, and what the silos said (DRP-03)."""
    toy = least_squares_toy(1, silos=4)
    tasks: dict[str, LeastSquaresTask] = dict(toy)
    for name in ("silo-02", "silo-03"):
        tasks[name] = Spoiled(toy[name].inputs, toy[name].targets)
    result = simulate(plan(), tasks)
    assert result.status is RunStatus.FAILED
    assert [type(entry) for entry in result.history] == [RoundFailure] * len(result.history)
    assert len(result.history) == MAX_ATTEMPTS
    assert "seat 2" in result.reason
    assert "n_examples" in result.reason
    assert decode_state(result.state, 10**6)[LAST_ROUND].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("secure", [False, True])
def test_one_bad_silo_does_not_stop_the_others(secure: bool) -> None:
    """It goes late; the others' mean is right (ENC-08)."""
    toy = least_squares_toy(1, silos=5)
    spoiled = dict(toy)
    spoiled["silo-05"] = Spoiled(toy["silo-05"].inputs, toy["silo-05"].targets)
    result = simulate(plan("fedavg"), spoiled, secure=secure)
    assert result.status is RunStatus.COMPLETED
    assert all(report.survivors == (1, 2, 3, 4) for report in result.reports)
    del toy["silo-05"]
    assert weight_of(result) == pytest.approx(
        weight_of(simulate(plan("fedavg"), toy, secure=False)), abs=1e-3
    )


@pytest.mark.parametrize("secure", [False, True])
def test_standardization_is_round_one(secure: bool) -> None:
    """The state holds the pooled mean and scale before the model moves."""
    tasks = uneven(4)
    result = simulate(plan("fedavg", standardize=True), tasks, secure=secure)
    assert result.status is RunStatus.COMPLETED, result.reason
    assert [report.kind for report in result.reports] == ["statistics"] + ["training"] * 5
    pooled = np.concatenate([task.inputs for task in tasks.values()])
    state = decode_state(result.state, 10**6)
    np.testing.assert_allclose(state["preprocess/mean"].astype(float), pooled.mean(0), rtol=1e-6)
    np.testing.assert_allclose(state["preprocess/scale"].astype(float), pooled.std(0), rtol=1e-6)


def test_secure_runs_repeat_bit_for_bit() -> None:
    """Same plan, data and seed: the same bytes at the end; another seed only rounds otherwise."""
    tasks = least_squares_toy(1, silos=4)
    one, two, other = (simulate(plan(), tasks, seed=seed) for seed in (1, 1, 2))
    assert one.state == two.state
    assert one.state != other.state
    assert weight_of(one) == pytest.approx(weight_of(other), abs=1e-3)


def test_metrics_are_those_of_the_pooled_data() -> None:
    """Each round's loss is at the model it started from: the mean over silos, which send no count.

    With hidden weights it is the mean over all examples.
    """
    tasks = uneven(4)
    for weights in ({}, {"weighting": "hidden", "n_cap": 40}):
        first = simulate(plan("fedavg", **weights), tasks).history[0]
        assert isinstance(first, RoundReport)
        targets = [task.targets for task in tasks.values()]
        if weights:
            targets = [np.concatenate(targets)]
        means = [float(np.mean(of_silo**2)) for of_silo in targets]
        assert first.loss == pytest.approx(sum(means) / len(means), rel=1e-4)

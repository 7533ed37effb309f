"""The table of dp.admission is the truth: what it allows runs, what it refuses is refused.

Every cell is tried with a training plan; where the table has no reason against it, a run goes
through the secure sum with real noise.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dp.admission import Algorithm, Feature, refusal
from dp.plan import Adjacency, Mode, Participation, PrivacyPlan, Unit
from dp.rng import ReplayStream
from fl.algorithms import ALGORITHMS
from fl.algorithms.private import privately
from fl.algorithms.qfedavg import QFedAvg
from fl.compression import CompressionPlan
from fl.errors import PlanError
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.ports import Tensor
from fl.privacy import as_settings
from fl.rounds import RunStatus
from fl.schedules import EarlyStop
from fl.seeding import generator
from fl.simulation import simulate
from fl.training.custom import OwnModel, OwnTask
from fl.training.loop import TensorExamples
from fl.work import Work, WorkPlan

pytest.importorskip("opacus")

SILOS = 3
ROWS = 32
ONE_STEP = {Algorithm.FEDSGD}


def task(seed: int) -> OwnTask:
    """Rows of a linear truth, each a unit."""
    inputs = generator(seed, "rows").normal(size=(ROWS, 2))
    targets = (inputs[:, :1] > 0).astype(np.float64)
    return OwnTask(
        OwnModel(
            build=lambda: nn.Linear(2, 1, dtype=torch.float64),
            examples=TensorExamples(
                inputs=torch.from_numpy(inputs), targets=torch.from_numpy(targets)
            ),
            loss=nn.functional.binary_cross_entropy_with_logits,
            unit_of=np.arange(ROWS),
        )
    )


TASKS = {f"silo-{number}": task(number) for number in range(1, SILOS + 1)}


def privacy_plan(mode: Mode, steps: int) -> PrivacyPlan:
    """Little noise, one round, three parameters."""
    of_units, ring = mode not in {Mode.CENTRAL, Mode.SILO}, mode not in {Mode.CENTRAL, Mode.ISRL}
    unit = Unit.PATIENT if mode is Mode.PATIENT else Unit.RECORD
    return PrivacyPlan(
        unit=unit if of_units else Unit.SILO,
        adjacency=Adjacency.ZERO_OUT,
        mode=mode,
        clip=1.0,
        z=0.5,
        rounds=1,
        delta=1e-5,
        dimension=3,
        cohort_size=SILOS,
        denominator=float(SILOS * ROWS if mode in {Mode.FEDSGD, Mode.PATIENT} else SILOS),
        participation=Participation.ALL,
        local_steps=steps,
        n_c=1 if ring else 0,
        h_dp=1 if ring else 0,
        max_units_per_silo=ROWS if of_units else 1,
        allow_low_utility=True,
    )


def training(mode: Mode, algorithm: str = "fedavg", **changes: object) -> TrainingPlan:
    """A training plan of this algorithm in this mode."""
    steps = 1 if mode is Mode.FEDSGD or algorithm in ONE_STEP else 2
    proximal = 0.1 if algorithm == Algorithm.FEDPROX else 0.0
    fields: dict[str, object] = {
        "task": TaskPlan(name="tests:task"),
        "local": LocalPlan(local_steps=steps, learning_rate=0.5, proximal=proximal),
        "rounds": 1,
        "max_silos": SILOS,
        "algorithm": str(algorithm),
        "metrics": False,
        "max_refreshes": 0,
        "privacy": as_settings(privacy_plan(mode, steps)),
    }
    return TrainingPlan(**(fields | changes))  # type: ignore[arg-type]  # checked at run time


def moved(weight: Tensor) -> float:
    """How far the model is from where it began."""
    start = TASKS["silo-1"].initial_model(0)["weight"]
    return float(np.linalg.norm(np.subtract(weight, start, dtype=np.float64)))


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_every_cell_of_the_algorithms_is_true(algorithm: Algorithm, mode: Mode) -> None:
    """A run with real noise that moves the model, or the table's own reason."""
    reason = refusal(algorithm, mode)
    if reason is not None:
        with pytest.raises(PlanError) as caught:
            training(mode, algorithm)
        assert f"{algorithm} is refused in mode {mode}: {reason}" in str(caught.value)
        return
    result = simulate(training(mode, algorithm), TASKS)
    assert result.status is RunStatus.COMPLETED, result.reason
    assert moved(result.model()["weight"]) > 0


def test_the_table_has_every_algorithm() -> None:
    """One that it does not know would pass as a rule on released values."""
    assert {*ALGORITHMS} - {"fedbn"} == {str(algorithm) for algorithm in Algorithm}


# A training plan's fields that ask for each line of the table.
ASKED: dict[Feature, dict[str, object]] = {
    Feature.OWN_STEPS: {"work": WorkPlan(kind=Work.OWN)},
    Feature.LOCAL_OPTIMIZER: {"optimizer": "momentum", "optimizer_settings": {"momentum": 0.9}},
    Feature.PROXIMAL: {"algorithm": "fednova", "proximal": 0.1},
    Feature.GRADIENT_VARIATE: {"algorithm": "scaffold", "algorithm_settings": {"option": "I"}},
    Feature.REFRESH: {"max_refreshes": 1},
    Feature.PERSONAL_LAYERS: {"personal": ("bias",)},
    Feature.ROTATION: {"compression": CompressionPlan(rotate=True)},
    Feature.BLOCKS: {"compression": CompressionPlan(block=1, kept=0.5, feedback=False)},
    Feature.ERROR_FEEDBACK: {"compression": CompressionPlan(block=1, kept=0.5)},
    Feature.STANDARDIZE: {"standardize": True},
    Feature.EXACT_METRICS: {"metrics": True},
    Feature.LOSS_STOPPING: {"early_stop": EarlyStop(patience=1)},
}


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.FEDSGD])
@pytest.mark.parametrize("feature", list(Feature))
def test_every_cell_of_the_settings_is_true(feature: Feature, mode: Mode) -> None:
    """Likewise, under an algorithm that the mode runs; `fedsgd` runs FedSGD alone."""
    changes = dict(ASKED[feature])
    plain = training(mode)
    for name in ("optimizer", "optimizer_settings", "proximal"):
        if name in changes:
            local = changes.get("local", plain.local)
            assert isinstance(local, LocalPlan)
            changes["local"] = replace(local, **{name: changes.pop(name)})  # type: ignore[arg-type]  # of the table above
    if refusal(feature, mode) is None:
        if feature is Feature.PERSONAL_LAYERS:
            fewer = replace(privacy_plan(mode, 2), dimension=2)
            changes["privacy"] = as_settings(fewer)
        result = simulate(training(mode, **changes), TASKS)  # type: ignore[arg-type]  # checked at run time
        assert result.status is RunStatus.COMPLETED, result.reason
        return
    # Scaffold is refused as such under patient, and blocks go before the memory of them.
    words = {str(feature), str(changes.get("algorithm"))}
    words |= {str(Feature.BLOCKS)} if feature is Feature.ERROR_FEEDBACK else set()
    with pytest.raises(PlanError) as caught:
        training(mode, **changes)  # type: ignore[arg-type]  # checked at run time
    assert any(f"{word} is refused in mode {mode}" in str(caught.value) for word in words)


@pytest.mark.parametrize("mode", [Mode.SILO, Mode.ISRL, Mode.PATIENT])
def test_fednova_with_one_k_is_fedavg(mode: Mode) -> None:
    """Its a_k cancel: the same noise moves the model as far, within the grids' steps."""
    clips = replace(privacy_plan(mode, 2), clip=50.0, z=1e-3, grid_bound=1e6)
    nova, avg = (
        moved(
            simulate(
                training(mode, name, privacy=as_settings(clips)),
                TASKS,
                noise=lambda silo: ReplayStream(silo.encode()),
            ).model()["weight"]
        )
        for name in ("fednova", "fedavg")
    )
    assert avg > 0.05
    assert nova == pytest.approx(avg, rel=0.2)


def test_fedsgd_under_isrl_is_one_noised_step() -> None:
    """The one step of η that FedAvg takes with K = 1."""
    privacy = as_settings(privacy_plan(Mode.ISRL, 1))
    local = LocalPlan(local_steps=1, learning_rate=0.5)
    one, other = (
        simulate(
            training(Mode.ISRL, name, privacy=privacy, local=local),
            TASKS,
            noise=lambda silo: ReplayStream(silo.encode()),
        )
        for name in ("fedsgd", "fedavg")
    )
    np.testing.assert_array_equal(one.model()["weight"], other.model()["weight"])


def test_an_algorithm_that_the_table_does_not_know_is_refused_by_what_it_sends() -> None:
    """Numbers beside the vector would be exact."""
    plan = training(Mode.SILO)
    with pytest.raises(PlanError, match="one vector"):
        privately(plan, QFedAvg(plan=plan, q=1.0), privacy_plan(Mode.SILO, 2))

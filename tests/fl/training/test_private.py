"""Modes whose unit is a record or a patient: what leaves a silo, and what a plan refuses."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dp.errors import PlanError as DpPlanError
from dp.plan import (
    Adjacency,
    MetricRelease,
    Mode,
    Participation,
    PrivacyPlan,
    Unit,
    bound_on_grid,
    share_noise_std,
)
from dp.rng import ReplayStream
from fl.errors import DataError, PlanError
from fl.participant import RunParticipant
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.privacy import METRIC_SUMS, as_settings, document_of, first_range, privacy_of
from fl.rounds import RoundRequest, RunStatus
from fl.run import TrainingRun
from fl.schedules import EarlyStop
from fl.seeding import generator
from fl.simulation import simulate
from fl.testing import DictMemory, least_squares_toy
from fl.training.custom import OwnModel, OwnTask
from fl.training.loop import TensorExamples
from secagg.ids import RunId
from secagg.testing import SeededRng, make_federation, make_parameters

SILOS = 3
ROWS = 40
FEATURES = 3


def own_task(seed: int, *, rows: int = ROWS, patients: bool = False) -> OwnTask:
    """Rows of a linear truth, two a patient if asked."""
    draws = generator(seed, "rows")
    rows *= 2 if patients else 1
    inputs = draws.normal(size=(rows, FEATURES))
    targets = (inputs @ np.array([1.0, -1.0, 0.5]) > 0).astype(np.float64)[:, None]
    return OwnTask(
        OwnModel(
            build=lambda: nn.Linear(FEATURES, 1, dtype=torch.float64),
            examples=TensorExamples(
                inputs=torch.from_numpy(inputs), targets=torch.from_numpy(targets)
            ),
            loss=nn.functional.binary_cross_entropy_with_logits,
            correct=lambda outputs, truth: int(((outputs > 0) == (truth > 0.5)).sum()),
            unit_of=np.arange(rows) // 2 if patients else None,
        )
    )


def unit_plan(mode: Mode, **changes: object) -> PrivacyPlan:
    """A plan of a unit mode for the four parameters."""
    ring = mode is not Mode.ISRL
    fields: dict[str, object] = {
        "unit": Unit.PATIENT if mode is Mode.PATIENT else Unit.RECORD,
        "adjacency": Adjacency.ZERO_OUT,
        "mode": mode,
        "clip": 1.0,
        "z": 1.0,
        "rounds": 2,
        "delta": 1e-5,
        "dimension": FEATURES + 1,
        "cohort_size": SILOS,
        "denominator": float(SILOS) if mode is Mode.ISRL else 0.5 * SILOS * ROWS,
        "q": 0.5,
        "participation": Participation.POISSON,
        "local_steps": 1 if mode is Mode.FEDSGD else 2,
        "n_c": 1 if ring else 0,
        "h_dp": 1 if ring else 0,
        "max_units_per_silo": ROWS,
    }
    return PrivacyPlan(**(fields | changes))  # type: ignore[arg-type]  # checked at run time


def training(privacy: PrivacyPlan, **changes: object) -> TrainingPlan:
    """A training plan under it."""
    fields: dict[str, object] = {
        "task": TaskPlan(name="tests:task"),
        "local": LocalPlan(local_steps=privacy.local_steps, learning_rate=0.5),
        "rounds": privacy.rounds,
        "max_silos": SILOS,
        "algorithm": "fedsgd" if privacy.mode is Mode.FEDSGD else "fedavg",
        "metrics": False,
        "max_refreshes": 0,
        "privacy": as_settings(privacy),
    }
    return TrainingPlan(**(fields | changes))  # type: ignore[arg-type]  # checked at run time


@pytest.mark.parametrize("mode", [Mode.ISRL, Mode.FEDSGD, Mode.PATIENT])
def test_a_run_of_each_mode_completes(mode: Mode) -> None:
    """Through the secure sum, with real noise, and the model moves."""
    tasks = {f"silo-{n}": own_task(n, patients=mode is Mode.PATIENT) for n in range(1, SILOS + 1)}
    result = simulate(training(unit_plan(mode)), tasks)
    assert result.status is RunStatus.COMPLETED, result.reason
    assert all(report.loss is None for report in result.reports)
    assert not np.array_equal(result.model()["weight"], tasks["silo-1"].initial_model(0)["weight"])


def metric_plan(mode: Mode, **changes: object) -> PrivacyPlan:
    """A plan that releases metrics under little noise."""
    z = None if mode is Mode.ISRL else 0.2
    extra = 0 if mode is Mode.ISRL else 2
    fields: dict[str, object] = {
        "metrics": MetricRelease(loss_cap=4.0, z=z),
        "dimension": FEATURES + 1 + extra,
        "z": 0.1,
    }
    return unit_plan(mode, **(fields | changes))


@pytest.mark.parametrize("mode", [Mode.ISRL, Mode.FEDSGD, Mode.PATIENT])
def test_noised_metrics_are_reported_and_early_stopping_reads_them(mode: Mode) -> None:
    """Loss near ln 2 at the first model; nobody counts examples; patience is allowed."""
    tasks = {f"silo-{n}": own_task(n, patients=mode is Mode.PATIENT) for n in range(1, SILOS + 1)}
    plan = training(metric_plan(mode), early_stop=EarlyStop(patience=5))
    result = simulate(plan, tasks)
    assert result.status is RunStatus.COMPLETED, result.reason
    first, last = result.reports
    assert first.examples is None
    assert first.loss is not None
    assert first.accuracy is not None
    exact = [task.evaluate(task.initial_model(0)) for task in tasks.values()]
    mean = sum(one.loss_sum for one in exact) / sum(one.examples for one in exact)
    assert first.loss == pytest.approx(mean, abs=0.35)
    assert 0.0 <= first.accuracy <= 1.0
    assert last.loss is not None


def test_isrl_sends_its_metrics_under_local_noise() -> None:
    """Table 5.4: two integers beside the delta, each with full noise in the silo."""
    privacy = metric_plan(Mode.ISRL, z=1.0, max_units_per_silo=ROWS)
    plan = training(privacy)
    vectors = [sent(plan, own_task(1), 1)[0] for _ in range(60)]
    assert set(vectors[0]) == {"update", METRIC_SUMS}
    values = np.array([one[METRIC_SUMS] for one in vectors])
    assert (values.std(axis=0) > 0.7 * share_noise_std(privacy)).all()


def test_joint_metrics_ride_in_the_one_noised_vector() -> None:
    """Table 5.4: no segment beside it; the metrics' coordinates carry the same share."""
    privacy = metric_plan(Mode.FEDSGD, z=0.8, metrics=MetricRelease(loss_cap=4.0, z=3.0))
    vectors = sent(training(privacy), own_task(1), 60)
    assert all(set(one) == {"update"} for one in vectors)
    values = np.array([one["update"][FEATURES + 1 : FEATURES + 3] for one in vectors])
    assert (values.std(axis=0) > 0.7 * share_noise_std(privacy)).all()


def test_isrl_runs_scaffold_with_option_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """c_k follows from the noised integers, so it costs nothing: each from those that were sent."""
    uploaded: dict[int, list[np.ndarray]] = {seat: [] for seat in range(1, SILOS + 1)}
    real = RunParticipant.contribute

    def contribute(self: RunParticipant, *arguments: Any, **others: Any) -> Any:
        sent = real(self, *arguments, **others)
        uploaded[self._seat].append(sent["update"])
        return sent

    monkeypatch.setattr(RunParticipant, "contribute", contribute)
    tasks = {f"silo-{n}": own_task(n) for n in range(1, SILOS + 1)}
    privacy = unit_plan(Mode.ISRL)
    plan = training(privacy, algorithm="scaffold")
    result = simulate(plan, tasks)
    assert result.status is RunStatus.COMPLETED, result.reason
    step = first_range(plan, privacy) / (2**23 - 1)
    path = privacy.local_steps * 0.5
    first = {seat: -sent[0] * step / path for seat, sent in uploaded.items()}
    server = sum(first.values()) / SILOS
    for seat, sent in uploaded.items():
        assert len(sent) == privacy.rounds
        expected = first[seat] - server - sent[1] * step / path
        kept = result.variates[f"silo-{seat}"]
        assert kept is not None
        np.testing.assert_allclose(kept, expected, rtol=1e-9, atol=1e-12)


RUN = RunId(b"u" * 16)


def participant(plan: TrainingPlan, task: OwnTask, most_units: int | None = None) -> RunParticipant:
    """The first silo."""
    return RunParticipant(
        plan,
        run=RUN,
        seat=1,
        names={1: "a", 2: "b", 3: "c"},
        task=task,
        memory=DictMemory(),
        rng=SeededRng(1),
        most_units=most_units,
    )


def sent(plan: TrainingPlan, task: OwnTask, attempts: int) -> list[dict[str, np.ndarray]]:
    """What leaves one silo in several attempts on one state."""
    run = TrainingRun(plan, model=task.initial_model(0), names={1: "a", 2: "b", 3: "c"})
    request = run.next()
    assert isinstance(request, RoundRequest)
    privacy = privacy_of(plan)
    assert privacy is not None
    one = participant(plan, task)
    parameters = make_parameters(
        make_federation(SILOS, seed=1).roster,
        request.spec,
        run=RUN,
        n_c=privacy.n_c,
        n_max=SILOS,
        training_plan=plan.digest(),
        dp=document_of(plan),
        h_dp=privacy.h_dp,
    )
    one.check(parameters, plan.document())
    return [one.contribute(parameters, run.state) for _ in range(attempts)]


@pytest.mark.parametrize("mode", [Mode.FEDSGD, Mode.PATIENT])
def test_joint_modes_let_out_one_noised_vector(mode: Mode) -> None:
    """Table 5.4: nothing beside it, a fresh share each attempt, padding of noise alone."""
    privacy = unit_plan(mode)
    vectors = sent(training(privacy), own_task(1, patients=mode is Mode.PATIENT), 60)
    assert all(set(one) == {"update"} for one in vectors)
    values = np.array([one["update"] for one in vectors])
    sigma = share_noise_std(privacy)
    assert 0.98 < values[:, FEATURES + 1 :].std() / sigma < 1.02
    # The data's own spread (the secret mask) comes on top of the share's.
    assert (values[:, : FEATURES + 1].std(axis=0) > 0.7 * sigma).all()
    assert np.abs(values).max() < ROWS * bound_on_grid(privacy) + 15 * sigma


def test_isrl_lets_out_the_locally_noised_delta_alone() -> None:
    """Table 5.4: no usage counts, no weight; a retry repeats what was noised once."""
    privacy = unit_plan(Mode.ISRL)
    plan = training(privacy)
    vectors = sent(plan, own_task(1), 2)
    assert set(vectors[0]) == {"update"}
    assert len(vectors[0]["update"]) == FEATURES + 1
    np.testing.assert_array_equal(vectors[0]["update"], vectors[1]["update"])
    spread = np.array([sent(plan, own_task(1), 1)[0]["update"] for _ in range(40)])
    # K = 2 steps of full noise: sigma·C·η·sqrt(K)/(q·M), in steps of the public range.
    step = first_range(plan, privacy) / (2**23 - 1)
    per_step = share_noise_std(privacy) / bound_on_grid(privacy) * 0.5 / (0.5 * ROWS)
    least = per_step * np.sqrt(2) / step
    assert (spread.std(axis=0) > 0.6 * least).all()


def test_record_modes_refuse_unnoised_state_of_the_silo() -> None:
    """5.3: personal layers, exact gradients, other optimizers, another K."""
    privacy = unit_plan(Mode.ISRL)
    local = LocalPlan(local_steps=2, learning_rate=0.5, optimizer="momentum")
    for changes in (
        {"personal": ("*bias",)},
        {"local": local},
        {"local": LocalPlan(local_steps=3, learning_rate=0.5)},
    ):
        with pytest.raises(PlanError):
            training(privacy, **changes)


def test_joint_noise_refuses_several_local_steps_and_scaffold() -> None:
    """5.2 and 4.4."""
    with pytest.raises(DpPlanError, match="local_steps"):
        unit_plan(Mode.FEDSGD, local_steps=2)
    with pytest.raises(PlanError, match="scaffold"):
        training(unit_plan(Mode.PATIENT), algorithm="scaffold")


def test_a_silo_with_too_many_or_too_few_units_refuses_before_any_round() -> None:
    """A limit of the plan, and one of the silo; neither message tells a count."""
    plan = training(unit_plan(Mode.ISRL))
    for rows in (ROWS + 3, 7):
        with pytest.raises(DataError) as caught:
            simulate(plan, {f"silo-{n}": own_task(n, rows=rows) for n in range(1, SILOS + 1)})
        assert str(rows) not in str(caught.value)


@pytest.mark.parametrize("mode", [Mode.ISRL, Mode.FEDSGD, Mode.PATIENT])
def test_units_are_counted_against_the_silos_own_figure_alone(mode: Mode) -> None:
    """Whatever a coordinator writes into its plan, the same silo gives the same answer."""
    task = own_task(1, patients=mode is Mode.PATIENT)
    for planned in (ROWS - 1, ROWS, ROWS + 1, 10 * ROWS):
        plan = training(unit_plan(mode, max_units_per_silo=planned))
        participant(plan, task, most_units=ROWS)
        with pytest.raises(DataError, match=f"more units than {ROWS - 1}"):
            participant(plan, task, most_units=ROWS - 1)


def test_a_task_without_private_steps_is_refused() -> None:
    """A task must be able to clip each unit."""
    plan = training(unit_plan(Mode.ISRL, dimension=1))
    with pytest.raises(PlanError, match="train_private"):
        simulate(plan, least_squares_toy(1, silos=SILOS))


def test_noise_from_a_seed_repeats_a_simulation() -> None:
    """For tests only; a real run takes no seed."""
    tasks = {f"silo-{n}": own_task(n) for n in range(1, SILOS + 1)}
    plan = training(unit_plan(Mode.ISRL))
    one, two = (
        simulate(plan, tasks, noise=lambda name: ReplayStream(name.encode())) for _ in range(2)
    )
    assert one.state == two.state

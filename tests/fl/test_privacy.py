"""Privacy plans in runs: what each mode lets out, what it refuses, and that it still learns."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dp.plan import (
    AdaptiveClip,
    Adjacency,
    MetricRelease,
    Mode,
    PrivacyPlan,
    Unit,
    Weights,
    bound_on_grid,
    share_noise_std,
    steps_per_unit,
)
from dp.rng import NoiseSource, ReplayStream
from fl.errors import PlanError, SpecMismatchError
from fl.participant import RunParticipant
from fl.pipeline import Decoded, vector_spec
from fl.plan import LocalPlan, TaskPlan, TrainingPlan, Weighting
from fl.ports import FloatVector
from fl.privacy import (
    CLIP_COUNT,
    as_settings,
    clipped_integers,
    decoded_sum,
    document_of,
    noise_share,
    privacy_of,
)
from fl.rounds import RoundFailure, RoundReport, RunStatus
from fl.run import TrainingRun
from fl.schedules import EarlyStop
from fl.simulation import simulate
from fl.state import decode_state, ranges_of
from fl.testing import DictMemory, LeastSquaresTask, least_squares_toy
from secagg.errors import LocalProtocolError, ParameterError
from secagg.ids import RunId
from secagg.messages import SUM
from secagg.parameters import SegmentKind, VectorSpec, bulk, meta
from secagg.phases import Phase
from secagg.ring import IntVector
from secagg.testing import RoundHarness, SeededRng, make_federation, make_parameters
from secagg.vectors import read_sum, root_of

SILOS = 5
RUN = RunId(b"r" * 16)


def silo_plan(**changes: object) -> PrivacyPlan:
    """A plan of mode silo for one parameter."""
    fields: dict[str, object] = {
        "unit": Unit.SILO,
        "adjacency": Adjacency.ZERO_OUT,
        "mode": Mode.SILO,
        "clip": 1.0,
        "z": 0.5,
        "rounds": 3,
        "delta": 1e-5,
        "dimension": 1,
        "cohort_size": SILOS,
        "denominator": float(SILOS),
        "n_c": 1,
        "h_dp": 2,
    }
    return PrivacyPlan(**(fields | changes))  # type: ignore[arg-type]  # checked at run time


def training(privacy: PrivacyPlan, **changes: object) -> TrainingPlan:
    """A training plan under it."""
    fields: dict[str, object] = {
        "task": TaskPlan(name="fl.testing:toy_task"),
        "local": LocalPlan(local_steps=2, learning_rate=0.05),
        "rounds": privacy.rounds,
        "max_silos": SILOS,
        "metrics": False,
        "max_refreshes": 0,
        "privacy": as_settings(privacy),
    }
    return TrainingPlan(**(fields | changes))  # type: ignore[arg-type]  # checked at run time


def quiet(name: str) -> ReplayStream:
    """Noise that repeats: for tests only."""
    return ReplayStream(name.encode())


def test_the_privacy_plan_is_part_of_the_document_and_of_ctx() -> None:
    """Another z is another training plan, and the bytes for ctx are dp's own."""
    privacy = silo_plan()
    plan = training(privacy)
    assert privacy_of(plan) == privacy
    assert document_of(plan) == privacy.to_bytes()
    assert TrainingPlan.parse(plan.document()) == plan
    assert training(silo_plan(z=0.6)).digest() != plan.digest()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"metrics": True}, "metrics"),
        ({"rounds": 4}, "rounds"),
        ({"standardize": True}, "standardize"),
        ({"max_refreshes": 1}, "max_refreshes"),
        ({"weighting": Weighting.HIDDEN, "n_cap": 5}, "weighting"),
        ({"max_silos": 4}, "max_silos"),
    ],
)
def test_a_training_plan_that_breaks_the_promise_is_refused(
    changes: dict[str, object], word: str
) -> None:
    """Each by the field's name."""
    with pytest.raises(PlanError, match=word):
        training(silo_plan(), **changes)


def test_a_broken_privacy_section_is_refused() -> None:
    """Not a plan at all, and a plan that dp refuses."""
    with pytest.raises(PlanError, match="privacy plan"):
        TrainingPlan(
            task=TaskPlan(),
            local=LocalPlan(local_steps=1, learning_rate=1.0),
            rounds=1,
            max_silos=3,
            privacy={"z": "0"},
        )


@pytest.mark.parametrize("algorithm", ["afl", "qfedavg"])
def test_algorithms_with_exact_scalars_are_refused(algorithm: str) -> None:
    """What rides beside the update exactly has no place under a plan."""
    with pytest.raises(PlanError, match="exactly beside its vector"):
        training(silo_plan(), algorithm=algorithm)


def test_scaffold_with_gradients_is_refused() -> None:
    """Option I would be a second release."""
    with pytest.raises(PlanError, match="option"):
        training(silo_plan(), algorithm="scaffold", algorithm_settings={"option": "I"})


def test_a_model_of_another_size_is_refused() -> None:
    """The noise was sized for the plan's dimension."""
    plan = training(silo_plan(dimension=2, allow_low_utility=True))
    with pytest.raises(SpecMismatchError, match="parameters"):
        simulate(plan, least_squares_toy(1, silos=SILOS))


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fednova", "fedadam", "fedsgd"])
def test_a_silo_run_goes_through_the_secure_sum(algorithm: str) -> None:
    """Every round is summed and settled by every silo, with real noise."""
    steps = {"local": LocalPlan(local_steps=1, learning_rate=0.05)} if algorithm == "fedsgd" else {}
    plan = training(silo_plan(z=0.05, rounds=3), algorithm=algorithm, **steps)
    result = simulate(plan, least_squares_toy(1, silos=SILOS))
    assert result.status is RunStatus.COMPLETED, result.reason
    assert [report.loss for report in result.reports] == [None] * 3
    assert all(report.saturated == 0 for report in result.reports)


@pytest.mark.parametrize("mode", [Mode.SILO, Mode.CENTRAL])
def test_a_silo_s_loss_rides_in_the_noised_vector(mode: Mode) -> None:
    """Off by default; if planned, the mean over silos is reported, and early stopping reads it."""
    if mode is Mode.CENTRAL:
        pytest.importorskip("opacus")
    ring = {} if mode is Mode.SILO else {"n_c": 0, "h_dp": 0}
    privacy = silo_plan(
        mode=mode, z=0.01, dimension=3, metrics=MetricRelease(loss_cap=50.0, z=0.02), **ring
    )
    tasks = least_squares_toy(1, silos=SILOS)
    plan = training(privacy, early_stop=EarlyStop(patience=9))
    result = simulate(plan, tasks)
    assert result.status is RunStatus.COMPLETED, result.reason
    exact = [task.evaluate(task.initial_model(plan.seed)) for task in tasks.values()]
    mean = np.mean([min(one.loss_sum / one.examples, 50.0) for one in exact])
    assert result.reports[0].loss == pytest.approx(mean, abs=2.0)
    assert result.reports[0].examples is None


def test_early_stopping_needs_released_metrics() -> None:
    """A silo's own losses are not for schedules (privacy.md 4.5)."""
    with pytest.raises(PlanError, match=r"early_stop"):
        training(silo_plan(), early_stop=EarlyStop(patience=1))


def participant(plan: TrainingPlan, task: LeastSquaresTask, seat: int = 1) -> RunParticipant:
    """One silo of the run."""
    return RunParticipant(
        plan,
        run=RUN,
        seat=seat,
        names={number: f"silo-{number:02}" for number in range(1, SILOS + 1)},
        task=task,
        memory=DictMemory(),
        rng=SeededRng(seat),
    )


def released(plan: TrainingPlan, task: LeastSquaresTask, times: int) -> list[dict[str, np.ndarray]]:
    """What leaves one silo in `times` attempts on one state."""
    run = TrainingRun(
        plan,
        model=task.initial_model(0),
        names={number: f"silo-{number:02}" for number in range(1, SILOS + 1)},
    )
    request = run.next()
    federation = make_federation(SILOS, seed=1)
    privacy = privacy_of(plan)
    assert privacy is not None
    parameters = make_parameters(
        federation.roster,
        request.spec,  # type: ignore[union-attr]  # the run has just begun
        run=RUN,
        n_max=SILOS,
        training_plan=plan.digest(),
        dp=document_of(plan),
        h_dp=privacy.h_dp,
    )
    one = participant(plan, task)
    one.check(parameters, plan.document())
    return [one.contribute(parameters, run.state) for _ in range(times)]


def test_what_leaves_a_silo_is_noised_and_never_repeated() -> None:
    """Table 5.4, mode silo: one segment; its spread is the share's, padding holds noise alone."""
    privacy = silo_plan(dimension=1, clip=1.0, z=0.5)
    task = least_squares_toy(1, silos=1, points=30)["silo-01"]
    sent = released(training(privacy), task, 300)
    assert all(set(one) == {"update"} for one in sent)
    values = np.array([one["update"] for one in sent])
    assert values.shape == (300, 1 + 1024)
    sigma = share_noise_std(privacy)
    spread = values[:, 0].std() / sigma
    assert 0.85 < spread < 1.15  # 300 draws: standard error 4 %
    padding = values[:, 1:].std() / sigma
    assert 0.99 < padding < 1.01
    assert abs(values[:, 1:].mean()) < 5 * sigma / np.sqrt(values[:, 1:].size)
    bound = bound_on_grid(privacy)
    assert abs(values[:, 0].mean()) < bound * 1.01 + 5 * sigma / np.sqrt(300)


def test_a_changed_plan_is_refused_by_the_silo() -> None:
    """Another plan in ctx, or fewer honest shares than it counts on."""
    plan = training(silo_plan())
    federation = make_federation(SILOS, seed=1)
    one = participant(plan, least_squares_toy(1, silos=1)["silo-01"])
    good = make_parameters(
        federation.roster,
        vector_spec(plan, 1, 1),
        run=RUN,
        n_max=SILOS,
        training_plan=plan.digest(),
        dp=document_of(plan),
        h_dp=2,
    )
    one.check(good, plan.document())
    for changes in ({"dp": silo_plan(z=0.4).to_bytes()}, {"dp": b""}, {"h_dp": 1}, {"n_c": 0}):
        with pytest.raises(SpecMismatchError):
            one.check(replace(good, **changes), plan.document())


class BrokenTask(LeastSquaresTask):
    """Training fails in a way that depends on data."""

    def train(self, *_: object) -> None:  # type: ignore[override] # fails whatever it gets
        """Fail as a bad row would."""
        raise ValueError("row 17 is not a number")


def test_a_failure_that_depends_on_data_ends_as_zero_plus_noise() -> None:
    """DPN-01: nobody outside can tell a failed silo from another."""
    task = least_squares_toy(1, silos=1)["silo-01"]
    privacy = silo_plan()
    sent = released(training(privacy), BrokenTask(task.inputs, task.targets), 200)
    first = np.array([one["update"][0] for one in sent])
    assert abs(first.mean()) < 5 * share_noise_std(privacy) / np.sqrt(200)
    assert first.std() > 0


def test_a_failure_does_not_show_under_small_weight_classes() -> None:
    """The zeros of a silo that failed weigh what the plan allows, so that they are not refused."""
    privacy = silo_plan(weights=Weights.DECLARED, max_weight=0.5)
    classes = {f"silo-{number:02}": 0.5 for number in range(1, SILOS + 1)}
    plan = training(privacy, weighting=Weighting.DECLARED, declared=classes)
    task = least_squares_toy(1, silos=1)["silo-01"]
    sent = released(plan, BrokenTask(task.inputs, task.targets), 3)
    assert len(sent) == 3


def test_a_nan_in_the_data_ends_as_zero_plus_noise() -> None:
    """DPN-01: a non-finite update becomes the zero vector."""
    task = LeastSquaresTask(np.array([[1.0], [np.nan]]), np.zeros(2))
    privacy = silo_plan()
    sent = released(training(privacy), task, 100)
    first = np.array([one["update"][0] for one in sent])
    assert abs(first.mean()) < 5 * share_noise_std(privacy) / np.sqrt(100)


def test_the_sum_is_the_clipped_sum_within_its_noise() -> None:
    """A tiny z: the released model is FedAvg's with clipped updates and the public denominator."""
    tasks = least_squares_toy(3, silos=SILOS)
    privacy = silo_plan(z=0.001, clip=0.2, rounds=1)
    result = simulate(training(privacy), tasks, noise=quiet)
    expected = 0.0
    for task in tasks.values():
        local = LocalPlan(local_steps=2, learning_rate=0.05)
        after = task.train(task.initial_model(0), None, local, 0, 1).model_after[0]
        expected += float(np.clip(after, -0.2, 0.2)) / SILOS
    got = float(result.model()["weights"][0])
    assert got == pytest.approx(expected, abs=0.005)


def test_dropouts_are_borne_to_the_floor_and_no_further() -> None:
    """The divisor stays the plan's constant; below n_c + h_dp nothing is opened."""
    tasks = least_squares_toy(3, silos=SILOS)
    plan = training(silo_plan(z=0.01, rounds=1, h_dp=3, clip=0.5))
    one = simulate(plan, tasks, dropouts={1: {5: Phase.MASK}})
    assert one.reports[0].survivors == (1, 2, 3, 4)
    two = simulate(plan, tasks, dropouts={1: {4: Phase.MASK, 5: Phase.MASK}})
    # The first attempt is below the floor; whoever vanished is back for the second.
    assert [type(entry) for entry in two.history] == [RoundFailure, RoundReport]
    assert two.reports[0].survivors == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("is_mutant", [False, True])
def test_scaffold_keeps_what_its_integers_say_before_the_noise(
    is_mutant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c_k = −u_k/(Kη) from the clipped integers; the mutant takes those that are sent (8.3)."""
    clipped: list[IntVector] = []
    shares: list[IntVector] = []

    def recorded(update: FloatVector, privacy: PrivacyPlan, **others: Any) -> IntVector:
        clipped.append(clipped_integers(update, privacy, **others))
        return clipped[-1]

    def drawn(privacy: PrivacyPlan, source: NoiseSource) -> IntVector | None:
        share = noise_share(privacy, source)
        assert share is not None
        shares.append(share)
        return share

    def decoded(integers: IntVector, privacy: PrivacyPlan, **others: Any) -> Any:
        return decoded_sum(integers + shares[-1] if is_mutant else integers, privacy, **others)

    monkeypatch.setattr("fl.participant.clipped_integers", recorded)
    monkeypatch.setattr("fl.participant.noise_share", drawn)
    monkeypatch.setattr("fl.participant.decoded_sum", decoded)
    privacy = silo_plan(z=2.0, clip=0.01, rounds=2)
    plan = training(privacy, algorithm="scaffold")
    result = simulate(plan, least_squares_toy(1, silos=SILOS))
    assert len(clipped) == 2 * SILOS
    path = 2 * 0.05
    expected = [-one[0] / steps_per_unit(privacy) / path for one in clipped[SILOS:]]
    kept = [float(variate[0]) for variate in result.variates.values() if variate is not None]
    assert len(kept) == SILOS
    assert bool(np.allclose(sorted(kept), sorted(expected), rtol=1e-9)) is not is_mutant
    bound = 0.01 / path * 1.01 + 1 / steps_per_unit(privacy) / path
    assert (np.abs(kept).max() <= bound) is not is_mutant


def test_scaffold_without_noise_to_speak_of_is_scaffold() -> None:
    """4.4: equal to SCAFFOLD with full participation, no clip, no noise."""
    tasks = least_squares_toy(2, silos=SILOS)
    privacy = silo_plan(z=1e-4, clip=50.0, rounds=3, grid_bound=1e6)
    private = training(privacy, algorithm="scaffold")
    public = TrainingPlan(
        task=private.task, local=private.local, rounds=3, max_silos=SILOS, algorithm="scaffold"
    )
    noised = simulate(private, tasks, noise=quiet).model()["weights"]
    exact = simulate(public, tasks, secure=False).model()["weights"]
    assert float(noised[0]) == pytest.approx(float(exact[0]), abs=0.02)


def test_adaptive_clipping_moves_the_range_that_is_c() -> None:
    """The bit rides in the vector; C is part of the state and stays in its limits."""
    rule = AdaptiveClip(count_noise_std=60.0, clip_min=0.1, clip_max=4.0)
    privacy = silo_plan(
        cohort_size=100, denominator=100.0, dimension=2, adaptive=rule, z=0.5, rounds=2
    )
    plan = training(privacy, max_silos=100)
    run = TrainingRun(
        plan, model={"weights": np.zeros(1)}, names={n: f"silo-{n}" for n in range(1, 101)}
    )
    bulk = {"update": np.array([1.0]), CLIP_COUNT: np.array([50.0])}  # everybody unclipped
    run.receive_decoded(Decoded(bulk=bulk, meta={}), tuple(range(1, 101)))
    moved = ranges_of(decode_state(run.state, 10**6))["update"]
    assert moved == pytest.approx(np.exp(-0.2 * 0.5))


def test_there_is_no_plain_reference_under_a_plan() -> None:
    """Plain sums would be the un-noised ones."""
    with pytest.raises(PlanError):
        simulate(training(silo_plan()), least_squares_toy(1, silos=SILOS), secure=False)


def central_plan(**changes: object) -> PrivacyPlan:
    """A plan of mode central for one parameter."""
    return silo_plan(mode=Mode.CENTRAL, n_c=0, h_dp=0, **changes)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_in_central_everybody_but_the_coordinator_gets_the_noised_sum(algorithm: str) -> None:
    """Table 5.4: Result carries the noised vector, tags are off, and no silo sees the exact sum."""
    pytest.importorskip("opacus")
    plan = training(central_plan(z=0.5), algorithm=algorithm)
    spec = vector_spec(plan, 1, 1)
    assert [segment.kind for segment in spec.segments] == [SegmentKind.NOISED]
    result = simulate(plan, least_squares_toy(1, silos=SILOS))
    assert result.status is RunStatus.COMPLETED, result.reason


def test_the_exact_sum_is_noised_before_it_is_stored_and_told_again_as_it_was() -> None:
    """A second opening tells the first one's sum: another draw would be another release."""
    federation = make_federation(3, seed=5)
    segment = bulk("update", 4, value_bits=20, n_max=3, kind=SegmentKind.NOISED)
    parameters = make_parameters(federation.roster, VectorSpec(segments=(segment,)))
    draws: list[int] = []

    def noise(sums: Mapping[str, IntVector]) -> dict[str, IntVector]:
        draws.append(len(draws) + 1)
        assert sums["update"].tolist() == [3, 6, 9, 12]
        return {"update": sums["update"] + 1000 * draws[-1]}

    harness = RoundHarness(
        federation=federation,
        parameters=parameters,
        state=b"state",
        train=lambda *_: {"update": np.array([1, 2, 3, 4])},
        noise=noise,
    )
    outcome = harness.run()
    assert outcome.aggregate is not None
    noised = [1003, 1006, 1009, 1012]
    assert outcome.aggregate.values["update"].tolist() == noised
    assert not parameters.has_tags
    assert {tuple(one.values["update"]) for one in outcome.silo_aggregates.values()} == {
        tuple(noised)
    }
    wire = parameters.wire_spec
    stored = read_sum(outcome.server_store, SUM, wire, root_of(outcome.server_store, SUM, wire))
    assert stored.values["update"].tolist() == noised
    assert draws == [1]


def test_a_vector_is_noised_as_a_whole() -> None:
    """An exact segment beside it would tell what the noise hides; so would a recomputation."""
    federation = make_federation(5, seed=5)
    segment = bulk("update", 4, value_bits=20, n_max=5, kind=SegmentKind.NOISED)
    with pytest.raises(ParameterError, match="whole"):
        make_parameters(
            federation.roster, VectorSpec(segments=(segment, meta("count", 1, bound=9)))
        )
    with pytest.raises(ParameterError, match="recomputed"):
        make_parameters(federation.roster, VectorSpec(segments=(segment,)), redundancy=1)


def test_a_server_noises_what_is_to_be_noised_and_nothing_else() -> None:
    """Opening such a sum without noise would tell the exact one."""
    federation = make_federation(3, seed=5)
    segment = bulk("update", 4, value_bits=20, n_max=3, kind=SegmentKind.NOISED)
    harness = RoundHarness(
        federation=federation,
        parameters=make_parameters(federation.roster, VectorSpec(segments=(segment,))),
        state=b"state",
        train=lambda *_: {"update": np.array([1, 2, 3, 4])},
    )
    with pytest.raises(LocalProtocolError, match="noise"):
        harness.run()

"""Local DP-SGD: per-sample gradients, public denominators, empty batches, unsafe modules."""

import gc
import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from opacus.grad_sample import GradSampleModule
from torch import nn
from torch.nn import functional

from dp import local_sgd
from dp.errors import InfeasibleError, PlanError
from dp.local_sgd import (
    NoisyOptimizer,
    fedsgd_sum,
    isrl_metrics,
    noise_vector,
    patient_sum,
    train_isrl,
)
from dp.mechanisms import (
    GridNoise,
    UnitMetrics,
    contribution,
    decode,
    encode,
    full_noise,
    metric_means,
    split_padding,
)
from dp.modules import trainable, unwrapped
from dp.plan import (
    Adjacency,
    Clipping,
    MetricRelease,
    Mode,
    Participation,
    PrivacyPlan,
    Segment,
    Unit,
    Weights,
    bound_on_grid,
    grid_sensitivity,
    share_noise_std,
    total_noise_std,
)
from dp.rng import NoiseStream, ReplayStream
from dp.testing import CountingSource
from dp.unit_data import Meter, UnitData, sampled
from tests.dp.rows import Rows, records, small_model

STEP = 2.0**-12


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: on tiny models threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def plan(mode: Mode, **changes: Any) -> PrivacyPlan:
    """Return a plan for the small model; `changes` replace fields."""
    fields: dict[str, Any] = {
        "unit": Unit.PATIENT if mode is Mode.PATIENT else Unit.RECORD,
        "adjacency": Adjacency.ADD_REMOVE,
        "mode": mode,
        "clip": 0.5,
        "z": 1.0,
        "rounds": 2,
        "delta": 1e-5,
        "dimension": 26,
        "cohort_size": 5,
        "denominator": 100.0,
        "max_units_per_silo": 200,
        "local_steps": 1 if mode is Mode.FEDSGD else 4,
        "grid_bound": 0.5 / STEP,
    }
    if mode is not Mode.ISRL:
        fields |= {"n_c": 1, "h_dp": 3, "padding": 2}
    if changes.get("q", 1.0) < 1.0:
        fields["participation"] = Participation.POISSON
    return PrivacyPlan(**(fields | changes))


def loop_gradients(model: nn.Module, data: Rows) -> Any:
    """Return each record's gradient by one backward pass a record: (n, 26), sorted names."""
    parameters = list(trainable(model).values())
    flat = []
    for i in range(len(data)):
        loss = functional.cross_entropy(model(data.inputs[i : i + 1]), data.targets[i : i + 1])
        parts = torch.autograd.grad(loss, parameters)
        flat.append(torch.cat([g.reshape(-1) for g in parts]).double().numpy())
    return np.array(flat)


def clipped(vectors: Any, bound: float) -> Any:
    """Return the rows scaled down to the bound."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors * np.minimum(1.0, bound / norms)


@pytest.mark.parametrize("physical", [7, 64])
@pytest.mark.parametrize("strict", [False, True])
def test_fedsgd_sums_clipped_per_sample_gradients(physical: int, strict: bool) -> None:
    """Parity with a loop over records, in any physical batch, rounded to the grid."""
    model, data = small_model(), records()
    used = plan(Mode.FEDSGD, strict=strict)
    result = fedsgd_sum(
        model,
        functional.cross_entropy,
        UnitData(examples=data),
        used,
        learning_rate=0.7,
        source=ReplayStream(b"mask"),
        coins=ReplayStream(b"coins"),
        physical_batch=physical,
    )
    expected = clipped(-0.7 * loop_gradients(model, data), 0.5).sum(axis=0)
    error = np.abs(result.integers[:26] * STEP - expected)
    assert np.all(error <= STEP * (40 if strict else 1.01) + 1e-5)
    assert not result.integers[26:].any()
    assert result.failures == 0
    assert not any(hasattr(p, "grad_sample") for p in model.parameters())


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv1d(1, 2, 2), nn.Flatten(), nn.LayerNorm(4), nn.Linear(4, 2)),
        nn.Sequential(nn.Unflatten(1, (3, 1)), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Dropout(0.0), nn.Linear(4, 2)),
    ],
    ids=["conv", "group norm", "functorch"],
)
def test_per_layer_parity_with_a_loop(model: nn.Module) -> None:
    """Every layer kind gives the gradients that a loop gives, to float32's digits."""
    data = records(12)
    if isinstance(model[0], nn.Conv1d):  # type: ignore[index]  # a Sequential
        data.inputs = data.inputs[:, None, :]
    holder = UnitData(examples=data, min_units=1)
    with local_sgd._UnitGradients.attached(model, functional.cross_entropy, holder, 5) as found:
        ours = [row for _ in found.pieces(np.arange(12)) for row in found.rows()]
    assert np.array(ours) == pytest.approx(loop_gradients(model, data), rel=1e-4, abs=1e-5)


def test_a_patients_records_form_one_clipped_contribution() -> None:
    """Unit patient in fedsgd: the records' mean gradient is clipped once."""
    model, data = small_model(), records(40)
    unit_of = np.arange(40) % 31
    result = fedsgd_sum(
        model,
        functional.cross_entropy,
        UnitData(examples=data, unit_of=unit_of),
        plan(Mode.FEDSGD, unit=Unit.PATIENT),
        learning_rate=1.0,
        source=ReplayStream(b""),
        coins=ReplayStream(b""),
        physical_batch=8,
    )
    singles = -loop_gradients(model, data)
    means = np.array([singles[unit_of == unit].mean(axis=0) for unit in range(31)])
    expected = clipped(means, 0.5).sum(axis=0)
    assert result.integers[:26] * STEP == pytest.approx(expected, abs=STEP * 1.01 + 1e-5)


def test_segments_of_a_layer_each_are_cut_in_sorted_order() -> None:
    """Per-layer bounds apply to the parameters in the order of their names."""
    model, data = small_model(), records()
    names = [(name, p.numel()) for name, p in trainable(model).items()]
    parts = tuple(Segment(name=n, length=k, bound=0.25) for n, k in names)
    used = plan(Mode.FEDSGD, segments=parts, clipping=Clipping.SEGMENTS)
    result = fedsgd_sum(
        model,
        functional.cross_entropy,
        UnitData(examples=data),
        used,
        learning_rate=1.0,
        source=ReplayStream(b""),
        coins=ReplayStream(b""),
    )
    whole = -loop_gradients(model, data)
    ends = np.cumsum([k for _, k in names])[:-1]
    expected = np.concatenate(
        [clipped(part, 0.25).sum(axis=0) for part in np.split(whole, ends, axis=1)]
    )
    assert result.integers[:26] * STEP == pytest.approx(expected, abs=STEP * 1.01 + 1e-5)


def test_patient_deltas_start_from_the_rounds_model() -> None:
    """Each patient is a virtual client: K steps on its records, clipped, summed, model restored."""
    model, data = small_model(), records(40)
    unit_of = np.arange(40) // 2 + 0
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    result = patient_sum(
        model,
        functional.cross_entropy,
        UnitData(examples=data, unit_of=unit_of, min_units=20),
        plan(Mode.PATIENT),
        learning_rate=0.3,
        source=ReplayStream(b""),
        coins=ReplayStream(b""),
    )
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    deltas = []
    for unit in range(20):
        virtual = small_model()
        optimizer = torch.optim.SGD(virtual.parameters(), lr=0.3)
        mine = torch.from_numpy(np.flatnonzero(unit_of == unit))
        for _ in range(4):
            optimizer.zero_grad()
            loss: Any = functional.cross_entropy(virtual(data.inputs[mine]), data.targets[mine])
            loss.backward()
            optimizer.step()
        start, end = trainable(small_model()), trainable(virtual)
        deltas.append(
            np.concatenate([(end[n] - start[n]).detach().double().numpy().ravel() for n in start])
        )
    expected = clipped(np.array(deltas), 0.5).sum(axis=0)
    assert result.integers[:26] * STEP == pytest.approx(expected, abs=STEP * 1.01 + 1e-5)


def test_failures_that_depend_on_data_look_like_zero() -> None:
    """A NaN record and an unreadable patient vanish silently; the rest is summed."""
    model, data = small_model(), records(40)
    data.inputs[3] = math.nan
    found = fedsgd_sum(
        model,
        functional.cross_entropy,
        UnitData(examples=data),
        plan(Mode.FEDSGD),
        learning_rate=1.0,
        source=ReplayStream(b""),
        coins=ReplayStream(b""),
    )
    keep = np.arange(40) != 3
    expected = clipped(-loop_gradients(model, data)[keep], 0.5).sum(axis=0)
    assert found.integers[:26] * STEP == pytest.approx(expected, abs=STEP * 1.01 + 1e-5)
    assert found.failures == 1

    patients = records(40, broken=5)
    result = patient_sum(
        model,
        functional.cross_entropy,
        UnitData(examples=patients, unit_of=np.arange(40)),
        plan(Mode.PATIENT),
        learning_rate=0.1,
        source=ReplayStream(b""),
        coins=ReplayStream(b""),
    )
    assert result.failures == 1
    assert result.integers[:26].any()


def test_a_failed_physical_batch_leaves_no_trace_in_the_hooks() -> None:
    """After a batch that could not be read the next one is computed right."""
    model, data = small_model(), records(40, broken=2)
    holder = UnitData(examples=data)
    with local_sgd._UnitGradients.attached(model, functional.cross_entropy, holder, 10) as found:
        rows = [np.array(list(found.rows())) for _ in found.pieces(np.arange(40))]
        data.broken = -1
        failing = [True]

        def fails_once(outputs: Any, targets: Any) -> Any:
            if failing.pop() if failing else False:
                raise RuntimeError("out of memory after the forward pass")
            return functional.cross_entropy(outputs, targets)

        found._loss = fails_once
        again = [np.array(list(found.rows())) for _ in found.pieces(np.arange(40))]
    exact = loop_gradients(model, data)
    for batch in (rows, again):
        assert not batch[0].any()
        assert np.concatenate(batch[1:]) == pytest.approx(exact[10:], abs=1e-6)
    assert found.failures == 2


def run_isrl(model: nn.Module, data: Rows, used: PrivacyPlan, **more: Any) -> local_sgd.LocalRun:
    """Train with the defaults of these tests."""
    options: dict[str, Any] = {
        "denominator": 40.0 * used.q,
        "learning_rate": 0.5,
        "source": ReplayStream(b"isrl"),
        "physical_batch": 16,
    }
    return train_isrl(
        model, functional.cross_entropy, UnitData(examples=data), used, **(options | more)
    )


def test_isrl_is_dp_sgd_with_noise_of_the_plan() -> None:
    """One step moves by clipped gradients over a public denominator, plus noise of std z·D2."""
    data = records()
    used = plan(Mode.ISRL, local_steps=1, dimension=26)
    model = small_model()
    clean = clipped(loop_gradients(model, data), 0.5).sum(axis=0) / 40.0
    moved = []
    for seed in range(60):
        fresh = small_model()
        run_isrl(fresh, data, used, source=ReplayStream(bytes([seed])), learning_rate=1.0)
        flat = [
            (a - b).detach().double().numpy().ravel()
            for a, b in zip(trainable(model).values(), trainable(fresh).values(), strict=True)
        ]
        moved.append(np.concatenate(flat) - clean)
    noise = np.array(moved) * 40.0
    sigma = share_noise_std(used) / bound_on_grid(used) * 0.5
    assert sigma == pytest.approx(0.5, rel=0.02)
    assert np.std(noise) / sigma == pytest.approx(1.0, abs=5 / math.sqrt(2 * noise.size))
    assert abs(np.mean(noise)) < 5 * sigma / math.sqrt(noise.size)


@pytest.mark.parametrize("outlier", [1.0, 1e4, 1e30])
@pytest.mark.parametrize("mode", [Mode.FEDSGD, Mode.PATIENT])
def test_a_record_moves_the_integers_by_at_most_d2(mode: Mode, outlier: float) -> None:
    """Neighbors with equal randomness: the true distance is within the declared sensitivity.

    The neighbor lacks one record (it is NaN, which contributes nothing).
    """
    sums = []
    for value in (outlier, math.nan):
        data = records()
        data.inputs[11] = value
        step = fedsgd_sum if mode is Mode.FEDSGD else patient_sum
        result = step(
            small_model(),
            functional.cross_entropy,
            UnitData(examples=data),
            plan(mode, q=0.7),
            learning_rate=5.0,
            source=ReplayStream(b"mask"),
            coins=ReplayStream(b"coins"),
        )
        sums.append(result.integers.astype(np.float64))
    assert 0 < np.linalg.norm(sums[0] - sums[1]) <= grid_sensitivity(plan(mode, q=0.7))


def test_a_record_moves_a_dp_sgd_step_by_at_most_d2() -> None:
    """The same for one step of isrl: parameters differ by D2 steps over the denominator at most."""
    used = plan(Mode.ISRL, local_steps=1)
    ends = []
    for value in (1e4, math.nan):
        data, model = records(), small_model()
        data.inputs[11] = value
        run_isrl(model, data, used, learning_rate=1.0, denominator=1.0)
        ends.append(
            np.concatenate([p.detach().double().numpy().ravel() for p in trainable(model).values()])
        )
    moved = np.linalg.norm(ends[0] - ends[1]) / STEP
    assert 0 < moved <= grid_sensitivity(used) * (1 + 1e-5)


def test_a_vector_is_noised_as_a_summed_gradient() -> None:
    """Central's draw: integers stay integers, and the noise is the source's."""
    noise = GridNoise(step=1.0, sigma=8.0, source=ReplayStream(b"central"))
    twin = GridNoise(step=1.0, sigma=8.0, source=ReplayStream(b"central"))
    values = np.arange(500, dtype=np.float64)
    noised = noise_vector(values, noise)
    assert np.array_equal(noised, twin.add(values))
    assert not np.array_equal(noised, values)


def test_opa_05_empty_batches_are_steps() -> None:
    """OPA-05: n = 100, q = 0.01, 200 steps, splitting on: every step is noised and counted."""
    data = records(100)
    used = plan(Mode.ISRL, q=0.01, local_steps=200, z=2.0)
    model, source = small_model(), CountingSource(b"poisson")
    run = run_isrl(model, data, used, source=source, physical_batch=2, denominator=1.0)
    assert run.steps == 200
    assert run.failures == 0
    # Each step draws a mask, coins and noise, whatever the sample was: about 37 % were empty.
    assert source.drawn == 200 * (100 + 26 + 26)
    replay = ReplayStream(b"poisson")
    sizes = []
    for _ in range(200):
        sizes.append(int(np.count_nonzero(replay.words(100) < np.uint64(int(0.01 * 2**64)))))
        replay.words(52)
    assert 50 < sizes.count(0) < 100


def test_an_empty_batch_is_noise_alone() -> None:
    """With nobody sampled the step is the noise over the denominator."""
    model, before = small_model(), small_model()
    used = plan(Mode.ISRL, q=1e-9, local_steps=1)
    run_isrl(model, records(), used, denominator=1.0, learning_rate=1.0)
    step = np.concatenate(
        [
            (a - b).detach().double().numpy().ravel()
            for a, b in zip(trainable(before).values(), trainable(model).values(), strict=True)
        ]
    )
    assert np.count_nonzero(step) == 26
    assert np.std(step) == pytest.approx(0.5, rel=0.7)


def test_the_denominator_is_public() -> None:
    """The step is divided by the declared number, not by how many records there are."""
    steps = []
    for declared in (40.0, 80.0):
        model = small_model()
        run_isrl(model, records(), plan(Mode.ISRL, local_steps=1), denominator=declared)
        steps.append(
            np.concatenate(
                [
                    (a - b).detach().double().numpy().ravel()
                    for a, b in zip(
                        trainable(small_model()).values(), trainable(model).values(), strict=True
                    )
                ]
            )
        )
    assert steps[0] == pytest.approx(2 * steps[1], abs=1e-6)


def test_the_correction_is_added_after_the_noise() -> None:
    """SCAFFOLD's c - c_i moves every step by the learning rate times itself, exactly once."""
    used = plan(Mode.ISRL, local_steps=1)
    plain, corrected = small_model(), small_model()
    correction = np.linspace(-1.0, 1.0, 26)
    run_isrl(plain, records(), used)
    run_isrl(corrected, records(), used, correction=correction)
    difference = np.concatenate(
        [
            (a - b).detach().double().numpy().ravel()
            for a, b in zip(trainable(plain).values(), trainable(corrected).values(), strict=True)
        ]
    )
    assert difference == pytest.approx(0.5 * correction, abs=1e-6)


def test_dpn_08_torch_seeds_do_not_fix_the_noise() -> None:
    """DPN-08: two silos with equal torch, numpy and random seeds end with different models."""
    import random

    ends = []
    for _ in range(2):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002  # the global state is the point
        model = small_model()
        run = run_isrl(model, records(), plan(Mode.ISRL), source=NoiseStream())
        assert run.is_private
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert not torch.any(ends[0] == ends[1])


def test_a_replayed_source_stamps_the_run() -> None:
    """A deterministic run repeats and says that it is not private."""
    models = [small_model(), small_model()]
    runs = [run_isrl(model, records(), plan(Mode.ISRL)) for model in models]
    assert not any(run.is_private for run in runs)
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def right(outputs: torch.Tensor, targets: torch.Tensor) -> int:
    """Count right classes."""
    return int((outputs.argmax(dim=1) == targets).sum())


@pytest.mark.parametrize("mode", [Mode.FEDSGD, Mode.PATIENT])
def test_metrics_are_of_the_model_that_came(mode: Mode) -> None:
    """Each unit's loss and right predictions, before any step; the model stays as it was."""
    data, model = records(), small_model()
    used = plan(
        mode, dimension=28, denominator=40.0, allow_low_utility=True,
        metrics=MetricRelease(loss_cap=4.0, z=20.0),
    )  # fmt: skip
    unit_of = np.arange(40) // 2 if mode is Mode.PATIENT else None
    units = UnitData(examples=data, unit_of=unit_of, min_units=20)
    meter = Meter(module=model, loss=functional.cross_entropy, correct=right)
    summed: Any = fedsgd_sum if mode is Mode.FEDSGD else patient_sum
    options = {"learning_rate": 0.5, "source": ReplayStream(b"m"), "coins": ReplayStream(b"c")}
    found = summed(model, functional.cross_entropy, units, used, meter=meter, **options)
    assert model.training
    coordinates, _ = split_padding(found.integers, used)
    released = decode(coordinates, used).metrics
    assert released is not None
    with torch.no_grad():
        outputs = model(data.inputs)
    loss, accuracy = metric_means(released * 40.0 / units.count, used)
    assert loss == pytest.approx(float(functional.cross_entropy(outputs, data.targets)), abs=0.02)
    assert accuracy == pytest.approx(right(outputs, data.targets) / 40, abs=0.01)
    with pytest.raises(PlanError, match="nothing measures"):
        summed(model, functional.cross_entropy, units, used, **options)


def test_isrl_metrics_are_a_step_of_their_own() -> None:
    """A secret sample, full noise; a unit that cannot be measured shows nothing."""
    model = small_model()
    used = plan(Mode.ISRL, metrics=MetricRelease(loss_cap=4.0), max_units_per_silo=40, z=0.05)
    sums = []
    for broken, correct in ((-1, right), (3, right), (-1, None)):
        units = UnitData(examples=records(broken=broken))
        meter = Meter(module=model, loss=functional.cross_entropy, correct=correct)
        one = isrl_metrics(model, units, used, meter=meter, source=ReplayStream(b"same"))
        assert one.shape == (2,)
        sums.append(one)
    # The broken record counts as absent, a half; without `correct` all count as wrong.
    assert np.abs(sums[0] - sums[1]).max() < 2 * bound_on_grid(used)
    assert sums[2][1] < sums[0][1] - 10 * bound_on_grid(used)


def test_gradients_are_used_once() -> None:
    """Opacus' marks survive the override: a second noising of one sum is refused."""
    parameter: Any = nn.Parameter(torch.zeros(3))
    optimizer = NoisyOptimizer(
        torch.optim.SGD([parameter], lr=1.0),
        noise=GridNoise(step=1.0, sigma=4.0, source=ReplayStream(b"")),
        clip_norm=1.0,
        denominator=1.0,
    )
    parameter.summed_grad = torch.zeros(3)
    optimizer.add_noise()
    with pytest.raises(ValueError, match="cleared"):
        optimizer.add_noise()


def test_opa_07_a_frozen_weight_stays_and_memory_is_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    """OPA-07: weight frozen, bias trainable, 50 Poisson steps; as many tensors at 10 as at 50."""
    torch.manual_seed(0)
    first = nn.Linear(3, 4)
    first.weight.requires_grad = False
    model = nn.Sequential(first, nn.Tanh(), nn.Linear(4, 2))
    frozen = first.weight.detach().clone()
    used = plan(Mode.ISRL, dimension=14, q=0.3, local_steps=50)
    steps, alive = itertools.count(1), []

    def counted(*arguments: Any) -> Any:
        if next(steps) in {10, 50}:
            gc.collect()
            alive.append(sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects()))
        return sampled(*arguments)

    monkeypatch.setattr(local_sgd, "sampled", counted)
    run = run_isrl(model, records(), used)
    assert run.steps == 50
    assert len(alive) == 2
    assert alive[0] == alive[1]
    assert run.failures == 0
    assert torch.equal(first.weight, frozen)
    assert not any(getattr(part, "activations", None) for part in model.modules())
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_opa_08_few_units_are_refused() -> None:
    """OPA-08: three records are below the silo's limit; the message does not tell how many."""
    with pytest.raises(InfeasibleError, match="limit of 30") as refused:
        UnitData(examples=records(3))
    assert "3 " not in str(refused.value).replace("30", "")
    with pytest.raises(InfeasibleError):
        UnitData(examples=records(40), unit_of=np.arange(40) // 2)
    with pytest.raises(InfeasibleError):
        UnitData(examples=Rows(torch.zeros(0, 3), torch.zeros(0)), min_units=0)
    assert UnitData(examples=records(3), min_units=2).count == 3


def test_opa_03_names_do_not_change_and_all_wrappers_are_seen_through() -> None:
    """OPA-03: after training keys are plain, and the result loads into all four forms."""
    model = small_model()
    names = list(model.state_dict())
    run_isrl(model, records(), plan(Mode.ISRL))
    assert list(model.state_dict()) == names
    compiled: Any = partial(torch.compile, backend="eager")
    wrappers: list[Any] = [
        lambda inner: inner,
        nn.DataParallel,
        lambda inner: GradSampleModule(inner, strict=False),
        compiled,
        lambda inner: nn.DataParallel(compiled(inner)),
    ]
    for wrap in wrappers:
        other = wrap(small_model(seed=9))
        assert list(trainable(other)) == sorted(names)
        unwrapped(other).load_state_dict(model.state_dict(), strict=True)
        pairs = itertools.zip_longest(unwrapped(other).parameters(), model.parameters())
        assert all(torch.equal(a, b) for a, b in pairs)


def test_a_plan_of_another_mode_or_size_is_refused() -> None:
    """Mode, coordinates, segments in isrl and the cap on units are checked before anything."""
    data = records()
    with pytest.raises(PlanError, match="mode isrl"):
        run_isrl(small_model(), data, plan(Mode.FEDSGD))
    with pytest.raises(PlanError, match="27 coordinates, the module trains 26"):
        run_isrl(small_model(), data, plan(Mode.ISRL, dimension=27))
    with pytest.raises(PlanError, match="leave out segments"):
        run_isrl(
            small_model(),
            data,
            plan(Mode.ISRL, segments=(Segment(name="w", length=26, bound=1.0),)),
        )
    for name, value in (("denominator", 0.0), ("denominator", math.nan), ("learning_rate", -1.0)):
        with pytest.raises(PlanError, match=name):
            run_isrl(small_model(), data, plan(Mode.ISRL), **{name: value})
    with pytest.raises(InfeasibleError, match="max_units_per_silo = 39"):
        run_isrl(small_model(), data, plan(Mode.ISRL, max_units_per_silo=39))


# --- what one unit moves, against what is booked -------------------------------------------


def submitted(used: PrivacyPlan, *, is_present: bool) -> Any:
    """Return all integers of one silo's release, in grid steps; one unit is there, or is zero.

    Coins and noise are the same whoever is there, so a difference is that unit's alone.
    """
    source = ReplayStream(b"both")
    if used.unit is Unit.SILO:
        vector = np.full(3, 1e6 * is_present)
        metrics = UnitMetrics(loss=0.0, correct=1.0) if is_present else None
        part = contribution(
            {"update": vector}, used, weight=used.max_weight * is_present, metrics=metrics
        )
        return encode(part, used, source).astype(float)
    inputs = torch.zeros(4, 3, dtype=torch.float64)
    inputs[1:, 1] = 1.0
    inputs[0, 0] = 1e3 * is_present
    data = UnitData(
        examples=Rows(inputs, torch.full((4, 1), 1e3 * is_present, dtype=torch.float64)),
        min_units=1,
    )
    data.examples.targets[1:] = 0.0  # type: ignore[attr-defined]  # they are Rows
    module = nn.Linear(3, 1, bias=False).double()
    torch.nn.init.zeros_(module.weight)
    # Whose target is 0 fails to be measured: an absent unit's metrics are zero like its gradient.
    meter = Meter(module=module, loss=functional.mse_loss, correct=lambda _, t: 1 // int(t[0] > 0))
    if used.mode is not Mode.ISRL:
        summed = fedsgd_sum if used.mode is Mode.FEDSGD else patient_sum
        found = summed(
            module, functional.mse_loss, data, used, learning_rate=1.0, source=source,
            coins=source, meter=meter,
        )  # fmt: skip
        return found.integers.astype(float)
    train_isrl(
        module, functional.mse_loss, data, used, denominator=1.0, learning_rate=1.0, source=source
    )
    return module.weight.detach().numpy().reshape(-1) * bound_on_grid(used) / used.clip


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("most", [1.0, 0.02])
@pytest.mark.parametrize("loss_cap", [None, 3.0])
def test_no_unit_moves_a_release_by_more_than_its_noise_is_sized_for(
    mode: Mode, weights: Weights, most: float, loss_cap: float | None
) -> None:
    """In each plan that is accepted at all, the integers' distance is at most D2, the noise z·D2.

    A plan whose D2 has a weight that nothing is multiplied by would have its noise too small.
    """
    is_silo, rides = mode in {Mode.SILO, Mode.CENTRAL}, loss_cap is not None
    own_z = None if mode is Mode.ISRL else 8.0
    changes: dict[str, Any] = {
        "adjacency": Adjacency.ZERO_OUT,
        "z": 4.0,
        "grid_bound": 2.0**16,
        "weights": weights,
        "max_weight": most,
        "local_steps": 1,
        "dimension": 3 + 2 * (rides and mode is not Mode.ISRL),
        "metrics": None if loss_cap is None else MetricRelease(loss_cap=loss_cap, z=own_z),
        "allow_low_utility": True,
        "delta": 1e-3,
    }
    if is_silo:
        changes |= {"unit": Unit.SILO, "max_units_per_silo": 1}
    if mode is Mode.CENTRAL:
        changes |= {"n_c": 0, "h_dp": 0, "padding": 0}
    idle = most < 1.0 if weights is Weights.UNIFORM else mode in {Mode.FEDSGD, Mode.PATIENT}
    if idle or (weights is Weights.HIDDEN and not is_silo):
        with pytest.raises(PlanError, match="weight"):
            plan(mode, **changes)
        return
    used = plan(mode, **changes)
    moved = np.linalg.norm(submitted(used, is_present=True) - submitted(used, is_present=False))
    booked = grid_sensitivity(used)
    assert 0.9 * booked <= moved <= booked
    total = (
        share_noise_std(used) * math.sqrt(used.h_dp)
        if used.is_ring
        else full_noise(used, ReplayStream(b"")).sigma
    )
    assert total == pytest.approx(total_noise_std(used))
    assert total >= used.z * moved

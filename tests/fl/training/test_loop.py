"""The local loop: exactly K steps, the correction's sign, seeded batches, nothing left behind."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fl.errors import DataError, NonFiniteUpdateError, SpecMismatchError
from fl.plan import LocalPlan
from fl.ports import FloatVector, LocalResult
from fl.training import bridge, loop

DRAWS = np.random.default_rng(8)
INPUTS = torch.tensor(DRAWS.normal(size=(10, 3)))
TARGETS = torch.tensor(DRAWS.normal(size=(10, 1)))
EXAMPLES = loop.TensorExamples(inputs=INPUTS, targets=TARGETS)
START = np.array([0.3, -0.2, 0.5, 0.1])
mse: loop.LossFunction = nn.functional.mse_loss


class Counting:
    """Examples that remember which rows were asked for."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return len(EXAMPLES)

    def take(self, rows: loop.Rows) -> tuple[torch.Tensor, torch.Tensor]:
        self.asked.append(rows.tolist())
        return EXAMPLES.take(rows)


def linear() -> nn.Module:
    """A float64 linear model at START; its flat order is bias, weights."""
    module = nn.Linear(3, 1, dtype=torch.float64)
    bridge.load_model(module, bridge.layout(module).unflatten(START))
    return module


def trained(
    *,
    steps: int = 3,
    batch: int = 0,
    correction: FloatVector | None = None,
    seed: int = 1,
    round_number: int = 1,
    examples: loop.Examples = EXAMPLES,
    module: nn.Module | None = None,
    loss: loop.LossFunction = mse,
) -> LocalResult:
    """Train the linear model."""
    return loop.train(
        linear() if module is None else module,
        loss,
        examples,
        local=LocalPlan(local_steps=steps, batch_size=batch, learning_rate=0.1),
        correction=correction,
        seed=seed,
        round_number=round_number,
    )


def hand_gradient(flat: FloatVector) -> FloatVector:
    """The gradient of the mean squared error, derived on paper."""
    design = np.hstack([np.ones((10, 1)), INPUTS.numpy()])
    gradient: FloatVector = design.T @ (design @ flat - TARGETS.numpy()[:, 0]) * 2 / 10
    return gradient


@pytest.mark.parametrize("correction", [None, np.array([0.5, -1.0, 2.0, 0.25])])
def test_a_step_adds_the_correction_to_the_gradient(correction: FloatVector | None) -> None:
    """By hand in numpy, y −= η (g + (c − c_k)); another sign or scale gives other numbers."""
    expected = START
    for _ in range(3):
        step = hand_gradient(expected) + (0.0 if correction is None else correction)
        expected = expected - 0.1 * step
    result = trained(correction=correction)
    assert result.steps == 3
    assert np.allclose(result.model_after, expected, rtol=0, atol=1e-12)
    assert np.abs(result.model_after - START).max() > 0.01


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("correction", [None, np.array([0.5, -1.0, 2.0, 0.25])])
def test_momentum_and_the_proximal_term(momentum: float, correction: FloatVector | None) -> None:
    """By hand: v ← ρ v + g + (c − c_k) + μ (y − x), y −= η v (AGG-08)."""
    expected, velocity = START, np.zeros(4)
    for _ in range(4):
        step = hand_gradient(expected) + 0.7 * (expected - START)
        velocity = momentum * velocity + step + (0.0 if correction is None else correction)
        expected = expected - 0.1 * velocity
    local = LocalPlan(
        local_steps=4,
        learning_rate=0.1,
        proximal=0.7,
        optimizer="momentum" if momentum else "sgd",
        optimizer_settings={"momentum": momentum} if momentum else {},
    )
    result = loop.train(
        linear(), mse, EXAMPLES, local=local, correction=correction, seed=1, round_number=1
    )
    np.testing.assert_allclose(result.model_after, expected, rtol=1e-12)


def test_a_zero_correction_changes_nothing_at_all() -> None:
    """Identical data make c − c_k zero: the two algorithms' curves then coincide bit by bit."""
    with_zero = trained(correction=np.zeros(4), batch=4)
    assert np.array_equal(with_zero.model_after, trained(batch=4).model_after)


@pytest.mark.parametrize(("steps", "batch"), [(1, 0), (6, 4), (7, 10), (5, 99), (11, 1)])
def test_k_counts_executed_steps_whatever_the_batches(steps: int, batch: int) -> None:
    """SCA-04: neither passes nor examples; a plan's K is what is executed and reported.

    Of that case, batches that are dropped (`drop_last`), gradients accumulated over batches, and
    steps that mixed precision's scaler skips have no counterpart: the loop has none of them.
    """
    examples = Counting()
    result = trained(steps=steps, batch=batch, examples=examples)
    assert result.steps == steps == len(examples.asked)
    size = batch if 0 < batch < 10 else 10
    assert {len(rows) for rows in examples.asked} == {size}


def test_batches_go_through_all_examples_before_any_comes_again() -> None:
    """Passes are laid end to end: after 3 batches of 4 of 10, the first 10 rows were all rows."""
    examples = Counting()
    trained(steps=5, batch=4, examples=examples)
    rows = [row for batch in examples.asked for row in batch]
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))
    assert rows[:10] != rows[10:]


def test_seed_and_round_fix_the_result() -> None:
    """A silo that trains a round again after a crash gets the same bits; other rounds differ."""
    first = trained(batch=4).model_after
    assert np.array_equal(first, trained(batch=4).model_after)
    assert not np.array_equal(first, trained(batch=4, seed=2).model_after)
    assert not np.array_equal(first, trained(batch=4, round_number=2).model_after)


def test_dropout_is_seeded_and_the_callers_generator_untouched() -> None:
    """Training is repeatable with random layers, and takes nothing from torch's own stream."""
    modules = [nn.Sequential(nn.Dropout(0.5), linear()) for _ in range(2)]
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = trained(module=modules[0]).model_after
    assert torch.rand(1) == expected
    assert np.array_equal(first, trained(module=modules[1]).model_after)
    assert not np.array_equal(first, trained().model_after)


def test_a_frozen_layer_does_not_move_and_a_batch_norm_counts_locally() -> None:
    """ENC-14 and ENC-01 through training: only trainable parameters are in the result."""
    torch.manual_seed(1)
    backbone = nn.Linear(3, 3, dtype=torch.float64).requires_grad_(requires_grad=False)
    norm = nn.BatchNorm1d(3, dtype=torch.float64)
    before = backbone.weight.clone()
    module = nn.Sequential(backbone, norm, nn.Linear(3, 1, dtype=torch.float64))
    result = trained(module=module, steps=4, correction=np.full(10, 0.1))
    assert result.model_after.shape == (10,)
    assert torch.equal(backbone.weight, before)
    assert norm.num_batches_tracked is not None
    assert int(norm.num_batches_tracked) == 4
    assert norm.running_var is not None
    assert bool((norm.running_var >= 0).all())


def test_an_unused_parameter_still_takes_its_correction() -> None:
    """Its gradient is zero; c − c_k applies to every trainable parameter."""

    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Parameter(torch.zeros(2, dtype=torch.float64))
            self.used = linear()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.used(inputs)
            return outputs

    correction = np.array([1.0, -1.0, 0, 0, 0, 0])
    result = trained(module=Partly(), correction=correction, steps=2)
    assert result.model_after[:2] == pytest.approx([-0.2, 0.2])
    assert np.array_equal(result.model_after[2:], trained(steps=2).model_after)


def test_the_full_gradient_is_the_mean_over_all_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, and the same when taken in pieces of unequal length."""
    assert np.allclose(loop.gradient(linear(), mse, EXAMPLES), hand_gradient(START), atol=1e-12)
    monkeypatch.setattr(loop, "_PIECE_ROWS", 4)
    assert np.allclose(loop.gradient(linear(), mse, EXAMPLES), hand_gradient(START), atol=1e-12)


def test_the_full_gradient_leaves_buffers_as_they_were() -> None:
    """Looking is not training: BatchNorm's counter does not move."""
    norm = nn.BatchNorm1d(3, dtype=torch.float64)
    module = nn.Sequential(norm, linear())
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    assert loop.gradient(module, mse, EXAMPLES).any()
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, before[name])


def test_evaluation_sums_over_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums, not means; the same in pieces; nothing correct where that means nothing."""

    def close(outputs: torch.Tensor, targets: torch.Tensor) -> int:
        return int(((outputs - targets).abs() < 1).sum())

    with torch.no_grad():
        errors = (linear()(INPUTS) - TARGETS).numpy()
    for rows in (4096, 4):
        monkeypatch.setattr(loop, "_PIECE_ROWS", rows)
        metrics = loop.evaluate(linear(), mse, EXAMPLES, close)
        assert metrics.loss_sum == pytest.approx((errors**2).sum())
        assert metrics.correct == (np.abs(errors) < 1).sum()
        assert metrics.examples == 10
    assert loop.evaluate(linear(), mse, EXAMPLES, None).correct == 0


def test_a_dataset_gives_the_same_as_tensors() -> None:
    """Examples may be loaded one by one when they are needed."""

    class Rows:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            return INPUTS[index], TARGETS[index]

    lazy = trained(batch=4, examples=loop.DatasetExamples(dataset=Rows()))
    assert np.array_equal(lazy.model_after, trained(batch=4).model_after)


def test_half_precision_trains_and_reports_in_double() -> None:
    """ENC-11: a bfloat16 model's result is its exact values."""
    module = nn.Linear(3, 1, dtype=torch.bfloat16)
    examples = loop.TensorExamples(
        inputs=INPUTS.to(torch.bfloat16), targets=TARGETS.to(torch.bfloat16)
    )
    result = trained(module=module, examples=examples)
    assert result.model_after.dtype == np.float64
    assert result.model_after[1:].tolist() == module.weight.flatten().tolist()


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"correction": np.zeros(5)}, SpecMismatchError, "length 4"),
        ({"correction": np.array([0, np.inf, 0, 0])}, NonFiniteUpdateError, "'weight'"),
        ({"loss": lambda outputs, _: outputs.squeeze(1)}, DataError, "0-d tensor"),
    ],
)
def test_bad_training_is_refused(
    settings: dict[str, object], error: type[Exception], said: str
) -> None:
    """Another length, values that blow up and a loss that is no mean each say so."""
    run: Callable[..., LocalResult] = trained
    with pytest.raises(error, match=said):
        run(**settings)


def test_examples_must_pair() -> None:
    """As many targets as inputs, and at least one."""
    with pytest.raises(DataError, match="one row for each example"):
        loop.TensorExamples(inputs=INPUTS, targets=TARGETS[:-1])
    with pytest.raises(DataError, match="one row for each example"):
        loop.TensorExamples(inputs=INPUTS[:0], targets=TARGETS[:0])


def test_torchs_own_file_format_is_read_nowhere() -> None:
    """SCA-12: no torch.load, so a peer's or a disk's pickle is never opened."""
    folder = Path(loop.__file__).parent
    sources = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    assert "loop.py" in sources
    assert [name for name, source in sources.items() if "torch.load" in source] == []

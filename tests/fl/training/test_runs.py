"""Runs of torch models whose parameters are no plain float32: the rules of fl.training.bridge."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dp.plan import Adjacency, Mode, PrivacyPlan, Unit
from fl.errors import LearningError
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.privacy import as_settings
from fl.rounds import RunStatus
from fl.simulation import SimulationResult, simulate
from fl.state import decode_state
from fl.training.custom import OwnModel, OwnTask
from fl.training.loop import TensorExamples

ALGORITHMS = pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedadam"])


def tasks(
    build: Callable[[], nn.Module], dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> dict[str, OwnTask]:
    """Three silos with rows of their own."""
    made = {}
    for place in range(3):
        draws = np.random.default_rng(place)
        inputs = torch.tensor(scale * draws.normal(size=(16, 4)), dtype=dtype)
        examples = TensorExamples(inputs=inputs, targets=inputs.sum(dim=1, keepdim=True) + place)
        own = OwnModel(build=build, examples=examples, loss=nn.functional.mse_loss)
        made[f"silo-{place}"] = OwnTask(own)
    return made


def run(algorithm: str, made: dict[str, OwnTask], **changes: Any) -> SimulationResult:
    """Three secure rounds."""
    plan = TrainingPlan(
        **{
            "task": TaskPlan(name="own:make"),
            "local": LocalPlan(local_steps=3, learning_rate=0.02),
            "rounds": 3,
            "max_silos": 3,
            "algorithm": algorithm,
            "server_learning_rate": 0.1 if algorithm == "fedadam" else 1.0,
            **changes,
        }
    )
    result = simulate(plan, made)
    assert result.status is RunStatus.COMPLETED, result.reason
    return result


def module_of(task: OwnTask) -> nn.Module:
    """The silo's own module."""
    return task._module


@ALGORITHMS
def test_batch_norm_s_buffers_stay_at_the_silo(algorithm: str) -> None:
    """Variates for parameters only, variances never negative, evaluation finite (SCA-07, AGG-12).

    The inputs are so small that their variance lies below the quantizer's first step.
    """
    made = tasks(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1)), scale=1e-3)
    result = run(algorithm, made)
    names = sorted(result.model())
    assert names == ["0.bias", "0.weight", "1.bias", "1.weight"]
    if algorithm == "scaffold":
        assert decode_state(result.state, 10**6)["server_variate"].shape == (4 + 4 + 4 + 1,)
    require_own_buffers(made, result)


def require_own_buffers(made: dict[str, OwnTask], result: SimulationResult) -> None:
    """Nine batches counted, variances that are the silo's own and never negative, finite losses."""
    variances = []
    for task in made.values():
        buffers = dict(module_of(task).named_buffers())
        variances.append(buffers["0.running_var"])
        assert (buffers["0.running_var"] >= 0).all()
        assert buffers["0.num_batches_tracked"].dtype == torch.int64
        assert buffers["0.num_batches_tracked"].item() == 9
        assert np.isfinite(task.evaluate(result.model()).loss_sum)
    assert not torch.equal(variances[0], variances[1])


def test_batch_norm_s_buffers_stay_under_a_silo_s_noise() -> None:
    """AGG-12 with noise on: it meets no buffer, and no buffer is sent, summed or released."""
    made = tasks(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1)), scale=1e-3)
    privacy = PrivacyPlan(
        unit=Unit.SILO, adjacency=Adjacency.ZERO_OUT, mode=Mode.SILO, clip=1.0, z=1.0, rounds=3,
        delta=1e-5, dimension=4 + 4 + 4 + 1, cohort_size=3, denominator=3.0, n_c=1, h_dp=1,
        allow_low_utility=True,
    )  # fmt: skip
    result = run("fedavg", made, metrics=False, max_refreshes=0, privacy=as_settings(privacy))
    assert sorted(result.model()) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert max(np.abs(np.asarray(one)).max() for one in result.model().values()) > 1.2, "noise"
    require_own_buffers(made, result)


class Tied(nn.Module):
    """One matrix under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 4, bias=False)
        self.out = nn.Linear(4, 4, bias=False)
        self.out.weight = self.into.weight
        self.end = nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.end(self.out(torch.tanh(self.into(inputs))))
        return result


@ALGORITHMS
def test_tied_weights_count_once(algorithm: str) -> None:
    """Once in the vector, and still one storage at every silo (ENC-13)."""
    made = tasks(Tied)
    result = run(algorithm, made)
    assert sorted(result.model()) == ["end.bias", "end.weight", "into.weight"]
    for task in made.values():
        module = module_of(task)
        assert isinstance(module, Tied)
        assert module.into.weight.data_ptr() == module.out.weight.data_ptr()


def frozen_backbone() -> nn.Module:
    """Two layers, the first one frozen."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    module[0].requires_grad_(requires_grad=False)
    return module


@ALGORITHMS
def test_frozen_parameters_are_bit_identical(algorithm: str) -> None:
    """No dust of the quantizer on them; the head moves (ENC-14)."""
    made = tasks(frozen_backbone)
    before = {name: module_of(task)[0].weight.clone() for name, task in made.items()}  # type: ignore[index] # a Sequential
    result = run(algorithm, made)
    assert sorted(result.model()) == ["1.bias", "1.weight"]
    for name, task in made.items():
        assert torch.equal(module_of(task)[0].weight, before[name])  # type: ignore[index] # a Sequential
    start = made["silo-0"].initial_model(0)
    assert not np.array_equal(result.model()["1.weight"], start["1.weight"])


def test_a_silo_that_unfreezes_a_layer_is_left_out_by_name() -> None:
    """The others' run goes on; the reason lists the tensors (ENC-14, AGG-10)."""
    made = tasks(frozen_backbone)
    other = tasks(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))["silo-0"]
    with pytest.raises(LearningError, match=r"0\.bias"):
        other.train(
            made["silo-1"].initial_model(0), None, LocalPlan(local_steps=1, learning_rate=1), 0, 1
        )


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedyogi"])
@pytest.mark.parametrize(
    ("dtype", "wire"), [(torch.float16, "float16"), (torch.bfloat16, "float32")]
)
def test_half_precision_models(algorithm: str, dtype: torch.dtype, wire: str) -> None:
    """Summed in double precision, rounded once, and back in their own dtype (ENC-11)."""
    made = tasks(lambda: nn.Linear(4, 1, dtype=dtype), dtype)
    result = run(algorithm, made, metrics=True)
    assert {tensor.dtype.name for tensor in result.model().values()} == {wire}
    assert {p.dtype for task in made.values() for p in module_of(task).parameters()} == {dtype}
    losses = [report.loss for report in result.reports]
    assert None not in losses
    if algorithm != "fedyogi":
        assert losses == sorted(losses, reverse=True)  # type: ignore[type-var] # no None among them
    if algorithm == "scaffold":
        server = decode_state(result.state, 10**6)["server_variate"]
        mine = [v for v in result.variates.values() if v is not None]
        np.testing.assert_allclose(server.astype(float), np.mean(mine, axis=0), atol=1e-9)

"""What of a module takes part in a run, and that it comes back as it went."""

import numpy as np
import pytest
import torch
from torch import nn

from fl.errors import SpecMismatchError
from fl.ports import Tensor
from fl.training import bridge


class Tied(nn.Module):
    """An embedding whose table is the output layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.output = nn.Linear(4, 10, bias=False)
        self.output.weight = self.embedding.weight


def moved(module: nn.Module, by: float) -> dict[str, Tensor]:
    """The module's model, moved."""
    layout = bridge.layout(module)
    return layout.unflatten(layout.flatten(bridge.export_model(module)) + by)


def test_buffers_stay_at_the_silo() -> None:
    """ENC-01, SCA-07: BatchNorm's counter and running statistics are neither sent nor loaded."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    module(torch.randn(8, 4, generator=torch.Generator().manual_seed(1)))
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    assert set(bridge.export_model(module)) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    bridge.load_model(module, moved(module, 1.0))
    after = dict(module.named_buffers())
    assert before.keys() == after.keys()
    for name, buffer in before.items():
        assert torch.equal(after[name], buffer)
    assert after["1.num_batches_tracked"].dtype == torch.int64
    assert after["1.num_batches_tracked"].shape == ()


def test_tied_weights_count_once_and_stay_tied() -> None:
    """ENC-13: one tensor on the wire, one storage afterwards."""
    module = Tied()
    model = moved(module, 0.5)
    assert set(model) == {"embedding.weight"}
    bridge.load_model(module, model)
    assert module.output.weight is module.embedding.weight
    assert np.array_equal(module.output.weight.detach().numpy(), model["embedding.weight"])


def test_frozen_parameters_stay_and_a_changed_trainable_set_is_refused_by_name() -> None:
    """ENC-14: whoever unfreezes a layer during a run is told which tensors differ."""
    backbone = nn.Linear(3, 3).requires_grad_(requires_grad=False)
    module = nn.Sequential(backbone, nn.Linear(3, 1))
    frozen = backbone.weight.clone()
    model = moved(module, 1.0)
    assert set(model) == {"1.weight", "1.bias"}
    bridge.load_model(module, model)
    assert torch.equal(backbone.weight, frozen)
    backbone.requires_grad_(requires_grad=True)
    with pytest.raises(SpecMismatchError, match=r"missing '0\.bias'; missing '0\.weight'"):
        bridge.load_model(module, model)


@pytest.mark.parametrize(
    ("dtype", "on_the_wire"),
    [
        (torch.float16, np.float16),
        (torch.bfloat16, np.float32),
        (torch.float32, np.float32),
        (torch.float64, np.float64),
    ],
)
def test_each_floating_dtype_comes_back(dtype: torch.dtype, on_the_wire: type) -> None:
    """ENC-11: half precision survives; bfloat16 travels as float32, exactly."""
    module = nn.Linear(3, 2).to(dtype)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    model = bridge.export_model(module)
    assert {tensor.dtype for tensor in model.values()} == {np.dtype(on_the_wire)}
    with torch.no_grad():
        module.weight.zero_()
        module.bias.zero_()
    bridge.load_model(module, model)
    for name, parameter in module.named_parameters():
        assert parameter.dtype == dtype
        assert torch.equal(parameter, before[name])


def test_large_half_precision_values_average_exactly() -> None:
    """ENC-11: ten silos with 60000 in float16 average to 60000, not to infinity."""
    module = nn.Linear(4, 1, bias=False).to(torch.float16)
    with torch.no_grad():
        module.weight.fill_(60000.0)
    layout = bridge.layout(module)
    flat = layout.flatten(bridge.export_model(module))
    bridge.load_model(module, layout.unflatten(sum([flat] * 10, np.zeros(4)) / 10))
    assert module.weight.tolist() == [[60000.0] * 4]


def test_exported_tensors_are_copies_in_the_layouts_order() -> None:
    """Training on does not change what was handed out; flat vectors are sorted by name."""
    z, a = nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)
    module = nn.ModuleDict({"z": z, "a": a})
    model = bridge.export_model(module)
    assert list(model) == ["a.weight", "z.weight"]
    flat = np.array([1.0, 2.0, 3.0])
    for parameter, piece in bridge.pieces(module, flat):
        parameter.grad = piece
    assert a.weight.grad is not None
    assert a.weight.grad.tolist() == [[1.0], [2.0]]
    assert bridge.flat_gradient(module).tolist() == [1.0, 2.0, 3.0]
    before = model["a.weight"].copy()
    bridge.load_model(module, moved(module, 1.0))
    assert np.array_equal(model["a.weight"], before)
    z.weight.grad = None
    assert bridge.flat_gradient(module).tolist() == [1.0, 2.0, 0.0]


def test_a_parameter_stays_on_its_device() -> None:
    """SCA-12, MEM-03: arrays have no device; torch's pretended one stands for a GPU."""
    module = nn.Linear(2, 1, device="meta")
    bridge.load_model(module, bridge.export_model(nn.Linear(2, 1)))
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    assert {piece.device.type for _, piece in bridge.pieces(module, np.zeros(3))} == {"meta"}


def test_what_cannot_be_summed_is_refused_before_any_round() -> None:
    """Complex parameters, no trainable one, another shape, another length: each has a name."""
    module = nn.Linear(2, 1)
    with pytest.raises(SpecMismatchError, match="only floating"):
        bridge.export_model(nn.Linear(2, 1, dtype=torch.complex64))
    with pytest.raises(SpecMismatchError, match="no trainable parameter"):
        bridge.export_model(nn.ReLU())
    with pytest.raises(SpecMismatchError, match="'weight' is"):
        bridge.load_model(module, bridge.export_model(nn.Linear(3, 1)))
    with pytest.raises(SpecMismatchError, match="length 3"):
        list(bridge.pieces(module, np.zeros(4)))

"""A torch module's trainable parameters as named numpy tensors, and back.

What takes part in a run is decided by one rule, the same for every algorithm:

- Trainable floating parameters are exchanged, averaged and have control variates. A parameter that
  two names share (tied weights) is exchanged once, under the first name, and stays shared (ENC-13).
- Frozen parameters (requires_grad False) stay at the silo, bit by bit as they are (ENC-14).
- Buffers stay at the silo: BatchNorm's running statistics and its counter, and whatever else a
  module registers. A counter's sum means nothing, and an averaged variance can come out negative
  after quantizing (ENC-01, AGG-12, SCA-07).

Which parameters these are is part of the run: a module that offers other names or shapes than the
received model is refused with the list of what differs.

On the wire and on disk tensors are numpy arrays in main memory, whatever device the module is on
(SCA-12, MEM-03). numpy has no bfloat16: such a parameter travels as float32, exactly, and is
rounded when it is loaded. Every other dtype comes back as it went. Nothing here reads torch's own
file format.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import torch
from torch import nn

from fl.errors import SpecMismatchError
from fl.ports import FloatVector, NamedTensors, Tensor
from fl.update import TensorLayout

# What a parameter's dtype is called on the wire.
_WIRE_DTYPES: Final = {
    torch.float16: "float16",
    torch.bfloat16: "float32",
    torch.float32: "float32",
    torch.float64: "float64",
}


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that take part in a run, sorted by name, a shared one once.

    Raises:
        SpecMismatchError: there is none, or one has a dtype that cannot be summed.
    """
    found = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not found:
        raise SpecMismatchError("the module has no trainable parameter; unfreeze what shall learn")
    for name, parameter in found.items():
        if parameter.dtype not in _WIRE_DTYPES:
            raise SpecMismatchError(
                f"parameter {name!r} is {parameter.dtype}; only floating parameters can be summed"
            )
    return dict(sorted(found.items()))


def export_model(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the trainable parameters, by name."""
    return {name: _to_numpy(parameter) for name, parameter in trainable(module).items()}


def layout(module: nn.Module) -> TensorLayout:
    """The order of the module's flat vectors."""
    return TensorLayout(
        tensors=tuple(
            (name, tuple(parameter.shape), _WIRE_DTYPES[parameter.dtype])
            for name, parameter in trainable(module).items()
        )
    )


def load_model(module: nn.Module, model: NamedTensors) -> None:
    """Set the trainable parameters in place, on their device and in their dtype.

    Args:
        module: changed in place; shared parameters stay shared.
        model: exactly the tensors that `export_model` gives.

    Raises:
        SpecMismatchError: lists the names that are missing, unexpected, or of another shape or
            dtype.
    """
    layout(module).check(TensorLayout.of(model))
    with torch.no_grad():
        for name, parameter in trainable(module).items():
            parameter.copy_(torch.from_numpy(np.array(model[name])))


def flat_gradient(module: nn.Module) -> FloatVector:
    """The gradients that backward left, shape (d,), float64; zero where there is none."""
    return np.concatenate(
        [
            np.zeros(parameter.numel())
            if parameter.grad is None
            else _to_numpy(parameter.grad).astype(np.float64).reshape(-1)
            for parameter in trainable(module).values()
        ]
    )


def flattened(tensors: Iterable[torch.Tensor]) -> FloatVector:
    """Tensors one after the other, shape (d,), float64, in main memory."""
    return np.concatenate([_to_numpy(one).astype(np.float64).reshape(-1) for one in tensors])


def pieces(module: nn.Module, flat: FloatVector) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
    """Each trainable parameter with its part of a flat vector, in its shape, dtype and device.

    Raises:
        SpecMismatchError: another length.
    """
    parameters = trainable(module).values()
    size = sum(parameter.numel() for parameter in parameters)
    if flat.shape != (size,):
        raise SpecMismatchError(f"expected a flat vector of length {size}, got shape {flat.shape}")
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        piece = torch.tensor(flat[start:stop], dtype=parameter.dtype, device=parameter.device)
        yield parameter, piece.reshape(parameter.shape)
        start = stop


def _to_numpy(tensor: torch.Tensor) -> Tensor:
    """An own copy in main memory; bfloat16 as float32."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.to(torch.float32)
    copied: Tensor = tensor.numpy().copy()
    return copied

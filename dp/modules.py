"""Which torch modules per-unit clipping protects, and their parameters as one flat vector.

A record must not steer what is computed for another (privacy.md 5.3): Opacus' `ModuleValidator`
comes first, our stricter checks after it. Importing this module loads torch and Opacus.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.validators import ModuleValidator
from torch import nn

from dp.errors import UnsafeModuleError

_PROBE_RECORDS: Final = 8
_PROBE_REACH: Final = 1e3
_PROBE_TOLERANCE: Final = 1e-3  # couplings are larger; norms of near-constants are no exacter

# The mean of a batch's losses, a 0-d tensor, from the module's outputs and the targets.
LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FloatVector = NDArray[np.float64]
IntVector = NDArray[np.int64]


class Examples(Protocol):
    """A silo's records."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def take(self, rows: IntVector) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets of these rows."""
        ...


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside wrappers that prefix parameter names (OPA-03).

    Opacus' `_module.`, DataParallel's `module.` and torch.compile's `_orig_mod.`, in any order.
    """
    for prefix in ("_module", "module", "_orig_mod"):
        inner = getattr(module, prefix, None)
        if isinstance(inner, nn.Module) and len(list(module.children())) == 1:
            return unwrapped(inner)
    return module


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that take part, sorted by name: the order of flat vectors.

    Frozen ones keep their values and carry no noise (OPA-07).
    """
    return {n: p for n, p in sorted(unwrapped(module).named_parameters()) if p.requires_grad}


def check_module(module: nn.Module, loss: LossFunction, examples: Examples) -> tuple[str, ...]:
    """Refuse what lets one record steer what is computed for another (privacy.md 5.3).

    Looked for: what Opacus' validator rejects, tied or non-real parameters, buffers that change
    in a forward pass (they would keep exact statistics), and a loss or a module that is not a
    mean over records. The last two are tried on a few records; run it when the training plan is
    set up, so that every silo has the same architecture (OPA-01).

    Args:
        module: looked at through a copy.
        loss: the mean over a batch.
        examples: at least one record.

    Returns:
        advice about what is allowed and probably not meant.

    Raises:
        UnsafeModuleError: lists everything that was found.
    """
    probe = copy.deepcopy(unwrapped(module)).train()
    faults = [str(error) for error in ModuleValidator.validate(probe, strict=False)]
    faults += _parameter_faults(probe)
    for part in probe.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):  # noqa: SLF001  # the public base has none
            part.eval()  # its randomness is not a coupling of records
    _shake(probe)
    few = examples.take(np.arange(min(len(examples), _PROBE_RECORDS)))
    inputs, targets = map(_moderate, few)
    advice = _attach_advice(probe)
    before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
    with torch.no_grad():
        whole = loss(probe(inputs), targets)
        changed = [n for n, b in probe.named_buffers() if not torch.equal(b, before[n])]
        faults += [f"buffer {name!r} changes in a forward pass" for name in changed]
        if not faults and not _is_mean(probe, loss, inputs, targets, whole):
            faults.append(
                "the loss of a batch is not the mean of its records' losses: a module or the loss "
                "mixes records, or is random"
            )
    if faults:
        raise UnsafeModuleError("not fit for per-sample clipping: " + "; ".join(faults))
    return tuple(dict.fromkeys(advice))  # every pass repeats it


def flat(parameters: list[nn.Parameter]) -> FloatVector:
    """Return parameters as one float64 vector."""
    found: FloatVector = torch.cat(
        [p.detach().reshape(-1).to("cpu", torch.float64) for p in parameters]
    ).numpy()
    return found


def set_flat(parameters: list[nn.Parameter], vector: FloatVector) -> None:
    """Write a flat vector into parameters, in their own dtypes."""
    lengths = [p.numel() for p in parameters]
    with torch.no_grad():
        for p, piece in zip(
            parameters, torch.split(torch.from_numpy(vector), lengths), strict=True
        ):
            p.copy_(piece.view_as(p))


def _parameter_faults(module: nn.Module) -> list[str]:
    """Name tied parameters and those that are not real floating point."""
    names: dict[int, str] = {}
    faults = []
    for name, p in module.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(p), name)
        if first != name:
            faults.append(f"parameters {first!r} and {name!r} are tied")
        if not p.is_floating_point():
            faults.append(f"parameter {name!r} is {p.dtype}, expected real floating point")
    return faults


def _moderate(values: torch.Tensor) -> torch.Tensor:
    """Records as the probe tries them: one without a number, or far out, is no module's fault.

    A refusal for its sake would tell that it is there (privacy.md 4.1).
    """
    if not values.is_floating_point():
        return values
    return torch.nan_to_num(values, nan=0.0).clamp(-_PROBE_REACH, _PROBE_REACH)


def _shake(module: nn.Module) -> None:
    """Move every parameter a little: at zero a last layer hides what lies before it."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.sin(torch.arange(1.0, p.numel() + 1)).view_as(p).to(p), alpha=0.1)


def _is_mean(
    module: nn.Module,
    loss: LossFunction,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    whole: torch.Tensor,
) -> bool:
    """Tell whether a batch's loss is the mean of its records' own losses.

    Each record is tried as a pair with itself, since torch's norms refuse some single records.
    """
    try:
        pairs = [torch.tensor([i, i]) for i in range(len(targets))]
        singles = [loss(module(inputs[pair]), targets[pair]) for pair in pairs]
    except (ValueError, RuntimeError):  # made for one size of batch only
        return False
    mean = torch.stack(singles).mean()
    return bool(torch.isclose(mean, whole, rtol=_PROBE_TOLERANCE, atol=_PROBE_TOLERANCE / 10))


def _attach_advice(module: nn.Module) -> list[str]:
    """Watch the next forward pass for group norms that erase one-dimensional inputs (OPA-01)."""
    advice: list[str] = []

    def watch(_part: nn.Module, received: tuple[torch.Tensor, ...], name: str) -> None:
        if received[0].dim() == 2:
            advice.append(
                f"{name!r} normalizes each feature by itself, which erases it; use fewer groups"
            )

    for name, part in module.named_modules():
        if isinstance(part, nn.GroupNorm) and part.num_groups == part.num_channels:
            part.register_forward_pre_hook(partial(watch, name=name))
    return advice

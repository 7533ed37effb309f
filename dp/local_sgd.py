"""Local DP-SGD and per-unit sums with Opacus' per-sample gradients, behind our own checks.

What is Opacus': the hooks that compute per-sample gradients, `DPOptimizer`'s clipping and step,
`ModuleValidator`. What is ours: the random numbers, public denominators, secret Poisson sampling,
empty batches that are steps like any other, and checks that no record steers another's gradient
(privacy.md 1.2, 5.3).

Hooks are attached to the module itself and removed afterwards: parameters keep their names.
Importing this module loads torch and Opacus, 3 s and 350 MB.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.grad_sample.grad_sample_module import GradSampleHooks
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from opacus.validators import ModuleValidator
from torch import nn

from dp.errors import InfeasibleError, PlanError, UnsafeModuleError
from dp.mechanisms import GridNoise, UnitSum, contribution, full_noise, split_segments
from dp.plan import Mode, PrivacyPlan
from dp.rng import NoiseSource
from dp.sampling import poisson_mask
from dp.terms import require_positive

# Below it, a step's noise drowns the data or the data shine through a small change (OPA-08).
MIN_UNITS: Final = 30
_PROBE_RECORDS: Final = 8
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitData:
    """Records and the unit each belongs to.

    Attributes:
        examples: the records.
        unit_of: shape (n,), int64; each record's unit, from 0 without gaps. None: every record is
            a unit.
        min_units: the silo's own limit; with fewer units it does not take part.

    Raises:
        InfeasibleError: too few units. The message does not say how many there are.
    """

    examples: Examples
    unit_of: IntVector | None = None
    min_units: int = MIN_UNITS

    def __post_init__(self) -> None:
        if self.count < max(self.min_units, 1):
            raise InfeasibleError(
                f"this silo has fewer than its limit of {self.min_units} units: so few cannot be "
                "hidden well; leave it out or lower the silo's limit knowingly"
            )

    @property
    def count(self) -> int:
        """Return the number of units; it stays in the silo."""
        if self.unit_of is None:
            return len(self.examples)
        return int(np.max(self.unit_of, initial=-1)) + 1

    def rows(self, units: IntVector) -> tuple[IntVector, IntVector]:
        """Return the rows of these units, and for each row its unit's place among them."""
        if self.unit_of is None:
            return units, np.arange(len(units))
        place = np.full(self.count, -1)
        place[units] = np.arange(len(units))
        rows = np.flatnonzero(place[self.unit_of] >= 0)
        return rows, place[self.unit_of[rows]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalSum:
    """A silo's clipped sum on the grid, before its share of noise.

    Attributes:
        integers: shape (plan.dimension + plan.padding,), int64.
        failures: units (or physical batches) that became zero because something failed. For a
            local log only: it never leaves the silo.
    """

    integers: IntVector
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """What `train_isrl` did.

    Attributes:
        steps: optimizer steps, a constant of the plan.
        is_private: False if noise came from a test generator; book it as NON_PRIVATE.
        failures: as in `LocalSum`.
    """

    steps: int
    is_private: bool
    failures: int


class NoisyOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus ships no types
    """Opacus' optimizer whose noise is whole grid steps from our own stream.

    Args:
        optimizer: the torch optimizer that takes the step.
        noise: grid, std and source of the noise.
        clip_norm: C, in the gradients' units.
        denominator: what the noised sum is divided by: q times the *declared* number of units, a
            public constant.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        noise: GridNoise,
        clip_norm: float,
        denominator: float,
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=noise.sigma * noise.step / clip_norm,
            max_grad_norm=clip_norm,
            expected_batch_size=denominator,
        )
        self._noise = noise

    def add_noise(self) -> None:
        """Round the clipped sum to the grid, add integers, scale back (privacy.md 1.2)."""
        for p in self.params:
            _check_processed_flag(p.summed_grad)
            flat = p.summed_grad.detach().to("cpu", torch.float64).reshape(-1).numpy()
            p.grad = torch.from_numpy(self._noise.add(flat)).to(p).view_as(p)
            _mark_as_processed(p.summed_grad)


def noise_vector(values: FloatVector, noise: GridNoise) -> FloatVector:
    """Noise one float64 vector as if it were a summed gradient: `central`'s draw."""
    parameter: Any = nn.Parameter(torch.zeros(len(values), dtype=torch.float64))
    optimizer = NoisyOptimizer(
        torch.optim.SGD([parameter], lr=1.0), noise=noise, clip_norm=1.0, denominator=1.0
    )
    parameter.summed_grad = torch.from_numpy(values)
    optimizer.add_noise()
    noised: FloatVector = parameter.grad.numpy()
    return noised


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
    inputs, targets = examples.take(np.arange(min(len(examples), _PROBE_RECORDS)))
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


def train_isrl(
    module: nn.Module,
    loss: LossFunction,
    data: UnitData,
    plan: PrivacyPlan,
    *,
    denominator: float,
    learning_rate: float,
    source: NoiseSource,
    correction: FloatVector | None = None,
    physical_batch: int = 64,
) -> LocalRun:
    """Take the plan's K steps of DP-SGD with full noise in each, in place.

    Whatever the sample turns out to be, also empty, a step is taken, noised and counted (OPA-05).

    Args:
        module: checked by `check_module`; its trainable parameters change.
        loss: the mean over a batch.
        data: the silo's units.
        plan: a plan of mode isrl without segments.
        denominator: q times the number of units that the silo *declared*.
        learning_rate: η.
        source: this silo's stream for this attempt; masks and noise come from it.
        correction: shape (plan.dimension,), c - c_i from noised values; added after the noise.
        physical_batch: units that are computed at once, filled up so that time tells little.

    Raises:
        PlanError: another mode, segments, a module of another size, or no such numbers.
        InfeasibleError: more units than the plan's max_units_per_silo.
    """
    _check_plan(plan, Mode.ISRL, module, data)
    if plan.segments:
        raise PlanError("isrl clips the whole gradient by one norm; leave out segments")
    require_positive("denominator", denominator)
    require_positive("learning_rate", learning_rate)
    parameters = list(trainable(module).values())
    noise = full_noise(plan, source)
    optimizer = NoisyOptimizer(
        torch.optim.SGD(parameters, lr=learning_rate),
        noise=noise,
        clip_norm=plan.clip,
        denominator=denominator,
    )
    if correction is not None:
        optimizer.attach_step_hook(lambda _: _add_to_gradients(parameters, correction))
    with _UnitGradients.attached(module, loss, data, physical_batch) as gradients:
        for _ in range(plan.local_steps):
            for is_last in gradients.pieces(_sampled(data, plan, source)):
                optimizer.signal_skip_step(do_skip=not is_last)
                optimizer.step()
                optimizer.zero_grad()
    return LocalRun(
        steps=plan.local_steps, is_private=noise.is_private, failures=gradients.failures
    )


def fedsgd_sum(
    module: nn.Module,
    loss: LossFunction,
    data: UnitData,
    plan: PrivacyPlan,
    *,
    learning_rate: float,
    source: NoiseSource,
    coins: NoiseSource,
    clip_norm: float | None = None,
    physical_batch: int = 64,
) -> LocalSum:
    """Sum the sampled units' clipped one-step deltas, -η times each unit's gradient.

    Args:
        module: checked by `check_module`; not changed.
        loss: the mean over a batch.
        data: the silo's units; a unit's records are averaged.
        plan: a plan of mode fedsgd, over the parameters in sorted order.
        learning_rate: η; the deltas are in parameter units, as the plan's clip.
        source: this silo's stream for the mask.
        coins: for rounding, secret; see `mechanisms.encode`.
        clip_norm: this round's C under adaptive clipping.
        physical_batch: units that are computed at once.

    Raises:
        PlanError: another mode, or a module of another size.
        InfeasibleError: more units than the plan's max_units_per_silo.
    """
    _check_plan(plan, Mode.FEDSGD, module, data)
    total = UnitSum(plan, coins)
    with _UnitGradients.attached(module, loss, data, physical_batch) as gradients:
        for _ in gradients.pieces(_sampled(data, plan, source)):
            for row in gradients.rows():
                blocks = split_segments(row * -learning_rate, plan)
                total.add(contribution(blocks, plan, clip_norm=clip_norm))
    return LocalSum(integers=total.integers(), failures=gradients.failures)


def patient_sum(
    module: nn.Module,
    loss: LossFunction,
    data: UnitData,
    plan: PrivacyPlan,
    *,
    learning_rate: float,
    source: NoiseSource,
    coins: NoiseSource,
    clip_norm: float | None = None,
) -> LocalSum:
    """Sum the sampled patients' clipped K-step deltas, each started from the round's model.

    A patient is a virtual client: nothing passes from one patient's steps to another's.

    Args:
        module: holds the round's global model, as it still does afterwards, in training mode.
        loss: the mean over a batch, here over all records of one patient.
        data: the silo's patients.
        plan: a plan of mode patient, over the parameters in sorted order.
        learning_rate: η.
        source: this silo's stream for the mask.
        coins: for rounding, secret; see `mechanisms.encode`.
        clip_norm: this round's C under adaptive clipping.

    Raises:
        PlanError: another mode, or a module of another size.
        InfeasibleError: more units than the plan's max_units_per_silo.
    """
    _check_plan(plan, Mode.PATIENT, module, data)
    total = UnitSum(plan, coins)
    unwrapped(module).train()
    parameters = list(trainable(module).values())
    start = _flat(parameters)
    failures = 0
    for unit in _sampled(data, plan, source):
        delta = np.zeros(len(start))
        try:
            rows, _ = data.rows(np.array([unit]))
            _descend(module, loss, data.examples.take(rows), plan.local_steps, learning_rate)
            delta = _flat(parameters) - start
        except Exception:  # noqa: BLE001  # a failure that depends on data must not show (4.1)
            failures += 1
        finally:
            _set_flat(parameters, start)
        total.add(contribution(split_segments(delta, plan), plan, clip_norm=clip_norm))
    return LocalSum(integers=total.integers(), failures=failures)


class _UnitGradients:
    """Fills every parameter's `grad_sample` with one finite row per unit of a piece."""

    def __init__(
        self, module: nn.Module, loss: LossFunction, data: UnitData, physical_batch: int
    ) -> None:
        self._module = unwrapped(module)
        self._parameters: list[Any] = list(trainable(module).values())  # Opacus adds attributes
        self._loss = loss
        self._data = data
        self._size = physical_batch
        self._units = 0
        self.failures = 0

    @classmethod
    @contextmanager
    def attached(
        cls, module: nn.Module, loss: LossFunction, data: UnitData, physical_batch: int
    ) -> Iterator["_UnitGradients"]:
        """Hang Opacus' hooks into the module, in training mode, and take them out again."""
        gradients = cls(module, loss, data, physical_batch)
        was_training = gradients._module.training
        gradients._module.train()
        hooks = GradSampleHooks(gradients._module, loss_reduction="mean")
        try:
            yield gradients
        finally:
            gradients._forget()
            hooks.cleanup()
            gradients._module.zero_grad()
            gradients._module.train(was_training)

    def pieces(self, chosen: IntVector) -> Iterator[bool]:
        """Compute piece after piece, at least one; yield whether it is the last."""
        for start in range(0, max(len(chosen), 1), self._size):
            self._compute(chosen[start : start + self._size])
            yield start + self._size >= len(chosen)

    def rows(self) -> Iterator[FloatVector]:
        """Yield each unit's flat gradient of the present piece, float64."""
        flat = torch.cat([p.grad_sample.reshape(self._size, -1) for p in self._parameters], dim=1)
        yield from flat[: self._units].to("cpu", torch.float64).numpy()

    def _compute(self, units: IntVector) -> None:
        self._units = len(units)
        rows, owner = self._data.rows(units)
        for p in self._parameters:
            p.grad_sample = None
        # Filled up to whole physical batches with a record whose gradient is thrown away, so that
        # no batch is empty and the time tells little about the sample's size (privacy.md 5.4).
        missing = -len(rows) % self._size or (self._size if not len(rows) else 0)
        padded = np.append(rows, np.zeros(missing, np.int64))
        try:
            inputs, targets = self._data.examples.take(padded)
            self._loss(self._module(inputs), targets).backward()  # type: ignore[no-untyped-call]  # torch's
        except Exception:  # noqa: BLE001  # a failure that depends on data must not show (4.1)
            self.failures += 1
            self._forget()
        self._gather(torch.from_numpy(owner))

    def _gather(self, owner: torch.Tensor) -> None:
        """Average the records of each unit; a unit with a NaN becomes zero."""
        counts = torch.bincount(owner, minlength=self._size).clamp(min=1)
        is_finite = torch.ones(self._size, dtype=torch.bool)
        for p in self._parameters:
            grouped = p.new_zeros((self._size, *p.shape))
            if p.grad_sample is not None:
                grouped.index_add_(0, owner, p.grad_sample[: len(owner)])
            p.grad_sample = grouped / counts.reshape(-1, *[1] * p.dim()).to(p)
            is_finite &= torch.isfinite(p.grad_sample).flatten(1).all(dim=1)
        self.failures += int(torch.count_nonzero(~is_finite))
        for p in self._parameters:
            p.grad_sample[~is_finite] = 0

    def _forget(self) -> None:
        """Take out what a failed pass left in the hooks; the next one would count from there."""
        for part in self._module.modules():
            for name in ("activations", "max_batch_len"):
                part.__dict__.pop(name, None)
        for p in self._parameters:
            p.grad_sample = None
            p._forward_counter = 0  # noqa: SLF001  # Opacus' own attribute, which it left too high
            p.__dict__.pop("_current_grad_sample", None)


def _check_plan(plan: PrivacyPlan, mode: Mode, module: nn.Module, data: UnitData) -> None:
    if plan.mode is not mode:
        raise PlanError(f"expected a plan of mode {mode}, got {plan.mode}")
    coordinates = sum(p.numel() for p in trainable(module).values())
    noised = plan.dimension - (plan.adaptive is not None)
    if coordinates != noised:
        raise PlanError(f"the plan noises {noised} coordinates, the module trains {coordinates}")
    if data.count > plan.max_units_per_silo:
        raise InfeasibleError(
            f"this silo has more units than max_units_per_silo = {plan.max_units_per_silo}; raise "
            "the plan's public cap: leaving units out would depend on data"
        )


def _sampled(data: UnitData, plan: PrivacyPlan, source: NoiseSource) -> IntVector:
    return np.flatnonzero(poisson_mask(data.count, plan.q, source))


def _descend(
    module: nn.Module,
    loss: LossFunction,
    batch: tuple[torch.Tensor, torch.Tensor],
    steps: int,
    learning_rate: float,
) -> None:
    """Take plain gradient steps; no state outlives them."""
    parameters = list(trainable(module).values())
    inputs, targets = batch
    for _ in range(steps):
        gradients = torch.autograd.grad(loss(module(inputs), targets), parameters)
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients, strict=True):
                p.sub_(gradient, alpha=learning_rate)


def _add_to_gradients(parameters: list[nn.Parameter], vector: FloatVector) -> None:
    lengths = [p.numel() for p in parameters]
    for p, piece in zip(parameters, torch.split(torch.from_numpy(vector), lengths), strict=True):
        assert p.grad is not None, "the optimizer has just noised it"
        p.grad += piece.to(p).view_as(p)


def _flat(parameters: list[nn.Parameter]) -> FloatVector:
    flat: FloatVector = torch.cat(
        [p.detach().reshape(-1).to("cpu", torch.float64) for p in parameters]
    ).numpy()
    return flat


def _set_flat(parameters: list[nn.Parameter], flat: FloatVector) -> None:
    lengths = [p.numel() for p in parameters]
    with torch.no_grad():
        for p, piece in zip(parameters, torch.split(torch.from_numpy(flat), lengths), strict=True):
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

"""Local DP-SGD and per-unit sums with Opacus' per-sample gradients, behind our own checks.

What is Opacus': the hooks that compute per-sample gradients, `DPOptimizer`'s clipping and step,
`ModuleValidator`. What is ours: the random numbers, public denominators, secret Poisson sampling,
empty batches that are steps like any other, and checks that no record steers another's gradient
(privacy.md 1.2, 5.3).

Hooks are attached to the module itself and removed afterwards: parameters keep their names.
Importing this module loads torch and Opacus, 3 s and 350 MB.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from opacus.grad_sample.grad_sample_module import GradSampleHooks
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from torch import nn

from dp.errors import InfeasibleError, PlanError
from dp.mechanisms import (
    GridNoise,
    UnitMetrics,
    UnitSum,
    contribution,
    full_noise,
    noised_metrics,
    split_segments,
)
from dp.modules import FloatVector, IntVector, LossFunction, flat, set_flat, trainable, unwrapped
from dp.plan import Mode, PrivacyPlan, trained_coordinates
from dp.rng import NoiseSource
from dp.terms import require_positive
from dp.unit_data import Meter, UnitData, sampled


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
            values = p.summed_grad.detach().to("cpu", torch.float64).reshape(-1).numpy()
            p.grad = torch.from_numpy(self._noise.add(values)).to(p).view_as(p)
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
            for is_last in gradients.pieces(sampled(data, plan, source)):
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
    meter: Meter | None = None,
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
        meter: how the model does on a unit, for a plan that releases metrics.
        physical_batch: units that are computed at once.

    Raises:
        PlanError: another mode, a module of another size, or no meter.
        InfeasibleError: more units than the plan's max_units_per_silo.
    """
    _check_plan(plan, Mode.FEDSGD, module, data)
    total, chosen = UnitSum(plan, coins), sampled(data, plan, source)
    metrics = _measured(meter, plan, data, chosen)
    with _UnitGradients.attached(module, loss, data, physical_batch) as gradients:
        for _ in gradients.pieces(chosen):
            for row in gradients.rows():
                blocks = split_segments(row * -learning_rate, plan)
                part = contribution(blocks, plan, clip_norm=clip_norm, metrics=next(metrics))
                total.add(part)
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
    meter: Meter | None = None,
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
        meter: how the model does on a patient, for a plan that releases metrics.

    Raises:
        PlanError: another mode, a module of another size, or no meter.
        InfeasibleError: more units than the plan's max_units_per_silo.
    """
    _check_plan(plan, Mode.PATIENT, module, data)
    total = UnitSum(plan, coins)
    unwrapped(module).train()
    parameters = list(trainable(module).values())
    start = flat(parameters)
    failures = 0
    chosen = sampled(data, plan, source)
    for unit, metrics in zip(chosen, _measured(meter, plan, data, chosen), strict=True):
        delta = np.zeros(len(start))
        try:
            rows, _ = data.rows(np.array([unit]))
            _descend(module, loss, data.examples.take(rows), plan.local_steps, learning_rate)
            delta = flat(parameters) - start
        except Exception:  # noqa: BLE001  # a failure that depends on data must not show (4.1)
            failures += 1
        finally:
            set_flat(parameters, start)
        blocks = split_segments(delta, plan)
        total.add(contribution(blocks, plan, clip_norm=clip_norm, metrics=metrics))
    return LocalSum(integers=total.integers(), failures=failures)


def isrl_metrics(
    module: nn.Module, data: UnitData, plan: PrivacyPlan, *, meter: Meter, source: NoiseSource
) -> IntVector:
    """Take isrl's one further step: a sample's metrics at the round's model, in full noise.

    Args:
        module: holds the round's model; not changed.
        data: the silo's units.
        plan: of mode isrl, with metrics.
        meter: how the model does on a unit.
        source: this silo's stream for this attempt; another sample than a training step's.

    Returns:
        shape (2,), int64, on the plan's grid.

    Raises:
        PlanError: another mode, a module of another size, or no metrics in the plan.
        InfeasibleError: more units than the plan's max_units_per_silo.
    """
    _check_plan(plan, Mode.ISRL, module, data)
    units = meter.of(data, sampled(data, plan, source))
    return noised_metrics(units, plan, source).values


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
        whole = torch.cat([p.grad_sample.reshape(self._size, -1) for p in self._parameters], dim=1)
        yield from whole[: self._units].to("cpu", torch.float64).numpy()

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
    noised = trained_coordinates(plan)
    if coordinates != noised:
        raise PlanError(f"the plan noises {noised} coordinates, the module trains {coordinates}")
    if data.count > plan.max_units_per_silo:
        raise InfeasibleError(
            f"this silo has more units than max_units_per_silo = {plan.max_units_per_silo}; raise "
            "the plan's public cap: leaving units out would depend on data"
        )


def _measured(
    meter: Meter | None, plan: PrivacyPlan, data: UnitData, units: IntVector
) -> Iterator[UnitMetrics | None]:
    """Each unit's metrics at the round's model, before anything moves it."""
    if plan.metrics is None:
        return iter([None] * len(units))
    if meter is None:
        raise PlanError("the plan releases metrics, and nothing measures them here")
    return iter(list(meter.of(data, units)))


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

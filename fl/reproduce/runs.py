"""A simulated run with a measurement after each round, ended as soon as a target is reached."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from fl.errors import RunStateError
from fl.plan import TrainingPlan
from fl.ports import LocalTask, NamedTensors, Tensor
from fl.rounds import RoundFailure, RoundReport
from fl.run import TrainingRun
from fl.simulation import Dropouts, simulate


class Mode(StrEnum):
    """Sums of plain floats, or the whole protocol with quantizer and masks."""

    PLAIN = "plain"
    SECURE = "secure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What was measured.

    Attributes:
        values: one for each measured round.
        model: after the last round.
        uplink_bytes: what all silos sent in a secure run that was not ended early.
    """

    values: list[float]
    model: Mapping[str, Tensor]
    uplink_bytes: int = 0


class _ReachedError(Exception):
    """The target is reached; unwinds a simulation, and goes no further than `followed`."""


def followed(
    plan: TrainingPlan,
    tasks: Mapping[str, LocalTask],
    mode: Mode,
    measure: Callable[[NamedTensors], float],
    *,
    every: int = 1,
    until: Callable[[float], bool] | None = None,
    dropouts: Dropouts = MappingProxyType({}),
    colluding: int | None = None,
) -> Trace:
    """Run a plan and measure the model after every `every` rounds.

    Args:
        plan: of the run.
        tasks: silo name to task.
        mode: plain or secure.
        measure: of a model.
        every: rounds.
        until: says of a measured value whether the run may end.
        dropouts: as for `simulate`.
        colluding: likewise.

    Raises:
        RunStateError: the run failed; says why.
    """
    values: list[float] = []
    model: dict[str, Tensor] = {}

    def watch(outcome: RoundReport | RoundFailure, run: TrainingRun) -> None:
        if isinstance(outcome, RoundFailure) or outcome.number % every:
            return
        model.update(run.model())
        values.append(measure(model))
        if until is not None and until(values[-1]):
            raise _ReachedError

    try:
        result = simulate(
            plan,
            tasks,
            secure=mode is Mode.SECURE,
            dropouts=dropouts,
            colluding=colluding,
            seed=plan.seed,
            on_round=watch,
        )
    except _ReachedError:
        return Trace(values=values, model=model)
    if result.reason:
        raise RunStateError(f"the simulated run failed: {result.reason}")
    return Trace(values=values, model=result.model(), uplink_bytes=result.uplink_bytes)


def rounds_to(values: list[float], target: float, *, every: int = 1) -> float | None:
    """Return the round at which a curve, made monotone, crosses a target; None if it never does.

    Args:
        values: measured every `every` rounds.
        target: to be reached from below.
        every: rounds.

    Source: McMahan et al. 2017, section 3: linear between the points that form it.
    """
    before = None
    for place, value in enumerate(values, start=1):
        if value >= target:
            if before is None:
                return float(place * every)
            return (place - 1 + (target - before) / (value - before)) * every
        before = value if before is None else max(before, value)
    return None

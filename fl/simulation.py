"""A whole run in one process, through the very objects that the services use.

`secure=True` takes every round through `secagg`'s state machines, masks and all. `secure=False` is
the reference: the same training and the same server step on sums of plain floats, without
quantizer or masks, and for any number of silos.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
from secagg.testing import SeededRng

from fl.errors import LearningError
from fl.participant import RunParticipant
from fl.pipeline import Decoded
from fl.plan import TrainingPlan
from fl.ports import FloatVector, LocalTask, Tensor
from fl.run import (
    RoundFailure,
    RoundReport,
    RoundRequest,
    RunStatus,
    TrainingRun,
)
from fl.seeding import derive_seed
from fl.state import decode_state, model_of
from fl.testing import DictMemory
from secagg.canonical import digest, u64
from secagg.ids import RunId
from secagg.messages import MAX_STATE_BYTES
from secagg.phases import Phase

Dropouts: TypeAlias = Mapping[int, Mapping[int, Phase]]

# Who vanishes in one of these phases is not in the sum.
_BEFORE_UPLOAD: Final = frozenset({Phase.ADVERTISE, Phase.SHARE, Phase.MASK})


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """What a simulated run gave.

    Attributes:
        status: COMPLETED or FAILED.
        reason: why it failed; empty otherwise.
        history: a report for each round, a failure for each failed attempt, in order.
        state: canonical bytes of the last state.
        variates: silo name to its committed control variate, None for zero. Only a simulation
            can show them.
    """

    status: RunStatus
    reason: str
    history: tuple[RoundReport | RoundFailure, ...]
    state: bytes
    variates: Mapping[str, FloatVector | None]

    def model(self) -> dict[str, Tensor]:
        """Return the last model's tensors."""
        return model_of(decode_state(self.state, MAX_STATE_BYTES))

    @property
    def reports(self) -> tuple[RoundReport, ...]:
        """The successful rounds."""
        return tuple(entry for entry in self.history if isinstance(entry, RoundReport))


def simulate(
    plan: TrainingPlan,
    tasks: Mapping[str, LocalTask],
    *,
    secure: bool = True,
    dropouts: Dropouts = MappingProxyType({}),
    seed: int = 0,
    on_round: Callable[[RoundReport | RoundFailure, TrainingRun], None] | None = None,
) -> SimulationResult:
    """Run a training plan over silos in this process.

    Args:
        plan: what is trained and how.
        tasks: silo name to its task. Seats 1, 2, … go to the sorted names.
        secure: through the secure sum, or the reference of plain floats.
        dropouts: round number to seats that vanish in it, and the phase in which they do; they
            are back in the next round.
        seed: of keys, masks and rounding coins, which a simulation wants reproducible.
        on_round: called after each attempt with its outcome and the run.

    Raises:
        LearningError: a silo refuses the run, as for a task that does not fit the plan.
    """
    names = dict(enumerate(sorted(tasks), start=1))
    run_id = RunId(digest("simulated-run", u64(seed))[:16])
    participants = {
        seat: RunParticipant(
            plan,
            run=run_id,
            seat=seat,
            names=names,
            task=tasks[name],
            memory=DictMemory(),
            rng=SeededRng(derive_seed(seed, "silo", seat)),
        )
        for seat, name in names.items()
    }
    first = tasks[names[1]]
    run = TrainingRun(
        plan,
        model=first.initial_model(plan.seed),
        names=names,
        features=len(first.statistics().names) if plan.standardize else 0,
    )
    history: list[RoundReport | RoundFailure] = []
    while isinstance(step := run.next(), RoundRequest):
        outcome = _plain_round(run, step, participants, dropouts.get(step.number, {}))
        history.append(outcome)
        if on_round is not None:
            on_round(outcome, run)
    return SimulationResult(
        status=step.status,
        reason=step.reason,
        history=tuple(history),
        state=step.state,
        variates={names[seat]: p.variate() for seat, p in participants.items()},
    )


def _plain_round(
    run: TrainingRun,
    request: RoundRequest,
    participants: Mapping[int, RunParticipant],
    gone: Mapping[int, Phase],
) -> RoundReport | RoundFailure:
    """Sum plain floats."""
    contributions: dict[int, Decoded] = {}
    for seat, participant in participants.items():
        if gone.get(seat) not in _BEFORE_UPLOAD:
            try:
                contributions[seat] = participant.contribute_exact(request.number, request.state)
            except LearningError:
                continue  # It goes late, as in a secure round.
    if not contributions:
        return run.fail("no silo contributed")
    released = _sum(list(contributions.values()))
    survivors = tuple(sorted(contributions))
    outcome = run.receive_decoded(released, survivors)
    if isinstance(outcome, RoundReport):
        for seat, participant in participants.items():
            if seat not in gone:
                participant.settle_exact(request.number, request.state, released, survivors)
    return outcome


def _sum(contributions: list[Decoded]) -> Decoded:
    first = contributions[0]
    return Decoded(
        bulk={name: np.sum([c.bulk[name] for c in contributions], axis=0) for name in first.bulk},
        meta={name: np.sum([c.meta[name] for c in contributions], axis=0) for name in first.meta},
    )

"""SCAFFOLD: control variates take the silos' drift out of their local steps.

Locally y −= η (g − c_k + c); the server keeps c, each silo its c_k, all zero at the start.
Option I sets c_k⁺ to the full-batch gradient at x and uploads [Δ_k] and [Δc_k], the latter every
`variate_every` rounds only if the plan says so; in between c and all c_k stand still.
Option II sets c_k⁺ = c_k − c + (x − y_k) / (Kη); then Δc_k = −c − Δ_k / (Kη) is an affine function
of Δ_k with the same K and η at all silos, so the server derives its sum and nothing more is
uploaded (protocol.md 2.3): Σ ρ_k Δc_k = −c Σ ρ_k − Σ ρ_k Δ_k / (Kη).

Server: x += η_g · mean Δ_k and c += (|S| / N) · mean Δc_k, means weighted by ρ_k. With uniform
weights c = mean of all N silos' c_k holds after every round, whoever took part. With other
weights it holds, as Σ ρ_k c_k / Σ ρ_k, as long as all N survive with constant weights: under
partial participation the exact form needs the absent silos' weights, which are hidden.

N changes with the roster (fl.step): for a silo that joins, at c_k = 0, c is scaled by N_old/N_new;
one that leaves uploads Δc_k = −c_k; lost or vanished variates are renewed by a refresh round.

The coordinator learns one linear functional of the Δ_k (option I: and one of the gradients at x,
with the same coefficients ρ_k). A silo's own K_k is refused: ρ_k and ρ_k / K_k would be two
coefficient vectors over the same changes. So are local momentum, plugins and the proximal term,
for which (x − y_k) / (Kη) is no mean of gradients.

Source: Karimireddy et al. 2020, algorithm 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from fl import fields
from fl.algorithms.base import UPDATE, LocalWork, Sums, Traits, moved_model
from fl.algorithms.settings import Settings, require_plain, require_work
from fl.errors import RunStateError
from fl.ports import FloatVector, NamedTensors
from fl.ranges import INITIAL_RANGE
from fl.state import RANGE, State, enrolled_of, trained_of
from fl.work import Work

if TYPE_CHECKING:
    from fl.plan import TrainingPlan

SERVER_VARIATE: Final = "server_variate"
VARIATE_DELTA: Final = "variate_delta"


class Option(StrEnum):
    """How a silo renews its control variate."""

    GRADIENT = "I"
    STEPS = "II"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """SCAFFOLD with K, η and η_g of the plan.

    Attributes:
        plan: of the run.
        option: I or II.
        variate_every: r; with option I variates move in every r-th round.
    """

    plan: "TrainingPlan"
    option: Option
    variate_every: int

    @classmethod
    def of(cls, plan: "TrainingPlan") -> "Scaffold":
        """Return the algorithm as the plan sets it.

        Raises:
            PlanError: an unknown setting, or a local solver or compression that does not fit.
        """
        settings = Settings(plan)
        option = Option(settings.choice("option", Option.STEPS, (Option.GRADIENT, Option.STEPS)))
        every = settings.whole("variate_every", 1, 1, 1000 if option is Option.GRADIENT else 1)
        settings.end()
        require_plain(plan, because="control variates correct plain gradients")
        require_work(
            plan,
            Work.FIXED,
            because="with unequal K, Σ ρ_k Δ_k and Σ ρ_k Δ_k / K_k together isolate a silo",
        )
        if option is Option.STEPS and plan.compression.block:
            fields.refuse(
                "compression.block",
                "0 with option II: blocks not sent would count as gradients of zero; option I can",
                plan.compression.block,
            )
        return cls(plan=plan, option=option, variate_every=every)

    def traits(self, number: int) -> Traits:
        """Upload the change of the model; with option I at times that of the variate."""
        moves = (number - self.plan.first_training_round) % self.variate_every == 0
        with_variate = self.option is Option.GRADIENT and moves
        return Traits(
            segments=(UPDATE, VARIATE_DELTA) if with_variate else (UPDATE,),
            gradient=with_variate,
            has_variate=True,
            keeps=True,
        )

    def initial_state(self, size: int) -> State:
        """Return c = 0 and the ranges; Δc_k has the size of Δ_k / (Kη)."""
        state: State = {
            SERVER_VARIATE: np.zeros(size),
            RANGE + UPDATE: np.array(INITIAL_RANGE),
        }
        if self.option is Option.GRADIENT:
            state[RANGE + VARIATE_DELTA] = np.array(INITIAL_RANGE / self._path(0))
        return state

    def correction(self, state: NamedTensors, kept: FloatVector | None) -> FloatVector:
        """Return c − c_k."""
        server = server_variate(state)
        return server if kept is None else server - kept

    def parts(self, work: LocalWork) -> dict[str, FloatVector]:
        """Return Δ_k, and with a gradient at x Δc_k = gradient − c_k."""
        parts = {UPDATE: work.change}
        if work.gradient is not None:
            kept = work.kept
            parts[VARIATE_DELTA] = work.gradient if kept is None else work.gradient - kept
        return parts

    def next_kept(self, sent: Mapping[str, FloatVector], work: LocalWork) -> FloatVector | None:
        """Return c_k + Δc_k, Δc_k as the server will count it."""
        if VARIATE_DELTA in sent:
            delta = sent[VARIATE_DELTA]
        elif self.option is Option.STEPS:
            delta = self._derived_delta(sent[UPDATE], work.state)
        else:
            return work.kept
        return delta if work.kept is None else work.kept + delta

    def apply(self, state: NamedTensors, sums: Sums) -> State:
        """Move the model and c."""
        rate = self.plan.server_rate(trained_of(state))
        moved = moved_model(state, sums.mean(UPDATE), rate)
        if VARIATE_DELTA in sums.segments:
            delta = sums.mean(VARIATE_DELTA)
        elif self.option is Option.STEPS:
            delta = self._derived_delta(sums.mean(UPDATE), state)
        else:
            delta = np.zeros_like(server_variate(state))
        # |S|/N: silos that were not in the sum did not move their c_k (SCA-02). The first factor
        # is 1 but for silos that joined, at c_k = 0, or left.
        share = sums.survivors / sums.enrolled
        before = enrolled_of(state) / sums.enrolled * server_variate(state)
        moved[SERVER_VARIATE] = before + share * delta
        return moved

    def _derived_delta(self, update: FloatVector, state: NamedTensors) -> FloatVector:
        """Return −c − Δ / (Kη): one silo's Δc_k or, being affine, the weighted mean of them."""
        return -server_variate(state) - update / self._path(trained_of(state))

    def _path(self, done: int) -> float:
        """Return Kη, the length over which a silo's gradients add up to −Δ_k."""
        rate = self.plan.local_rate(done)
        if not rate > 0:
            raise RunStateError("SCAFFOLD needs a local step size above 0 in every round")
        return self.plan.local.local_steps * rate


def server_variate(state: NamedTensors) -> FloatVector:
    """Return c."""
    return state[SERVER_VARIATE].astype(np.float64, copy=False)

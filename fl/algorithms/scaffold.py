"""SCAFFOLD: control variates take the silos' drift out of their local steps.

Locally y −= η (g − c_k + c); the server keeps c, each silo its c_k, all zero at the start.
Option I sets c_k⁺ to the full-batch gradient at x and uploads [Δ_k] and [Δc_k]. Option II sets
c_k⁺ = c_k − c + (x − y_k) / (Kη); then Δc_k = −c − Δ_k / (Kη) is an affine function of Δ_k with
the same K and η at all silos, so the server derives its sum and nothing more is uploaded
(protocol.md 2.3): Σ ρ_k Δc_k = −c Σ ρ_k − Σ ρ_k Δ_k / (Kη).

Server: x += η_g · mean Δ_k and c += (|S| / N) · mean Δc_k, means weighted by ρ_k. With uniform
weights c = mean of all N silos' c_k holds after every round, whoever took part. With other
weights it holds, as Σ ρ_k c_k / Σ ρ_k, as long as all N survive with constant weights: under
partial participation the exact form needs the absent silos' weights, which are hidden.

Source: Karimireddy et al. 2020, algorithm 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from fl.algorithms.base import UPDATE, Sums, moved_model
from fl.errors import PlanError, RunStateError
from fl.ports import FloatVector, LocalResult, NamedTensors
from fl.ranges import INITIAL_RANGE
from fl.state import RANGE, State

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
        option: I or II.
        server_learning_rate: η_g.
        path: Kη, the length over which a silo's gradients add up to −Δ_k.
    """

    option: Option
    server_learning_rate: float
    path: float

    @classmethod
    def of(cls, plan: "TrainingPlan") -> "Scaffold":
        """Return the algorithm as the plan sets it.

        Raises:
            PlanError: a setting other than `option`, or an option other than "I" and "II".
        """
        settings = {"option": Option.STEPS.value, **plan.algorithm_settings}
        option = settings.pop("option")
        if settings or option not in list(Option):
            raise PlanError(
                "training plan: algorithm_settings: scaffold knows option = 'I' or 'II', got "
                f"{dict(plan.algorithm_settings)}"
            )
        return cls(
            option=Option(str(option)),
            server_learning_rate=plan.server_learning_rate,
            path=plan.local.local_steps * plan.local.learning_rate,
        )

    @property
    def segments(self) -> tuple[str, ...]:
        """The change of the model; with option I that of the variate, too."""
        return (UPDATE,) if self.option is Option.STEPS else (UPDATE, VARIATE_DELTA)

    @property
    def has_variate(self) -> bool:
        """A silo keeps c_k."""
        return True

    @property
    def needs_gradient(self) -> bool:
        """Option I takes the gradient at x."""
        return self.option is Option.GRADIENT

    def initial_state(self, size: int) -> State:
        """Return c = 0 and the ranges; Δc_k has the size of Δ_k / (Kη)."""
        state: State = {
            SERVER_VARIATE: np.zeros(size),
            RANGE + UPDATE: np.array(INITIAL_RANGE),
        }
        if VARIATE_DELTA in self.segments:
            state[RANGE + VARIATE_DELTA] = np.array(INITIAL_RANGE / self.path)
        return state

    def correction(self, state: NamedTensors, variate: FloatVector | None) -> FloatVector:
        """Return c − c_k."""
        server = _server_variate(state)
        return server if variate is None else server - variate

    def parts(
        self,
        start: FloatVector,
        result: LocalResult,
        gradient: FloatVector | None,
        variate: FloatVector | None,
    ) -> dict[str, FloatVector]:
        """Return Δ_k, and with option I Δc_k = (gradient at x) − c_k."""
        parts = {UPDATE: result.model_after - start}
        if self.needs_gradient:
            if gradient is None:
                raise RunStateError("SCAFFOLD option I needs the gradient at the received model")
            parts[VARIATE_DELTA] = gradient if variate is None else gradient - variate
        return parts

    def next_variate(
        self,
        parts: Mapping[str, FloatVector],
        state: NamedTensors,
        variate: FloatVector | None,
    ) -> FloatVector:
        """Return c_k + Δc_k, Δc_k as the server will count it."""
        if self.option is Option.GRADIENT:
            delta = parts[VARIATE_DELTA]
        else:
            delta = self._derived_delta(parts[UPDATE], state)
        return delta if variate is None else variate + delta

    def apply(self, state: NamedTensors, sums: Sums) -> State:
        """Move the model and c."""
        if self.option is Option.GRADIENT:
            delta = sums.mean(VARIATE_DELTA)
        else:
            delta = self._derived_delta(sums.mean(UPDATE), state)
        moved = moved_model(state, self.server_learning_rate * sums.mean(UPDATE))
        # |S|/N: silos that were not in the sum did not move their c_k (SCA-02).
        share = sums.survivors / sums.enrolled
        moved[SERVER_VARIATE] = _server_variate(state) + share * delta
        return moved

    def _derived_delta(self, update: FloatVector, state: NamedTensors) -> FloatVector:
        """Return −c − Δ / (Kη): one silo's Δc_k or, being affine, the weighted mean of them."""
        return -_server_variate(state) - update / self.path


def _server_variate(state: NamedTensors) -> FloatVector:
    return state[SERVER_VARIATE].astype(np.float64, copy=False)

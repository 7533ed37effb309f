"""What an algorithm is: the correction, the segments a silo uploads, and the server's step.

The server's step is elementwise float64 in a fixed order, so that every silo that recomputes it
gets the same bits (protocol.md 2.5 v).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from fl.ports import FloatVector, LocalResult, NamedTensors
from fl.state import MODEL, State, model_of
from fl.update import TensorLayout, summed

UPDATE: Final = "update"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """What the secure sum released of one training round.

    Attributes:
        segments: name to Σ ρ_k · part_k, shape (d,), float64.
        weight: Σ ρ_k over the survivors, above 0.
        survivors: |S|.
        enrolled: N, the silos enrolled at the run's start.
    """

    segments: Mapping[str, FloatVector]
    weight: float
    survivors: int
    enrolled: int

    def mean(self, name: str) -> FloatVector:
        """Return the survivors' weighted mean of a segment."""
        return self.segments[name] / self.weight


class Algorithm(Protocol):
    """One federated algorithm. Objects hold settings of the plan only, never a round's state."""

    @property
    def segments(self) -> tuple[str, ...]:
        """The names of the bulk segments, each of length d."""
        ...

    @property
    def has_variate(self) -> bool:
        """Whether a silo keeps a control variate between rounds."""
        ...

    @property
    def needs_gradient(self) -> bool:
        """Whether a silo computes the full-batch gradient at the received model."""
        ...

    def initial_state(self, size: int) -> State:
        """Return what the algorithm adds to the state of a run whose model has d = `size`."""
        ...

    def correction(self, state: NamedTensors, variate: FloatVector | None) -> FloatVector | None:
        """Return what is added to each local gradient, None for nothing."""
        ...

    def parts(
        self,
        start: FloatVector,
        result: LocalResult,
        gradient: FloatVector | None,
        variate: FloatVector | None,
    ) -> dict[str, FloatVector]:
        """Return what the silo uploads in each segment, before its weight is applied.

        Args:
            start: the received model x, flat.
            result: of the local training.
            gradient: the full-batch gradient at x if the algorithm needs it.
            variate: the silo's own, None for zero.
        """
        ...

    def next_variate(
        self,
        parts: Mapping[str, FloatVector],
        state: NamedTensors,
        variate: FloatVector | None,
    ) -> FloatVector | None:
        """Return the silo's next control variate, None if it keeps none.

        Args:
            parts: what the silo's *integers* say it uploaded, its weight divided out; a float
                that was not sent would leave c ≠ mean c_k for good (protocol.md 2.3).
            state: as received.
            variate: the silo's own, None for zero.
        """
        ...

    def apply(self, state: NamedTensors, sums: Sums) -> State:
        """Return the tensors that the server's step changes, under their names in the state."""
        ...


def moved_model(state: NamedTensors, step: FloatVector) -> State:
    """Return the model moved by a flat step, each tensor rounded once to its own dtype."""
    floating = summed(model_of(state))
    layout = TensorLayout.of(floating)
    moved = layout.unflatten(layout.flatten(floating) + step)
    layout.flatten(moved)  # refuses what is not finite, in float16 or float32, either
    return {MODEL + name: tensor for name, tensor in moved.items()}

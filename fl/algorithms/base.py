"""What an algorithm is: the correction, the segments a silo uploads, and the server's step.

The server's step is elementwise float64 in a fixed order, so that every silo that recomputes it
gets the same bits (protocol.md 2.5 v).

What a coordinator learns of the silos' changes Δ_k are linear functionals: Σ w_k Δ_k for each
coefficient vector w that is released. Two different ones can be combined until one silo is left,
so the rule is one vector a round (protocol.md 2.3):

| algorithm | released | coefficients on Δ_k (or g_k) | K_k of a silo's own |
|---|---|---|---|
| FedSGD | Σ ρ_k g_k | ρ | has no steps |
| FedAvg, FedProx, FedOpt, FedBN | Σ ρ_k Δ_k | ρ | yes: K_k is in no coefficient |
| SCAFFOLD, option II | Σ ρ_k Δ_k; Σ ρ_k Δc_k is derived | ρ | refused: ρ and ρ/K_k would be two |
| SCAFFOLD, option I | Σ ρ_k Δ_k and Σ ρ_k (∇F_k(x) − c_k) | ρ on both | refused likewise |
| FedNova | Σ (ρ_k / a_k) Δ_k | ρ/a, public | refused: a_k are the plan's |
| q-FedAvg | Σ ρ_k F_k^q L Δ_k, and a scalar | ρ F^q, hidden | yes |
| AFL | Σ w_k Δ_k, Σ w_k | w, hidden | yes |

ρ is all ones, public classes, or (hidden) n_k / n_cap, whose sum is released too. FedNova with
hidden ρ is refused: Σ n_k and Σ n_k a_k with public a_k are two functionals of the n_k.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from fl.ports import FloatVector, NamedTensors
from fl.state import MODEL, State, model_of
from fl.update import TensorLayout, summed

UPDATE: Final = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a round of an algorithm takes.

    Attributes:
        segments: names of the bulk segments, each of length d.
        scalars: names of the real numbers that are summed beside them, exactly.
        most: no silo's number is beyond this by size; None: as many as the ring holds.
        trains: whether a silo takes local steps.
        gradient: whether it computes the full-batch gradient at the received model.
        loss: whether it computes its mean loss there.
        has_variate: whether it keeps a control variate that the server's c counts on.
        keeps: whether it keeps any vector between rounds.
    """

    segments: tuple[str, ...] = (UPDATE,)
    scalars: tuple[str, ...] = ()
    most: float | None = None
    trains: bool = True
    gradient: bool = False
    loss: bool = False
    has_variate: bool = False
    keeps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalWork:
    """What a silo has in hand when it decides what to upload.

    Attributes:
        state: as received.
        start: the received model x, flat.
        after: y_k after the local steps; x without them.
        steps: K_k.
        gradient: of the mean loss over all examples at x, if the traits ask for it.
        loss: the mean loss at x, likewise.
        kept: what the silo keeps, None for nothing yet (zero).
    """

    state: NamedTensors
    start: FloatVector
    after: FloatVector
    steps: int
    gradient: FloatVector | None = None
    loss: float | None = None
    kept: FloatVector | None = None

    @property
    def change(self) -> FloatVector:
        """Return Δ_k = y_k − x."""
        return self.after - self.start


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """What the secure sum released of one training round.

    Attributes:
        segments: name to Σ ρ_k · part_k, shape (d,), float64.
        scalars: name to Σ ρ_k · number_k.
        weight: Σ ρ_k over the survivors, above 0.
        survivors: |S|.
        enrolled: N after the round.
        number: the round's.
        shares: (silo name, ρ_k) of each survivor by seat, where the ρ_k are public.
    """

    segments: Mapping[str, FloatVector]
    weight: float
    survivors: int
    enrolled: int
    number: int = 1
    scalars: Mapping[str, float] = field(default_factory=dict)
    shares: tuple[tuple[str, float], ...] = ()

    def mean(self, name: str) -> FloatVector:
        """Return the survivors' weighted mean of a segment."""
        return self.segments[name] / self.weight


class Algorithm(Protocol):
    """One federated algorithm. Objects hold settings of the plan only, never a round's state."""

    def traits(self, number: int) -> Traits:
        """Return what round `number` takes."""
        ...

    def initial_state(self, size: int) -> State:
        """Return what the algorithm adds to the state of a run whose model has d = `size`."""
        ...

    def correction(self, state: NamedTensors, kept: FloatVector | None) -> FloatVector | None:
        """Return what is added to each local gradient, None for nothing."""
        ...

    def parts(self, work: LocalWork) -> dict[str, FloatVector]:
        """Return what is uploaded, before the silo's weight: segments (d,) and scalars (1,)."""
        ...

    def next_kept(self, sent: Mapping[str, FloatVector], work: LocalWork) -> FloatVector | None:
        """Return what the silo keeps if it survives, None if it keeps nothing.

        Args:
            sent: what the silo's *integers* say it uploaded, its weight divided out; a float
                that was not sent would leave c ≠ mean c_k for good (protocol.md 2.3).
            work: as for `parts`.
        """
        ...

    def apply(self, state: NamedTensors, sums: Sums) -> State:
        """Return the tensors that the server's step changes, under their names in the state."""
        ...


def moved_model(state: NamedTensors, step: FloatVector, rate: float) -> State:
    """Return the model moved by `rate` times a flat step, each tensor rounded once to its dtype.

    Raises:
        NonFiniteUpdateError: the moved model would not be finite.
    """
    floating = summed(model_of(state))
    moved = TensorLayout.of(floating).add(floating, step, rate)
    return {MODEL + name: tensor for name, tensor in moved.items()}

"""What a silo keeps of a run between rounds, provisional until it knows that it was counted in.

A contribution implies what the silo keeps next (a control variate, personal layers, what it could
not send). That is pending until the silo is known to be a survivor: by the round's result, or,
where it was gone when the result came, by the state's record of each seat's last round. If record
and memory tell different stories a control variate is lost, and the silo says so instead of
starting at zero (SCA-10).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fl.errors import LeftRunError, RunStateError, VariateLostError
from fl.ports import FloatVector, SiloMemory
from fl.state import State, decode_state, encode_state
from secagg.canonical import decode, encode, read_u64, u64
from secagg.chain import Standpoint
from secagg.ids import RunId
from secagg.messages import MAX_STATE_BYTES
from secagg.rng import Rng

KEPT: Final = "kept"  # what the algorithm keeps: c_k, or AFL's log-weight
PERSONAL: Final = "personal"  # parameters that stay at the silo, flat
ERROR: Final = "error/"  # by segment, what compression did not send
SEEN: Final = "seen"  # the model that the silo trained on, flat
MOVED: Final = "moved"  # and how far its own steps led from it, float64, shape ()
LEFT: Final = "left"  # present: the silo left the run in this round

_PENDING: Final = "pending"
_SETTLED: Final = "settled"
_NEXT: Final = "next"
_LEAVING: Final = "leaving"
_GONE: Final = "gone"
_SUMS: Final = "sums"
_TOTAL: Final = "total/"  # and a column's name
_SECRET: Final = "secret"  # noqa: S105 (an entry's name)
_SECRET_BYTES: Final = 32
# An entry's round stands before its tensors, so that it can be asked for without reading them.
_ROUND_BYTES: Final = 8
# What is kept for all of a silo's runs lies under this id; a run with it keeps nothing there.
_ALL_RUNS: Final = RunId(bytes(16))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kept:
    """What was kept of one round.

    Attributes:
        round: its number, 0 for none.
        tensors: by the names above.
    """

    round: int
    tensors: State

    def vector(self, name: str) -> FloatVector | None:
        """Return a flat vector, None where there is none."""
        tensor = self.tensors.get(name)
        return None if tensor is None else tensor.astype(np.float64, copy=False)


class RunMemory:
    """One run's entries in a silo's memory.

    Args:
        memory: the silo's disk. Names start with the run's id.
        run: the run.
    """

    def __init__(self, memory: SiloMemory, run: RunId) -> None:
        self._memory = memory
        self._run = run

    def secret(self, rng: Rng) -> bytes:
        """Return the run's rounding secret, drawn at the first use."""
        stored = self._read(_SECRET)
        if stored is None:
            stored = rng.bytes(_SECRET_BYTES)
            self._write({_SECRET: stored})
        return stored

    def standpoint(self) -> Standpoint | None:
        """Return where the silo left the run, None if it has settled no round of it."""
        stored = self._read(_NEXT)
        if stored is None:
            return None
        following, state_hash = decode(stored, "next-state", max_bytes=1024, fields=2)
        return Standpoint(round=read_u64(following) - 1, model_hash=state_hash)

    @property
    def is_leaving(self) -> bool:
        """Whether the silo's next contribution is its last."""
        return self._read(_LEAVING) is not None

    def leave(self) -> None:
        """Make the next contribution that counts the silo's last."""
        self._write({_LEAVING: b"1"})

    def require_member(self) -> None:
        """Raise LeftRunError if the silo's last contribution has counted."""
        if self._read(_GONE) is not None:
            raise LeftRunError(
                "this silo has left the run: an operator may dismiss it, and admit it again"
            )

    def come_back(self) -> None:
        """Let a silo that has left contribute again, as one that joins."""
        self._write({_GONE: None})

    def settled(self) -> Kept:
        """Return what the last round that counted left."""
        return self._kept(_SETTLED)

    def reconciled(self, counted: int | None, *, strict: bool) -> Kept:
        """Return what is kept, after comparing with the state's record of this seat.

        Args:
            counted: the last round in which the run counted this silo; None if it never met it,
                or dropped it in a refresh.
            strict: whether the run counts on what is kept.

        Raises:
            VariateLostError: it does, and this memory does not hold it.
        """
        settled = self.settled()
        if settled.round == counted:
            return settled
        if counted and _round_of(self._read(_PENDING)) == counted:
            # The result of that round never reached this silo, but the run counted it in.
            self._write(self._promotion(counted))
            return self.settled()
        if counted is None:
            left = {name: t for name, t in settled.tensors.items() if name not in (KEPT, LEFT)}
            return Kept(round=0, tensors=left)
        if strict:
            raise VariateLostError(
                f"the run counts on this silo's control variate of round {counted}, its memory "
                f"holds that of round {settled.round}; a refresh round renews all variates, or "
                "restore the silo's state directory of that time"
            )
        return settled

    def keep_pending(self, number: int, tensors: State) -> None:
        """Remember what a contribution implies, until its fate is known."""
        self._write({_PENDING: u64(number) + encode_state(tensors)})

    def keep_sums(self, sums: bytes) -> None:
        """Remember a statistics run's checked sums, from which its next one follows."""
        self._write({_SUMS: sums})

    def sums(self) -> bytes | None:
        """Return what `keep_sums` was given last, if anything."""
        return self._read(_SUMS)

    def total(self, column: str) -> bytes | None:
        """Return the digest of the total that this silo measured itself against, in any run."""
        return self._memory.read(f"{_ALL_RUNS}/{_TOTAL}{column}")

    def keep_totals(self, totals: Mapping[str, bytes]) -> None:
        """Remember a digest for each of these columns, for all runs to come."""
        self._memory.write({f"{_ALL_RUNS}/{_TOTAL}{name}": one for name, one in totals.items()})

    def settle(self, number: int, following: bytes | None, *, keeps: bool) -> None:
        """Note a round's end, in one write; an earlier round's takes nothing back.

        Args:
            number: of the round.
            following: model hash of the next round's state, None after the last.
            keeps: whether the silo survived and keeps something.

        Raises:
            RunStateError: it survived, but remembers no contribution.
        """
        writes: dict[str, bytes | None] = {}
        # A result that was withheld until now takes back nothing that a later one requires, and
        # what is signed of a round (secagg.messages.Settled) is said once.
        known = self.standpoint()
        if following is not None and (known is None or number > known.round):
            writes[_NEXT] = encode("next-state", u64(number + 1), following)
        if keeps:
            writes.update(self._promotion(number))
        self._write(writes)

    def _promotion(self, number: int) -> dict[str, bytes | None]:
        """Return the writes that make what is pending of round `number` the settled."""
        if _round_of(self._read(_SETTLED)) == number:
            return {}  # the result came again, as after a crash just behind the first time
        pending = self._read(_PENDING)
        if _round_of(pending) != number:
            raise RunStateError(
                f"this silo is a survivor of round {number} but remembers no contribution to it"
            )
        writes: dict[str, bytes | None] = {_SETTLED: pending, _PENDING: None}
        if self.is_leaving and LEFT in self._kept(_PENDING).tensors:
            writes |= {_LEAVING: None, _GONE: b"1"}
        return writes

    def _kept(self, name: str) -> Kept:
        stored = self._read(name)
        if stored is None:
            return Kept(round=0, tensors={})
        tensors = decode_state(stored[_ROUND_BYTES:], MAX_STATE_BYTES)
        return Kept(round=_round_of(stored), tensors=tensors)

    def _read(self, name: str) -> bytes | None:
        return self._memory.read(f"{self._run}/{name}")

    def _write(self, values: Mapping[str, bytes | None]) -> None:
        self._memory.write({f"{self._run}/{name}": value for name, value in values.items()})


def _round_of(stored: bytes | None) -> int:
    """Return the round of an entry, 0 for none."""
    return 0 if stored is None else read_u64(stored[:_ROUND_BYTES])

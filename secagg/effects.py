"""What a round asks its driver to do, as values.

A driver carries effects out in order. A `Persist` is on disk before any effect after it leaves
the process: that is the journal, and with it a crash never makes a silo say two things.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from secagg.blame import Suspect
from secagg.journal import JournalRecord
from secagg.messages import ServerMessage, SiloMessage
from secagg.parameters import RoundParameters
from secagg.ring import IntVector


class AbortReason(StrEnum):
    """Why an attempt ended without a sum, where nobody is to blame or the blame is in `detail`."""

    TOO_FEW_ADVERTISED = "too few silos advertised keys"
    TOO_FEW_SHARED = "too few silos shared keys"
    TOO_FEW_MASKED = "too few silos sent a masked vector"
    TOO_FEW_SIGNED = "too few silos signed the survivors"
    TOO_FEW_OPENED = "too few silos opened their shares"
    TOO_FEW_ORGANIZATIONS = "too few organizations"
    COMPLAINT = "a silo could not use the share it was dealt"
    REPEAT = "a silo's earlier survivors differ from this attempt's"
    BAD_DEALER = "a silo dealt shares of another secret than it committed to"
    OUT_OF_RANGE = "the sum lies outside the range that its silos can reach"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """The opened sum.

    Attributes:
        values: per data segment the exact integer sum over the survivors, shape (length,), int64.
        survivors: whose vectors are in it, sorted seats.
        cohort: U1, the silos that advertised keys.
        parameters: of the attempt.
        state_hash: digest of the state it was computed on.
        public_coins: the attempt's, as `transcript.public_coins` gives them.
    """

    values: Mapping[str, IntVector]
    survivors: tuple[int, ...]
    cohort: tuple[int, ...]
    parameters: RoundParameters
    state_hash: bytes
    public_coins: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Write this record durably before going on (silo)."""

    record: JournalRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send to the server; the message's attachments are in the store (silo)."""

    message: SiloMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWanted:
    """The state is in the store and accepted: train, then call `contribute` or `go_late`."""

    parameters: RoundParameters
    state_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """Send one message to several silos (server)."""

    seats: tuple[int, ...]
    message: ServerMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTo:
    """Send to one silo (server)."""

    seat: int
    message: ServerMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineSet:
    """Call `expire` at this time, in the driver's monotonic seconds; None: no deadline."""

    at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseWanted:
    """All shares are here: settle the ledger, then call `open` to read the sum (server)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The sum is open and, at a silo, checked."""

    aggregate: Aggregate


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """The attempt is over without a sum.

    Attributes:
        missing: seats that were awaited and did not come.
        suspects: whom the round's next attempt does without (server).
    """

    reason: AbortReason
    detail: str = ""
    missing: tuple[int, ...] = ()
    suspects: tuple[Suspect, ...] = ()


SiloEffect: TypeAlias = Persist | Send | TrainingWanted | Finished | Aborted
ServerEffect: TypeAlias = Broadcast | SendTo | DeadlineSet | ReleaseWanted | Finished | Aborted

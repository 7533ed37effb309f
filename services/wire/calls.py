"""The calls' vocabulary: what a caller says and hears, as frozen values without protobuf.

Values here are checked when they are made, on both sides of the wire, so that an impossible one
cannot reach a driver. Times are seconds; the wire's milliseconds end in `convert`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from secagg.ids import RunId
from services.errors import InvalidRequestError, TooLargeError

PROTOCOL_VERSION: Final = "SA1"
# Chunks stay well below gRPC's default limit of 4 MiB a message, whatever a model's size.
CHUNK_BYTES: Final = 1024 * 1024
MESSAGE_BYTES: Final = 3 * 1024 * 1024
CONFIG_BYTES: Final = 1024 * 1024
WAIT_S: Final = 30.0
_MAX_REASON: Final = 4096
_MAX_NAME: Final = 512  # 128 characters, as run.toml allows
_VECTOR_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)


class Phase(StrEnum):
    """Where a round stands, named after the message that is awaited."""

    ADVERTISE = "advertise"
    SHARE = "share"
    MASK = "mask"
    SURVIVORS = "survivors"
    UNMASK = "unmask"
    CLOSED = "closed"
    ABORTED = "aborted"


class RunState(StrEnum):
    """Where a run stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    BUDGET_EXHAUSTED = "budget_exhausted"

    @property
    def is_final(self) -> bool:
        """Whether no further round will come."""
        return self not in {RunState.WAITING, RunState.RUNNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorId:
    """Names one long vector of a run, round and attempt."""

    run: RunId
    round: int
    attempt: int
    name: str

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit the wire and names that could become a path."""
        _require_within("round", self.round, 2**64 - 1)
        _require_within("attempt", self.attempt, 2**32 - 1)
        if _VECTOR_NAME.fullmatch(self.name) is None:
            raise InvalidRequestError(
                "expected a vector name of 1 to 64 lowercase letters, digits, dots, underscores or "
                f"hyphens that starts with a letter or digit, got {self.name!r}"
            )

    def __str__(self) -> str:
        """Return run, round, attempt and name, for people."""
        return f"{self.run}/{self.round}/{self.attempt}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorReference:
    """Announces a vector of `chunks` pieces and `nbytes` bytes."""

    vector: VectorId
    chunks: int
    nbytes: int

    def __post_init__(self) -> None:
        """Refuse counts that cannot fit together."""
        _require_within("chunk count", self.chunks, 2**32 - 1, least=1)
        if not self.chunks <= self.nbytes <= self.chunks * CHUNK_BYTES:
            raise InvalidRequestError(
                f"vector {self.vector}: {self.nbytes} bytes do not fit {self.chunks} chunks of 1 "
                f"to {CHUNK_BYTES} bytes"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One piece of a vector."""

    vector: VectorId
    index: int
    count: int
    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse an index beyond the count and a size beyond the limit."""
        _require_within("chunk count", self.count, 2**32 - 1, least=1)
        _require_within("chunk index", self.index, self.count - 1)
        _require_size("a chunk", self.data, CHUNK_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPosition:
    """The last round of a run that a silo has committed, with its state's digest (32 bytes)."""

    run: RunId
    round: int
    state_digest: bytes

    def __post_init__(self) -> None:
        """Refuse another length."""
        _require_within("round", self.round, 2**64 - 1)
        _require_length("state digest", self.state_digest, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first words of either side.

    Attributes:
        roster_digest: 32 bytes.
        incarnation: 16 random bytes of this process; empty from one that only looks.
        positions: a silo's committed rounds, one a run; a coordinator sends none.
        predecessors: the incarnations that held a silo's storage before; none of them lives.
        signed_roster: a coordinator's newer roster in canonical bytes; empty otherwise.
    """

    protocol_version: str
    software_version: str
    roster_version: int
    roster_digest: bytes
    incarnation: bytes
    positions: tuple[RunPosition, ...] = ()
    predecessors: tuple[bytes, ...] = ()
    signed_roster: bytes = b""

    def __post_init__(self) -> None:
        """Refuse other lengths."""
        _require_short("protocol version", self.protocol_version, 16)
        _require_short("software version", self.software_version, 64)
        _require_within("roster version", self.roster_version, 2**64 - 1, least=1)
        _require_length("roster digest", self.roster_digest, 32)
        if self.incarnation:
            _require_length("incarnation", self.incarnation, 16)
        _require_within("number of run positions", len(self.positions), 1024)
        _require_within("number of predecessors", len(self.predecessors), 16)
        for incarnation in self.predecessors:
            _require_length("incarnation of a predecessor", incarnation, 16)
        _require_within("size of the signed roster", len(self.signed_roster), MESSAGE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolEnvelope:
    """A protocol message for a silo, with the vectors to fetch before handling it."""

    run: RunId
    round: int
    attempt: int
    message: bytes = field(repr=False)
    vectors: tuple[VectorReference, ...] = ()

    def __post_init__(self) -> None:
        """Refuse sizes beyond the limit."""
        _require_within("round", self.round, 2**64 - 1)
        _require_within("attempt", self.attempt, 2**32 - 1)
        _require_size("a protocol message", self.message, MESSAGE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedEnvelope:
    """Tells a silo that a run is over; `round` is the last complete one, `name` the operator's."""

    run: RunId
    state: RunState
    reason: str
    round: int
    name: str

    def __post_init__(self) -> None:
        """Refuse a state that is not final."""
        _require_within("round", self.round, 2**64 - 1)
        _require_short("reason", self.reason, _MAX_REASON)
        _require_short("name", self.name, _MAX_NAME)
        if not self.state.is_final:
            raise InvalidRequestError(f"expected a final state, got {self.state.value!r}")


Envelope = ProtocolEnvelope | ClosedEnvelope


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCall:
    """Asks for the envelope after `after_sequence`, waiting at most `wait_s` seconds."""

    incarnation: bytes
    after_sequence: int
    wait_s: float

    def __post_init__(self) -> None:
        """Refuse a wait that would hold a connection too long."""
        _require_length("incarnation", self.incarnation, 16)
        _require_within("sequence", self.after_sequence, 2**64 - 1)
        _require_wait(self.wait_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextReply:
    """An envelope with its sequence number from 1, or sequence 0 and nothing yet."""

    sequence: int
    incarnation: bytes
    envelope: Envelope | None = None

    def __post_init__(self) -> None:
        """Refuse a number without an envelope and an envelope without a number."""
        _require_within("sequence", self.sequence, 2**64 - 1)
        _require_length("incarnation", self.incarnation, 16)
        if (self.sequence == 0) != (self.envelope is None):
            raise InvalidRequestError("expected a sequence number exactly if there is an envelope")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitCall:
    """Delivers a silo's protocol message in canonical bytes."""

    run: RunId
    round: int
    attempt: int
    message: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse sizes beyond the limit."""
        _require_within("round", self.round, 2**64 - 1)
        _require_within("attempt", self.attempt, 2**32 - 1)
        _require_size("a protocol message", self.message, MESSAGE_BYTES)


class MemberChange(StrEnum):
    """What becomes of a silo in a run that goes on; LOST is to dismiss it and to refresh."""

    ADMIT = "admit"
    DISMISS = "dismiss"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCall:
    """Starts a run from its TOML configuration, and from a model put before if one is named."""

    run: RunId
    config: bytes
    initial_state: VectorReference | None = None

    def __post_init__(self) -> None:
        """Refuse sizes beyond the limit."""
        _require_size("a run's configuration", self.config, CONFIG_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCost:
    """What one phase took: seconds, and payload bytes from and to all silos."""

    phase: Phase
    duration_s: float
    received_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """A complete round: who was in the sum, and why others were not, its figures and its costs."""

    round: int
    attempts: int
    kind: str
    survivors: tuple[int, ...]
    dropouts: tuple[int, ...]
    absent: tuple[int, ...]
    metrics: Mapping[str, float]
    costs: tuple[PhaseCost, ...]
    committed_unix_s: float
    reasons: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatStatus:
    """How one seat takes part, as the coordinator sees it."""

    seat: int
    silo: str
    organization: str
    connected: bool
    completed: Phase | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in one line."""

    run: RunId
    name: str
    algorithm: str
    state: RunState
    reason: str
    rounds_done: int
    rounds_total: int
    created_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run with everything a progress display needs; `deadline_s` is the time left."""

    summary: RunSummary
    round: int = 0
    attempt: int = 0
    phase: Phase | None = None
    deadline_s: float = 0.0
    seats: tuple[SeatStatus, ...] = ()
    rounds: tuple[RoundReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchReply:
    """A run's status at a revision."""

    revision: int
    status: RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowReply:
    """A run's status with the configuration it was started with."""

    status: RunStatus
    config: bytes


def _require_within(what: str, value: int, most: int, *, least: int = 0) -> None:
    if not least <= value <= most:
        raise InvalidRequestError(f"expected a {what} from {least} to {most}, got {value}")


def _require_length(what: str, value: bytes, length: int) -> None:
    if len(value) != length:
        raise InvalidRequestError(f"expected a {what} of {length} bytes, got {len(value)}")


def _require_short(what: str, value: str, most: int) -> None:
    if len(value.encode()) > most:
        raise TooLargeError(f"expected a {what} of at most {most} bytes, got {len(value.encode())}")


def _require_size(what: str, data: bytes, most: int) -> None:
    if not data:
        raise InvalidRequestError(f"expected {what} of 1 to {most} bytes, got an empty one")
    if len(data) > most:
        raise TooLargeError(f"expected {what} of at most {most} bytes, got {len(data)}")


def _require_wait(wait_s: float) -> None:
    if not 0 <= wait_s <= WAIT_S:
        raise InvalidRequestError(f"expected a wait from 0 to {WAIT_S:g} seconds, got {wait_s:g}")

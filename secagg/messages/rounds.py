"""Messages that open an attempt, give it its state, and end it early (SA1 spec 3.3: 0, 2'')."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from secagg import canonical
from secagg.codec import (
    DIGEST,
    FEDERATION,
    RUN,
    TEXT,
    U32,
    U64,
    Record,
    blob,
    listed,
    nested,
    optional,
)
from secagg.errors import ParameterError
from secagg.ids import AttemptId, FederationId, RunId
from secagg.messages.envelope import Attachment, SignedMessage
from secagg.messages.succession import Succession
from secagg.parameters import RoundParameters

MAX_PLAN_BYTES: Final = 1024 * 1024
STATE_CHUNK_BYTES: Final = 1024 * 1024
# A canonical field's length is a u32.
MAX_STATE_BYTES: Final = 2**32 - 1024
STATE: Final = "state"


def model_hash(kind: str, state: bytes) -> bytes:
    """Digest of a round's state: H("SA1/model", kind, state) (SA1 spec 3.2)."""
    if len(state) > MAX_STATE_BYTES:
        raise ParameterError(f"a state has at most {MAX_STATE_BYTES} bytes, got {len(state)}")
    return canonical.digest("model", canonical.text(kind), state)


def plan_hash(plan: bytes) -> bytes:
    """Digest of a training plan's document, as ctx names it."""
    return canonical.digest("plan", plan)


def state_chunks(nbytes: int) -> int:
    """How many pieces a state of this size is cut into."""
    return -(-nbytes // STATE_CHUNK_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon(SignedMessage):
    """ "I opened nothing in this attempt and never will, in whatever view of it." """  # noqa: D210, D415  # a quotation

    LABEL: ClassVar[str] = "abandon-message"
    SIGNED_LABEL: ClassVar[str] = "abandon"

    federation: Annotated[FederationId, FEDERATION]
    run: Annotated[RunId, RUN]
    round: Annotated[int, U64]
    attempt: Annotated[int, U32]
    seat: Annotated[int, U32]

    @property
    def attempt_id(self) -> AttemptId:
        """Which attempt is abandoned."""
        return AttemptId(run=self.run, round=self.round, attempt=self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(SignedMessage):
    """A silo's signed "no": which check failed, by its code, and what it expected."""

    LABEL: ClassVar[str] = "refusal-message"
    SIGNED_LABEL: ClassVar[str] = "refusal"

    ctx: Annotated[bytes, DIGEST]
    seat: Annotated[int, U32]
    code: Annotated[str, TEXT]
    reason: Annotated[str, TEXT]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOpen(SignedMessage):
    """The server opens an attempt (message 0).

    Attributes:
        plan: the training plan's document; ctx holds its digest.
        abandons: statements that make earlier attempts provably dead.
    """

    LABEL: ClassVar[str] = "open-message"

    parameters: Annotated[RoundParameters, nested(RoundParameters)]
    plan: Annotated[bytes, blob(MAX_PLAN_BYTES, "a training plan")]
    abandons: Annotated[tuple[Abandon, ...], listed(nested(Abandon))] = ()

    def signed_bytes(self) -> bytes:
        """The ctx: two different openings of one attempt are provable."""
        return canonical.encode("open", self.parameters.ctx())


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNotice(SignedMessage):
    """The state of the round, announced and signed; its bytes are attached (message 2'').

    Attributes:
        succession: silos' word on which round it follows, for those that cannot know.
    """

    LABEL: ClassVar[str] = "state-message"

    setup: Annotated[bytes, DIGEST]
    model_hash: Annotated[bytes, DIGEST]
    nbytes: Annotated[int, U64]
    succession: Annotated[Succession | None, optional(Succession)] = None

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The state's bytes in pieces of STATE_CHUNK_BYTES."""
        return (Attachment(name=STATE, chunks=state_chunks(self.nbytes), nbytes=self.nbytes),)

    def signed_bytes(self) -> bytes:
        """Setup and model hash."""
        return canonical.encode("state", self.setup, self.model_hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonRequest(Record):
    """The server asks for Abandon statements of an attempt that cannot finish."""

    LABEL: ClassVar[str] = "abandon-request"

    run: Annotated[RunId, RUN]
    round: Annotated[int, U64]
    attempt: Annotated[int, U32]

    @property
    def attempt_id(self) -> AttemptId:
        """Which attempt is meant."""
        return AttemptId(run=self.run, round=self.round, attempt=self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFailed(Record):
    """The server's notice that an attempt has ended without a sum, and why."""

    LABEL: ClassVar[str] = "round-failed"

    run: Annotated[RunId, RUN]
    round: Annotated[int, U64]
    attempt: Annotated[int, U32]
    reason: Annotated[str, TEXT]

    @property
    def attempt_id(self) -> AttemptId:
        """Which attempt has failed."""
        return AttemptId(run=self.run, round=self.round, attempt=self.attempt)

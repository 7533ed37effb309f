"""All messages as closed unions, and the one way to read one from a peer's bytes."""

from collections.abc import Callable
from typing import Final, TypeAlias

from secagg import canonical
from secagg.codec import MAX_RECORD_BYTES
from secagg.errors import MalformedMessageError, OversizeError, ParameterError
from secagg.messages.envelope import Attachment
from secagg.messages.recomputation import ChunkAnswer, ChunkRequest, Disclosure, RecomputeNonce
from secagg.messages.rounds import (
    Abandon,
    AbandonRequest,
    Refusal,
    RoundFailed,
    RoundOpen,
    StateNotice,
)
from secagg.messages.sharing import Advertise, Boxes, Complaint, Keys, Share
from secagg.messages.succession import Settled
from secagg.messages.sums import (
    Certificate,
    Late,
    MaskedInput,
    Result,
    Survivors,
    SurvivorsRequest,
    Unmask,
)

SignedSiloMessage: TypeAlias = (
    Advertise | Share | MaskedInput | Survivors | Unmask | Abandon | Complaint | Refusal
)
Statement: TypeAlias = SignedSiloMessage | Late
AuditorMessage: TypeAlias = RecomputeNonce | ChunkRequest
SiloMessage: TypeAlias = Statement | AuditorMessage
AuditMessage: TypeAlias = Disclosure | ChunkAnswer
RoundMessage: TypeAlias = (
    RoundOpen
    | Keys
    | Boxes
    | StateNotice
    | SurvivorsRequest
    | Certificate
    | Result
    | AbandonRequest
    | RoundFailed
)
ServerMessage: TypeAlias = RoundMessage | AuditMessage
# Settled is said between rounds: no attempt awaits it.
Message: TypeAlias = ServerMessage | SiloMessage | Settled
_DECODERS: Final[dict[str, Callable[[bytes], Message]]] = {
    kind.LABEL: kind.decode
    for kind in (
        *(RoundOpen, Keys, Boxes, StateNotice, SurvivorsRequest, Certificate, Result),
        *(AbandonRequest, RoundFailed, Advertise, Share, MaskedInput, Late, Survivors, Unmask),
        *(Abandon, Complaint, Refusal, RecomputeNonce, ChunkRequest, Disclosure, ChunkAnswer),
        Settled,
    )
}


def decode_message(data: bytes) -> Message:
    """Read one message from a peer's bytes.

    Raises:
        MalformedMessageError: not the canonical encoding of a known message.
        OversizeError: beyond the limit of a message or of a list in it.
    """
    if len(data) > MAX_RECORD_BYTES:
        raise OversizeError(f"a message has at most {MAX_RECORD_BYTES} bytes, got {len(data)}")
    decoder = _DECODERS.get(canonical.peek_label(data))
    if decoder is None:
        raise MalformedMessageError("expected a message of SA1, got another label")
    try:
        return decoder(data)
    except ParameterError as error:
        raise MalformedMessageError(f"a field is out of range: {error}") from error


def attachments(message: Message) -> tuple[Attachment, ...]:
    """The vectors that must be in the receiver's store before it gets this message."""
    if isinstance(message, StateNotice | MaskedInput | Result):
        return message.attachments
    return ()

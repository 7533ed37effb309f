"""Messages by which silos recompute a part of the sum after its result (SA1 spec 5.2)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from secagg.codec import DIGEST, SECRET, U32, Record, blob, fixed, listed, nested
from secagg.messages.envelope import SignedMessage
from secagg.messages.rounds import STATE_CHUNK_BYTES
from secagg.messages.sharing import ShareBox, share_root
from secagg.secretbytes import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeNonce(SignedMessage):
    """A silo's fresh nonce, sent after the signed sum: it decides who recomputes what."""

    LABEL: ClassVar[str] = "recompute-nonce-message"
    SIGNED_LABEL: ClassVar[str] = "recompute-nonce"

    binding: Annotated[bytes, DIGEST]
    root: Annotated[bytes, DIGEST]
    seat: Annotated[int, U32]
    nonce: Annotated[bytes, fixed(32, "a nonce")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRequest(Record):
    """A silo that recomputes wants to see a chunk of a survivor's upload, or of the sum (0)."""

    LABEL: ClassVar[str] = "chunk-request"

    binding: Annotated[bytes, DIGEST]
    seat: Annotated[int, U32]
    chunk: Annotated[int, U32]
    of: Annotated[int, U32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disclosed(Record):
    """The opened secret of a member of U2 and the parts of its share root.

    Attributes:
        secret: b_u of a survivor, a_u of a dropout.
    """

    LABEL: ClassVar[str] = "disclosed"

    seat: Annotated[int, U32]
    secret: Annotated[Secret, SECRET]
    commitment_b: Annotated[bytes, DIGEST]
    commitment_k: Annotated[bytes, DIGEST]
    boxes_root: Annotated[bytes, DIGEST]

    @property
    def root(self) -> bytes:
        """The dealer's share root."""
        return share_root(self.commitment_b, self.commitment_k, self.boxes_root)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairProof(Record):
    """In the hybrid suite, a box whose pair has lost one end, with its path."""

    LABEL: ClassVar[str] = "pair-proof"

    dealer: Annotated[int, U32]
    box: Annotated[ShareBox, nested(ShareBox)]
    path: Annotated[tuple[bytes, ...], listed(DIGEST, 32)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disclosure(Record):
    """To those who recompute: all nonces, and every secret that the openings rebuilt.

    Security: the secrets are those of one attempt that is over; they unmask its uploads up to
    the pairwise masks among survivors, as they did for the server (SA1 spec 5.2).
    """

    LABEL: ClassVar[str] = "disclosure-message"

    binding: Annotated[bytes, DIGEST]
    nonces: Annotated[tuple[RecomputeNonce, ...], listed(nested(RecomputeNonce))]
    opened: Annotated[tuple[Disclosed, ...], listed(nested(Disclosed))]
    pairs: Annotated[tuple[PairProof, ...], listed(nested(PairProof))] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkAnswer(Record):
    """A packed chunk of an upload, or of the sum (0), with its path under the signed root."""

    LABEL: ClassVar[str] = "chunk-answer"

    binding: Annotated[bytes, DIGEST]
    chunk: Annotated[int, U32]
    of: Annotated[int, U32]
    data: Annotated[bytes, blob(STATE_CHUNK_BYTES, "a chunk")]
    path: Annotated[tuple[bytes, ...], listed(DIGEST, 32)]

"""The frozen vocabulary of a round: what silos and server say to one another (SA1 spec 3.3).

Each message has one canonical encoding and, where it is signed, one `signed_bytes`; signatures
never cover anything but canonical bytes. Vectors longer than a chunk are not part of a message:
it names them as attachments, and the driver moves their chunks into the receiver's `VectorStore`
before it delivers the message.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, ClassVar, Final, TypeAlias, TypeVar

from secagg import canonical, hybrid
from secagg.codec import (
    DIGEST,
    FEDERATION,
    KEY,
    MAX_RECORD_BYTES,
    RUN,
    SEATS,
    SECRET,
    SIGNATURE,
    TEXT,
    U32,
    U64,
    Record,
    blob,
    choice,
    fixed,
    listed,
    nested,
    optional,
)
from secagg.errors import MalformedMessageError, OversizeError, ParameterError
from secagg.ids import AttemptId, FederationId, RunId
from secagg.keys import IdentityKey
from secagg.parameters import RoundParameters
from secagg.sealing import BOX_BYTES
from secagg.secretbytes import Secret

MAX_PLAN_BYTES: Final = 1024 * 1024
STATE_CHUNK_BYTES: Final = 1024 * 1024
# A canonical field's length is a u32.
MAX_STATE_BYTES: Final = 2**32 - 1024
STATE: Final = "state"
MASKED: Final = "masked"
SUM: Final = "sum"


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
class Attachment:
    """A vector that travels beside a message."""

    name: str
    chunks: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedMessage(Record):
    """A message with a signature over `signed_bytes`: by default, over all other fields."""

    SIGNED_LABEL: ClassVar[str]

    signature: Annotated[bytes, SIGNATURE] = b""

    def signed_bytes(self) -> bytes:
        """What is signed."""
        return canonical.encode(self.SIGNED_LABEL, *self.field_bytes(without=("signature",)))


M = TypeVar("M", bound=SignedMessage)


def signed(message: M, identity: IdentityKey) -> M:
    """The same message with this key's signature."""
    return replace(message, signature=identity.sign(message.signed_bytes()))


# --- silos to server --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KemKeys(Record):
    """The ML-KEM-768 public keys of the hybrid suite: for boxes, and for pairwise masks."""

    LABEL: ClassVar[str] = "kem-keys"

    box_key: Annotated[bytes, fixed(hybrid.PUBLIC_BYTES, "an ML-KEM key")]
    mask_key: Annotated[bytes, fixed(hybrid.PUBLIC_BYTES, "an ML-KEM key")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertise(SignedMessage):
    """A silo's fresh public keys for one attempt (message 1)."""

    LABEL: ClassVar[str] = "advertise-message"
    SIGNED_LABEL: ClassVar[str] = "adv"

    ctx: Annotated[bytes, DIGEST]
    nonce: Annotated[bytes, fixed(32, "a nonce")]
    enc_key: Annotated[bytes, KEY]
    mask_key: Annotated[bytes, KEY]
    kem: Annotated[KemKeys | None, optional(KemKeys)] = None
    seat: Annotated[int, U32]

    @property
    def public_keys(self) -> frozenset[bytes]:
        """All keys of this silo."""
        kem = {self.kem.box_key, self.kem.mask_key} if self.kem else set()
        return frozenset({self.enc_key, self.mask_key} | kem)


@dataclass(frozen=True, slots=True, kw_only=True)
class KemPair(Record):
    """What the lower seat of a pair encapsulates for the pair's masks, in the hybrid suite."""

    LABEL: ClassVar[str] = "kem-pair"

    ciphertext: Annotated[bytes, fixed(hybrid.CIPHERTEXT_BYTES, "an ML-KEM ciphertext")]
    escrow: Annotated[bytes, fixed(hybrid.ESCROW_BYTES, "an escrow")]
    commitment: Annotated[bytes, DIGEST]


@dataclass(frozen=True, slots=True, kw_only=True)
class KemBox(Record):
    """The hybrid suite's part of a box; `pair` only from a lower seat to a higher one."""

    LABEL: ClassVar[str] = "kem-box"

    ciphertext: Annotated[bytes, fixed(hybrid.CIPHERTEXT_BYTES, "an ML-KEM ciphertext")]
    pair: Annotated[KemPair | None, optional(KemPair)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBox(Record):
    """What a dealer sends to one holder: the sealed shares and the commitments to them.

    Its bytes are the leaf under the dealer's share root. The dealer's own entry has an empty
    box: it keeps its shares, but their commitments count.
    """

    LABEL: ClassVar[str] = "share-box"

    holder: Annotated[int, U32]
    box: Annotated[bytes, blob(4096, "a box")]
    commitment_a: Annotated[bytes, DIGEST]
    commitment_b: Annotated[bytes, DIGEST]
    kem: Annotated[KemBox | None, optional(KemBox)] = None

    def is_shaped(self, dealer: int, *, hybrid_suite: bool) -> bool:
        """Whether all parts are there, and no more, for a box of this dealer."""
        if dealer == self.holder:
            return self.box == b"" and self.kem is None
        if len(self.box) != BOX_BYTES or (self.kem is not None) != hybrid_suite:
            return False
        return self.kem is None or (self.kem.pair is not None) == (dealer < self.holder)


def share_root(commitment_b: bytes, commitment_k: bytes, boxes_root: bytes) -> bytes:
    """H("SA1/share-root", com_b, com_k, Merkle root over the boxes)."""
    return canonical.digest("share-root", commitment_b, commitment_k, boxes_root)


def share_signed_bytes(setup: bytes, seat: int, root: bytes) -> bytes:
    """What a dealer signs."""
    return canonical.encode("share", setup, canonical.u32(seat), root)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(SignedMessage):
    """A dealer's sealed shares for all of U1 (message 2); boxes sorted by holder."""

    LABEL: ClassVar[str] = "share-message"

    setup: Annotated[bytes, DIGEST]
    seat: Annotated[int, U32]
    commitment_b: Annotated[bytes, DIGEST]
    commitment_k: Annotated[bytes, DIGEST]
    boxes: Annotated[tuple[ShareBox, ...], listed(nested(ShareBox))]

    @property
    def boxes_root(self) -> bytes:
        """Merkle root over the boxes."""
        return canonical.merkle_root([box.encode() for box in self.boxes])

    @property
    def root(self) -> bytes:
        """share_root_u."""  # the spec's symbol
        return share_root(self.commitment_b, self.commitment_k, self.boxes_root)

    def signed_bytes(self) -> bytes:
        """The share root under setup: a holder gets one box and a path to what is signed."""
        return share_signed_bytes(self.setup, self.seat, self.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivorEntry(Record):
    """One upload as all silos of U2 must see it."""

    LABEL: ClassVar[str] = "survivor-entry"

    seat: Annotated[int, U32]
    root: Annotated[bytes, DIGEST]
    lengths: Annotated[tuple[int, ...], listed(U64, 512)]
    prior: Annotated[tuple[int, ...], SEATS]
    signature: Annotated[bytes, SIGNATURE]

    def body(self) -> bytes:
        """Canonical bytes without the signature; what survivors are hashed over."""
        return canonical.encode("survivor", *self.field_bytes(without=("signature",)))


def masked_signed_bytes(binding: bytes, entry: SurvivorEntry) -> bytes:
    """What a silo signs with its masked vector."""
    return canonical.encode("masked", binding, entry.body())


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedInput(SignedMessage):
    """A silo's masked vector: its root, and the earlier survivors it insists on (message 3)."""

    LABEL: ClassVar[str] = "masked-message"

    binding: Annotated[bytes, DIGEST]
    seat: Annotated[int, U32]
    root: Annotated[bytes, DIGEST]
    lengths: Annotated[tuple[int, ...], listed(U64, 512)]
    prior: Annotated[tuple[int, ...], SEATS] = ()
    chunks: Annotated[int, U32]
    nbytes: Annotated[int, U64]

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The masked vector."""
        return (Attachment(name=MASKED, chunks=self.chunks, nbytes=self.nbytes),)

    @property
    def entry(self) -> SurvivorEntry:
        """What the others learn of this upload."""
        return SurvivorEntry(
            seat=self.seat,
            root=self.root,
            lengths=self.lengths,
            prior=self.prior,
            signature=self.signature,
        )

    def signed_bytes(self) -> bytes:
        """Binding and entry; the sizes follow from ctx and are checked against it."""
        return masked_signed_bytes(self.binding, self.entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Late(Record):
    """ "I shall send no masked vector in this attempt; I go on as a helper." """  # noqa: D210, D415  # a quotation

    LABEL: ClassVar[str] = "late-message"

    setup: Annotated[bytes, DIGEST]
    seat: Annotated[int, U32]


def survivors_hash(entries: tuple[SurvivorEntry, ...]) -> bytes:
    """H(sorted U3 with roots and priors)."""
    return canonical.digest("survivors-list", *(entry.body() for entry in entries))


def survivors_signed_bytes(binding: bytes, survivors: bytes) -> bytes:
    """What a silo signs for a survivors' hash."""
    return canonical.encode("survivors", binding, survivors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivors(SignedMessage):
    """A silo's signature under the set of survivors, given once per attempt (message 4)."""

    LABEL: ClassVar[str] = "survivors-message"

    binding: Annotated[bytes, DIGEST]
    seat: Annotated[int, U32]
    survivors: Annotated[bytes, DIGEST]

    def signed_bytes(self) -> bytes:
        """Binding and survivors, the same for all who agree."""
        return survivors_signed_bytes(self.binding, self.survivors)


class ShareKind(StrEnum):
    """Which of a dealer's two secrets a share belongs to."""

    KEY = "a"  # the seed of the pairwise masks' key; opened for dropouts
    SELF = "b"  # the seed of the self mask; opened for survivors


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening(Record):
    """One revealed share of `dealer`'s secret, in the revealing silo's hands.

    Security: the share is a `Secret`; it prints as its length.
    """

    LABEL: ClassVar[str] = "opening"

    dealer: Annotated[int, U32]
    kind: Annotated[ShareKind, choice(ShareKind)]
    share: Annotated[Secret, SECRET]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmask(SignedMessage):
    """A silo's openings: of each survivor the self mask, of each dropout the key (message 5)."""

    LABEL: ClassVar[str] = "unmask-message"

    binding: Annotated[bytes, DIGEST]
    seat: Annotated[int, U32]
    openings: Annotated[tuple[Opening, ...], listed(nested(Opening))]

    def signed_bytes(self) -> bytes:
        """Binding, seat and the digest of the list."""
        listing = canonical.digest("openings", *(opening.encode() for opening in self.openings))
        return canonical.encode("unmask", self.binding, canonical.u32(self.seat), listing)


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
class Complaint(SignedMessage):
    """ "The box that `dealer` made for me cannot be used." Sent before any masked vector."""  # noqa: D210  # a quotation

    LABEL: ClassVar[str] = "complaint-message"
    SIGNED_LABEL: ClassVar[str] = "complaint"

    setup: Annotated[bytes, DIGEST]
    seat: Annotated[int, U32]
    dealer: Annotated[int, U32]
    reason: Annotated[str, TEXT]


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


# --- server to silos --------------------------------------------------------------------------


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
class Keys(Record):
    """All Advertise messages of U1, verbatim, sorted by seat (message 1')."""

    LABEL: ClassVar[str] = "keys-message"

    advertises: Annotated[tuple[Advertise, ...], listed(nested(Advertise))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(Record):
    """One dealer's box for the receiving silo, with the proof that the dealer signed it."""

    LABEL: ClassVar[str] = "delivery"

    dealer: Annotated[int, U32]
    box: Annotated[ShareBox, nested(ShareBox)]
    path: Annotated[tuple[bytes, ...], listed(DIGEST, 32)]
    boxes_root: Annotated[bytes, DIGEST]
    commitment_b: Annotated[bytes, DIGEST]
    commitment_k: Annotated[bytes, DIGEST]
    signature: Annotated[bytes, SIGNATURE]

    @property
    def root(self) -> bytes:
        """The dealer's share root."""
        return share_root(self.commitment_b, self.commitment_k, self.boxes_root)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistantRoot(Record):
    """The share root of a member of U2 that is no neighbor of the receiving silo."""

    LABEL: ClassVar[str] = "distant-root"

    dealer: Annotated[int, U32]
    root: Annotated[bytes, DIGEST]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes(Record):
    """U2 and, from each neighbor in it, the box for the receiving silo (message 2')."""

    LABEL: ClassVar[str] = "boxes-message"

    deliveries: Annotated[tuple[Delivery, ...], listed(nested(Delivery))]
    distant: Annotated[tuple[DistantRoot, ...], listed(nested(DistantRoot))] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNotice(SignedMessage):
    """The state of the round, announced and signed; its bytes are attached (message 2'')."""

    LABEL: ClassVar[str] = "state-message"

    setup: Annotated[bytes, DIGEST]
    model_hash: Annotated[bytes, DIGEST]
    nbytes: Annotated[int, U64]

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The state's bytes in pieces of STATE_CHUNK_BYTES."""
        return (Attachment(name=STATE, chunks=state_chunks(self.nbytes), nbytes=self.nbytes),)

    def signed_bytes(self) -> bytes:
        """Setup and model hash."""
        return canonical.encode("state", self.setup, self.model_hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivorsRequest(Record):
    """U3 with every upload's root, prior and signature, sorted by seat (message 3')."""

    LABEL: ClassVar[str] = "survivors-request"

    entries: Annotated[tuple[SurvivorEntry, ...], listed(nested(SurvivorEntry))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endorsement(Record):
    """One silo's signature under the survivors."""

    LABEL: ClassVar[str] = "endorsement"

    seat: Annotated[int, U32]
    signature: Annotated[bytes, SIGNATURE]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate(Record):
    """At least t signatures under one set of survivors (message 4')."""

    LABEL: ClassVar[str] = "certificate-message"

    endorsements: Annotated[tuple[Endorsement, ...], listed(nested(Endorsement))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(SignedMessage):
    """The sum's root, whose sum it is, and the certificate for that; the sum is attached (6)."""

    LABEL: ClassVar[str] = "result-message"

    binding: Annotated[bytes, DIGEST]
    entries: Annotated[tuple[SurvivorEntry, ...], listed(nested(SurvivorEntry))]
    endorsements: Annotated[tuple[Endorsement, ...], listed(nested(Endorsement))]
    root: Annotated[bytes, DIGEST]
    chunks: Annotated[int, U32]
    nbytes: Annotated[int, U64]
    transcript: Annotated[bytes, DIGEST] = bytes(32)

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The packed sum with its tags."""
        return (Attachment(name=SUM, chunks=self.chunks, nbytes=self.nbytes),)

    def signed_bytes(self) -> bytes:
        """Binding, survivors and the sum's root."""
        return canonical.encode("result", self.binding, survivors_hash(self.entries), self.root)


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
Message: TypeAlias = ServerMessage | SiloMessage

_DECODERS: Final[dict[str, Callable[[bytes], Message]]] = {
    kind.LABEL: kind.decode
    for kind in (
        *(RoundOpen, Keys, Boxes, StateNotice, SurvivorsRequest, Certificate, Result),
        *(AbandonRequest, RoundFailed, Advertise, Share, MaskedInput, Late, Survivors, Unmask),
        *(Abandon, Complaint, Refusal, RecomputeNonce, ChunkRequest, Disclosure, ChunkAnswer),
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

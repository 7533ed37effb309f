"""The frozen vocabulary of a round: what silos and server say to one another.

Each message has one canonical encoding (SA1 spec 3.1) and, where it is signed, one
`signed_bytes`. Signatures never cover anything but canonical bytes. Vectors longer than a chunk
are not part of a message: it names them as attachments, and the driver moves their chunks into
the receiver's `VectorStore` before it delivers the message.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Final, Protocol, Self, TypeAlias, TypeVar

from secagg import canonical
from secagg.errors import MalformedMessageError, OversizeError, ParameterError
from secagg.ids import AttemptId, FederationId, RunId
from secagg.keys import IdentityKey
from secagg.parameters import MAX_SILOS, RoundParameters
from secagg.secretbytes import Secret

# The largest message is Boxes: about 700 bytes a silo. Sixteen MiB leave room for ten thousand
# silos and for a training plan of one MiB; a peer's bytes are measured against it before parsing.
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
MAX_PLAN_BYTES: Final = 1024 * 1024
MAX_TEXT_BYTES: Final = 4096
STATE_CHUNK_BYTES: Final = 1024 * 1024
# A canonical field's length is a u32.
MAX_STATE_BYTES: Final = 2**32 - 1024
STATE: Final = "state"
MASKED: Final = "masked"
SUM: Final = "sum"

_DIGEST: Final = 32
_KEY: Final = 32
_SIGNATURE: Final = 64
_SHARE: Final = 33


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A vector that travels beside a message."""

    name: str
    chunks: int
    nbytes: int


class _SignedMessage(Protocol):
    """A frozen message with a `signature` field over its `signed_bytes`."""

    @property
    def signature(self) -> bytes: ...

    def signed_bytes(self) -> bytes: ...


_Signable = TypeVar("_Signable", bound=_SignedMessage)


def _fixed(value: bytes, length: int, what: str) -> bytes:
    if len(value) != length:
        raise MalformedMessageError(f"expected {length} bytes for {what}, got {len(value)}")
    return value


def _short_text(value: bytes) -> str:
    if len(value) > MAX_TEXT_BYTES:
        raise OversizeError(f"expected at most {MAX_TEXT_BYTES} bytes of text, got {len(value)}")
    return canonical.read_text(value)


def _fields(data: bytes, label: str, count: int) -> tuple[bytes, ...]:
    return canonical.decode(data, label, max_bytes=MAX_MESSAGE_BYTES, fields=count)


def _items(data: bytes) -> tuple[bytes, ...]:
    return canonical.decode_list(data, max_items=MAX_SILOS)


def replace_transcript(result: "Result", transcript: bytes) -> "Result":
    """The same result with its transcript digest, which covers all else but the signature."""
    return replace(result, transcript=transcript)


def signed(message: _Signable, identity: IdentityKey) -> _Signable:
    """The same message with this key's signature."""
    return replace(message, signature=identity.sign(message.signed_bytes()))


def encode_seats(seats: tuple[int, ...]) -> bytes:
    """Canonical bytes of a list of seats."""
    return canonical.encode_list([canonical.u32(seat) for seat in seats])


def decode_seats(data: bytes) -> tuple[int, ...]:
    """Inverse of `encode_seats`; the seats must be sorted and distinct."""
    seats = tuple(canonical.read_u32(item) for item in _items(data))
    if list(seats) != sorted(set(seats)):
        raise MalformedMessageError("expected sorted, distinct seats")
    return seats


def model_hash(kind: str, state: bytes) -> bytes:
    """Digest of a round's state: H("SA1/model", kind, state) (SA1 spec 3.2)."""
    if len(state) > MAX_STATE_BYTES:
        raise ParameterError(f"a state has at most {MAX_STATE_BYTES} bytes, got {len(state)}")
    return canonical.digest("model", canonical.text(kind), state)


def plan_hash(plan: bytes) -> bytes:
    """Digest of a training plan's document, as ctx names it."""
    return canonical.digest("plan", plan)


# --- statements that others relay -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """ "I opened nothing in this attempt and never will, in whatever view of it." """

    LABEL: ClassVar[str] = "abandon-message"

    federation: FederationId
    run: RunId
    round: int
    attempt: int
    seat: int
    signature: bytes = b""

    def signed_bytes(self) -> bytes:
        """What the silo signs."""
        return canonical.encode(
            "abandon",
            canonical.text(self.federation.name),
            self.run.value,
            canonical.u64(self.round),
            canonical.u32(self.attempt),
            canonical.u32(self.seat),
        )

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(self.LABEL, self.signed_bytes(), self.signature)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        body, signature = _fields(data, cls.LABEL, 2)
        federation, run, round_number, attempt, seat = _fields(body, "abandon", 5)
        return cls(
            federation=FederationId(_short_text(federation)),
            run=RunId(run),
            round=canonical.read_u64(round_number),
            attempt=canonical.read_u32(attempt),
            seat=canonical.read_u32(seat),
            signature=_fixed(signature, _SIGNATURE, "a signature"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertise:
    """A silo's fresh public keys for one attempt (message 1)."""

    LABEL: ClassVar[str] = "advertise-message"

    ctx: bytes
    seat: int
    nonce: bytes
    enc_key: bytes
    mask_key: bytes
    signature: bytes = b""

    def signed_bytes(self) -> bytes:
        """What the silo signs; its digest enters setup."""
        return canonical.encode(
            "adv", self.ctx, self.nonce, self.enc_key, self.mask_key, canonical.u32(self.seat)
        )

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(self.LABEL, self.signed_bytes(), self.signature)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        body, signature = _fields(data, cls.LABEL, 2)
        ctx, nonce, enc_key, mask_key, seat = _fields(body, "adv", 5)
        return cls(
            ctx=_fixed(ctx, _DIGEST, "ctx"),
            seat=canonical.read_u32(seat),
            nonce=_fixed(nonce, 32, "a nonce"),
            enc_key=_fixed(enc_key, _KEY, "a key"),
            mask_key=_fixed(mask_key, _KEY, "a key"),
            signature=_fixed(signature, _SIGNATURE, "a signature"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBox:
    """What a dealer sends to one holder: the sealed shares and the commitments to them.

    The dealer's own entry has an empty box: it keeps its shares, but their commitments count.
    """

    holder: int
    box: bytes
    commitment_a: bytes
    commitment_b: bytes

    def encode(self) -> bytes:
        """Canonical bytes; also the Merkle leaf under the dealer's share root."""
        return canonical.encode(
            "share-box",
            canonical.u32(self.holder),
            self.box,
            self.commitment_a,
            self.commitment_b,
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        holder, box, commitment_a, commitment_b = _fields(data, "share-box", 4)
        return cls(
            holder=canonical.read_u32(holder),
            box=box,
            commitment_a=_fixed(commitment_a, _DIGEST, "a commitment"),
            commitment_b=_fixed(commitment_b, _DIGEST, "a commitment"),
        )


def share_root(commitment_b: bytes, commitment_k: bytes, boxes_root: bytes) -> bytes:
    """H("SA1/share-root", com_b, com_k, Merkle root over the boxes)."""
    return canonical.digest("share-root", commitment_b, commitment_k, boxes_root)


def share_signed_bytes(setup: bytes, seat: int, root: bytes) -> bytes:
    """What a dealer signs."""
    return canonical.encode("share", setup, canonical.u32(seat), root)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A dealer's sealed shares for all of U1 (message 2); boxes sorted by holder."""

    LABEL: ClassVar[str] = "share-message"

    setup: bytes
    seat: int
    commitment_b: bytes
    commitment_k: bytes
    boxes: tuple[ShareBox, ...]
    signature: bytes = b""

    @property
    def boxes_root(self) -> bytes:
        """Merkle root over the boxes."""
        return canonical.merkle_root([box.encode() for box in self.boxes])

    @property
    def root(self) -> bytes:
        """share_root_u."""
        return share_root(self.commitment_b, self.commitment_k, self.boxes_root)

    def signed_bytes(self) -> bytes:
        """What the dealer signs."""
        return share_signed_bytes(self.setup, self.seat, self.root)

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            self.LABEL,
            self.setup,
            canonical.u32(self.seat),
            self.commitment_b,
            self.commitment_k,
            canonical.encode_list([box.encode() for box in self.boxes]),
            self.signature,
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        setup, seat, commitment_b, commitment_k, boxes, signature = _fields(data, cls.LABEL, 6)
        return cls(
            setup=_fixed(setup, _DIGEST, "setup"),
            seat=canonical.read_u32(seat),
            commitment_b=_fixed(commitment_b, _DIGEST, "a commitment"),
            commitment_k=_fixed(commitment_k, _DIGEST, "a commitment"),
            boxes=tuple(ShareBox.decode(item) for item in _items(boxes)),
            signature=_fixed(signature, _SIGNATURE, "a signature"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedInput:
    """A silo's masked vector: its root, and the earlier survivors it insists on (message 3)."""

    LABEL: ClassVar[str] = "masked-message"

    binding: bytes
    seat: int
    root: bytes
    lengths: tuple[int, ...]
    chunks: int
    nbytes: int
    prior: tuple[int, ...] = ()
    signature: bytes = b""

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The masked vector."""
        return (Attachment(name=MASKED, chunks=self.chunks, nbytes=self.nbytes),)

    def signed_bytes(self) -> bytes:
        """What the silo signs."""
        return masked_signed_bytes(self.binding, self.entry)

    @property
    def entry(self) -> "SurvivorEntry":
        """What the others learn of this upload."""
        return SurvivorEntry(
            seat=self.seat,
            root=self.root,
            lengths=self.lengths,
            prior=self.prior,
            signature=self.signature,
        )

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            self.LABEL,
            self.binding,
            self.entry.encode(),
            canonical.u32(self.chunks),
            canonical.u64(self.nbytes),
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        binding, entry_bytes, chunks, nbytes = _fields(data, cls.LABEL, 4)
        entry = SurvivorEntry.decode(entry_bytes)
        return cls(
            binding=_fixed(binding, _DIGEST, "binding"),
            seat=entry.seat,
            root=entry.root,
            lengths=entry.lengths,
            prior=entry.prior,
            chunks=canonical.read_u32(chunks),
            nbytes=canonical.read_u64(nbytes),
            signature=entry.signature,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivorEntry:
    """One survivor's upload as all others must see it."""

    seat: int
    root: bytes
    lengths: tuple[int, ...]
    prior: tuple[int, ...]
    signature: bytes

    def body(self) -> bytes:
        """Canonical bytes without the signature; what survivors are hashed over."""
        return canonical.encode(
            "survivor",
            canonical.u32(self.seat),
            self.root,
            canonical.encode_list([canonical.u64(length) for length in self.lengths]),
            encode_seats(self.prior),
        )

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode("survivor-entry", self.body(), self.signature)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        body, signature = _fields(data, "survivor-entry", 2)
        seat, root, lengths, prior = _fields(body, "survivor", 4)
        return cls(
            seat=canonical.read_u32(seat),
            root=_fixed(root, _DIGEST, "a root"),
            lengths=tuple(
                canonical.read_u64(item) for item in canonical.decode_list(lengths, max_items=512)
            ),
            prior=decode_seats(prior),
            signature=_fixed(signature, _SIGNATURE, "a signature"),
        )


def masked_signed_bytes(binding: bytes, entry: SurvivorEntry) -> bytes:
    """What a silo signs with its masked vector."""
    return canonical.encode("masked", binding, entry.body())


def survivors_hash(entries: tuple[SurvivorEntry, ...]) -> bytes:
    """H(sorted U3 with roots and priors)."""
    return canonical.digest("survivors-list", *(entry.body() for entry in entries))


def survivors_signed_bytes(binding: bytes, survivors: bytes) -> bytes:
    """What a silo signs for a survivors' hash."""
    return canonical.encode("survivors", binding, survivors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivors:
    """A silo's signature under the set of survivors, given once per attempt (message 4)."""

    LABEL: ClassVar[str] = "survivors-message"

    binding: bytes
    seat: int
    survivors: bytes
    signature: bytes = b""

    def signed_bytes(self) -> bytes:
        """What the silo signs."""
        return survivors_signed_bytes(self.binding, self.survivors)

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            self.LABEL, self.binding, canonical.u32(self.seat), self.survivors, self.signature
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        binding, seat, survivors, signature = _fields(data, cls.LABEL, 4)
        return cls(
            binding=_fixed(binding, _DIGEST, "binding"),
            seat=canonical.read_u32(seat),
            survivors=_fixed(survivors, _DIGEST, "a digest"),
            signature=_fixed(signature, _SIGNATURE, "a signature"),
        )


class ShareKind(StrEnum):
    """Which of a dealer's two secrets a share belongs to."""

    KEY = "a"  # the seed of the pairwise masks' key; opened for dropouts
    SELF = "b"  # the seed of the self mask; opened for survivors


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """One revealed share: of `dealer`'s secret, in the revealing silo's hands.

    Security: the share itself is a `Secret`; it prints as its length.
    """

    dealer: int
    kind: ShareKind
    share: Secret

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            "opening",
            canonical.u32(self.dealer),
            canonical.text(self.kind.value),
            self.share.reveal(),
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        dealer, kind, share = _fields(data, "opening", 3)
        word = canonical.read_text(kind)
        if word not in {known.value for known in ShareKind}:
            raise MalformedMessageError("expected a share of kind a or b")
        return cls(
            dealer=canonical.read_u32(dealer),
            kind=ShareKind(word),
            share=Secret(_fixed(share, _SHARE, "a share")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmask:
    """A silo's openings: of each survivor the self mask, of each dropout the key (message 5)."""

    LABEL: ClassVar[str] = "unmask-message"

    binding: bytes
    seat: int
    openings: tuple[Opening, ...]
    signature: bytes = b""

    def signed_bytes(self) -> bytes:
        """What the silo signs."""
        listed = canonical.digest("openings", *(opening.encode() for opening in self.openings))
        return canonical.encode("unmask", self.binding, canonical.u32(self.seat), listed)

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            self.LABEL,
            self.binding,
            canonical.u32(self.seat),
            canonical.encode_list([opening.encode() for opening in self.openings]),
            self.signature,
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        binding, seat, openings, signature = _fields(data, cls.LABEL, 4)
        return cls(
            binding=_fixed(binding, _DIGEST, "binding"),
            seat=canonical.read_u32(seat),
            openings=tuple(Opening.decode(item) for item in _items(openings)),
            signature=_fixed(signature, _SIGNATURE, "a signature"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """ "I shall send no masked vector in this attempt; I go on as a helper." """

    LABEL: ClassVar[str] = "late-message"

    setup: bytes
    seat: int

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(self.LABEL, self.setup, canonical.u32(self.seat))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        setup, seat = _fields(data, cls.LABEL, 2)
        return cls(setup=_fixed(setup, _DIGEST, "setup"), seat=canonical.read_u32(seat))


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """ "The box that `dealer` made for me cannot be used." Sent before any masked vector."""

    LABEL: ClassVar[str] = "complaint-message"

    setup: bytes
    seat: int
    dealer: int
    reason: str
    signature: bytes = b""

    def signed_bytes(self) -> bytes:
        """What the silo signs."""
        return canonical.encode(
            "complaint",
            self.setup,
            canonical.u32(self.seat),
            canonical.u32(self.dealer),
            canonical.text(self.reason),
        )

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(self.LABEL, self.signed_bytes(), self.signature)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        body, signature = _fields(data, cls.LABEL, 2)
        setup, seat, dealer, reason = _fields(body, "complaint", 4)
        return cls(
            setup=_fixed(setup, _DIGEST, "setup"),
            seat=canonical.read_u32(seat),
            dealer=canonical.read_u32(dealer),
            reason=_short_text(reason),
            signature=_fixed(signature, _SIGNATURE, "a signature"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A silo's signed "no": which check failed, by its code, and what it expected."""

    LABEL: ClassVar[str] = "refusal-message"

    ctx: bytes
    seat: int
    code: str
    reason: str
    signature: bytes = b""

    def signed_bytes(self) -> bytes:
        """What the silo signs."""
        return canonical.encode(
            "refusal",
            self.ctx,
            canonical.u32(self.seat),
            canonical.text(self.code),
            canonical.text(self.reason),
        )

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(self.LABEL, self.signed_bytes(), self.signature)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        body, signature = _fields(data, cls.LABEL, 2)
        ctx, seat, code, reason = _fields(body, "refusal", 4)
        return cls(
            ctx=_fixed(ctx, _DIGEST, "ctx"),
            seat=canonical.read_u32(seat),
            code=_short_text(code),
            reason=_short_text(reason),
            signature=_fixed(signature, _SIGNATURE, "a signature"),
        )


# --- server to silos --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOpen:
    """The server opens an attempt (message 0).

    Attributes:
        plan: the training plan's document; ctx holds its digest.
        abandons: statements that make earlier attempts provably dead.
    """

    LABEL: ClassVar[str] = "open-message"

    parameters: RoundParameters
    plan: bytes
    abandons: tuple[Abandon, ...] = ()
    signature: bytes = b""

    def signed_bytes(self) -> bytes:
        """What the server signs; it makes two different openings of one attempt provable."""
        return canonical.encode("open", self.parameters.ctx())

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            self.LABEL,
            self.parameters.encode(),
            self.plan,
            canonical.encode_list([abandon.encode() for abandon in self.abandons]),
            self.signature,
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        parameters, plan, abandons, signature = _fields(data, cls.LABEL, 4)
        if len(plan) > MAX_PLAN_BYTES:
            raise OversizeError(f"a training plan has at most {MAX_PLAN_BYTES} bytes")
        return cls(
            parameters=RoundParameters.decode(parameters),
            plan=plan,
            abandons=tuple(Abandon.decode(item) for item in _items(abandons)),
            signature=_fixed(signature, _SIGNATURE, "a signature"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """All Advertise messages of U1, verbatim, sorted by seat (message 1')."""

    LABEL: ClassVar[str] = "keys-message"

    advertises: tuple[Advertise, ...]

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            self.LABEL, canonical.encode_list([item.encode() for item in self.advertises])
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        (advertises,) = _fields(data, cls.LABEL, 1)
        return cls(advertises=tuple(Advertise.decode(item) for item in _items(advertises)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One dealer's box for the receiving silo, with the proof that the dealer signed it."""

    dealer: int
    box: ShareBox
    path: tuple[bytes, ...]
    boxes_root: bytes
    commitment_b: bytes
    commitment_k: bytes
    signature: bytes

    @property
    def root(self) -> bytes:
        """share_root of the dealer."""
        return share_root(self.commitment_b, self.commitment_k, self.boxes_root)

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            "delivery",
            canonical.u32(self.dealer),
            self.box.encode(),
            canonical.encode_list(self.path),
            self.boxes_root,
            self.commitment_b,
            self.commitment_k,
            self.signature,
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        dealer, box, path, boxes_root, commitment_b, commitment_k, signature = _fields(
            data, "delivery", 7
        )
        nodes = canonical.decode_list(path, max_items=32)
        return cls(
            dealer=canonical.read_u32(dealer),
            box=ShareBox.decode(box),
            path=tuple(_fixed(node, _DIGEST, "a Merkle node") for node in nodes),
            boxes_root=_fixed(boxes_root, _DIGEST, "a root"),
            commitment_b=_fixed(commitment_b, _DIGEST, "a commitment"),
            commitment_k=_fixed(commitment_k, _DIGEST, "a commitment"),
            signature=_fixed(signature, _SIGNATURE, "a signature"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """U2 and, from each of its members, the box for the receiving silo (message 2')."""

    LABEL: ClassVar[str] = "boxes-message"

    deliveries: tuple[Delivery, ...]

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            self.LABEL, canonical.encode_list([item.encode() for item in self.deliveries])
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        (deliveries,) = _fields(data, cls.LABEL, 1)
        return cls(deliveries=tuple(Delivery.decode(item) for item in _items(deliveries)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNotice:
    """The state of the round, announced and signed; its bytes are attached (message 2'')."""

    LABEL: ClassVar[str] = "state-message"

    setup: bytes
    model_hash: bytes
    nbytes: int
    signature: bytes = b""

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The state's bytes in pieces of STATE_CHUNK_BYTES."""
        return (
            Attachment(name=STATE, chunks=state_chunks(self.nbytes), nbytes=self.nbytes),
        )

    def signed_bytes(self) -> bytes:
        """What the server signs."""
        return canonical.encode("state", self.setup, self.model_hash)

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            self.LABEL, self.setup, self.model_hash, canonical.u64(self.nbytes), self.signature
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        setup, model, nbytes, signature = _fields(data, cls.LABEL, 4)
        return cls(
            setup=_fixed(setup, _DIGEST, "setup"),
            model_hash=_fixed(model, _DIGEST, "a model hash"),
            nbytes=canonical.read_u64(nbytes),
            signature=_fixed(signature, _SIGNATURE, "a signature"),
        )


def state_chunks(nbytes: int) -> int:
    """How many pieces a state of this size is cut into."""
    return -(-nbytes // STATE_CHUNK_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivorsRequest:
    """U3 with every upload's root, prior and signature, sorted by seat (message 3')."""

    LABEL: ClassVar[str] = "survivors-request"

    entries: tuple[SurvivorEntry, ...]

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            self.LABEL, canonical.encode_list([item.encode() for item in self.entries])
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        (entries,) = _fields(data, cls.LABEL, 1)
        return cls(entries=tuple(SurvivorEntry.decode(item) for item in _items(entries)))


def _encode_signatures(signatures: tuple[tuple[int, bytes], ...]) -> bytes:
    return canonical.encode_list(
        [canonical.encode("signed-by", canonical.u32(seat), sig) for seat, sig in signatures]
    )


def _decode_signatures(data: bytes) -> tuple[tuple[int, bytes], ...]:
    pairs = []
    for item in _items(data):
        seat, signature = _fields(item, "signed-by", 2)
        pairs.append((canonical.read_u32(seat), _fixed(signature, _SIGNATURE, "a signature")))
    return tuple(pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """At least t signatures under one set of survivors (message 4')."""

    LABEL: ClassVar[str] = "certificate-message"

    signatures: tuple[tuple[int, bytes], ...]

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(self.LABEL, _encode_signatures(self.signatures))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        (signatures,) = _fields(data, cls.LABEL, 1)
        return cls(signatures=_decode_signatures(signatures))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The sum's root, whose sum it is, and the certificate for that; the sum is attached (6)."""

    LABEL: ClassVar[str] = "result-message"

    binding: bytes
    entries: tuple[SurvivorEntry, ...]
    certificate: tuple[tuple[int, bytes], ...]
    root: bytes
    chunks: int
    nbytes: int
    transcript: bytes
    signature: bytes = b""

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The packed sum with its tags."""
        return (Attachment(name=SUM, chunks=self.chunks, nbytes=self.nbytes),)

    def signed_bytes(self) -> bytes:
        """What the server signs."""
        return canonical.encode("result", self.binding, survivors_hash(self.entries), self.root)

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            self.LABEL,
            self.binding,
            canonical.encode_list([item.encode() for item in self.entries]),
            _encode_signatures(self.certificate),
            self.root,
            canonical.u32(self.chunks),
            canonical.u64(self.nbytes),
            self.transcript,
            self.signature,
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        binding, entries, certificate, root, chunks, nbytes, transcript, signature = _fields(
            data, cls.LABEL, 8
        )
        return cls(
            binding=_fixed(binding, _DIGEST, "binding"),
            entries=tuple(SurvivorEntry.decode(item) for item in _items(entries)),
            certificate=_decode_signatures(certificate),
            root=_fixed(root, _DIGEST, "a root"),
            chunks=canonical.read_u32(chunks),
            nbytes=canonical.read_u64(nbytes),
            transcript=_fixed(transcript, _DIGEST, "a digest"),
            signature=_fixed(signature, _SIGNATURE, "a signature"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonRequest:
    """The server asks for Abandon statements of an attempt that cannot finish."""

    LABEL: ClassVar[str] = "abandon-request"

    run: RunId
    round: int
    attempt: int

    @property
    def attempt_id(self) -> AttemptId:
        """Which attempt is meant."""
        return AttemptId(run=self.run, round=self.round, attempt=self.attempt)

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            self.LABEL, self.run.value, canonical.u64(self.round), canonical.u32(self.attempt)
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        run, round_number, attempt = _fields(data, cls.LABEL, 3)
        return cls(
            run=RunId(run),
            round=canonical.read_u64(round_number),
            attempt=canonical.read_u32(attempt),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFailed:
    """The server's notice that an attempt has ended without a sum, and why."""

    LABEL: ClassVar[str] = "round-failed"

    run: RunId
    round: int
    attempt: int
    reason: str

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            self.LABEL,
            self.run.value,
            canonical.u64(self.round),
            canonical.u32(self.attempt),
            canonical.text(self.reason),
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        run, round_number, attempt, reason = _fields(data, cls.LABEL, 4)
        return cls(
            run=RunId(run),
            round=canonical.read_u64(round_number),
            attempt=canonical.read_u32(attempt),
            reason=_short_text(reason),
        )


ServerMessage: TypeAlias = (
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
SiloMessage: TypeAlias = (
    Advertise
    | Share
    | MaskedInput
    | Late
    | Survivors
    | Unmask
    | Abandon
    | Complaint
    | Refusal
)
SignedSiloMessage: TypeAlias = (
    Advertise | Share | MaskedInput | Survivors | Unmask | Abandon | Complaint | Refusal
)
Message: TypeAlias = ServerMessage | SiloMessage

_DECODERS: Final[dict[str, Callable[[bytes], Message]]] = {
    kind.LABEL: kind.decode
    for kind in (
        *(RoundOpen, Keys, Boxes, StateNotice, SurvivorsRequest, Certificate, Result),
        *(AbandonRequest, RoundFailed, Advertise, Share, MaskedInput, Late, Survivors, Unmask),
        *(Abandon, Complaint, Refusal),
    )
}


def decode_message(data: bytes) -> Message:
    """Read one message from a peer's bytes.

    Raises:
        MalformedMessageError: not the canonical encoding of a known message.
        OversizeError: beyond MAX_MESSAGE_BYTES or a list's limit.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise OversizeError(f"a message has at most {MAX_MESSAGE_BYTES} bytes, got {len(data)}")
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

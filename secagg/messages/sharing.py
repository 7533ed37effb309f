"""Messages by which keys and shares get around: Advertise to Boxes (SA1 spec 3.3: 1 to 2')."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from secagg import canonical, hybrid
from secagg.codec import (
    DIGEST,
    KEY,
    SIGNATURE,
    TEXT,
    U32,
    KeptRecord,
    Record,
    blob,
    fixed,
    listed,
    nested,
    optional,
)
from secagg.messages.envelope import SignedMessage
from secagg.sealing import BOX_BYTES


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
class Keys(Record):
    """All Advertise messages of U1, verbatim, sorted by seat (message 1')."""

    LABEL: ClassVar[str] = "keys-message"

    advertises: Annotated[tuple[Advertise, ...], listed(nested(Advertise))]


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
class ShareBox(KeptRecord):
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

    def tree(self) -> canonical.MerkleTree:
        """The Merkle tree over the boxes; a server keeps it, for all holders' paths."""
        return canonical.MerkleTree.of([box.encode() for box in self.boxes])

    def deliveries(self, tree: canonical.MerkleTree) -> "dict[int, Delivery]":
        """What each holder gets of these shares; `tree` is the one over the boxes."""
        return {
            box.holder: Delivery(
                dealer=self.seat,
                box=box,
                path=tree.path(place),
                boxes_root=tree.root,
                commitment_b=self.commitment_b,
                commitment_k=self.commitment_k,
                signature=self.signature,
            )
            for place, box in enumerate(self.boxes)
        }

    @property
    def boxes_root(self) -> bytes:
        """Merkle root over the boxes."""
        return self.tree().root

    @property
    def root(self) -> bytes:
        """share_root_u."""  # the spec's symbol
        return share_root(self.commitment_b, self.commitment_k, self.boxes_root)

    def signed_bytes(self) -> bytes:
        """The share root under setup: a holder gets one box and a path to what is signed."""
        return share_signed_bytes(self.setup, self.seat, self.root)


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
class Complaint(SignedMessage):
    """ "The box that `dealer` made for me cannot be used." Sent before any masked vector."""  # noqa: D210  # a quotation

    LABEL: ClassVar[str] = "complaint-message"
    SIGNED_LABEL: ClassVar[str] = "complaint"

    setup: Annotated[bytes, DIGEST]
    seat: Annotated[int, U32]
    dealer: Annotated[int, U32]
    reason: Annotated[str, TEXT]

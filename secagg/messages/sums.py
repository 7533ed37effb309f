"""Messages from the masked vector to the sum: survivors, openings, result (spec 3.3: 3 to 6)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from secagg import canonical
from secagg.codec import (
    DIGEST,
    MAX_RECORD_BYTES,
    SEATS,
    SECRET,
    SIGNATURE,
    U32,
    U64,
    Record,
    blob,
    choice,
    listed,
    nested,
)
from secagg.messages.envelope import Attachment, SignedMessage
from secagg.secretbytes import Secret

MASKED: Final = "masked"
SUM: Final = "sum"
# Bad dealers that one request can leave out; each has cost the run a round.
MAX_CASES: Final = 64


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
class SurvivorsRequest(Record):
    """U3 with every upload's root, prior and signature, sorted by seat (message 3').

    Attributes:
        cases: evidence against the dealers that U3 lacks though a prior names them, encoded
            (`secagg.lifting`). They need no signature: who signs U3 signs what it lacks.
    """

    LABEL: ClassVar[str] = "survivors-request"

    entries: Annotated[tuple[SurvivorEntry, ...], listed(nested(SurvivorEntry))]
    cases: Annotated[tuple[bytes, ...], listed(blob(MAX_RECORD_BYTES, "a case"), MAX_CASES)] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Endorsement(Record):
    """One silo's signature under what several sign alike: the survivors, or a state."""

    LABEL: ClassVar[str] = "endorsement"

    seat: Annotated[int, U32]
    signature: Annotated[bytes, SIGNATURE]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate(Record):
    """At least t signatures under one set of survivors (message 4')."""

    LABEL: ClassVar[str] = "certificate-message"

    endorsements: Annotated[tuple[Endorsement, ...], listed(nested(Endorsement))]


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

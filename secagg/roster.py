"""The roster: who has a seat in the federation, in which version, vouched for by whom.

A roster is made and signed offline by the federation's roots, none of which is the
coordinator's alone. Every round names the roster's digest in its ctx, so that a coordinator
cannot add a silo of its own making (a Sybil) without a root's signature. Versions form a hash
chain: a silo accepts a newer version only if it leads back to the one it knows.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from secagg import canonical
from secagg.codec import (
    DIGEST,
    FEDERATION,
    KEY,
    SIGNATURE,
    SILO,
    TEXT,
    U32,
    U64,
    Codec,
    Record,
    choice,
    listed,
    nested,
)
from secagg.errors import BadSignatureError, ParameterError, RosterError
from secagg.ids import FederationId, SiloId
from secagg.keys import verify

MAX_SEATS = 10_000
_DIGEST_BYTES = 32
_KEY_BYTES = 32


class OfficerRole(StrEnum):
    """What a certificate that is no silo's may do."""

    COORDINATOR = "coordinator"
    OPERATOR = "operator"


def _require_bytes(name: str, value: bytes, length: int) -> None:
    if len(value) != length:
        raise ParameterError(f"{name} must be {length} bytes, got {len(value)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat(Record):
    """One silo's line in the roster.

    Attributes:
        index: the silo's number in the federation, ≥ 1; it is the silo's x-coordinate in secret
            sharing and is never given to another silo.
        silo: the silo's name.
        organization: the legal entity behind it; policies count distinct ones.
        identity_key: Ed25519 public key that signs the silo's protocol messages, 32 bytes.
        certificate_key: SHA-256 of the TLS certificate's SubjectPublicKeyInfo, 32 bytes.
    """

    LABEL: ClassVar[str] = "seat"

    index: Annotated[int, U32]
    silo: Annotated[SiloId, SILO]
    organization: Annotated[str, TEXT]
    identity_key: Annotated[bytes, KEY]
    certificate_key: Annotated[bytes, DIGEST]

    def __post_init__(self) -> None:
        if not 1 <= self.index <= MAX_SEATS:
            raise ParameterError(f"a seat's index must be in [1, {MAX_SEATS}], got {self.index}")
        if not self.organization.strip():
            raise ParameterError(f"seat {self.index} ({self.silo.name}) names no organization")
        _require_bytes("a seat's identity_key", self.identity_key, _KEY_BYTES)
        _require_bytes("a seat's certificate_key", self.certificate_key, _DIGEST_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Officer(Record):
    """A coordinator or an operator: it has a certificate, but no seat and no data."""

    LABEL: ClassVar[str] = "officer"

    name: Annotated[str, TEXT]
    role: Annotated[OfficerRole, choice(OfficerRole)]
    certificate_key: Annotated[bytes, DIGEST]

    def __post_init__(self) -> None:
        SiloId(self.name)  # the same rule for names, the same error
        _require_bytes("an officer's certificate_key", self.certificate_key, _DIGEST_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster(Record):
    """The enrolled silos of a federation, one version of the list.

    Attributes:
        federation: whose roster this is.
        version: 1, 2, 3, …
        previous: digest of version − 1; 32 zero bytes for version 1.
        coordinator_key: Ed25519 public key that signs the coordinator's round messages.
        seats: sorted by index; indices, names and keys are distinct.
        officers: certificates of coordinators and operators.
    """

    LABEL: ClassVar[str] = "roster"

    federation: Annotated[FederationId, FEDERATION]
    version: Annotated[int, U64]
    previous: Annotated[bytes, DIGEST]
    coordinator_key: Annotated[bytes, KEY]
    seats: Annotated[tuple[Seat, ...], listed(nested(Seat))]
    officers: Annotated[tuple[Officer, ...], listed(nested(Officer))] = ()

    def __post_init__(self) -> None:
        if self.version < 1:
            raise ParameterError(f"a roster's version starts at 1, got {self.version}")
        _require_bytes("a roster's previous digest", self.previous, _DIGEST_BYTES)
        _require_bytes("a roster's coordinator_key", self.coordinator_key, _KEY_BYTES)
        if list(self.seats) != sorted(self.seats, key=lambda seat: seat.index):
            raise ParameterError("a roster's seats must be sorted by index")
        certificates = [seat.certificate_key for seat in self.seats]
        certificates += [officer.certificate_key for officer in self.officers]
        self._require_distinct("seat index", [seat.index for seat in self.seats])
        self._require_distinct("silo name", [seat.silo.name for seat in self.seats])
        self._require_distinct("identity key", [seat.identity_key for seat in self.seats])
        self._require_distinct("certificate key", certificates)

    @staticmethod
    def _require_distinct(what: str, values: list[int] | list[str] | list[bytes]) -> None:
        double = [value for value, count in Counter(values).items() if count > 1]
        if double:
            shown = double[0].hex()[:16] if isinstance(double[0], bytes) else double[0]
            raise ParameterError(f"a roster may name each {what} once; {shown} stands twice")

    @property
    def indices(self) -> tuple[int, ...]:
        """The seats' indices, sorted."""
        return tuple(seat.index for seat in self.seats)

    def seat(self, index: int) -> Seat:
        """The seat with this index; RosterError if there is none."""
        for seat in self.seats:
            if seat.index == index:
                return seat
        raise RosterError(f"seat {index} is not in roster version {self.version}")

    def seat_of(self, silo: SiloId) -> Seat:
        """The silo's seat; RosterError if it has none."""
        for seat in self.seats:
            if seat.silo == silo:
                return seat
        raise RosterError(f"silo {silo.name!r} has no seat in roster version {self.version}")

    def organizations(self, seats: tuple[int, ...]) -> int:
        """How many distinct organizations stand behind these seats."""
        return len({self.seat(index).organization for index in seats})

    def digest(self) -> bytes:
        """32 bytes that stand for this roster in every round."""
        return canonical.digest("roster-digest", self.encode())

    def signed_bytes(self) -> bytes:
        """What the federation's roots sign."""
        return canonical.encode("roster-signature", self.digest())


def _read_root_signature(data: bytes) -> tuple[bytes, bytes]:
    root, signature = canonical.decode(data, "root-signature", max_bytes=1024, fields=2)
    return KEY.read(root), SIGNATURE.read(signature)


_ROOT_SIGNATURE: Final[Codec[tuple[bytes, bytes]]] = Codec(
    lambda pair: canonical.encode("root-signature", *pair), _read_root_signature
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRoster(Record):
    """A roster with the signatures of the federation's roots.

    Attributes:
        signatures: pairs of root public key (32 bytes) and Ed25519 signature (64 bytes).
    """

    LABEL: ClassVar[str] = "signed-roster"

    roster: Annotated[Roster, nested(Roster)]
    signatures: Annotated[tuple[tuple[bytes, bytes], ...], listed(_ROOT_SIGNATURE, 64)]

    def verify(self, roots: frozenset[bytes]) -> Roster:
        """Give the roster if every root that the reader trusts has signed it.

        Raises:
            BadSignatureError: a root's signature is missing or wrong.
            ParameterError: the reader names no root.
        """
        if not roots:
            raise ParameterError("no trusted root key was given to check the roster against")
        by_root = dict(self.signatures)
        for root in sorted(roots):
            if root not in by_root:
                raise BadSignatureError(
                    f"roster version {self.roster.version} lacks the signature of the trusted "
                    f"root {root.hex()[:16]}"
                )
            verify(root, by_root[root], self.roster.signed_bytes())
        return self.roster

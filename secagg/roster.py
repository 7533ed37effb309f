"""The roster: who has a seat in the federation, in which version, vouched for by whom.

A roster is made and signed offline by the federation's roots, none of which is the
coordinator's alone. Every round names the roster's digest in its ctx, so that a coordinator
cannot add a silo of its own making (a Sybil) without a root's signature. Versions form a hash
chain: a silo accepts a newer version only if it leads back to the one it knows.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from secagg import canonical
from secagg.errors import BadSignatureError, MalformedMessageError, ParameterError, RosterError
from secagg.ids import FederationId, SiloId
from secagg.keys import verify

# A roster is a few hundred bytes a seat; 4 MiB are ten thousand seats.
MAX_ROSTER_BYTES = 4 * 1024 * 1024
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
class Seat:
    """One silo's line in the roster.

    Attributes:
        index: the silo's number in the federation, ≥ 1; it is the silo's x-coordinate in secret
            sharing and is never given to another silo.
        silo: the silo's name.
        organization: the legal entity behind it; policies count distinct ones.
        identity_key: Ed25519 public key that signs the silo's protocol messages, 32 bytes.
        certificate_key: SHA-256 of the TLS certificate's SubjectPublicKeyInfo, 32 bytes.
    """

    index: int
    silo: SiloId
    organization: str
    identity_key: bytes
    certificate_key: bytes

    def __post_init__(self) -> None:
        if not 1 <= self.index <= MAX_SEATS:
            raise ParameterError(f"a seat's index must be in [1, {MAX_SEATS}], got {self.index}")
        if not self.organization.strip():
            raise ParameterError(f"seat {self.index} ({self.silo.name}) names no organization")
        _require_bytes("a seat's identity_key", self.identity_key, _KEY_BYTES)
        _require_bytes("a seat's certificate_key", self.certificate_key, _DIGEST_BYTES)

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            "seat",
            canonical.u32(self.index),
            canonical.text(self.silo.name),
            canonical.text(self.organization),
            self.identity_key,
            self.certificate_key,
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`; MalformedMessageError on anything else."""
        index, silo, organization, identity_key, certificate_key = canonical.decode(
            data, "seat", max_bytes=MAX_ROSTER_BYTES, fields=5
        )
        return cls(
            index=canonical.read_u32(index),
            silo=SiloId(canonical.read_text(silo)),
            organization=canonical.read_text(organization),
            identity_key=identity_key,
            certificate_key=certificate_key,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Officer:
    """A coordinator or an operator: it has a certificate, but no seat and no data."""

    name: str
    role: OfficerRole
    certificate_key: bytes

    def __post_init__(self) -> None:
        SiloId(self.name)  # the same rule for names, the same error
        _require_bytes("an officer's certificate_key", self.certificate_key, _DIGEST_BYTES)

    def encode(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            "officer",
            canonical.text(self.name),
            canonical.text(self.role.value),
            self.certificate_key,
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        name, role, certificate_key = canonical.decode(
            data, "officer", max_bytes=MAX_ROSTER_BYTES, fields=3
        )
        word = canonical.read_text(role)
        if word not in {known.value for known in OfficerRole}:
            raise MalformedMessageError(f"an officer's role is coordinator or operator, got {word!r}")
        return cls(
            name=canonical.read_text(name),
            role=OfficerRole(word),
            certificate_key=certificate_key,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The enrolled silos of a federation, one version of the list.

    Attributes:
        federation: whose roster this is.
        version: 1, 2, 3, …
        previous: digest of version − 1; 32 zero bytes for version 1.
        coordinator_key: Ed25519 public key that signs the coordinator's round messages.
        seats: sorted by index; indices, names and keys are distinct.
        officers: certificates of coordinators and operators.
    """

    federation: FederationId
    version: int
    previous: bytes
    coordinator_key: bytes
    seats: tuple[Seat, ...]
    officers: tuple[Officer, ...] = ()

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

    def encode(self) -> bytes:
        """Canonical bytes: what is hashed and signed."""
        return canonical.encode(
            "roster",
            canonical.text(self.federation.name),
            canonical.u64(self.version),
            self.previous,
            self.coordinator_key,
            canonical.encode_list([seat.encode() for seat in self.seats]),
            canonical.encode_list([officer.encode() for officer in self.officers]),
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        federation, version, previous, coordinator_key, seats, officers = canonical.decode(
            data, "roster", max_bytes=MAX_ROSTER_BYTES, fields=6
        )
        return cls(
            federation=FederationId(canonical.read_text(federation)),
            version=canonical.read_u64(version),
            previous=previous,
            coordinator_key=coordinator_key,
            seats=tuple(
                Seat.decode(item) for item in canonical.decode_list(seats, max_items=MAX_SEATS)
            ),
            officers=tuple(
                Officer.decode(item)
                for item in canonical.decode_list(officers, max_items=MAX_SEATS)
            ),
        )

    def digest(self) -> bytes:
        """32 bytes that stand for this roster in every round."""
        return canonical.digest("roster-digest", self.encode())

    def signed_bytes(self) -> bytes:
        """What the federation's roots sign."""
        return canonical.encode("roster-signature", self.digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRoster:
    """A roster with the signatures of the federation's roots.

    Attributes:
        signatures: pairs of root public key (32 bytes) and Ed25519 signature (64 bytes).
    """

    roster: Roster
    signatures: tuple[tuple[bytes, bytes], ...]

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

    def encode(self) -> bytes:
        """Canonical bytes."""
        pairs = [canonical.encode("root-signature", *pair) for pair in self.signatures]
        return canonical.encode("signed-roster", self.roster.encode(), canonical.encode_list(pairs))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`."""
        roster, signatures = canonical.decode(
            data, "signed-roster", max_bytes=MAX_ROSTER_BYTES, fields=2
        )
        pairs = []
        for item in canonical.decode_list(signatures, max_items=64):
            root, signature = canonical.decode(
                item, "root-signature", max_bytes=MAX_ROSTER_BYTES, fields=2
            )
            pairs.append((root, signature))
        return cls(roster=Roster.decode(roster), signatures=tuple(pairs))

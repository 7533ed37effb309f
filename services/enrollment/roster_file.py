"""The signed roster and the keys to trust, as JSON files that people can read.

What is shown is what was signed: the roster is rebuilt from the readable fields and the roots'
signatures are checked over its canonical bytes, so a file cannot show one thing and mean another.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from secagg.errors import ParameterError, RemoteProtocolError
from secagg.ids import FederationId, SiloId
from secagg.roster import Officer, OfficerRole, Roster, Seat, SignedRoster
from services.errors import CredentialError, missing_file
from services.files import write_atomic

TRUST: Final = "trust.json"
ROSTER: Final = "roster.json"
# Beside a coordinator's roster: all versions, for silos that have missed some.
HISTORY: Final = "rosters"
_MAX_BYTES: Final = 8 * 1024 * 1024
_INSTALL: Final = "install the bundle that `secagg authority issue` made"

Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Hex64 = Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


class Document(BaseModel):
    """A JSON file with exactly the fields that it declares."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Doc = TypeVar("Doc", bound=Document)


class _Seat(Document):
    index: int
    silo: str
    organization: str
    identity_key: Hex32
    certificate_key: Hex32


class _Officer(Document):
    name: str
    role: OfficerRole
    certificate_key: Hex32


class _Signature(Document):
    root: Hex32
    signature: Hex64


class _RosterDocument(Document):
    format: Literal["secagg-roster-1"] = "secagg-roster-1"
    federation: str
    version: int
    previous: Hex32
    coordinator_key: Hex32
    seats: tuple[_Seat, ...]
    officers: tuple[_Officer, ...]
    signatures: tuple[_Signature, ...]


class _TrustDocument(Document):
    format: Literal["secagg-trust-1"] = "secagg-trust-1"
    federation: str
    roots: tuple[Hex32, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The federation and the root keys (Ed25519, 32 bytes each) that must sign its rosters."""

    federation: FederationId
    roots: frozenset[bytes]


def load_document(path: Path, kind: str, document: type[Doc], hint: str) -> Doc:
    """Read a JSON file of a known form.

    Raises:
        CredentialError: it is missing or has another form; names the file and the field.
    """
    if not path.is_file():
        raise missing_file(kind, path, hint)
    data = path.read_bytes()
    if len(data) > _MAX_BYTES:
        raise CredentialError(f"{path}: expected at most {_MAX_BYTES} bytes, got {len(data)}")
    try:
        return document.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise CredentialError(
            f"{path}: expected {kind}; {where}: {first['msg']}", hint=hint
        ) from error


def save_document(path: Path, document: Document) -> None:
    """Write a JSON file, indented for people."""
    write_atomic(path, document.model_dump_json(indent=2).encode() + b"\n")


def save_trust(path: Path, trust: Trust) -> None:
    """Write a trust file."""
    roots = tuple(sorted(root.hex() for root in trust.roots))
    save_document(path, _TrustDocument(federation=trust.federation.name, roots=roots))


def load_trust(path: Path) -> Trust:
    """Read a trust file.

    Raises:
        CredentialError: it is missing or has another form.
    """
    document = load_document(path, "a trust file", _TrustDocument, _INSTALL)
    return Trust(
        federation=FederationId(document.federation),
        roots=frozenset(map(bytes.fromhex, document.roots)),
    )


def save_signed(path: Path, signed: SignedRoster) -> None:
    """Write a signed roster."""
    roster = signed.roster
    document = _RosterDocument(
        federation=roster.federation.name,
        version=roster.version,
        previous=roster.previous.hex(),
        coordinator_key=roster.coordinator_key.hex(),
        seats=tuple(
            _Seat(
                index=seat.index,
                silo=seat.silo.name,
                organization=seat.organization,
                identity_key=seat.identity_key.hex(),
                certificate_key=seat.certificate_key.hex(),
            )
            for seat in roster.seats
        ),
        officers=tuple(
            _Officer(
                name=officer.name,
                role=officer.role,
                certificate_key=officer.certificate_key.hex(),
            )
            for officer in roster.officers
        ),
        signatures=tuple(
            _Signature(root=root.hex(), signature=signature.hex())
            for root, signature in signed.signatures
        ),
    )
    save_document(path, document)


def load_signed(path: Path) -> SignedRoster:
    """Read a signed roster without checking who signed it.

    Raises:
        CredentialError: it is missing or has another form.
    """
    document = load_document(path, "a signed roster", _RosterDocument, _INSTALL)
    try:
        roster = Roster(
            federation=FederationId(document.federation),
            version=document.version,
            previous=bytes.fromhex(document.previous),
            coordinator_key=bytes.fromhex(document.coordinator_key),
            seats=tuple(
                Seat(
                    index=seat.index,
                    silo=SiloId(seat.silo),
                    organization=seat.organization,
                    identity_key=bytes.fromhex(seat.identity_key),
                    certificate_key=bytes.fromhex(seat.certificate_key),
                )
                for seat in document.seats
            ),
            officers=tuple(
                Officer(
                    name=officer.name,
                    role=officer.role,
                    certificate_key=bytes.fromhex(officer.certificate_key),
                )
                for officer in document.officers
            ),
        )
    except ParameterError as error:
        raise CredentialError(f"{path}: expected a signed roster; {error}") from error
    return SignedRoster(
        roster=roster,
        signatures=tuple(
            (bytes.fromhex(one.root), bytes.fromhex(one.signature)) for one in document.signatures
        ),
    )


def load_roster(path: Path, trust: Trust) -> Roster:
    """Read a roster that every trusted root has signed.

    Raises:
        CredentialError: it is missing, has another form, or is not signed by those we trust.
    """
    return verified(load_signed(path), trust, str(path))


def version_file(directory: Path, version: int) -> Path:
    """Where one version of the roster lies in a folder of all versions."""
    return directory / f"roster-{version}.json"


def accept_newer(current: Roster, data: bytes, trust: Trust) -> SignedRoster:
    """Check a roster that the coordinator offers, before it replaces the known one.

    Args:
        current: the roster in use.
        data: canonical bytes of a signed roster, from Hello: the version after the current one.
        trust: who must have signed.

    Raises:
        CredentialError: it is malformed, not signed by those we trust, of another federation, or
            does not continue the current one.
    """
    where = "the coordinator's roster"
    try:
        signed = SignedRoster.decode(data)
    except (RemoteProtocolError, ParameterError) as error:
        raise CredentialError(f"{where} is malformed: {error}") from error
    check_follows(current, verified(signed, trust, where), where)
    return signed


def check_follows(current: Roster, following: Roster, where: str) -> None:
    """Raise CredentialError unless a roster is the very next link of the current one's chain."""
    if following.version != current.version + 1:
        raise CredentialError(
            f"{where}: expected version {current.version + 1}, got {following.version}",
            hint="versions are taken one by one; ask the authority for a new bundle",
        )
    if following.previous != current.digest():
        raise CredentialError(
            f"{where}: version {following.version} does not continue version {current.version} as "
            "it is known here",
            hint="ask the authority which of the two it signed for this federation",
        )


def verified(signed: SignedRoster, trust: Trust, where: str) -> Roster:
    """Give a roster that every trusted root has signed.

    Raises:
        CredentialError: a root's signature is missing, or it is another federation's.
    """
    try:
        roster = signed.verify(trust.roots)
    except RemoteProtocolError as error:
        raise CredentialError(
            f"{where} is not signed by the roots in {TRUST}: {error}", hint=_INSTALL
        ) from error
    if roster.federation != trust.federation:
        raise CredentialError(
            f"{where}: expected the federation {trust.federation}, got {roster.federation}"
        )
    return roster

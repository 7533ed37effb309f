"""Who a caller is: the certificate says the name, the roster says whether it still counts.

A certificate names its holder in one URI, secagg://<role>/<name>. The roster lists the hash of that
certificate's public key. Both are checked on every call, with the certificate's end, because a
connection that was opened before a certificate was withdrawn or ended stays open.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from secagg.errors import ParameterError, RosterError
from secagg.ids import SiloId
from secagg.roster import Roster
from services.errors import CredentialError, NotAllowedError, UnauthenticatedError

_SCHEME: Final = "secagg://"


class Role(StrEnum):
    """What a certificate lets its holder do."""

    SILO = "silo"
    OPERATOR = "operator"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The verified holder of a certificate; `seat` is its index in the roster if it is a silo."""

    name: str
    role: Role
    seat: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateIdentity:
    """What a certificate says of its holder.

    Attributes:
        certificate_key: SHA-256 of the public key's SubjectPublicKeyInfo, 32 bytes.
        not_after: when the certificate ends.
    """

    name: str
    role: Role
    certificate_key: bytes
    not_after: datetime

    @property
    def uri(self) -> str:
        """The holder's name as it stands in the certificate."""
        return identity_uri(self.role, self.name)

    @classmethod
    def of(cls, certificate: x509.Certificate) -> Self:
        """Read a certificate.

        Raises:
            CredentialError: it does not carry exactly one well-formed secagg:// name.
        """
        uris = [uri for uri in subject_names(certificate)[1] if uri.startswith(_SCHEME)]
        role, _, name = (
            uris[0].removeprefix(_SCHEME).partition("/") if len(uris) == 1 else ("", "", "")
        )
        try:
            return cls(
                name=SiloId(name).name,
                role=Role(role),
                certificate_key=certificate_key(certificate.public_key()),
                not_after=certificate.not_valid_after_utc,
            )
        except (ValueError, ParameterError) as error:
            raise CredentialError(
                f"expected a certificate with one name such as {_SCHEME}silo/NAME, got {uris}",
                hint="use the certificate that `secagg authority issue` made",
            ) from error


def identity_uri(role: Role, name: str) -> str:
    """Return the URI that stands for a role and name in a certificate."""
    return f"{_SCHEME}{role.value}/{name}"


def certificate_key(key: CertificatePublicKeyTypes) -> bytes:
    """Return SHA-256 of a TLS key's SubjectPublicKeyInfo: what the roster lists."""
    return hashlib.sha256(
        key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ).digest()


def subject_names(certificate: x509.Certificate) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a certificate's hosts (DNS names and IP addresses) and its URIs; both may be empty."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return (), ()
    names = extension.value
    hosts = (
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    )
    return hosts, tuple(names.get_values_for_type(x509.UniformResourceIdentifier))


def identify(auth_context: Mapping[str, Iterable[bytes]], roster: Roster, now: datetime) -> Peer:
    """Say who is calling.

    Args:
        auth_context: what gRPC knows of the connection, from `context.auth_context()`; gRPC has
            checked the certificate's chain, dates and possession of its key.
        roster: the roster in force.
        now: this machine's time.

    Raises:
        UnauthenticatedError: no certificate, one without a name, one that has ended since the
            connection was opened, or one that the roster does not list under that name and role.
    """
    pems = tuple(auth_context.get("x509_pem_cert", ()))
    if len(pems) != 1:
        raise UnauthenticatedError(
            "expected a client certificate, got none",
            hint="connect with the certificate that `secagg authority issue` made",
        )
    try:
        identity = _read(pems[0])
    except CredentialError as error:
        raise UnauthenticatedError(str(error)) from error
    if now > identity.not_after:
        raise UnauthenticatedError(
            f"the certificate of {identity.uri} ended on {identity.not_after:%Y-%m-%d %H:%M} UTC",
            hint="install the renewed one",
            remote_code="CERTIFICATE_ENDED",
        )
    return _peer_of(identity, roster)


def _peer_of(identity: CertificateIdentity, roster: Roster) -> Peer:
    """Find a certificate's holder in the roster.

    Raises:
        UnauthenticatedError: the roster lists no such holder, or another key for it.
    """
    seat: int | None = None
    if identity.role is Role.SILO:
        try:
            found = roster.seat_of(SiloId(identity.name))
        except RosterError as error:
            raise _not_listed(identity, roster, "no such silo") from error
        seat, listed = found.index, found.certificate_key
    else:
        keys = [
            officer.certificate_key
            for officer in roster.officers
            if (officer.name, officer.role.value) == (identity.name, identity.role.value)
        ]
        if not keys:
            raise _not_listed(identity, roster, f"no such {identity.role.value}")
        listed = keys[0]
    if listed != identity.certificate_key:
        raise _not_listed(identity, roster, "another certificate key under this name")
    return Peer(name=identity.name, role=identity.role, seat=seat)


def require_role(peer: Peer, *roles: Role) -> None:
    """Raise NotAllowedError unless the peer has one of the roles."""
    if peer.role not in roles:
        allowed = " or ".join(role.value for role in roles)
        raise NotAllowedError(
            f"expected a certificate with the role {allowed}, got the {peer.role.value} {peer.name}"
        )


def _not_listed(identity: CertificateIdentity, roster: Roster, what: str) -> UnauthenticatedError:
    return UnauthenticatedError(
        f"{identity.uri}: roster version {roster.version} lists {what}",
        hint="enroll with the authority and give its newest roster to the coordinator",
        remote_code="NOT_IN_ROSTER",
    )


@lru_cache(maxsize=1024)
def _read(pem: bytes) -> CertificateIdentity:
    """Read a PEM certificate; cached, since every call of a connection shows the same one."""
    return CertificateIdentity.of(x509.load_pem_x509_certificate(pem))

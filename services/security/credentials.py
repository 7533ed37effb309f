"""A process's keys and certificates, and the gRPC channel and server that are made with them.

Everything lies in one folder: tls.key and identity.key (made here, 0600, never sent anywhere),
tls.pem, ca.pem, roster.json and trust.json (from the authority). TLS certificates are ECDSA P-256,
which gRPC accepts; the protocol's Ed25519 identity key is another key, bound to the certificate by
the roster. There is no shared port, no proxy unless asked for, and no connection without a client
certificate.
"""

import errno
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from secagg.keys import IdentityKey
from services.clock import utc_now
from services.errors import AddressInUseError, ConfigError, CredentialError, missing_file
from services.files import read_secret
from services.security.identity import CertificateIdentity, Role, subject_names

TLS_KEY: Final = "tls.key"
IDENTITY_KEY: Final = "identity.key"
CERTIFICATE: Final = "tls.pem"
AUTHORITY: Final = "ca.pem"
WARN_DAYS: Final = 30

_ENROLL: Final = (
    "make keys with `enroll` of `secagg silo`, `coordinator` or `run`, and install what "
    "`authority issue` answers"
)
_Options = tuple[tuple[str, int], ...]
# Both sides ping an idle connection, so that a proxy that forgets silent ones cannot hold back a
# finished update, and a dead peer is noticed within a minute. The server allows such pings.
_KEEPALIVE: Final[_Options] = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_CHANNEL_OPTIONS: Final[_Options] = (
    *_KEEPALIVE,
    # After a restart of the coordinator a round waits for its silos; the default is two minutes.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)
SERVER_OPTIONS: Final[_Options] = (
    *_KEEPALIVE,
    # Strangers hold no more than they must: a handshake has ten seconds, a connection on which
    # nobody calls five minutes, and there are never more connections than file handles for them.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.max_allowed_incoming_connections", 2_000),
    ("grpc.max_concurrent_streams", 128),
    # The largest message is a protocol message of 3 MiB with its frame.
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    # A second process on the same port must fail, not take half of the connections.
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """One holder's TLS files, checked to belong together and to be in date.

    Attributes:
        directory: where they lie.
        identity: the holder's name, role and certificate key.
        hosts: DNS names and addresses in the certificate; a coordinator's only.
        not_after: when the certificate ends.
    """

    directory: Path
    identity: CertificateIdentity
    hosts: tuple[str, ...]
    not_after: datetime

    def days_left(self, now: datetime) -> int:
        """Return whole days until the certificate ends; warn from WARN_DAYS on."""
        return (self.not_after - now) // timedelta(days=1)

    @property
    def key_file(self) -> Path:
        """The TLS private key, PEM."""
        return self.directory / TLS_KEY

    @property
    def certificate_file(self) -> Path:
        """The TLS certificate, PEM."""
        return self.directory / CERTIFICATE

    @property
    def authority_file(self) -> Path:
        """The authority's certificate, PEM."""
        return self.directory / AUTHORITY


def load_credentials(directory: Path, *, role: Role, now: datetime) -> Credentials:
    """Read and check a holder's TLS files.

    Raises:
        CredentialError: a file is missing or readable by others; the certificate is expired, not
            yet valid, from another authority, of another role, or belongs to another key.
    """
    key = read_secret(_require(directory / TLS_KEY, "a TLS key"), "the TLS key")
    path = _require(directory / CERTIFICATE, "a certificate")
    certificate = _load_certificate(path)
    authority_path = _require(directory / AUTHORITY, "the authority's certificate")
    authority = _load_certificate(authority_path)
    identity = CertificateIdentity.of(certificate)
    if identity.role is not role:
        raise CredentialError(
            f"{path}: expected a certificate for the role {role.value}, got {identity.uri}",
            hint=f"name the folder of the {role.value}'s own keys",
        )
    check_dates(certificate, str(path), now)
    check_dates(authority, str(authority_path), now)
    if _public_bytes(certificate) != _public_of_private(key, directory / TLS_KEY):
        raise CredentialError(
            f"{path} does not belong to {TLS_KEY} beside it",
            hint="install the bundle that was issued for this folder's request",
        )
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise CredentialError(
            f"{path} was not issued by the authority in {AUTHORITY} beside it",
            hint="install both files from the same bundle",
        ) from error
    return Credentials(
        directory=directory,
        identity=identity,
        hosts=subject_names(certificate)[0],
        not_after=certificate.not_valid_after_utc,
    )


def check_dates(certificate: x509.Certificate, where: str, now: datetime) -> None:
    """Raise CredentialError, with the date, unless the certificate is valid now."""
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start:
        raise CredentialError(
            f"{where} is valid from {start:%Y-%m-%d %H:%M} UTC on, and this machine's clock says "
            f"{now:%Y-%m-%d %H:%M} UTC",
            hint="set the clock, or wait",
        )
    if now > end:
        raise CredentialError(
            f"{where} expired on {end:%Y-%m-%d %H:%M} UTC; this machine's clock says "
            f"{now:%Y-%m-%d %H:%M} UTC",
            hint="ask the authority to issue the same request again",
        )


def load_identity(directory: Path) -> IdentityKey:
    """Read the Ed25519 identity key, 32 raw bytes, 0600.

    Raises:
        CredentialError: it is missing, readable by others, or has another length.
    """
    path = _require(directory / IDENTITY_KEY, "an identity key")
    data = read_secret(path, "the identity key")
    if len(data) != 32:
        raise CredentialError(f"{path}: expected 32 bytes, got {len(data)}", hint=_ENROLL)
    return IdentityKey.from_bytes(data)


def server_credentials(directory: Path) -> grpc.ServerCredentials:
    """Return credentials that demand a client certificate and pick up renewed files by themselves.

    The files are looked at before each handshake. Only a change is passed on, and only of files
    that fit together: what handshakes in other threads use is not exchanged without need.
    """
    files = [directory / name for name in (TLS_KEY, CERTIFICATE, AUTHORITY)]
    seen = [*map(file_stamp, files)]

    def configuration() -> grpc.ServerCertificateConfiguration:
        key, certificate, authority = map(_read, files)
        return grpc.ssl_server_certificate_configuration(
            [(key, certificate)], root_certificates=authority
        )

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal seen
        found = [*map(file_stamp, files)]
        if found == seen:
            return None
        try:
            load_credentials(directory, role=Role.COORDINATOR, now=utc_now())
            fresh = configuration()
        except CredentialError:
            return None  # a bundle is installed file by file: the next handshake looks again
        seen = found
        return fresh

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        renewed,  # type: ignore[arg-type] # None means no change; the stubs do not know
        require_client_authentication=True,
    )


def open_channel(target: str, credentials: Credentials, *, proxy: bool = False) -> grpc.aio.Channel:
    """Open a channel to the coordinator with this holder's certificate.

    Args:
        target: host and port; the host must be a name in the coordinator's certificate.
        credentials: read anew from disk, so that a renewed certificate counts from here on.
        proxy: whether to obey http_proxy and https_proxy of the environment.
    """
    options = (*_CHANNEL_OPTIONS, ("grpc.enable_http_proxy", int(proxy)))
    tls = grpc.ssl_channel_credentials(
        root_certificates=_read(credentials.authority_file),
        private_key=_read(credentials.key_file),
        certificate_chain=_read(credentials.certificate_file),
    )
    return grpc.aio.secure_channel(target, tls, options=options)


def bind(server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials) -> str:
    """Let a server listen, and return the address with the port that it really has.

    Raises:
        AddressInUseError: the port is taken or the address is not this machine's.
    """
    host, port = split_address(listen)
    try:
        bound = server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise AddressInUseError(
            f"cannot listen on {listen}: {_bind_problem(host, port) or error}",
            hint="`listen` names an address of this machine and a port that no other process has",
        ) from error
    return f"{listen.rpartition(':')[0]}:{bound}"


def split_address(address: str) -> tuple[str, int]:
    """Return host, without brackets, and port of an address such as "[::1]:8443"."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ConfigError(f'expected an address such as "localhost:8443", got {address!r}')
    return host.removeprefix("[").removesuffix("]"), int(port)


def _bind_problem(host: str, port: int) -> str:
    """Ask the system itself why an address cannot be bound; gRPC does not say."""
    try:
        families = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        return f"{host}: {error.strerror}"
    for family, kind, protocol, _, address in families:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            return (
                f"address in use: port {port}"
                if error.errno == errno.EADDRINUSE
                else str(error.strerror)
            )
    return ""


def file_stamp(path: Path) -> tuple[int, int] | None:
    """What changes with every replacement of a file; None if it is not there now."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _require(path: Path, kind: str) -> Path:
    if not path.is_file():
        raise missing_file(kind, path, _ENROLL)
    return path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CredentialError(f"{path} cannot be read: {error.strerror}", hint=_ENROLL) from error


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise CredentialError(f"{path}: expected a PEM certificate", hint=_ENROLL) from error


def _public_bytes(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _public_of_private(pem: bytes, path: Path) -> bytes:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        # The parser's own text could quote the file, so it is not passed on.
        raise CredentialError(f"{path}: expected an unencrypted PEM key") from error
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

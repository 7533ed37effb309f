"""Why no TLS connection comes about: one handshake by hand that names the cause.

gRPC reports every TLS failure like a server that is down, so a process would retry for ever what
only a person can fix. This probe dials once with Python's own TLS, asks the server's certificate
who it is, and speaks just enough HTTP/2 to hear whether our certificate was accepted: under TLS 1.3
a server refuses a client only after the client believes that all is well.
"""

import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509

from services.errors import TlsCause, TlsError, UnreachableError
from services.security.credentials import Credentials, load_credentials, split_address
from services.security.identity import subject_names

# RFC 9113, 3.4: what a client says first, with an empty SETTINGS frame.
_HTTP2_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
_SETTINGS: Final = 4
# OpenSSL's X509_V_ERR_ numbers.
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_NAME_MISMATCH: Final = frozenset({62, 64})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """What a successful probe found: the server's names and when its certificate ends."""

    hosts: tuple[str, ...]
    not_after: datetime
    tls_version: str


def probe(
    target: str, credentials: Credentials, *, now: datetime, timeout_s: float = 5.0
) -> ProbeReport:
    """Dial the coordinator once and say what is wrong, if anything. Blocks.

    Args:
        target: host and port, as they will be dialed.
        credentials: ours; checked again, since files may have changed.
        now: this machine's time.
        timeout_s: for the connection, and again for the handshake.

    Raises:
        CredentialError: our own files are unfit.
        UnreachableError: nobody answers: unknown name, nobody listening, time-out.
        TlsError: somebody answers, but retrying will not help; `cause` says why.
    """
    load_credentials(credentials.directory, role=credentials.identity.role, now=now)
    host, port = split_address(target)
    context = ssl.create_default_context(cafile=credentials.authority_file)
    context.load_cert_chain(credentials.certificate_file, credentials.key_file)
    context.set_alpn_protocols(["h2"])
    context.hostname_checks_common_name = False
    with _dial(host, port, target, timeout_s) as raw:
        try:
            with context.wrap_socket(raw, server_hostname=host) as tls:
                certificate = x509.load_der_x509_certificate(
                    tls.getpeercert(binary_form=True) or b""
                )
                _hear_settings(tls, target, credentials)
                return ProbeReport(
                    hosts=subject_names(certificate)[0],
                    not_after=certificate.not_valid_after_utc,
                    tls_version=tls.version() or "",
                )
        except ssl.SSLCertVerificationError as error:
            found = _shown_certificate(host, port, target, timeout_s)
            raise _server_fault(error, found, host, target, now) from error
        except ssl.SSLError as error:
            raise _tls_fault(error, target, credentials) from error
        except TimeoutError as error:
            raise UnreachableError(
                f"{target} accepts connections but did not answer within {timeout_s:g} s",
                hint="is it a coordinator, or a firewall or proxy in between?",
            ) from error
        except OSError as error:
            raise TlsError(
                f"{target} closed the connection during the handshake ({error.strerror or error})",
                cause=TlsCause.OTHER,
                hint="see the coordinator's log",
            ) from error


def _dial(host: str, port: int, target: str, timeout_s: float) -> socket.socket:
    try:
        return socket.create_connection((host, port), timeout=timeout_s)
    except TimeoutError as error:
        raise UnreachableError(
            f"{target} did not answer within {timeout_s:g} s",
            hint="check the address and the firewall; silos need outbound TCP to that port",
        ) from error
    except socket.gaierror as error:
        raise UnreachableError(
            f"{target}: the name {host!r} is unknown ({error.strerror})", hint="check `coordinator`"
        ) from error
    except ConnectionRefusedError as error:
        raise UnreachableError(
            f"{target} refuses connections: nothing listens on port {port}",
            hint="is the coordinator running, and on that port?",
        ) from error
    except OSError as error:
        raise UnreachableError(f"{target}: {error.strerror or error}") from error


def _hear_settings(tls: ssl.SSLSocket, target: str, credentials: Credentials) -> None:
    """Wait for the server's SETTINGS: only then has it accepted our certificate."""
    if tls.selected_alpn_protocol() not in {"h2", None}:
        raise _not_grpc(target)
    tls.sendall(_HTTP2_HELLO)
    heard = b""
    while len(heard) < 9:
        piece = tls.recv(9 - len(heard))
        if not piece:
            raise _refused(target, credentials, "the connection was closed")
        heard += piece
    if heard[3] != _SETTINGS:
        raise _not_grpc(target)


def _shown_certificate(
    host: str, port: int, target: str, timeout_s: float
) -> x509.Certificate | None:
    """Ask for the server's certificate without trusting it: only to say what is wrong with it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        suppress(OSError, UnreachableError, ValueError),
        _dial(host, port, target, timeout_s) as raw,
        context.wrap_socket(raw, server_hostname=host) as tls,
    ):
        return x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b"")
    return None


def _server_fault(
    error: ssl.SSLCertVerificationError,
    certificate: x509.Certificate | None,
    host: str,
    target: str,
    now: datetime,
) -> TlsError:
    """Name what is wrong with the server's certificate."""
    start = f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC" if certificate else "later"
    end = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC" if certificate else "earlier"
    clock = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC"
    if error.verify_code == _EXPIRED:
        return TlsError(
            f"{target}: the coordinator's certificate expired on {end}; {clock}",
            cause=TlsCause.SERVER_EXPIRED,
            hint="its operator must renew it, or this clock is ahead",
        )
    if error.verify_code == _NOT_YET_VALID:
        return TlsError(
            f"{target}: the coordinator's certificate is valid from {start} on; {clock}",
            cause=TlsCause.SERVER_NOT_YET_VALID,
            hint="set this machine's clock, or the coordinator's certificate is too new",
        )
    if error.verify_code in _NAME_MISMATCH:
        names = ", ".join(subject_names(certificate)[0]) if certificate else ""
        return TlsError(
            f"{target}: expected a certificate for {host}, got one for {names or 'no host at all'}",
            cause=TlsCause.NAME_MISMATCH,
            hint="dial one of those names, or enroll the coordinator again with this one",
        )
    return TlsError(
        f"{target}: the coordinator's certificate is not from the authority in ca.pem "
        f"({error.verify_message})",
        cause=TlsCause.UNKNOWN_AUTHORITY,
        hint="is this the right coordinator, and the right federation's bundle?",
    )


def _tls_fault(error: ssl.SSLError, target: str, credentials: Credentials) -> TlsError:
    """Name what the server said when it broke off."""
    reason = error.reason or "no reason given"
    if "ALERT" in reason:
        return _refused(target, credentials, reason.lower().replace("_", " "))
    if reason in {"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"}:
        return TlsError(
            f"{target} answers, but not with TLS",
            cause=TlsCause.NOT_TLS,
            hint="is this the coordinator's port, and no proxy in between?",
        )
    return TlsError(f"{target}: TLS failed: {reason}", cause=TlsCause.OTHER)


def _refused(target: str, credentials: Credentials, reason: str) -> TlsError:
    return TlsError(
        f"{target} refused the certificate of {credentials.identity.uri} ({reason})",
        cause=TlsCause.CLIENT_REFUSED,
        hint="it must come from the coordinator's own authority, and be in date by its clock",
    )


def _not_grpc(target: str) -> TlsError:
    return TlsError(
        f"{target} speaks TLS, but not gRPC",
        cause=TlsCause.NOT_GRPC,
        hint="is this the coordinator's port, and no proxy in between?",
    )

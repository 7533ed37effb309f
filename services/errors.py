"""Every way in which a process or a call can fail, as one tree of exceptions.

::

    ServiceError                     exit code 1
    ├── ConfigError                  2   a file of settings cannot be used
    ├── CredentialError              3   a key, certificate or trust file is missing or unfit
    ├── EnrollmentError              4   the authority refuses a request
    ├── StorageError                 5   a disk or database failed
    │   ├── CorruptError                 stored bytes are not those that were written
    │   ├── SchemaVersionError           written by a newer version of this software
    │   └── LeaseLostError               another coordinator has taken over
    ├── AddressInUseError            6   the address to listen on is taken or is not ours
    ├── UnreachableError             7   nobody answers: server down, name unknown, time-out
    ├── TlsError                     8   somebody answers, but TLS fails; `cause` names why
    └── RemoteError                  9   a call was answered with a refusal; one child a gRPC status
        ├── InvalidRequestError          malformed or against the protocol
        ├── UnauthenticatedError         no certificate, or one that the roster does not list
        ├── NotAllowedError              the caller's role or name may not do this
        ├── NotFoundError                no such run, vector or chunk
        ├── ConflictError                the same thing exists with other content
        ├── NotNowError                  right call, wrong moment
        ├── VersionError                 another protocol version
        ├── TooLargeError                beyond a limit
        ├── UnavailableError             try again later
        └── InternalError                a bug or a full disk at the other side

Errors of `secagg` and `fl` cross the wire as InvalidRequestError (a peer's fault) or InternalError
(our own); their code travels in `remote_code`. Nothing here carries keys, masks or values.
"""

from enum import StrEnum
from pathlib import Path
from typing import ClassVar


class ServiceError(Exception):
    """The root; says what was expected, what came and what to do.

    Attributes:
        hint: what the reader can do about it; empty if the message says it all.
    """

    code: ClassVar[str] = "SERVICE"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Keep message and hint."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return the message with its hint."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


class ConfigError(ServiceError):
    """A file of settings cannot be used; the message lists every problem in it.

    Attributes:
        keys: the dotted keys at fault, in the order of the message.
    """

    code: ClassVar[str] = "CONFIG"
    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, keys: tuple[str, ...] = (), hint: str = "") -> None:
        """Keep the keys at fault."""
        super().__init__(message, hint=hint)
        self.keys = keys


class CredentialError(ServiceError):
    """A key, certificate, roster or trust file is missing, expired or unfit."""

    code: ClassVar[str] = "CREDENTIAL"
    exit_code: ClassVar[int] = 3


class EnrollmentError(ServiceError):
    """The authority refuses a request."""

    code: ClassVar[str] = "ENROLLMENT"
    exit_code: ClassVar[int] = 4


class StorageError(ServiceError):
    """A disk or database failed; what was stored before is untouched."""

    code: ClassVar[str] = "STORAGE"
    exit_code: ClassVar[int] = 5


class CorruptError(StorageError):
    """Stored bytes are not those that were written: a flipped bit, a cut or an older copy."""

    code: ClassVar[str] = "CORRUPT"


class SchemaVersionError(StorageError):
    """The database was written by a newer version of this software."""

    code: ClassVar[str] = "SCHEMA_VERSION"


class LeaseLostError(StorageError):
    """Another coordinator on the same database has taken over; nothing more may be written."""

    code: ClassVar[str] = "LEASE_LOST"


class AddressInUseError(ServiceError):
    """The address to listen on is taken, or does not belong to this machine."""

    code: ClassVar[str] = "ADDRESS_IN_USE"
    exit_code: ClassVar[int] = 6


class UnreachableError(ServiceError):
    """Nobody answers at the address."""

    code: ClassVar[str] = "UNREACHABLE"
    exit_code: ClassVar[int] = 7


class TlsCause(StrEnum):
    """Why a TLS handshake fails."""

    SERVER_EXPIRED = "server-certificate-expired"
    SERVER_NOT_YET_VALID = "server-certificate-not-yet-valid"
    UNKNOWN_AUTHORITY = "server-certificate-from-another-authority"
    NAME_MISMATCH = "server-name-mismatch"
    CLIENT_REFUSED = "client-certificate-refused"
    NOT_TLS = "not-tls"
    NOT_GRPC = "not-grpc"
    OTHER = "other"


class TlsError(ServiceError):
    """The server answers, but no trusted connection comes about; retrying does not help."""

    code: ClassVar[str] = "TLS"
    exit_code: ClassVar[int] = 8

    def __init__(self, message: str, *, cause: TlsCause, hint: str = "") -> None:
        """Keep the cause."""
        super().__init__(message, hint=hint)
        self.cause = cause


class RemoteError(ServiceError):
    """A call was answered with a refusal.

    Attributes:
        remote_code: the stable name of the refusal, such as "A6_SURVIVORS_MISMATCH".
    """

    code: ClassVar[str] = "REMOTE"
    exit_code: ClassVar[int] = 9

    def __init__(self, message: str, *, hint: str = "", remote_code: str = "") -> None:
        """Keep the refusal's name; the class's own by default."""
        super().__init__(message, hint=hint)
        self.remote_code = remote_code or self.code


class InvalidRequestError(RemoteError):
    """The request is malformed or against the protocol."""

    code: ClassVar[str] = "INVALID_REQUEST"


class UnauthenticatedError(RemoteError):
    """The caller shows no certificate, or one that the roster in force does not list."""

    code: ClassVar[str] = "UNAUTHENTICATED"


class NotAllowedError(RemoteError):
    """The caller's role or name may not do this."""

    code: ClassVar[str] = "NOT_ALLOWED"


class NotFoundError(RemoteError):
    """There is no such run, vector or chunk."""

    code: ClassVar[str] = "NOT_FOUND"


class ConflictError(RemoteError):
    """The same thing exists with other content."""

    code: ClassVar[str] = "CONFLICT"


class NotNowError(RemoteError):
    """The call is right, but not at this moment."""

    code: ClassVar[str] = "NOT_NOW"


class VersionError(RemoteError):
    """The other side speaks another version of the protocol or knows another roster."""

    code: ClassVar[str] = "VERSION"


class TooLargeError(RemoteError):
    """Something is beyond a limit; the message states both numbers and the setting."""

    code: ClassVar[str] = "TOO_LARGE"


class UnavailableError(RemoteError):
    """The coordinator cannot be reached or cannot answer now; the same call may be tried again."""

    code: ClassVar[str] = "UNAVAILABLE"


class InternalError(RemoteError):
    """A bug or a full disk at the other side; its log says more."""

    code: ClassVar[str] = "INTERNAL"


def missing_file(kind: str, path: Path, hint: str) -> CredentialError:
    """Say which file was expected where, and how to get it."""
    return CredentialError(f"expected {kind} at {path}, found no such file", hint=hint)

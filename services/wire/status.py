"""One table between errors and gRPC status codes, used in both directions.

Server side, `abort` turns what a handler raises into a status with a stable name in the trailing
metadata. Client side, `remote_errors` turns a status back into the typed error. A bug has
no place in the table: the caller learns nothing but INTERNAL, and the own log learns everything.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import grpc
import grpc.aio

from fl.errors import LearningError
from secagg.errors import OversizeError, RemoteProtocolError, SecAggError, WrongPhaseError
from services.errors import (
    ConfigError,
    ConflictError,
    InternalError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    NotNowError,
    RemoteError,
    ServiceError,
    StorageError,
    TooLargeError,
    UnauthenticatedError,
    UnavailableError,
    VersionError,
)

CODE_KEY: Final = "secagg-code"
OK: Final = "OK"
# Statuses travel in HTTP/2 headers, which peers limit to 8 KiB in all.
_DETAILS_CHARS: Final = 2000

# First match counts, so children stand before their parents.
_TABLE: Final[tuple[tuple[type[Exception], grpc.StatusCode], ...]] = (
    (UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (NotAllowedError, grpc.StatusCode.PERMISSION_DENIED),
    (NotFoundError, grpc.StatusCode.NOT_FOUND),
    (ConflictError, grpc.StatusCode.ALREADY_EXISTS),
    (NotNowError, grpc.StatusCode.FAILED_PRECONDITION),
    (VersionError, grpc.StatusCode.UNIMPLEMENTED),
    (TooLargeError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (WrongPhaseError, grpc.StatusCode.FAILED_PRECONDITION),
    (OversizeError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (RemoteProtocolError, grpc.StatusCode.INVALID_ARGUMENT),
    (LearningError, grpc.StatusCode.INVALID_ARGUMENT),
    (StorageError, grpc.StatusCode.INTERNAL),
    (SecAggError, grpc.StatusCode.INTERNAL),
    (ServiceError, grpc.StatusCode.INTERNAL),
)
_ERRORS: Final[dict[grpc.StatusCode, type[RemoteError]]] = {
    code: error for error, code in reversed(_TABLE) if issubclass(error, RemoteError)
} | {
    grpc.StatusCode.DEADLINE_EXCEEDED: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,
}


def status_of(error: Exception) -> tuple[grpc.StatusCode, str, str] | None:
    """Return status, stable name and message of an error from a handler; None for a bug.

    Security: an INTERNAL error's message stays at home, since it may name paths of this machine.
    """
    for kind, code in _TABLE:
        if isinstance(error, kind):
            name = _name(error)
            if code is grpc.StatusCode.INTERNAL:
                return code, name, "the coordinator could not do this; its log says why"
            return code, name, str(error)[:_DETAILS_CHARS]
    return None


async def abort(
    context: grpc.aio.ServicerContext,  # type: ignore[type-arg] # any call's: only abort is used
    error: Exception,
    unexpected: Callable[[Exception], None],
    answered: Callable[[str], None],
) -> NoReturn:
    """End the call with the error's status.

    `unexpected` is told of what is not the caller's fault, `answered` of each stable name.
    """
    status = status_of(error)
    if status is None or status[0] is grpc.StatusCode.INTERNAL:
        unexpected(error)
    code, name, message = status or (
        grpc.StatusCode.INTERNAL,
        InternalError.code,
        "the coordinator met a bug; its log says more",
    )
    answered(name)
    await context.abort(code, message, ((CODE_KEY, name),))


@contextmanager
def remote_errors(target: str) -> Iterator[None]:
    """Raise the typed error for a call's status; `target` is the address, for the message."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_of(error, target) from error


def error_of(error: grpc.aio.AioRpcError, target: str) -> RemoteError:
    """Return the typed error for a call's status."""
    names = [value for key, value in error.trailing_metadata() or () if key == CODE_KEY]
    name = names[0] if names and isinstance(names[0], str) else ""
    details = error.details() or "no details"
    if name:
        kind = _ERRORS.get(error.code(), InternalError)
        return kind(details, remote_code=name)
    # Without our name it was not a handler who answered but gRPC itself, or something in between.
    match error.code():
        case grpc.StatusCode.UNIMPLEMENTED:
            return VersionError(
                f"{target} does not know this call ({details})",
                hint="compare the software versions of both sides",
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return TooLargeError(
                f"{target} or this side refuses a message for its size ({details})",
                hint="nothing here sends more than 4 MiB; look for a proxy with a smaller limit",
            )
        case grpc.StatusCode.UNAVAILABLE:
            return UnavailableError(f"{target} cannot be reached ({details})")
        case code:
            return _ERRORS.get(code, InternalError)(f"{target}: {code.name}: {details}")


def _name(error: Exception) -> str:
    """Return the error's stable name."""
    if isinstance(error, RemoteError):
        return error.remote_code
    if isinstance(error, ServiceError | SecAggError):
        return error.code
    return type(error).__name__

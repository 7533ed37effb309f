"""Writing files so that a crash, a full disk or a lax umask cannot spoil them.

A file is replaced as a whole: written beside its place, flushed to disk, renamed, and the folder
flushed. Until the rename the old file is untouched. What holds a secret is 0600 from its first
byte. Leftovers of a crash end in `.part` and are removed at the next start.
"""

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Final

from services.errors import CredentialError, StorageError

_PART: Final = ".part"
_SECRET_MODE: Final = 0o600


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file by new content and keep its mode; a new file gets the umask's.

    Raises:
        StorageError: names the path and the free space; the old content is still there.
    """
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    _replace(path, data, create_mode=0o666, mode=mode)


def write_secret(path: Path, data: bytes) -> None:
    """Replace a file by secret content that only its owner may ever read.

    Raises:
        StorageError: names the path and the free space; the old content is still there.
    """
    _replace(path, data, create_mode=_SECRET_MODE, mode=_SECRET_MODE)


def read_secret(path: Path, kind: str) -> bytes:
    """Read a secret file that nobody else may read.

    Raises:
        CredentialError: it is not there, or its mode lets others read it.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise CredentialError(
                f"expected {kind} at {path} to be readable by its owner only, got mode {mode:04o}",
                hint=f"chmod 600 {path}",
            )
        return path.read_bytes()
    except OSError as error:
        raise CredentialError(f"{kind} at {path} cannot be read: {error.strerror}") from error


def make_private_dir(path: Path) -> Path:
    """Make a folder, and its parents, that only its owner may enter."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise storage_error(path, error) from error
    return path


def remove_leftovers(directory: Path) -> int:
    """Remove what a crash left half-written in a folder; return how many files."""
    parts = list(directory.glob(f"*{_PART}"))
    for part in parts:
        part.unlink(missing_ok=True)
    return len(parts)


def sync_directory(directory: Path) -> None:
    """Flush a folder's entries, so that a rename in it survives a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of data at an offset of an open file."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def storage_error(path: Path, error: OSError) -> StorageError:
    """Say what the system refused at a path, with the free space if the disk is full."""
    message = f"{path}: {error.strerror or error}"
    if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
        return StorageError(message)
    free = shutil.disk_usage(path if path.exists() else path.parent).free
    return StorageError(f"{message}, {free} bytes are free", hint="what was stored before is kept")


def _replace(path: Path, data: bytes, *, create_mode: int, mode: int | None) -> None:
    part = path.with_name(path.name + _PART)
    try:
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, create_mode)
        try:
            if mode is not None:
                os.fchmod(descriptor, mode)
            write_all(descriptor, data, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        part.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise storage_error(path, error) from error

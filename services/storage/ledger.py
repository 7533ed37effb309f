"""A ledger is one file of JSON lines, which the offline verifier reads as it is.

A line is written and flushed under the file's lock, and only if the file holds as many lines as the
writer has seen: of two processes on one data set one wins and the other decides again. A line
without its line feed was cut by a crash while it was written, before anything followed from it; the
next append takes its place.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dp.errors import LedgerConflictError
from services.files import make_private_dir, storage_error, sync_directory, write_all

_MODE: Final = 0o600


class FileLedgerStore:
    """`dp.ledger.LedgerStore` over a file; any number of processes."""

    def __init__(self, path: Path) -> None:
        """Name the file; it is made with the first line, readable by its owner only."""
        self.path = path

    def read(self, start: int) -> Sequence[bytes]:
        """All lines from place `start` on.

        Raises:
            StorageError: the file cannot be read.
        """
        try:
            return _lines(self.path.read_bytes())[start:]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error(self.path, error) from error

    def append(self, line: bytes, *, expected_lines: int) -> None:
        """Add a line if there are exactly `expected_lines`; it is on disk when this returns.

        Raises:
            LedgerConflictError: there are more, or fewer; nothing was added.
            StorageError: the disk refuses.
        """
        make_private_dir(self.path.parent)
        try:
            with _locked(self.path) as descriptor:
                data = self.path.read_bytes()
                lines = _lines(data)
                if len(lines) != expected_lines:
                    raise LedgerConflictError(
                        f"expected {expected_lines} lines, the ledger has {len(lines)}"
                    )
                end = data.rfind(b"\n") + 1
                os.ftruncate(descriptor, end)
                write_all(descriptor, line + b"\n", end)
                os.fsync(descriptor)
            if expected_lines == 0:
                sync_directory(self.path.parent)
        except OSError as error:
            raise storage_error(self.path, error) from error


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The file's descriptor, while no other process appends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _lines(data: bytes) -> list[bytes]:
    return data.split(b"\n")[:-1]

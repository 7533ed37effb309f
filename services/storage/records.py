"""A file of records that are only ever added, each chained to the one before by SHA-256.

What a kill or a power cut tears is the tail: it is cut off when the file is opened again. Damage
before the tail is an error. Adding is cheap; `sync` makes all of it survive a power cut.
"""

import hashlib
import os
import struct
from pathlib import Path
from typing import Final

from services.errors import CorruptError
from services.files import storage_error, write_all

_HEAD: Final = struct.Struct("<I32s")
_MAX_BYTES: Final = 64 * 1024 * 1024


class RecordFile:
    """Records in a file, 0600; used by one process, one call at a time."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it, and read what is in it.

        Raises:
            CorruptError: a record is damaged that others follow.
            StorageError: the disk refuses.
        """
        self._path = path
        self._chain = bytes(32)
        self._end = 0
        self._is_dirty = False
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self.found = self._read(path.read_bytes())
                os.ftruncate(self._file, self._end)
            except BaseException:
                os.close(self._file)
                raise
        except OSError as error:
            raise storage_error(path, error) from error

    def append(self, record: bytes) -> None:
        """Add a record; a kill of this process does not lose it."""
        chain = _link(self._chain, record)
        frame = _HEAD.pack(len(record), chain) + record
        try:
            write_all(self._file, frame, self._end)
        except OSError as error:
            raise storage_error(self._path, error) from error
        self._end += len(frame)
        self._chain = chain
        self._is_dirty = True

    def sync(self) -> None:
        """Return when everything added so far would survive a power cut."""
        if self._is_dirty:
            try:
                os.fdatasync(self._file)
            except OSError as error:
                raise storage_error(self._path, error) from error
            self._is_dirty = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self, data: bytes) -> tuple[bytes, ...]:
        found: list[bytes] = []
        while len(data) - self._end >= _HEAD.size:
            length, chain = _HEAD.unpack_from(data, self._end)
            start = self._end + _HEAD.size
            record = data[start : start + length]
            following = _link(self._chain, record)
            if following != chain:
                if length <= _MAX_BYTES and start + length < len(data):
                    raise CorruptError(
                        f"{self._path}: record {len(found)} is damaged",
                        hint="the disk or a copy lost bytes; this attempt cannot go on",
                    )
                break  # torn
            found.append(record)
            self._chain, self._end = chain, start + length
        return tuple(found)


def _link(chain: bytes, record: bytes) -> bytes:
    return hashlib.sha256(chain + record).digest()

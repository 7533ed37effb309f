"""Big things on disk: vectors that arrive chunk by chunk, and blobs written as a whole.

A vector is two files: the chunks' bytes in order of arrival, and an index with one fixed record a
chunk (where, how long, SHA-256). Bytes are written before the record that names them and never
overwritten, so a crash leaves whole chunks and perhaps some waste, and a flipped bit is found when
it is read. A blob is a file named after its content's SHA-256.
"""

import hashlib
import os
import re
import struct
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from services.errors import CorruptError, StorageError
from services.files import (
    make_private_dir,
    remove_leftovers,
    storage_error,
    sync_directory,
    write_all,
    write_secret,
)

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
# Offset, length and SHA-256 of one chunk; a length of 0 stands for a chunk that is not there.
_RECORD: Final = struct.Struct("<QQ32s")
# A million chunks of 512 KiB are 2**37 coordinates of 32 bits.
_MAX_CHUNKS: Final = 2**20
_BLOB: Final = ".blob"


class FileVectorStore:
    """secagg's VectorStore in a folder of its own; may be used from several threads.

    What was written is durable after `sync`: call it before anything durable speaks of a vector.
    """

    def __init__(self, directory: Path) -> None:
        """Use a folder, made 0700 if it is not there; vectors in it are found again."""
        self._directory = make_private_dir(directory)
        self._vectors: dict[str, _Vector] = {}
        self._lock = threading.Lock()

    def write(self, name: str, chunk: int, data: bytes) -> None:
        """Keep chunk number `chunk` of the vector `name`; a repeated write replaces it.

        Raises:
            StorageError: the disk refuses, or the name or number is none of a vector's.
        """
        path = self._path(name)
        if not 0 <= chunk < _MAX_CHUNKS or not data:
            raise StorageError(
                f"vector {name!r}: expected a chunk number below {_MAX_CHUNKS} and at least one "
                f"byte, got number {chunk} and {len(data)} bytes"
            )
        with self._lock:
            try:
                vector = self._vectors.get(name)
                if vector is None:
                    vector = self._vectors[name] = _Vector(path)
                vector.write(chunk, data)
            except OSError as error:
                raise storage_error(path, error) from error

    def read(self, name: str, chunk: int) -> bytes:
        """Give back a chunk.

        Raises:
            KeyError: it is not there.
            CorruptError: the bytes on disk are not those that were written.
        """
        with self._lock:
            vector = self._find(name)
            if vector is None:
                raise KeyError(f"no vector {name!r}")
            offset, length, digest = vector.place(chunk)
            data = os.pread(vector.data, length, offset)
        if hashlib.sha256(data).digest() != digest:
            raise CorruptError(
                f"{self._path(name)}: chunk {chunk} is damaged",
                hint="the disk or a copy lost bytes; this attempt cannot use the vector",
            )
        return data

    def chunks(self, name: str) -> int:
        """How many chunks of `name` are there without a gap, counted from 0."""
        with self._lock:
            vector = self._find(name)
            return 0 if vector is None else vector.contiguous

    def discard(self, name: str) -> None:
        """Forget the vector; nothing happens if there is none."""
        path = self._path(name)
        with self._lock:
            vector = self._vectors.pop(name, None)
            if vector is not None:
                vector.close()
            for suffix in (".index", ".data"):
                path.with_name(name + suffix).unlink(missing_ok=True)

    def sync(self) -> None:
        """Return when everything written so far would survive a power cut."""
        with self._lock:
            dirty = [vector for vector in self._vectors.values() if vector.is_dirty]
            for vector in dirty:
                vector.sync()
            if dirty:
                sync_directory(self._directory)

    def close(self) -> None:
        """Close the files; the vectors stay."""
        with self._lock:
            for vector in self._vectors.values():
                vector.close()
            self._vectors.clear()

    def _find(self, name: str) -> "_Vector | None":
        path = self._path(name)
        if name not in self._vectors and path.with_name(f"{name}.index").exists():
            self._vectors[name] = _Vector(path)
        return self._vectors.get(name)

    def _path(self, name: str) -> Path:
        if _NAME.fullmatch(name) is None:
            raise StorageError(
                "expected a vector name of 1 to 64 lowercase letters, digits, dots, underscores or "
                f"hyphens that starts with a letter or digit, got {name!r}"
            )
        return self._directory / name


class _Vector:
    """One vector's two open files and its index in memory."""

    def __init__(self, path: Path) -> None:
        self.data = _open(path.with_name(f"{path.name}.data"))
        self.index = _open(path.with_name(f"{path.name}.index"))
        self.is_dirty = False
        self.contiguous = 0
        self._end = os.fstat(self.data).st_size
        self._places: dict[int, tuple[int, int, bytes]] = {}
        records = os.pread(self.index, _MAX_CHUNKS * _RECORD.size, 0)
        whole = len(records) // _RECORD.size * _RECORD.size
        for chunk, place in enumerate(_RECORD.iter_unpack(records[:whole])):
            # A record can reach the disk before its bytes if the power fails before `sync`.
            if place[1] > 0 and place[0] + place[1] <= self._end:
                self._places[chunk] = place
        self._count()

    def write(self, chunk: int, data: bytes) -> None:
        digest = hashlib.sha256(data).digest()
        if chunk in self._places and self._places[chunk][2] == digest:
            return
        place = (self._end, len(data), digest)
        write_all(self.data, data, self._end)
        self._end += len(data)
        write_all(self.index, _RECORD.pack(*place), chunk * _RECORD.size)
        self._places[chunk] = place
        self.is_dirty = True
        self._count()

    def place(self, chunk: int) -> tuple[int, int, bytes]:
        if chunk not in self._places:
            raise KeyError(f"no chunk {chunk}")
        return self._places[chunk]

    def sync(self) -> None:
        os.fsync(self.data)
        os.fsync(self.index)
        self.is_dirty = False

    def close(self) -> None:
        os.close(self.data)
        os.close(self.index)

    def _count(self) -> None:
        while self.contiguous in self._places:
            self.contiguous += 1


class BlobStore:
    """Blobs in a folder of their own, each named after its SHA-256 in hexadecimal, each 0600.

    Where processes follow one another on one folder (`services.storage.lease`), each writes and
    removes in a part of its own and reads in all: one that wakes up after it was replaced can then
    remove nothing that its successor counts on.
    """

    def __init__(self, directory: Path, part: str = "") -> None:
        """Use a folder, made 0700 if it is not there; a crash's leftovers are removed."""
        self._root = make_private_dir(directory)
        self._directory = make_private_dir(directory / part)
        remove_leftovers(self._directory)

    def put(self, data: bytes) -> str:
        """Write a blob durably and return its name."""
        digest = hashlib.sha256(data).hexdigest()
        path = self._directory / f"{digest}{_BLOB}"
        if not path.exists():
            write_secret(path, data)
        return digest

    def get(self, digest: str, what: str) -> bytes:
        """Read a blob.

        Args:
            digest: its name.
            what: what it is, for the message.

        Raises:
            CorruptError: it is gone or damaged; names the file.
        """
        name = f"{digest}{_BLOB}"
        path = next(self._root.glob(f"*/{name}"), self._root / name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CorruptError(f"{what}: {path} cannot be read: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise CorruptError(
                f"{what}: {path} is damaged", hint="restore the whole folder from a backup"
            )
        return data

    def keep_only(self, digests: Iterable[str], *, everywhere: bool = False) -> None:
        """Remove every other blob of this part, or of all parts."""
        kept = set(digests)
        folder, pattern = (self._root, "**/") if everywhere else (self._directory, "")
        for path in folder.glob(f"{pattern}*{_BLOB}"):
            if path.stem not in kept:
                path.unlink(missing_ok=True)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

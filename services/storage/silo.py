"""What a silo keeps: its journal, which binds it, and what it remembers of each run.

The journal is a list of records, each chained to the one before by SHA-256, and each on disk when
`append_journal` returns; old ones are replaced by summaries (`secagg.journal`). Memory is a set of
named blobs a run; several change together or not at all, so that a control variate and the state it
belongs to never disagree after a crash.
"""

import hashlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from sqlalchemy import Column, Integer, LargeBinary, MetaData, String, Table, delete, insert, select

from secagg.ids import RunId
from services.errors import CorruptError
from services.files import remove_leftovers, write_secret
from services.storage.blobs import BlobStore
from services.storage.database import Database

_HOLDERS: Final = "incarnations"
_MOST_HOLDERS: Final = 8
_METADATA: Final = MetaData()
_JOURNAL: Final = Table(
    "journal",
    _METADATA,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("record", LargeBinary, nullable=False),
    Column("chain", LargeBinary(32), nullable=False),
)
_MEMORY: Final = Table(
    "memory",
    _METADATA,
    Column("run", String(32), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("digest", String(64), nullable=False),
)


class SiloStore:
    """A silo's folder; one process at a time, any of its threads."""

    def __init__(self, directory: Path) -> None:
        """Open the folder, or make it, 0700."""
        self._database = Database(directory, "silo")
        remove_leftovers(directory)
        self._blobs = BlobStore(directory / "memory")
        self._lock = threading.Lock()
        self._chain = bytes(32)
        for record, chain in self._rows():
            self._chain = _link(self._chain, record)
            if self._chain != chain:
                self._database.close()
                raise CorruptError(
                    f"{self._database.path}: the journal is damaged",
                    hint="without it this silo cannot know what it has signed; restore the folder "
                    "and let the coordinator's next run begin above what it has seen",
                )
        self._sweep()

    def succeed(self, incarnation: bytes) -> tuple[bytes, ...]:
        """Note which process holds the folder now; returns the last ones that did."""
        path = self._database.directory / _HOLDERS
        data = path.read_bytes() if path.exists() else b""
        size = len(incarnation)
        whole = len(data) // size * size
        former = [data[start : start + size] for start in range(0, whole, size)][-_MOST_HOLDERS:]
        write_secret(path, b"".join([*former, incarnation]))
        return tuple(former)

    def append_journal(self, record: bytes) -> None:
        """Add a record; it is on disk when this returns."""
        with self._lock:
            chain = _link(self._chain, record)
            with self._database.transaction() as connection:
                connection.execute(insert(_JOURNAL).values(record=record, chain=chain))
            self._chain = chain

    def journal(self) -> tuple[bytes, ...]:
        """Return all records, the oldest first."""
        return tuple(record for record, _ in self._rows())

    def replace_journal(self, records: Sequence[bytes]) -> None:
        """Let these be the journal, all or nothing; the records that stay in place are not touched.

        Args:
            records: what remains of `journal()`, the oldest first.
        """
        with self._lock:
            rows = self._rows()
            same = next(
                (
                    place
                    for place, (old, new) in enumerate(zip(rows, records, strict=False))
                    if old[0] != new
                ),
                min(len(rows), len(records)),
            )
            chain = rows[same - 1][1] if same else bytes(32)
            links = []
            for record in records[same:]:
                chain = _link(chain, record)
                links.append({"record": record, "chain": chain})
            sequences = select(_JOURNAL.c.sequence).order_by(_JOURNAL.c.sequence).offset(same)
            with self._database.transaction() as connection:
                connection.execute(delete(_JOURNAL).where(_JOURNAL.c.sequence.in_(sequences)))
                if links:
                    connection.execute(insert(_JOURNAL), links)
            self._chain = chain

    def remember(self, run: RunId, values: Mapping[str, bytes | None]) -> None:
        """Write all of `values`, durably, or nothing; None removes a name."""
        with self._lock:
            digests = {
                name: self._blobs.put(data) for name, data in values.items() if data is not None
            }
            with self._database.transaction() as connection:
                mine = (_MEMORY.c.run == run.hex) & _MEMORY.c.name.in_(list(values))
                connection.execute(delete(_MEMORY).where(mine))
                if digests:
                    connection.execute(
                        insert(_MEMORY),
                        [
                            {"run": run.hex, "name": name, "digest": digest}
                            for name, digest in digests.items()
                        ],
                    )
            self._sweep()

    def recall(self, run: RunId, name: str) -> bytes | None:
        """Return what was last written under a name, None if nothing.

        Raises:
            CorruptError: it is damaged.
        """
        mine = (_MEMORY.c.run == run.hex) & (_MEMORY.c.name == name)
        with self._lock, self._database.transaction() as connection:
            digest = connection.execute(select(_MEMORY.c.digest).where(mine)).scalar_one_or_none()
            return None if digest is None else self._blobs.get(digest, f"{name} of run {run}")

    def runs(self) -> tuple[RunId, ...]:
        """Return the runs of which something is remembered."""
        query = select(_MEMORY.c.run).distinct()
        with self._database.transaction() as connection:
            return tuple(map(RunId.parse, connection.execute(query).scalars()))

    def close(self) -> None:
        """Release the folder."""
        self._database.close()

    def _rows(self) -> list[tuple[bytes, bytes]]:
        query = select(_JOURNAL.c.record, _JOURNAL.c.chain).order_by(_JOURNAL.c.sequence)
        with self._database.transaction() as connection:
            return [(bytes(record), bytes(chain)) for record, chain in connection.execute(query)]

    def _sweep(self) -> None:
        with self._database.transaction() as connection:
            self._blobs.keep_only(connection.execute(select(_MEMORY.c.digest)).scalars())


def _link(chain: bytes, record: bytes) -> bytes:
    return hashlib.sha256(chain + record).digest()

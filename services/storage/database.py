"""One embedded database in a folder that one process owns.

SQLite in WAL mode with synchronous=FULL: a committed transaction survives a power cut. The schema's
version stands in the database, and a newer one is refused instead of being misread. A lock on the
folder keeps a second process out: two silos with one journal would each break the other's promises.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    Table,
    create_engine,
    event,
    insert,
    inspect,
    select,
)
from sqlalchemy.engine import URL, Connection
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from services.errors import CorruptError, SchemaVersionError, StorageError
from services.files import make_private_dir, storage_error

SCHEMA_VERSION: Final = 1
_SCHEMA: Final = "schema"
_PRAGMAS: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA busy_timeout=10000",
)


class Database:
    """A database with the given tables, in `directory`/data.db; the folder is ours until `close`.

    Raises:
        StorageError: another process has the folder, or the disk refuses.
        SchemaVersionError: a newer version of this software wrote it.
        CorruptError: the file is no such database.
    """

    def __init__(self, directory: Path, metadata: MetaData) -> None:
        """Open the database, or make it, 0600."""
        self.directory = make_private_dir(directory)
        self.path = directory / "data.db"
        self._lock = _claim(directory)
        try:
            # SQLite gives its -wal and -shm files the mode of the database itself.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            self._engine = _engine(self.path)
            self._prepare(metadata)
        except OSError as error:
            os.close(self._lock)
            raise storage_error(self.path, error) from error
        except BaseException:
            os.close(self._lock)
            raise

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Give a connection whose work is durable at the end of the block, or undone."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise self._translated(error) from error

    def close(self) -> None:
        """Close the database and release the folder."""
        self._engine.dispose()
        os.close(self._lock)

    def _prepare(self, metadata: MetaData) -> None:
        schema = Table(_SCHEMA, MetaData(), Column("version", Integer, primary_key=True))
        with self.transaction() as connection:
            if inspect(connection).has_table(_SCHEMA):
                version = connection.execute(select(schema.c.version)).scalar_one()
                if version > SCHEMA_VERSION:
                    raise SchemaVersionError(
                        f"{self.path}: expected schema version {SCHEMA_VERSION} or older, got "
                        f"{version}",
                        hint="use the newer version of this software that wrote it",
                    )
            else:
                schema.create(connection)
                connection.execute(insert(schema).values(version=SCHEMA_VERSION))
            metadata.create_all(connection)

    def _translated(self, error: SQLAlchemyError) -> StorageError:
        original = getattr(error, "orig", None) or error
        if isinstance(error, DatabaseError) and not isinstance(error, OperationalError):
            return CorruptError(
                f"{self.path}: {original}", hint="restore the whole folder from a backup"
            )
        return StorageError(f"{self.path}: {original}", hint="is the disk full or read-only?")


def _engine(path: Path) -> Engine:
    engine = create_engine(URL.create("sqlite", database=str(path)))

    @event.listens_for(engine, "connect")
    def _configure(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        for pragma in _PRAGMAS:
            cursor.execute(pragma)
        cursor.close()

    return engine


def _claim(directory: Path) -> int:
    """Lock the folder for this process; the system releases it if the process dies."""
    path = directory / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise storage_error(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StorageError(
            f"{directory} is in use by another process",
            hint="end it first, or give each process a folder of its own",
        ) from error
    return descriptor

"""One database: SQLite in a folder that one process owns, or PostgreSQL by URL.

SQLite in WAL mode with synchronous=FULL: a committed transaction survives a power cut, and a lock
on the folder keeps a second process out: two silos with one journal would each break the other's
promises. On PostgreSQL a lease does that (`services.storage.lease`). The schema's version stands in
the database: an older one is migrated, a newer one refused instead of being misread.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy import (
    Engine,
    String,
    column,
    create_engine,
    event,
    inspect,
    make_url,
    select,
    table,
    text,
)
from sqlalchemy.engine import URL, Connection
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.pool import ConnectionPoolEntry

from services.clock import monotonic
from services.errors import ConfigError, CorruptError, SchemaVersionError, StorageError
from services.files import make_private_dir, storage_error

# The newest revision of each schema; test_migrations compares them with the folder.
NEWEST: Final = {"coordinator": 5, "silo": 1}
# Before releases had migrations, a table of this name held the version.
_FIRST_VERSION: Final = "schema"
_VERSION: Final = "alembic_version"
_PRAGMAS: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA busy_timeout=10000",
    # The log beside a file keeps the most that it has ever had: half a megabyte.
    "PRAGMA wal_autocheckpoint=128",
)
# How long a PostgreSQL that is restarted may be away, and how often it is tried.
_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.5
_CONNECT_S: Final = 5
# A process that stops within a transaction would hold the lease's row, and with it its successor.
_IDLE_MS: Final = 10_000
# Whoever migrates holds this advisory lock, so that two coordinators do not do it at once.
_MIGRATION_LOCK: Final = 0x5EC466

_T = TypeVar("_T")


class Database:
    """A database with the tables of a schema, ours until `close`.

    Without a URL it is `directory`/data.db, and the folder is locked.

    Raises:
        StorageError: another process has the folder, the disk or the server refuses.
        SchemaVersionError: a newer version of this software wrote it.
        CorruptError: the file is no such database.
        ConfigError: the URL is none that this software can use.
    """

    def __init__(
        self, directory: Path, schema: str, *, url: str = "", patience_s: float = _PATIENCE_S
    ) -> None:
        """Open the database, or make it, 0600."""
        self.directory = make_private_dir(directory)
        self.path = directory / "data.db"
        self.is_server = bool(url)
        self._patience_s = patience_s
        self._lock = None if url else _claim(directory)
        try:
            self._engine, self.name = _server_engine(url) if url else _file_engine(self.path)
            try:
                self.transact(lambda connection: self._prepare(connection, schema))
            except BaseException:
                self._engine.dispose()
                raise
        except BaseException:
            self._release()
            raise

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Give a connection whose work is durable at the end of the block, or undone."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise self._translated(error) from error

    def transact(self, work: Callable[[Connection], _T]) -> _T:
        """Do work in one transaction; do it again, for a while, if the server was out of reach.

        Args:
            work: done once more after a commit whose answer was lost; it must not mind.

        Raises:
            StorageError: as `transaction`, or the server was away for too long.
        """
        give_up = monotonic() + self._patience_s
        while True:
            try:
                with self.transaction() as connection:
                    return work(connection)
            except StorageError as error:
                cause = error.__cause__
                is_cut = isinstance(cause, DBAPIError) and cause.connection_invalidated
                is_away = self.is_server and (is_cut or isinstance(cause, OperationalError))
                if not is_away or monotonic() > give_up:
                    raise
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        """Close the database and release the folder."""
        self._engine.dispose()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def _prepare(self, connection: Connection, schema: str) -> None:
        if self.is_server:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
        version, newest = _version(connection), NEWEST[schema]
        if version > newest:
            raise SchemaVersionError(
                f"{self.name}: expected schema version {newest} or older, got {version}",
                hint="use the newer version of this software that wrote it",
            )
        if version < newest:
            from services.storage.migrate import migrate  # slow to import, and seldom needed

            migrate(connection, schema, is_unversioned=not inspect(connection).has_table(_VERSION))

    def _translated(self, error: SQLAlchemyError) -> StorageError:
        original = getattr(error, "orig", None) or error
        if self.is_server:
            return StorageError(f"{self.name}: {original}", hint="is the database server up?")
        if isinstance(error, DatabaseError) and not isinstance(error, OperationalError):
            return CorruptError(
                f"{self.name}: {original}", hint="restore the whole folder from a backup"
            )
        return StorageError(f"{self.name}: {original}", hint="is the disk full or read-only?")


def _version(connection: Connection) -> int:
    """The schema's revision; 0 for an empty database."""
    tables = inspect(connection)
    for name, version in ((_VERSION, "version_num"), (_FIRST_VERSION, "version")):
        if tables.has_table(name):
            query = select(column(version, String)).select_from(table(name))
            return int(connection.execute(query).scalar_one())
    return 0


def _file_engine(path: Path) -> tuple[Engine, str]:
    """An engine for a file, made 0600 if it is not there, and its name in messages."""
    try:
        # SQLite gives its -wal and -shm files the mode of the database itself.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise storage_error(path, error) from error
    engine = create_engine(URL.create("sqlite", database=str(path)))

    @event.listens_for(engine, "connect")
    def _configure(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # the driver would begin no transaction before DDL
        cursor = connection.cursor()
        for pragma in _PRAGMAS:
            cursor.execute(pragma)
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and writes then would fail if another wrote in between.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine, str(path)


def _server_engine(address: str) -> tuple[Engine, str]:
    """An engine for a PostgreSQL URL, and how to call it in messages: without its password."""
    try:
        url = make_url(address)
    except ArgumentError as error:
        raise ConfigError(
            "database: expected postgresql://USER@HOST/NAME, got no URL", keys=("database",)
        ) from error
    name = url.render_as_string(hide_password=True)
    if url.drivername not in {"postgresql", "postgresql+psycopg"}:
        raise ConfigError(
            f"database: expected postgresql://USER@HOST/NAME, got {name}", keys=("database",)
        )
    try:
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,
            connect_args={"connect_timeout": _CONNECT_S},
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"database: {name} needs a driver that is not installed",
            keys=("database",),
            hint='pip install "secagg[postgres]"',
        ) from error

    @event.listens_for(engine, "connect")
    def _configure(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET idle_in_transaction_session_timeout = {_IDLE_MS}")
        cursor.close()
        connection.commit()

    return engine, name


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

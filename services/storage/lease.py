"""Which of several coordinators on one PostgreSQL may write: the one that holds the lease.

A lease ends by the database server's clock, so no other clock matters. Each holder gets a token one
higher than the last holder's, and every transaction that writes locks the lease's row and compares
the token first: a holder that was asleep while another took over changes nothing more. What is no
transaction, files and messages, asks `hold` first.

The rows name files. Which folder holds them, a mark says that lies in it and in the lease: a
coordinator with a folder of its own is refused when it is started, not when it is needed.
"""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Column, Float, Integer, MetaData, String, Table, Text, func, select, update
from sqlalchemy.engine import Connection

from services.clock import elapsed, readings
from services.errors import ConfigError, LeaseLostError
from services.storage.database import Database

# A standby takes over this long after the holder's last sign of life; the holder gives three.
LEASE_S: Final = 15.0
RENEW_S: Final = LEASE_S / 3
# The file in a storage folder that tells it from others.
MARK: Final = "folder-mark"

_LEASE: Final = Table(
    "lease",
    MetaData(),
    Column("name", String(32), primary_key=True),
    Column("token", Integer, nullable=False),
    Column("holder", Text, nullable=False),
    Column("expires_unix_s", Float, nullable=False),
    Column("folder", String(32), nullable=False),
)
_NOW: Final = func.date_part("epoch", func.clock_timestamp())


@dataclass(slots=True)
class Lease:
    """One process's claim; not held before `try_take` has succeeded.

    Attributes:
        holder: names the process to people.
        folder: mark of the storage folder, 32 hexadecimal digits.
        token: this holder's number; 0 while nothing is held.
    """

    database: Database
    holder: str
    folder: str
    lease_s: float = LEASE_S
    token: int = 0
    _since: tuple[float, ...] = ()

    def try_take(self) -> str | None:
        """Take the lease if it has ended; returns who holds it otherwise, None if we do.

        Raises:
            ConfigError: the database's files lie in another folder.
        """
        asked = readings()
        holder = self.database.transact(self._try_take)
        self._since = asked
        return holder

    def renew(self) -> None:
        """Hold the lease for another `lease_s`.

        Raises:
            LeaseLostError: another process has taken it.
        """
        asked = readings()
        self._set_end(self.lease_s)
        self._since = asked

    def hold(self) -> None:
        """Make sure that nobody else has the lease: by our clocks, after a sleep by the server.

        Raises:
            LeaseLostError: another process has taken it.
        """
        if elapsed(self._since) >= self.lease_s:
            self.renew()

    def release(self) -> None:
        """Let another process take the lease at once."""
        self._set_end(0.0)

    def check(self, connection: Connection) -> None:
        """Make sure, until this transaction ends, that nobody else takes the lease.

        Raises:
            LeaseLostError: somebody has.
        """
        row = connection.execute(select(_LEASE.c.token, _LEASE.c.holder).with_for_update()).one()
        if row.token != self.token:
            raise LeaseLostError(
                f"{self.database.name}: {row.holder} has taken over; this process ends",
                hint="it may be started again, as a standby",
            )

    def _set_end(self, seconds: float) -> None:
        def work(connection: Connection) -> None:
            self.check(connection)
            connection.execute(update(_LEASE).values(expires_unix_s=_NOW + seconds))

        self.database.transact(work)

    def _try_take(self, connection: Connection) -> str | None:
        row = connection.execute(select(_LEASE.c.folder, _LEASE.c.holder)).one()
        if row.folder not in {"", self.folder}:
            raise ConfigError(
                f"storage: expected the folder with which {row.holder} has used "
                f"{self.database.name}, got another one: snapshots, logbooks and ledgers are files",
                keys=("storage",),
                hint=f"mount that folder here; its file {MARK!r} holds {row.folder}",
            )
        free = (_LEASE.c.expires_unix_s < _NOW) & (_LEASE.c.folder == row.folder)
        taken = connection.execute(
            update(_LEASE)
            .where(free)
            .values(
                token=_LEASE.c.token + 1,
                holder=self.holder,
                expires_unix_s=_NOW + self.lease_s,
                folder=self.folder,
            )
            .returning(_LEASE.c.token)
        ).scalar_one_or_none()
        if taken is None:
            return str(row.holder)
        self.token = taken
        return None

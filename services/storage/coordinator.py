"""What the coordinator keeps: runs, their rounds, and the newest snapshot of each.

A round is committed in one transaction: the snapshot (model, algorithm state and round number in
one blob), its report, and files such as the released model. Blobs reach the disk before the
transaction that names them, and old ones go after it, so a crash at any step leaves either the old
round or the new one, whole.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import (
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    Text,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.engine import Connection

from secagg.ids import RunId
from secagg.rng import SystemRng
from services import faults
from services.errors import ConflictError, NotFoundError, StorageError
from services.files import read_secret, write_secret
from services.storage.blobs import BlobStore
from services.storage.database import Database
from services.storage.lease import LEASE_S, MARK, Lease
from services.wire.calls import MemberChange, RoundReport, RunState

_METADATA: Final = MetaData()
_RUNS: Final = Table(
    "runs",
    _METADATA,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("run", String(32), nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("algorithm", Text, nullable=False),
    Column("config", LargeBinary, nullable=False),
    Column("plan", LargeBinary, nullable=False),
    Column("cohort", Text, nullable=False),
    Column("rounds_total", Integer, nullable=False),
    Column("created_unix_s", Float, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("round", Integer, nullable=False),
    Column("snapshot", String(64)),
)
_ATTEMPTS: Final = Table(
    "attempts",
    _METADATA,
    Column("run", String(32), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("next", Integer, nullable=False),
)
_REPORTS: Final = Table(
    "reports",
    _METADATA,
    Column("run", String(32), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("document", Text, nullable=False),
)
_ARTIFACTS: Final = Table(
    "artifacts",
    _METADATA,
    Column("run", String(32), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("digest", String(64), nullable=False),
)
_CHANGES: Final = Table(
    "changes",
    _METADATA,
    Column("run", String(32), primary_key=True),
    Column("seat", Integer, primary_key=True, autoincrement=False),
    Column("change", Text, nullable=False),
)
_SETTLED: Final = Table(
    "settled",
    _METADATA,
    Column("run", String(32), primary_key=True),
    Column("seat", Integer, primary_key=True, autoincrement=False),
    Column("statement", LargeBinary, nullable=False),
)
_REPORT: Final = TypeAdapter(RoundReport)
_COHORT: Final = TypeAdapter(tuple[int, ...])

# Run ids are drawn at random.
_NO_RUN: Final = RunId(bytes(16))

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as it was accepted, and where it stands.

    Attributes:
        config: the operator's TOML document.
        plan: the training plan's document.
        cohort: the seats that take part; empty until the first cohort is there.
        round: the last complete round; 0 before the first.
    """

    run: RunId
    name: str
    algorithm: str
    config: bytes
    plan: bytes
    cohort: tuple[int, ...]
    rounds_total: int
    created_unix_s: float
    state: RunState = RunState.WAITING
    reason: str = ""
    round: int = 0


class CoordinatorStore:
    """The coordinator's folder and database; one process at a time, any of its threads.

    Where the database is a PostgreSQL, several processes may have a store open on one folder; only
    the one whose `try_claim` succeeded last may use it, the others get LeaseLostError.
    """

    def __init__(
        self, directory: Path, *, url: str = "", holder: str = "", lease_s: float = LEASE_S
    ) -> None:
        """Open the folder, or make it, 0700.

        Args:
            directory: holds the blobs, and the database unless there is a URL.
            url: of a PostgreSQL; then call `try_claim` before anything else.
            holder: names this process to whoever waits for the lease.
            lease_s: how long after this process's last sign of life another one may take over.
        """
        self._database = Database(directory, "coordinator", url=url)
        self._lease = Lease(self._database, holder, _mark(directory), lease_s) if url else None
        self._lock = threading.Lock()
        self._folder = directory / "blobs"
        self._blobs = BlobStore(self._folder)
        if self._lease is None:
            self._sweep()

    def try_claim(self) -> str | None:
        """Become the one process that writes; returns who is it otherwise, None if we are.

        Raises:
            ConfigError: the database's files lie in another folder.
        """
        if self._lease is None:
            return None
        holder = self._lease.try_take()
        if holder is None:
            self._blobs = BlobStore(self._folder, part=str(self._lease.token))
            self._sweep(everywhere=True)
        return holder

    def renew(self) -> None:
        """Stay it; call every `services.storage.lease.RENEW_S` seconds.

        Raises:
            LeaseLostError: another process has taken over.
            StorageError: the server was away for too long.
        """
        if self._lease is not None:
            self._lease.renew()

    def hold(self) -> None:
        """Make sure that we are it, before a file of a run is written or a silo is told anything.

        Raises:
            LeaseLostError: another process has taken over.
            StorageError: the server was away for too long.
        """
        if self._lease is not None:
            self._lease.hold()

    def add_run(self, record: RunRecord, snapshot: bytes) -> RunRecord:
        """Accept a run with the snapshot to begin from; accepting it again changes nothing.

        Returns:
            The run as it stands, which is `record` if it is new.

        Raises:
            ConflictError: a run of this id has another configuration.
        """

        def work(connection: Connection) -> RunRecord:
            row = _find(connection, record.run)
            if row is not None:
                return _record(row)
            connection.execute(insert(_RUNS).values(**_values(record), snapshot=digest))
            return record

        with self._lock:
            digest = self._blobs.put(snapshot)
            known = self._write(work)
            self._sweep()
        if known.config != record.config:
            raise ConflictError(
                f"run {record.run} exists with another configuration",
                hint="draw a new run id for a new run",
            )
        return known

    def runs(self) -> tuple[RunRecord, ...]:
        """Return all runs, the newest first."""
        query = select(_RUNS).order_by(_RUNS.c.sequence.desc())
        return self._read(lambda connection: tuple(map(_record, connection.execute(query))))

    def run(self, run: RunId) -> RunRecord:
        """Return a run; NotFoundError if there is none."""
        return self._read(lambda connection: _record(_require(connection, run)))

    def set_state(self, run: RunId, state: RunState, reason: str = "") -> RunRecord:
        """Say where a run stands; NotFoundError if there is none."""

        def work(connection: Connection) -> RunRecord:
            record = replace(_record(_require(connection, run)), state=state, reason=reason)
            connection.execute(
                update(_RUNS).where(_RUNS.c.run == run.hex).values(state=state.value, reason=reason)
            )
            return record

        return self._write(work)

    def ask_change(self, run: RunId, seat: int, change: MemberChange) -> None:
        """Keep what an operator wants of a silo until `begin` applies it; the last word counts.

        Raises:
            NotFoundError: there is no such run.
        """

        def work(connection: Connection) -> None:
            _require(connection, run)
            mine = (_CHANGES.c.run == run.hex) & (_CHANGES.c.seat == seat)
            connection.execute(delete(_CHANGES).where(mine))
            connection.execute(insert(_CHANGES).values(run=run.hex, seat=seat, change=change.value))

        with self._lock:
            self._write(work)

    def changes(self, run: RunId) -> dict[int, MemberChange]:
        """Return what operators want of silos and what `begin` has not applied, by seat."""
        query = select(_CHANGES.c.seat, _CHANGES.c.change).where(_CHANGES.c.run == run.hex)
        rows = self._read(lambda connection: connection.execute(query).all())
        return {seat: MemberChange(change) for seat, change in rows}

    def begin(
        self,
        run: RunId,
        cohort: tuple[int, ...],
        snapshot: bytes,
        applied: Mapping[int, MemberChange] | None = None,
    ) -> RunRecord:
        """Fix who takes part in an accepted run from now on, with the snapshot that says so.

        Args:
            run: which.
            cohort: the seats.
            snapshot: of the run.
            applied: changes that cohort and snapshot hold; they are asked for no more.
        """

        def work(connection: Connection) -> RunRecord:
            record = replace(_record(_require(connection, run)), cohort=cohort)
            connection.execute(
                update(_RUNS)
                .where(_RUNS.c.run == run.hex)
                .values(cohort=_COHORT.dump_json(cohort).decode(), snapshot=digest)
            )
            for seat, change in (applied or {}).items():
                mine = (_CHANGES.c.run == run.hex) & (_CHANGES.c.seat == seat)
                connection.execute(delete(_CHANGES).where(mine & (_CHANGES.c.change == change)))
            return record

        with self._lock:
            digest = self._blobs.put(snapshot)
            record = self._write(work)
            self._sweep()
            return record

    def next_attempt(self, run: RunId, round_number: int) -> int:
        """Return an attempt number of a round that was never given before, durably; from 0."""
        mine = (_ATTEMPTS.c.run == run.hex) & (_ATTEMPTS.c.round == round_number)

        def work(connection: Connection) -> int:
            given = connection.execute(select(_ATTEMPTS.c.next).where(mine)).scalar_one_or_none()
            attempt = given or 0
            connection.execute(delete(_ATTEMPTS).where(mine))
            connection.execute(
                insert(_ATTEMPTS).values(run=run.hex, round=round_number, next=attempt + 1)
            )
            return attempt

        with self._lock:
            return self._write(work)

    def count_start(self) -> int:
        """Return how many processes have used this storage before, durably."""
        return self.next_attempt(_NO_RUN, 0)  # counted as attempts of a run that nobody has

    def commit_round(
        self,
        run: RunId,
        *,
        snapshot: bytes,
        report: RoundReport,
        artifacts: Mapping[str, bytes] | None = None,
    ) -> None:
        """Keep a complete round: snapshot, report and files, all or nothing.

        Args:
            run: an accepted run.
            snapshot: all that is needed to go on after the round.
            report: says which round; the same round again replaces its report.
            artifacts: files to keep beside it, such as the released model, by name.

        Raises:
            NotFoundError: there is no such run.
            ConflictError: a later round is committed already.
            StorageError: nothing was changed.
        """

        def work(connection: Connection) -> None:
            done = _record(_require(connection, run)).round
            if report.round < done:
                raise ConflictError(
                    f"run {run}: expected round {done} or later, got round {report.round}"
                )
            connection.execute(
                update(_RUNS)
                .where(_RUNS.c.run == run.hex)
                .values(round=report.round, snapshot=digest)
            )
            mine = (_REPORTS.c.run == run.hex) & (_REPORTS.c.round == report.round)
            connection.execute(delete(_REPORTS).where(mine))
            document = _REPORT.dump_json(report).decode()
            connection.execute(
                insert(_REPORTS).values(run=run.hex, round=report.round, document=document)
            )
            _keep_artifacts(connection, run, files)
            faults.hit("store.in-commit", report.round)

        with self._lock:
            digest = self._blobs.put(snapshot)
            files = {name: self._blobs.put(data) for name, data in (artifacts or {}).items()}
            faults.hit("store.before-commit", report.round)
            self._write(work)
            faults.hit("store.after-commit", report.round)
            self._sweep()

    def snapshot(self, run: RunId) -> bytes:
        """Return the snapshot of the last complete round, or the one the run began from.

        Raises:
            NotFoundError: there is no such run.
            CorruptError: it is damaged; names the file.
        """
        with self._lock:
            row = self._read(lambda connection: _require(connection, run))
            return self._blobs.get(row.snapshot, f"snapshot of run {run}")

    def reports(self, run: RunId, after_round: int = 0) -> tuple[RoundReport, ...]:
        """Return the reports of complete rounds after `after_round`, in order."""
        query = (
            select(_REPORTS.c.document)
            .where((_REPORTS.c.run == run.hex) & (_REPORTS.c.round > after_round))
            .order_by(_REPORTS.c.round)
        )
        documents = self._read(lambda connection: connection.execute(query).scalars().all())
        return tuple(_REPORT.validate_json(document) for document in documents)

    def keep_settled(self, run: RunId, statements: Mapping[int, bytes]) -> None:
        """Keep what silos have signed of where a run stands, by seat, and nothing older."""

        def work(connection: Connection) -> None:
            connection.execute(delete(_SETTLED).where(_SETTLED.c.run == run.hex))
            for seat, statement in statements.items():
                connection.execute(
                    insert(_SETTLED).values(run=run.hex, seat=seat, statement=statement)
                )

        self._write(work)

    def settled(self, run: RunId) -> tuple[bytes, ...]:
        """Return what silos have signed of where a run stands, as it was kept last."""
        query = select(_SETTLED.c.statement).where(_SETTLED.c.run == run.hex)
        return self._read(lambda connection: tuple(connection.execute(query).scalars()))

    def artifact(self, run: RunId, name: str) -> bytes:
        """Return a file that was kept beside a run.

        Raises:
            NotFoundError: there is no such file.
            CorruptError: it is damaged; names it.
        """
        mine = (_ARTIFACTS.c.run == run.hex) & (_ARTIFACTS.c.name == name)
        query = select(_ARTIFACTS.c.digest).where(mine)
        with self._lock:
            digest = self._read(lambda connection: connection.execute(query).scalar_one_or_none())
            if digest is None:
                raise NotFoundError(f"run {run} has no {name} yet", hint="wait for a round")
            return self._blobs.get(digest, f"{name} of run {run}")

    def forget_ended(self, keep: int) -> tuple[RunId, ...]:
        """Remove the oldest runs that have ended, all but `keep` of them; returns which."""

        def work(connection: Connection) -> tuple[RunId, ...]:
            rows = connection.execute(select(_RUNS).order_by(_RUNS.c.sequence.desc()))
            ended = [record.run for record in map(_record, rows) if record.state.is_final]
            for run in ended[keep:]:
                for table in (_RUNS, _ATTEMPTS, _REPORTS, _ARTIFACTS, _CHANGES, _SETTLED):
                    connection.execute(delete(table).where(table.c.run == run.hex))
            return tuple(ended[keep:])

        with self._lock:
            gone = self._write(work)
            self._sweep()
            return gone

    def close(self) -> None:
        """Release folder and lease."""
        if self._lease is not None and self._lease.token:
            with suppress(StorageError):  # it ends by itself, or is somebody else's
                self._lease.release()
        self._database.close()

    def _read(self, work: Callable[[Connection], _T]) -> _T:
        return self._database.transact(work)

    def _write(self, work: Callable[[Connection], _T]) -> _T:
        """Do work that is kept only if this process is still the one that writes."""
        lease = self._lease
        if lease is None:
            return self._database.transact(work)

        def checked(connection: Connection) -> _T:
            lease.check(connection)
            return work(connection)

        return self._database.transact(checked)

    def _sweep(self, *, everywhere: bool = False) -> None:
        """Remove blobs that nothing names; the lock keeps out a blob that is about to be named."""

        def work(connection: Connection) -> None:
            snapshots = connection.execute(select(_RUNS.c.snapshot)).scalars()
            files = connection.execute(select(_ARTIFACTS.c.digest)).scalars()
            self._blobs.keep_only([*snapshots, *files], everywhere=everywhere)

        self._write(work)


def _mark(directory: Path) -> str:
    """The folder's mark; drawn, once, by whoever uses it first."""
    path = directory / MARK
    if not path.exists():
        mark = SystemRng().bytes(16).hex()
        drawn = directory / f"{MARK}.{mark}"
        write_secret(drawn, mark.encode("ascii"))
        with suppress(FileExistsError):  # another process was first: its mark is the folder's
            path.hardlink_to(drawn)
        drawn.unlink()
    return read_secret(path, "folder mark").decode("ascii")


def _find(connection: Connection, run: RunId) -> Row[Any] | None:
    return connection.execute(select(_RUNS).where(_RUNS.c.run == run.hex)).one_or_none()


def _require(connection: Connection, run: RunId) -> Row[Any]:
    row = _find(connection, run)
    if row is None:
        raise NotFoundError(f"there is no run {run}", hint="`secagg run list` shows all")
    return row


def _keep_artifacts(connection: Connection, run: RunId, files: Mapping[str, str]) -> None:
    for name, digest in files.items():
        mine = (_ARTIFACTS.c.run == run.hex) & (_ARTIFACTS.c.name == name)
        connection.execute(delete(_ARTIFACTS).where(mine))
        connection.execute(insert(_ARTIFACTS).values(run=run.hex, name=name, digest=digest))


def _values(record: RunRecord) -> dict[str, object]:
    return {
        "run": record.run.hex,
        "name": record.name,
        "algorithm": record.algorithm,
        "config": record.config,
        "plan": record.plan,
        "cohort": _COHORT.dump_json(record.cohort).decode(),
        "rounds_total": record.rounds_total,
        "created_unix_s": record.created_unix_s,
        "state": record.state.value,
        "reason": record.reason,
        "round": record.round,
    }


def _record(row: Row[Any]) -> RunRecord:
    return RunRecord(
        run=RunId.parse(row.run),
        name=row.name,
        algorithm=row.algorithm,
        config=row.config,
        plan=row.plan,
        cohort=_COHORT.validate_json(row.cohort),
        rounds_total=row.rounds_total,
        created_unix_s=row.created_unix_s,
        state=RunState(row.state),
        reason=row.reason,
        round=row.round,
    )

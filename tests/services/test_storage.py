"""The databases: durable, whole, and honest about damage."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from secagg.ids import RunId
from services.errors import (
    ConflictError,
    CorruptError,
    NotFoundError,
    SchemaVersionError,
    StorageError,
)
from services.storage.coordinator import CoordinatorStore, RunRecord
from services.storage.silo import SiloStore
from services.wire.calls import MemberChange, Phase, PhaseCost, RoundReport, RunState

RUN = RunId(bytes(range(16)))
OTHER = RunId(bytes(16))
RECORD = RunRecord(
    run=RUN,
    name="Zürich ★",
    algorithm="fedavg",
    config=b"[run]",
    plan=b"{}",
    cohort=(1, 2, 5),
    rounds_total=3,
    created_unix_s=1_800_000_000.5,
)


def report(number: int) -> RoundReport:
    """A report with something in every field."""
    return RoundReport(
        round=number,
        attempts=2,
        kind="training",
        survivors=(1, 2),
        dropouts=(5,),
        absent=(),
        metrics={"loss": 0.25},
        costs=(PhaseCost(phase=Phase.MASK, duration_s=1.5, received_bytes=2**40, sent_bytes=3),),
        committed_unix_s=1_800_000_001.0,
    )


def opened(folder: Path, database: str) -> CoordinatorStore:
    """The coordinator's store, once it is ours."""
    store = CoordinatorStore(folder, url=database, holder="test", lease_s=0.5)
    while store.try_claim() is not None:
        time.sleep(0.1)
    return store


class TestCoordinator:
    def test_a_run_and_its_rounds_survive_a_restart(self, tmp_path: Path, database: str) -> None:
        store = opened(tmp_path, database)
        store.add_run(RECORD, b"start")
        assert store.snapshot(RUN) == b"start"
        store.commit_round(
            RUN, snapshot=b"after 1", report=report(1), artifacts={"model": b"file 1"}
        )
        store.commit_round(
            RUN, snapshot=b"after 2", report=report(2), artifacts={"model": b"file 2"}
        )
        store.set_state(RUN, RunState.STOPPED, "enough")
        store.close()
        again = opened(tmp_path, database)
        assert again.run(RUN) == replace(RECORD, state=RunState.STOPPED, reason="enough", round=2)
        assert again.snapshot(RUN) == b"after 2"
        assert again.artifact(RUN, "model") == b"file 2"
        assert again.reports(RUN) == (report(1), report(2))
        assert again.reports(RUN, after_round=1) == (report(2),)
        assert len(list((tmp_path / "blobs").rglob("*.blob"))) == 2
        again.close()

    def test_accepting_again_changes_nothing(self, tmp_path: Path, database: str) -> None:
        store = opened(tmp_path, database)
        store.add_run(RECORD, b"start")
        store.commit_round(RUN, snapshot=b"after 1", report=report(1))
        assert store.add_run(RECORD, b"start").round == 1
        assert store.snapshot(RUN) == b"after 1"
        with pytest.raises(ConflictError, match="another configuration"):
            store.add_run(replace(RECORD, config=b"[other]"), b"start")
        store.close()

    def test_runs_are_listed_newest_first(self, tmp_path: Path, database: str) -> None:
        store = opened(tmp_path, database)
        store.add_run(RECORD, b"start")
        store.add_run(replace(RECORD, run=OTHER), b"start")
        assert [record.run for record in store.runs()] == [OTHER, RUN]
        store.close()

    def test_the_cohort_is_fixed_when_the_first_round_begins(
        self, tmp_path: Path, database: str
    ) -> None:
        store = opened(tmp_path, database)
        store.add_run(RECORD, b"start")
        assert store.begin(RUN, (2, 3), b"first").cohort == (2, 3)
        assert (store.run(RUN).cohort, store.snapshot(RUN)) == ((2, 3), b"first")
        with pytest.raises(NotFoundError):
            store.begin(OTHER, (1,), b"x")
        store.close()

    def test_a_change_is_asked_for_until_it_is_applied(self, tmp_path: Path, database: str) -> None:
        """Whoever restarts in between finds it; a later word about the same seat stays."""
        store = opened(tmp_path, database)
        store.add_run(RECORD, b"start")
        store.ask_change(RUN, 4, MemberChange.ADMIT)
        store.ask_change(RUN, 5, MemberChange.DISMISS)
        store.ask_change(RUN, 5, MemberChange.LOST)
        store.close()
        again = opened(tmp_path, database)
        found = again.changes(RUN)
        assert found == {4: MemberChange.ADMIT, 5: MemberChange.LOST}
        again.ask_change(RUN, 4, MemberChange.DISMISS)
        assert again.begin(RUN, (1, 2, 4), b"changed", found).cohort == (1, 2, 4)
        assert again.changes(RUN) == {4: MemberChange.DISMISS}
        assert again.snapshot(RUN) == b"changed"
        with pytest.raises(NotFoundError, match="no run"):
            again.ask_change(OTHER, 4, MemberChange.ADMIT)
        again.close()

    def test_what_is_not_there_is_named(self, tmp_path: Path, database: str) -> None:
        store = opened(tmp_path, database)
        for use in (
            lambda: store.run(RUN),
            lambda: store.snapshot(RUN),
            lambda: store.set_state(RUN, RunState.FAILED),
            lambda: store.commit_round(RUN, snapshot=b"x", report=report(1)),
        ):
            with pytest.raises(NotFoundError, match=RUN.hex):
                use()
        store.add_run(RECORD, b"start")
        with pytest.raises(NotFoundError, match="no model yet"):
            store.artifact(RUN, "model")
        store.close()

    def test_a_round_never_goes_back(self, tmp_path: Path, database: str) -> None:
        store = opened(tmp_path, database)
        store.add_run(RECORD, b"start")
        store.commit_round(RUN, snapshot=b"after 2", report=report(2))
        with pytest.raises(ConflictError, match="round 2 or later"):
            store.commit_round(RUN, snapshot=b"after 1", report=report(1))
        assert store.snapshot(RUN) == b"after 2"
        store.close()

    def test_an_attempt_number_is_given_once_even_across_restarts(
        self, tmp_path: Path, database: str
    ) -> None:
        store = opened(tmp_path, database)
        assert [store.next_attempt(RUN, 1) for _ in range(3)] == [0, 1, 2]
        assert store.next_attempt(RUN, 2) == 0
        store.close()
        again = opened(tmp_path, database)
        assert (again.next_attempt(RUN, 1), again.next_attempt(OTHER, 1)) == (3, 0)
        again.close()

    @pytest.mark.parametrize("where", ["blob", "sql"])
    def test_a_kill_in_mid_commit_leaves_the_old_round_whole(
        self, tmp_path: Path, database: str, where: str
    ) -> None:
        store = opened(tmp_path, database)
        store.add_run(RECORD, b"start")
        store.commit_round(RUN, snapshot=b"after 1", report=report(1), artifacts={"m": b"1"})
        store.close()
        script = (
            "import os, signal, sys\n"
            "from pathlib import Path\n"
            "from services.storage import coordinator as c\n"
            f"{_HELPERS}\n"
            "def die(*_):\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "store = c.CoordinatorStore(Path(sys.argv[1]), url=sys.argv[3], lease_s=0.5)\n"
            "while store.try_claim() is not None: pass\n"
            "if sys.argv[2] == 'sql':\n"
            "    c._keep_artifacts = die\n"
            "else:\n"
            "    import services.files as f\n"
            "    f.sync_directory = die\n"
            "store.commit_round(RUN, snapshot=b'after 2', report=report(2), artifacts={})\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path), where, database], check=False
        )
        assert done.returncode == -signal.SIGKILL
        again = opened(tmp_path, database)
        assert (again.run(RUN).round, again.snapshot(RUN)) == (1, b"after 1")
        assert (again.artifact(RUN, "m"), again.reports(RUN)) == (b"1", (report(1),))
        assert len(list((tmp_path / "blobs").rglob("*.blob"))) == 2
        again.close()

    def test_the_oldest_ended_runs_are_forgotten(self, tmp_path: Path, database: str) -> None:
        """Retention: with their reports, files and blobs; a run that goes on stays."""
        store = opened(tmp_path, database)
        runs = [RunId(bytes([number] * 16)) for number in range(1, 5)]
        for number, run in enumerate(runs):
            store.add_run(replace(RECORD, run=run), b"start %d" % number)
            store.commit_round(run, snapshot=b"end %d" % number, report=report(1), artifacts={})
        for run in runs[1:]:
            store.set_state(run, RunState.FINISHED)
        assert store.forget_ended(2) == (runs[1],)
        assert [record.run for record in store.runs()] == [runs[3], runs[2], runs[0]]
        with pytest.raises(NotFoundError):
            store.snapshot(runs[1])
        assert store.reports(runs[1]) == ()
        assert len(list((tmp_path / "blobs").rglob("*.blob"))) == 3
        assert store.forget_ended(2) == ()
        store.close()

    def test_starts_are_counted(self, tmp_path: Path, database: str) -> None:
        """So that no two processes number their messages alike."""
        for number in range(3):
            store = opened(tmp_path, database)
            assert store.count_start() == number
            store.close()

    def test_a_damaged_snapshot_is_named(self, tmp_path: Path, database: str) -> None:
        store = opened(tmp_path, database)
        store.add_run(RECORD, b"start")
        blob = next((tmp_path / "blobs").rglob("*.blob"))
        blob.write_bytes(b"stars")
        with pytest.raises(CorruptError, match=rf"snapshot of run {RUN}: .*{blob.name} is damaged"):
            store.snapshot(RUN)
        store.close()


_HELPERS = """
from secagg.ids import RunId
from services.wire.calls import RoundReport
RUN = RunId(bytes(range(16)))
def report(n):
    return RoundReport(round=n, attempts=1, kind="training", survivors=(), dropouts=(), absent=(),
                       metrics={}, costs=(), committed_unix_s=0.0)
"""


class TestSilo:
    def test_the_journal_survives_a_kill_right_after_it_returns(self, tmp_path: Path) -> None:
        script = (
            "import os, signal, sys\n"
            "from pathlib import Path\n"
            "from services.storage.silo import SiloStore\n"
            "store = SiloStore(Path(sys.argv[1]))\n"
            "for number in range(5):\n"
            "    store.append_journal(b'record %d' % number)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
        assert done.returncode == -signal.SIGKILL
        store = SiloStore(tmp_path)
        assert store.journal() == tuple(b"record %d" % number for number in range(5))
        store.append_journal(b"next")
        store.close()
        again = SiloStore(tmp_path)
        assert again.journal()[-1] == b"next"
        again.close()

    @pytest.mark.parametrize(
        "sql",
        [
            "UPDATE journal SET record = x'00' WHERE sequence = 2",
            "DELETE FROM journal WHERE sequence = 1",
            "UPDATE journal SET sequence = 9 WHERE sequence = 1",
        ],
    )
    def test_a_changed_journal_is_refused(self, tmp_path: Path, sql: str) -> None:
        store = SiloStore(tmp_path)
        for record in (b"a", b"b", b"c"):
            store.append_journal(record)
        store.close()
        with sqlite3.connect(tmp_path / "data.db") as connection:
            connection.execute(sql)
        connection.close()
        for _ in range(2):
            with pytest.raises(CorruptError, match="journal is damaged"):
                SiloStore(tmp_path)

    @pytest.mark.parametrize(
        "after", [(b"a", b"x", b"d"), (b"s",), (), (b"a", b"b", b"c", b"d", b"e"), (b"a", b"b")]
    )
    def test_a_shortened_journal_is_whole_and_goes_on(
        self, tmp_path: Path, after: tuple[bytes, ...]
    ) -> None:
        store = SiloStore(tmp_path)
        for record in (b"a", b"b", b"c", b"d"):
            store.append_journal(record)
        store.replace_journal(after)
        assert store.journal() == after
        store.append_journal(b"next")
        store.close()
        again = SiloStore(tmp_path)  # which checks the chain
        assert again.journal() == (*after, b"next")
        again.close()

    def test_the_last_holders_of_the_folder_are_remembered(self, tmp_path: Path) -> None:
        names = [bytes([number]) * 16 for number in range(12)]
        for number, name in enumerate(names):
            store = SiloStore(tmp_path)
            assert store.succeed(name) == tuple(names[max(number - 8, 0) : number])
            store.close()

    def test_memory_changes_together_and_is_the_runs_own(self, tmp_path: Path) -> None:
        store = SiloStore(tmp_path)
        store.remember(RUN, {"variate": b"c1", "state": b"s1", "gone": b"x"})
        store.remember(OTHER, {"variate": b"other"})
        store.remember(RUN, {"variate": b"c2", "gone": None})
        store.close()
        again = SiloStore(tmp_path)
        assert [again.recall(RUN, name) for name in ("variate", "state", "gone")] == [
            b"c2",
            b"s1",
            None,
        ]
        assert again.recall(OTHER, "variate") == b"other"
        assert len(list((tmp_path / "memory").iterdir())) == 3
        again.close()

    def test_a_failed_change_leaves_all_as_it_was(self, tmp_path: Path) -> None:
        store = SiloStore(tmp_path)
        store.remember(RUN, {"variate": b"c1"})
        store.close()
        script = (
            "import os, sys\n"
            "from pathlib import Path\n"
            "from secagg.ids import RunId\n"
            "from services.storage.silo import SiloStore\n"
            "import services.storage.blobs as blobs\n"
            "def full(path, data):\n"
            "    if data == b'second': raise blobs.storage_error(path, OSError(28, 'full'))\n"
            "    return write(path, data)\n"
            "write, blobs.write_secret = blobs.write_secret, full\n"
            "store = SiloStore(Path(sys.argv[1]))\n"
            "store.remember(RunId(bytes(range(16))), {'variate': b'first', 'state': b'second'})\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert "StorageError" in done.stderr
        again = SiloStore(tmp_path)
        assert (again.recall(RUN, "variate"), again.recall(RUN, "state")) == (b"c1", None)
        assert len(list((tmp_path / "memory").iterdir())) == 1
        again.close()

    def test_damaged_memory_is_named(self, tmp_path: Path) -> None:
        store = SiloStore(tmp_path)
        store.remember(RUN, {"variate": b"c1"})
        next((tmp_path / "memory").iterdir()).write_bytes(b"c0")
        with pytest.raises(CorruptError, match=f"variate of run {RUN}"):
            store.recall(RUN, "variate")
        store.close()

    def test_every_file_is_its_owners_only(self, tmp_path: Path) -> None:
        old = os.umask(0)
        try:
            store = SiloStore(tmp_path / "silo")
            store.append_journal(b"x")
            store.remember(RUN, {"variate": b"c1"})
            files = [path for path in (tmp_path / "silo").rglob("*") if path.is_file()]
            assert len(files) >= 4
            assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
            store.close()
        finally:
            os.umask(old)


class TestDatabase:
    def test_a_disk_that_became_read_only_is_named(self, tmp_path: Path) -> None:
        """Nothing is half-written, and the process is told what to look at."""
        store = SiloStore(tmp_path)
        store.append_journal(b"before")
        with store._database.transaction() as connection:
            connection.exec_driver_sql("PRAGMA query_only=ON")
        with pytest.raises(StorageError, match=r"data.db: .*readonly.*is the disk full or read"):
            store.append_journal(b"after")
        store.close()
        again = SiloStore(tmp_path)
        assert again.journal() == (b"before",)
        again.append_journal(b"after")
        again.close()

    def test_a_newer_schema_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        SiloStore(tmp_path).close()
        with sqlite3.connect(tmp_path / "data.db") as connection:
            connection.execute("UPDATE alembic_version SET version_num = '2'")
        connection.close()
        for _ in range(2):
            with pytest.raises(SchemaVersionError, match="schema version 1 or older, got 2"):
                SiloStore(tmp_path)

    def test_two_processes_cannot_share_a_folder(self, tmp_path: Path) -> None:
        store = SiloStore(tmp_path)
        with pytest.raises(StorageError, match="in use by another process"):
            SiloStore(tmp_path)
        store.close()
        SiloStore(tmp_path).close()

    @pytest.mark.parametrize("content", [b"\x80\x04\x95 a pickle", b"x" * 5000])
    def test_what_is_no_database_is_refused(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "data.db").write_bytes(content)
        with pytest.raises(CorruptError, match=r"data.db: file is not a database"):
            SiloStore(tmp_path)
        assert (tmp_path / "data.db").read_bytes() == content

    def test_damage_inside_the_database_is_named(self, tmp_path: Path) -> None:
        store = SiloStore(tmp_path)
        store.append_journal(b"record" * 2000)
        store.close()
        path = tmp_path / "data.db"
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (path.stat().st_size - 4096))
        with pytest.raises(CorruptError, match=r"data.db: .*malformed"):
            SiloStore(tmp_path)

    def test_a_folder_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StorageError, match="file"):
            SiloStore(tmp_path / "file" / "store")

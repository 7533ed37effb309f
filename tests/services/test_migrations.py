"""Older databases are brought up to date, whole; newer ones are refused."""

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, text

from secagg.ids import RunId
from services.errors import ConfigError, SchemaVersionError
from services.storage import coordinator, lease, silo
from services.storage.coordinator import CoordinatorStore
from services.storage.database import NEWEST, Database
from services.storage.migrate import revisions
from services.storage.silo import SiloStore
from services.wire.calls import RunState

RUN = RunId(bytes(range(16)))
# What the first release, which had no migrations, wrote.
FIRST_COORDINATOR = """
CREATE TABLE schema (version INTEGER NOT NULL, PRIMARY KEY (version));
INSERT INTO schema VALUES (1);
CREATE TABLE runs (sequence INTEGER NOT NULL, run VARCHAR(32) NOT NULL, name TEXT NOT NULL,
    algorithm TEXT NOT NULL, config BLOB NOT NULL, "plan" BLOB NOT NULL, cohort TEXT NOT NULL,
    rounds_total INTEGER NOT NULL, created_unix_s FLOAT NOT NULL, state TEXT NOT NULL,
    reason TEXT NOT NULL, round INTEGER NOT NULL, snapshot VARCHAR(64), PRIMARY KEY (sequence),
    UNIQUE (run));
CREATE TABLE attempts (run VARCHAR(32) NOT NULL, round INTEGER NOT NULL, next INTEGER NOT NULL,
    PRIMARY KEY (run, round));
CREATE TABLE reports (run VARCHAR(32) NOT NULL, round INTEGER NOT NULL, document TEXT NOT NULL,
    PRIMARY KEY (run, round));
CREATE TABLE artifacts (run VARCHAR(32) NOT NULL, name VARCHAR(128) NOT NULL,
    digest VARCHAR(64) NOT NULL, PRIMARY KEY (run, name));
INSERT INTO runs VALUES (1, '000102030405060708090a0b0c0d0e0f', 'old', 'fedavg', x'', x'',
    '[1,2,3]', 9, 1.5, 'finished', '', 9, NULL);
INSERT INTO attempts VALUES ('000102030405060708090a0b0c0d0e0f', 9, 4);
"""
FIRST_SILO = """
CREATE TABLE schema (version INTEGER NOT NULL, PRIMARY KEY (version));
INSERT INTO schema VALUES (1);
CREATE TABLE journal (sequence INTEGER NOT NULL, record BLOB NOT NULL, chain BLOB NOT NULL,
    PRIMARY KEY (sequence));
CREATE TABLE memory (run VARCHAR(32) NOT NULL, name VARCHAR(128) NOT NULL,
    digest VARCHAR(64) NOT NULL, PRIMARY KEY (run, name));
"""


def write_old(folder: Path, script: str) -> None:
    """A folder as the first release left it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    connection = sqlite3.connect(folder / "data.db")
    connection.executescript(script)
    connection.close()


@pytest.mark.parametrize("schema", NEWEST)
def test_the_newest_revision_is_the_folders_last(schema: str) -> None:
    """The number in the code is the number of files."""
    assert revisions(schema) == list(range(1, NEWEST[schema] + 1))


def test_the_coordinators_tables_are_those_of_its_revisions(tmp_path: Path, database: str) -> None:
    """What the store uses is what the revisions make, on both back ends."""
    opened = Database(tmp_path, "coordinator", url=database)
    known = MetaData()
    for table in (*coordinator._METADATA.tables.values(), lease._LEASE):
        table.to_metadata(known)
    with opened.transaction() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"include_name": lambda name, kind, _: kind != "table" or name != "schema"},
        )
        assert compare_metadata(context, known) == []
    opened.close()


def test_a_silos_tables_are_those_of_its_revisions(tmp_path: Path) -> None:
    """Likewise."""
    opened = Database(tmp_path, "silo")
    with opened.transaction() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"include_name": lambda name, kind, _: kind != "table" or name != "schema"},
        )
        assert compare_metadata(context, silo._METADATA) == []
    opened.close()


def test_a_coordinators_folder_of_the_first_release_goes_on(tmp_path: Path) -> None:
    """Runs and attempt numbers are kept; the old release refuses the result."""
    write_old(tmp_path, FIRST_COORDINATOR)
    store = CoordinatorStore(tmp_path)
    (record,) = store.runs()
    assert (record.name, record.cohort, record.state) == ("old", (1, 2, 3), RunState.FINISHED)
    assert store.next_attempt(RUN, 9) == 4
    store.close()
    with sqlite3.connect(tmp_path / "data.db") as connection:
        # The first release looks here, and refuses what is above its own 1.
        assert connection.execute("SELECT version FROM schema").fetchall() == [(5,)]
    connection.close()


def test_a_silos_folder_of_the_first_release_goes_on(tmp_path: Path) -> None:
    """The journal is kept, and its chain goes on."""
    fresh = SiloStore(tmp_path / "fresh")
    fresh.append_journal(b"said")
    fresh.close()
    with sqlite3.connect(tmp_path / "fresh" / "data.db") as connection:
        ((record, chain),) = connection.execute("SELECT record, chain FROM journal").fetchall()
    connection.close()
    write_old(tmp_path / "old", FIRST_SILO)
    with sqlite3.connect(tmp_path / "old" / "data.db") as connection:
        connection.execute("INSERT INTO journal VALUES (1, ?, ?)", (record, chain))
    connection.close()
    store = SiloStore(tmp_path / "old")
    assert store.journal() == (b"said",)
    store.append_journal(b"next")
    store.close()


def test_a_kill_in_mid_migration_leaves_the_old_database(tmp_path: Path) -> None:
    """All revisions are one transaction (bug case RES-01)."""
    write_old(tmp_path, FIRST_COORDINATOR)
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from alembic import op\n"
        "op.bulk_insert = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from services.storage.coordinator import CoordinatorStore\n"
        "CoordinatorStore(Path(sys.argv[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    connection = sqlite3.connect(tmp_path / "data.db")
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert "runs" in names
    assert not {"lease", "alembic_version"} & names
    store = CoordinatorStore(tmp_path)
    assert len(store.runs()) == 1
    store.close()


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path, database: str) -> None:
    """It is not misread, and the refusal names both versions."""
    opened = Database(tmp_path, "coordinator", url=database)
    with opened.transaction() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '99'"))
    opened.close()
    for _ in range(2):
        with pytest.raises(SchemaVersionError, match="schema version 5 or older, got 99"):
            CoordinatorStore(tmp_path, url=database)


@pytest.mark.parametrize("url", ["mysql://someone:secret@host/name", "no url: secret"])
def test_only_postgresql_urls_are_taken_and_none_is_shown_with_its_password(
    tmp_path: Path, url: str
) -> None:
    """A settings error, not a stack trace."""
    with pytest.raises(ConfigError, match="expected postgresql://") as caught:
        CoordinatorStore(tmp_path, url=url)
    assert "secret" not in str(caught.value)


def test_opening_a_database_that_is_up_to_date_imports_no_migration_tool(tmp_path: Path) -> None:
    """A restart costs milliseconds."""
    SiloStore(tmp_path).close()
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from services.storage.silo import SiloStore\n"
        "SiloStore(Path(sys.argv[1])).close()\n"
        "assert 'alembic' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == 0

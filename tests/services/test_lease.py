"""Two coordinators on one PostgreSQL: one writes, the other takes over when it is gone."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from secagg.ids import RunId
from services.errors import ConfigError, LeaseLostError, StorageError
from services.storage.coordinator import CoordinatorStore, RunRecord
from services.storage.database import Database
from services.storage.lease import MARK
from services.wire.calls import RoundReport, RunState
from tests.postgres import NoPostgresError, Server, postgres

RUN = RunId(bytes(range(16)))
RECORD = RunRecord(
    run=RUN,
    name="run",
    algorithm="fedavg",
    config=b"",
    plan=b"",
    cohort=(1, 2, 3),
    rounds_total=3,
    created_unix_s=0.0,
)


def report(number: int) -> RoundReport:
    """A report of a round in which nothing happened."""
    return RoundReport(
        round=number, attempts=1, kind="training", survivors=(), dropouts=(), absent=(),
        metrics={}, costs=(), committed_unix_s=0.0,
    )  # fmt: skip


def store(folder: Path, url: str, holder: str, lease_s: float = 60.0) -> CoordinatorStore:
    """A coordinator's store; its lease lasts for the whole test unless told otherwise."""
    return CoordinatorStore(folder, url=url, holder=holder, lease_s=lease_s)


def end_lease(folder: Path, url: str) -> None:
    """Let the holder's time be over, without waiting for it."""
    database = Database(folder, "coordinator", url=url)
    with database.transaction() as connection:
        connection.execute(text("UPDATE lease SET expires_unix_s = 0"))
    database.close()


@pytest.fixture
def url(postgres_server: Server) -> str:
    """An empty database on a PostgreSQL."""
    return postgres_server.make_database()


def test_a_standby_waits_until_the_holder_is_gone(tmp_path: Path, url: str) -> None:
    """One writes at a time."""
    first, second = store(tmp_path, url, "first"), store(tmp_path, url, "second")
    assert first.try_claim() is None
    assert second.try_claim() == "first"
    with pytest.raises(LeaseLostError):
        second.add_run(RECORD, b"start")
    first.add_run(RECORD, b"start")
    first.close()
    assert second.try_claim() is None, "a holder that ends in good order is waited for no longer"
    assert second.snapshot(RUN) == b"start"
    second.close()


def test_a_holder_that_slept_changes_nothing_more(tmp_path: Path, url: str) -> None:
    """Neither in the database nor in the folder: its successor's blobs stay."""
    first, second = store(tmp_path, url, "first"), store(tmp_path, url, "second")
    assert first.try_claim() is None
    first.add_run(RECORD, b"start")
    first.commit_round(RUN, snapshot=b"after 1", report=report(1))
    end_lease(tmp_path, url)
    assert second.try_claim() is None
    for use in (
        lambda: first.commit_round(RUN, snapshot=b"stale", report=report(2)),
        lambda: first.next_attempt(RUN, 2),
        lambda: first.set_state(RUN, RunState.FAILED),
        first.renew,
        lambda: first.add_run(replace(RECORD, run=RunId(bytes(16))), b"start"),
    ):
        with pytest.raises(LeaseLostError, match="second has taken over"):
            use()
    second.commit_round(RUN, snapshot=b"stale", report=report(2))
    first._blobs.keep_only([])  # what a sweep would do whose query ran before it was replaced
    assert second.snapshot(RUN) == b"stale"
    assert second.run(RUN).round == 2
    first.close()
    assert second.next_attempt(RUN, 3) == 0
    second.close()


def test_renewing_keeps_the_lease_and_the_token(tmp_path: Path, url: str) -> None:
    """A lease that has ended is still its holder's while nobody else has come."""
    first, second = store(tmp_path, url, "first"), store(tmp_path, url, "second")
    assert first.try_claim() is None
    end_lease(tmp_path, url)
    first.renew()  # late, but nobody has come
    assert second.try_claim() == "first"
    first.close()
    second.close()


@pytest.mark.parametrize("clock", ["monotonic", "_since_boot", "utc_now"])
def test_a_holder_that_slept_asks_the_server_before_it_touches_a_file(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    """By one of its clocks its lease may be over: then the server knows, else nobody is asked.

    While its host is suspended, one of them may be the only one that goes on.
    """
    now = dict.fromkeys(("monotonic", "_since_boot", "utc_now"), 1000.0)
    monkeypatch.setattr("services.clock.monotonic", lambda: now["monotonic"])
    monkeypatch.setattr("services.clock._since_boot", lambda: now["_since_boot"])
    monkeypatch.setattr(
        "services.clock.utc_now", lambda: datetime.fromtimestamp(now["utc_now"], UTC)
    )
    first, second = store(tmp_path, url, "first"), store(tmp_path, url, "second")
    assert first.try_claim() is None
    end_lease(tmp_path, url)
    now[clock] += 60.0
    first.hold()  # nobody has come, so it is renewed
    assert second.try_claim() == "first"
    end_lease(tmp_path, url)
    assert second.try_claim() is None
    now[clock] += 59.0
    first.hold()  # no server is asked: it cannot have ended if it has not slept
    second.hold()
    now[clock] += 1.0
    with pytest.raises(LeaseLostError, match="second has taken over"):
        first.hold()
    first.close()
    second.close()


def test_a_holder_that_stops_within_a_transaction_blocks_nobody(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends its session, and with it the lock on the lease; awake again, it is told."""
    monkeypatch.setattr("services.storage.database._IDLE_MS", 300)
    first = store(tmp_path, url, "first", lease_s=0.2)
    second = store(tmp_path, url, "second")
    assert first.try_claim() is None
    asleep, awake = threading.Event(), threading.Event()

    def sleep(connection: Connection) -> None:
        if not asleep.is_set():
            asleep.set()
            assert awake.wait(60)
        connection.execute(text("SELECT 1"))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(first._write, sleep)
        assert asleep.wait(60)
        try:
            while (holder := second.try_claim()) is not None:
                assert holder == "first"
        finally:
            awake.set()
        with pytest.raises(LeaseLostError, match="second has taken over"):
            writing.result(60)
    first.close()
    second.close()


def test_a_server_that_is_restarted_costs_a_wait(tmp_path: Path) -> None:
    """The commit that it interrupts is done again, and once only."""
    try:
        context = postgres()
        server = context.__enter__()
    except NoPostgresError as error:
        pytest.skip(str(error))
    if server.data is None:
        pytest.skip("the server is somebody else's: it is not ours to restart")
    held = store(tmp_path, server.make_database(), "first")
    assert held.try_claim() is None
    held.add_run(RECORD, b"start")
    server.control("stop")
    starter = threading.Timer(1.0, server.control, ["start"])
    starter.start()
    held.commit_round(RUN, snapshot=b"after 1", report=report(1))
    starter.join()
    server.control("restart")
    held.commit_round(RUN, snapshot=b"after 2", report=report(2))
    assert (held.run(RUN).round, held.snapshot(RUN)) == (2, b"after 2")
    assert [item.round for item in held.reports(RUN)] == [1, 2]
    server.control("stop")
    held._database._patience_s = 0.0
    with pytest.raises(StorageError, match="database server up"):
        held.renew()
    server.control("start")
    held.close()
    context.__exit__(None, None, None)


def test_a_standby_with_a_folder_of_its_own_is_refused_at_once(tmp_path: Path, url: str) -> None:
    """Not in the night when it is needed: the rows name files that it does not have."""
    shared, own = tmp_path / "shared", tmp_path / "own"
    first, stray = store(shared, url, "first"), store(own, url, "stray")
    assert first.try_claim() is None
    with pytest.raises(ConfigError, match="the folder with which first has used") as refused:
        stray.try_claim()
    assert refused.value.keys == ("storage",)
    assert (shared / MARK).read_text(encoding="ascii") in refused.value.hint
    first.add_run(RECORD, b"start")
    first.close()
    with pytest.raises(ConfigError):
        stray.try_claim()  # the lease is free, and stays so
    second = store(shared, url, "second")
    assert second.try_claim() is None
    assert second.run(RUN).state is RunState.WAITING, "nobody has ended it"
    assert second.snapshot(RUN) == b"start"
    second.close()
    stray.close()


def test_a_folders_mark_is_drawn_once(tmp_path: Path, url: str) -> None:
    """By whoever is first of those that start together."""
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda n: store(tmp_path, url, str(n)), range(8)))
    assert [one.try_claim() for one in stores].count(None) == 1
    assert [path.name for path in tmp_path.glob(f"{MARK}*")] == [MARK]
    for one in stores:
        one.close()

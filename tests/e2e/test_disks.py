"""Disks that are full, read-only or damaged, clocks that are wrong, and backups that are restored.

Real processes; the disks are small tmpfs, mounted where a holder's storage is.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from services.demo.federation import COORDINATOR, Child, LocalFederation
from services.wire.calls import RunState
from tests.stage import LONG_S, Stage

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

SILOS = tuple(f"silo-{number}" for number in range(1, 5))
DEADLINES = {
    "registration_s": 20.0, "advertise_s": 20.0, "share_s": 20.0, "mask_s": 20.0,
    "survivors_s": 20.0, "unmask_s": 20.0,
}  # fmt: skip
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="a tmpfs can be mounted by root only")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Nobody has been started."""
    with LocalFederation(
        home=tmp_path, silos=SILOS, deadlines=DEADLINES, limits={"free_bytes": 0}, forked=True
    ) as federation:
        yield Stage(federation)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs at a holder's storage."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, *, leave: int = 0) -> Path:
    """Fill the disk but for so many bytes; returns the file to remove."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while shutil.disk_usage(folder).free > leave:
            file.write(bytes(4096))
    return ballast


@needs_root
def test_a_full_disk_ends_the_coordinator_and_a_restart_goes_on(stage: Stage) -> None:
    """What was stored before is there; the error names path and free space (bug case RES-02)."""
    with small_disk(stage.federation.storage(COORDINATOR), "3m") as disk:
        stage.start(COORDINATOR, *SILOS)
        stage.begin()
        stage.more_rounds(2)
        ballast = fill(disk)
        assert stage.children[COORDINATOR].wait(timeout_s=LONG_S) == 5
        assert "full" in stage.log_of(COORDINATOR)
        ballast.unlink()
        stage.start(COORDINATOR)
        stage.more_rounds(3)
        stage.check()


@needs_root
def test_a_coordinator_without_room_for_a_round_does_not_begin_it(stage: Stage) -> None:
    """It waits, and says for how many bytes; with room it begins by itself (bug case RES-02)."""
    stage.federation.limits = {"free_bytes": 2 * 1024**2}
    with small_disk(stage.federation.storage(COORDINATOR), "4m") as disk:
        ballast = fill(disk, leave=1024**2)
        stage.start(COORDINATOR, *SILOS)
        stage.begin()
        waiting = stage.wait_until(lambda status: "are free" in status.summary.reason)
        assert "a round needs" in waiting.summary.reason
        assert waiting.summary.rounds_done == 0
        ballast.unlink()
        stage.more_rounds(2)
        stage.check()


@needs_root
def test_a_silo_whose_disk_is_full_ends_and_the_others_go_on(stage: Stage) -> None:
    """After a restart with room it is in the sums again, with its variate (bug case RES-02)."""
    with small_disk(stage.federation.storage(SILOS[3]), "2m") as disk:
        stage.start(COORDINATOR, *SILOS)
        stage.begin()
        stage.more_rounds(2)
        ballast = fill(disk)
        assert stage.children[SILOS[3]].wait(timeout_s=LONG_S) == 5
        stage.wait_until(lambda status: status.rounds[-1].survivors == (1, 2, 3))
        ballast.unlink()
        stage.start(SILOS[3])
        stage.wait_until(lambda status: status.rounds[-1].survivors == (1, 2, 3, 4))
        stage.check()


@needs_root
def test_a_silo_without_room_sits_out_and_comes_back_by_itself(stage: Stage) -> None:
    """It says so before the round costs anybody anything (bug case RES-02)."""
    with small_disk(stage.federation.storage(SILOS[3]), "6m") as disk:
        stage.start(COORDINATOR, *SILOS[:3])
        stage.start(SILOS[3], free_bytes=2 * 1024**2)
        stage.begin()
        stage.more_rounds(2)
        ballast = fill(disk, leave=1024**2)
        status = stage.wait_until(lambda status: status.rounds[-1].survivors == (1, 2, 3))
        status = stage.wait_until(lambda status: any(seat.refusal for seat in status.seats))
        refusal = next(seat.refusal for seat in status.seats if seat.refusal)
        assert refusal.startswith("NoRoomError: this silo's disk: a round needs")
        ballast.unlink()
        stage.wait_until(lambda status: status.rounds[-1].survivors == (1, 2, 3, 4))
        assert stage.children[SILOS[3]].exit_code is None
        stage.check()


@needs_root
def test_a_disk_that_becomes_read_only_ends_the_coordinator(stage: Stage) -> None:
    """It does not start either, until the disk may be written again."""
    with small_disk(stage.federation.storage(COORDINATOR), "8m") as disk:
        stage.start(COORDINATOR, *SILOS)
        stage.begin()
        stage.more_rounds(2)
        # Files that are open for writing would forbid it.
        stage.children[COORDINATOR].kill()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        child = stage.federation.start_coordinator(wait=False)
        assert child.wait(timeout_s=LONG_S) == 5
        assert "Read-only file system" in child.log.read_text(encoding="utf-8")
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        stage.start(COORDINATOR)
        stage.more_rounds(2)
        stage.check()


def test_a_damaged_snapshot_ends_the_run_by_name_and_a_good_copy_goes_on(stage: Stage) -> None:
    """The coordinator comes up, names the file, loses nothing else (bug cases RES-01, SEC-03)."""
    stage.start(COORDINATOR, *SILOS)
    stage.begin()
    stage.more_rounds(2)
    stage.children[COORDINATOR].kill()
    blobs = stage.federation.storage(COORDINATOR) / "blobs"
    whole = {path: path.read_bytes() for path in blobs.glob("*.blob")}
    for path, data in whole.items():
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    stage.start(COORDINATOR)
    summary = stage.status().summary
    assert summary.state is RunState.FAILED
    assert "is damaged; restore the whole folder from a backup" in summary.reason
    assert any(str(path) in summary.reason for path in whole)
    rounds = stage.status().rounds
    for path, data in whole.items():
        path.write_bytes(data)
    stage.begin(again=True)
    status = stage.more_rounds(2)
    assert status.rounds[: len(rounds)] == rounds
    stage.check()


def shifted(stage: Stage, name: str, seconds: int) -> Child:
    """Start a holder's process with another clock than ours."""
    code = (
        "import sys\n"
        "from datetime import timedelta\n"
        "import services.clock as clock\n"
        "now = clock.utc_now\n"
        f"clock.utc_now = lambda: now() + timedelta(seconds={seconds})\n"
        "from services.cli.main import main\n"
        "main()\n"
    )
    script = stage.federation.home / "shifted.py"
    script.write_text(code, encoding="utf-8")
    home = stage.federation.home
    kind = ["coordinator", "serve"] if name == COORDINATOR else ["silo", "join"]
    log = home / "logs" / f"{name}-shifted{seconds}.jsonl"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, str(script), *kind, "--config", str(home / f"{name}.toml")],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    return Child(name, process, log)


def test_a_clock_that_is_set_back_a_little_changes_nothing(stage: Stage) -> None:
    """Deadlines are not the wall clock's; certificates allow for some minutes."""
    stage.start(COORDINATOR, *SILOS)
    stage.begin()
    stage.more_rounds(2)
    for name in (COORDINATOR, SILOS[0]):
        stage.children[name].kill()
        stage.children[name] = shifted(stage, name, -200)
    try:
        stage.children[COORDINATOR].wait_for("listening", timeout_s=LONG_S)
        stage.wait_until(lambda status: status.rounds[-1].survivors == (1, 2, 3, 4))
        stage.more_rounds(2)
        stage.check()
    finally:
        for name in (COORDINATOR, SILOS[0]):
            stage.children[name].end()


@pytest.mark.parametrize("name", [COORDINATOR, SILOS[0]])
def test_a_clock_that_is_set_back_by_days_is_named(stage: Stage, name: str) -> None:
    """The certificate is not valid yet; the message says what the clock says (bug case TLS-03)."""
    stage.start(COORDINATOR, *SILOS)
    stage.children[name].kill()
    child = shifted(stage, name, -3 * 86_400)
    try:
        assert child.wait(timeout_s=LONG_S) == 3
    finally:
        child.end()
    text = child.log.read_text(encoding="utf-8")
    assert "valid from" in text
    assert "clock" in text


def test_a_restored_coordinator_repeats_nothing_and_begins_another_run(
    stage: Stage, tmp_path: Path
) -> None:
    """The steps of docs/operations.md: silos give nothing to a round that they have seen end."""
    stage.start(COORDINATOR, *SILOS)
    stage.begin()
    stage.more_rounds(2)
    stage.children[COORDINATOR].kill()
    storage, copy = stage.federation.storage(COORDINATOR), tmp_path / "copy"
    shutil.copytree(storage, copy)
    stage.start(COORDINATOR)
    seen = stage.more_rounds(4).summary.rounds_done
    stage.children[COORDINATOR].kill()
    shutil.rmtree(storage)
    shutil.copytree(copy, storage)
    stage.start(COORDINATOR)
    ended = stage.wait_until(lambda status: status.summary.state.is_final)
    assert ended.summary.state is RunState.FAILED
    assert ended.summary.rounds_done < seen
    assert "too few silos sent a masked vector" in ended.summary.reason
    stage.begin()
    stage.more_rounds(2)
    stage.check()


def test_a_silo_whose_machine_was_lost_is_back_in_the_next_run(
    stage: Stage, tmp_path: Path
) -> None:
    """The steps of docs/operations.md: when the run is over, a new folder with the ledgers."""
    stage.start(COORDINATOR, *SILOS)
    stage.begin()
    stage.more_rounds(2)
    stage.children[SILOS[3]].kill()
    storage, backup = stage.federation.storage(SILOS[3]), tmp_path / "backup"
    storage.rename(backup)
    stage.stop()
    storage.mkdir(mode=0o700)
    for name in ("ledgers", "runs"):
        if (backup / name).exists():
            shutil.copytree(backup / name, storage / name)
    stage.start(SILOS[3])
    stage.begin()
    status = stage.more_rounds(2)
    assert {report.survivors for report in status.rounds} == {(1, 2, 3, 4)}
    stage.check()

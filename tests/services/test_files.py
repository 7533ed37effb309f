"""Replacing files: all or nothing, modes kept, secrets 0600 from the first byte."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from services import files
from services.errors import CredentialError, StorageError
from services.files import read_secret, remove_leftovers, write_atomic, write_secret


def mode(path: Path) -> int:
    """Permission bits of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    """0640 stays 0640 (bug case RES-03)."""
    path = tmp_path / "model Zürich ★"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_atomic(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", 0o640)


def test_a_secret_is_never_readable_by_others(tmp_path: Path) -> None:
    """Not even its temporary file, and not if an earlier file was (bug case RES-03)."""
    path = tmp_path / "key"
    path.write_bytes(b"old")
    path.chmod(0o644)
    old = os.umask(0)
    try:
        write_secret(path, b"new")
        assert mode(path) == 0o600
        assert read_secret(path, "a key") == b"new"
    finally:
        os.umask(old)


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """The message says how to cure it."""
    path = tmp_path / "key"
    path.write_bytes(b"x")
    path.chmod(0o604)
    with pytest.raises(CredentialError, match=r"got mode 0604; chmod 600"):
        read_secret(path, "a key")


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's refusal in mid-write is simulated where the bytes leave us."""
    path = tmp_path / "checkpoint"
    write_atomic(path, b"old" * 1000)

    def full(descriptor: int, data: bytes, offset: int) -> None:
        os.pwrite(descriptor, data[:10], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write_all", full)
    with pytest.raises(StorageError, match=r"checkpoint: No space left on device, \d+ bytes"):
        write_atomic(path, b"new" * 1000)
    assert path.read_bytes() == b"old" * 1000
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_size_limit_leaves_the_old_file(tmp_path: Path) -> None:
    """The same with the kernel's own refusal, in a process with a limit on file sizes."""
    path = tmp_path / "checkpoint"
    write_atomic(path, b"old")
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from services.files import write_atomic\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "write_atomic(Path(sys.argv[1]), bytes(100_000))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "StorageError" in done.stderr
    assert "File too large" in done.stderr
    assert path.read_bytes() == b"old"


def test_a_kill_in_mid_write_leaves_the_old_file_and_a_leftover(tmp_path: Path) -> None:
    """The leftover is removed at the next start."""
    path = tmp_path / "checkpoint"
    write_atomic(path, b"old")
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from services import files\n"
        "def die(descriptor, data, offset):\n"
        "    os.pwrite(descriptor, data[:100], offset)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.write_all = die\n"
        "files.write_atomic(Path(sys.argv[1]), bytes(100_000))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2
    assert remove_leftovers(tmp_path) == 1
    assert list(tmp_path.iterdir()) == [path]

"""A PostgreSQL for tests: one that runs already, or a private cluster in a temporary folder.

`SECAGG_TEST_POSTGRES` may hold the URL of a server on which databases may be made. Otherwise the
distribution's binaries start a cluster on loopback, which ends with the `with` block.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine, make_url, text

VARIABLE = "SECAGG_TEST_POSTGRES"
_BINARIES = "/usr/lib/postgresql"


class NoPostgresError(Exception):
    """There is none, and none can be started."""


@dataclass(slots=True)
class Server:
    """A server, and how many databases were made on it.

    Attributes:
        url: of its maintenance database.
        data: the cluster's folder; None if it is somebody else's.
    """

    url: str
    data: Path | None = None
    binaries: Path | None = None
    made: int = 0

    def make_database(self) -> str:
        """Make an empty database; returns its URL."""
        self.made += 1
        name = f"secagg_test_{os.getpid()}_{self.made}"
        engine = create_engine(
            make_url(self.url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE IF EXISTS {name}"))
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def control(self, action: str, mode: str = "immediate") -> None:
        """Start, stop or restart our own cluster; sessions are cut off, as by a crash."""
        assert self.data is not None
        assert self.binaries is not None
        arguments = ["-D", str(self.data), "-w", "-s", "-l", str(self.data.parent / "log")]
        if action != "start":
            arguments += ["-m", mode]
        _run(self.binaries, "pg_ctl", action, *arguments)


@contextmanager
def postgres() -> Iterator[Server]:
    """A server.

    Raises:
        NoPostgresError: says what is missing.
    """
    if url := os.environ.get(VARIABLE):
        yield Server(url)
        return
    found = sorted(Path(_BINARIES).glob("*/bin"), key=lambda path: float(path.parent.name))
    if not found:
        raise NoPostgresError(f"no {VARIABLE}, and no PostgreSQL under {_BINARIES}")
    binaries = found[-1]
    home = Path(tempfile.mkdtemp(prefix="secagg-postgres-"))
    if os.getuid() == 0:
        shutil.chown(home, "postgres")
    data, port = home / "data", _free_port()
    try:
        _run(binaries, "initdb", "-D", str(data), "-A", "trust", "-U", "secagg", "--no-sync")
        with (data / "postgresql.conf").open("a") as file:
            file.write(
                f"listen_addresses = '127.0.0.1'\nport = {port}\n"
                f"unix_socket_directories = '{home}'\n"
            )
        server = Server(f"postgresql://secagg@127.0.0.1:{port}/postgres", data, binaries)
        server.control("start")
        try:
            yield server
        finally:
            server.control("stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _run(binaries: Path, program: str, *arguments: str) -> None:
    """Run a program of the server; it refuses to run as root."""
    user = "postgres" if os.getuid() == 0 else None
    command = [str(binaries / program), *arguments]
    done = subprocess.run(
        command, user=user, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=60,
    )  # fmt: skip
    if done.returncode != 0:
        raise NoPostgresError(f"{program}: {done.stdout}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

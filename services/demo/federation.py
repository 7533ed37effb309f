"""A federation of processes on this machine: keys, settings, one coordinator, some silos.

For the demo and for end-to-end tests. Everything lies in one folder, the coordinator's port is one
that the system finds free and gives to nobody else, and no child outlives the `with` block.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from secagg.rng import SystemRng
from services import faults
from services.clock import monotonic, utc_now
from services.demo.forked import ForkedProcess
from services.enrollment import authority
from services.enrollment.request import enroll
from services.errors import ServiceError
from services.security.identity import Role

COORDINATOR: Final = "coordinator"
OPERATOR: Final = "operator"
_HOST: Final = "127.0.0.1"
_START_S: Final = 30.0
_END_S: Final = 5.0
_GLANCE_S: Final = 0.02


class ChildError(ServiceError):
    """A child process ended or did not get ready; names its log."""

    code = "CHILD"


@dataclass(slots=True)
class Child:
    """One process and its log file."""

    name: str
    process: "subprocess.Popen[bytes] | ForkedProcess"
    log: Path

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self.process.poll()

    def lines(self) -> list[dict[str, object]]:
        """The JSON lines of its log so far."""
        # What ends without a newline is still being written.
        whole, _, _ = self.log.read_text(encoding="utf-8").rpartition("\n")
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def wait_for(
        self, event: str, *, timeout_s: float = _START_S, **fields: object
    ) -> dict[str, object]:
        """Wait until its log has this event with these fields, a run's id say; returns the line.

        Raises:
            ChildError: it ended first, or was silent for too long.
        """
        give_up, wanted = monotonic() + timeout_s, {"event": event, **fields}
        while True:
            for line in self.lines():
                if wanted.items() <= line.items():
                    return line
            if self.exit_code is not None or monotonic() > give_up:
                raise ChildError(
                    f"{self.name} did not say {wanted}"
                    + (f" and ended with code {self.exit_code}" if self.exit_code else ""),
                    hint=f"see {self.log}",
                )
            time.sleep(_GLANCE_S)

    def wait(self, *, timeout_s: float) -> int:
        """Wait until it has ended; returns its exit code."""
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is said."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Ask it to end, then insist."""
        if self.exit_code is None:
            self.process.terminate()
            try:
                self.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.kill()


def _reserved_port() -> socket.socket:
    """A socket bound to a free port, on which it does not listen.

    The coordinator may listen there, as both set SO_REUSEADDR. Nobody else is given the port: not
    as one that is free, nor as the near end of a connection, a silo's that dials in vain say.
    """
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind((_HOST, 0))
    return port


@dataclass(slots=True, kw_only=True)
class LocalFederation:
    """Authority, operator, coordinator and silos below one folder.

    Attributes:
        home: made if it is not there.
        silos: their names; each is an organization of its own.
        deadlines: of the coordinator, by name, in seconds.
        limits: of the coordinator, by name.
        forked: whether processes are forked from one that has imported everything.
        address: of the coordinator; its port stays ours while no coordinator listens.
    """

    home: Path
    silos: Sequence[str]
    deadlines: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    forked: bool = False
    address: str = field(init=False)
    _port: socket.socket = field(default_factory=_reserved_port, init=False)
    _children: list[Child] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.address = f"{_HOST}:{self._port.getsockname()[1]}"

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "logs").mkdir(exist_ok=True)
        self._enroll_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children:
            if child.exit_code is None:
                child.process.send_signal(signal.SIGTERM)
        for child in self._children:
            child.end()
        self._port.close()

    @property
    def children(self) -> Sequence[Child]:
        """The processes that were started, those that have ended included."""
        return self._children

    @property
    def operator_file(self) -> Path:
        """operator.toml."""
        return self.home / "operator.toml"

    def storage(self, name: str) -> Path:
        """Where a holder keeps its runs."""
        return self.home / name / "storage"

    def start_coordinator(
        self,
        *,
        wait: bool = True,
        fault: str = "",
        module: str = "services.cli",
        database: str = "",
        storage: str = "storage",
    ) -> Child:
        """Start a coordinator; waits until it listens, or lets silos start meanwhile.

        Args:
            wait: until it listens; a standby does not.
            fault: armed in it.
            module: that is run.
            database: URL of a PostgreSQL.
            storage: its folder, below the coordinator's.
        """
        path = self.write_coordinator(database=database, storage=storage)
        arguments = ["coordinator", "serve", "--config", str(path)]
        child = self._spawn(COORDINATOR, arguments, fault=fault, module=module)
        if wait:
            child.wait_for("listening")
        return child

    def write_coordinator(self, *, database: str = "", storage: str = "storage") -> Path:
        """Write the coordinator's settings, and the operator's; returns the coordinator's file."""
        self._write(
            "operator.toml", [f'coordinator = "{self.address}"', 'directory = "operator/keys"']
        )
        lines = [
            *([f'database = "{database}"'] if database else []),
            f'listen = "{self.address}"',
            'directory = "coordinator/keys"',
            f'storage = "coordinator/{storage}"',
            'log = { format = "json", level = "debug" }',
            f'metrics = "{_HOST}:0"',
            "[deadlines]",
            *(f"{name} = {float(seconds)}" for name, seconds in self.deadlines.items()),
            "[limits]",
            *(f"{name} = {number}" for name, number in self.limits.items()),
        ]
        return self._write("coordinator.toml", lines)

    def start_silo(
        self,
        name: str,
        task: Sequence[str],
        *,
        fault: str = "",
        options: Sequence[str] = (),
        module: str = "services.cli",
    ) -> Child:
        """Start a silo.

        Args:
            name: one of `silos`.
            task: lines of silo.toml that say what it trains; its tables, if any, come last.
            fault: armed in this process (`services.faults`).
            options: for `secagg silo join`.
            module: what runs; another one than the command's own is for tests.
        """
        path = self.write_silo(name, task)
        arguments = ["silo", "join", "--config", str(path), *options]
        return self._spawn(name, arguments, fault=fault, module=module)

    def start_crowd(
        self,
        name: str,
        silos: Mapping[str, Sequence[str]],
        *,
        once: bool = False,
        module: str = "services.demo.crowd",
    ) -> Child:
        """Start one process with many silos.

        Args:
            name: of the process, for its log.
            silos: for each silo, the lines of its settings, as for `start_silo`.
            once: whether it ends when each silo has taken part in one run.
            module: what is run with the settings files.
        """
        paths = [str(self.write_silo(silo, task, metrics=False)) for silo, task in silos.items()]
        options = ["--once"] if once else []
        return self._spawn(name, [*options, *paths], module=module)

    def write_silo(self, name: str, task: Sequence[str], *, metrics: bool = True) -> Path:
        """Write a silo's settings; returns the file."""
        lines = [
            f'coordinator = "{self.address}"',
            f'directory = "{name}/keys"',
            f'storage = "{name}/storage"',
            'log = { format = "json", level = "debug" }',
            *([f'metrics = "{_HOST}:0"'] if metrics else []),
            *task,
        ]
        return self._write(f"{name}.toml", lines)

    def _enroll_all(self) -> None:
        """What people do by hand and by mail, in one go (docs/quickstart.md)."""
        home, rng, now = self.home / "authority", SystemRng(), utc_now()
        authority.init(home, federation="demo", now=now, rng=rng)
        holders = [(COORDINATOR, Role.COORDINATOR), (OPERATOR, Role.OPERATOR)]
        holders += [(name, Role.SILO) for name in self.silos]
        for name, role in holders:
            hosts = (_HOST, "localhost") if role is Role.COORDINATOR else ()
            request = enroll(self._keys(name), name=name, role=role, hosts=hosts, rng=rng)
            organization = name if role is Role.SILO else ""
            authority.issue(
                home,
                request,
                role=role,
                now=now,
                organization=organization,
                spread_roster=False,
            )
        authority.spread(home)
        for name, _ in holders:
            authority.install(home / "issued" / name, self._keys(name))

    def _keys(self, name: str) -> Path:
        return self.home / name / "keys"

    def _write(self, name: str, lines: Sequence[str]) -> Path:
        path = self.home / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def _spawn(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        fault: str = "",
        module: str = "services.cli",
    ) -> Child:
        number = sum(child.name == name for child in self._children) + 1
        log = self.home / "logs" / (f"{name}.jsonl" if number == 1 else f"{name}-{number}.jsonl")
        process: subprocess.Popen[bytes] | ForkedProcess
        if self.forked:
            process = ForkedProcess([module, *arguments], log, fault=(faults.VARIABLE, fault))
        else:
            environment = {key: os.environ[key] for key in os.environ if key != faults.VARIABLE}
            if fault:
                environment[faults.VARIABLE] = fault
            with log.open("wb") as stream:
                process = subprocess.Popen(
                    [sys.executable, "-m", module, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    env=environment,
                )
        child = Child(name, process, log)
        self._children.append(child)
        return child

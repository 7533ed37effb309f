"""Processes that start in milliseconds: each is forked from one that has imported everything.

A second of every start is Python reading this software. Where processes are killed by the hundred,
one server process imports it once and forks; its children are processes like any other, with a
memory, files and signals of their own. The server makes no thread and no connection, so that a
fork takes nothing along that another process uses.
"""

import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from runpy import run_module
from subprocess import TimeoutExpired
from typing import Final

_CONTEXT: Final = get_context("forkserver")
_PRELOADED: Final = (
    "services.cli.main",
    "services.coordinator.serve",
    "services.silo.join",
    "fl.testing",
    "fl.training.custom",
    "scipy.optimize",  # where there is a privacy plan (dp.closed_form)
    "scipy.special",
)


class ForkedProcess:
    """`subprocess.Popen`, as far as `services.demo.federation` needs it."""

    def __init__(self, arguments: Sequence[str], log: Path, *, fault: tuple[str, str]) -> None:
        """Fork a process.

        Args:
            arguments: the module to run, as after `python -m`, and what it is told.
            log: gets what it prints.
            fault: a variable of its environment and the value, empty for none.
        """
        log.touch()  # whoever looks for its first line finds a file
        _CONTEXT.set_forkserver_preload(list(_PRELOADED))
        self._process: ForkServerProcess = _CONTEXT.Process(
            target=_run, args=(tuple(arguments), str(log), fault)
        )
        self._process.start()

    @property
    def pid(self) -> int:
        """Its number."""
        pid = self._process.pid
        assert pid is not None  # it was started
        return pid

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; returns its exit code.

        Raises:
            TimeoutExpired: it has not.
        """
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutExpired([self._process.name], timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _run(arguments: tuple[str, ...], log: str, fault: tuple[str, str]) -> None:
    """In the new process: become what `python -m` would have started."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    variable, value = fault
    os.environ.pop(variable, None)
    if value:
        os.environ[variable] = value
    module = arguments[0]
    sys.argv = list(arguments)
    run_module(module, run_name="__main__")

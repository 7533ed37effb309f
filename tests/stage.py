"""A federation of real processes with a run that a test disturbs, and what must have come out."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

from bench.flaky import flat_task
from bench.replay import replayed_model
from fl.testing import LeastSquaresTask, toy_task
from secagg.ids import RunId
from services.cli.operator import fetch_model, run_client, start_run
from services.clock import monotonic
from services.demo.federation import COORDINATOR, Child, LocalFederation
from services.errors import ServiceError
from services.wire.calls import RunStatus

TOY = "fl.testing:toy_task"
MODEL = "model.safetensors"
MANY = 100_000
LONG_S = 90.0
RUN = """
[run]
name = "disturbed"
rounds = {rounds}
min_silos = {silos}
metrics = false
[algorithm]
name = "scaffold"
[local]
steps = 4
batch_size = 0
learning_rate = 0.01
[task]
name = "{task}"
settings = {settings}
"""


class Stage:
    """A federation of processes on this machine, and its newest run.

    Args:
        federation: nobody in it has been started.
        task: "package.module:factory" of every silo; gets the silo's number as "silo".
        dim: of `bench.flaky:flat_task`; then the task is that.
    """

    def __init__(self, federation: LocalFederation, task: str = TOY, *, dim: int = 0) -> None:
        self.federation = federation
        self.silos = tuple(federation.silos)
        self.task = "bench.flaky:flat_task" if dim else task
        self.dim = dim
        self.run = RunId(bytes(16))
        self.config = ""
        self.children: dict[str, Child] = {}

    def start(self, *names: str, fault: str = "", free_bytes: int = 0, **settings: float) -> None:
        """Start these holders' processes and wait until they are connected.

        Args:
            names: of silos, or the coordinator's.
            fault: armed in each of them.
            free_bytes: that a round leaves free on a silo's disk.
            settings: of a silo's task, beside its number.
        """
        for name in names:
            if name == COORDINATOR:
                self.children[name] = self.federation.start_coordinator(wait=False, fault=fault)
                continue
            lines = [f"free_bytes = {free_bytes}", f'task = "{self.task}"', "[settings]"]
            lines += [f"silo = {self.silos.index(name) + 1}"]
            lines += [f"{key} = {value}" for key, value in settings.items()]
            self.children[name] = self.federation.start_silo(name, lines, fault=fault)
        for name in names:
            self.children[name].wait_for(
                "listening" if name == COORDINATOR else "connected", timeout_s=LONG_S
            )

    def begin(self, rounds: int = MANY, *, again: bool = False) -> None:
        """Start a run of all silos, or the last one again."""
        path = self.federation.home / "run.toml"
        if not again:
            self.run = RunId(os.urandom(16))
        self.config = RUN.format(
            rounds=rounds,
            silos=len(self.silos),
            task=self.task,
            settings=f"{{ dim = {self.dim} }}" if self.dim else "{}",
        )
        path.write_text(self.config, encoding="utf-8")

        async def ask() -> None:
            async with run_client(self.federation.operator_file) as client:
                await start_run(client, path, self.run)

        asyncio.run(ask())

    def status(self) -> RunStatus:
        """Where the run stands."""

        async def ask() -> RunStatus:
            async with run_client(self.federation.operator_file) as client:
                return (await client.show_run(self.run)).status

        return asyncio.run(ask())

    def wait_until(self, is_so: Callable[[RunStatus], bool]) -> RunStatus:
        """Wait for a status; the coordinator may be away in between."""
        give_up = monotonic() + LONG_S
        while True:
            with suppress(ServiceError):
                status = self.status()
                if is_so(status):
                    return status
                assert not status.summary.state.is_final, status.summary.reason
            assert monotonic() < give_up, "the run does not get there"

    def more_rounds(self, count: int) -> RunStatus:
        """Wait for some more rounds."""
        done = self.wait_until(lambda _: True).summary.rounds_done
        return self.wait_until(lambda status: status.summary.rounds_done >= done + count)

    def log_of(self, name: str) -> str:
        """What the process printed."""
        return self.children[name].log.read_text(encoding="utf-8")

    def stop(self) -> None:
        """End the run."""

        async def ask() -> None:
            async with run_client(self.federation.operator_file) as client:
                await client.stop_run(self.run, "enough")

        asyncio.run(ask())
        give_up = monotonic() + LONG_S
        while not self.status().summary.state.is_final:
            assert monotonic() < give_up, "the run does not end"

    def check(self) -> None:
        """End the run and everybody: all have the model of the undisturbed replay."""
        self.stop()
        for name in self.silos:
            self.children[name].wait_for("model-kept", run=self.run.hex, timeout_s=LONG_S)
        models = {
            (self.federation.storage(name) / "runs" / self.run.hex / MODEL).read_bytes()
            for name in self.silos
        }
        models.add(asyncio.run(fetch_model(self.federation.operator_file, self.run.hex)))
        reports = self.status().rounds
        assert [report.round for report in reports] == list(range(1, len(reports) + 1))
        for child in self.children.values():
            child.end()
        expected = replayed_model(
            self.federation,
            run=self.run,
            config=self.config,
            reports=reports,
            make_task=self._make_task,
        )
        assert models == {expected}

    def _make_task(self, number: int) -> LeastSquaresTask:
        if self.dim:
            return flat_task({"silo": number, "dim": self.dim})
        return toy_task({"silo": number})

"""`secagg demo`: authority, coordinator and five hospitals as processes, FedAvg and then SCAFFOLD.

In a round of both runs one hospital is killed after its shares and before its upload. The others
remove its masks from the sum, the round goes on with four, and the hospital comes back.
"""

import asyncio
import hashlib
import json
import platform
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from rich.console import Console

from secagg.ids import RunId
from secagg.rng import SystemRng
from services.cli.display import RunDisplay
from services.cli.operator import fetch_model, follow, run_client, start_run
from services.clock import monotonic, utc_now
from services.demo import report
from services.demo.comparison import Score, baselines, score
from services.demo.data import HOSPITALS, DemoData, run_toml, write_data
from services.demo.federation import Child, ChildError, LocalFederation
from services.files import write_atomic
from services.plans import build_plan
from services.run_config import RunConfig
from services.settings import load_config
from services.wire.calls import RoundReport, RunState

ALGORITHMS: Final = ("fedavg", "scaffold")
SEED: Final = 20
KILLED: Final = HOSPITALS[2]
KILLED_IN_ROUND: Final = 4
_FAULT: Final = f"silo.before-upload@{KILLED_IN_ROUND}=kill"
_DEADLINES: Final = {
    "registration_s": 60.0,
    "advertise_s": 10.0,
    "share_s": 10.0,
    "mask_s": 30.0,
    "survivors_s": 10.0,
    "unmask_s": 10.0,
}
_MODEL_WAIT_S: Final = 20.0
_GLANCE_S: Final = 0.1
_WIDTH: Final = 110  # of the tables where the output is no terminal
_PACKAGES: Final = ("secagg", "cryptography", "grpcio", "numpy", "scikit-learn", "torch")


@dataclass(slots=True, kw_only=True)
class Hospitals:
    """The five processes; one that dies is started again.

    Attributes:
        kills: how many more times the fault is armed, once for each run.
    """

    federation: LocalFederation
    data: DemoData
    console: Console
    kills: int
    _children: dict[str, Child] = field(default_factory=dict)

    def start(self) -> None:
        """Start all five."""
        for name in HOSPITALS:
            self._start(name)

    async def tend(self) -> None:
        """Start again whoever has died, until cancelled."""
        while True:
            for name, child in list(self._children.items()):
                if child.exit_code is not None:
                    self.console.print(
                        f"  {name} was killed after its shares and before its upload; "
                        "starting it again",
                        style="yellow",
                    )
                    self._start(name)
            await asyncio.sleep(_GLANCE_S)

    def _start(self, name: str) -> None:
        fault = ""
        if name == KILLED and self.kills > 0:
            fault, self.kills = _FAULT, self.kills - 1
        # The runs standardize by exact moments of all hospitals together: each has to allow it.
        columns = json.dumps(list(self.data.features))
        task = [
            'task = "tabular"',
            f"data = {{ file = {json.dumps(str(self._file(name)))} }}",
            f'policy = {{ statistics = "exact", statistics_columns = {columns} }}',
        ]
        self._children[name] = self.federation.start_silo(name, task, fault=fault)

    def _file(self, name: str) -> Path:
        return self.data.hospitals[name].absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """One algorithm's run.

    Attributes:
        model: the file that the operator fetched.
        digest: SHA-256 of it, the same at every hospital.
    """

    algorithm: str
    run: RunId
    reports: tuple[RoundReport, ...]
    model: Path
    digest: str


def run_demo(output: Path, *, rounds: int) -> int:
    """Run the demo and write its folder; returns the exit code.

    Raises:
        ServiceError: something did not come up, or a run did not end well.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves by the `with` below
    began = monotonic()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    folder = output / f"demo-{utc_now():%Y%m%d-%H%M%S}"
    data = write_data(folder / "data", SEED)
    console.print(f"{len(HOSPITALS)} hospitals, one coordinator, mTLS on loopback; files: {folder}")
    with LocalFederation(
        home=folder / "federation", silos=HOSPITALS, deadlines=_DEADLINES
    ) as federation:
        coordinator = federation.start_coordinator(wait=False)
        hospitals = Hospitals(
            federation=federation, data=data, console=console, kills=len(ALGORITHMS)
        )
        hospitals.start()
        coordinator.wait_for("listening")
        runs = []
        for algorithm in ALGORITHMS:
            settings = folder / algorithm / "run.toml"
            settings.parent.mkdir()
            document = run_toml(
                algorithm, data.features, rounds=rounds, seed=SEED, weights=data.weights
            )
            write_atomic(settings, document.encode())
            runs.append(asyncio.run(_run(hospitals, algorithm, settings, began)))
        seen = report.masked_samples(federation, runs[-1].run, runs[-1].reports[-1])
    console.print("comparing with pooled and local-only training", style="dim")
    plan = build_plan(
        load_config(folder / ALGORITHMS[0] / "run.toml", RunConfig), max_silos=len(HOSPITALS)
    )
    pooled, alone = baselines(plan, data, folder / "baselines")
    scores = [score(one.algorithm, one.model, data, rounds=rounds) for one in runs]
    report.print_all(
        console,
        scores=[*scores, pooled, alone],
        reports={one.algorithm: one.reports for one in runs},
        samples=seen,
    )
    _write_results(folder, runs, [*scores, pooled, alone], rounds)
    console.print(
        f"Every hospital holds the same model file. Done in {monotonic() - began:.0f} s; "
        f"models, settings, seeds, versions and logs: {folder}",
        style="bold",
    )
    return 0


async def _run(hospitals: Hospitals, algorithm: str, settings: Path, began: float) -> FinishedRun:
    """Start one run, follow it to its end, and compare the hospitals' model files."""
    federation, console = hospitals.federation, hospitals.console
    run = RunId(SystemRng().bytes(16))
    reports: list[RoundReport] = []
    tending = asyncio.create_task(hospitals.tend())
    try:
        async with run_client(federation.operator_file) as client:
            await start_run(client, settings, run)
            with RunDisplay(console) as display:
                async for status in follow(client, run):
                    if status.rounds and not reports and algorithm == ALGORITHMS[0]:
                        waited = monotonic() - began
                        console.print(f"  first round after {waited:.1f} s", style="dim")
                    reports += status.rounds
                    display.update(status)
        if status.summary.state is not RunState.FINISHED:
            raise ChildError(
                f"the {algorithm} run ended as {status.summary.state}: {status.summary.reason}",
                hint=f"see {federation.home / 'logs'}",
            )
        model = settings.with_name("model.safetensors")
        write_atomic(model, await fetch_model(federation.operator_file, run.hex))
        digest = _digest(model)
        await _all_hold(federation, run, digest)
    finally:
        tending.cancel()
        with suppress(asyncio.CancelledError):
            await tending
    return FinishedRun(
        algorithm=algorithm, run=run, reports=tuple(reports), model=model, digest=digest
    )


async def _all_hold(federation: LocalFederation, run: RunId, digest: str) -> None:
    """Wait until every hospital has the run's model file, and require it to be this one.

    Raises:
        ChildError: a hospital has another file, or none in time.
    """
    files = {
        name: federation.storage(name) / "runs" / run.hex / "model.safetensors"
        for name in HOSPITALS
    }
    give_up = monotonic() + _MODEL_WAIT_S
    while missing := [name for name, path in files.items() if not path.exists()]:
        if monotonic() > give_up:
            raise ChildError(f"{', '.join(missing)} did not write the run's model file")
        await asyncio.sleep(_GLANCE_S)
    different = [name for name, path in files.items() if _digest(path) != digest]
    if different:
        raise ChildError(f"{', '.join(different)} holds another model file than the coordinator")


def _write_results(
    folder: Path, runs: Sequence[FinishedRun], scores: Sequence[Score], rounds: int
) -> None:
    """The folder's top: the last model, seeds, versions, results, and the logs."""
    shutil.copy(runs[-1].model, folder / "model.safetensors")
    shutil.copytree(folder / "federation" / "logs", folder / "logs")
    results = {
        "seed": SEED,
        "rounds": rounds,
        "killed": {"silo": KILLED, "round": KILLED_IN_ROUND},
        "versions": _versions(),
        "scores": [asdict(one) for one in scores],
        "runs": {
            one.algorithm: {
                "run": one.run.hex,
                "model_sha256": one.digest,
                "rounds": [asdict(entry) for entry in one.reports],
            }
            for one in runs
        },
    }
    document = json.dumps(results, indent=2, default=str)
    write_atomic(folder / "results.json", document.encode() + b"\n")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

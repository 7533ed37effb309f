"""Load: hundreds of silos, each with its own certificate and connection, on one coordinator.

All on this machine, over loopback mTLS, with a small model and no torch. The silos share a few
processes, as they would not in a federation; what is measured is the coordinator.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

from services.demo.federation import Child, LocalFederation

_TOY: Final = "fl.testing:toy_task"
_WIDE: Final = "bench.wide:wide_task"
_RUN: Final = """
[run]
name = "load"
rounds = {rounds}
min_silos = {silos}
metrics = false

[local]
steps = 1
batch_size = 0
learning_rate = 0.1

[task]
name = "{task}"
settings = {settings}
"""
_GLANCE_S: Final = 0.05
_DEADLINES: Final = {
    "registration_s": 300.0,
    "advertise_s": 120.0,
    "share_s": 300.0,
    "mask_s": 300.0,
    "survivors_s": 120.0,
    "unmask_s": 120.0,
    "silent_s": 300.0,  # silos that share a process wait for each other
}


def load(
    *, silos: int, rounds: int, processes: int, dim: int = 0, home: Path | None = None
) -> dict[str, object]:
    """Run rounds of `silos` silos in `processes` processes; returns what it took.

    Args:
        silos: all of which must be in every sum.
        rounds: training rounds of a toy model.
        processes: that the silos share.
        dim: parameters of the model; 0 for the smallest there is.
        home: keeps everything; a folder that is removed otherwise.

    Raises:
        RuntimeError: a silo is missing in a sum, or the run did not finish.
    """
    scratch = None if home else tempfile.TemporaryDirectory(prefix="load-")
    folder = home or Path(scratch.name if scratch else "")
    names = [f"silo-{number:03}" for number in range(1, silos + 1)]
    start = perf_counter()
    with LocalFederation(home=folder, silos=names, deadlines=_DEADLINES) as federation:
        enrolled = perf_counter()
        coordinator = federation.start_coordinator()
        crowds = [names[number::processes] for number in range(processes)]
        children = [
            federation.start_crowd(
                f"crowd-{number}", {name: _task(name, dim) for name in crowd}, once=True
            )
            for number, crowd in enumerate(crowds, start=1)
        ]
        settings = folder / "run.toml"
        settings.write_text(
            _RUN.format(
                rounds=rounds,
                silos=silos,
                task=_WIDE if dim else _TOY,
                settings=f"{{ dim = {dim} }}" if dim else "{}",
            ),
            encoding="utf-8",
        )
        run = _secagg(federation, "run", "start", "-c", str(settings))
        growth = _upload_growth(coordinator)
        _secagg(federation, "run", "watch", run)
        took = perf_counter() - enrolled
        for child in children:
            if child.wait(timeout_s=60) != 0:
                raise RuntimeError(f"expected every silo to end well; see {child.log}")
        peak = _memory(coordinator, "VmHWM")
        committed = [line for line in coordinator.lines() if line.get("event") == "committed"]
        sizes = [
            len(line["survivors"]) for line in committed if isinstance(line["survivors"], list)
        ]
        if sizes != [silos] * rounds:
            raise RuntimeError(f"expected {silos} silos in {rounds} sums, got {sizes}")
    if scratch is not None:
        scratch.cleanup()
    return {
        "silos": silos,
        "rounds": rounds,
        "processes": processes,
        "enroll_s": round(enrolled - start, 1),
        "run_s": round(took, 1),
        "round_s": round(took / rounds, 1),
        "coordinator_peak_mb": peak // 10**6,
        "coordinator_upload_growth_mb": growth // 10**6,
    }


def _upload_growth(coordinator: Child) -> int:
    """By how many bytes the coordinator's memory grew, at its peak, while vectors were uploaded.

    Of the first round, from the moment on at which vectors are awaited. What a process has had
    before, such as a whole model while a round is committed, is not in the figure: the peak is
    reset (Linux, proc(5): clear_refs).
    """
    _wait_for_phase(coordinator, "mask")
    before = _memory(coordinator, "VmRSS")
    Path(f"/proc/{coordinator.process.pid}/clear_refs").write_text("5", encoding="ascii")
    _wait_for_phase(coordinator, "survivors")
    return _memory(coordinator, "VmHWM") - before


def _wait_for_phase(coordinator: Child, phase: str) -> None:
    """Wait until the first round is in this phase."""
    wanted = ("phase", 1, phase)
    while wanted not in {
        (line.get("event"), line.get("round"), line.get("phase")) for line in coordinator.lines()
    }:
        if coordinator.exit_code is not None:
            raise RuntimeError(f"the coordinator has ended; see {coordinator.log}")
        sleep(_GLANCE_S)


def _memory(child: Child, what: str) -> int:
    """A process's memory in bytes: VmRSS is what it has now, VmHWM the most that it has had."""
    text = Path(f"/proc/{child.process.pid}/status").read_text(encoding="ascii")
    line = next(line for line in text.splitlines() if line.startswith(f"{what}:"))
    return int(line.split()[1]) * 1024


def _task(name: str, dim: int) -> Sequence[str]:
    if dim:
        return [f'task = "{_WIDE}"']
    number = int(name.removeprefix("silo-"))
    return [f'task = "{_TOY}"', "[settings]", f"silo = {number % 90 + 1}"]


def _secagg(federation: LocalFederation, *arguments: str) -> str:
    operator = str(federation.operator_file)
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments, "--operator", operator],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


if __name__ == "__main__":
    print(json.dumps(load(silos=200, rounds=2, processes=4)))

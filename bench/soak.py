"""Soak: a run of hundreds of rounds in which silos vanish in every phase, and nothing may grow.

Twenty silos, in two processes, and one coordinator, over loopback mTLS. Each round loses 10, 20 or
30 % of the silos, in one phase after the other (`bench.flaky`); they come back at once. At the end
the model must be, bit for bit, the one that the same silos give without a network when each round
sums the survivors that were recorded, so every sum was exact. The coordinator's memory and open
files, and everybody's disk, must be flat: the mean over the last pattern of rounds is compared with
the mean over the first one after round 20.

    python -m bench.soak                # 200 rounds
    python -m bench.soak --rounds 92    # the shortest
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Final

from bench.flaky import PATTERN, POINTS, SILOS, drops, flat_task
from bench.replay import replayed_model
from secagg.ids import RunId
from secagg.rng import SystemRng
from services.cli.operator import fetch_model, follow, run_client, start_run
from services.demo.federation import Child, LocalFederation
from services.wire.calls import RoundReport, RunState, RunStatus

_DIM: Final = 50_000
_RUN: Final = """
[run]
name = "soak"
rounds = {rounds}
min_silos = {silos}
metrics = false

[algorithm]
name = "scaffold"

[local]
steps = 1
batch_size = 0
learning_rate = 0.1

[task]
name = "bench.flaky:flat_task"
settings = {{ dim = {dim} }}
"""
_DEADLINES: Final = {
    "registration_s": 120.0, "advertise_s": 30.0, "share_s": 30.0, "mask_s": 60.0,
    "survivors_s": 30.0, "unmask_s": 30.0,
}  # fmt: skip
# What happens before this round, such as the filling of caches, is not growth.
_WARM: Final = 20
SHORTEST: Final = _WARM + 2 * PATTERN + 4
# How much more may be there at the end.
_MOST_GROWTH: Final = 1.05


class SoakError(Exception):
    """Something grew, or a sum is not exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was in use after a round.

    Attributes:
        memory_bytes: the coordinator's resident memory.
        open_files: the coordinator's.
        disk_bytes: in the coordinator's storage.
        silo_disk_bytes: in all silos' storage.
        silo_memory_bytes: resident in the silos' processes.
    """

    memory_bytes: int
    open_files: int
    disk_bytes: int
    silo_disk_bytes: int
    silo_memory_bytes: int


def soak(*, rounds: int, home: Path) -> dict[str, object]:
    """Run the rounds; returns figures.

    Raises:
        SoakError: a round or a sum is missing or wrong, or something grew.
    """
    names = [f"silo-{number:02}" for number in range(1, SILOS + 1)]
    start = perf_counter()
    with LocalFederation(home=home, silos=names, deadlines=_DEADLINES) as federation:
        coordinator = federation.start_coordinator()
        crowds = [
            federation.start_crowd(
                f"crowd-{half}",
                {name: _task(number) for number, name in enumerate(names, 1) if number % 2 == half},
                module="bench.flaky",
            )
            for half in (0, 1)
        ]
        config = _RUN.format(rounds=rounds, silos=SILOS, dim=_DIM)
        (home / "run.toml").write_text(config, encoding="utf-8")
        run = RunId(SystemRng().bytes(16))
        samples, status = asyncio.run(_watch(federation, run, coordinator, crowds))
        took = perf_counter() - start
        if status.summary.state is not RunState.FINISHED:
            raise SoakError(f"the run ended: {status.summary.state} {status.summary.reason}")
        model = asyncio.run(fetch_model(federation.operator_file, run.hex))
        reports = asyncio.run(_reports(federation, run))
    expected = replayed_model(
        federation,
        run=run,
        config=config,
        reports=reports,
        make_task=lambda number: flat_task({"silo": number, "dim": _DIM}),
    )
    if model != expected:
        raise SoakError("the model is not that of the undisturbed replay")
    return _figures(samples, reports) | {
        "rounds": rounds,
        "round_s": round(took / rounds, 2),
        "every_sum": "exact",
    }


def _task(number: int) -> list[str]:
    return ['task = "bench.flaky:flat_task"', "[settings]", f"silo = {number}"]


async def _watch(
    federation: LocalFederation, run: RunId, coordinator: Child, crowds: Sequence[Child]
) -> tuple[dict[int, Sample], RunStatus]:
    """Start the run and follow it to its end; a sample for each round."""
    samples: dict[int, Sample] = {}
    async with run_client(federation.operator_file) as client:
        await start_run(client, federation.home / "run.toml", run)
        async for status in follow(client, run):
            if status.summary.rounds_done and status.summary.rounds_done not in samples:
                samples[status.summary.rounds_done] = _sample(federation, coordinator, crowds)
    return samples, status


async def _reports(federation: LocalFederation, run: RunId) -> tuple[RoundReport, ...]:
    async with run_client(federation.operator_file) as client:
        return (await client.show_run(run)).status.rounds


def _sample(federation: LocalFederation, coordinator: Child, crowds: Sequence[Child]) -> Sample:
    process = Path(f"/proc/{coordinator.process.pid}")
    return Sample(
        memory_bytes=_resident(coordinator),
        open_files=sum(1 for _ in (process / "fd").iterdir()),
        disk_bytes=_size(federation.storage("coordinator")),
        silo_disk_bytes=sum(_size(federation.storage(name)) for name in federation.silos),
        silo_memory_bytes=sum(map(_resident, crowds)),
    )


def _resident(child: Child) -> int:
    text = Path(f"/proc/{child.process.pid}/status").read_text(encoding="ascii")
    line = next(line for line in text.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def _size(folder: Path) -> int:
    """Bytes on the disk; files come and go meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def _figures(samples: dict[int, Sample], reports: Sequence[RoundReport]) -> dict[str, object]:
    """Means over the first and the last pattern of rounds, and what was lost where.

    Raises:
        SoakError: the last is more than 5 % above the first.
    """
    last = max(samples)
    figures: dict[str, object] = {}
    grown = []
    for name in (field.name for field in fields(Sample)):
        early, late = (
            fmean(getattr(samples[number], name) for number in window if number in samples)
            for window in (
                range(_WARM, _WARM + PATTERN),
                range(last - PATTERN, last),
            )
        )
        figures[name] = [round(early), round(late), f"{late / early - 1:+.1%}"]
        if late > early * _MOST_GROWTH and not name.startswith("silo_memory"):
            grown.append(name)
    lost: Counter[str] = Counter()
    for report in reports:
        point, numbers = drops(report.round)
        lost[point] += len(numbers)
    figures["vanished"] = {point: lost[point] for point in POINTS}
    figures["missing_in_sums"] = sum(SILOS - len(report.survivors) for report in reports)
    figures["attempts"] = sum(report.attempts for report in reports)
    if grown:
        raise SoakError(f"grew by more than 5 %: {grown}; {json.dumps(figures)}")
    return figures


def main() -> int:
    """Returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = max(parser.parse_args().rounds, SHORTEST)
    with tempfile.TemporaryDirectory(prefix="secagg-soak-") as home:
        try:
            print(json.dumps(soak(rounds=rounds, home=Path(home))))
        except SoakError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

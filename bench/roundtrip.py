"""A real round on loopback: coordinator and silos as processes of their own, over mTLS.

The run has a few rounds of a task that costs nothing to train. The first one is left out, since
the processes are still starting in it; of the others the quickest is shown.
"""

import asyncio
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.wide import WideTask
from fl.pipeline import vector_spec
from fl.plan import TrainingPlan
from fl.run import TrainingRun
from secagg.ids import RunId
from secagg.rng import SystemRng
from services.cli.operator import follow, run_client, start_run
from services.demo.federation import Child, LocalFederation
from services.plans import build_plan
from services.run_config import RunConfig
from services.settings import load_config
from services.wire.calls import Phase, RoundReport, RunState

VALUE_BITS: Final = 16
ROUNDS: Final = 4
_TASK: Final = "bench.wide:wide_task"


def measure(*, silos: int, dim: int) -> dict[str, object]:
    """Run rounds of `silos` silos with a model of `dim` parameters.

    Raises:
        RuntimeError: the run did not end well, or there was no round that all silos survived.
    """
    names = [f"silo-{number:03}" for number in range(1, silos + 1)]
    with TemporaryDirectory(prefix="secagg-bench-") as folder:
        home = Path(folder)
        config = home / "run.toml"
        config.write_text(_run_toml(silos, dim), encoding="utf-8")
        plan = build_plan(load_config(config, RunConfig), max_silos=silos)
        with LocalFederation(home=home, silos=names) as federation:
            coordinator = federation.start_coordinator()
            for name in names:
                federation.start_silo(name, [f'task = "{_TASK}"'])
            reports = asyncio.run(_reports(federation.operator_file, config))
            peak = _peak_bytes(coordinator)
    whole = [report for report in reports[1:] if len(report.survivors) == silos]
    if not whole:
        raise RuntimeError(f"expected rounds that all {silos} silos survive, got none")
    best = min(whole, key=_seconds)
    return {
        "silos": silos,
        "dim": dim,
        "value_bits": VALUE_BITS,
        **_traffic(best, plan, names, dim),
        "seconds": _seconds(best),
        "phase_seconds": {cost.phase.value: cost.duration_s for cost in best.costs},
        "coordinator_peak_bytes": peak,
    }


def _traffic(
    report: RoundReport, plan: TrainingPlan, names: list[str], dim: int
) -> dict[str, float]:
    """The round's payload bytes up to the unmasking: vectors, states, and all that is neither.

    The result and the sum, which is as long as a vector, come after: a report is made while they
    are on their way.
    """
    vector = vector_spec(plan, report.round, dim).with_tags().wire_bytes
    seats = dict(enumerate(names, start=1))
    run = TrainingRun(plan, model=WideTask(dim).initial_model(0), names=seats, features=0)
    costs = [cost for cost in report.costs if cost.phase is not Phase.CLOSED]
    total = sum(cost.received_bytes + cost.sent_bytes for cost in costs)
    control = total - len(names) * (vector + len(run.state))
    return {
        "bytes_per_parameter": vector / dim,
        "vector_bytes": vector,
        "state_bytes": len(run.state),
        "control_bytes": control,
        "control_bytes_per_silo": control / len(names),
    }


async def _reports(operator: Path, config: Path) -> list[RoundReport]:
    """Start the run and follow it to its end."""
    run, reports = RunId(SystemRng().bytes(16)), list[RoundReport]()
    async with run_client(operator) as client:
        ended = await start_run(client, config, run)
        async for status in follow(client, run):
            reports += status.rounds
            ended = status.summary
    if ended.state is not RunState.FINISHED:
        raise RuntimeError(f"the run {ended.state.value}: {ended.reason}")
    return reports


def _run_toml(silos: int, dim: int) -> str:
    return f"""
[run]
name = "bench"
rounds = {ROUNDS}
min_silos = {silos}
[local]
steps = 1
learning_rate = 0.01
[task]
name = "{_TASK}"
settings = {{ dim = {dim} }}
[encoding]
value_bits = {VALUE_BITS}
first_value_bits = {VALUE_BITS}
"""


def _seconds(report: RoundReport) -> float:
    return sum(cost.duration_s for cost in report.costs)


def _peak_bytes(child: Child) -> int:
    """A living process's peak resident memory as Linux knows it; 0 elsewhere."""
    path = Path(f"/proc/{child.process.pid}/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", path.read_text()) if path.exists() else None
    return int(found[1]) * 1024 if found else 0

"""Kills a federation's processes at named points and at random instants while a run goes on.

Real processes over loopback mTLS with a task that needs no torch. Each named point of
`services.faults` is armed in turn: the process that reaches it dies of SIGKILL, and is started
again. Then processes are killed at random instants, one, or several together. At the end the run
is stopped, and its model must be, bit for bit, the one that the same silos give without a
network and without a crash when each round sums the survivors that were recorded. No process, lock
or half-written file may be left.

    python tools/chaos.py --seconds 150 --seed 1
"""

import argparse
import asyncio
import fcntl
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random  # noqa: TID251 - a script's seeded choice of victims, no secret

import numpy as np

from fl.participant import RunParticipant
from fl.plan import TrainingPlan
from fl.run import RoundReport as TrainingReport
from fl.run import RoundRequest, TrainingRun
from fl.state import decode_state
from fl.testing import DictMemory, toy_task
from secagg.effects import Aggregate
from secagg.errors import SecAggError
from secagg.ids import RunId
from secagg.messages import MAX_STATE_BYTES
from secagg.parameters import RoundParameters
from secagg.rng import SystemRng
from secagg.testing import make_federation, make_parameters
from services import faults
from services.cli.operator import fetch_model, run_client, start_run
from services.clock import monotonic
from services.config import RunConfig, parse_config
from services.demo.federation import COORDINATOR, Child, ChildError, LocalFederation
from services.errors import ServiceError
from services.plans import build_plan
from services.released import released_bytes
from services.silo.memory import StoredMemory
from services.storage.silo import SiloStore
from services.wire.calls import RoundReport

SILOS = tuple(f"silo-{number}" for number in range(1, 6))
DEADLINES = {
    "registration_s": 120.0, "advertise_s": 20.0, "share_s": 20.0, "mask_s": 20.0,
    "survivors_s": 20.0, "unmask_s": 20.0,
}  # fmt: skip
RUN = """
[run]
name = "chaos"
rounds = 100000
min_silos = 5
[algorithm]
name = "scaffold"
[local]
steps = 4
batch_size = 0
learning_rate = 0.01
[task]
name = "fl.testing:toy_task"
"""
# How long a process may live without reaching the point that is armed in it.
REACH_S = 45.0
# How long a run may stand still before it counts as hanging.
STILL_S = 150.0
# The last rounds are left in peace, so that every silo comes back and gets the model.
CALM_ROUNDS = 3


class ChaosError(Exception):
    """Something that must not happen has happened."""


class Circus:
    """The federation, who is alive in it, and what was done to it."""

    def __init__(self, federation: LocalFederation) -> None:
        self.federation = federation
        self.children: dict[str, Child] = {}
        self.kills: Counter[str] = Counter()

    def start(self, name: str, fault: str = "") -> None:
        """Start a process of this holder."""
        if name == COORDINATOR:
            self.children[name] = self.federation.start_coordinator(wait=False, fault=fault)
            return
        number = SILOS.index(name) + 1
        task = ['task = "fl.testing:toy_task"', "[settings]", f"silo = {number}"]
        self.children[name] = self.federation.start_silo(name, task, fault=fault)

    def kill(self, name: str) -> None:
        """SIGKILL, now."""
        self.children[name].kill()
        self.kills["at a random instant"] += 1

    def look_after(self, *names: str) -> None:
        """Start again who has died; whoever ended in another way than by SIGKILL is a failure."""
        for name in names:
            child = self.children[name]
            code = child.exit_code
            if code is None:
                continue
            if code != -9:
                raise ChaosError(f"{name} ended with code {code}; see {child.log}")
            self.start(name)

    def strike(self, points: list[str], until: float, random: Random) -> list[str]:
        """Let processes die of these points, one after the other; returns those not reached.

        At each time one is armed in the coordinator and one in one of the silos.
        """
        queues = (
            [point for point in points if not point.startswith("silo.")],
            [point for point in points if point.startswith("silo.")],
        )
        armed: dict[str, tuple[str, float]] = {}
        missed: list[str] = []
        while (any(queues) or armed) and monotonic() < until:
            for queue, names in zip(queues, ((COORDINATOR,), SILOS), strict=True):
                if queue and not armed.keys() & set(names):
                    name, point = random.choice(names), queue.pop()
                    self.children[name].kill()
                    self.start(name, f"{point}=kill")
                    armed[name] = point, monotonic() + REACH_S
            time.sleep(0.05)
            for name, (point, give_up) in list(armed.items()):
                if self.children[name].exit_code is not None:
                    self.kills[point] += 1
                    del armed[name]
                elif monotonic() > give_up:
                    missed.append(point)
                    del armed[name]
            for name in armed.keys() ^ self.children.keys():
                self.look_after(name)
        for name in armed:
            self.children[name].kill()  # else it would die of its point at some later time
        self.look_after(*self.children)
        return missed


def _is_common(point: str) -> bool:
    """Whether every round passes the point, and not only one that something went wrong in."""
    rare = {
        *("abandon", "abandoned", "message", "lost", "expired", "stopped"),
        *("late", "dead", "out"),
    }
    return point.rpartition("-")[2] not in rare


async def reports_of(operator: Path, run: RunId) -> list[RoundReport]:
    """The run's rounds so far, once the coordinator answers."""
    give_up = monotonic() + STILL_S
    while True:
        try:
            async with run_client(operator) as client:
                status = (await client.show_run(run)).status
        except ServiceError:
            if monotonic() > give_up:
                raise
            await asyncio.sleep(0.3)
            continue
        if status.summary.state.is_final and status.summary.state.value != "stopped":
            raise ChaosError(f"the run ended: {status.summary.state} {status.summary.reason}")
        return list(status.rounds)


def wait_for_rounds(circus: Circus, run: RunId, more: int) -> list[RoundReport]:
    """Wait until `more` rounds have been committed from now on."""
    operator = circus.federation.operator_file
    first = len(asyncio.run(reports_of(operator, run)))
    give_up = monotonic() + STILL_S
    while len(reports := asyncio.run(reports_of(operator, run))) < first + more:
        circus.look_after(*circus.children)
        if monotonic() > give_up:
            raise ChaosError(f"no {more} rounds in {STILL_S:g} s after round {first}")
        time.sleep(0.2)
    return reports


def stop(operator: Path, run: RunId) -> bytes:
    """End the run; returns its model file."""

    async def ask() -> bytes:
        async with run_client(operator) as client:
            await client.stop_run(run, "enough")
        return await fetch_model(operator, run.hex)

    return asyncio.run(ask())


def replay(
    plan: TrainingPlan, run: RunId, reports: list[RoundReport], secrets: Mapping[str, bytes]
) -> bytes:
    """The model file of the same run without crash and network: integers, summed.

    Args:
        plan: the training plan.
        run: its id, which the rounding coins depend on.
        reports: say who is in each sum.
        secrets: the silos' rounding secrets.
    """
    names = dict(enumerate(SILOS, start=1))
    tasks = {name: toy_task({"silo": seat}) for seat, name in names.items()}
    training = TrainingRun(plan, model=tasks[SILOS[0]].initial_model(plan.seed), names=names)
    silos = {}
    for seat, name in names.items():
        memory = DictMemory()
        memory.write({f"{run.hex}/secret": secrets[name]})
        silos[seat] = RunParticipant(
            plan, run=run, seat=seat, names=names, task=tasks[name], memory=memory, rng=SystemRng()
        )
    for report in reports:
        request = training.next()
        assert isinstance(request, RoundRequest)
        parameters = _parameters(request, run, plan)
        parts = {
            seat: silos[seat].contribute(parameters, request.state) for seat in report.survivors
        }
        sums = {
            segment.name: np.sum([part[segment.name] for part in parts.values()], axis=0)
            for segment in request.spec.segments
        }
        aggregate = Aggregate(
            values=sums,
            survivors=report.survivors,
            cohort=tuple(names),
            parameters=parameters,
            state_hash=request.state_hash,
        )
        made = training.receive(aggregate)
        assert isinstance(made, TrainingReport), made
        for seat in report.survivors:
            silos[seat].settle(aggregate, request.state)
    return released_bytes(plan, decode_state(training.state, MAX_STATE_BYTES))


def _parameters(request: RoundRequest, run: RunId, plan: TrainingPlan) -> RoundParameters:
    """Of the round, as far as training reads them."""
    return make_parameters(
        make_federation(len(SILOS)).roster,
        request.spec,
        run=run,
        round=request.number,
        kind=request.kind.value,
        training_plan=plan.digest(),
        n_max=plan.max_silos,
    )


def leftovers(home: Path) -> list[str]:
    """Locks that are held and half-written files."""
    found = [str(path) for pattern in ("**/*.part", "**/*.partial") for path in home.glob(pattern)]
    for path in home.glob("*/storage/lock"):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                found.append(f"{path} is locked")
    return found


def play(home: Path, seconds: float, seed: int) -> None:
    """One show.

    Raises:
        ChaosError: something that must not happen has happened.
    """
    random, began = Random(seed), monotonic()  # noqa: S311 - it chooses victims
    with LocalFederation(home=home, silos=SILOS, deadlines=DEADLINES) as federation:
        circus = Circus(federation)
        circus.start(COORDINATOR)
        for name in SILOS:
            circus.start(name)
        circus.children[COORDINATOR].wait_for("listening", timeout_s=120)
        for name in SILOS:
            circus.children[name].wait_for("connected", timeout_s=120)
        run = RunId(SystemRng().bytes(16))
        path = home / "run.toml"
        path.write_text(RUN, encoding="utf-8")

        async def begin() -> None:
            async with run_client(federation.operator_file) as client:
                await start_run(client, path, run)

        asyncio.run(begin())
        wait_for_rounds(circus, run, 1)
        points = sorted(faults.POINTS)
        random.shuffle(points)
        points.sort(key=_is_common)  # taken from the end
        missed = circus.strike(points, began + seconds * 0.75, random)
        while monotonic() - began < seconds:
            time.sleep(random.uniform(0.0, 1.5))
            for name in random.sample((COORDINATOR, *SILOS), random.choice((1, 1, 1, 2))):
                circus.kill(name)
            circus.look_after(*circus.children)
        reports = wait_for_rounds(circus, run, CALM_ROUNDS)
        released = stop(federation.operator_file, run)
        reports = asyncio.run(reports_of(federation.operator_file, run))
        for name in SILOS:
            circus.children[name].wait_for("model-kept", run=run.hex, timeout_s=120)
        kept = {
            (federation.storage(name) / "runs" / run.hex / "model.safetensors").read_bytes()
            for name in SILOS
        }
        processes = [child.process.pid for child in circus.children.values()]
    plan = build_plan(
        parse_config(RUN.encode(), RunConfig, source="run.toml", base=home), max_silos=len(SILOS)
    )
    secrets = {}
    for name in SILOS:
        store = SiloStore(federation.storage(name))
        secret = StoredMemory(store).read(f"{run.hex}/secret")
        assert secret is not None
        secrets[name] = secret
        store.close()
    expected = replay(plan, run, reports, secrets)
    alive = [pid for pid in processes if Path(f"/proc/{pid}").exists()]
    dropped = sum(len(report.dropouts) + len(report.absent) for report in reports)
    again = sum(report.attempts - 1 for report in reports)
    print(
        f"seed {seed}: {len(reports)} rounds, {sum(circus.kills.values())} kills at "
        f"{len(circus.kills) - 1} named points and {circus.kills['at a random instant']} random "
        f"instants; {again} attempts done again, {dropped} dropouts; not reached: "
        f"{', '.join(missed) or 'none'}"
    )
    if released != expected or kept != {released}:
        raise ChaosError("the model is another one than that of the undisturbed replay")
    if alive or leftovers(home):
        raise ChaosError(f"left behind: processes {alive}, {leftovers(home)}")


def main() -> int:
    """Returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="secagg-chaos-"))
    try:
        play(home, arguments.seconds, arguments.seed)
    except (ChaosError, ChildError, ServiceError, SecAggError) as error:
        print(f"{error}\nlogs: {home}", file=sys.stderr)
        return 1
    print("the model is that of the undisturbed replay; nothing is left behind")
    return 0


if __name__ == "__main__":
    os.environ.pop(faults.VARIABLE, None)
    sys.exit(main())

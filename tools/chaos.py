"""Kills a federation's processes at named points and at random instants while runs go on.

Real processes over loopback mTLS with a task that needs no torch; each is forked from one that has
imported everything, so that a restart costs a tenth of a second. Four acts:

1. Each named point of `services.faults` is armed in turn; the process that reaches it dies of
   SIGKILL, and is started again. One in the coordinator and one in a silo at each time.
2. Processes die at random instants, one or two at a time, and now and then half of the silos.
3. Three of six silos die between certificate and shares: fewer than the threshold are left, and
   the run must end by name.
4. A run under a privacy plan: whatever dies, no line of a ledger is lost. Not in the short form.

Every run's model must be, bit for bit, the one that the same silos give without a network and
without a crash when each round sums the survivors that were recorded. A run may end early only
where fewer silos than the threshold are left, with a reason that says so. No process, no lock and
no half-written file may be left.

    python tools/chaos.py            # some eight minutes
    python tools/chaos.py --short    # less than three
    python tools/chaos.py --random 2000 --seed 7
"""

import argparse
import asyncio
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from random import Random  # noqa: TID251 - a script's seeded choice of victims, no secret

from bench.replay import replayed_model
from dp.verify import verify_ledger
from fl.testing import toy_task
from secagg.errors import SecAggError
from secagg.ids import RunId
from secagg.rng import SystemRng
from services import faults
from services.cli.operator import fetch_model, run_client, start_run
from services.clock import monotonic
from services.demo.federation import COORDINATOR, Child, ChildError, LocalFederation
from services.enrollment.authority import newest_roster
from services.errors import ServiceError
from services.silo import said
from services.silo.data_set import data_set_path
from services.silo.ledger import LEDGERS
from services.wire.calls import RoundReport, RunState, RunStatus

SILOS = tuple(f"silo-{number}" for number in range(1, 7))
DEADLINES = {
    "registration_s": 120.0, "advertise_s": 20.0, "share_s": 20.0, "mask_s": 20.0,
    "survivors_s": 10.0, "unmask_s": 10.0,
}  # fmt: skip
RUN = """
[run]
name = "chaos"
rounds = {rounds}
min_silos = 6
[algorithm]
name = "scaffold"
[local]
steps = 4
batch_size = 0
learning_rate = {learning_rate}
[task]
name = "fl.testing:toy_task"
"""
PRIVACY = """
[privacy]
mode = "silo"
adjacency = "zero_out"
clip = 1.0
z = 20.0
allow_low_utility = true
delta = 1e-5
dimension = 1
h_dp = 2
budget = 15.0
"""
# What every early end's reason says.
TOO_FEW = "too few silos"
# How long a process may live without reaching the point that is armed in it.
REACH_S = 12.0
# How long a run may stand still before it counts as hanging.
STILL_S = 150.0
# The last rounds are left in peace, so that every silo comes back and gets the model.
CALM_ROUNDS = 2
# Between two random kills, at most.
PAUSE_S = 2.5
RANDOM = "at a random instant"
# Not every round passes these points: something must have gone wrong in it.
RARE = {
    "abandon",
    "abandoned",
    "message",
    "lost",
    "expired",
    "stopped",
    "late",
    "dead",
    "out",
    "refused",
    "case",
    "lifted",
}


class ChaosError(Exception):
    """Something that must not happen has happened."""


@dataclass(slots=True)
class Ended:
    """A run that is over."""

    run: RunId
    config: str
    status: RunStatus
    model: bytes


@dataclass(slots=True)
class Chain:
    """Points that one holder's processes die of, one after the other.

    Attributes:
        queue: of points; the end comes first.
        armed: in the process that lives; empty for none.
    """

    name: str
    queue: list[str]
    armed: str = ""
    give_up: float = 0.0
    tried: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Circus:
    """The federation, who is alive in it, and what was done to it."""

    federation: LocalFederation
    random: Random
    extra: str = ""
    children: dict[str, Child] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    run: RunId = field(default_factory=lambda: RunId(bytes(16)))
    config: str = ""
    ended: list[Ended] = field(default_factory=list)
    births: dict[int, str] = field(default_factory=dict)

    # --- processes ----------------------------------------------------------------------------

    def open(self) -> None:
        """Start everybody, and the first run."""
        for name in (COORDINATOR, *SILOS):
            self.start(name)
        self.children[COORDINATOR].wait_for("listening", timeout_s=STILL_S)
        self.begin()

    def start(self, name: str, fault: str = "") -> None:
        """Start a process of this holder."""
        if name == COORDINATOR:
            child = self.federation.start_coordinator(wait=False, fault=fault)
        else:
            child = self.federation.start_silo(name, self._task(name), fault=fault)
        self.children[name] = child
        self.births[child.process.pid] = birth_of(child.process.pid)

    def _task(self, name: str) -> list[str]:
        number = SILOS.index(name) + 1
        lines = ['task = "fl.testing:toy_task"', "[settings]", f"silo = {number}"]
        if self.extra:
            lines += [
                "[privacy]", f'data_set = "toy-{number}"', 'unit = "silo"',
                'adjacency = "zero_out"', "epsilon = 15.0", "delta = 1e-5", "persons = 50",
            ]  # fmt: skip
        return lines

    def kill(self, *names: str) -> None:
        """SIGKILL, now."""
        for name in names:
            self.children[name].kill()
            self.kills[RANDOM] += 1

    def look_after(self, *names: str, fault: str = "") -> None:
        """Start again who has died; whoever ended in another way than by SIGKILL is a failure."""
        for name in names:
            child = self.children[name]
            code = child.exit_code
            if code is None:
                continue
            if code != -9:
                raise ChaosError(f"{name} ended with code {code}; see {child.log}")
            self.start(name, fault)

    # --- runs ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start another run and wait until its first round has summed everybody.

        All runs begin from one state, and silos refuse to sum it again over others (2.5 v).
        """
        for name in SILOS:
            self.children[name].wait_for("connected", timeout_s=STILL_S)
        self.run = RunId(SystemRng().bytes(16))
        path = self.federation.home / "run.toml"
        self.config = RUN.format(
            rounds=300 if self.extra else 100_000,  # a promise over more rounds needs more noise
            learning_rate=0.01 + len(self.ended) / 1000,
        )
        self.config += self.extra
        path.write_text(self.config, encoding="utf-8")

        async def ask() -> None:
            async with run_client(self.federation.operator_file) as client:
                await start_run(client, path, self.run)

        asyncio.run(ask())
        reports = self.wait_for_rounds(1)
        if reports[0].survivors != tuple(range(1, len(SILOS) + 1)):
            raise ChaosError(f"the first round, in peace, summed {reports[0].survivors}")

    def status(self) -> RunStatus:
        """Where the run stands, once the coordinator answers."""
        give_up = monotonic() + STILL_S
        while True:
            try:
                return asyncio.run(self._show())
            except ServiceError:
                if monotonic() > give_up:
                    raise
            self.look_after(COORDINATOR)
            time.sleep(0.2)

    async def _show(self) -> RunStatus:
        async with run_client(self.federation.operator_file) as client:
            return (await client.show_run(self.run)).status

    def go_on(self) -> None:
        """If the run has ended, make sure that it was allowed to, and start another one."""
        status = self.status()
        if not status.summary.state.is_final:
            return
        if status.summary.state is not RunState.FAILED or TOO_FEW not in status.summary.reason:
            raise ChaosError(f"the run ended: {status.summary.state} {status.summary.reason}")
        self._close(status)
        self.look_after(*self.children)
        self.begin()

    def finish(self) -> None:
        """After some rounds in peace: end the run; every silo must have its model."""
        self.go_on()
        self.wait_for_rounds(CALM_ROUNDS)

        async def ask() -> None:
            async with run_client(self.federation.operator_file) as client:
                await client.stop_run(self.run, "enough")

        asyncio.run(ask())
        for name in SILOS:
            self.children[name].wait_for("model-kept", run=self.run.hex, timeout_s=STILL_S)
        self._close(self.status())
        paths = (self.federation.storage(name) / "runs" / self.run.hex for name in SILOS)
        kept = {(path / "model.safetensors").read_bytes() for path in paths}
        if kept != {self.ended[-1].model}:
            raise ChaosError("the silos' model files differ from the coordinator's")

    def _close(self, status: RunStatus) -> None:
        model = b""  # a run that ends in its first round has none
        if status.rounds:
            model = asyncio.run(fetch_model(self.federation.operator_file, self.run.hex))
        self.ended.append(Ended(self.run, self.config, status, model))

    def wait_for_rounds(self, more: int) -> Sequence[RoundReport]:
        """Wait until `more` rounds have been committed from now on."""
        first, give_up = len(self.status().rounds), monotonic() + STILL_S
        while len(rounds := self.status().rounds) < first + more:
            self.look_after(*self.children)
            self.go_on()
            if monotonic() > give_up:
                raise ChaosError(f"no {more} rounds in {STILL_S:g} s after round {first}")
            time.sleep(0.1)
        return rounds

    # --- acts ---------------------------------------------------------------------------------

    def strike(self, points: list[str], until: float) -> list[str]:
        """Let processes die of these points, one after the other; returns those not reached.

        Whoever died of one is started again with the next one armed. While points wait that only
        a round in trouble passes, rounds get into trouble.
        """
        chains = [
            Chain(COORDINATOR, [point for point in points if not point.startswith("silo.")]),
            Chain(
                self.random.choice(SILOS), [point for point in points if point.startswith("silo.")]
            ),
        ]
        names = {chain.name for chain in chains}
        look = trouble = monotonic()
        while any(chain.queue or chain.armed for chain in chains):
            now = monotonic()
            for chain in chains:
                self._step(chain, now, until)
            self.look_after(*(self.children.keys() - names))
            if now > look:
                look = now + 2.0
                self.go_on()
            if now > trouble and any(_is_rare(chain.armed) for chain in chains):
                trouble = now + self.random.uniform(0.5, 2.5)
                self.kill(*self.random.sample(sorted(set(SILOS) - names), 3))
            time.sleep(0.01)
        for name in names:
            self.children[name].kill()  # what is still armed in it would go off at another time
        self.look_after(*self.children)
        return sorted(set(points) - self.kills.keys())

    def _step(self, chain: Chain, now: float, until: float) -> None:
        """Let the next point follow on the one that was reached, or was waited for long enough."""
        is_dead = self.children[chain.name].exit_code is not None
        if is_dead and chain.armed:
            self.kills[chain.armed] += 1
        elif chain.armed and now > chain.give_up:
            chain.tried[chain.armed] += 1
            if chain.tried[chain.armed] < 2 and not _is_rare(chain.armed):
                chain.queue.insert(0, chain.armed)  # others died at the wrong time
        elif chain.armed:
            return
        chain.armed = chain.queue.pop() if chain.queue and now < until else ""
        if not chain.armed:
            chain.queue.clear()
            self.look_after(chain.name)
            return
        if not is_dead:
            self.children[chain.name].kill()
        self.look_after(chain.name, fault=f"{chain.armed}=kill")
        chain.give_up = now + REACH_S

    def play(self, kills: int, until: float) -> None:
        """Kill processes at random instants."""
        aim, look = self.kills[RANDOM] + kills, monotonic()
        while self.kills[RANDOM] < aim and monotonic() < until:
            time.sleep(self.random.uniform(0.0, PAUSE_S))
            everybody = (COORDINATOR, *SILOS)
            self.kill(*self.random.sample(everybody, self.random.choice((1, 1, 1, 1, 2, 2, 3))))
            self.look_after(*self.children)
            if monotonic() > look:
                look = monotonic() + 2.0
                self.go_on()

    def starve(self) -> str:
        """Leave fewer silos than the threshold between certificate and shares.

        Returns:
            How the run ended.
        """
        self.go_on()
        self.wait_for_rounds(1)  # so that there is a model to compare
        victims, point, give_up = SILOS[:3], "silo.before-journal-unmasked", monotonic() + STILL_S
        armed_at = -2
        while not (status := self.status()).summary.state.is_final:
            if len(status.rounds) >= armed_at + 2:  # at first, or they were not all in one round
                armed_at = len(status.rounds)
                for name in victims:
                    self.children[name].kill()
                    self.start(name, f"{point}=kill")
            if monotonic() > give_up:
                raise ChaosError(f"a round with too few shares goes on: {status.summary}")
            time.sleep(0.1)
        self.kills[point] += sum(self.children[name].exit_code == -9 for name in victims)
        self.go_on()
        return status.summary.reason


def _is_rare(point: str) -> bool:
    return point.rpartition("-")[2] in RARE


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


def crashes(home: Path, random: Random, arguments: argparse.Namespace) -> None:
    """The first three acts.

    Raises:
        ChaosError: something that must not happen has happened.
    """
    began = monotonic()
    points = sorted(faults.POINTS)
    random.shuffle(points)
    rare = [point for point in points if _is_rare(point)]
    common = [point for point in points if not _is_rare(point)]
    with LocalFederation(home=home, silos=SILOS, deadlines=DEADLINES, forked=True) as federation:
        circus = Circus(federation, random)
        circus.open()
        missed = circus.strike(common, monotonic() + 60)
        if not arguments.short:
            missed += circus.strike(rare, monotonic() + 220)
        named, struck = monotonic() - began, sum(circus.kills.values()) - circus.kills[RANDOM]
        reached = len(circus.kills.keys() - {RANDOM})
        print(
            f"{struck} kills at {reached} named points and {circus.kills[RANDOM]} beside them "
            f"in {named:.0f} s; not reached: {', '.join(missed) or 'none'}"
        )
        wanted = arguments.random or (30 if arguments.short else 120)
        began, before = monotonic(), circus.kills[RANDOM]
        circus.play(wanted, monotonic() + 40 + 3 * wanted)
        played = circus.kills[RANDOM] - before
        print(f"{played} kills at random instants in {monotonic() - began:.0f} s")
        print(f"three of six silos died before their shares left: {circus.starve()}")
        circus.finish()
    rounds = [report for one in circus.ended for report in one.status.rounds]
    print(
        f"{len(circus.ended)} runs, {len(rounds)} rounds, of which "
        f"{sum(report.attempts > 1 for report in rounds)} were done again and "
        f"{sum(bool(report.dropouts or report.absent) for report in rounds)} had dropouts; "
        f"{len(circus.ended) - 1} runs ended early, each by name"
    )
    for ended in (one for one in circus.ended if one.status.rounds):
        expected = replayed_model(
            federation,
            run=ended.run,
            config=ended.config,
            reports=ended.status.rounds,
            make_task=lambda number: toy_task({"silo": number}),
        )
        if expected != ended.model:
            raise ChaosError(f"run {ended.run}: the model is not that of the undisturbed replay")
    check_nothing_left(circus)
    if reached < 20 or played < wanted:
        raise ChaosError(f"expected 20 named points and {wanted} random kills in the time there is")


def budgets(home: Path, random: Random, kills: int) -> None:
    """The fourth act.

    Raises:
        ChaosError: a line of a ledger is gone, or a sum is not accounted for.
    """
    with LocalFederation(home=home, silos=SILOS, deadlines=DEADLINES, forked=True) as federation:
        circus = Circus(federation, random, extra=PRIVACY)
        circus.open()
        seen: dict[Path, list[bytes]] = {}
        while circus.kills[RANDOM] < kills:
            time.sleep(random.uniform(0.2, 1.5))
            circus.kill(random.choice((COORDINATOR, *SILOS)))
            _look_at_ledgers(federation, seen)
            circus.look_after(*circus.children)
            circus.go_on()
        circus.finish()
        _look_at_ledgers(federation, seen)
    roster = newest_roster(federation.home / "authority")
    assert roster is not None  # the federation has one
    keys = {seat.silo.name: seat.identity_key for seat in roster.seats}
    keys[COORDINATOR] = roster.coordinator_key
    for path, lines in seen.items():
        report = verify_ledger(lines, keys)
        if not report.ok:
            raise ChaosError(f"{path}: {report.findings}")
    for number, name in enumerate(SILOS, start=1):
        own = data_set_path(federation.storage(name) / LEDGERS, f"toy-{number}")
        charged = sum(b'"ROUND_INTENT"' in line for line in seen[own])
        summed = sum(
            number in report.survivors for one in circus.ended for report in one.status.rounds
        )
        if charged < summed:
            raise ChaosError(f"{name} is in {summed} sums and has charged {charged}")
    check_nothing_left(circus)
    rounds = sum(len(one.status.rounds) for one in circus.ended)
    print(
        f"under a privacy plan: {rounds} rounds, {circus.kills[RANDOM]} kills; no line of "
        f"{len(seen)} ledgers was lost, every sum is charged at every silo in it"
    )


def _look_at_ledgers(federation: LocalFederation, seen: dict[Path, list[bytes]]) -> None:
    """Whatever stood in a ledger once stands in it now, in the same place."""
    for path in sorted(federation.home.glob("*/storage/ledgers/*.jsonl")):
        if path.name.endswith(".heads.jsonl") or path.name == said.FILE:
            continue  # no ledgers: the newest heads that silos have signed, and what they have said
        whole = path.read_bytes().rpartition(b"\n")[0].splitlines()
        if whole[: len(seen.get(path, []))] != seen.get(path, []):
            raise ChaosError(f"{path}: lines that were there are gone")
        seen[path] = whole


def check_nothing_left(circus: Circus) -> None:
    """No process, no lock, no half-written file.

    Raises:
        ChaosError: something is.
    """
    alive = [pid for pid, birth in circus.births.items() if birth and birth_of(pid) == birth]
    found = leftovers(circus.federation.home)
    if alive or found:
        raise ChaosError(f"left behind: processes {alive}, {found}")


def birth_of(pid: int) -> str:
    """When the process of this number began, in the kernel's ticks; empty if there is none.

    A number is given again soon where many processes come and go.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(")")[2].split()[19]  # field 22; the name before may hold spaces


def main() -> int:
    """Returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="less than three minutes, for CI")
    parser.add_argument("--random", type=int, default=0, help="kills at random instants")
    parser.add_argument("--seed", type=int, default=1, help="of the victims' choice, not of time")
    arguments = parser.parse_args()
    random = Random(arguments.seed)  # noqa: S311 - it chooses victims
    home = Path(tempfile.mkdtemp(prefix="secagg-chaos-"))
    began = monotonic()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    try:
        crashes(home / "crashes", random, arguments)
        if not arguments.short:
            budgets(home / "budgets", random, 25)
    except (ChaosError, ChildError, ServiceError, SecAggError) as error:
        print(f"{error}\nlogs: {home}", file=sys.stderr)
        return 1
    shutil.rmtree(home)
    print(
        "every model is that of the undisturbed replay; nothing is left behind; "
        f"{monotonic() - began:.0f} s"
    )
    return 0


if __name__ == "__main__":
    os.environ.pop(faults.VARIABLE, None)
    sys.exit(main())

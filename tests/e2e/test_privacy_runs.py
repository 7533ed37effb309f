"""Runs under privacy plans with real processes: ledgers, budgets, restarts, refusals."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dp.events import GaussianEvent
from dp.filters import Filter, FilterKind
from dp.verify import verify_ledger
from secagg.ids import RunId
from secagg.rng import SystemRng
from services.cli.operator import run_client
from services.cli.run import STOPPED_EXIT
from services.clock import utc_now
from services.demo.federation import Child, LocalFederation
from services.enrollment import authority
from services.enrollment.request import enroll
from services.ledger.run_book import ledger_path
from services.security.identity import Role
from services.wire.calls import RunState, RunStatus

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # processes that are killed, renewed, attacked

SILOS = tuple(f"silo-{number}" for number in range(1, 5))
# How long a busy machine may take to start a process.
PATIENCE_S = 100.0
DEADLINES = {
    "registration_s": 4.0,
    "advertise_s": 10.0,
    "share_s": 10.0,
    "mask_s": 20.0,
    "survivors_s": 10.0,
    "unmask_s": 10.0,
}
RUN = """
[run]
name = "private toy"
rounds = {rounds}
min_silos = 4

[local]
steps = 2
batch_size = 0
learning_rate = {learning_rate}

[task]
name = "fl.testing:toy_task"

[privacy]
mode = "silo"
adjacency = "zero_out"
clip = 1.0
z = 2.0
delta = 1e-5
dimension = 1
h_dp = {h_dp}
"""


class World:
    """A federation whose silos have budgets."""

    def __init__(self, federation: LocalFederation) -> None:
        self.federation = federation
        self.silos: dict[str, Child] = {}
        self._runs = 0

    def start(
        self, name: str, *, epsilon: float = 10.0, fault: str = "", options: tuple[str, ...] = ()
    ) -> Child:
        """Start a silo with a budget."""
        number = SILOS.index(name) + 1
        child = self.federation.start_silo(
            name,
            [
                'task = "fl.testing:toy_task"',
                "[settings]",
                f"silo = {number}",
                "[privacy]",
                f'data_set = "toy-{number}"',
                'unit = "silo"',
                'adjacency = "zero_out"',
                f"epsilon = {epsilon}",
                "delta = 1e-5",
                "persons = 50",
            ],
            fault=fault,
            options=options,
        )
        self.silos[name] = child
        return child

    def secagg(self, *arguments: str, expect: int) -> str:
        """Run a command and check its exit code; returns what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "services.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def run(self, *, rounds: int, expect: int, h_dp: int = 2) -> str:
        """Start a run and follow it to its end; returns its id."""
        path = self.federation.home / "run.toml"
        self._runs += 1
        rate = 0.05 + self._runs / 1000
        path.write_text(RUN.format(rounds=rounds, learning_rate=rate, h_dp=h_dp), "utf-8")
        operator = ("--operator", str(self.federation.operator_file))
        run = self.secagg("run", "start", "-c", str(path), *operator, expect=0).split()[0]
        self.secagg("run", "watch", run, *operator, expect=expect)
        return run

    def status(self, run: str) -> RunStatus:
        """Where the run stands."""

        async def fetch() -> RunStatus:
            async with run_client(self.federation.operator_file) as client:
                return (await client.show_run(RunId.parse(run))).status

        return asyncio.run(fetch())

    def spent(self, number: int) -> Path:
        """The ledger of a silo's data set; there is something in it."""
        own = self.ledgers(f"silo-{number}") / f"data-set-toy-{number}.jsonl"
        if not own.exists():
            self.run(rounds=2, expect=0)
        return own

    def known(self) -> tuple[str, ...]:
        """What `ledger verify` is told of silo-2's keys, the ones before among them."""
        old = self.federation.home / "silo-2/old/roster.json"
        former = ("--former", str(old)) if old.exists() else ()
        return ("-d", str(self.federation.home / "silo-2/keys"), *former)

    def ledgers(self, name: str) -> Path:
        """A holder's folder of ledgers."""
        return self.federation.storage(name) / "ledgers"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One coordinator and four silos, for all tests of this file, which follow one another."""
    home = tmp_path_factory.mktemp("private")
    with LocalFederation(home=home, silos=SILOS, deadlines=DEADLINES) as federation:
        made = World(federation)
        coordinator = federation.start_coordinator(wait=False)
        for name in SILOS:
            made.start(name)
        coordinator.wait_for("listening", timeout_s=PATIENCE_S)
        for child in made.silos.values():
            child.wait_for("connected", timeout_s=PATIENCE_S)
        yield made


def test_a_run_ends_with_a_verified_ledger_at_every_party(world: World) -> None:
    """Two rounds: the plan signed by all, each round charged before and settled after."""
    run = RunId.parse(world.run(rounds=2, expect=0))
    for child in world.silos.values():
        child.wait_for("model-kept", run=run.hex, timeout_s=PATIENCE_S)
    path = ledger_path(world.ledgers("coordinator"), run)
    lines = path.read_bytes().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == [
        *("GENESIS", "BUDGET_SET", "PLAN_COMMIT"),
        *("ROUND_INTENT", "ROUND_RELEASE") * 2,
    ]
    keys = json.loads(lines[0])["body"]["keys"]
    report = verify_ledger(lines, {name: bytes.fromhex(key) for name, key in keys.items()})
    assert report.ok, report.findings
    for name in SILOS:
        copy = ledger_path(world.ledgers(name), run).read_bytes().splitlines()
        assert copy == lines
        own = world.ledgers(name) / f"data-set-toy-{name[-1]}.jsonl"
        mine = [json.loads(line) for line in own.read_bytes().splitlines()]
        assert [one["kind"] for one in mine] == kinds
        assert verify_ledger(own.read_bytes().splitlines(), {name: bytes.fromhex(keys[name])}).ok
    assert world.status(run.hex).rounds[0].metrics.keys().isdisjoint({"loss", "examples"})


def test_a_silo_that_vanishes_leaves_the_sum_to_the_others(world: World) -> None:
    """A kill in the middle of a round: the survivors sign its release; the ledger stays whole."""
    world.silos["silo-4"].end()
    world.start("silo-4", fault="silo.before-upload@2=kill").wait_for(
        "connected", timeout_s=PATIENCE_S
    )
    run = RunId.parse(world.run(rounds=2, expect=0))
    lines = ledger_path(world.ledgers("coordinator"), run).read_bytes().splitlines()
    entries = [json.loads(line) for line in lines]
    released = [one["body"] for one in entries if one["kind"] == "ROUND_RELEASE"]
    assert released[-1]["survivors"] == ["silo-1", "silo-2", "silo-3"]
    world.start("silo-4").wait_for("connected", timeout_s=PATIENCE_S)


def test_a_restart_keeps_what_was_spent_and_the_budget_ends_the_run(world: World) -> None:
    """What two runs spent survives a silo's restart; the limit then allows one more round."""
    own = world.spent(1)
    before = own.read_bytes()
    charged = before.count(b'"ROUND_INTENT"')
    world.silos["silo-1"].end()
    rule = Filter(kind=FilterKind.GDP, delta=1e-5)
    limit = rule.epsilon([GaussianEvent(z=2.0, count=charged + 1)]) * 1.0001
    world.start("silo-1", epsilon=limit).wait_for("connected", timeout_s=PATIENCE_S)
    run = world.run(rounds=3, expect=11, h_dp=3)
    status = world.status(run)
    assert status.summary.state is RunState.BUDGET_EXHAUSTED
    # Not after a wait for silos that will not come back: the run ends with their refusal.
    assert "the data-set budget is spent at silo-1" in status.summary.reason
    assert "epsilon" not in status.summary.reason  # what other runs have spent stays at the silo
    assert status.summary.rounds_done == 1
    after = own.read_bytes()
    assert after.startswith(before)
    assert after.count(b'"ROUND_INTENT"') == charged + 1


def test_a_run_without_a_plan_is_refused_where_there_is_a_budget(world: World) -> None:
    """Exact sums of a data set that has a budget would cost infinitely much."""
    world.silos["silo-4"].end()
    once = world.start("silo-4", options=("--once",))
    once.wait_for("connected", timeout_s=PATIENCE_S)
    text = RUN[: RUN.index("[privacy]")].format(rounds=1, learning_rate=0.09)
    path = world.federation.home / "plain.toml"
    path.write_text(text, "utf-8")
    operator = ("--operator", str(world.federation.operator_file))
    run = world.secagg("run", "start", "-c", str(path), *operator, expect=0).split()[0]
    world.secagg("run", "watch", run, *operator, expect=1)
    reason = world.status(run).summary.reason
    assert "privacy budget" in reason
    assert "not connected" not in reason  # all are, and refuse
    # Who came for one run does not stay after the run that it refused.
    assert once.wait(timeout_s=PATIENCE_S) == 1
    assert once.wait_for("run-ended", run=run)["state"] == "failed"
    world.start("silo-4").wait_for("connected", timeout_s=PATIENCE_S)


def test_a_silo_with_new_keys_goes_on_with_what_the_old_ones_spent(world: World) -> None:
    """As docs/operations.md has it: revoked, enrolled anew, its ledger rotated by the command."""
    federation, name = world.federation, "silo-2"
    own = world.spent(2)
    for silo in ("silo-1", name):
        world.silos[silo].end()
    before = own.read_bytes()
    charged = before.count(b'"ROUND_INTENT"')
    home, keys = federation.home / "authority", federation.home / name / "keys"
    old = keys.rename(federation.home / name / "old")
    authority.revoke(home, name)
    request = enroll(keys, name=name, role=Role.SILO, rng=SystemRng())
    issued = authority.issue(home, request, role=Role.SILO, now=utc_now(), organization=name)
    authority.install(issued.bundle, keys)
    authority.install(home / "issued/coordinator", federation.home / "coordinator/keys")
    rotate = ("ledger", "rotate", str(own), "--directory", str(keys))
    assert "goes on with the new key" in world.secagg(*rotate, "--old", str(old), expect=0)
    for silo in ("silo-1", name):
        world.start(silo).wait_for("connected", timeout_s=PATIENCE_S)
    run = world.run(rounds=1, expect=0)
    after = own.read_bytes()
    assert after.startswith(before)
    assert after.count(b'"ROUND_INTENT"') == charged + 1
    checked = world.secagg("ledger", "verify", str(own), "-d", str(keys), expect=0)
    assert "0 charges open" in checked
    for path in world.ledgers("coordinator").glob("run-*[0-9a-f].jsonl"):
        world.secagg("ledger", "verify", str(path), *world.known(), expect=0)
    assert ledger_path(world.ledgers(name), RunId.parse(run)).exists()


def test_a_charge_comes_back_with_the_promises_of_those_who_signed_the_plan(world: World) -> None:
    """All four must be in the sum, and one dies: three promise, which is what four silos need."""
    own = world.spent(1)
    world.silos["silo-4"].end()
    fatal = world.start("silo-4", fault="silo.before-upload@1=kill")
    fatal.wait_for("connected", timeout_s=PATIENCE_S)
    run = RunId.parse(world.run(rounds=1, expect=1, h_dp=3))
    assert "silo-4" in world.status(run.hex).summary.reason
    lines = ledger_path(world.ledgers("coordinator"), run).read_bytes().splitlines()
    entries = [json.loads(line) for line in lines]
    commit = next(one["body"] for one in entries if one["kind"] == "PLAN_COMMIT")
    assert (commit["n_c"], commit["threshold"], commit["floor"]) == (1, 3, 4)
    (ended,) = [one["body"] for one in entries if one["kind"] == "ROUND_ABORT"]
    assert ended["returned"]
    assert {one["signer"] for one in ended["proof"]["statements"]} == set(SILOS[:3])
    ledger = str(ledger_path(world.ledgers("coordinator"), run))
    assert "spent 0.0000" in world.secagg("ledger", "verify", ledger, *world.known(), expect=0)
    world.silos["silo-1"].wait_for("run-ended", run=run.hex, timeout_s=PATIENCE_S)
    last = json.loads(own.read_bytes().splitlines()[-1])
    assert (last["kind"], last["body"]["returned"]) == ("ROUND_ABORT", True)
    world.secagg("ledger", "verify", str(own), *world.known(), expect=0)
    world.start("silo-4").wait_for("connected", timeout_s=PATIENCE_S)


RECORDS = """
[run]
name = "private records"
rounds = 2
min_silos = 3

[local]
steps = 2
batch_size = 0
learning_rate = 0.5

[task]
name = "tabular"
model = "logistic"

[task.target]
name = "sick"
classes = ["no", "yes"]

[[task.features]]
name = "a"
kind = "numeric"

[[task.features]]
name = "b"
kind = "numeric"

[privacy]
mode = "{mode}"
adjacency = "zero_out"
clip = 1.0
epsilon = 6.0
delta = 1e-5
q = 0.5
max_units_per_silo = 40

[privacy.metrics]
loss_cap = 4.0
{metrics}
"""


def write_rows(path: Path, number: int) -> Path:
    """Forty patients of one silo."""
    rows = ["a,b,sick"]
    for place in range(40):
        a, b = (place % 8 - 4) / 4, (place * number % 5 - 2) / 2
        rows.append(f"{a},{b},{'yes' if a + b > 0 else 'no'}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.timeout(600)  # five processes load torch and Opacus, on two cores or fewer
@pytest.mark.parametrize(
    ("mode", "unit", "metrics"),
    [("isrl", "record", ""), ("patient", "patient", "z = 8.0")],
    ids=["isrl", "patient"],
)
def test_units_are_protected_in_real_processes(
    tmp_path: Path, mode: str, unit: str, metrics: str
) -> None:
    """Per-sample gradients, noise, metrics: the ledger books sampled releases and verifies."""
    names = SILOS[:3]
    # Four processes load Opacus before they can say what a plan costs.
    patient = {**DEADLINES, "registration_s": 90.0, "mask_s": 90.0}
    with LocalFederation(home=tmp_path / "records", silos=names, deadlines=patient) as federation:
        world = World(federation)
        coordinator = federation.start_coordinator(wait=False)
        for number, name in enumerate(names, start=1):
            data = write_rows(tmp_path / f"{name}.csv", number)
            world.silos[name] = federation.start_silo(
                name,
                [
                    "[data]",
                    f'file = "{data}"',
                    "[privacy]",
                    f'data_set = "rows-{number}"',
                    f'unit = "{unit}"',
                    'adjacency = "zero_out"',
                    'filter = "rdp"',
                    "order = 6",
                    "epsilon = 8.0",
                    "delta = 1e-5",
                    "persons = 40",
                    "most_units = 40",
                ],
            )
        coordinator.wait_for("listening", timeout_s=PATIENCE_S)
        for child in world.silos.values():
            child.wait_for("connected", timeout_s=PATIENCE_S)
        path = federation.home / "run.toml"
        path.write_text(RECORDS.format(mode=mode, metrics=metrics), encoding="utf-8")
        operator = ("--operator", str(federation.operator_file))
        run = world.secagg("run", "start", "-c", str(path), *operator, expect=0).split()[0]
        world.secagg("run", "watch", run, *operator, expect=0)
        figures = world.status(run).rounds[0].metrics
        assert 0.0 <= figures["accuracy"] <= 1.0
        assert "examples" not in figures  # nobody counts patients
        keys = federation.home / "operator" / "keys"
        ledger = ledger_path(world.ledgers("coordinator"), RunId.parse(run))
        heads = ledger.with_suffix(".heads.jsonl")
        words = world.secagg(
            *("ledger", "verify", str(ledger), "-d", str(keys), "--heads", str(heads)), expect=0
        )
        assert words.endswith("verified\n")
        assert '"type":"poisson_gaussian"' in ledger.read_text(encoding="utf-8")
        page, table = tmp_path / "report.html", tmp_path / "report.csv"
        world.secagg(
            "ledger", "report", str(ledger), "-o", str(page), "--csv", str(table), expect=0
        )
        assert f"one {unit}" in page.read_text(encoding="utf-8")
        world.secagg("ledger", "verify", str(table), "-d", str(keys), expect=0)
        shown = world.secagg(
            "silo", "status", "-c", str(federation.home / "silo-1.toml"), "--json", expect=0
        )
        budget = json.loads(shown)["budget"]
        assert 0 < budget["spent"] < 8
        assert budget["releases"] == 2
        damaged = bytearray(ledger.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        ledger.write_bytes(damaged)
        world.secagg("ledger", "verify", str(ledger), "-d", str(keys), expect=1)


@pytest.mark.timeout(600)  # the coordinator loads Opacus, whose draw it is
def test_a_coordinator_that_noises_keeps_and_tells_the_noised_sum_only(tmp_path: Path) -> None:
    """Mode central: every silo computes the coordinator's model from what it was told."""
    names = SILOS[:3]
    patient = {**DEADLINES, "registration_s": 60.0, "unmask_s": 60.0, "survivors_s": 60.0}
    with LocalFederation(home=tmp_path / "central", silos=names, deadlines=patient) as federation:
        world = World(federation)
        coordinator = federation.start_coordinator(wait=False)
        for name in names:
            world.start(name)
        coordinator.wait_for("listening", timeout_s=PATIENCE_S)
        for child in world.silos.values():
            child.wait_for("connected", timeout_s=PATIENCE_S)
        text = RUN.format(rounds=2, learning_rate=0.08, h_dp=0).replace('"silo"', '"central"')
        path = federation.home / "run.toml"
        path.write_text(text.replace("min_silos = 4", "min_silos = 3"), encoding="utf-8")
        operator = ("--operator", str(federation.operator_file))
        run = world.secagg("run", "start", "-c", str(path), *operator, expect=0).split()[0]
        world.secagg("run", "watch", run, *operator, expect=0)
        for child in world.silos.values():
            child.wait_for("model-kept", run=run, timeout_s=PATIENCE_S)
        models = {
            (federation.storage(name) / "runs" / run / "model.safetensors").read_bytes()
            for name in names
        }
        assert len(models) == 1
        ledger = ledger_path(world.ledgers("coordinator"), RunId.parse(run))
        keys = federation.home / "operator" / "keys"
        words = world.secagg("ledger", "verify", str(ledger), "-d", str(keys), expect=0)
        assert "aggregation_fails" not in words  # no guarantee is claimed there


@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", ["log.before-unmask", "log.before-result"])
def test_a_coordinator_that_dies_around_a_release_settles_it_once(
    tmp_path: Path, point: str
) -> None:
    """Killed before the sum or just before it is told: the ledger goes on where it was."""
    names, home = SILOS[:3], tmp_path / "killed"
    # Silos try again every five seconds, so a restarted coordinator has to wait longer than that.
    patient = DEADLINES | {"registration_s": PATIENCE_S}
    with LocalFederation(home=home, silos=names, deadlines=patient) as federation:
        world = World(federation)
        first = federation.start_coordinator(wait=False, fault=f"{point}@1=kill")
        for name in names:
            world.start(name)
        first.wait_for("listening", timeout_s=PATIENCE_S)
        for child in world.silos.values():
            child.wait_for("connected", timeout_s=PATIENCE_S)
        text = RUN.format(rounds=2, learning_rate=0.08, h_dp=2)
        path = federation.home / "run.toml"
        path.write_text(text.replace("min_silos = 4", "min_silos = 3"), encoding="utf-8")
        operator = ("--operator", str(federation.operator_file))
        run = world.secagg("run", "start", "-c", str(path), *operator, expect=0).split()[0]
        first.wait(timeout_s=PATIENCE_S)
        second = federation.start_coordinator(wait=False)
        second.wait_for("listening", timeout_s=PATIENCE_S)
        world.secagg("run", "watch", run, *operator, expect=0)
        ledger = ledger_path(world.ledgers("coordinator"), RunId.parse(run))
        keys = federation.home / "operator" / "keys"
        world.secagg("ledger", "verify", str(ledger), "-d", str(keys), expect=0)
        kinds = [json.loads(line)["kind"] for line in ledger.read_bytes().splitlines()]
        assert kinds.count("ROUND_RELEASE") == 2
        assert kinds.count("ROUND_INTENT") == 2


def test_a_silo_that_missed_a_charge_takes_part_once_both_sides_are_back(tmp_path: Path) -> None:
    """Killed after round 1, it never saw the charge of round 2, which the coordinator resumes.

    The coordinator dies in round 2 before anybody's keys are in. It brings the ledger's lines
    before it opens the attempt anew: else the silo refused it, and sat out for the rest of the run.
    """
    names, home = SILOS[:4], tmp_path / "both"
    patient = DEADLINES | {"registration_s": PATIENCE_S}
    with LocalFederation(home=home, silos=names, deadlines=patient) as federation:
        world = World(federation)
        first = federation.start_coordinator(wait=False, fault="log.after-opened@2=kill")
        for name in names:
            world.start(name, fault="silo.after-settle@1=kill" if name == names[3] else "")
        first.wait_for("listening", timeout_s=PATIENCE_S)
        for child in world.silos.values():
            child.wait_for("connected", timeout_s=PATIENCE_S)
        path = federation.home / "run.toml"
        path.write_text(RUN.format(rounds=3, learning_rate=0.09, h_dp=2), encoding="utf-8")
        operator = ("--operator", str(federation.operator_file))
        run = world.secagg("run", "start", "-c", str(path), *operator, expect=0).split()[0]
        first.wait(timeout_s=PATIENCE_S)
        world.silos[names[3]].wait(timeout_s=PATIENCE_S)
        world.start(names[3])
        federation.start_coordinator(wait=False).wait_for("listening", timeout_s=PATIENCE_S)
        world.secagg("run", "watch", run, *operator, expect=0)
        told = world.secagg("run", "show", run, *operator, expect=0)
        assert "LedgerRefusedError" not in told
        assert world.status(run).rounds[-1].survivors == (1, 2, 3, 4)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("point", "stalled", "returned"),
    [("upload", SILOS[3:], True), ("unmask", SILOS[1:], False)],
    ids=["nothing opened", "shares opened"],
)
def test_a_stopped_attempt_is_charged_unless_enough_promise_that_it_is_dead(
    tmp_path: Path, point: str, stalled: tuple[str, ...], returned: bool
) -> None:
    """`run stop` waits two seconds for promises; whoever stalls makes none in that time."""
    with LocalFederation(home=tmp_path / "stopped", silos=SILOS, deadlines=DEADLINES) as federation:
        world = World(federation)
        hub = federation.start_coordinator(wait=False)
        for name in SILOS:
            world.start(name, fault=f"silo.before-{point}@1=stall:60" if name in stalled else "")
        hub.wait_for("listening", timeout_s=PATIENCE_S)
        for child in world.silos.values():
            child.wait_for("connected", timeout_s=PATIENCE_S)
        path = federation.home / "run.toml"
        path.write_text(RUN.format(rounds=1, learning_rate=0.08, h_dp=2), encoding="utf-8")
        operator = ("--operator", str(federation.operator_file))
        run = world.secagg("run", "start", "-c", str(path), *operator, expect=0).split()[0]
        phase = "mask" if point == "upload" else "unmask"
        hub.wait_for("phase", phase=phase, timeout_s=PATIENCE_S)
        for child in world.silos.values():
            child.wait_for("training", run=run, timeout_s=PATIENCE_S)
        world.secagg("run", "stop", run, *operator, expect=0)
        world.secagg("run", "watch", run, *operator, expect=STOPPED_EXIT)
        ledger = ledger_path(world.ledgers("coordinator"), RunId.parse(run))
        entries = [json.loads(line) for line in ledger.read_bytes().splitlines()]
        (ended,) = [one["body"] for one in entries if one["kind"] == "ROUND_ABORT"]
        assert ended["returned"] is returned
        keys = federation.home / "operator" / "keys"
        told = world.secagg("ledger", "verify", str(ledger), "-d", str(keys), expect=0)
        assert ("spent 0.0000" in told) is returned

"""Who belongs to a running federation: joins, revocations, renewals, a coordinator with new keys.

Real processes over loopback mTLS. Nobody is restarted but whom the change is about.
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fl.run import TrainingRun
from fl.state import decode_state, enrolled_of
from secagg.ids import RunId
from secagg.messages import MAX_STATE_BYTES
from secagg.rng import SystemRng
from services.cli.run import STOPPED_EXIT
from services.clock import utc_now
from services.demo.federation import COORDINATOR, Child, LocalFederation
from services.enrollment import authority
from services.enrollment.request import enroll
from services.security.credentials import load_credentials
from services.security.identity import Role
from services.storage.coordinator import CoordinatorStore

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # processes that are killed, renewed, attacked

SILOS = tuple(f"silo-{number}" for number in range(1, 6))
NEW = ("silo-6", "silo-7")
DEADLINES = {
    "registration_s": 20.0,
    "advertise_s": 10.0,
    "share_s": 10.0,
    "mask_s": 20.0,
    "survivors_s": 10.0,
    "unmask_s": 10.0,
}
RUN = """
[run]
name = "toy"
rounds = {rounds}
min_silos = {silos}

[local]
steps = 1
batch_size = 0
learning_rate = {rate}

[task]
name = "fl.testing:toy_task"
"""


class World:
    """A running federation and the authority's owner."""

    def __init__(self, federation: LocalFederation) -> None:
        self.federation = federation
        self.home = federation.home
        self.authority = federation.home / "authority"
        self.coordinator = federation.start_coordinator()
        self.silos = {name: self.start(name) for name in SILOS}
        for child in self.silos.values():
            child.wait_for("connected")
        self._runs = 0
        self._is_enlarged = False

    def start(self, name: str, *, fault: str = "") -> Child:
        """Start a silo."""
        lines = ['task = "fl.testing:toy_task"', "[settings]", f"silo = {name[-1]}"]
        return self.federation.start_silo(name, lines, fault=fault)

    def assemble(self, *joined: str) -> None:
        """Leave silo-5 out for good; of the two new silos let these be connected, and no other.

        A test that begins so can do without those before it.
        """
        if self.silos["silo-5"].exit_code is None:
            self.revoke()
        if not self._is_enlarged:
            self.enlarge()
        for name in NEW:
            is_there = name in self.silos and self.silos[name].exit_code is None
            if is_there and name not in joined:
                self.silos[name].end()
            elif name in joined and not is_there:
                self.silos[name] = self.start(name)
                self.silos[name].wait_for("connected")

    def revoke(self) -> int:
        """Revoke silo-5, whose process ends; returns the roster's version."""
        version = authority.revoke(self.authority, "silo-5")
        self.install()
        assert self.silos["silo-5"].wait(timeout_s=20) == 9
        return version

    def enlarge(self) -> None:
        """Enroll the two new silos, and tell the coordinator."""
        for name in NEW:
            self.issue(name, Role.SILO)
        self.install()
        self._is_enlarged = True

    def issue(
        self, name: str, role: Role, *, folder: str = "keys", days: int = 365, replace: bool = False
    ) -> None:
        """Issue a holder's request and install the answer at the holder and the coordinator."""
        keys = self.home / name / folder
        hosts = ("127.0.0.1", "localhost") if role is Role.COORDINATOR else ()
        request = enroll(keys, name=name, role=role, hosts=hosts, rng=SystemRng())
        issued = authority.issue(
            self.authority,
            request,
            role=role,
            now=utc_now(),
            organization=name if role is Role.SILO else "",
            valid_days=days,
            replace_coordinator=replace,
        )
        authority.install(issued.bundle, keys)

    def install(self) -> None:
        """Give the coordinator its newest bundle."""
        authority.install(self.authority / "issued" / COORDINATOR, self.home / COORDINATOR / "keys")

    def secagg(self, *arguments: str, code: int = 0) -> str:
        """Run an operator's command that ends with this code; returns what it printed."""
        operator = str(self.federation.operator_file)
        done = subprocess.run(
            [sys.executable, "-m", "services.cli", *arguments, "--operator", operator],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        if done.returncode != code:
            raise subprocess.CalledProcessError(
                done.returncode, done.args, output=done.stdout, stderr=done.stderr
            )
        return done.stdout.strip()

    def start_run(self, *, rounds: int, silos: int, more: str = "") -> str:
        """Start a run; returns its id."""
        self._runs += 1  # no two runs pass through one state (SA1 spec 2.5 v)
        text = RUN.format(rounds=rounds, silos=silos, rate=0.05 + self._runs / 1000) + more
        path = self.home / "run.toml"
        path.write_text(text, encoding="utf-8")
        return self.secagg("run", "start", "-c", str(path))

    def stop(self, run: str) -> None:
        """Stop a run, and wait until it has ended: this takes as long as one call."""
        self.secagg("run", "stop", run)
        self.secagg("run", "watch", run, code=STOPPED_EXIT)

    def wait_until(self, run: str, seats: list[int]) -> None:
        """Wait until the last committed round of this coordinator's process has these survivors."""
        give_up = time.monotonic() + 60
        while seats not in self.survivors(run)[-1:]:
            assert time.monotonic() < give_up, f"expected {seats}, got {self.survivors(run)[-3:]}"
            time.sleep(0.1)

    def survivors(self, run: str) -> list[list[int]]:
        """Of each committed round, as the coordinator's log has them."""
        lines = [line for line in self.coordinator.lines() if line.get("run") == run]
        found = [line["survivors"] for line in lines if line.get("event") == "committed"]
        assert all(isinstance(one, list) for one in found)
        return found  # type: ignore[return-value] # the assertion above says so


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One coordinator and five silos, for all tests of this file, in their order."""
    home = tmp_path_factory.mktemp("federation")
    with LocalFederation(home=home, silos=SILOS, deadlines=DEADLINES) as federation:
        yield World(federation)


def test_a_revoked_silo_is_out_in_the_middle_of_a_run(world: World) -> None:
    """Its connection is open and its certificate valid; the others go on (bug case SEC-07)."""
    run = world.start_run(rounds=20, silos=5)
    world.coordinator.wait_for("committed", run=run)
    version = world.revoke()
    assert world.coordinator.wait_for("roster")["gone"] == [5]
    world.secagg("run", "watch", run)
    rounds = world.survivors(run)
    assert len(rounds) == 20
    assert rounds[0] == [1, 2, 3, 4, 5]
    assert rounds[-1] == [1, 2, 3, 4]
    for name in SILOS[:4]:
        assert world.silos[name].wait_for("roster")["version"] == version
        assert world.silos[name].exit_code is None


def test_a_new_silo_joins_and_the_others_do_nothing(world: World) -> None:
    """They hear of it with their next Hello and take the new version along the chain."""
    world.assemble("silo-6")
    run = world.start_run(rounds=2, silos=5)
    world.secagg("run", "watch", run)
    assert world.survivors(run)[-1] == [1, 2, 3, 4, 6], "the revoked seat's number stays unused"


def test_a_silo_is_dismissed_from_a_run_and_admitted_again(world: World) -> None:
    """An operator's word counts from the next attempt; control variates are renewed without it."""
    world.assemble("silo-6")
    scaffold = '[algorithm]\nname = "scaffold"\n'
    run = world.start_run(rounds=500, silos=4, more=scaffold)
    world.wait_until(run, [1, 2, 3, 4, 6])
    assert world.secagg("run", "dismiss", run, "silo-6", "--lost").startswith("silo-6 is not")
    world.wait_until(run, [1, 2, 3, 4])
    ended = world.silos["silo-6"].wait_for("run-ended", run=run)
    assert ended["reason"] == "an operator has dismissed it"
    admitted = world.secagg("run", "admit", run[:8], "silo-6")  # an id's beginning is enough
    assert admitted == "silo-6 is invited from the next attempt on"
    world.wait_until(run, [1, 2, 3, 4, 6])
    assert [line["seats"] for line in world.coordinator.lines() if line.get("event") == "members"]
    with pytest.raises(subprocess.CalledProcessError) as refused:
        world.secagg("run", "admit", run, "silo-99")
    assert "the roster has no silo 'silo-99'" in refused.value.stderr
    world.stop(run)
    assert all(child.exit_code is None for name, child in world.silos.items() if name != "silo-5")


def test_a_change_outlives_a_coordinator_that_is_killed_before_it_counts(world: World) -> None:
    """The operator has its answer, the open attempt goes on, and the next process carries it out.

    One silo trains for so long that the coordinator dies in the attempt in which it was told.
    """
    world.assemble("silo-6")
    world.silos["silo-4"].end()
    world.silos["silo-4"] = world.start("silo-4", fault="silo.before-training@2=stall:15")
    world.silos["silo-4"].wait_for("connected")
    run = world.start_run(rounds=500, silos=4)
    world.silos["silo-4"].wait_for("training", run=run, round=2, timeout_s=60)
    world.secagg("run", "dismiss", run[:6], "silo-6")
    world.coordinator.kill()
    events = [line.get("event") for line in world.coordinator.lines() if line.get("run") == run]
    assert "member" in events
    assert "members" not in events, "the change was carried out before the kill"
    world.coordinator = world.federation.start_coordinator()
    world.wait_until(run, [1, 2, 3, 4])
    assert world.survivors(run)[0] == [1, 2, 3, 4, 6], "the attempt that was open"
    assert world.coordinator.wait_for("members", run=run)["seats"] == [1, 2, 3, 4]
    assert world.silos["silo-6"].wait_for("run-ended", run=run)
    world.stop(run)


def test_a_silo_leaves_in_good_order_and_takes_its_control_variate_along(world: World) -> None:
    """`silo leave` between two processes: one sum takes c_k out, then it sits out by name."""
    world.assemble("silo-6")
    run = world.start_run(rounds=500, silos=4, more='[algorithm]\nname = "scaffold"\n')
    world.wait_until(run, [1, 2, 3, 4, 6])
    world.silos["silo-6"].process.terminate()
    assert world.silos["silo-6"].wait(timeout_s=30) == 0
    world.wait_until(run, [1, 2, 3, 4])
    leave = [sys.executable, "-m", "services.cli", "silo", "leave", run[:6]]
    config = str(world.home / "silo-6.toml")
    done = subprocess.run([*leave, "-c", config], capture_output=True, text=True, check=True)
    assert done.stdout == f"the next contribution to run {run} is the last\n"
    world.silos["silo-6"] = world.start("silo-6")
    world.coordinator.wait_for("refusal", run=run)  # in the sum after its last one
    world.wait_until(run, [1, 2, 3, 4])
    shown = json.loads(world.secagg("run", "show", run, "--json"))
    assert shown["seats"][-2]["refusal"].startswith("LeftRunError: this silo has left the run")
    assert world.survivors(run).count([1, 2, 3, 4, 6]) >= 2
    world.secagg("run", "dismiss", run, "silo-6")
    world.silos["silo-6"].wait_for("run-ended", run=run)
    world.stop(run)
    world.coordinator.end()
    with closing(CoordinatorStore(world.federation.storage(COORDINATOR))) as store:
        training = TrainingRun.restore(store.snapshot(RunId.parse(run)), {})
    world.coordinator = world.federation.start_coordinator()
    assert enrolled_of(decode_state(training.state, MAX_STATE_BYTES)) == 4, "c counts it no more"


def test_a_certificate_is_renewed_over_the_wire_without_a_restart(world: World) -> None:
    """Short-lived, put into the coordinator's `issued` folder, fetched by the silo in time.

    Another one is installed by hand while the silo runs: its next call shows it (bug case TLS-03).
    """
    world.assemble("silo-6")
    keys = world.home / "silo-7/keys"
    world.issue("silo-7", Role.SILO, days=3)
    request = keys / "request.json"
    authority.issue(world.authority, request, role=Role.SILO, now=utc_now(), valid_days=90)
    handed_out = world.home / COORDINATOR / "keys/issued/silo-7"
    handed_out.mkdir(parents=True)
    renewed = (world.authority / "issued/silo-7/tls.pem").read_bytes()
    (handed_out / "tls.pem").write_bytes(renewed)
    child = world.silos["silo-7"] = world.start("silo-7")
    assert child.wait_for("certificate-ends")["days_left"] in {2, 3}
    assert child.wait_for("certificate")["days_left"] in {89, 90}
    assert (keys / "tls.pem").read_bytes() == renewed
    assert load_credentials(keys, role=Role.SILO, now=utc_now()).days_left(utc_now()) >= 89
    survivor = world.silos["silo-1"]
    world.issue("silo-1", Role.SILO, days=200)
    run = world.start_run(rounds=2, silos=6)
    assert survivor.wait_for("certificate")["days_left"] in {199, 200}
    world.secagg("run", "watch", run)
    assert world.survivors(run)[-1] == [1, 2, 3, 4, 6, 7]


def test_a_coordinator_with_new_keys_takes_the_old_ones_place(world: World) -> None:
    """Key rotation as docs/operations.md has it: silos follow the roster and are not touched."""
    world.assemble(*NEW)
    world.issue(COORDINATOR, Role.COORDINATOR, folder="fresh", replace=True)
    world.coordinator.process.terminate()
    assert world.coordinator.wait(timeout_s=20) == 0
    keys = world.home / COORDINATOR / "keys"
    keys.rename(world.home / COORDINATOR / "old")
    (world.home / COORDINATOR / "fresh").rename(keys)
    world.coordinator = world.federation.start_coordinator()
    run = world.start_run(rounds=2, silos=6)
    world.secagg("run", "watch", run)
    assert world.survivors(run)[-1] == [1, 2, 3, 4, 6, 7]
    assert all(child.exit_code is None for name, child in world.silos.items() if name != "silo-5")


def test_a_silo_that_is_told_to_stop_finishes_its_part_in_the_round(world: World) -> None:
    """SIGTERM while it trains: what it trains is in the sum, the next round goes on without it."""
    world.assemble("silo-6")
    child = world.silos["silo-7"] = world.start("silo-7", fault="silo.before-training@2=stall:3")
    child.wait_for("connected")
    run = world.start_run(rounds=3, silos=6)
    child.wait_for("training", run=run, round=2, timeout_s=60)
    child.process.terminate()
    assert child.wait(timeout_s=30) == 0
    assert child.wait_for("leaving")["within_s"] == 20
    world.secagg("run", "watch", run)
    assert world.survivors(run) == [[1, 2, 3, 4, 6, 7], [1, 2, 3, 4, 6, 7], [1, 2, 3, 4, 6]]


def test_log_lines_say_which_run_round_and_silo(world: World) -> None:
    """One search finds a round at the coordinator and at every silo in it."""
    run = world.start_run(rounds=1, silos=4)
    committed = world.coordinator.wait_for("committed", run=run)
    settled = world.silos["silo-1"].wait_for("settled", run=run)
    assert {"run", "round", "attempt"} <= committed.keys()
    assert {"run", "round", "attempt", "silo"} <= settled.keys()


def test_both_sides_show_their_figures(world: World) -> None:
    """What an operator watches: rounds, phases, who was in, what waits, what was tried again."""
    world.assemble("silo-6")
    world.coordinator.kill()
    world.coordinator = world.federation.start_coordinator()
    run = world.start_run(rounds=21, silos=5)
    world.secagg("run", "watch", run)
    hub = figures(world.coordinator)
    assert hub["secagg_enrolled_silos"] == 6
    assert hub["secagg_connected_silos"] == 5
    assert hub[f"secagg_rounds_total|{run}"] == 21
    assert hub[f"secagg_attempts_total|{run}"] >= 21
    assert hub[f"secagg_round_survivors|{run}"] == 5
    assert hub[f"secagg_left_out_silos|{run}"] == 0
    assert hub[f"secagg_run_active|{run}"] == 0
    assert hub[f"secagg_phase_seconds_count|mask|{run}"] == 21
    assert hub[f"secagg_phase_bytes_total|received|mask|{run}"] > 0
    assert hub["secagg_calls_total|Hello|OK"] >= 5
    assert hub["secagg_certificate_days_left"] in {364, 365}
    silo = figures(world.silos["silo-1"])
    assert silo["secagg_connected"] == 1
    assert silo["secagg_retries_total|Next"] > 0, "the coordinator was replaced"
    assert silo["secagg_rounds_total|settled"] > 20
    assert silo["secagg_training_seconds_count"] > 20
    assert silo["secagg_bytes_total|sent"] > 0


def figures(child: Child) -> dict[str, float]:
    """What a process shows to Prometheus, by name and labels."""
    address = child.wait_for("metrics")["address"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    with urllib.request.urlopen(f"http://{address}/ready", timeout=10) as answer:
        assert answer.status == 200
    return {
        sample.name
        + "".join(f"|{value}" for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }

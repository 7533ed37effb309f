"""Real processes over loopback mTLS: whole runs, killed processes, and who must be refused."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fl.modelfile import load_model
from fl.plan import TrainingPlan
from fl.simulation import simulate
from fl.testing import toy_task
from secagg.ids import RunId
from secagg.phases import Phase
from secagg.rng import SystemRng
from services.cli.operator import run_client
from services.clock import utc_now
from services.demo.federation import Child, LocalFederation
from services.enrollment import authority
from services.enrollment.request import enroll
from services.errors import NotAllowedError, VersionError
from services.plans import build_plan
from services.run_config import RunConfig
from services.security.credentials import load_credentials, open_channel
from services.security.identity import Role
from services.settings import parse_config
from services.silo.check import released_models
from services.wire.calls import Hello, RoundReport, StartCall
from services.wire.clients import AggregationClient, RunClient

pytestmark = pytest.mark.e2e

SILOS = tuple(f"silo-{number}" for number in range(1, 6))
ROUNDS = 6
RUN = """
[run]
name = "toy"
rounds = {rounds}
min_silos = {min_silos}

[algorithm]
name = "{algorithm}"

[local]
steps = 4
batch_size = 0
learning_rate = {learning_rate}

[task]
name = "fl.testing:toy_task"
"""
DEADLINES = {
    "registration_s": 4.0,
    "advertise_s": 10.0,
    "share_s": 10.0,
    "mask_s": 20.0,
    "survivors_s": 10.0,
    "unmask_s": 10.0,
}


# A clip range of some 10 in 16 bits is a step of 3e-4; a mean of a few rounds stays within a few.
ROUNDING = 2e-3


def task(number: int) -> list[str]:
    """What silo `number` trains."""
    return ['task = "fl.testing:toy_task"', "[settings]", f"silo = {number}"]


class World:
    """A running federation and what tests do with it."""

    def __init__(self, federation: LocalFederation) -> None:
        self.federation = federation
        self.coordinator = federation.start_coordinator(wait=False)
        self.silos: dict[str, Child] = {}
        self.text = ""
        self._runs = 0

    def start(self, name: str, *, fault: str = "") -> Child:
        """Start a silo and wait until it is connected."""
        child = self.federation.start_silo(name, task(SILOS.index(name) + 1), fault=fault)
        self.silos[name] = child
        return child

    def secagg(self, *arguments: str, expect: int) -> str:
        """Run a command and check its exit code; returns what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "services.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def start_run(self, *, algorithm: str = "fedavg", min_silos: int = 5, rounds: int = 3) -> str:
        """Start a run through the command line; returns its id."""
        path = self.federation.home / "run.toml"
        # No two runs pass through one state: silos refuse to sum it over other silos (2.5 v).
        self._runs += 1
        self.text = RUN.format(
            algorithm=algorithm,
            min_silos=min_silos,
            rounds=rounds,
            learning_rate=0.05 + self._runs / 1000,
        )
        path.write_text(self.text, encoding="utf-8")
        operator = str(self.federation.operator_file)
        return self.secagg(
            "run", "start", "-c", str(path), "--operator", operator, expect=0
        ).split()[0]

    def watch(self, run: str, *, expect: int) -> list[RoundReport]:
        """Follow a run to its end; returns its rounds."""
        operator = str(self.federation.operator_file)
        self.secagg("run", "watch", run, "--operator", operator, expect=expect)

        async def fetch() -> list[RoundReport]:
            async with run_client(self.federation.operator_file) as client:
                return list((await client.show_run(RunId.parse(run))).status.rounds)

        return asyncio.run(fetch())

    def reason(self, run: str) -> str:
        """Why the run stands where it stands."""

        async def fetch() -> str:
            async with run_client(self.federation.operator_file) as client:
                return (await client.show_run(RunId.parse(run))).status.summary.reason

        return asyncio.run(fetch())

    def models(self, run: str) -> dict[str, bytes]:
        """Each silo's model file of a run, once all have one."""
        for child in self.silos.values():
            child.wait_for("model-kept", run=run)
        return {
            name: (self.federation.storage(name) / "runs" / run / "model.safetensors").read_bytes()
            for name in self.silos
        }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One coordinator and five silos, for all tests of this file."""
    home = tmp_path_factory.mktemp("federation")
    with LocalFederation(home=home, silos=SILOS, deadlines=DEADLINES) as federation:
        made = World(federation)
        for name in SILOS:
            made.start(name)
        made.coordinator.wait_for("listening")
        for child in made.silos.values():
            child.wait_for("connected")
        yield made


def expected_weights(text: str, reports: list[RoundReport]) -> NDArray[np.float64]:
    """The weights that a plain-float simulation gives with the same survivors in each round."""
    config = parse_config(text.encode(), RunConfig, source="test", base=Path())
    plan: TrainingPlan = build_plan(config, max_silos=5)
    gone = {
        report.round: {
            seat: Phase.MASK if seat in report.dropouts else Phase.ADVERTISE
            for seat in (*report.dropouts, *report.absent, *not_invited(report))
        }
        for report in reports
    }
    tasks = {name: toy_task({"silo": number}) for number, name in enumerate(SILOS, start=1)}
    return simulate(plan, tasks, secure=False, dropouts=gone).model()["weights"].astype(np.float64)


def weights_of(path: Path) -> NDArray[np.float64]:
    """The toy model in a file."""
    return load_model(path).tensors["weights"].astype(np.float64)


def not_invited(report: RoundReport) -> set[int]:
    """Seats that were not connected when the round began."""
    return set(range(1, 6)) - {*report.survivors, *report.dropouts, *report.absent}


def test_a_run_ends_with_the_same_model_everywhere(world: World) -> None:
    """Three rounds of five silos; coordinator and silos hold the same bytes, and the right ones."""
    run = world.start_run()
    reports = world.watch(run, expect=0)
    assert [report.survivors for report in reports] == [(1, 2, 3, 4, 5)] * 3
    files = world.models(run)
    fetched = world.federation.home / "fetched.safetensors"
    operator = str(world.federation.operator_file)
    world.secagg("run", "fetch", run, "-o", str(fetched), "--operator", operator, expect=0)
    assert set(files.values()) == {fetched.read_bytes()}
    weights = weights_of(fetched)
    np.testing.assert_allclose(weights, expected_weights(world.text, reports), atol=ROUNDING)


def test_a_killed_silo_drops_out_and_comes_back(world: World) -> None:
    """SIGKILL after the shares and before the upload: the round is exact over the other four.

    SCAFFOLD's variates follow: the one of the killed round is not committed (bug cases DRP-08 and
    RES-05).
    """
    world.silos["silo-5"].end()
    world.start("silo-5", fault="silo.before-upload@2=kill").wait_for("connected")
    run = world.start_run(algorithm="scaffold", rounds=ROUNDS)
    assert world.silos["silo-5"].wait(timeout_s=30) == -9
    world.start("silo-5").wait_for("connected")
    reports = world.watch(run, expect=0)
    assert reports[1].survivors == (1, 2, 3, 4)
    assert reports[1].dropouts == (5,)
    assert all(report.survivors[:4] == (1, 2, 3, 4) for report in reports)
    files = world.models(run)
    assert len(set(files.values())) == 1
    path = world.federation.storage("silo-1") / "runs" / run / "model.safetensors"
    expected = expected_weights(world.text, reports)
    np.testing.assert_allclose(weights_of(path), expected, atol=ROUNDING)


def test_a_model_that_a_silo_has_not_computed_is_marked(world: World) -> None:
    """It was away in the last round: then its file is as good as the coordinator's word."""
    world.silos["silo-5"].end()
    world.start("silo-5", fault="silo.before-training@2=kill").wait_for("connected")
    run = world.start_run()
    reports = world.watch(run, expect=0)
    assert [report.survivors for report in reports] == [(1, 2, 3, 4, 5), *[(1, 2, 3, 4)] * 2]
    assert reports[1].reasons == {5: "its process is gone or cannot reach the coordinator"}
    world.start("silo-5")
    for name, is_own in (("silo-5", False), ("silo-1", True)):
        world.silos[name].wait_for("model-kept", run=run)
        kept = {one.run: one for one in released_models(world.federation.storage(name))}
        assert kept[run].is_verified is is_own


def test_an_attempt_that_most_abandon_is_done_again(world: World) -> None:
    """Two of five are killed after their upload: too few sign, so no sum may be opened.

    Four abandon the attempt, among them the killed ones from their journals; only then do all
    submit the same integers to a second one (SA1 spec 2.5 ii).
    """
    for name in ("silo-4", "silo-5"):
        world.silos[name].end()
        world.start(name, fault="silo.after-upload@2=kill").wait_for("connected")
    run = world.start_run()
    for name in ("silo-4", "silo-5"):
        assert world.silos[name].wait(timeout_s=30) == -9
        world.start(name)
    reports = world.watch(run, expect=0)
    assert [report.attempts for report in reports][:2] == [1, 2]
    assert len(reports[1].survivors) >= 4
    files = world.models(run)
    assert len(set(files.values())) == 1
    path = world.federation.storage("silo-1") / "runs" / run / "model.safetensors"
    expected = expected_weights(world.text, reports)
    np.testing.assert_allclose(weights_of(path), expected, atol=ROUNDING)


def test_a_killed_coordinator_goes_on_where_it_was(world: World) -> None:
    """SIGKILL in the middle of a run: the same command brings it back, and the silos return."""
    run = world.start_run(rounds=12)
    world.coordinator.wait_for("no-privacy-plan", run=run)  # DPN-04: said of every round
    world.coordinator.wait_for("committed", run=run)
    world.coordinator.kill()
    world.coordinator = world.federation.start_coordinator()
    reports = world.watch(run, expect=0)
    assert [report.round for report in reports] == list(range(1, 13))
    assert {report.metrics["private"] for report in reports} == {0.0}  # and in its record
    assert len(set(world.models(run).values())) == 1


def test_a_run_without_enough_silos_fails_by_name(world: World) -> None:
    """The wait has a bound; the reason names who is missing (bug case DRP-01)."""
    world.silos["silo-4"].end()
    run = world.start_run(min_silos=5)
    assert world.watch(run, expect=1) == []
    assert "4 of the 5 silos needed can take part; not connected: silo-4" in world.reason(run)
    world.start("silo-4").wait_for("connected")


def test_a_run_that_every_silo_refuses_fails_with_their_reasons(world: World) -> None:
    """A plan for another task: no silo takes part, and each says why (bug case DRP-03)."""
    path = world.federation.home / "run.toml"
    text = RUN.format(algorithm="fedavg", min_silos=5, rounds=1, learning_rate=0.05).partition(
        "[task]"
    )[0]
    text += '[task]\nstandardize = false\n[[task.features]]\nname = "age"\nkind = "numeric"\n'
    text += '[task.target]\nname = "ill"\npositive = "yes"\n'
    path.write_text(text, encoding="utf-8")
    operator = str(world.federation.operator_file)
    run = world.secagg("run", "start", "-c", str(path), "--operator", operator, expect=0).split()[0]
    assert world.watch(run, expect=1) == []
    reason = world.reason(run)
    for name in SILOS:
        assert f"{name} says PlanError: this silo serves task 'fl.testing:toy_task'" in reason
    for child in world.silos.values():
        assert child.exit_code is None, "a refused run does not end a silo"


def test_a_stopped_run_tells_the_silos(world: World) -> None:
    """`run stop` ends a run; the exit code of watching it says so."""
    run = world.start_run(rounds=1000)
    operator = str(world.federation.operator_file)
    world.secagg("run", "stop", run, "--operator", operator, "--reason", "enough", expect=0)
    world.watch(run, expect=10)
    assert world.reason(run) == "enough"
    listed = json.loads(world.secagg("run", "list", "--operator", operator, "--json", expect=0))
    assert listed["runs"][0]["state"] == "stopped"


def test_a_second_process_of_a_silo_is_refused(world: World) -> None:
    """A copied start script with a storage folder of its own (bug case DRP-07)."""
    path = world.federation.write_silo("silo-1", task(1))
    copy = path.with_name("copy.toml")
    copy.write_text(path.read_text().replace("silo-1/storage", "silo-1/copy"), encoding="utf-8")
    said = world.secagg("silo", "join", "-c", str(copy), expect=9)
    assert "silo-1 is already connected since" in said
    assert world.silos["silo-1"].exit_code is None


def test_the_same_storage_folder_is_refused_at_once(world: World) -> None:
    """Two processes with one journal would break each other's promises."""
    path = world.federation.write_silo("silo-1", task(1))
    world.secagg("silo", "join", "-c", str(path), expect=5)


def test_a_silo_that_the_roster_does_not_list_is_refused(world: World) -> None:
    """A certificate of the right authority alone is not enough (bug case SEC-07)."""
    home, now = world.federation.home, utc_now()
    request = enroll(home / "late/keys", name="late", role=Role.SILO, rng=SystemRng())
    copied = home / "authority-copy"
    subprocess.run(["cp", "-r", str(home / "authority"), str(copied)], check=True)
    authority.issue(copied, request, role=Role.SILO, now=now, organization="late")
    authority.install(copied / "issued/late", home / "late/keys")
    path = world.federation.write_silo("late", task(1))
    said = world.secagg("silo", "join", "-c", str(path), expect=9)
    assert "late" in said
    assert "BAD  connection: secagg://silo/late: roster version" in world.secagg(
        "silo", "check", "-c", str(path), expect=9
    )


def test_a_silo_of_another_authority_is_refused(world: World, tmp_path: Path) -> None:
    """Its own exit code, within seconds, and no endless retry (bug case TLS-01)."""
    with LocalFederation(home=tmp_path, silos=["stranger"]) as other:
        other.address = world.federation.address
        path = other.write_silo("stranger", task(1))
        said = world.secagg("silo", "join", "-c", str(path), expect=8)
    assert "authority" in said


def test_only_operators_start_runs(world: World) -> None:
    """A silo's certificate is refused, whatever the call says."""

    async def ask() -> None:
        keys = world.federation.home / "silo-1/keys"
        credentials = load_credentials(keys, role=Role.SILO, now=utc_now())
        async with open_channel(world.federation.address, credentials) as channel:
            client = RunClient(channel, target=world.federation.address)
            text = RUN.format(algorithm="fedavg", min_silos=5, rounds=1, learning_rate=0.05)
            with pytest.raises(NotAllowedError):
                await client.start_run(StartCall(run=RunId(bytes(16)), config=text.encode()))

    asyncio.run(ask())


def test_another_protocol_version_is_refused_by_name(world: World) -> None:
    """Both versions are named."""

    async def ask() -> None:
        keys = world.federation.home / "silo-1/keys"
        credentials = load_credentials(keys, role=Role.SILO, now=utc_now())
        async with open_channel(world.federation.address, credentials) as channel:
            client = AggregationClient(channel, target=world.federation.address)
            hello = Hello(
                protocol_version="SA9",
                software_version="test",
                roster_version=1,
                roster_digest=bytes(32),
                incarnation=bytes(16),
            )
            with pytest.raises(VersionError, match="speaks SA1, silo silo-1 speaks SA9"):
                await client.hello(hello)

    asyncio.run(ask())


def test_a_taken_port_is_an_error(world: World) -> None:
    """The second coordinator ends at once and says which port (bug case NET-09)."""
    path = world.federation.home / "coordinator.toml"
    second = path.with_name("second.toml")
    text = path.read_text().replace("coordinator/storage", "coordinator/second")
    second.write_text(text, encoding="utf-8")
    port = world.federation.address.rpartition(":")[2]
    said = world.secagg("coordinator", "serve", "-c", str(second), expect=6)
    assert f"address in use: port {port}" in said


def test_a_misspelled_setting_is_named_with_a_suggestion(world: World) -> None:
    """No traceback, the key and the one that was meant."""
    path = world.federation.home / "typo.toml"
    path.write_text('coordinater = "x:1"\ndirectory = "d"\nstorage = "s"\n', encoding="utf-8")
    said = world.secagg("silo", "join", "-c", str(path), expect=2)
    assert "did you mean coordinator?" in said
    assert "Traceback" not in said


def test_a_wrong_name_is_found_before_the_coordinator_is_asked(
    world: World, tmp_path: Path
) -> None:
    """Of the algorithm, or of one of its settings; the coordinator's address leads nowhere."""
    operator = tmp_path / "operator.toml"
    keys = world.federation.home / "operator" / "keys"
    operator.write_text(f'coordinator = "127.0.0.1:1"\ndirectory = "{keys}"\n', encoding="utf-8")
    text = RUN.format(algorithm="fedprx", min_silos=5, rounds=1, learning_rate=0.05)
    setting = text.replace('name = "fedprx"', 'name = "fedadam"\nsettings = { beta_1 = 0.5 }')
    for wrong, said in ((text, "did you mean 'fedprox'?"), (setting, "did you mean 'beta1'?")):
        path = tmp_path / "run.toml"
        path.write_text(wrong, encoding="utf-8")
        start = ("run", "start", "-c", str(path), "--operator", str(operator))
        assert said in world.secagg(*start, expect=2)


def test_silo_check_finds_everything_fine(world: World) -> None:
    """The look before joining."""
    path = world.federation.write_silo("silo-2", task(2))
    run = world.federation.home / "run.toml"
    run.write_text(
        RUN.format(algorithm="fedavg", min_silos=5, rounds=1, learning_rate=0.05), encoding="utf-8"
    )
    said = json.loads(
        world.secagg("silo", "check", "-c", str(path), "--run", str(run), "--json", expect=0)
    )
    assert said["ok"], said
    assert "its roster is version" in said["checks"]["connection"]
    assert world.silos["silo-2"].exit_code is None, "a look takes nobody's place"


def test_logs_hold_no_key(world: World) -> None:
    """Neither the identity keys nor the TLS keys, in no spelling (bug case SEC-04)."""
    home, run = world.federation.home, world.start_run(rounds=1)
    for child in world.silos.values():
        child.wait_for("settled", run=run)
    logs = "".join(path.read_text() for path in (home / "logs").iterdir())
    for name in SILOS:
        secret = (home / name / "keys/identity.key").read_bytes()
        assert secret.hex() not in logs
        assert secret[:8].hex() not in logs

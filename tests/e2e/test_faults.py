"""What a federation does when its coordinator, its disk or its database server fails."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from secagg.ids import RunId
from services.cli.operator import fetch_model, run_client, start_run
from services.clock import monotonic
from services.demo.federation import Child, LocalFederation
from services.wire.calls import RunState, RunStatus
from tests.postgres import NoPostgresError, Server, postgres

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # processes that are killed, renewed, attacked

SILOS = ("silo-1", "silo-2", "silo-3")
RUN = """
[run]
name = "toy"
rounds = {rounds}
[algorithm]
name = "scaffold"
[local]
steps = 4
batch_size = 0
learning_rate = {learning_rate}
[task]
name = "fl.testing:toy_task"
"""
LONG_S = 90.0
DEADLINES = dict.fromkeys(
    ("registration_s", "advertise_s", "share_s", "mask_s", "survivors_s", "unmask_s"), LONG_S
)


class Troupe:
    """Three silos, and whatever coordinators a test starts."""

    def __init__(self, federation: LocalFederation) -> None:
        self.federation = federation
        self.silos = [self.start_silo(number) for number in (1, 2, 3)]
        self.begun = 0

    def start_silo(self, number: int, *, fault: str = "") -> Child:
        """Start a silo's process."""
        task = ['task = "fl.testing:toy_task"', "[settings]", f"silo = {number}"]
        return self.federation.start_silo(f"silo-{number}", task, fault=fault)

    def replace_silos(self, *numbers: int, fault: str = "") -> None:
        """End these silos' processes and start others that are connected when this returns."""
        for number in numbers:
            self.silos[number - 1].end()
            self.silos[number - 1] = self.start_silo(number, fault=fault)
        for number in numbers:
            self.silos[number - 1].wait_for("connected", timeout_s=LONG_S)

    def start(self, rounds: int, again: RunId | None = None) -> RunId:
        """Start a run, or take the last one up again."""
        self.begun += again is None
        run = again or RunId(bytes([self.begun] * 16))
        path = self.federation.home / "run.toml"
        path.write_text(RUN.format(rounds=rounds, learning_rate=0.01 + self.begun / 1000))

        async def ask() -> None:
            async with run_client(self.federation.operator_file) as client:
                await start_run(client, path, run)

        asyncio.run(ask())
        return run

    def stop(self, run: RunId) -> None:
        """Stop a run."""

        async def ask() -> None:
            async with run_client(self.federation.operator_file) as client:
                await client.stop_run(run, "enough")

        asyncio.run(ask())

    def status(self, run: RunId) -> RunStatus:
        """Where a run stands."""

        async def ask() -> RunStatus:
            async with run_client(self.federation.operator_file) as client:
                return (await client.show_run(run)).status

        return asyncio.run(ask())

    def ended(self, run: RunId, *, within_s: float = LONG_S) -> RunStatus:
        """Wait for a run's end; the coordinator may be away in between."""
        give_up = monotonic() + within_s
        while True:
            try:
                status = self.status(run)
            except Exception:
                if monotonic() > give_up:
                    raise
                continue
            if status.summary.state.is_final or monotonic() > give_up:
                return status

    def models(self, run: RunId) -> set[bytes]:
        """Every silo's model file and the coordinator's."""
        for silo in self.silos:
            silo.wait_for("model-kept", run=run.hex, timeout_s=LONG_S)
        found = {
            (self.federation.storage(name) / "runs" / run.hex / "model.safetensors").read_bytes()
            for name in SILOS
        }
        return found | {asyncio.run(fetch_model(self.federation.operator_file, run.hex))}


@pytest.fixture(scope="module")
def troupe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Troupe]:
    """One federation for all tests of this file."""
    home = tmp_path_factory.mktemp("faults")
    with LocalFederation(home=home, silos=SILOS, deadlines=DEADLINES) as federation:
        yield Troupe(federation)


@pytest.fixture(autouse=True)
def _alone(troupe: Troupe) -> Iterator[None]:
    """A coordinator of a test that failed stands in no other's way."""
    yield
    for child in troupe.federation.children:
        if child.name not in SILOS:
            child.end()


def begin(troupe: Troupe, fault: str = "") -> Child:
    """Start the coordinator and wait until it serves."""
    child = troupe.federation.start_coordinator(wait=False, fault=fault)
    child.wait_for("listening", timeout_s=LONG_S)
    return child


@pytest.mark.timeout(400)
def test_each_kill_around_a_commit_leaves_whole_rounds_only(troupe: Troupe) -> None:
    """Before, in and after the transaction, and after the result is out (bug case RES-01).

    All three silos are in every sum: no round is done twice, and no kill costs anybody a part.
    """
    coordinator = begin(troupe, fault="log.after-result@2=kill")
    for silo in troupe.silos:
        silo.wait_for("connected", timeout_s=LONG_S)
    run = troupe.start(rounds=6)
    following = ("store.before-commit@3", "store.in-commit@4", "store.after-commit@5", "")
    for fault in following:
        assert coordinator.wait(timeout_s=LONG_S) == -9
        coordinator = begin(troupe, fault=f"{fault}=kill" if fault else "")
    status = troupe.ended(run)
    assert status.summary.state is RunState.FINISHED, status.summary.reason
    assert [(r.round, r.attempts, r.survivors) for r in status.rounds] == [
        (number, 1, (1, 2, 3)) for number in range(1, 7)
    ]
    assert len(troupe.models(run)) == 1
    coordinator.end()


@pytest.mark.timeout(400)
def test_a_stopped_run_can_be_taken_up_again(troupe: Troupe) -> None:
    """`run start --resume` goes on after the last complete round, with the same settings."""
    coordinator = begin(troupe)
    run = troupe.start(rounds=40)
    coordinator.wait_for("committed", run=run.hex, timeout_s=LONG_S)
    operator = str(troupe.federation.operator_file)
    config = str(troupe.federation.home / "run.toml")
    command = [sys.executable, "-m", "services.cli", "run"]
    subprocess.run([*command, "stop", run.hex, "--operator", operator], check=True)
    assert troupe.ended(run).summary.state is RunState.STOPPED
    again = ["start", "-c", config, "--resume", run.hex[:6], "--operator", operator]
    subprocess.run([*command, *again], check=True)
    status = troupe.ended(run)
    assert status.summary.state is RunState.FINISHED, status.summary.reason
    assert [report.round for report in status.rounds] == list(range(1, 41))
    coordinator.end()


@pytest.mark.timeout(400)
def test_a_run_that_is_stopped_while_shares_are_opened_can_be_taken_up_again(
    troupe: Troupe,
) -> None:
    """Its round is finished first: a sum that is given up when shares are open never comes."""
    coordinator = begin(troupe)
    troupe.replace_silos(1, 2, 3, fault="silo.before-unmask@2=stall:1")
    run = troupe.start(rounds=4)
    coordinator.wait_for("phase", run=run.hex, round=2, phase="unmask", timeout_s=LONG_S)
    troupe.stop(run)
    ended = troupe.ended(run).summary
    assert (ended.state, ended.rounds_done) == (RunState.STOPPED, 2)
    troupe.start(rounds=4, again=run)
    status = troupe.ended(run)
    assert status.summary.state is RunState.FINISHED, status.summary.reason
    assert [report.round for report in status.rounds] == [1, 2, 3, 4]
    troupe.replace_silos(1, 2, 3)
    coordinator.end()


@pytest.mark.timeout(400)
def test_a_run_that_is_stopped_while_shares_are_opened_ends_at_once(troupe: Troupe) -> None:
    """Nothing is awaited that only another attempt would need: phases have 90 s here.

    Whoever has opened shares promises nothing, so that wait would be in vain.
    """
    coordinator = begin(troupe)
    troupe.replace_silos(1, 2, fault="silo.before-unmask@2=stall:60")
    run = troupe.start(rounds=4)
    coordinator.wait_for("phase", run=run.hex, round=2, phase="unmask", timeout_s=LONG_S)
    operator = str(troupe.federation.operator_file)
    command = [sys.executable, "-m", "services.cli", "run"]
    subprocess.run([*command, "stop", run.hex, "--operator", operator], check=True)
    assert troupe.ended(run, within_s=LONG_S / 3).summary.state is RunState.STOPPED
    troupe.replace_silos(1, 2)
    coordinator.end()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A PostgreSQL of our own."""
    context = postgres()
    try:
        found = context.__enter__()
    except NoPostgresError as error:
        pytest.skip(str(error))
    yield found
    context.__exit__(None, None, None)


@pytest.mark.timeout(400)
def test_a_standby_takes_over_and_a_restarted_database_is_outlasted(
    troupe: Troupe, server: Server
) -> None:
    """One address, two coordinators on one PostgreSQL; the first is killed in mid-run."""
    if server.data is None:
        pytest.skip("the server is somebody else's: it is not ours to restart")
    home = troupe.federation.home
    path = troupe.federation.write_coordinator()
    text = path.read_text().replace("coordinator/storage", "coordinator/shared")
    url = server.make_database()
    replica = home / "replica.toml"
    replica.write_text(f'database = "{url}"\n' + text)
    command = ["coordinator", "serve", "--config", str(replica)]
    first = troupe.federation._spawn("first", command)
    first.wait_for("listening", timeout_s=LONG_S)
    second = troupe.federation._spawn("second", command)
    assert str(os.getpid()) not in str(second.wait_for("standing-by", timeout_s=LONG_S)["holder"])
    run = troupe.start(rounds=60)
    first.wait_for("committed", run=run.hex, timeout_s=LONG_S)
    server.control("restart")
    first.kill()
    second.wait_for("run-resumed", run=run.hex, timeout_s=LONG_S)
    status = troupe.ended(run)
    assert status.summary.state is RunState.FINISHED, status.summary.reason
    assert [report.round for report in status.rounds] == list(range(1, 61))
    assert len(troupe.models(run)) == 1
    second.end()


@pytest.mark.timeout(400)
def test_a_coordinator_that_slept_finds_itself_replaced(troupe: Troupe, server: Server) -> None:
    """Its lease ran out while it was stopped; the fencing token keeps it from writing one thing."""
    home = troupe.federation.home
    path = troupe.federation.write_coordinator()
    text = path.read_text().replace("coordinator/storage", "coordinator/two")
    replica = home / "sleeper.toml"
    replica.write_text(f'database = "{server.make_database()}"\n' + text)
    # The sleeper keeps its port; silos and operators find the standby at the same address
    # only because nobody else may listen there while it sleeps: so the standby has another one.
    command = ["coordinator", "serve", "--config", str(replica)]
    first = troupe.federation._spawn("sleeper", command)
    first.wait_for("listening", timeout_s=LONG_S)
    other = home / "waker.toml"
    other.write_text(replica.read_text().replace(troupe.federation.address, "127.0.0.1:0"))
    second = troupe.federation._spawn("waker", ["coordinator", "serve", "--config", str(other)])
    second.wait_for("standing-by", timeout_s=LONG_S)
    run = troupe.start(rounds=100_000)
    first.wait_for("committed", run=run.hex, timeout_s=LONG_S)
    first.process.send_signal(signal.SIGSTOP)
    second.wait_for("run-resumed", run=run.hex, timeout_s=LONG_S)
    first.process.send_signal(signal.SIGCONT)
    assert first.wait(timeout_s=LONG_S) == 5
    assert "has taken over; this process ends" in first.log.read_text(encoding="utf-8")
    assert second.exit_code is None
    second.end()

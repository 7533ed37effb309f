"""A standby takes over while something is pending: a run, a silo's complaint, an operator's word.

Two coordinator processes on one PostgreSQL and one storage folder, over loopback mTLS; the holder
of the lease is killed, and the run must not know the difference.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.run import STOPPED_EXIT
from services.demo.federation import Child, LocalFederation
from tests.e2e.test_membership import DEADLINES, RUN
from tests.e2e.test_suspects import ACCUSER, secagg
from tests.postgres import NoPostgresError, Server, postgres

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

SILOS = tuple(f"silo-{number}" for number in range(1, 7))
LONG_S = 90.0
PATIENT = DEADLINES | {"registration_s": LONG_S, "mask_s": LONG_S}


class Pair:
    """A federation's coordinators: who holds the lease, and who stands by."""

    def __init__(self, federation: LocalFederation, url: str) -> None:
        self.federation = federation
        self.url = url
        self.silos: dict[str, Child] = {}
        self.holder = federation.start_coordinator(database=url)
        self._runs = 0

    def start(self, *names: str, fault: str = "", module: str = "services.cli") -> None:
        """Start silos, in the place of earlier ones, and wait until they are connected."""
        for name in names:
            if name in self.silos:
                self.silos[name].end()
            lines = ['task = "fl.testing:toy_task"', "[settings]", f"silo = {name[-1]}"]
            self.silos[name] = self.federation.start_silo(name, lines, fault=fault, module=module)
        for name in names:
            self.silos[name].wait_for("connected", timeout_s=LONG_S)

    def complete(self) -> None:
        """Start those of the first five silos that no earlier test has started."""
        self.start(*(name for name in SILOS[:5] if name not in self.silos))

    def arm(self, fault: str) -> None:
        """Start the holder again, to be killed at this point."""
        self.holder.end()
        self.holder = self.federation.start_coordinator(database=self.url, fault=fault)

    def stand_by(self) -> Child:
        """Start a second coordinator."""
        child = self.federation.start_coordinator(database=self.url, wait=False)
        child.wait_for("standing-by", timeout_s=LONG_S)
        return child

    def begin(self, *, rounds: int, silos: int) -> str:
        """Start a run; returns its id."""
        self._runs += 1  # no two runs pass through one state (SA1 spec 2.5 v)
        path = self.federation.home / "run.toml"
        text = RUN.format(rounds=rounds, silos=silos, rate=0.05 + self._runs / 1000)
        path.write_text(text, encoding="utf-8")
        return self.operate("start", "-c", str(path)).strip()

    def operate(self, *arguments: str, expect: int = 0) -> str:
        """Run an operator's command on runs."""
        operator = str(self.federation.operator_file)
        return secagg("run", *arguments, "--operator", operator, expect=expect)

    def survivors(self, run: str) -> list[object]:
        """Of each round that the holder has committed."""
        lines = [line for line in self.holder.lines() if line.get("run") == run]
        return [line["survivors"] for line in lines if line.get("event") == "committed"]


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


@pytest.fixture(scope="module")
def pair(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A coordinator without silos, for all tests of this file, in their order."""
    home: Path = tmp_path_factory.mktemp("federation")
    (home / "accuser_of_a_test.py").write_text(ACCUSER, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(home), *filter(None, sys.path)]))
        with LocalFederation(home=home, silos=SILOS, deadlines=PATIENT) as made:
            yield Pair(made, server.make_database())


def test_a_standby_with_a_folder_of_its_own_does_not_stand_by(pair: Pair) -> None:
    """It says so when it is started, and the holder does not notice."""
    stray = pair.federation.start_coordinator(database=pair.url, storage="own", wait=False)
    assert stray.wait(timeout_s=LONG_S) == 2
    said = stray.log.read_text(encoding="utf-8")
    assert "storage: expected the folder with which" in said
    assert "standing-by" not in said
    assert pair.holder.exit_code is None


def test_a_run_that_waits_for_its_silos_is_taken_over(pair: Pair) -> None:
    """Accepted, and not yet begun: nothing of it is anywhere but in the storage."""
    second = pair.stand_by()
    run = pair.begin(rounds=3, silos=5)
    pair.holder.wait_for("waiting", run=run, timeout_s=LONG_S)
    pair.holder.kill()
    pair.holder = second
    second.wait_for("run-resumed", run=run, timeout_s=LONG_S)
    pair.start(*SILOS[:5])
    pair.operate("watch", run)
    assert pair.survivors(run) == [[1, 2, 3, 4, 5]] * 3


def test_a_complaint_in_an_open_attempt_is_taken_over(pair: Pair) -> None:
    """The holder dies with it in the logbook, before it counts; both ends are left out.

    The complaint is of round 2, which is opened ahead while round 1 goes on.
    """
    pair.complete()
    pair.start("silo-6", module="accuser_of_a_test")
    pair.arm("coordinator.after-message@2=kill")
    second = pair.stand_by()
    run = pair.begin(rounds=4, silos=6)
    assert pair.holder.wait(timeout_s=LONG_S) == -9
    events = [line.get("event") for line in pair.holder.lines() if line.get("run") == run]
    assert "suspect" not in events, "the complaint counted before the kill"
    pair.holder = second
    pair.operate("watch", run)
    assert pair.survivors(run)[-1] == [2, 3, 4, 5]
    for survivors in pair.survivors(run)[-3:]:
        assert isinstance(survivors, list)
        assert set(survivors) <= {2, 3, 4, 5}, "the accuser, or the accused, is in a sum"
    assert [line.get("event") for line in second.lines()].count("suspect") == 2


def test_asked_changes_of_the_silos_are_taken_over(pair: Pair) -> None:
    """One is dismissed and one is admitted while a third trains, and the holder dies before."""
    pair.complete()
    if (accuser := pair.silos.pop("silo-6", None)) is not None:
        accuser.end()
    pair.start("silo-4", fault="silo.before-training@2=stall:45")
    second = pair.stand_by()
    run = pair.begin(rounds=100_000, silos=4)
    pair.silos["silo-4"].wait_for("training", run=run, round=2, timeout_s=LONG_S)
    pair.operate("dismiss", run, "silo-5")
    pair.operate("admit", run, "silo-6")
    pair.holder.kill()
    events = [line.get("event") for line in pair.holder.lines() if line.get("run") == run]
    assert events.count("member") == 2
    assert "members" not in events, "the changes were carried out before the kill"
    pair.holder = second
    pair.start("silo-6")
    members = second.wait_for("members", run=run, timeout_s=LONG_S)
    assert members["seats"] == [1, 2, 3, 4, 6]
    second.wait_for("committed", run=run, survivors=[1, 2, 3, 4, 6], timeout_s=LONG_S)
    assert pair.survivors(run)[0] == [1, 2, 3, 4, 5], "the attempt that was open"
    pair.silos["silo-5"].wait_for("run-ended", run=run, timeout_s=LONG_S)
    pair.operate("stop", run)
    pair.operate("watch", run, expect=STOPPED_EXIT)

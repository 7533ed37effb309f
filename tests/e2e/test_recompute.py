"""Silo processes that recompute parts of every sum, and a coordinator process that alters one."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from services.demo.federation import LocalFederation

pytestmark = pytest.mark.e2e

SILOS = tuple(f"silo-{number}" for number in range(1, 5))
ROUNDS = 2
# A few silos find a wrong chunk in each; when they have left, too few are there.
MOST_FORGED = 8
RUN = """
[run]
name = "recomputed"
rounds = {rounds}
min_silos = 4

[local]
steps = 2
batch_size = 0
learning_rate = {learning_rate}

[task]
name = "fl.testing:toy_task"

[recompute]
redundancy = {redundancy}
"""
FORGER = """
from dataclasses import replace

from secagg import canonical, server
from services.cli.main import main

honest = server.sum_and_unmask


def forge(**arguments):
    opened, store, name = honest(**arguments), arguments["store"], arguments["name"]
    pieces = [store.read(name, number) for number in range(store.chunks(name))]
    pieces[0] = bytes([pieces[0][0] ^ 1]) + pieces[0][1:]
    store.discard(name)
    for number, piece in enumerate(pieces):
        store.write(name, number, piece)
    return replace(opened, root=canonical.merkle_root(pieces))


server.sum_and_unmask = forge
main()
"""
POLICY = ["[policy]", "min_redundancy = 1", "max_redundancy = 2"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """Four silos that take no sum unseen."""
    home = tmp_path_factory.mktemp("federation")
    (home / "forger_of_a_test.py").write_text(FORGER, encoding="utf-8")
    # Silos that leave in the middle of a round let it run into its deadlines.
    deadlines = {"registration_s": 4.0, "survivors_s": 5.0, "unmask_s": 5.0, "closed_s": 10.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(home))
        patch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
        with LocalFederation(home=home, silos=SILOS, deadlines=deadlines) as made:
            yield made


def start_silos(federation: LocalFederation, *, once: bool = False) -> None:
    """Start them all, and wait for them."""
    options = ["--once"] if once else []
    started = []
    for number, name in enumerate(SILOS, start=1):
        task = ['task = "fl.testing:toy_task"', "[settings]", f"silo = {number}", *POLICY]
        started.append(federation.start_silo(name, task, options=options))
    for silo in started:
        silo.wait_for("connected", timeout_s=60.0)


def secagg(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command."""
    command = [sys.executable, "-m", "services.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def run(
    federation: LocalFederation, rate: float, *, redundancy: int, rounds: int = ROUNDS
) -> tuple[int, str]:
    """Start a run and follow it; returns the exit code of `run start` and the run's last reason."""
    path = federation.home / "run.toml"
    text = RUN.format(rounds=rounds, learning_rate=rate, redundancy=redundancy)
    path.write_text(text, encoding="utf-8")
    operator = str(federation.operator_file)
    done = secagg("run", "start", "-c", str(path), "--operator", operator, "--watch", "--json")
    return done.returncode, json.loads(done.stdout.splitlines()[-1])["summary"]["reason"]


def test_every_silo_recomputes_its_part(federation: LocalFederation) -> None:
    """Also of the last sum: a silo that leaves with its run stays until it has seen that one."""
    coordinator = federation.start_coordinator()
    start_silos(federation, once=True)
    assert run(federation, 0.1, redundancy=2) == (0, "")
    silos = [child for child in federation.children if child is not coordinator]
    for silo in silos:
        assert silo.wait(timeout_s=30) == 0
        lines = [line for line in silo.lines() if line.get("event") == "recomputed"]
        # The last silos may have been asked for nothing by chance, but for their own choice.
        assert len(lines) == ROUNDS
        assert all(line["chunks"] for line in lines)
        assert not (federation.storage(silo.name) / "evidence").exists()
    coordinator.end()


def test_an_altered_chunk_convicts_the_coordinator(federation: LocalFederation) -> None:
    """Silos that want every sum shown refuse a run without; what they find, others can check."""
    federation.start_coordinator(module="forger_of_a_test")
    start_silos(federation)
    code, reason = run(federation, 0.2, redundancy=0)
    assert code == 1
    assert "0 are left" in reason, "a rule that no waiting changes must not be waited for"
    for name in SILOS:
        assert f"{name} says A1_POLICY_REFUSED: policy rule min_redundancy" in reason
    for child in federation.children:
        child.end()

    federation.start_coordinator(module="forger_of_a_test")
    start_silos(federation)
    code, reason = run(federation, 0.3, redundancy=2, rounds=MOST_FORGED)
    assert code == 1
    assert "says CoordinatorAccusedError: this silo holds evidence" in reason
    cases = [path for name in SILOS for path in (federation.storage(name) / "evidence").glob("*")]
    assert len(cases) >= 2
    roster = str(federation.home / "coordinator" / "keys" / "roster.json")
    trust = str(federation.home / "silo-1" / "keys" / "trust.json")
    for path in cases:
        done = secagg(
            "transcript", "verify", str(path), "--roster", roster, "--trust", trust, "--json"
        )
        verdict = json.loads(done.stdout)
        assert (done.returncode, verdict["accused"]) == (0, "the coordinator")
        assert "chunk 0 of the sum" in verdict["finding"]

"""Silo processes whose own task is flawed, and what a coordinator's folders hold afterwards."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from services.demo.federation import Child, LocalFederation

pytestmark = pytest.mark.e2e

# Rows of each silo that is not flawed: numbers that stand nowhere by chance.
ROWS = {"silo-1": 4_861_177, "silo-2": 5_147_303, "silo-3": 5_578_739}
SILOS = (*ROWS, "silo-4")
TASK = """
import numpy as np
from fl.testing import LeastSquaresTask


class NotFinite(LeastSquaresTask):
    def train(self, *arguments):
        result = super().train(*arguments)
        result.model_after[0] = np.nan
        return result


def make(settings):
    flaw = settings.get("flaw", "")
    if flaw == "factory":
        raise RuntimeError("patient 4711")
    rows = settings.get("rows", 0 if flaw == "weight" else 30)
    inputs = np.ones((rows, 2 if flaw == "shape" else 1))
    return (NotFinite if flaw == "nan" else LeastSquaresTask)(inputs, np.ones(rows))
"""
RUN = """
[run]
name = "one flawed"
rounds = 1

[local]
steps = 1
batch_size = 0
learning_rate = 0.1

[weights]
kind = "hidden"
n_cap = 10_000_000

[task]
name = "flawed_task_of_a_test:make"
"""
KEPT = ": this silo's data or update cannot be used; its own log says why"
FLAWS = {
    "nan": "DataError" + KEPT,
    "shape": "SpecMismatchError: round 1: vector: the plan and this silo give update[2]",
    "factory": "DataError" + KEPT,
    "weight": "DataError" + KEPT,
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """A coordinator and three sound silos; one may be missing from a sum."""
    home = tmp_path_factory.mktemp("federation")
    (home / "flawed_task_of_a_test.py").write_text(TASK, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(home))
        with LocalFederation(home=home, silos=SILOS) as made:
            made.start_coordinator()
            for name in SILOS[:-1]:
                start(made, name, f"rows = {ROWS[name]}").wait_for("connected")
            yield made


def start(federation: LocalFederation, name: str, setting: str) -> Child:
    """Start a silo with this setting of its task."""
    task = ['task = "flawed_task_of_a_test:make"', "[settings]", setting]
    return federation.start_silo(name, task)


def run(federation: LocalFederation) -> tuple[dict[str, Any], str]:
    """Run one round; how it ended, and all that the operator was shown."""
    config, operator = federation.home / "run.toml", str(federation.operator_file)
    config.write_text(RUN, encoding="utf-8")
    command = [sys.executable, "-m", "services.cli", "run", "start", "-c", str(config)]
    done = subprocess.run(
        [*command, "--operator", operator, "--watch", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout.splitlines()[-1]), done.stdout


@pytest.mark.parametrize("flaw", list(FLAWS))
def test_a_flawed_silo_is_left_out(federation: LocalFederation, flaw: str) -> None:
    """Its error reaches the coordinator by name, without what the silo's own code said."""
    flawed = start(federation, "silo-4", f'flaw = "{flaw}"')
    flawed.wait_for("connected")
    last, printed = run(federation)
    assert last["rounds"][0]["survivors"] == [1, 2, 3]
    assert last["rounds"][0]["metrics"]["examples"] == sum(ROWS.values())
    refusal = next(seat["refusal"] for seat in last["seats"] if seat["silo"] == "silo-4")
    assert refusal.startswith(FLAWS[flaw])
    assert "4711" not in printed
    assert flawed.exit_code is None, "a flaw costs a round, not the process"
    flawed.end()


def test_the_coordinator_s_folders_hold_no_count_of_a_silo(federation: LocalFederation) -> None:
    """Neither its storage nor any log, as text or as an integer; the sum's count is found."""
    run(federation)
    storage, logs = federation.storage("coordinator"), federation.home / "logs"
    files = [path for folder in (storage, logs) for path in folder.rglob("*") if path.is_file()]
    held = b"\x00\xff".join(path.read_bytes() for path in files)
    assert str(sum(ROWS.values())).encode() in held, "the control: reports hold the sum"
    for rows in ROWS.values():
        for order in ("big", "little"):
            assert rows.to_bytes(8, order) not in held
        assert str(rows).encode() not in held

"""`secagg stats` over processes and sockets: the pooled tables' figures, and who refuses what."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

from secagg.ids import RunId
from services.cli.main import app
from services.demo.federation import Child, LocalFederation
from services.ledger.run_book import ledger_path
from services.silo.check import released_models
from tests.e2e.test_privacy_runs import DEADLINES, PATIENCE_S

pytestmark = pytest.mark.e2e

SILOS = tuple(f"silo-{number}" for number in range(1, 5))
ROWS = 60
QUERY = """
[[numeric]]
name = "age"
low = {low}
high = 100
bins = 10

[[categorical]]
name = "sick"
categories = ["no", "yes"]
"""
NOISED = ("--z", "4", "--adjacency", "zero_out", "--most-rows", "200")


def ages(number: int) -> NDArray[np.float64]:
    """The ages at one silo; the first is missing."""
    drawn = np.random.default_rng(number).integers(20 + 5 * number, 90, ROWS).astype(float)
    drawn[0] = np.nan
    return drawn


MOMENTS = """
[run]
name = "moments first"
rounds = 1
min_silos = 4

[local]
steps = 1
learning_rate = 0.1

[task]
name = "tabular"
target = { name = "sick", classes = ["no", "yes"] }
features = [{ name = "age", missing = "mean" }]
"""


class World:
    """A federation of silos with tables, and an operator who asks."""

    def __init__(self, federation: LocalFederation) -> None:
        self.federation = federation
        self.silos: dict[str, Child] = {}
        for number, name in enumerate(SILOS, start=1):
            lines = ["age,sick"]
            for row, age in enumerate(ages(number)):
                shown = "" if np.isnan(age) else f"{age:.0f}"
                lines.append(f"{shown},{'yes' if row < 10 * number else 'no'}")
            self.data(name).write_text("\n".join(lines) + "\n", "utf-8")

    def data(self, name: str) -> Path:
        """A silo's table."""
        return self.federation.home / f"{name}.csv"

    def start(
        self, name: str, *, epsilon: float | None = None, policy: str = "exact", fault: str = ""
    ) -> Child:
        """Start a silo, with a budget if an epsilon is given."""
        lines = ["[data]", f'file = "{self.data(name)}"']
        if policy:
            lines += [
                "[policy]",
                f'statistics = "{policy}"',
                'statistics_columns = ["age", "sick"]',
            ]
        if epsilon is not None:
            lines += [
                *("[privacy]", f'data_set = "{name}"', 'unit = "record"'),
                *('adjacency = "zero_out"', f"epsilon = {epsilon}"),
                *("delta = 1e-6", f"persons = {ROWS}", f"most_units = {ROWS}"),
            ]
        child = self.federation.start_silo(name, lines, fault=fault)
        self.silos[name] = child
        return child

    def arguments(self, *command: str, low: int = 0) -> list[str]:
        """What the operator types to ask about the columns, whose bins begin at `low`."""
        columns = self.federation.home / f"columns-{low}.toml"
        columns.write_text(QUERY.format(low=low), "utf-8")
        operator = str(self.federation.operator_file)
        return ["stats", *command, "-q", str(columns), "--operator", operator, "--json"]

    def ask(self, *command: str, low: int = 0, expect: int = 0) -> Result:
        """Ask, and check the exit code."""
        done = CliRunner().invoke(app, self.arguments(*command, low=low))
        assert done.exit_code == expect, (done.exit_code, done.output, done.exception)
        return done

    def operator(self, *command: str) -> str:
        """Say something else as the operator."""
        operator = str(self.federation.operator_file)
        done = CliRunner().invoke(app, [*command, "--operator", operator])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    def ledgers(self, name: str) -> Path:
        """A holder's folder of ledgers."""
        return self.federation.storage(name) / "ledgers"


def facts(done: Result) -> dict[str, Any]:
    """What a command has printed as JSON."""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def require_pooled(found: dict[str, Any], numbers: Sequence[int], low: int = 0) -> None:
    """The exact figures are those of these silos' tables in one heap."""
    pooled = np.concatenate([ages(number) for number in numbers])
    age = found["numeric"]["age"]
    assert found["rows"] == len(pooled)
    assert age["missing"] == len(numbers)
    assert age["mean"] == pytest.approx(np.nanmean(pooled), abs=1e-9)
    assert age["variance"] == pytest.approx(np.nanvar(pooled), abs=1e-9)
    counts, _ = np.histogram(pooled[~np.isnan(pooled)], bins=10, range=(low, 100))
    assert age["histogram"] == counts.tolist()
    sick = sum(10 * number for number in numbers)
    assert found["categorical"]["sick"]["counts"] == {"no": len(pooled) - sick, "yes": sick}


@contextmanager
def begun(home: Path, *odd: str, **settings: Any) -> Iterator[World]:
    """A coordinator and four silos, all connected; the settings are of the odd silos."""
    with LocalFederation(home=home, silos=SILOS, deadlines=DEADLINES, forked=True) as federation:
        made = World(federation)
        coordinator = federation.start_coordinator(wait=False)
        for name in SILOS:
            made.start(name, **(settings if name in odd else {}))
        coordinator.wait_for("listening", timeout_s=PATIENCE_S)
        for child in made.silos.values():
            child.wait_for("connected", timeout_s=PATIENCE_S)
        yield made


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One federation for the tests of this file that follow one another."""
    with begun(tmp_path_factory.mktemp("statistics")) as made:
        yield made


def test_all_tables_are_described_without_leaving_their_silos(world: World) -> None:
    """The pooled figures, exactly; every party keeps them, and the run is listed by its kind."""
    asked = world.ask("describe", "--name", "a first look")
    found = facts(asked)
    require_pooled(found, range(1, 5))
    assert found["silos"] == 4
    listed = world.operator("run", "list")
    assert "finished" in listed
    assert "describe" in listed
    assert "a first look" in listed
    kept = set()
    for name, child in world.silos.items():
        child.wait_for("model-kept", run=found["run"], timeout_s=PATIENCE_S)
        path = world.federation.storage(name) / "runs" / found["run"] / "statistics.json"
        kept.add(path.read_bytes())
        (listed_here,) = released_models(world.federation.storage(name))  # `secagg silo status`
        assert (listed_here.run, listed_here.file) == (found["run"], str(path))
        assert listed_here.name == "a first look"
        assert listed_here.is_verified
    assert len(kept) == 1
    assert json.loads(world.operator("stats", "show", found["run"], "--json")) == found


def test_advice_takes_two_sums_of_one_run(world: World) -> None:
    """Totals, then the distribution of distances; every silo settles the first by itself."""
    options = ("--target", "sick", "--parameters", "14")
    found = facts(world.ask("advise", *options))
    here = [part for name in SILOS for part in ("--data", str(world.data(name)))]
    assert found == facts(world.ask("advise", *options, *here))  # the same sums in one process
    runs = json.loads(world.operator("run", "list", "--json"))["runs"]
    assert (runs[0]["algorithm"], runs[0]["rounds_done"]) == ("advise", 2)


def test_a_silo_that_vanishes_leaves_the_sum_to_the_others(tmp_path: Path) -> None:
    """Killed with its answer made; its rows are in no figure, nor in one of a later query."""
    with begun(tmp_path, "silo-4", fault="silo.before-upload=kill") as world:
        found = facts(world.ask("describe", low=10))
        require_pooled(found, range(1, 4), low=10)
        world.start("silo-4").wait_for("connected", timeout_s=PATIENCE_S)
        require_pooled(facts(world.ask("describe", low=20)), range(1, 4), low=20)


@pytest.mark.slow  # five attempts with rests between them
@pytest.mark.timeout(300)
def test_the_same_query_over_other_silos_is_refused(world: World) -> None:
    """Asked of four, then, in other bins, of three: the difference were one's table (2.5 v)."""
    first, again = (facts(world.ask("describe", low=low)) for low in (15, 15))
    assert first | {"run": ""} == again | {"run": ""}  # of the same silos it may be asked again
    world.silos["silo-4"].end()
    refused = world.ask("describe", "--min-silos", "3", low=16, expect=1)
    assert "were in a sum over this state with other survivors" in refused.stderr
    assert "ask the same silos" in refused.stderr
    world.start("silo-4").wait_for("connected", timeout_s=PATIENCE_S)
    run = refused.stderr.split()[1]  # "run ID"
    resumed = facts(world.ask("describe", "--min-silos", "3", "--resume", run, low=16))
    assert resumed["run"] == run
    require_pooled(resumed, range(1, 5), low=16)  # all are there again: the run goes on


def test_what_a_silo_does_not_answer_it_refuses_by_name(tmp_path: Path) -> None:
    """By its own settings: nothing at all, or, if they say nothing, nothing without noise."""
    with begun(tmp_path, "silo-1", policy="refuse") as world:
        others = world.ask("describe", low=20)
        assert "silo-1: QueryRefusedError: policy rule statistics = refuse" in others.stderr
        require_pooled(facts(others), range(2, 5), low=20)  # nobody has to wait for the unwilling
        world.silos["silo-1"].end()
        world.start("silo-1", policy="").wait_for("connected", timeout_s=PATIENCE_S)
        others = world.ask("advise", "--target", "sick", "--parameters", "14", low=25)
        assert "policy rule statistics = noised (this is the default), and advise asks" in (
            others.stderr
        )


@pytest.mark.slow  # a federation of its own for each
@pytest.mark.parametrize("point", ["log.after-masked", "store.before-commit"])
def test_a_killed_coordinator_goes_on_with_the_query(tmp_path: Path, point: str) -> None:
    """SIGKILL in mid-query; another process finishes it, and the waiting operator has the sum."""
    with LocalFederation(
        home=tmp_path, silos=SILOS, deadlines={**DEADLINES, "registration_s": 60.0}, forked=True
    ) as federation:
        world = World(federation)
        coordinator = federation.start_coordinator(fault=f"{point}=kill")
        for name in SILOS:
            world.start(name)
        with subprocess.Popen(
            [sys.executable, "-m", "services.cli", *world.arguments("describe")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as asking:
            assert coordinator.wait(timeout_s=PATIENCE_S) == -9
            federation.start_coordinator()
            told, complaint = asking.communicate(timeout=PATIENCE_S)
        assert asking.returncode == 0, complaint
        require_pooled(json.loads(told), range(1, 5))


def test_a_noised_query_is_charged_to_everybody_and_can_be_verified(tmp_path: Path) -> None:
    """Signed before, settled after; exact sums and what a spent budget forbids are refused."""
    with begun(tmp_path, *SILOS, epsilon=1.2) as world:
        found = facts(world.ask("describe", *NOISED))
        assert 0.5 < found["epsilon"] < 1.2
        assert abs(found["rows"] - 4 * ROWS) < 10 * found["std_of_a_count"]
        assert (found["unit"], found["adjacency"], found["delta"]) == ("record", "zero_out", 1e-6)
        assert found["trust"]["coordinator_colludes"] == found["epsilon"]
        assert found["trust"]["aggregation_fails"] > found["epsilon"]
        said = world.operator("stats", "show", found["run"])
        assert "privacy of one record, adjacency zero_out, delta 1e-06" in said
        assert said.count("epsilon") == 3
        run = RunId.parse(found["run"])
        for child in world.silos.values():
            child.wait_for("model-kept", run=run.hex, timeout_s=PATIENCE_S)
        require_verified(world, run, found["epsilon"])

        before = {name: own_ledger(world, name).read_bytes() for name in SILOS}
        refused = world.ask("describe", low=10, expect=1)
        assert "QueryRefusedError: this silo's data set has a privacy budget" in refused.stderr
        assert "--most-rows" in refused.stderr
        assert "0 are left" in refused.stderr, "no waiting changes what a silo's owner has set"
        spent = world.ask("describe", *NOISED, low=10, expect=11)
        assert "budget_exhausted" in spent.stderr
        assert {name: own_ledger(world, name).read_bytes() for name in SILOS} == before


def own_ledger(world: World, name: str) -> Path:
    """A silo's data-set ledger."""
    return world.ledgers(name) / f"data-set-{name}.jsonl"


def require_verified(world: World, run: RunId, epsilon: float) -> None:
    """The run's ledger is the same everywhere and passes `python -m dp.verify`, and so do all."""
    kinds = ["GENESIS", "BUDGET_SET", "PLAN_COMMIT", "ROUND_INTENT", "ROUND_RELEASE"]
    path = ledger_path(world.ledgers("coordinator"), run)
    entries = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [one["kind"] for one in entries] == kinds
    assert entries[3]["body"]["purpose"] == "statistics"
    assert float(entries[2]["body"]["claimed"]["enforced"]["eps"]) == pytest.approx(epsilon)
    keys = world.federation.home / "keys.json"
    keys.write_text(json.dumps(entries[0]["body"]["keys"]), "utf-8")
    ledgers = [path, *(own_ledger(world, name) for name in SILOS)]
    for ledger in ledgers:
        checked = subprocess.run(
            [sys.executable, "-m", "dp.verify", str(ledger), "--keys", str(keys)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert checked.returncode == 0, (ledger, checked.stdout, checked.stderr)
    for name in SILOS:
        assert ledger_path(world.ledgers(name), run).read_bytes() == path.read_bytes()
        mine = [
            json.loads(line)["kind"] for line in own_ledger(world, name).read_bytes().splitlines()
        ]
        assert mine == kinds


@pytest.mark.slow  # the next run fails five times, with rests between
@pytest.mark.timeout(400)
def test_a_run_stopped_in_its_moments_is_resumed_before_another(tmp_path: Path) -> None:
    """Three silos have sent theirs; until they know who was in that sum, they send no others."""
    with begun(tmp_path, "silo-4", fault="silo.before-upload=stall:20") as world:
        path = world.federation.home / "run.toml"
        path.write_text(MOMENTS, encoding="utf-8")
        run = world.operator("run", "start", "--config", str(path)).strip()
        for name in SILOS[:3]:
            world.silos[name].wait_for(
                "sent", run=run, message="masked-message", timeout_s=PATIENCE_S
            )
        world.operator("run", "stop", run)
        world.silos["silo-4"].end()
        world.start("silo-4").wait_for("connected", timeout_s=PATIENCE_S)
        refused = world.ask("describe", low=16, expect=1)
        assert "resume that run first" in refused.stderr
        world.operator("run", "start", "--config", str(path), "--resume", run, "--watch")
        require_pooled(facts(world.ask("describe", low=16)), range(1, 5), low=16)

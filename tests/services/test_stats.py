"""`secagg stats describe --silo`: a noised release, charged to every data set, or refused."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.cli.main import app
from services.clock import utc_now
from services.config import SiloConfig
from services.security.credentials import load_identity
from services.settings import load_config
from services.silo.check import budget_status
from services.testing import make_federation

SILOS = ("silo-1", "silo-2", "silo-3")
QUERY = """
[[numeric]]
name = "age"
low = 0
high = 100
bins = 4

[[categorical]]
name = "sex"
categories = ["f", "m"]
"""
NOISED = ("--z", "4", "--delta", "1e-6", "--adjacency", "zero_out", "--most-rows", "100")


class World:
    """Three silos with tables and budgets, and a query."""

    def __init__(self, home: Path, *, budget: bool = True) -> None:
        make_federation(home, silos=SILOS, now=utc_now())
        self.home = home
        self.query = home / "query.toml"
        self.query.write_text(QUERY, encoding="utf-8")
        self.files = []
        for number, name in enumerate(SILOS):
            rows = [f"{40 + number + row % 30},{'fm'[row % 2]}" for row in range(60)]
            (home / f"{name}.csv").write_text("\n".join(["age,sex", *rows]) + "\n", "utf-8")
            text = (
                f'coordinator = "127.0.0.1:1"\ndirectory = "{name}"\nstorage = "{name}-storage"\n'
                f'[data]\nfile = "{name}.csv"\n'
            )
            if budget:
                text += (
                    '[privacy]\ndata_set = "cohort"\nunit = "record"\nadjacency = "zero_out"\n'
                    "epsilon = 2.0\ndelta = 1e-6\npersons = 60\n"
                )
            path = home / f"{name}.toml"
            path.write_text(text, encoding="utf-8")
            self.files.append(path)

    def ask(self, *options: str) -> Result:
        """Run the command."""
        silos = [part for path in self.files for part in ("--silo", str(path))]
        return CliRunner().invoke(
            app, ["stats", "describe", "-q", str(self.query), *silos, "--json", *options]
        )

    def spent(self, number: int) -> float:
        """Epsilon that a silo's data set has spent."""
        status = budget_status(load_config(self.files[number], SiloConfig))
        assert status is not None
        return status.spent

    def ledger(self, number: int) -> Path:
        """A silo's data-set ledger."""
        folder = self.home / f"{SILOS[number]}-storage" / "ledgers"
        return folder / "data-set-cohort.jsonl"


def test_a_query_is_charged_to_every_silo_before_it_is_summed(tmp_path: Path) -> None:
    """METRIC_RELEASE in each ledger, verified; a second query no longer fits anybody's budget."""
    world = World(tmp_path)
    done = world.ask(*NOISED)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["epsilon"] == pytest.approx(world.spent(0), rel=0.01)
    assert facts["std_of_a_count"] > 4.0
    for number, name in enumerate(SILOS):
        lines = world.ledger(number).read_bytes().splitlines()
        assert [json.loads(line)["kind"] for line in lines][-1] == "METRIC_RELEASE"
        assert json.loads(lines[-1])["body"]["purpose"] == "statistics"
        verify = pytest.importorskip("dp.verify")
        pytest.importorskip("dp_accounting")
        report = verify.verify_ledger(lines, {name: load_identity(tmp_path / name).public})
        assert report.ok, report.findings
    before = [world.ledger(number).read_bytes() for number in range(3)]
    again = world.ask(*NOISED, "--z", "1")
    assert again.exit_code != 0
    assert [world.ledger(number).read_bytes() for number in range(3)] == before


def test_exact_sums_of_a_data_set_with_a_budget_are_refused(tmp_path: Path) -> None:
    """They would cost infinitely much; without budgets they are answered."""
    refused = World(tmp_path / "with").ask()
    assert refused.exit_code != 0
    exact = World(tmp_path / "without", budget=False)
    assert json.loads(exact.ask().stdout)["rows"] == 180
    noised = exact.ask(*NOISED)
    assert noised.exit_code != 0  # nobody could be charged


@pytest.mark.parametrize(
    "options",
    [("--data", "a.csv"), ("--z", "4", "--adjacency", "neighborly")],
    ids=["both", "adjacency"],
)
def test_half_questions_are_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    """By name, before anything is charged."""
    world = World(tmp_path)
    done = world.ask(*options)
    assert done.exit_code != 0
    assert not world.ledger(0).exists() or world.spent(0) == 0.0

"""`secagg reproduce` and `secagg stats` as a user types them."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fl.errors import DataError
from fl.reproduce.catalog import CATALOG
from fl.reproduce.report import Claim, Line, Plot, Report, Spread, Table
from fl.reproduce.session import Session
from services.cli.main import app
from services.cli.reproduce import Name
from services.errors import ConfigError

QUERY = """
[[numeric]]
name = "age"
low = 0
high = 100
bins = 4

[[categorical]]
name = "sick"
categories = ["no", "yes"]
"""


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command sets for its process is not left to the next test."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


def test_every_reproduction_has_a_name() -> None:
    """The names of the command line, which imports no numpy, are the catalog's."""
    assert [name.value for name in Name] == list(CATALOG)


@pytest.mark.parametrize(("holds", "code"), [(True, 0), (False, 1)])
def test_figures_are_printed_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, holds: bool, code: int
) -> None:
    """How long it takes comes first; a claim that does not hold is the exit code's."""

    def run(session: Session) -> Report:
        assert session.is_quick
        assert list(session.seeds(20, 3)) == [0, 1]
        line = Line(label="FedAvg", published=Spread(mean=0.5), plain=Spread(mean=0.6))
        return Report(
            name="toy",
            setting="a setting",
            tables=(Table(title="Accuracy", lines=(line,)),),
            claims=(Claim(text="better", holds=holds),),
            plot=Plot(title="", x_label="", y_label=""),
        )

    entry = CATALOG["toy"]
    changed = {**CATALOG, "toy": type(entry)(about=entry.about, run=run, seconds=entry.seconds)}
    monkeypatch.setattr("fl.reproduce.catalog.CATALOG", changed)
    asked = ["reproduce", "toy", "--quick", "--seeds", "2", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == code, done.output
    assert "min on one free core" in done.stderr
    assert "FedAvg  0.5000" in done.stdout
    assert (tmp_path / "toy" / "toy.csv").read_text().startswith("table,label,published_mean")
    assert ("not as it should be: toy" in done.stderr) is not holds


def test_absent_data_are_named(tmp_path: Path) -> None:
    """Not a traceback from deep within."""
    asked = ["reproduce", "flamby-heart", "--data-dir", str(tmp_path), "--output", str(tmp_path)]
    done = CliRunner().invoke(app, asked)
    assert isinstance(done.exception, DataError)
    assert "--data-dir" in str(done.exception)


def silos(tmp_path: Path) -> list[str]:
    """Options for a query over three files, whose silos have one label each but for the last."""
    query = tmp_path / "query.toml"
    query.write_text(QUERY)
    options = ["--query", str(query)]
    for place, labels in enumerate(("no", "yes", "both")):
        path = tmp_path / f"{place}.csv"
        rows = [
            f"{age},{labels if labels != 'both' else ('no', 'yes')[age % 2]}"
            for age in range(20, 60)
        ]
        path.write_text("\n".join(["age,sick", *rows]))
        options += ["--data", str(path)]
    return options


def test_tables_are_described_together(tmp_path: Path) -> None:
    """For people, and as JSON."""
    options = silos(tmp_path)
    done = CliRunner().invoke(app, ["stats", "describe", *options])
    assert done.exit_code == 0, done.output
    assert "120 rows" in done.stdout
    assert "age: 0 missing, mean 39.5, sd 11.5434" in done.stdout
    assert "bins [0, 25) 15, [25, 50) 75, [50, 75) 30, [75, 100] 0" in done.stdout
    assert "sick: no 60, yes 60, other 0, missing 0" in done.stdout
    done = CliRunner().invoke(app, ["stats", "describe", *options, "--json"])
    facts = json.loads(done.stdout)
    assert facts["numeric"]["age"]["quartiles"][1] == pytest.approx(40)
    assert facts["numeric"]["age"]["histogram"] == [15, 75, 30, 0]


def test_advice_gives_its_reasons(tmp_path: Path) -> None:
    """The baseline is named once; unequal work rules control variates out."""
    asked = ["stats", "advise", *silos(tmp_path), "--target", "sick", "--parameters", "2"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Start with scaffold.\n  Skew is")
    assert done.stdout.count("Run FedAvg beside it") == 1
    done = CliRunner().invoke(app, [*asked, "--unequal-work", "--json"])
    assert json.loads(done.stdout)["algorithm"] == "fedprox"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[numbers]]\nname = 'a'", "numbers: unknown key; did you mean numeric"),
        ("[[numeric]]\nname = 'a'\nwidth = 2", "width"),
        ("not toml", "expected"),
    ],
)
def test_a_query_that_is_none_is_refused(tmp_path: Path, content: str, message: str) -> None:
    """With the file's name."""
    options = silos(tmp_path)
    Path(options[1]).write_text(content)
    done = CliRunner().invoke(app, ["stats", "describe", *options])
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
    Path(options[1]).unlink()
    done = CliRunner().invoke(app, ["stats", "describe", *options])
    assert isinstance(done.exception, ConfigError)

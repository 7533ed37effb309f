"""`secagg stats` before any round: settings, what a silo answers, and half questions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dp.plan import Adjacency
from fl.errors import QueryRefusedError, SchemaError
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.privacy import privacy_of
from fl.query_plan import QueryKind, QueryPlan
from services.cli.main import app
from services.config import SiloConfig
from services.errors import ConfigError
from services.plans import build_plan, plan_of, read_run
from services.query_config import QueryConfig
from services.run_config import RunConfig
from services.settings import parse_config
from services.silo.statistics import check_moments, check_query, query_table

COLUMNS = """
[[numeric]]
name = "age"
low = 0
high = 100
bins = 4

[[categorical]]
name = "sex"
categories = ["f", "m"]
"""
SILO = 'coordinator = "127.0.0.1:1"\ndirectory = "keys"\nstorage = "storage"\n'
TABLE = '[data]\nfile = "rows.csv"\n'
BUDGET = (
    '[privacy]\ndata_set = "cohort"\nunit = "record"\nadjacency = "zero_out"\n'
    "epsilon = 2.0\ndelta = 1e-6\npersons = 60\nmost_units = 100\n"
)


def config(text: str) -> RunConfig | QueryConfig:
    """Read a run's settings."""
    return read_run(text.encode(), source="a run")


def plan(tables: str = "") -> QueryPlan:
    """The plan of the columns with these tables behind them, over a roster of four."""
    made = plan_of(config(f'{COLUMNS}[run]\nname = "look"\n{tables}'), max_silos=4)
    assert isinstance(made, QueryPlan)
    return made


NOISED = '[noise]\nz = 4.0\ndelta = 1e-6\nadjacency = "zero_out"\nmost_rows = 100\n'
ADVISED = '[advise]\ntarget = "sex"\nparameters = 3\n'


def test_settings_become_the_plan_that_silos_check() -> None:
    """Exact, noised for the silos that are waited for, or an advice."""
    assert plan() == QueryPlan(kind=QueryKind.DESCRIBE, query=plan().query, max_silos=4)
    noised = plan(NOISED)
    privacy = privacy_of(noised)
    assert privacy is not None
    assert (privacy.z, privacy.adjacency) == (4.0, Adjacency.ZERO_OUT)
    assert (privacy.cohort_size, privacy.max_units_per_silo) == (4, 100)
    three = plan_of(config(f'{COLUMNS}[run]\nname = "look"\nmin_silos = 3\n{NOISED}'), max_silos=4)
    fewer = privacy_of(three)
    assert fewer is not None
    assert fewer.cohort_size == 3
    assert (plan(ADVISED).kind, plan(ADVISED).target) == (QueryKind.ADVISE, "sex")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (COLUMNS, "run: expected a value"),
        (f'{COLUMNS}[run]\nname = "a"\nrounds = 3\n', "run.rounds: unknown key"),
        (f'{COLUMNS}[run]\nname = "a"\n{NOISED}{ADVISED}', "advise asks exact sums"),
        (f'{COLUMNS}[run]\nname = "a"\n{NOISED.replace("zero_out", "near")}', "noise.adjacency"),
        (f'{COLUMNS}[run]\nname = "a"\n{ADVISED.replace("sex", "age")}', "no categorical column"),
        (f'{COLUMNS}[run]\nname = "a"\n'.replace("bins = 4", "bins = 0"), "bins"),
        (f'{COLUMNS}[run]\nname = "a"\n'.replace("bins =", "buns ="), "buns"),
        ("numeric = 3", "numeric"),
        ("categorical = [", "expected TOML"),
    ],
    ids=["run", "rounds", "both", "adjacency", "target", "bins", "key", "list", "toml"],
)
def test_settings_that_cannot_be_are_named(text: str, message: str) -> None:
    """By the key, before any silo is asked."""
    with pytest.raises(ConfigError, match=message):
        plan_of(config(text), max_silos=4)


def test_a_statistics_run_is_taken_for_no_other_file() -> None:
    """Whoever mistypes an option is not sent to look for another kind of settings."""
    with pytest.raises(ConfigError, match=r"noise\.z: expected greater than 0") as caught:
        config(f'{COLUMNS}[run]\nname = "a"\n{NOISED.replace("z = 4.0", "z = -4.0")}')
    assert "looks like" not in str(caught.value)


def silo(*parts: str, rule: str = "", columns: str = "") -> SiloConfig:
    """A silo's settings."""
    lines = [f'statistics = "{rule}"\n'] if rule else []
    lines += [f"statistics_columns = {columns}\n"] if columns else []
    policy = "".join(["[policy]\n", *lines]) if lines else ""
    text = "".join([SILO, *parts, policy])
    return parse_config(text.encode(), SiloConfig, source="silo.toml", base=Path("/base"))


BOTH = '["sex", "age"]'


@pytest.mark.parametrize(
    ("settings", "exact", "noised"),
    [
        (silo(TABLE), False, True),
        (silo(TABLE, columns=BOTH), False, True),
        (silo(TABLE, rule="exact", columns=BOTH), True, True),
        (silo(TABLE, rule="noised"), False, True),
        (silo(TABLE, rule="refuse"), False, False),
        (silo(TABLE, BUDGET), False, True),
        (silo(TABLE, BUDGET, rule="exact", columns=BOTH), False, True),
        (silo(TABLE, BUDGET, rule="refuse"), False, False),
    ],
    ids=[
        "default",
        "columns",
        "exact",
        "noised",
        "refuse",
        "budget",
        "budget-exact",
        "budget-refuse",
    ],
)
def test_a_silos_settings_decide_what_it_answers(
    settings: SiloConfig, exact: bool, noised: bool
) -> None:
    """A rule can only tighten: no setting makes exact sums of a data set that has a budget."""
    for asked, is_fine in ((plan(), exact), (plan(ADVISED), exact), (plan(NOISED), noised)):
        if is_fine:
            check_query(asked, settings)
            continue
        with pytest.raises(QueryRefusedError) as refused:
            check_query(asked, settings)
        if noised:
            assert "--most-rows" in str(refused.value)
            assert ("advise asks" in str(refused.value)) == (asked.kind is QueryKind.ADVISE)


def test_a_silo_answers_about_the_columns_that_it_names_only() -> None:
    """Whatever the noise: a name or an address is nobody's statistics."""
    one = '["age"]'
    for columns, is_fine in ((BOTH, True), (one, False), ("[]", False)):
        settings = silo(TABLE, rule="exact", columns=columns)
        for asked in (plan(), plan(NOISED)):
            if is_fine:
                check_query(asked, settings)
                continue
            with pytest.raises(QueryRefusedError, match=r"statistics_columns.*names .*sex"):
                check_query(asked, settings)


def test_exact_sums_are_of_columns_that_the_silo_names() -> None:
    """A column of names is in the table; unless the silo's owner lists it, nobody counts in it."""
    settings = silo(TABLE, rule="exact")
    for asked in (plan(), plan(ADVISED)):
        with pytest.raises(QueryRefusedError, match="statistics_columns: exact sums only of"):
            check_query(asked, settings)
    check_query(plan(NOISED), settings)


TRAINING = """
[run]
name = "toy"
rounds = 1
[local]
steps = 1
learning_rate = 0.1
[task]
{standardize}
target = {{ name = "sick", classes = ["no", "yes"] }}
features = [
  {{ name = "age" }}, {{ name = "bmi" }},
  {{ name = "sex", kind = "categorical", categories = ["f", "m"] }},
]
"""
MOMENTS = '["bmi", "age"]'


@pytest.mark.parametrize(
    ("rule", "columns", "refusal"),
    [
        ("", "", "statistics = noised"),
        ("noised", MOMENTS, "statistics = noised"),
        ("refuse", MOMENTS, "statistics = refuse"),
        ("exact", "", "statistics_columns: it does not name age, bmi"),
        ("exact", '["age", "sex"]', "statistics_columns: it does not name bmi"),
        ("exact", MOMENTS, ""),
    ],
)
def test_moments_of_a_training_run_are_exact_statistics(
    rule: str, columns: str, refusal: str
) -> None:
    """What a silo does not tell a query, it tells no run's first round either."""
    settings = silo(TABLE, rule=rule, columns=columns)
    for line, is_exact in (("", True), ("standardize = false", False)):
        text = TRAINING.format(standardize=line).encode()
        run = parse_config(text, RunConfig, source="run.toml", base=Path("/base"))
        asked = build_plan(run, max_silos=4)
        assert asked.standardize == is_exact
        if not (is_exact and refusal):
            check_moments(asked, settings)
            continue
        with pytest.raises(QueryRefusedError, match=refusal):
            check_moments(asked, settings)


def test_moments_of_an_own_task_are_asked_by_nobody_honest() -> None:
    """Only a table's columns have names that a silo can allow."""
    text = SILO + 'task = "a.b:c"\n[policy]\nstatistics = "exact"\n'
    settings = parse_config(text.encode(), SiloConfig, source="silo.toml", base=Path("/base"))
    asked = TrainingPlan(
        task=TaskPlan(name="a.b:c"),
        local=LocalPlan(local_steps=1, learning_rate=0.1),
        rounds=1,
        max_silos=4,
        standardize=True,
    )
    with pytest.raises(QueryRefusedError, match="own task"):
        check_moments(asked, settings)
    check_moments(replace(asked, standardize=False), settings)


def test_the_table_is_the_one_that_is_trained_on(tmp_path: Path) -> None:
    """Of [data]; an own task has none, and what does not fit is named without a cell."""
    path = tmp_path / "rows.csv"
    path.write_text("age,sex\n40,f\n,m\n", "utf-8")
    settings = silo(TABLE.replace("rows.csv", str(path)))
    found = query_table(plan().query, settings)
    assert list(found["sex"]) == ["f", "m"]
    path.write_text("age,sex\nsecret,f\n", "utf-8")
    with pytest.raises(SchemaError, match="'age': 1 cell") as caught:
        query_table(plan().query, settings)
    assert "secret" not in str(caught.value)
    with pytest.raises(QueryRefusedError, match=r"serves task 'a\.b:c'"):
        query_table(plan().query, silo('task = "a.b:c"\n'))


def ask(home: Path, *arguments: str) -> Result:
    """Run a command on the columns."""
    columns = home / "columns.toml"
    columns.write_text(COLUMNS, "utf-8")
    command, *options = arguments
    return CliRunner().invoke(app, ["stats", command, "-q", str(columns), *options])


def files(home: Path) -> list[str]:
    """Three silos' files as options."""
    found = []
    for number in range(3):
        path = home / f"{number}.csv"
        rows = [f"{40 + number + row},{'fm'[row % 2]}" for row in range(20)]
        path.write_text("\n".join(["age,sex", *rows]) + "\n", "utf-8")
        found += ["--data", str(path)]
    return found


def test_files_are_asked_in_this_process(tmp_path: Path) -> None:
    """With --data nothing else is needed, and nothing is charged."""
    described = ask(tmp_path, "describe", *files(tmp_path), "--json")
    assert described.exit_code == 0, described.output
    assert json.loads(described.stdout)["rows"] == 60
    options = ("--target", "sex", "--parameters", "3", "--json")
    advised = ask(tmp_path, "advise", *files(tmp_path), *options)
    assert json.loads(advised.stdout)["algorithm"] == "fedavg"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--adjacency", "zero_out"), "go with --z"),
        (("--budget", "3"), "go with --z"),
        (("--z", "4"), "--z goes with --adjacency"),
        (("--z", "4", "--adjacency", "neighborly"), "noise.adjacency"),
        (("--z", "4", "--adjacency", "zero_out", "--data", "a.csv"), "not with --data"),
        (("--operator", "nowhere.toml"), "nowhere.toml"),
    ],
    ids=["adjacency", "budget", "no-adjacency", "neighborly", "data", "operator"],
)
def test_half_questions_are_refused(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    """By name, before anybody is asked."""
    done = ask(tmp_path, "describe", *options)
    assert done.exit_code != 0
    assert message in str(done.exception) + done.output

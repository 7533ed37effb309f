"""The look before joining: what `silo join` would refuse, `silo check` says first."""

import os
import shutil
from pathlib import Path

import pytest

from services.clock import utc_now
from services.config import SiloConfig
from services.settings import parse_config
from services.silo.check import Finding, check_silo, released_models
from services.testing import LocalFederation, make_federation


@pytest.fixture
def federation(tmp_path: Path) -> LocalFederation:
    """Two silos with keys."""
    return make_federation(tmp_path, silos=("silo-1", "silo-2"), now=utc_now())


def _look(
    federation: LocalFederation,
    task: str = "fl.testing:toy_task",
    *,
    policy: str = "",
    ask: str = "",
) -> dict[str, str]:
    """What is wrong with silo 1, by what was looked at."""
    text = f'coordinator = "127.0.0.1:1"\ndirectory = "silo-1"\nstorage = "s"\ntask = "{task}"\n'
    text += f"[policy]\n{policy}\n"
    config = parse_config(text.encode(), SiloConfig, source="silo.toml", base=federation.root)
    run = federation.root / "run.toml"
    run.write_text(
        '[run]\nname = "toy"\nrounds = 1\n[local]\nsteps = 1\nlearning_rate = 0.1\n'
        f'[task]\nname = "{task}"\n{ask}\n',
        encoding="utf-8",
    )
    return {one.what: one.finding for one in check_silo(config, run) if not one.is_fine}


def test_nothing_is_wrong_but_that_nobody_listens(federation: LocalFederation) -> None:
    """The control."""
    assert set(_look(federation)) == {"connection"}


def test_another_silos_identity_key_is_found(federation: LocalFederation) -> None:
    """A copied key is not the one that the roster binds to this name."""
    shutil.copy(federation.folder("silo-2") / "identity.key", federation.folder("silo-1"))
    assert "another identity key for silo silo-1" in _look(federation)["roster"]


def test_another_silos_tls_key_is_found(federation: LocalFederation) -> None:
    """Nor does a certificate belong to it."""
    shutil.copy(federation.folder("silo-2") / "tls.key", federation.folder("silo-1"))
    assert "does not belong to tls.key" in _look(federation)["certificate"]


def test_a_factory_that_fails_is_a_finding(
    federation: LocalFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own text may quote data; type and place are enough to go on."""
    (tmp_path / "failing_task_of_a_test.py").write_text(
        'def make(settings):\n    raise RuntimeError("patient 4711")\n', encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = _look(federation, "failing_task_of_a_test:make")["data"]
    assert "RuntimeError at failing_task_of_a_test.py:2" in found
    assert "4711" not in found


@pytest.mark.parametrize(
    ("policy", "ask", "rule"),
    [
        ("", "[recompute]\nredundancy = 2", "max_redundancy: expected at most 0"),
        ("max_redundancy = 2\nmin_redundancy = 1", "", "min_redundancy: expected at least 1"),
        ("h_dp = 2", "", "h_dp: expected at least 2"),
        (f'privacy_plans = ["{"0" * 64}"]', "", "privacy_plans"),
    ],
)
def test_a_run_that_the_policy_refuses_is_found(
    federation: LocalFederation, policy: str, ask: str, rule: str
) -> None:
    """Before a round is refused for it."""
    assert rule in _look(federation, policy=policy, ask=ask)["run"]


def test_a_run_without_a_plan_at_a_data_set_with_a_budget(federation: LocalFederation) -> None:
    """The silo would refuse every round of it."""
    budget = (
        '[privacy]\ndata_set = "cohort"\nunit = "record"\nadjacency = "zero_out"\n'
        "epsilon = 2.0\ndelta = 1e-6\npersons = 60\nmost_units = 60\n"
    )
    assert "the run has no privacy plan" in _look(federation, policy=budget)["run"]


DECLARED = (
    '[privacy]\ndata_set = "cohort"\nunit = "record"\nadjacency = "zero_out"\n'
    "epsilon = 2.0\ndelta = 1e-6\npersons = 60\nmost_units = {}\n"
)
RECORDS = (
    '[privacy]\nmode = "isrl"\nadjacency = "zero_out"\nclip = 1.0\nz = 5.0\ndelta = 1e-6\n'
    "dimension = 1\nmax_units_per_silo = 50"
)


@pytest.mark.parametrize(("declared", "is_fine"), [(50, True), (51, False)])
def test_a_plan_for_smaller_silos_than_this_one_declares(
    federation: LocalFederation, declared: int, is_fine: bool
) -> None:
    """The silo would refuse to sign it."""
    found = _look(federation, policy=DECLARED.format(declared), ask=RECORDS)
    assert ("run" not in found) == is_fine
    assert is_fine or "declares up to 51 units of the kind record" in found["run"]


@pytest.mark.parametrize(("declared", "is_fine"), [(4, True), (3, False)])
def test_a_table_that_has_outgrown_what_is_declared(
    federation: LocalFederation, declared: int, is_fine: bool
) -> None:
    """The operator hears it before every private run fails."""
    found = _data(federation, None, settings=DECLARED.format(declared))
    assert found.is_fine == is_fine
    assert is_fine or "more rows than the 3 that its [privacy] declares" in found.finding


def test_a_run_that_the_policy_allows_is_fine(federation: LocalFederation) -> None:
    """The control."""
    found = _look(federation, policy="max_redundancy = 2", ask="[recompute]\nredundancy = 2")
    assert set(found) == {"connection"}


ROWS = "age,bmi,sick\n50,20,no\n ,21,yes\nnan,22,no\n60,,yes\n"
FEATURES = '[task]\nfeatures = [{{ name = "age"{} }}, {{ name = "bmi", missing = "zero" }}]\n'


def _data(
    federation: LocalFederation, age: str | None, rows: str = ROWS, settings: str = ""
) -> Finding:
    """What is found in a file with cells that have no value; None for no run's schema."""
    (federation.root / "rows.csv").write_text(rows, "utf-8")
    text = (
        'coordinator = "127.0.0.1:1"\ndirectory = "silo-1"\nstorage = "s"\n'
        f'data = {{ file = "rows.csv" }}\n{settings}'
    )
    config = parse_config(text.encode(), SiloConfig, source="silo.toml", base=federation.root)
    if age is None:
        return {one.what: one for one in check_silo(config, None)}["data"]
    run = federation.root / "run.toml"
    run.write_text(
        '[run]\nname = "toy"\nrounds = 1\n[local]\nsteps = 1\nlearning_rate = 0.1\n'
        f"{FEATURES.format(age)}"
        'target = { name = "sick", classes = ["no", "yes"] }\n',
        encoding="utf-8",
    )
    return {one.what: one for one in check_silo(config, run)}["data"]


def test_cells_without_a_value_are_refused_unless_the_schema_fills_them(
    federation: LocalFederation,
) -> None:
    """By column and line, with what may be done about it."""
    found = _data(federation, "")
    assert not found.is_fine
    assert "column 'age': 2 cells (line 3, 4) missing, which the schema refuses" in found.finding
    assert "missing = 'mean' or 'zero'" in found.finding
    assert "bmi" not in found.finding, "which the schema fills"


def test_cells_that_are_filled_are_named(federation: LocalFederation) -> None:
    """Whoever owns the file should know."""
    found = _data(federation, ', missing = "mean"')
    assert found.is_fine
    assert "column 'age': 2 cells (line 3, 4) missing, taken as the mean of" in found.finding
    assert "column 'bmi': 1 cell (line 5) missing, taken as 0" in found.finding


def test_a_file_is_looked_at_without_a_run(federation: LocalFederation) -> None:
    """Its form, and what it lacks; a schema comes with a run."""
    found = _data(federation, None)
    assert found.is_fine
    assert "columns age, bmi, sick" in found.finding
    assert "column 'bmi': 1 cell (line 5) without a value" in found.finding
    assert "line 3: expected 2 cells" in _data(federation, None, "a,b\n1,2\n3\n").finding


def test_what_runs_have_left_is_listed_the_newest_first(tmp_path: Path) -> None:
    """With the operator's name where it is known; no name can move a terminal's cursor."""
    files = {"ff": "old", "0a": "", "11": "new\n\x1b[2J\u202e"}
    for hour, (run, name) in enumerate(files.items()):
        path = tmp_path / "runs" / (run * 16) / "model.safetensors"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
        os.utime(path, (3600 * hour, 3600 * hour))
        if name:
            path.with_name("name").write_text(name, "utf-8")
    kept = released_models(tmp_path)
    assert [one.run[:2] for one in kept] == ["11", "0a", "ff"]
    newest, unnamed, oldest = map(str, kept)
    assert newest.startswith(f"1970-01-01T02:00:00+00:00  run {'11' * 16} (new??[2J?): {tmp_path}")
    assert f"run {'0a' * 16}: {tmp_path}" in unnamed
    assert " (old): " in oldest

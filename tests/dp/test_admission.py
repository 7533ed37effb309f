"""The table of algorithms and modes, cell by cell."""

import re
from pathlib import Path
from typing import Any

import pytest

from dp.admission import Algorithm, Feature, check_algorithm, refusal
from dp.errors import PlanError
from dp.plan import Adjacency, Mode, PrivacyPlan, Unit, Weights

BASE: dict[str, Any] = {
    "adjacency": Adjacency.ZERO_OUT, "clip": 1.0, "z": 4.0, "rounds": 50, "delta": 1e-5,
    "dimension": 20, "cohort_size": 10, "denominator": 10.0,
}  # fmt: skip
RING = {"n_c": 3, "h_dp": 4}
PLANS: dict[Mode, dict[str, Any]] = {
    Mode.CENTRAL: {"unit": Unit.SILO},
    Mode.SILO: {"unit": Unit.SILO, **RING},
    Mode.FEDSGD: {"unit": Unit.RECORD, **RING},
    Mode.PATIENT: {"unit": Unit.PATIENT, **RING},
    Mode.ISRL: {"unit": Unit.RECORD},
}
# The table of algorithms.md where it is built (docs/adr/0018): which modes run what, y or –.
TABLE = {
    "fedsgd": "y y y – y", "fedavg": "y y – y y", "fedprox": "y y – – –", "fedavgm": "y y – y y",
    "fedadagrad": "y y – y y", "fedadam": "y y – y y", "fedyogi": "y y – y y",
    "scaffold": "y y – – y", "fednova": "y y – y y", "qfedavg": "– – – – –", "afl": "– – – – –",
}  # fmt: skip
# What silo units may do, and what record and patient units may not (privacy.md 5.3, 5.4).
FEATURES = {
    "work.kind": "– – – – –", "local.optimizer": "y y – – –", "local.proximal": "y y – – –",
    "algorithm_settings.option": "– – – – –", "max_refreshes": "– – – – –",
    "personal": "y y – – –", "compression.rotate": "– – – – –", "compression.block": "– – – – –",
    "compression.feedback": "– – – – –", "standardize": "– – – – –", "metrics": "– – – – –",
    "early_stop.patience": "– – – – –",
}  # fmt: skip
DOCS = Path(__file__).parents[2] / "docs"


def plan(mode: Mode, **changes: Any) -> PrivacyPlan:
    """A plan of this mode."""
    return PrivacyPlan(**{**BASE, "mode": mode, **PLANS[mode], **changes})


def cells(table: dict[str, str]) -> list[tuple[str, Mode, bool]]:
    """Every cell: name, mode, allowed."""
    return [
        (name, mode, cell == "y")
        for name, line in table.items()
        for mode, cell in zip(Mode, line.split(), strict=True)
    ]


def test_the_tables_are_complete() -> None:
    """Every algorithm and every feature has its line."""
    assert set(TABLE) == set(Algorithm)
    assert set(FEATURES) == set(Feature)


@pytest.mark.parametrize(("name", "mode", "allowed"), cells(TABLE))
def test_algorithms_by_mode(name: str, mode: Mode, allowed: bool) -> None:
    """Allowed, or refused with a reason that names both."""
    algorithm = Algorithm(name)
    if allowed:
        check_algorithm(plan(mode), algorithm)
        assert refusal(algorithm, mode) is None
        return
    with pytest.raises(PlanError, match=f"{name} is refused in mode {mode}: .+"):
        check_algorithm(plan(mode), algorithm)
    assert refusal(algorithm, mode)


@pytest.mark.parametrize(("name", "mode", "allowed"), cells(FEATURES))
def test_features_by_mode(name: str, mode: Mode, allowed: bool) -> None:
    """The state rule, under an algorithm that the mode runs."""
    algorithm = Algorithm.FEDSGD if mode is Mode.FEDSGD else Algorithm.FEDAVG
    if allowed:
        check_algorithm(plan(mode), algorithm, [Feature(name)])
        assert refusal(Feature(name), mode) is None
        return
    with pytest.raises(PlanError, match=f"{name} is refused in mode {mode}: .+"):
        check_algorithm(plan(mode), algorithm, [Feature(name)])


def test_constants_that_an_algorithm_needs() -> None:
    """One step for FedSGD, weights of 1 for SCAFFOLD, a constant sum for FedNova."""
    with pytest.raises(PlanError, match="one step"):
        check_algorithm(plan(Mode.SILO, local_steps=2), Algorithm.FEDSGD)
    with pytest.raises(PlanError, match="uniform"):
        check_algorithm(plan(Mode.SILO, weights=Weights.DECLARED), Algorithm.SCAFFOLD)
    hidden = plan(Mode.SILO, weights=Weights.HIDDEN)
    with pytest.raises(PlanError, match="constant"):
        check_algorithm(hidden, Algorithm.FEDNOVA)
    check_algorithm(hidden, Algorithm.FEDAVG)
    check_algorithm(plan(Mode.ISRL, local_steps=5), Algorithm.SCAFFOLD)


def documented(page: str) -> dict[str, list[str]]:
    """The rows of the page's table of modes, by the names in their first cell."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    start = lines.index("| | none | central | silo | fedsgd | patient | isrl |")
    rows: dict[str, list[str]] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, none, *cells_of = (cell.strip() for cell in line.strip("|").split("|"))
        assert none == "yes"
        rows |= dict.fromkeys(re.findall("`([^`]+)`", first), cells_of)
    return rows


@pytest.mark.parametrize("page", ["privacy.md", "algorithms.md"])
def test_both_pages_show_this_table(page: str) -> None:
    """Cell by cell, and nothing that the code does not know."""
    rows = documented(page)
    assert rows.pop("fedbn") == rows["personal"]
    known: dict[str, Algorithm | Feature] = {str(one): one for one in (*Algorithm, *Feature)}
    assert set(rows) == set(known)
    for name, shown in rows.items():
        assert shown == ["–" if refusal(known[name], mode) else "yes" for mode in Mode], name

"""Each reproduction from files to report, on tiny made-up data: what is run, not what is found."""

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fl.reproduce import compression, dropouts, mcmahan, scaffold, toy
from fl.reproduce.catalog import CATALOG
from fl.reproduce.objectives import Dense
from fl.reproduce.session import Session

HOSPITALS = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files in the forms of the public sets."""
    folder = tmp_path_factory.mktemp("data")
    draws = np.random.default_rng(0)
    write(folder / "fed_heart_disease" / "heart_disease.csv", "\n".join(hearts(draws)))
    write(folder / "fed_tcga_brca" / "brca.csv", "\n".join(patients(draws)))
    folds = [f"P{row},{part},{part}_{row % 6}" for row, part in enumerate(parts(72))]
    write(folder / "fed_tcga_brca" / "train_test_split.csv", "\n".join(["pid,fold,fold2", *folds]))
    write(folder / "adult_income" / "adult.csv.gz", "\n".join(adults(draws)))
    for name in ("mnist", "fashion_mnist"):
        for part, rows in (("train", 1000), ("t10k", 100)):
            labels = np.arange(rows, dtype=np.uint8) % 10
            pixels = draws.integers(0, 60, (rows, 784), dtype=np.uint8)
            pixels[np.arange(rows), labels * 70] = 255
            for kind, header, values in (
                ("images-idx3", 16, pixels),
                ("labels-idx1", 8, labels),
            ):
                path = folder / name / f"{part}-{kind}-ubyte.gz"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(gzip.compress(bytes(header) + values.tobytes()))
    return folder


def write(path: Path, text: str) -> None:
    """Write a text file, packed if its name says so."""
    path.parent.mkdir(exist_ok=True)
    content = text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def parts(rows: int) -> list[str]:
    """Two thirds train, one third test."""
    return ["test" if row % 18 >= 12 else "train" for row in range(rows)]


def hearts(draws: np.random.Generator) -> Iterator[str]:
    """Four hospitals of 18 rows, and one row that is left out."""
    yield (
        "hospital_id,age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,num,flamby_split"
    )
    yield "0,,,,,,,,,,,0,"
    for row, part in enumerate(parts(18 * HOSPITALS)):
        sick = int(draws.integers(2))
        numbers = draws.normal(size=6).round(3)
        age, pressure, fat, pulse, angina, peak = (*numbers[:5], numbers[5] + 2 * sick)
        yield (
            f"{row // 18},{age},{row % 2},{1 + row % 4},{pressure},{fat},{row % 2},{row % 3},"
            f"{pulse},{angina},{peak},{2 * sick},{part}"
        )


def patients(draws: np.random.Generator) -> Iterator[str]:
    """Rows with 39 features; half have an event."""
    yield ",".join(["pid", *(f"f{place}" for place in range(39)), "E", "T"])
    yield ",".join(["unknown", *["0"] * 41])
    for row in range(72):
        features = draws.integers(0, 2, 39)
        yield ",".join([f"P{row}", *map(str, features), str(row % 2), str(1 + draws.integers(999))])


def adults(draws: np.random.Generator) -> Iterator[str]:
    """Eighty rows, a quarter of them doctors."""
    yield (
        "age,workclass,fnlwgt,education,education_num,marital_status,occupation,relationship,race,"
        "sex,capital_gain,capital_loss,hours_per_week,native_country,income,split"
    )
    for row in range(80):
        school = "Doctorate" if row % 4 == 0 else "HS-grad"
        income = ">50K" if draws.random() < 0.4 else "<=50K"
        age, gain, loss, hours = draws.integers(1, 60, 4)
        part = "test" if row % 5 == 0 else "train"
        yield (
            f"{age},Private,1,{school},{row % 9},Single,Sales,Own,White,{'MF'[row % 2]},{gain},"
            f"{loss},{hours},Peru,{income},{part}"
        )


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rounds and smaller models; the settings' own figures are the commands' business."""
    monkeypatch.setattr(toy, "_ROUNDS", 61)
    monkeypatch.setattr(toy, "_QUICK_SECURE", 2)
    for name in ("_FALLING", "_CONSTANT"):
        course = replace(getattr(dropouts, name), quick_rounds=2)
        monkeypatch.setattr(dropouts, name, course)
    monkeypatch.setattr(compression, "_QUICK", (2, 2))
    monkeypatch.setattr(scaffold, "_CAP", 3)
    monkeypatch.setattr(scaffold, "_QUICK_CAP", 2)
    monkeypatch.setattr(scaffold, "_PUBLISHED", {(0.0, 5): (152, 428), (1.0, 5): (10, 10)})
    small = Dense(sizes=(784, 8, 10))
    for module in (mcmahan, compression):
        monkeypatch.setattr(module, "TWO_LAYERS", small)


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_each_reproduction_reports(name: str, data: Path, tmp_path: Path) -> None:
    """The short form, twice: the second time everything is there."""
    told: list[str] = []
    session = Session(
        tmp_path, data=data, tell=told.append, clock=lambda: 0.0, is_quick=True, seeds=1
    )
    first = CATALOG[name].run(session)
    assert CATALOG[name].run(session) == first
    assert len(told) == session.kept
    assert first.name == name
    assert first.claims
    assert all(table.lines for table in first.tables)
    assert first.csv().count("\n") > 1
    assert CATALOG[name].seconds[True] <= CATALOG[name].seconds[False]


def test_step_sizes_are_tuned_on_a_seed_of_their_own(data: Path, tmp_path: Path) -> None:
    """The full form tries every step size in plain mode and takes one for the reported seeds."""
    session = Session(tmp_path, data=data, tell=print, clock=lambda: 0.0, seeds=1)
    scaffold.reproduce(session)
    names = [path.name for path in (tmp_path / "results").iterdir()]
    tuned = [name for name in names if name.endswith(("seed1000.json", "seed1001.json"))]
    assert len([name for name in tuned if name.endswith("seed1000.json")]) == 4 * 4
    assert 4 <= len([name for name in tuned if name.endswith("seed1001.json")]) <= 4 * 4
    secure = [name for name in names if name.endswith("-secure.json")]
    assert len(secure) == 4
    assert len(names) - len(tuned) - len(secure) == 4


def test_dropouts_are_drawn_for_each_round() -> None:
    """Three different silos, in phases before the sum, not the same ones every time."""
    drawn = dropouts._drawn(20, 10, 3, seed=0)
    assert all(len(gone) == 3 for gone in drawn.values())
    assert len({tuple(sorted(gone)) for gone in drawn.values()}) > 10

"""The demo's patients: the breast-cancer measurements inside scikit-learn, five hospitals.

569 patients, 30 measurements of cell nuclei, benign or malignant (Wolberg, Street and Mangasarian
1995). A quarter, drawn by the seed, is kept by the demo as the test part; the rest goes to five
unequal hospitals by the rule of `fl.skew`, skewed in labels and in the mean radius.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl.seeding import generator
from fl.skew import SkewRule, skewed
from services.errors import ServiceError

HOSPITALS: Final = tuple(f"hospital-{letter}" for letter in "abcde")
TARGET: Final = "diagnosis"
_TEST_SHARE: Final = 0.25
_SKEW_FEATURE: Final = "mean radius"


class ExtraMissingError(ServiceError):
    """A command needs an optional dependency that is not installed."""

    code = "EXTRA_MISSING"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoData:
    """Where the tables lie.

    Attributes:
        hospitals: each hospital's CSV file.
        test: the part that no hospital has.
        pooled: all hospitals' rows in one file, for the comparison only.
        features: the columns' names.
        weights: each hospital's class of size.
    """

    hospitals: dict[str, Path]
    test: Path
    pooled: Path
    features: tuple[str, ...]
    weights: dict[str, float]


def write_data(folder: Path, seed: int) -> DemoData:
    """Split the patients and write the CSV files.

    Raises:
        ExtraMissingError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError as error:
        raise ExtraMissingError(
            "the demo's patients come with scikit-learn, which is not installed",
            hint="pip install 'secagg[demo]'",
        ) from error
    bunch = load_breast_cancer()
    values = np.asarray(bunch.data, dtype=np.float64)
    names = tuple(str(name) for name in bunch.feature_names)
    classes = [str(name) for name in bunch.target_names]
    labels = np.array([classes[label] == "malignant" for label in bunch.target], dtype=np.int64)
    order = generator(seed, "demo", "test").permutation(len(labels))
    cut = round(_TEST_SHARE * len(labels))
    test, train = np.sort(order[:cut]), np.sort(order[cut:])
    feature = values[train, names.index(_SKEW_FEATURE)]
    parts = skewed(labels[train], feature, rule=SkewRule(), seed=seed)
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, rows: NDArray[np.int64]) -> Path:
        return _write_csv(folder / f"{name}.csv", names, values[rows], labels[rows])

    return DemoData(
        hospitals={
            name: write(name, train[rows]) for name, rows in zip(HOSPITALS, parts, strict=True)
        },
        test=write("test", test),
        pooled=write("pooled", train),
        features=names,
        weights=_size_classes(parts),
    )


def run_toml(
    algorithm: str,
    features: Sequence[str],
    *,
    rounds: int,
    seed: int,
    weights: Mapping[str, float],
) -> str:
    """The run's settings, as an operator would write them.

    Args:
        algorithm: its name.
        features: of the schema.
        rounds: of training.
        seed: of the model.
        weights: the hospitals' public classes of size; their row counts stay with them.
    """
    lines = [
        "[run]",
        f'name = "breast cancer, {algorithm}"',
        f"rounds = {rounds}",
        f"min_silos = {len(HOSPITALS)}",
        f"seed = {seed}",
        "",
        "[algorithm]",
        f'name = "{algorithm}"',
        "",
        "[local]",
        "steps = 40",
        "batch_size = 0",
        "learning_rate = 1.0",
        "",
        "[weights]",
        'kind = "declared"',
        "",
        "[weights.declared]",
        *(f"{name} = {weight}" for name, weight in weights.items()),
        "",
        "[task]",
        'name = "tabular"',
        'model = "logistic"',
        "",
        "[task.target]",
        f'name = "{TARGET}"',
        'classes = ["benign", "malignant"]',
    ]
    for name in features:
        lines += ["", "[[task.features]]", f"name = {json.dumps(name)}", 'kind = "numeric"']
    return "\n".join(lines) + "\n"


def _size_classes(parts: Sequence[NDArray[np.int64]]) -> dict[str, float]:
    """Classes as hospitals might agree on: quarters of the largest one."""
    largest = max(map(len, parts))
    quarters = [max(round(4 * len(rows) / largest), 1) for rows in parts]
    return {name: count / 4 for name, count in zip(HOSPITALS, quarters, strict=True)}


def _write_csv(
    path: Path,
    names: Sequence[str],
    values: NDArray[np.float64],
    labels: NDArray[np.int64],
) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow([*names, TARGET])
        for row, label in zip(values.tolist(), labels.tolist(), strict=True):
            writer.writerow([*map(repr, row), "malignant" if label else "benign"])
    return path

"""The public data sets of the reproductions, from files that are already here; nothing is loaded.

The folder and file names are those of the data's README.
"""

import csv
import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl.errors import DataError
from fl.reproduce.objectives import Reals

_HEART_NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")
_HEART_CLASSES = (("cp", (2, 3, 4)), ("restecg", (1, 2)))
_Target: TypeAlias = "float | tuple[float, float]"
_IMAGE_HEADER, _LABEL_HEADER = 16, 8  # of the IDX format, bytes
_ADULT_CLASSES = (
    "workclass",
    "education",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "native_country",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """Rows to train on and rows to test on.

    Attributes:
        inputs, targets: of the training rows.
        test_inputs, test_targets: of the test rows.
    """

    inputs: Reals
    targets: Reals
    test_inputs: Reals
    test_targets: Reals


def joined(parts: list[Split]) -> Split:
    """Return all parts' rows as one."""
    return Split(
        inputs=np.concatenate([part.inputs for part in parts]),
        targets=np.concatenate([part.targets for part in parts]),
        test_inputs=np.concatenate([part.test_inputs for part in parts]),
        test_targets=np.concatenate([part.test_targets for part in parts]),
    )


def standardized(part: Split) -> Split:
    """Return the part with its training rows' means taken off, over their deviations (ddof 1)."""
    mean, scale = part.inputs.mean(axis=0), part.inputs.std(axis=0, ddof=1)
    scale = np.where(scale > 0, scale, 1.0)
    return Split(
        inputs=(part.inputs - mean) / scale,
        targets=part.targets,
        test_inputs=(part.test_inputs - mean) / scale,
        test_targets=part.test_targets,
    )


def heart(data: Path) -> list[Split]:
    """Return Fed-Heart-Disease: four hospitals, FLamby's 13 raw features, target 0 or 1.

    Source: FLamby, Fed-Heart-Disease; UCI Heart Disease (Janosi et al. 1988).
    """
    hospitals: dict[int, list[tuple[list[float], _Target, bool]]] = {}
    for row in _rows(data / "fed_heart_disease" / "heart_disease.csv"):
        if not row["flamby_split"]:
            continue
        features = [float(row[name]) for name in _HEART_NUMBERS]
        for name, classes in _HEART_CLASSES:
            features += [float(float(row[name]) == one) for one in classes]
        ill = float(float(row["num"]) > 0)
        kept = hospitals.setdefault(int(row["hospital_id"]), [])
        kept.append((features, ill, row["flamby_split"] == "train"))
    return [_split(hospitals[number]) for number in sorted(hospitals)]


def tcga(data: Path) -> list[Split]:
    """Return Fed-TCGA-BRCA: six regions, 39 raw features, targets (event, days).

    Source: FLamby, Fed-TCGA-BRCA; The Cancer Genome Atlas.
    """
    folder = data / "fed_tcga_brca"
    fold = {row["pid"]: row["fold2"] for row in _rows(folder / "train_test_split.csv")}
    regions: dict[int, list[tuple[list[float], _Target, bool]]] = {}
    for row in _rows(folder / "brca.csv"):
        if row["pid"] not in fold:
            continue
        part, _, region = fold[row["pid"]].partition("_")
        features = [float(value) for name, value in row.items() if name not in ("pid", "E", "T")]
        kept = regions.setdefault(int(region), [])
        kept.append((features, (float(row["E"]), float(row["T"])), part == "train"))
    return [_split(regions[number]) for number in sorted(regions)]


def images(data: Path, name: str) -> Split:
    """Return MNIST ("mnist") or Fashion-MNIST ("fashion_mnist"), pixels in [0, 1] as float32."""
    folder = data / name
    return Split(
        inputs=_pixels(folder / "train-images-idx3-ubyte.gz"),
        targets=_labels(folder / "train-labels-idx1-ubyte.gz"),
        test_inputs=_pixels(folder / "t10k-images-idx3-ubyte.gz"),
        test_targets=_labels(folder / "t10k-labels-idx1-ubyte.gz"),
    )


def adult(data: Path) -> dict[str, Split]:
    """Return Adult's two silos, "doctorate" and "rest", with its categorical columns alone.

    Source: UCI Adult (Becker and Kohavi 1996); split and features are those of Mohri et al. 2019.
    """
    rows = list(_rows(data / "adult_income" / "adult.csv.gz"))
    is_train = np.array([row["split"] == "train" for row in rows])
    columns: list[Reals] = []
    for name in _ADULT_CLASSES:
        texts = np.array([row[name] for row in rows])
        columns += [(texts == one).astype(np.float64) for one in np.unique(texts)]
    inputs = np.column_stack(columns)
    targets = np.array([float(row["income"] == ">50K") for row in rows])
    doctors = np.array([row["education"] == "Doctorate" for row in rows])
    return {
        name: Split(
            inputs=inputs[chosen & is_train],
            targets=targets[chosen & is_train],
            test_inputs=inputs[chosen & ~is_train],
            test_targets=targets[chosen & ~is_train],
        )
        for name, chosen in (("doctorate", doctors), ("rest", ~doctors))
    }


def _split(rows: Sequence[tuple[list[float], _Target, bool]]) -> Split:
    is_train = np.array([train for _, _, train in rows])
    inputs = np.array([features for features, _, _ in rows])
    targets = np.array([target for _, target, _ in rows])
    return Split(
        inputs=inputs[is_train],
        targets=targets[is_train],
        test_inputs=inputs[~is_train],
        test_targets=targets[~is_train],
    )


def _rows(path: Path) -> Iterator[Mapping[str, str]]:
    yield from csv.DictReader(_read(path).decode("utf-8").splitlines())


def _pixels(path: Path) -> Reals:
    raw = np.frombuffer(_read(path), dtype=np.uint8, offset=_IMAGE_HEADER)
    return raw.reshape(-1, 28 * 28).astype(np.float32) / np.float32(255)


def _labels(path: Path) -> Reals:
    labels: NDArray[np.uint8] = np.frombuffer(_read(path), dtype=np.uint8, offset=_LABEL_HEADER)
    return labels.astype(np.float32)


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; --data-dir must name the folder that holds "
            f"{path.parent.name}/{path.name}"
        ) from error
    return gzip.decompress(data) if path.suffix == ".gz" else data

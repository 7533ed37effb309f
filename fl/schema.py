"""A feature schema says what every silo's table must look like, before anybody joins.

It is part of the training plan, so all silos encode alike: the same columns in the same order, the
same categories, the same fate for a missing value. A file is checked against it as a whole and
every problem is reported at once, by column. Messages name columns, lines, numbers of bad cells and
what is allowed, never a cell's content: cells are patients. They are meant for the silo's own
screen, not for the wire.
"""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from fl.csvfile import MISSING_TOKENS, CsvFile, finite_number, is_missing
from fl.errors import SchemaError

_Choice = TypeVar("_Choice", bound=StrEnum)


class FeatureKind(StrEnum):
    """How a column is read."""

    NUMERIC = "numeric"
    CATEGORICAL = "categorical"


class Missing(StrEnum):
    """What a missing cell becomes; unless the schema says otherwise, its file is refused."""

    REFUSE = "refuse"  # the file does not fit
    MEAN = "mean"  # numeric: the federated mean, which is 0 after standardization
    ZERO = "zero"  # numeric: the raw value 0; categorical: no category at all
    CATEGORY = "category"  # categorical: a category of its own


_ALLOWED_MISSING: Final = {
    FeatureKind.NUMERIC: (Missing.REFUSE, Missing.MEAN, Missing.ZERO),
    FeatureKind.CATEGORICAL: (Missing.REFUSE, Missing.CATEGORY, Missing.ZERO),
}
_FILLED: Final = {
    (Missing.MEAN, FeatureKind.NUMERIC): "taken as the mean of all silos",
    (Missing.ZERO, FeatureKind.NUMERIC): "taken as 0",
    (Missing.CATEGORY, FeatureKind.CATEGORICAL): "taken as a category of its own",
    (Missing.ZERO, FeatureKind.CATEGORICAL): "taken as none of the categories",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One input column.

    Args:
        name: the column's header, exactly.
        kind: numeric or categorical.
        categories: the allowed cells of a categorical column, in the order of its encoded columns.
        missing: what a missing cell becomes.
        scale: numeric only, finite and positive; raw values are divided by it before anything else.
            For columns whose raw values are beyond the range of the federated moments.
    """

    name: str
    kind: FeatureKind
    categories: tuple[str, ...] = ()
    missing: Missing
    scale: float = 1.0

    def __post_init__(self) -> None:
        where = f"feature {self.name!r}"
        _require(bool(self.name.strip()), "a feature needs a non-empty name")
        allowed = _ALLOWED_MISSING[self.kind]
        _require(
            self.missing in allowed,
            f"{where}: missing = {self.missing.value!r} does not suit a {self.kind.value} column;"
            f" use one of {_listed(allowed)}",
        )
        _require(
            math.isfinite(self.scale) and self.scale > 0,
            f"{where}: scale must be a finite number above 0, got {self.scale!r}",
        )
        if self.kind is FeatureKind.NUMERIC:
            _require(not self.categories, f"{where}: a numeric column has no categories")
        else:
            _require(self.scale == 1.0, f"{where}: a categorical column has no scale")
            _require(bool(self.categories), f"{where}: list its categories")
            _require_unique(self.categories, f"{where}: category")

    @property
    def columns(self) -> tuple[str, ...]:
        """The encoded columns' names, in order."""
        if self.kind is FeatureKind.NUMERIC:
            return (self.name,)
        own = (
            (*self.categories, "<missing>") if self.missing is Missing.CATEGORY else self.categories
        )
        return tuple(f"{self.name}={category}" for category in own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The column to predict: either all classes by name, or the positive one of two.

    With `classes`, label i is the i-th class; of two, the second is the positive one. With
    `positive` alone, label 1 is that value, and a file may hold at most one other value, which is
    label 0. Listing classes is safer: a misspelled label is then refused.
    """

    name: str
    classes: tuple[str, ...] = ()
    positive: str = ""

    def __post_init__(self) -> None:
        where = f"target {self.name!r}"
        _require(bool(self.name.strip()), "the target needs a non-empty name")
        _require(
            bool(self.classes) != bool(self.positive),
            f"{where}: give either classes (two or more values) or positive (one value)",
        )
        if self.classes:
            _require(len(self.classes) >= 2, f"{where}: needs two classes at least")
            _require_unique(self.classes, f"{where}: class")

    @property
    def class_count(self) -> int:
        """How many classes a model must tell apart."""
        return len(self.classes) or 2

    @property
    def class_names(self) -> tuple[str, ...]:
        """The labels' names, in the order of the labels."""
        return self.classes or (f"not {self.positive}", self.positive)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A silo's rows, checked against the schema but not yet standardized.

    Args:
        numeric: (rows, numeric features), float64, already divided by each feature's scale; NaN
            where a cell is missing and becomes the mean.
        categorical: (rows, categorical features), int64: the encoded column's place within the
            feature, -1 for none.
        labels: (rows,), int64, from 0; None if the file was read without its target.
        notes: what was done with missing cells, a line for each column that has any.
    """

    numeric: NDArray[np.float64]
    categorical: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for array in (self.numeric, self.categorical, self.labels):
            if array is not None:
                array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.numeric)

    def take(self, rows: NDArray[np.int64]) -> "Table":
        """The table of these rows, in this order."""
        return Table(
            numeric=self.numeric[rows],
            categorical=self.categorical[rows],
            labels=None if self.labels is None else self.labels[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSchema:
    """Features in order, and the target."""

    features: tuple[Feature, ...]
    target: Target

    def __post_init__(self) -> None:
        _require(bool(self.features), "a schema needs at least one feature")
        _require_unique((*(feature.name for feature in self.features), self.target.name), "column")
        _require_unique(self.columns, "encoded column")

    @property
    def numeric(self) -> tuple[Feature, ...]:
        """The numeric features, in the order of `preprocess/mean` and `preprocess/scale`."""
        return tuple(f for f in self.features if f.kind is FeatureKind.NUMERIC)

    @property
    def categorical(self) -> tuple[Feature, ...]:
        """The categorical features, in order."""
        return tuple(f for f in self.features if f.kind is FeatureKind.CATEGORICAL)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the encoded columns, in the model's input order."""
        return tuple(column for feature in self.features for column in feature.columns)

    @classmethod
    def parse(cls, mapping: Mapping[str, object]) -> "FeatureSchema":
        """Read a schema from a config's or a plan's mapping.

        Args:
            mapping: `features`, a list of mappings (name, kind, categories, missing, scale; kind
                defaults to numeric, missing to refuse), and `target`, a mapping (name and
                classes or positive).

        Raises:
            SchemaError: names the key that is wrong.
        """
        _check_keys(mapping, ("features", "target"), "schema")
        features = mapping.get("features")
        if isinstance(features, str) or not isinstance(features, Sequence):
            raise SchemaError("schema: features must be a list of tables with name and kind")
        return cls(
            features=tuple(
                _parse_feature(_mapping(item, f"features[{place}]"), f"features[{place}]")
                for place, item in enumerate(features)
            ),
            target=_parse_target(_mapping(mapping.get("target"), "target")),
        )

    def to_mapping(self) -> dict[str, object]:
        """The mapping that `parse` reads, complete and JSON-able."""
        features: list[dict[str, object]] = []
        for feature in self.features:
            entry: dict[str, object] = {
                "name": feature.name,
                "kind": feature.kind.value,
                "missing": feature.missing.value,
            }
            if feature.kind is FeatureKind.NUMERIC:
                entry["scale"] = feature.scale
            else:
                entry["categories"] = list(feature.categories)
            features.append(entry)
        target: dict[str, object] = {"name": self.target.name}
        if self.target.classes:
            target["classes"] = list(self.target.classes)
        else:
            target["positive"] = self.target.positive
        return {"features": features, "target": target}

    def read_csv(self, path: Path, *, with_target: bool = True) -> Table:
        """Read a CSV file with a header; columns that the schema does not name are ignored.

        Args:
            path: UTF-8, with or without a byte order mark, comma separated.
            with_target: False to read rows for a prediction.

        Raises:
            DataError: the file cannot be read at all.
            SchemaError: the file does not fit; lists every problem, by column.
        """
        file = CsvFile.read(path)
        wanted = [feature.name for feature in self.features]
        file.require((*wanted, self.target.name) if with_target else wanted)
        numeric = [_numbers(file, feature) for feature in self.numeric]
        categorical = [_categories(file, feature) for feature in self.categorical]
        labels = _labels(file, self.target) if with_target else None
        if file.problems:
            listed = "\n".join(f"  - {problem}" for problem in file.problems)
            raise SchemaError(f"{path} does not fit the feature schema:\n{listed}")
        return Table(
            numeric=np.array(numeric, dtype=np.float64).reshape(len(numeric), len(file)).T,
            categorical=np.array(categorical, dtype=np.int64)
            .reshape(len(categorical), len(file))
            .T,
            labels=labels,
            notes=tuple(file.notes),
        )

    def encode(
        self,
        table: Table,
        mean: NDArray[np.float64] | None = None,
        scale: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Turn a table into the model's input.

        Args:
            table: as `read_csv` gave it.
            mean: (numeric features,), the federated means, in the unit of `Table.numeric`; None
                for 0.
            scale: (numeric features,), what to divide by; None for 1.

        Returns:
            (rows, encoded columns), float64, finite.

        Raises:
            SchemaError: mean or scale does not fit, or a missing cell should become a mean that
                nobody has computed.
        """
        count = len(self.numeric)
        if mean is None and bool(np.isnan(table.numeric).any()):
            raise SchemaError(
                "cells that are missing shall become the mean, but the plan does not standardize;"
                " set standardize = true, or missing = 'zero' for the columns"
            )
        mean = np.zeros(count) if mean is None else np.asarray(mean, dtype=np.float64)
        scale = np.ones(count) if scale is None else np.asarray(scale, dtype=np.float64)
        if mean.shape != (count,) or scale.shape != (count,):
            raise SchemaError(
                f"mean and scale must have shape ({count},), one number for each numeric feature,"
                f" got {mean.shape} and {scale.shape}"
            )
        if not (np.isfinite(mean).all() and np.isfinite(scale).all() and (scale > 0).all()):
            raise SchemaError("mean and scale must be finite and scale above 0")
        standardized = np.nan_to_num((table.numeric - mean) / scale, nan=0.0)
        blocks: list[NDArray[np.float64]] = []
        numeric = categorical = 0
        for feature in self.features:
            if feature.kind is FeatureKind.NUMERIC:
                blocks.append(standardized[:, numeric, None])
                numeric += 1
            else:
                chosen = table.categorical[:, categorical, None]
                blocks.append((chosen == np.arange(len(feature.columns))).astype(np.float64))
                categorical += 1
        return np.hstack(blocks)


def _numbers(file: CsvFile, feature: Feature) -> NDArray[np.float64]:
    """A numeric column, (rows,); NaN where a cell is missing and becomes the mean."""
    values = np.full(len(file), np.nan)
    bad: list[int] = []
    missing: list[int] = []
    for row, cell in enumerate(file.cells(feature.name)):
        number = finite_number(cell)
        if number is not None:
            values[row] = number / feature.scale
        elif is_missing(cell):
            missing.append(row)
        else:
            bad.append(row)
    file.report(feature.name, bad, "no finite number; write numbers as 1234.5")
    _settle_missing(file, feature, missing)
    if feature.missing is Missing.ZERO:
        values[missing] = 0.0
    return values


def _categories(file: CsvFile, feature: Feature) -> NDArray[np.int64]:
    """A categorical column as places among its encoded columns, (rows,)."""
    places, missing = _places(file, feature.name, feature.categories)
    _settle_missing(file, feature, missing)
    if feature.missing is Missing.CATEGORY:
        places[missing] = len(feature.categories)
    return places


def _labels(file: CsvFile, target: Target) -> NDArray[np.int64]:
    """The target column, (rows,)."""
    classes = target.classes
    if not classes:
        known = {target.positive} | MISSING_TOKENS
        others = {cell for cell in file.cells(target.name) if not known & {cell, cell.lower()}}
        if len(others) > 1:
            file.problems.append(
                f"target {target.name!r}: {len(others)} different values besides the positive"
                f" {target.positive!r}; list the target's classes in the schema"
            )
            return np.full(len(file), -1, dtype=np.int64)
        classes = (*(others or {""}), target.positive)
    labels, missing = _places(file, target.name, classes)
    file.report(target.name, missing, "missing; every row needs its target")
    return labels


def _places(
    file: CsvFile, name: str, allowed: Sequence[str]
) -> tuple[NDArray[np.int64], list[int]]:
    """Each cell's place among the allowed ones, -1 for none, and the missing rows."""
    index = {category: place for place, category in enumerate(allowed) if category}
    places = np.full(len(file), -1, dtype=np.int64)
    bad: list[int] = []
    missing: list[int] = []
    for row, cell in enumerate(file.cells(name)):
        if cell in index:
            places[row] = index[cell]
        elif is_missing(cell):
            missing.append(row)
        else:
            bad.append(row)
    file.report(name, bad, f"not an allowed value; allowed: {_listed(allowed)}")
    return places, missing


def _settle_missing(file: CsvFile, feature: Feature, missing: Sequence[int]) -> None:
    if feature.missing is Missing.REFUSE:
        file.report(
            feature.name,
            missing,
            "missing, which the schema refuses; fill them in, or let the run's settings say for "
            f"this column: missing = {' or '.join(repr(one.value) for one in _filling(feature))}",
        )
    else:
        file.note(feature.name, missing, f"missing, {_FILLED[feature.missing, feature.kind]}")


def _filling(feature: Feature) -> tuple[Missing, ...]:
    return tuple(one for one in _ALLOWED_MISSING[feature.kind] if one is not Missing.REFUSE)


def _parse_feature(entry: Mapping[str, object], where: str) -> Feature:
    _check_keys(entry, ("name", "kind", "categories", "missing", "scale"), where)
    name = _text(entry.get("name"), f"{where}.name")
    kind = _choice(FeatureKind, entry.get("kind", FeatureKind.NUMERIC.value), f"{where}.kind")
    scale = entry.get("scale", 1.0)
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise SchemaError(f"{where}.scale: expected a number, got {type(scale).__name__}")
    return Feature(
        name=name,
        kind=kind,
        categories=_texts(entry.get("categories", ()), f"{where}.categories"),
        missing=_choice(
            Missing, entry.get("missing", _ALLOWED_MISSING[kind][0]), f"{where}.missing"
        ),
        scale=float(scale),
    )


def _parse_target(entry: Mapping[str, object]) -> Target:
    _check_keys(entry, ("name", "classes", "positive"), "target")
    return Target(
        name=_text(entry.get("name"), "target.name"),
        classes=_texts(entry.get("classes", ()), "target.classes"),
        positive=_text(entry["positive"], "target.positive") if "positive" in entry else "",
    )


def _mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise SchemaError(f"{where}: expected a table of keys, got {type(value).__name__}")
    return value


def _check_keys(mapping: Mapping[str, object], known: Sequence[str], where: str) -> None:
    for key in mapping:
        if key not in known:
            raise SchemaError(
                f"{where}: unknown key {key!r}{_suggest(key, known)}; known: {_listed(known)}"
            )


def _text(value: object, where: str) -> str:
    """A cell's text; whole numbers are written as a config would, 1 for a cell "1"."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise SchemaError(f"{where}: expected text or a whole number, got {type(value).__name__}")
    return str(value).strip()


def _texts(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise SchemaError(f"{where}: expected a list, got {type(value).__name__}")
    return tuple(_text(item, where) for item in value)


def _choice(kind: type[_Choice], value: object, where: str) -> _Choice:
    try:
        return kind(str(value))
    except ValueError:
        raise SchemaError(f"{where}: expected one of {_listed(kind)}, got {value!r}") from None


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SchemaError(message)


def _require_unique(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        _require(name not in seen, f"{what} {name!r} is listed twice")
        seen.add(name)


def _listed(values: Iterable[str]) -> str:
    return ", ".join(repr(str(value)) for value in values)


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""

"""What silos' tables look like together: counts, moments, histograms and quantiles from one sum.

A query names columns and, for numeric ones, where its bins lie: edges are part of the query, the
same for everybody, so a histogram of the whole is the sum of the silos'. Quantiles are read from it
and are off by a bin's width at most. Missing values are counted apart.

Security: the coordinator learns the sums over the silos that took part, exactly. The same query
over two sets of silos that differ by one gives that silo's numbers (protocol.md 2.4, 2.5 v): ask
once, over a fixed cohort, or under a privacy plan.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl import fields
from fl.csvfile import CsvFile, finite_number
from fl.errors import DataError, PlanError, SchemaError
from fl.ports import FeatureMoments, FloatVector
from fl.statistics import IntVector, Moments, moment_values, released_moments, statistics_segments
from secagg.parameters import VectorSpec, meta

ROWS: Final = "rows"
MISSING: Final = "missing"
BINS: Final = "bins"
CATEGORIES: Final = "categories"

_MAX_COUNT: Final = 2**31 - 1
_MAX_BINS: Final = 100_000
# Of a whole query; what a silo holds in memory for it stays below 100 MB.
_MAX_CELLS: Final = 1_000_000

# A silo's table by column: numbers with NaN where one is missing, or texts.
Columns = Mapping[str, "FloatVector | Sequence[str]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericColumn:
    """A column of numbers.

    Attributes:
        name: of the column.
        low, high: where the bins begin and end; values beyond are counted as below or above.
        bins: how many, equally wide.
    """

    name: str
    low: float
    high: float
    bins: int = 20

    def __post_init__(self) -> None:
        """Refuse bins that are none."""
        fields.text("numeric.name", self.name)
        low = fields.number(f"{self.name}.low", self.low, -1e300)
        high = fields.number(f"{self.name}.high", self.high, -1e300)
        if not low < high:
            fields.refuse(f"{self.name}.high", f"a number above low = {low}", high)
        fields.whole(f"{self.name}.bins", self.bins, 1, _MAX_BINS)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    @property
    def edges(self) -> FloatVector:
        """Return the bins' edges, shape (bins + 1,)."""
        return np.linspace(self.low, self.high, self.bins + 1)

    def counts(self, values: FloatVector) -> IntVector:
        """Return how many lie below, in each bin, and above; shape (bins + 2,)."""
        # The last bin holds its upper edge, too.
        place = np.searchsorted(self.edges, values, side="right")
        place[values == self.high] = self.bins
        return np.bincount(place, minlength=self.bins + 2).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoricalColumn:
    """A column of texts.

    Attributes:
        name: of the column.
        categories: those that are counted; any other is counted as other, "" as missing.
    """

    name: str
    categories: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse categories that are none."""
        fields.text("categorical.name", self.name)
        listed = fields.sequence(f"{self.name}.categories", self.categories)
        categories = tuple(fields.text(f"{self.name}.categories", one) for one in listed)
        if not categories or len(set(categories)) < len(categories):
            fields.refuse(f"{self.name}.categories", "one or more distinct texts", categories)
        object.__setattr__(self, "categories", categories)

    def counts(self, values: Sequence[str]) -> IntVector:
        """Return how many are of each category, and of none; shape (categories + 1,)."""
        place = {category: number for number, category in enumerate(self.categories)}
        found = [place.get(value, len(place)) for value in values if value]
        return np.bincount(found, minlength=len(place) + 1).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NumericResult:
    """A numeric column over all survivors.

    Attributes:
        moments: None if no silo has a value.
        missing: values that are not there.
        edges: of the bins, shape (bins + 1,).
        counts: below, in each bin, above; shape (bins + 2,).
    """

    moments: Moments | None
    missing: int
    edges: FloatVector
    counts: IntVector

    def quantile(self, share: float) -> float | None:
        """Return where `share` of the values lie below, a straight line within a bin.

        It errs by a bin's width at most. None without values, or if it lies beyond the edges.
        """
        fields.number("share", share, 0, 1)
        total = int(self.counts.sum())
        wanted = share * total
        below = np.cumsum(self.counts)[:-1]  # at each edge
        if not total or wanted < below[0] or wanted > below[-1]:
            return None
        return float(np.interp(wanted, below, self.edges))

    @property
    def quantile_error(self) -> float:
        """Return a bin's width."""
        return float(self.edges[1] - self.edges[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoricalResult:
    """A categorical column over all survivors.

    Attributes:
        counts: category to rows.
        other: rows of another category.
        missing: rows without one.
    """

    counts: Mapping[str, int]
    other: int
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StatisticsResult:
    """All columns over all survivors.

    Attributes:
        rows: of all silos.
        numeric, categorical: by column.
    """

    rows: int
    numeric: Mapping[str, NumericResult]
    categorical: Mapping[str, CategoricalResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsQuery:
    """What is asked of every silo.

    Attributes:
        numeric, categorical: the columns, names distinct.
    """

    numeric: tuple[NumericColumn, ...] = ()
    categorical: tuple[CategoricalColumn, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a query for nothing, for a column twice, or for more cells than there can be."""
        names = self.names
        if not names or len(set(names)) < len(names):
            fields.refuse("columns", "one or more, each once", names)
        cells = sum(one.bins for one in self.numeric)
        cells += sum(len(one.categories) for one in self.categorical)
        fields.whole("bins and categories of all columns", cells, 1, _MAX_CELLS)

    def document(self) -> bytes:
        """Return the query as canonical JSON, for all to check that they answer the same."""
        return fields.dump(asdict(self))

    @classmethod
    def parse(cls, document: bytes) -> "StatisticsQuery":
        """Return the query of a document.

        Raises:
            PlanError: not a query's document.
        """
        try:
            content = json.loads(document)
            query = cls(
                numeric=tuple(NumericColumn(**one) for one in content["numeric"]),
                categorical=tuple(CategoricalColumn(**one) for one in content["categorical"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise PlanError("statistics query: expected the document of a query") from error
        if query.document() != document:
            raise PlanError("statistics query: the document is not in canonical form")
        return query

    def spec(self, n_max: int) -> VectorSpec:
        """Return the vector that is summed over at most n_max silos."""
        segments = [meta(ROWS, 1, bound=_MAX_COUNT)]
        columns = len(self.numeric) + len(self.categorical)
        segments.append(meta(MISSING, columns, bound=_MAX_COUNT))
        if self.numeric:
            segments += statistics_segments(len(self.numeric), n_max)
            length = sum(one.bins + 2 for one in self.numeric)
            segments.append(meta(BINS, length, bound=_MAX_COUNT))
        if self.categorical:
            length = sum(len(one.categories) + 1 for one in self.categorical)
            segments.append(meta(CATEGORIES, length, bound=_MAX_COUNT))
        return VectorSpec(segments=tuple(segments))

    def require(self, table: Columns) -> int:
        """Return how many rows a silo's table has.

        Raises:
            DataError: a column is not there, or the columns differ in length.
        """
        names = self.names
        absent = [name for name in names if name not in table]
        if absent:
            raise DataError(f"the table has no column {', '.join(map(repr, absent))}")
        rows = {len(table[name]) for name in names}
        if len(rows) != 1:
            raise DataError("the table's columns differ in length")
        return rows.pop()

    def values(self, table: Columns, n_max: int) -> dict[str, IntVector]:
        """Return a silo's answer as the integers of the segments.

        Args:
            table: the silo's columns, all of one length.
            n_max: as for the spec.

        Raises:
            DataError: a column is not there, or its sums are too large; names it.
        """
        rows = self.require(table)
        numbers = [np.asarray(table[one.name], dtype=np.float64) for one in self.numeric]
        present = [column[~np.isnan(column)] for column in numbers]
        texts = [[str(value) for value in table[one.name]] for one in self.categorical]
        missing = [len(c) - len(p) for c, p in zip(numbers, present, strict=True)]
        missing += [sum(not value for value in column) for column in texts]
        values = {
            ROWS: np.array([rows], dtype=np.int64),
            MISSING: np.array(missing, dtype=np.int64),
        }
        if self.numeric:
            values.update(moment_values(self._moments(present), n_max))
            pairs = zip(self.numeric, present, strict=True)
            values[BINS] = np.concatenate([one.counts(column) for one, column in pairs])
        if self.categorical:
            answers = zip(self.categorical, texts, strict=True)
            values[CATEGORIES] = np.concatenate([one.counts(column) for one, column in answers])
        return values

    def result(self, total: Mapping[str, IntVector]) -> StatisticsResult:
        """Return what a released sum says."""
        missing = [int(count) for count in total[MISSING]]
        numeric: dict[str, NumericResult] = {}
        if self.numeric:
            pieces = _pieces(total[BINS], [one.bins + 2 for one in self.numeric])
            for place, moments in enumerate(released_moments(total)):
                column = self.numeric[place]
                numeric[column.name] = NumericResult(
                    moments=moments,
                    missing=missing[place],
                    edges=column.edges,
                    counts=pieces[place],
                )
        categorical: dict[str, CategoricalResult] = {}
        if self.categorical:
            lengths = [len(one.categories) + 1 for one in self.categorical]
            pieces = _pieces(total[CATEGORIES], lengths)
            for place, asked in enumerate(self.categorical):
                counts = [int(count) for count in pieces[place]]
                categorical[asked.name] = CategoricalResult(
                    counts=dict(zip(asked.categories, counts[:-1], strict=True)),
                    other=counts[-1],
                    missing=missing[len(self.numeric) + place],
                )
        return StatisticsResult(rows=int(total[ROWS][0]), numeric=numeric, categorical=categorical)

    @property
    def names(self) -> list[str]:
        """Return the columns' names, the numeric ones first."""
        return [one.name for one in self.numeric] + [one.name for one in self.categorical]

    def _moments(self, present: Sequence[FloatVector]) -> FeatureMoments:
        return FeatureMoments(
            names=tuple(one.name for one in self.numeric),
            counts=np.array([len(column) for column in present], dtype=np.int64),
            sums=np.array([column.sum() for column in present], dtype=np.float64),
            squares=np.array([np.square(column).sum() for column in present], dtype=np.float64),
        )


def _pieces(values: IntVector, lengths: Sequence[int]) -> list[NDArray[np.int64]]:
    return np.split(values, np.cumsum(lengths)[:-1])


def read_table(query: StatisticsQuery, path: Path) -> Columns:
    """Return a silo's columns of a query from its CSV file; an empty cell is a missing value.

    Raises:
        SchemaError: lists every column and line that does not fit.
        DataError: the file cannot be read.
    """
    file = CsvFile.read(path)
    file.require([one.name for one in query.numeric])
    file.require([one.name for one in query.categorical])
    table: dict[str, FloatVector | list[str]] = {
        one.name: file.cells(one.name) for one in query.categorical
    }
    for column in query.numeric:
        cells = file.cells(column.name)
        values = [finite_number(cell) for cell in cells]
        bad = [row for row, one in enumerate(values) if one is None and cells[row]]
        file.report(column.name, bad, "not a number")
        table[column.name] = np.array(values, dtype=np.float64)  # None becomes NaN
    if file.problems:
        raise SchemaError(f"{path} does not fit the query: {'; '.join(file.problems)}")
    return table

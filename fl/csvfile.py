"""A CSV file as columns of text, with everything that is wrong with it collected for one report.

Problems name columns and lines, never a cell's content: cells are patients.
"""

import csv
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fl.errors import DataError, SchemaError

# Spellings of "no value" in the tables we have met; a listed category of the same spelling wins.
MISSING_TOKENS: Final = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})

_LINES_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFile:
    """Rows with as many cells as the header; others are a problem, and left out.

    Args:
        header: each column's place.
        rows: cells as text.
        lines: each row's line in the file, from 1.
        problems: what does not fit, added to by whoever reads the columns.
        notes: what fits and should be known, likewise.
    """

    header: Mapping[str, int]
    rows: Sequence[Sequence[str]]
    lines: Sequence[int]
    problems: list[str]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def read(cls, path: Path) -> "CsvFile":
        """Read a comma-separated file with a header; blank lines are skipped.

        Args:
            path: UTF-8, with or without a byte order mark.

        Raises:
            DataError: the file cannot be read.
            SchemaError: it is not UTF-8, or no CSV.
        """
        lines: list[int] = []
        rows: list[list[str]] = []
        uneven: list[int] = []
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file, strict=True)
                names = [name.strip() for name in next(reader, [])]
                for row in reader:
                    if len(row) == len(names):
                        lines.append(reader.line_num)
                        rows.append(row)
                    elif any(row):
                        uneven.append(reader.line_num)
        except OSError as error:
            raise DataError(
                f"cannot read {path}: {error.strerror}; check the path and its rights"
            ) from error
        except UnicodeDecodeError as error:
            raise SchemaError(f"{path} is not UTF-8 text; save it as CSV (UTF-8)") from error
        except csv.Error as error:
            raise SchemaError(f"{path} is not well-formed CSV: {error}") from error
        return cls(
            header={name: place for place, name in enumerate(names)},
            rows=rows,
            lines=lines,
            problems=_form_problems(names, uneven, has_rows=bool(rows)),
        )

    def require(self, names: Iterable[str]) -> None:
        """Note as a problem each column that is not there."""
        for name in names:
            if name not in self.header:
                close = difflib.get_close_matches(name, self.header, n=1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                self.problems.append(f"column {name!r} is not in the file{hint}")

    def cells(self, name: str) -> list[str]:
        """The column's cells without surrounding blanks; none if there is no such column."""
        place = self.header.get(name)
        return [] if place is None else [row[place].strip() for row in self.rows]

    def report(self, name: str, rows: Sequence[int], what: str) -> None:
        """Note as a problem that these rows' cells of a column, if any, are `what`."""
        if rows:
            self.problems.append(self._said(name, rows, what))

    def note(self, name: str, rows: Sequence[int], what: str) -> None:
        """Note what becomes of these rows' cells of a column, if there are any."""
        if rows:
            self.notes.append(self._said(name, rows, what))

    def blanks(self) -> list[str]:
        """Say of each column which of its cells are no value, whatever it means."""
        found = (
            (name, [row for row, cell in enumerate(self.cells(name)) if is_missing(cell)])
            for name in self.header
        )
        return [self._said(name, rows, "without a value") for name, rows in found if rows]

    def _said(self, name: str, rows: Sequence[int], what: str) -> str:
        cells = "1 cell" if len(rows) == 1 else f"{len(rows)} cells"
        where = _shown(self.lines[row] for row in rows)
        return f"column {name!r}: {cells} ({where}) {what}"


def is_missing(cell: str) -> bool:
    """Tell whether a cell without surrounding blanks is one of the spellings of "no value"."""
    return cell.lower() in MISSING_TOKENS


def finite_number(cell: str) -> float | None:
    """The cell as a finite number; Python's digit grouping by underscores is not one."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in cell else None


def _form_problems(names: Sequence[str], uneven: Sequence[int], *, has_rows: bool) -> list[str]:
    """What is wrong with the file's form, whatever its columns mean."""
    if not any(names):
        return ["the file is empty; expected a header line with the columns' names"]
    problems: list[str] = []
    if len(names) == 1 and (";" in names[0] or "\t" in names[0]):
        problems.append("the header is a single column; separate columns by commas")
    repeated = sorted({name for name in names if name and names.count(name) > 1})
    if repeated:
        problems.append(f"columns twice in the header: {', '.join(map(repr, repeated))}")
    if uneven:
        problems.append(f"{_shown(uneven)}: expected {len(names)} cells, as the header has")
    elif not has_rows:
        problems.append("the file has no data rows")
    return problems


def _shown(lines: Iterable[int]) -> str:
    """The first of these lines, for people."""
    listed = list(lines)
    more = ", ..." if len(listed) > _LINES_SHOWN else ""
    return f"line {', '.join(map(str, listed[:_LINES_SHOWN]))}{more}"

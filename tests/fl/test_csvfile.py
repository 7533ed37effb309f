"""A CSV file's form: what is read, what is a problem."""

from pathlib import Path

import pytest

from fl.csvfile import CsvFile
from fl.errors import DataError, SchemaError


def written(folder: Path, content: bytes) -> Path:
    """A file with this content."""
    path = folder / "table.csv"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_columns_are_read_with_or_without_a_byte_order_mark(tmp_path: Path, start: bytes) -> None:
    """The first column's name is the same, blanks around cells and blank lines are dropped."""
    file = CsvFile.read(written(tmp_path, start + b"a, b\r\n1, x\r\n\r\n2,y \r\n"))
    assert file.problems == []
    assert file.cells("a") == ["1", "2"]
    assert file.cells("b") == ["x", "y"]
    assert list(file.lines) == [2, 4]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"a,b\n", "no data rows"),
        (b"a;b\n1;2\n", "separate columns by commas"),
        (b"a,b,a\n1,2,3\n", "columns twice in the header: 'a'"),
        (b"a,b\n1,2\n1\n1,2,3\n", "line 3, 4: expected 2 cells"),
    ],
)
def test_a_malformed_table_is_a_problem(tmp_path: Path, content: bytes, problem: str) -> None:
    """The form's problems are collected, not raised, so that the columns' can join them."""
    assert any(problem in found for found in CsvFile.read(written(tmp_path, content)).problems)


def test_an_unreadable_file_is_refused_with_its_cause(tmp_path: Path) -> None:
    """No such file, another encoding and a torn quote each have their own words."""
    with pytest.raises(DataError, match="No such file"):
        CsvFile.read(tmp_path / "none.csv")
    with pytest.raises(SchemaError, match="not UTF-8"):
        CsvFile.read(written(tmp_path, "größe\n1\n".encode("latin-1")))
    with pytest.raises(SchemaError, match="well-formed"):
        CsvFile.read(written(tmp_path, b'a\n"torn\n'))


def test_only_the_first_lines_of_many_are_listed(tmp_path: Path) -> None:
    """A column that is wrong all the way down gives one short problem."""
    file = CsvFile.read(written(tmp_path, b"a\n" + b"x\n" * 9))
    file.report("a", range(9), "wrong")
    assert file.problems == ["column 'a': 9 cells (line 2, 3, 4, 5, 6, ...) wrong"]

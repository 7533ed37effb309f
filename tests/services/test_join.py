"""Joining: what is looked at before anybody is called."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from fl.errors import DataError, LearningError, SchemaError
from services.clock import utc_now
from services.config import SiloConfig
from services.settings import parse_config
from services.silo import join as joining
from services.testing import make_federation


class _Log:
    """Keeps what is logged."""

    def __init__(self, lines: list[tuple[str, Mapping[str, object]]]) -> None:
        self.lines = lines

    def bind(self, **_fields: object) -> "_Log":
        return self

    def _keep(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    debug = info = warning = error = _keep


def _join(root: Path, rows: str | None) -> list[tuple[str, Mapping[str, object]]]:
    """Join with this file; nobody listens, and a certificate is not needed to find that out."""
    if rows is not None:
        (root / "rows.csv").write_text(rows, "utf-8")
    lines: list[tuple[str, Mapping[str, object]]] = []
    joining._look_at(root / "rows.csv", _Log(lines))
    return lines


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        (None, DataError, "cannot read .*No such file"),
        ("", SchemaError, "the file is empty"),
        ("a;b\n1;2\n", SchemaError, "separate columns by commas"),
        ("a,b\n1,2\n3\n", SchemaError, "line 3: expected 2 cells"),
    ],
)
def test_a_file_that_is_no_table_is_refused(
    tmp_path: Path, rows: str | None, error: type[LearningError], words: str
) -> None:
    """Before a run needs it."""
    with pytest.raises(error, match=words):
        _join(tmp_path, rows)


def test_blank_cells_are_named_by_column_and_line(tmp_path: Path) -> None:
    """And their neighbors' content is not."""
    lines = _join(tmp_path, "age,sick\n,yes\nnan,no\n41,?\n")
    notes = [str(fields["note"]) for event, fields in lines if event == "cells-blank"]
    assert [note.partition(";")[0] for note in notes] == [
        "column 'age': 2 cells (line 2, 3) without a value",
        "column 'sick': 1 cell (line 4) without a value",
    ]
    assert _join(tmp_path, "age,sick\n40,yes\n") == []


def _config(root: Path, more: str = "") -> SiloConfig:
    """Settings of a silo with keys, for a coordinator that nobody has started."""
    make_federation(root, silos=("silo-1", "silo-2"), now=utc_now())
    return parse_config(
        b'coordinator = "127.0.0.1:1"\ndirectory = "silo-1"\nstorage = "s"\n' + more.encode(),
        SiloConfig,
        source="silo.toml",
        base=root,
    )


def test_a_silo_looks_at_its_file_before_it_connects(tmp_path: Path) -> None:
    """Nobody listens at the address, and it is not asked."""
    config = _config(tmp_path, 'data = { file = "nowhere.csv" }\n')
    with pytest.raises(DataError, match=r"nowhere\.csv"):
        asyncio.run(joining.join(config, software="test", once=True))


def test_a_silo_without_a_coordinator_stops_when_told_to(tmp_path: Path) -> None:
    """It would try again for an hour; whoever stops it does not want to wait for that."""
    config = _config(tmp_path, 'task = "fl.testing:toy_task"\n')

    async def stopped() -> object:
        stop = asyncio.Event()
        joined = asyncio.create_task(joining.join(config, software="test", once=True, stop=stop))
        done, _ = await asyncio.wait({joined}, timeout=1)
        assert not done, "it tries again"
        stop.set()
        return await asyncio.wait_for(joined, timeout=30)

    assert asyncio.run(stopped()) is None

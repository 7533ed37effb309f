"""Files of records: a torn tail is cut off, any other damage is found."""

import stat
from pathlib import Path

import pytest

from services.errors import CorruptError, StorageError
from services.storage.records import RecordFile

RECORDS = (b"one", b"", b"three" * 1000, b"four")


def written(path: Path) -> bytes:
    """A file with RECORDS in it; returns its bytes."""
    file = RecordFile(path)
    for record in RECORDS:
        file.append(record)
    file.sync()
    file.close()
    return path.read_bytes()


def found(path: Path) -> tuple[bytes, ...]:
    """What a new process finds."""
    file = RecordFile(path)
    file.close()
    return file.found


def test_records_are_found_again_and_more_can_be_added(tmp_path: Path) -> None:
    """In order, across restarts, and for the owner's eyes only."""
    path = tmp_path / "log"
    written(path)
    assert found(path) == RECORDS
    file = RecordFile(path)
    file.append(b"five")
    file.close()
    assert found(path) == (*RECORDS, b"five")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_torn_tail_is_cut_off_wherever_it_tears(tmp_path: Path) -> None:
    """The records before it stay, and the next one takes its place (bug case RES-01)."""
    path = tmp_path / "log"
    data = written(path)
    last = len(data) - len(RECORDS[-1]) - 36
    for end in range(last, len(data)):
        path.write_bytes(data[:end])
        assert found(path) == RECORDS[:-1]
        file = RecordFile(path)
        file.append(b"again")
        file.close()
        assert found(path) == (*RECORDS[:-1], b"again")


def test_a_flipped_bit_before_the_tail_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """Bug case SEC-03."""
    path = tmp_path / "log"
    data = bytearray(written(path))
    for place in (4, 36, 39 + 10, 39 + 36 + 36 + 7):
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(CorruptError, match=r"log: record \d is damaged"):
            RecordFile(path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """As every disk error."""
    with pytest.raises(StorageError, match="missing"):
        RecordFile(tmp_path / "missing" / "log")

"""Complaints that count outlive the coordinator's process."""

from pathlib import Path

import pytest

from secagg.messages import Complaint
from services.coordinator.complaints import COMPLAINTS, keep_complaints, load_complaints
from services.errors import CorruptError


def complaint(seat: int, dealer: int) -> Complaint:
    """One of two ends that lie."""
    return Complaint(
        setup=bytes(32), seat=seat, dealer=dealer, reason="A4_BAD_SHARE", signature=bytes(64)
    )


def test_what_was_kept_is_there_again(tmp_path: Path) -> None:
    """In its order; writing replaces what was there."""
    assert load_complaints(tmp_path) == ()
    both = (complaint(5, 1), complaint(3, 4))
    for kept in (both[:1], both):
        keep_complaints(tmp_path, kept)
        assert load_complaints(tmp_path) == kept


@pytest.mark.parametrize("damage", ["cut", "rubbish", "a folder"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    """It is not taken for an empty one: that would invite a liar again."""
    path = tmp_path / COMPLAINTS
    if damage == "a folder":
        path.mkdir()
    else:
        keep_complaints(tmp_path, [complaint(5, 1)])
        path.write_bytes(path.read_bytes()[:-1] if damage == "cut" else b"rubbish")
    with pytest.raises(CorruptError, match=COMPLAINTS):
        load_complaints(tmp_path)

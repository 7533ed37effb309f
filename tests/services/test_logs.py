"""Logs: JSON lines that cannot hold a secret (bug case SEC-04)."""

import json

import numpy as np
import pytest

from services.observe import logs


def test_secrets_and_vectors_never_reach_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Forbidden names are redacted, bytes and arrays become their kind, text stays."""
    logs.configure(level="debug", style="json")
    log = logs.get_logger("test").bind(silo="north")
    planted = bytes(range(32))
    log.info(
        "event",
        seed="planted-seed",
        loss=0.123456789,
        examples=4711,
        payload=planted,
        numbers=np.arange(3),
        several=[planted, "text"],
        round=3,
    )
    line = capsys.readouterr().err
    found = json.loads(line)
    assert found["silo"] == "north"
    assert found["round"] == 3
    assert found["several"] == ["[32 bytes]", "text"]
    assert found["payload"] == "[32 bytes]"
    assert found["numbers"] == "[ndarray]"
    for secret in ("planted-seed", "0.123456789", "4711", planted.hex(), repr(planted)):
        assert secret not in line


def int_of(cell: str) -> int:
    """Fail as a parser does: with the cell in its message."""
    return int(cell)


def test_where_names_places_and_no_text() -> None:
    """An error's own words may quote data, so they are left out."""
    with pytest.raises(ValueError, match="patient 17") as caught:
        int_of("patient 17")
    places = logs.where(caught.value)
    assert places[-1].endswith("int_of")
    assert "patient" not in " ".join(places)

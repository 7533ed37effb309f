"""The example of an own algorithm runs as it is, and is as short as it says."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_algorithm.py"


def test_own_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    """One file adds a rule and trains with it, through the secure sum."""
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 60
    spaces = runpy.run_path(str(EXAMPLE))
    result = spaces["result"]
    assert capsys.readouterr().out.startswith("completed: loss")
    assert result.reports[-1].loss < 0.2 * result.reports[0].loss

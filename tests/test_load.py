"""The load bench's short form: many silos with a certificate and a connection each."""

from pathlib import Path

import pytest

from bench.load import load


@pytest.mark.e2e
@pytest.mark.slow
def test_every_silo_is_in_every_sum(tmp_path: Path) -> None:
    """Twenty silos in two processes; `make load` has two hundred."""
    found = load(silos=20, rounds=2, processes=2, home=tmp_path)
    assert (found["silos"], found["rounds"]) == (20, 2)

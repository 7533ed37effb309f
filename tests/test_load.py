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


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_coordinator_s_memory_does_not_grow_with_the_silos(tmp_path: Path) -> None:
    """Uploads go to the disk chunk by chunk and into one sum (bug case MEM-01).

    A masked vector has 3 MB here: sixteen silos more would be 48 MB more if they were held.
    """
    few, many = (
        load(silos=silos, rounds=2, processes=2, dim=1_000_000, home=tmp_path / str(silos))
        for silos in (4, 20)
    )
    peaks = int(str(few["coordinator_peak_mb"])), int(str(many["coordinator_peak_mb"]))
    assert peaks[1] - peaks[0] < 24, peaks

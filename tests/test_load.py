"""The load bench's short form: many silos with a certificate and a connection each."""

from collections.abc import Callable
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
def test_the_coordinator_holds_no_vectors_while_they_are_uploaded(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Uploads go to the disk chunk by chunk and into one sum.

    A masked vector has 14 MB here, so sixteen that were held would be 224 MB. A silo uploads one
    chunk of 1 MiB after the other; with its copies on the way from the wire to the disk that is
    some 4 MB a silo, whatever the vector's size, and the round's state is read meanwhile.
    """
    found = load(silos=16, rounds=1, processes=2, dim=4_000_000, home=tmp_path)
    growth = int(str(found["coordinator_upload_growth_mb"]))
    record_property("coordinator_upload_growth_mb", growth)
    assert growth < 96, f"expected less than half of the vectors' 224 MB, got {found}"


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_32_silos_of_20_mb_need_less_than_400_mb(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Bug case MEM-01, as it stands there: the coordinator's resident memory at its very peak.

    Five million parameters of 32 bits; two rounds, since a run holds more after its first.
    """
    found = load(silos=32, rounds=2, processes=2, dim=5_000_000, home=tmp_path)
    peak = int(str(found["coordinator_peak_mb"]))
    record_property("coordinator_peak_mb", peak)
    assert peak <= 400, f"expected at most 400 MB whatever the silos' number, got {found}"

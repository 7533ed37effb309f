"""Tests of secagg.ids."""

import pytest

from secagg.errors import ParameterError
from secagg.ids import FederationId, RoundId, RunId, SiloId


@pytest.mark.parametrize("kind", [FederationId, SiloId])
@pytest.mark.parametrize("name", ["a", "St.-Anna_7", "0" * 63])
def test_names_within_the_rule_are_kept(kind: type[FederationId | SiloId], name: str) -> None:
    """The name is its own string form."""
    assert str(kind(name)) == kind(name).name == name


@pytest.mark.parametrize("kind", [FederationId, SiloId])
@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "a\n", "ä", "0" * 64, "²"])
def test_names_outside_the_rule_are_refused(kind: type[FederationId | SiloId], name: str) -> None:
    """The error states the rule."""
    with pytest.raises(ParameterError, match="1 to 63 letters"):
        kind(name)


def test_a_federation_is_no_silo() -> None:
    """Equal names of different kinds are different ids."""
    assert len({FederationId("a"), SiloId("a")}) == 2
    assert min(SiloId("b"), SiloId("a")) == SiloId("a")


def test_a_run_id_reads_what_it_writes() -> None:
    """Sixteen bytes, 32 hexadecimal digits."""
    run = RunId(bytes(range(16)))
    assert str(run) == run.hex == "000102030405060708090a0b0c0d0e0f"
    assert RunId.parse(run.hex) == run


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_run_id_has_sixteen_bytes(size: int) -> None:
    """Other lengths are refused."""
    with pytest.raises(ParameterError, match="16 bytes"):
        RunId(bytes(size))


@pytest.mark.parametrize(
    "text", ["", "0" * 31, "0" * 33, "A" * 32, "0x" + "0" * 30, "0" * 32 + "\n"]
)
def test_a_run_id_has_one_written_form(text: str) -> None:
    """Capitals, spaces and other lengths are refused."""
    with pytest.raises(ParameterError, match="hexadecimal"):
        RunId.parse(text)


def test_rounds_are_numbered_within_a_run() -> None:
    """Written run/number, ordered by number."""
    run = RunId(bytes(16))
    assert str(RoundId(run, 7)) == f"{run}/7"
    assert RoundId(run, 7) < RoundId(run, 10)
    for number in (-1, 2**64):
        with pytest.raises(ParameterError, match="round number"):
            RoundId(run, number)

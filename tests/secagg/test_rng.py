"""Tests of secagg.rng."""

from secagg.rng import Rng, SystemRng


def test_the_system_source_gives_fresh_bytes_of_the_length_asked() -> None:
    """Two draws of 32 bytes are equal once in 2**256 times."""
    source: Rng = SystemRng()
    first, second = source.bytes(32), source.bytes(32)
    assert len(first) == len(second) == 32
    assert first != second
    assert source.bytes(0) == b""

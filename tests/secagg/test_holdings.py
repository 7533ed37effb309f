"""Mirror of `secagg.holdings`: an attempt's secrets, and their end."""

import pytest

from secagg.errors import LocalProtocolError
from secagg.holdings import Holdings
from secagg.suites import SUITES
from secagg.testing import SeededRng


@pytest.mark.parametrize("number", sorted(SUITES))
def test_secrets_are_drawn_and_forgotten_together(number: int) -> None:
    """After wiping there is nothing to advertise, deal or open."""
    own = Holdings(seat=3, suite=SUITES[number], rng=SeededRng("holdings"))
    first = own.advertise(bytes(32))
    assert first == own.advertise(bytes(32))
    assert (first.seat, first.kem is not None) == (3, SUITES[number].is_hybrid)
    assert len({own.a.reveal(), own.b.reveal(), own.k.reveal(), first.nonce}) == 4
    own.wipe()
    assert [len(secret) for secret in (own.a, own.b, own.k)] == [0, 0, 0]
    with pytest.raises(LocalProtocolError, match="wiped"):
        own.advertise(bytes(32))

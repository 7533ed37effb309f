"""The public coins of an attempt: the same for everybody, and another attempt's are others."""

import numpy as np
import pytest

from secagg.canonical import digest
from secagg.errors import LocalProtocolError
from secagg.parameters import VectorSpec, meta
from secagg.testing import RoundHarness, make_federation, make_parameters
from secagg.transcript import public_coins
from tests.adversary.stage import Stage


def test_everybody_has_the_attempt_s_coins() -> None:
    """Silos while they train, and all with the sum; before the state there are none."""
    federation = make_federation(3)
    spec = VectorSpec(segments=(meta("count", 1, bound=3),))
    seen = set()
    for attempt in (0, 1):
        harness = RoundHarness(
            federation=federation,
            parameters=make_parameters(federation.roster, spec, attempt=attempt, n_max=3),
            state=b"a state",
            train=lambda *_: {"count": np.array([1])},
        )
        with pytest.raises(LocalProtocolError, match="accepted state"):
            _ = harness.silos[1].public_coins
        outcome = harness.run()
        aggregates = [outcome.aggregate, *outcome.silo_aggregates.values()]
        coins = {silo.public_coins for silo in harness.silos.values()}
        coins |= {one.public_coins for one in aggregates if one is not None}
        assert len(aggregates) == 4
        assert len(coins) == 1
        seen |= coins
    assert len(seen) == 2


def test_no_coins_between_the_keys_and_the_state() -> None:
    """The state is part of what they are drawn from."""
    stage = Stage(4)
    stage.deliver()
    with pytest.raises(LocalProtocolError, match="accepted state"):
        _ = stage.silos[1].public_coins


def test_coins_are_not_the_binding() -> None:
    """A digest under its own label: what they seed tells nothing about masks or tags."""
    assert public_coins(b"b" * 32) not in (b"b" * 32, public_coins(b"c" * 32))
    assert len(public_coins(b"b" * 32)) == 32
    assert public_coins(b"b" * 32) == digest("public-coins", b"b" * 32)

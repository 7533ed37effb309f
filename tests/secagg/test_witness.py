"""Mirror of `secagg.witness`: what the coordinator signs twice is kept."""

from dataclasses import replace

import pytest

from secagg.errors import LocalProtocolError, WrongPhaseError
from tests.adversary.stage import Stage


def test_evidence_of_a_coordinator_that_goes_on_lying_is_kept_once() -> None:
    """The first pair convicts."""
    stage = Stage(4)
    stage.advertise()
    for number in (2, 3, 4):
        other = stage.opening(replace(stage.parameters, n_max=number + 1))
        with pytest.raises((WrongPhaseError, LocalProtocolError)):
            stage.tell(1, other)
    assert len(stage.silos[1].evidence) == 1


def test_two_states_before_the_opening() -> None:
    """Of an attempt that a silo knows nothing of it has no evidence either."""
    stage = Stage(4)
    one, other = (stage.notice(state, setup=bytes(32)) for state in (b"one", b"other"))
    stage.refuses(1, one, WrongPhaseError)
    with pytest.raises(LocalProtocolError, match="this round is aborted"):
        stage.tell(1, other)
    assert stage.silos[1].evidence == []

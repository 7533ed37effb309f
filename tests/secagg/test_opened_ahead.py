"""An attempt whose keys and shares are exchanged before its state is known."""

from collections.abc import Mapping

import numpy as np
import pytest

from secagg.chain import Standpoint
from secagg.effects import Aborted, AbortReason
from secagg.errors import ModelMismatchError
from secagg.messages import model_hash
from secagg.parameters import RoundParameters, VectorSpec, bulk
from secagg.phases import Phase
from secagg.ring import IntVector
from secagg.testing import RoundHarness, make_federation, make_parameters

FEDERATION = make_federation(5)
SPEC = VectorSpec(segments=(bulk("update", 3, value_bits=16, n_max=5),))
PARAMETERS = make_parameters(FEDERATION.roster, SPEC)


def _train(seat: int, _parameters: RoundParameters, _state: bytes) -> Mapping[str, IntVector]:
    return {"update": np.full(3, 10**seat % 30_011, np.int64)}


def _harness(drop: Mapping[int, Phase] | None = None) -> RoundHarness:
    return RoundHarness(
        federation=FEDERATION, parameters=PARAMETERS, state=b"state", train=_train, drop=drop
    )


@pytest.mark.parametrize("drop", [{}, {2: Phase.SHARE}, {2: Phase.MASK}, {4: Phase.UNMASK}])
def test_the_sum_is_the_same_as_without_a_head_start(drop: Mapping[int, Phase]) -> None:
    """Only the order of the waiting changes."""
    ahead = _harness(drop).run(ahead=True)
    plain = _harness(drop).run()
    assert ahead.aggregate is not None
    assert plain.aggregate is not None
    assert ahead.aggregate.survivors == plain.aggregate.survivors
    assert np.array_equal(ahead.aggregate.values["update"], plain.aggregate.values["update"])


def test_no_deadline_runs_while_the_state_is_awaited() -> None:
    """The round before may take as long as it takes."""
    harness = _harness()
    harness._carry_out(harness.server.start(0.0))
    harness._drive()
    assert harness.server.phase is Phase.MASK
    assert harness.server.deadline is None


def test_the_required_state_may_be_learnt_after_the_opening() -> None:
    """A silo insists on the state that follows from the last round, once it knows it."""
    harness = _harness()
    harness._carry_out(harness.server.start(0.0))
    harness._drive()
    for seat, silo in harness.silos.items():
        wanted = b"another" if seat == 3 else b"state"
        silo.standpoint = Standpoint(round=0, model_hash=model_hash("training", wanted))
    harness._carry_out(harness.server.set_state(0.0))
    harness._drive()
    assert isinstance(harness.outcome.silo_errors[3], ModelMismatchError)
    assert harness.outcome.aggregate is not None
    assert harness.outcome.aggregate.survivors == (1, 2, 4, 5)


def test_nobody_waits_for_masks_when_all_are_lost_before_the_state_is_there() -> None:
    """Each was awaited until its refusal; the last state's word took longer than theirs."""
    harness = _harness()
    harness._carry_out(harness.server.start(0.0))
    harness._drive()
    for seat in harness.silos:
        harness._carry_out(harness.server.lost(seat, 0.0))
    assert harness.server.phase is Phase.MASK
    effects = harness.server.set_state(0.0)
    ended = [effect for effect in effects if isinstance(effect, Aborted)]
    assert [one.reason for one in ended] == [AbortReason.TOO_FEW_MASKED]

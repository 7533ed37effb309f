"""A server that gives one silo another state than the others, or another than it signed."""

import pytest

from secagg import messages
from secagg.chain import Standpoint
from secagg.errors import (
    BadSignatureError,
    ModelMismatchError,
    PolicyRefusedError,
    SurvivorsMismatchError,
)
from secagg.policy import SiloPolicy
from secagg.testing import RoundHarness, make_federation, make_parameters
from tests.adversary.stage import MODEL, Stage, random_inputs, small_spec

pytestmark = pytest.mark.adversary

# The state is model and control variate in one; a coordinator may change either part.
SWAPPED = (b"another state of the round", MODEL[:-1] + b"\x00", MODEL + b"\x00")


@pytest.mark.parametrize("shown", SWAPPED)
def test_another_model_to_one_silo(shown: bytes) -> None:
    """Its masks do not cancel, its upload is signed for another binding: all silos refuse."""
    stage = Stage(4)
    stage.announce({1: shown})
    stage.submit()
    bindings = {message.binding for message in stage.all_of(messages.MaskedInput).values()}
    assert len(bindings) == 2
    for seat in stage.cohort:
        stage.refuses(seat, stage.request(), SurvivorsMismatchError, "not signed for this silo's")
    stage.assert_hidden()


def test_the_server_itself_refuses_a_vector_for_another_model() -> None:
    """An honest server does not relay what a silo masked for another state."""
    federation = make_federation(4)
    spec = small_spec(4)
    inputs = random_inputs(range(1, 5), spec, 3)

    def swap(seat: int, message: messages.Message) -> messages.Message:
        if seat == 2 and isinstance(message, messages.StateNotice):
            other = b"poison"
            harness.stores[2].put_state(other)
            harness.outcome.server_store.put_state(other)
            unsigned = messages.StateNotice(
                setup=message.setup,
                model_hash=messages.model_hash("training", other),
                nbytes=len(other),
            )
            return messages.signed(unsigned, federation.coordinator)
        if isinstance(message, messages.StateNotice):
            harness.outcome.server_store.put_state(MODEL)
        return message

    harness = RoundHarness(
        federation=federation,
        parameters=make_parameters(federation.roster, spec),
        state=MODEL,
        train=lambda seat, _parameters, _state: inputs[seat],
        to_silo=swap,
    )
    outcome = harness.run()
    assert [error.code for error in outcome.server_errors] == ["A2_REPLAY"]
    assert outcome.silo_errors[2].code == "A6_SURVIVORS_MISMATCH"
    assert outcome.aggregate is not None
    assert outcome.aggregate.survivors == (1, 3, 4)


def standing_at(state: bytes) -> Standpoint:
    """Where a silo stands that this state follows for."""
    return Standpoint(round=0, model_hash=messages.model_hash("training", state))


def test_bytes_that_are_not_those_signed() -> None:
    """The state's chunks were swapped on the way or in the store."""
    stage = Stage(4)
    stage.deliver()
    stage.stores[1].put_state(b"another state")
    stage.refuses(1, stage.notice(), ModelMismatchError, "not those that the coordinator signed")
    stage.refuses(2, stage.notice(), ModelMismatchError)  # no bytes at all
    stage.stores[3].put_state(MODEL[:-1] + b"\x00")  # as many bytes as announced
    stage.refuses(3, stage.notice(), ModelMismatchError, "not those that the coordinator signed")
    stage.assert_hidden()


def test_a_first_state_that_is_not_pinned() -> None:
    """The policy names the states that a silo starts from; a successor needs no pin."""
    pinned = SiloPolicy(first_states=frozenset({messages.model_hash("training", b"another")}))
    stage = Stage(4, policies={1: pinned, 2: pinned}, standpoints={2: standing_at(MODEL)})
    stage.deliver()
    for seat in (1, 2):
        stage.stores[seat].put_state(MODEL)
    stage.refuses(1, stage.notice(), PolicyRefusedError, "rule first_states")
    stage.tell(2, stage.notice())
    assert stage.wants_training == {2}


def test_a_state_that_does_not_follow_from_the_last_result() -> None:
    """The silo has recomputed the server's step and insists on what it gives."""
    stage = Stage(4, standpoints={1: standing_at(MODEL)})
    stage.deliver()
    moved = MODEL[:-1] + b"\x01"  # by one unit in the last place
    stage.stores[1].put_state(moved)
    stage.refuses(1, stage.notice(moved), ModelMismatchError, "follows from round 0")
    stage = Stage(4, standpoints={1: standing_at(MODEL)})
    stage.announce()
    assert 1 in stage.wants_training


def test_a_state_without_the_coordinators_signature() -> None:
    """Signed by a silo, and for another setup."""
    stage = Stage(4)
    stage.deliver()
    for seat in (1, 2):
        stage.stores[seat].put_state(MODEL)
    forged = messages.signed(stage.notice(), stage.federation.identities[2])
    stage.refuses(1, forged, BadSignatureError)
    stage.refuses(2, stage.notice(setup=bytes(32)), ModelMismatchError, "another attempt")
    stage.assert_hidden()


def test_a_second_state_and_a_state_before_u2() -> None:
    """A state is accepted once, after U2."""
    stage = Stage(4)
    stage.deliver()
    stage.stores[1].put_state(MODEL)
    stage.tell(1, stage.notice())
    stage.refuses(1, stage.notice(b"second"), ModelMismatchError, "once, after U2")
    early = Stage(4)
    early.share()
    early.refuses(1, early.notice(), ModelMismatchError, "once, after U2")
    early.assert_hidden()

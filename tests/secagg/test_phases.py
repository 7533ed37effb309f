"""Tests of secagg.phases: the tables, whole."""

from itertools import product
from typing import get_args

import pytest

from secagg import messages
from secagg.errors import LocalProtocolError, WrongPhaseError
from secagg.phases import (
    SERVER_HEARS,
    SILO_HEARS,
    TRANSITIONS,
    Phase,
    Step,
    advance,
    require_heard,
)

FORWARD = {
    (Phase.ADVERTISE, Step.ADVERTISED): Phase.SHARE,
    (Phase.SHARE, Step.SHARED): Phase.MASK,
    (Phase.MASK, Step.MASKED): Phase.SURVIVORS,
    (Phase.MASK, Step.WENT_LATE): Phase.SURVIVORS,
    (Phase.SURVIVORS, Step.SIGNED): Phase.UNMASK,
    (Phase.UNMASK, Step.OPENED): Phase.RESULT,
    (Phase.UNMASK, Step.FINISHED): Phase.CLOSED,
    (Phase.RESULT, Step.FINISHED): Phase.CLOSED,
}
FINAL = {Phase.CLOSED, Phase.ABORTED}
SERVER_MESSAGES = get_args(messages.ServerMessage)
SILO_MESSAGES = get_args(messages.SiloMessage)


@pytest.mark.parametrize(("phase", "step"), list(product(Phase, Step)))
def test_every_phase_and_step(phase: Phase, step: Step) -> None:
    """Forward by one, or down, or not at all; nothing leaves a final phase."""
    if step is Step.FAILED and phase not in FINAL:
        assert advance(phase, step) is Phase.ABORTED
    elif (phase, step) in FORWARD:
        assert advance(phase, step) is FORWARD[phase, step]
    else:
        with pytest.raises(LocalProtocolError, match=f"in phase {phase} cannot go on"):
            advance(phase, step)


def test_the_table_holds_no_more() -> None:
    """Eight steps forward, six ways down."""
    assert len(TRANSITIONS) == len(FORWARD) + len(Phase) - len(FINAL)


@pytest.mark.parametrize(
    ("phase", "kind"), list(product(Phase, (*SERVER_MESSAGES, *SILO_MESSAGES)))
)
def test_every_phase_and_message(phase: Phase, kind: type[messages.Message]) -> None:
    """A role hears what its table names, of the other role's messages only."""
    message = object.__new__(kind)
    for hears, others in ((SILO_HEARS, SILO_MESSAGES), (SERVER_HEARS, SERVER_MESSAGES)):
        if kind in hears[phase]:
            assert kind not in others
            require_heard(hears, phase, message)
            continue
        with pytest.raises(WrongPhaseError, match=f"a {kind.__name__} is not awaited"):
            require_heard(hears, phase, message)


def test_every_message_is_heard_somewhere() -> None:
    """But for two that a silo takes in every phase."""
    anywhere = {messages.AbandonRequest, messages.RoundFailed}
    assert frozenset().union(*SILO_HEARS.values()) == set(SERVER_MESSAGES) - anywhere
    assert frozenset().union(*SERVER_HEARS.values()) == set(SILO_MESSAGES)
    assert set(SILO_HEARS) == set(SERVER_HEARS) == set(Phase)

"""The state machine of a round: one table, for both roles.

Two rules. Everything that moves a round from phase to phase stands in `TRANSITIONS`; and this
file does not know which role it serves. A phase is named after the message that is awaited: in
MASK the server waits for masked vectors and a silo has yet to send its own. A role reports the
step that it has completed and gets the next phase. CLOSED and ABORTED have no way out.

`SILO_HEARS` and `SERVER_HEARS` say which messages make sense in which phase; all others are
refused before they are looked at.
"""

from enum import StrEnum
from typing import Final

from secagg import messages
from secagg.errors import LocalProtocolError, WrongPhaseError


class Phase(StrEnum):
    """Where an attempt stands."""

    ADVERTISE = "advertise"
    SHARE = "share"
    MASK = "mask"
    SURVIVORS = "survivors"
    UNMASK = "unmask"
    RESULT = "result"
    CLOSED = "closed"
    ABORTED = "aborted"


class Step(StrEnum):
    """What a role has completed: a silo by sending, the server by collecting enough."""

    ADVERTISED = "advertised"
    SHARED = "shared"
    MASKED = "masked"
    WENT_LATE = "went late"
    SIGNED = "signed"
    OPENED = "opened"
    FINISHED = "finished"
    FAILED = "failed"


TRANSITIONS: Final[dict[tuple[Phase, Step], Phase]] = {
    (Phase.ADVERTISE, Step.ADVERTISED): Phase.SHARE,
    (Phase.SHARE, Step.SHARED): Phase.MASK,
    (Phase.MASK, Step.MASKED): Phase.SURVIVORS,
    (Phase.MASK, Step.WENT_LATE): Phase.SURVIVORS,
    (Phase.SURVIVORS, Step.SIGNED): Phase.UNMASK,
    (Phase.UNMASK, Step.OPENED): Phase.RESULT,
    (Phase.UNMASK, Step.FINISHED): Phase.CLOSED,  # the result came first: nothing is opened
    (Phase.RESULT, Step.FINISHED): Phase.CLOSED,
} | {
    (phase, Step.FAILED): Phase.ABORTED
    for phase in Phase
    if phase not in {Phase.CLOSED, Phase.ABORTED}
}

SILO_HEARS: Final[dict[Phase, frozenset[type[messages.Message]]]] = {
    Phase.ADVERTISE: frozenset({messages.RoundOpen}),
    Phase.SHARE: frozenset({messages.Keys}),
    Phase.MASK: frozenset({messages.Boxes, messages.StateNotice, messages.SurvivorsRequest}),
    Phase.SURVIVORS: frozenset({messages.SurvivorsRequest}),
    Phase.UNMASK: frozenset({messages.SurvivorsRequest, messages.Certificate, messages.Result}),
    Phase.RESULT: frozenset({messages.Certificate, messages.Result}),
    # Who recomputes the sum needs no secret of the round, so it may be over (SA1 spec 5.2).
    Phase.CLOSED: frozenset({messages.Disclosure, messages.ChunkAnswer}),
    Phase.ABORTED: frozenset({messages.Disclosure, messages.ChunkAnswer}),
}

SERVER_HEARS: Final[dict[Phase, frozenset[type[messages.Message]]]] = {
    Phase.ADVERTISE: frozenset({messages.Advertise, messages.Refusal}),
    Phase.SHARE: frozenset({messages.Share, messages.Refusal}),
    Phase.MASK: frozenset(
        {messages.MaskedInput, messages.Late, messages.Complaint, messages.Refusal}
    ),
    Phase.SURVIVORS: frozenset({messages.Survivors, messages.Refusal}),
    Phase.UNMASK: frozenset(
        {messages.Unmask, messages.Survivors, messages.Abandon, messages.Refusal}
    ),
    Phase.RESULT: frozenset({messages.Unmask, messages.Survivors, messages.Refusal}),
    Phase.CLOSED: frozenset(
        {
            messages.Unmask,
            messages.Survivors,
            messages.Refusal,
            messages.RecomputeNonce,
            messages.ChunkRequest,
        }
    ),
    Phase.ABORTED: frozenset({messages.Abandon, messages.Refusal}),
}


def advance(phase: Phase, step: Step) -> Phase:
    """The next phase; LocalProtocolError if the table has none."""
    following = TRANSITIONS.get((phase, step))
    if following is None:
        raise LocalProtocolError(f"a round in phase {phase} cannot go on after {step!s}")
    return following


def require_heard(
    hears: dict[Phase, frozenset[type[messages.Message]]], phase: Phase, message: messages.Message
) -> None:
    """Raise WrongPhaseError unless this kind of message is awaited in this phase."""
    if type(message) not in hears[phase]:
        raise WrongPhaseError(
            f"a {type(message).__name__} is not awaited in phase {phase}; it is too early or too "
            f"late for this attempt"
        )

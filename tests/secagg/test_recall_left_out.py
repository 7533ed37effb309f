"""A restarted silo whose vector is in no sum learns so from the certificate alone."""

from collections.abc import Mapping

import numpy as np
import pytest

from secagg.errors import ForgedSumError
from secagg.journal import JournalEvent, JournalRecord, SiloHistory
from secagg.messages import MaskedInput, Message, Result
from secagg.parameters import RoundParameters, VectorSpec, bulk
from secagg.recall import RecalledRound
from secagg.ring import IntVector
from secagg.testing import MemoryStore, RoundHarness, make_federation, make_parameters

FEDERATION = make_federation(5)
SPEC = VectorSpec(segments=(bulk("update", 2, value_bits=16, n_max=5),))
PARAMETERS = make_parameters(FEDERATION.roster, SPEC)


def _train(seat: int, _parameters: RoundParameters, _state: bytes) -> Mapping[str, IntVector]:
    return {"update": np.full(2, seat, np.int64)}


def _finished(histories: dict[int, SiloHistory]) -> Result:
    """A round in which silo 2's upload is lost on the way; returns its Result."""
    results: list[Result] = []

    def lose(seat: int, message: Message) -> Message | None:
        return None if seat == 2 and isinstance(message, MaskedInput) else message

    def keep(_seat: int, message: Message) -> Message:
        if isinstance(message, Result):
            results.append(message)
        return message

    RoundHarness(
        federation=FEDERATION,
        parameters=PARAMETERS,
        state=b"state",
        train=_train,
        histories=histories,
        to_server=lose,
        to_silo=keep,
    ).run()
    return results[0]


def _recalled(seat: int, histories: dict[int, SiloHistory]) -> tuple[RecalledRound, SiloHistory]:
    """The silo as another process finds it: with its journal up to the upload, and no sum."""
    submission = histories[seat].submission(PARAMETERS.attempt_id)
    assert submission is not None
    history = SiloHistory(
        [
            JournalRecord(event=JournalEvent.OPENED, attempt=PARAMETERS.attempt_id),
            JournalRecord(
                event=JournalEvent.SUBMITTED, attempt=PARAMETERS.attempt_id, submission=submission
            ),
        ]
    )
    recalled = RecalledRound(
        PARAMETERS.attempt_id,
        seat=seat,
        identity=FEDERATION.identities[seat],
        roster=FEDERATION.roster,
        history=history,
        store=MemoryStore(),
    )
    return recalled, history


def test_who_is_left_out_needs_no_sum() -> None:
    """The submission is settled: its vector is in no sum that anybody holds."""
    histories: dict[int, SiloHistory] = {}
    result = _finished(histories)
    recalled, history = _recalled(2, histories)
    assert history.open_submissions(PARAMETERS.run) == (PARAMETERS.attempt_id,)
    assert recalled.can_do_without(result)
    recalled.receive(result)
    assert history.has(PARAMETERS.attempt_id, JournalEvent.LEFT_OUT)
    assert history.open_submissions(PARAMETERS.run) == ()


def test_a_survivor_does_not_do_without_the_sum() -> None:
    """Its submission stays open until it has checked what it is in."""
    histories: dict[int, SiloHistory] = {}
    result = _finished(histories)
    recalled, history = _recalled(3, histories)
    assert not recalled.can_do_without(result)
    with pytest.raises(ForgedSumError):
        recalled.receive(result)
    assert history.open_submissions(PARAMETERS.run) == (PARAMETERS.attempt_id,)

"""Tests of secagg.recall: a silo after a restart says again what it said, and nothing new."""

from dataclasses import replace
from typing import get_args

import pytest

from secagg import messages
from secagg.effects import Finished, Persist, Send
from secagg.errors import (
    BadSignatureError,
    ForgedSumError,
    LocalProtocolError,
    SurvivorsUncertifiedError,
)
from secagg.journal import JournalEvent, JournalRecord, SiloHistory
from secagg.messages import (
    Abandon,
    AbandonRequest,
    MaskedInput,
    RoundFailed,
    Survivors,
    Unmask,
)
from secagg.recall import RecalledRound, abandon, record, resend
from tests.adversary.stage import Stage

SEAT = 2


def restarted(stage: Stage) -> RecalledRound:
    """Silo 2 from its journal as it is on disk."""
    return stage.restarted(SEAT)


def request(stage: Stage, attempt: int = 0) -> AbandonRequest:
    """Asks for a promise."""
    return AbandonRequest(run=stage.parameters.run, round=1, attempt=attempt)


def said(stage: Stage) -> dict[type, messages.ServerMessage]:
    """All that a server says in an attempt."""
    failed = RoundFailed(run=stage.parameters.run, round=1, attempt=0, reason="x")
    return {
        type(item): item
        for item in (
            stage.opening(),
            stage.keys(),
            stage.boxes(SEAT),
            stage.notice(),
            stage.request(),
            stage.certificate(),
            failed,
        )
    }


def test_the_journalled_bytes_are_sent_again() -> None:
    """Each in answer to what asks for it; keys and shares are lost with the process."""
    stage = Stage(4)
    stage.open_shares()
    recalled = restarted(stage)
    answers = {messages.StateNotice: MaskedInput, messages.SurvivorsRequest: Survivors}
    answers[messages.Certificate] = Unmask
    told = said(stage)
    others = {AbandonRequest, messages.Result}
    assert set(told) == set(get_args(messages.RoundMessage)) - others
    for kind, message in told.items():
        effects = recalled.receive(message)
        if kind in answers:
            assert effects == [Send(message=stage.last(SEAT, answers[kind]))]
        else:
            assert effects == []


def test_a_vector_that_is_gone_is_not_sent_again() -> None:
    """Its fate was known, so the driver let go of it; a restored server may still ask."""
    stage = Stage(4)
    stage.mask()
    recalled = restarted(stage)
    assert recalled.receive(stage.notice()) == [Send(message=stage.last(SEAT, MaskedInput))]
    stage.stores[SEAT].discard(messages.MASKED)
    assert recalled.receive(stage.notice()) == []


def test_nothing_new_is_signed_or_opened() -> None:
    """Whatever the journal does not hold."""
    stage = Stage(4)
    stage.share()
    recalled = restarted(stage)
    whole = Stage(4)
    whole.open_shares()
    for message in said(whole).values():
        assert recalled.receive(message) == []


def test_the_result_is_checked_and_the_submission_closed() -> None:
    """With the key of the tags from the journal; once."""
    stage = Stage(4)
    stage.open_shares()
    recalled = restarted(stage)
    result = stage.result(stage.sum_of(1, 2, 3, 4))
    finished, closed = recalled.receive(result)
    assert isinstance(finished, Finished)
    assert finished.aggregate.survivors == (1, 2, 3, 4)
    assert isinstance(closed, Persist)
    assert closed.record.event is JournalEvent.CLOSED
    assert stage.histories[SEAT].open_submissions(stage.parameters.run) == ()
    assert recalled.receive(result) == []


def test_a_forged_result_leaves_the_submission_open() -> None:
    """And is the only one that is looked at."""
    stage = Stage(4)
    stage.open_shares()
    recalled = restarted(stage)
    values = stage.sum_of(1, 2, 3, 4)
    values["count"][0] -= 1
    with pytest.raises(ForgedSumError):
        recalled.receive(stage.result(values))
    values["count"][0] += 1
    with pytest.raises(LocalProtocolError, match="no second result"):
        recalled.receive(stage.result(values))
    assert stage.histories[SEAT].open_submissions(stage.parameters.run)


def test_a_refusal_is_marked_once_before_it_is_over() -> None:
    """The driver writes the mark after the exception; later messages add nothing to it."""
    stage = Stage(4)
    stage.open_shares()
    recalled = restarted(stage)
    forged = replace(stage.result(stage.sum_of(1, 2, 3, 4)), nbytes=1)
    with pytest.raises(ForgedSumError):
        recalled.receive(forged)
    (mark,) = recalled.parting
    assert isinstance(mark, Persist)
    assert mark.record.event is JournalEvent.REFUSED
    with pytest.raises(LocalProtocolError):
        recalled.receive(forged)
    assert recalled.parting == []
    for message in said(stage).values():
        assert recalled.receive(message) == []  # not even what it said before


def test_a_refused_attempt_may_still_be_settled_by_its_certificate() -> None:
    """Who is left out learns so from signatures alone: nobody can guess those."""
    stage = Stage(4)
    stage.mask()
    recalled = restarted(stage)
    for seat in (1, 3, 4):
        stage.tell(seat, stage.request(1, 3, 4))
    result = stage.result(stage.sum_of(1, 3, 4), 1, 3, 4)
    with pytest.raises(BadSignatureError):
        recalled.receive(replace(result, signature=bytes(64)))
    few = replace(result, endorsements=result.endorsements[1:])
    with pytest.raises(SurvivorsUncertifiedError):
        recalled.receive(messages.signed(few, stage.federation.coordinator))
    assert recalled.parting == []  # marked before
    events = [e.record.event for e in recalled.receive(result) if isinstance(e, Persist)]
    assert events == [JournalEvent.LEFT_OUT]


def test_a_result_without_the_own_vector() -> None:
    """Cut off after its upload, then left out: it learns so from the result's certificate."""
    stage = Stage(4)
    stage.mask()
    recalled = restarted(stage)
    for seat in (1, 3, 4):
        stage.tell(seat, stage.request(1, 3, 4))
    effects = recalled.receive(stage.result(stage.sum_of(1, 3, 4), 1, 3, 4))
    events = [effect.record.event for effect in effects if isinstance(effect, Persist)]
    assert events == [JournalEvent.LEFT_OUT, JournalEvent.CLOSED]
    model = messages.model_hash("training", b"the state of the round")
    assert stage.histories[SEAT].prior("training", model, stage.parameters.run) == ()


def test_survivors_are_learnt_from_the_result() -> None:
    """A silo that was cut off after its upload knows with whom it was summed."""
    stage = Stage(4)
    stage.mask()
    recalled = restarted(stage)
    for seat in (1, 3, 4):
        stage.tell(seat, stage.request())
    recalled.receive(stage.result(stage.sum_of(1, 2, 3, 4)))
    model = messages.model_hash("training", b"the state of the round")
    known = stage.histories[SEAT].prior("training", model, stage.parameters.run)
    assert known == ((1, 2, 3, 4),)


def test_a_helper_has_no_result_to_check() -> None:
    """Without a submission it keeps no key."""
    stage = Stage(4)
    stage.announce()
    stage.carry_out(SEAT, stage.silos[SEAT].go_late())
    stage.submit(1, 3, 4)
    for seat in (1, 3, 4):
        stage.tell(seat, stage.request())
    recalled = restarted(stage)
    assert recalled.receive(stage.result(stage.sum_of(1, 3, 4), 1, 3, 4)) == []


def test_a_promise_after_a_restart() -> None:
    """Given once, repeated byte for byte; not about other attempts; not after an opening."""
    stage = Stage(4)
    stage.agree()
    recalled = restarted(stage)
    assert recalled.receive(request(stage, attempt=3)) == []
    kept, sent = recalled.receive(request(stage))
    assert isinstance(kept, Persist)
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Abandon)
    assert messages.decode_message(kept.record.message) == sent.message
    assert recalled.receive(request(stage)) == [sent]
    opened = Stage(4)
    opened.open_shares()
    assert restarted(opened).receive(request(opened)) == []


def test_an_opening_in_another_attempt_forbids_the_promise() -> None:
    """One opening a round, so that no promise of that round is safe any more."""
    stage = Stage(4)
    stage.open_shares()
    history = SiloHistory(stage.journals[SEAT])
    other = stage.parameters.next_attempt().attempt_id
    arguments = {
        "history": history,
        "identity": stage.federation.identities[SEAT],
        "seat": SEAT,
        "roster": stage.roster,
    }
    assert abandon(other, **arguments) == []  # type: ignore[arg-type]  # by name


def test_a_journal_without_the_wanted_message() -> None:
    """Is the caller's mistake, as is one that holds what no silo sends."""
    stage = Stage(4)
    attempt = stage.parameters.attempt_id
    history = SiloHistory()
    with pytest.raises(LocalProtocolError, match="holds no message for signed"):
        resend(history, attempt, JournalEvent.SIGNED)
    wrong = JournalRecord(
        event=JournalEvent.SIGNED, attempt=attempt, message=request(stage).encode()
    )
    (effect,) = record(history, wrong)
    assert effect == Persist(record=wrong)
    with pytest.raises(LocalProtocolError, match="no silo sends"):
        resend(history, attempt, JournalEvent.SIGNED)

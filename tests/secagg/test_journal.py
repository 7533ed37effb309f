"""Tests of secagg.journal: what is remembered, and what follows from it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import ReplayError
from secagg.ids import AttemptId, RunId
from secagg.journal import (
    SUMMARIZED_AFTER,
    AttemptSummary,
    JournalEvent,
    JournalLine,
    JournalRecord,
    SiloHistory,
    Submission,
    decode_line,
)
from secagg.messages import Abandon
from secagg.parameters import RoundParameters, VectorSpec, bulk
from secagg.secretbytes import Secret
from secagg.testing import make_federation, make_parameters

FEDERATION = make_federation(5)
SPEC = VectorSpec(segments=(bulk("update", 4, value_bits=16, n_max=5),))
RUN, ELSEWHERE = RunId(b"run-for-testing!"), RunId(b"another run 1234")
STATE, NEXT = b"s" * 32, b"n" * 32
E = JournalEvent


def parameters(number: int = 1, attempt: int = 0, run: RunId = RUN, **more: Any) -> RoundParameters:
    """Of an attempt."""
    return make_parameters(FEDERATION.roster, SPEC, round=number, attempt=attempt, run=run, **more)


def submission(
    of: RoundParameters, model: bytes = STATE, u1: tuple[int, ...] = (1, 2, 3, 4, 5)
) -> Submission:
    """A masked vector of this attempt."""
    return Submission(
        parameters=of,
        model_hash=model,
        binding=bytes(32),
        u1=u1,
        signers=u1,
        threshold=of.threshold(len(u1)),
        key=Secret(bytes(32)),
    )


def history(of: RoundParameters, *events: JournalEvent, model: bytes = STATE) -> SiloHistory:
    """A silo to which these things have happened, in this order."""
    known = SiloHistory()
    add(known, of, *events, model=model)
    return known


def add(
    known: SiloHistory, of: RoundParameters, *events: JournalEvent, model: bytes = STATE
) -> None:
    """One more attempt."""
    for event in events:
        record = JournalRecord(
            event=event,
            attempt=of.attempt_id,
            message=event.value.encode(),
            survivors=(1, 2, 3, 4) if event in {E.SIGNED, E.UNMASKED} else (),
            submission=submission(of, model) if event is E.SUBMITTED else None,
        )
        known.apply(JournalRecord.decode(record.encode()))


def abandons(of: RoundParameters, *seats: int) -> list[Abandon]:
    """Statements; signatures are checked elsewhere."""
    return [
        Abandon(federation=of.federation, run=of.run, round=of.round, attempt=of.attempt, seat=seat)
        for seat in seats
    ]


def test_what_happened_is_remembered() -> None:
    """Events, the bytes that were sent, the submission."""
    of = parameters()
    known = history(of, E.OPENED, E.SUBMITTED, E.SIGNED)
    attempt = of.attempt_id
    assert known.has(attempt, E.SUBMITTED)
    assert not known.has(attempt, E.UNMASKED)
    assert known.message(attempt, E.SIGNED) == b"signed"
    assert known.message(attempt, E.UNMASKED) is None
    assert known.submission(attempt) == submission(of)
    unknown = AttemptId(run=RUN, round=9, attempt=9)
    assert not known.has(unknown, E.OPENED)
    assert known.message(unknown, E.OPENED) is None
    assert known.submission(unknown) is None
    assert SiloHistory().submission(attempt) is None


def test_a_record_without_a_message_erases_none() -> None:
    """The first bytes are the ones to be sent again."""
    known = history(parameters(), E.SIGNED)
    attempt = parameters().attempt_id
    known.apply(JournalRecord(event=E.SIGNED, attempt=attempt))
    assert known.message(attempt, E.SIGNED) == b"signed"


def test_a_replayed_journal_is_the_same_history() -> None:
    """Record by record as it was written."""
    of = parameters()
    attempt = of.attempt_id
    records = [
        JournalRecord(event=E.OPENED, attempt=attempt),
        JournalRecord(event=E.SUBMITTED, attempt=attempt, submission=submission(of)),
    ]
    known = SiloHistory(records)
    assert known.open_submissions(RUN) == (attempt,)


@pytest.mark.parametrize("settled", [E.DEAD, E.LEFT_OUT, E.CLOSED])
def test_a_submission_is_open_until_its_fate_is_known(settled: JournalEvent) -> None:
    """Neither a signature nor an opening nor a promise closes it."""
    of = parameters()
    known = history(of, E.OPENED, E.SUBMITTED, E.SIGNED, E.UNMASKED, E.ABANDONED, E.LATE)
    assert known.open_submissions(RUN) == (of.attempt_id,)
    assert known.open_submissions(ELSEWHERE) == ()
    add(known, of, settled)
    assert known.open_submissions(RUN) == ()


def test_a_helper_has_no_submission() -> None:
    """Nothing to close."""
    assert history(parameters(), E.OPENED, E.LATE, E.UNMASKED).open_submissions(RUN) == ()


def test_where_shares_were_opened() -> None:
    """By round, whatever the attempt."""
    known = history(parameters(3, attempt=2), E.OPENED, E.UNMASKED)
    assert known.unmasked_in(RUN, 3) == parameters(3, attempt=2).attempt_id
    assert known.unmasked_in(RUN, 4) is None
    assert known.unmasked_in(ELSEWHERE, 3) is None
    assert history(parameters(), E.OPENED, E.SIGNED).unmasked_in(RUN, 1) is None


def test_t_distinct_members_of_u1_make_an_attempt_dead() -> None:
    """N=5, n_c=1: four. Repetitions and others do not count."""
    of = parameters()
    known = history(of, E.OPENED, E.SUBMITTED)
    dead = (of.attempt_id,)
    assert known.newly_dead(RUN, abandons(of, 1, 2, 3, 4)) == dead
    assert known.newly_dead(RUN, abandons(of, 1, 2, 3)) == ()
    assert known.newly_dead(RUN, abandons(of, 1, 2, 3, 3, 3)) == ()
    assert known.newly_dead(RUN, abandons(of, 1, 2, 3, 6, 7, 8)) == ()
    assert known.newly_dead(RUN, abandons(parameters(1, 1), 1, 2, 3, 4)) == ()
    assert known.newly_dead(ELSEWHERE, abandons(of, 1, 2, 3, 4)) == ()
    add(known, of, E.DEAD)
    assert known.newly_dead(RUN, abandons(of, 1, 2, 3, 4)) == ()


def test_no_attempt_on_a_regular_graph_is_provably_dead() -> None:
    """The quorum is proven for the complete graph only."""
    of = parameters(mode="semi-honest", graph="regular/30")
    known = history(of, E.OPENED, E.SUBMITTED)
    assert known.newly_dead(RUN, abandons(of, 1, 2, 3, 4, 5)) == ()


@pytest.mark.parametrize(
    ("number", "attempt", "events", "refused"),
    [
        # Of round 5, attempt 1: what happened in it, and whether (number, attempt) may follow.
        (5, 1, (E.OPENED,), "opened before"),
        (5, 0, (E.OPENED,), "opened before"),
        (5, 2, (E.OPENED,), ""),
        (5, 2, (E.OPENED, E.LATE), ""),
        (5, 2, (E.OPENED, E.SUBMITTED), "no abandon certificate"),
        (5, 2, (E.OPENED, E.SUBMITTED, E.ABANDONED), "no abandon certificate"),
        (5, 2, (E.OPENED, E.SUBMITTED, E.DEAD), ""),
        (5, 2, (E.OPENED, E.SUBMITTED, E.LEFT_OUT), ""),
        (5, 2, (E.OPENED, E.SUBMITTED, E.UNMASKED), ""),  # it may help
        (5, 2, (E.OPENED, E.SUBMITTED, E.UNMASKED, E.CLOSED), "had been released"),
        (5, 2, (E.OPENED, E.SUBMITTED, E.CLOSED), "had been released"),
        (4, 0, (E.OPENED, E.SUBMITTED), ""),
        (4, 0, (E.OPENED, E.UNMASKED), "had been released"),
        (4, 9, (E.OPENED, E.CLOSED), "had been released"),
        (6, 0, (E.OPENED, E.SUBMITTED), ""),
        (6, 0, (E.OPENED, E.UNMASKED), ""),
        (6, 0, (E.OPENED, E.CLOSED), ""),
    ],
)
def test_what_may_be_opened_after_what(
    number: int, attempt: int, events: tuple[JournalEvent, ...], refused: str
) -> None:
    """Check A2."""
    known = history(parameters(5, 1), *events)
    wanted = parameters(number, attempt)
    if refused:
        with pytest.raises(ReplayError, match=refused):
            known.check_open(wanted)
    else:
        known.check_open(wanted)
    known.check_open(replace(wanted, run=ELSEWHERE))


def test_pro_01_repeats_of_a_state_in_any_session() -> None:
    """The same state anywhere; another state only while an earlier submission is open."""
    of = parameters(1)
    survivors = (1, 2, 3, 4)
    finished = history(of, E.SUBMITTED, E.SIGNED, E.UNMASKED, E.CLOSED)
    assert finished.prior("training", STATE, RUN) == (survivors,)
    assert finished.prior("training", STATE, ELSEWHERE) == (survivors,)
    assert finished.prior("training", NEXT, RUN) == ()
    waiting = history(of, E.SUBMITTED, E.SIGNED, E.UNMASKED)
    assert waiting.prior("training", NEXT, RUN) == (survivors,)
    assert waiting.prior("statistics", NEXT, RUN) == ()
    assert waiting.prior("training", NEXT, ELSEWHERE) == ()
    lost = history(of, E.SUBMITTED, E.SIGNED)  # what was only signed is not certified
    assert lost.prior("training", STATE, RUN) == (None,)
    for gone in (E.DEAD, E.LEFT_OUT):
        assert history(of, E.SUBMITTED, E.UNMASKED, gone).prior("training", STATE, RUN) == ()
    assert history(of, E.OPENED, E.LATE, E.UNMASKED).prior("training", STATE, RUN) == ()


def test_several_repeats_of_one_state() -> None:
    """Equal survivors are one prior."""
    known = history(parameters(1), E.SUBMITTED, E.UNMASKED, E.CLOSED)
    add(known, parameters(2), E.SUBMITTED, E.UNMASKED, E.CLOSED)
    assert known.prior("training", STATE, RUN) == ((1, 2, 3, 4),)
    add(known, parameters(3), E.SUBMITTED)
    assert known.prior("training", STATE, RUN) == ((1, 2, 3, 4), None)


def test_a_result_tells_the_survivors_to_who_missed_the_certificate() -> None:
    """The record of the end names them then."""
    of = parameters(1)
    known = history(of, E.SUBMITTED)
    known.apply(JournalRecord(event=E.CLOSED, attempt=of.attempt_id, survivors=(1, 2, 5)))
    assert known.prior("training", STATE, RUN) == ((1, 2, 5),)


def test_a_proven_liar_is_named_no_more() -> None:
    """Neither as an earlier survivor nor in the participation ledger, whatever came first."""
    known = history(parameters(1), E.SUBMITTED, E.UNMASKED)
    lift = JournalRecord(
        event=E.LIFTED, attempt=parameters(2).attempt_id, message=STATE, survivors=(4,)
    )
    known.apply(lift)
    add(known, parameters(2), E.SUBMITTED, E.UNMASKED)
    assert known.prior("training", STATE, RUN) == ((1, 2, 3),)
    assert known.certified() == [frozenset({1, 2, 3})] * 2
    assert known.liars == {4}
    # It spoiled a sum over this state; over others it may be an honest silo again.
    add(known, parameters(3), E.SUBMITTED, E.UNMASKED, E.CLOSED, model=NEXT)
    assert known.prior("training", NEXT, ELSEWHERE) == ((1, 2, 3, 4),)
    assert known.certified()[-1] == {1, 2, 3, 4}
    late = SiloHistory([lift])
    add(late, parameters(1), E.SUBMITTED)
    assert late.prior("training", STATE, RUN) == (None,)


def test_a_result_settles_the_same_sum_of_a_round_that_was_lost() -> None:
    """Over the same silos, on the same state, in the same run; no other open submission."""
    lost = parameters(1)
    for of, model, is_settled in (
        (parameters(2), STATE, True),
        (parameters(2), NEXT, False),
        (parameters(2, run=ELSEWHERE), STATE, False),
    ):
        known = history(lost, E.SUBMITTED, E.UNMASKED)
        add(known, of, E.SUBMITTED, E.UNMASKED, E.CLOSED, model=model)
        assert (known.open_submissions(RUN) == ()) is is_settled
    for survivors in ((), (1, 2, 3)):  # unknown, or others
        known = history(lost, E.SUBMITTED)
        known.apply(JournalRecord(event=E.UNMASKED, attempt=lost.attempt_id, survivors=survivors))
        add(known, parameters(2), E.SUBMITTED, E.UNMASKED, E.CLOSED)
        assert known.open_submissions(RUN) == (lost.attempt_id,)
    unknown = history(lost, E.SUBMITTED)
    add(unknown, parameters(2), E.SUBMITTED, E.CLOSED)
    assert unknown.open_submissions(RUN) == (lost.attempt_id,)


# What may become of an attempt, as the silo's rounds write it.
FATES = (
    (E.OPENED,),
    (E.OPENED, E.ABANDONED),
    (E.ABANDONED,),
    (E.OPENED, E.LATE, E.UNMASKED),
    (E.OPENED, E.SUBMITTED),
    (E.OPENED, E.SUBMITTED, E.ABANDONED, E.DEAD),
    (E.OPENED, E.SUBMITTED, E.SIGNED, E.UNMASKED),
    (E.OPENED, E.SUBMITTED, E.SIGNED, E.UNMASKED, E.LEFT_OUT),
    (E.OPENED, E.SUBMITTED, E.SIGNED, E.UNMASKED, E.CLOSED),
    (E.OPENED, E.SUBMITTED, E.LIFTED, E.SIGNED, E.UNMASKED),
    (E.OPENED, E.SUBMITTED, E.LIFTED, E.SIGNED, E.UNMASKED, E.CLOSED),
)
STATES = (STATE, NEXT)
PAST = st.lists(
    st.tuples(st.sampled_from((RUN, ELSEWHERE)), st.sampled_from(FATES), st.sampled_from(STATES)),
    max_size=14,
)


def _named(event: JournalEvent, fate: tuple[JournalEvent, ...]) -> tuple[int, ...]:
    """The survivors, without a dealer that was proven a liar before they were signed."""
    if event in {E.SIGNED, E.UNMASKED}:
        return (1, 2, 3) if E.LIFTED in fate else (1, 2, 3, 4)
    return (4,) if event is E.LIFTED else ()


def lived(past: list[tuple[RunId, tuple[JournalEvent, ...], bytes]]) -> list[JournalLine]:
    """The lines of a silo to which these attempts have happened, one round each."""
    lines: list[JournalLine] = []
    for number, (run, fate, model) in enumerate(past, start=1):
        of = parameters(number, run=run)
        lines += [
            JournalRecord(
                event=event,
                attempt=of.attempt_id,
                message=model if event is E.LIFTED else event.value.encode() * 100,
                survivors=_named(event, fate),
                submission=submission(of, model) if event is E.SUBMITTED else None,
            )
            for event in fate
        ]
    return lines


def answers(known: SiloHistory, rounds: int) -> list[object]:
    """Everything that a round may ask about the past."""
    found: list[object] = [known.certified()]
    for run in (RUN, ELSEWHERE):
        found.append(known.open_submissions(run))
        found += [known.prior("training", model, run) for model in STATES]
        for number in range(1, rounds + 2):
            attempt = AttemptId(run=run, round=number, attempt=0)
            found += [known.has(attempt, event) for event in E]
            found.append(known.unmasked_in(run, number))
            for again in (0, 1):
                try:
                    known.check_open(parameters(number, again, run=run))
                    found.append("may be opened")
                except ReplayError as error:
                    found.append(str(error))
    return found


@given(PAST)
def test_a_shortened_journal_answers_like_the_whole_one(
    past: list[tuple[RunId, tuple[JournalEvent, ...], bytes]],
) -> None:
    """Nothing that 2.5 asks is forgotten, in this process and in the next one, however often."""
    lines = lived(past)
    expected = answers(SiloHistory(lines), len(past))
    known = SiloHistory(lines)
    short = known.summarize(lines)
    assert answers(known, len(past)) == expected
    read = [decode_line(line.encode()) for line in short]
    assert tuple(read) == short
    assert answers(SiloHistory(read), len(past)) == expected
    assert SiloHistory(read).summarize(read) == short


def test_only_what_is_settled_and_old_is_shortened() -> None:
    """An open submission keeps its key and its bytes; the newest rounds keep theirs."""
    closed = (E.OPENED, E.SUBMITTED, E.SIGNED, E.UNMASKED, E.CLOSED)
    lines = lived([(RUN, closed[:2], STATE)] + [(RUN, closed, NEXT)] * 6)
    known = SiloHistory(lines)
    short = known.summarize(lines)
    summed = [line.attempt.round for line in short if isinstance(line, AttemptSummary)]
    assert summed == [2, 3, 7 - SUMMARIZED_AFTER]
    assert known.message(AttemptId(run=RUN, round=1, attempt=0), E.SUBMITTED) is not None
    assert known.submission(AttemptId(run=RUN, round=1, attempt=0)) is not None
    assert sum(len(line.encode()) for line in short if isinstance(line, AttemptSummary)) < 1000


def test_another_run_makes_an_older_one_s_rounds_old() -> None:
    """A run of one round leaves no more than that, too."""
    closed = (E.OPENED, E.SUBMITTED, E.SIGNED, E.UNMASKED, E.CLOSED)
    lines = lived([(ELSEWHERE, closed, STATE), (RUN, closed, NEXT)])
    short = SiloHistory(lines).summarize(lines)
    assert [isinstance(line, AttemptSummary) for line in short] == [True] + [False] * 5

"""Tests of secagg.silo: every message in every phase, and what a driver can do wrong.

What a lying coordinator can do is tested in tests/adversary.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest

from secagg import messages
from secagg.chain import Standpoint
from secagg.effects import Aborted, AbortReason, Finished, Persist, Send, TrainingWanted
from secagg.errors import (
    LocalProtocolError,
    ModelMismatchError,
    ParameterError,
    PolicyRefusedError,
    RemoteProtocolError,
    SecondUnmaskError,
    SurvivorsMismatchError,
    WrongPhaseError,
)
from secagg.journal import JournalEvent, SiloHistory
from secagg.keys import verify
from secagg.messages import (
    Abandon,
    AbandonRequest,
    Advertise,
    Late,
    MaskedInput,
    Refusal,
    RoundFailed,
    Share,
    Survivors,
    Unmask,
)
from secagg.phases import SILO_HEARS, Phase
from secagg.policy import SiloPolicy
from secagg.recall import abandon
from secagg.silo import SiloRound
from secagg.testing import MemoryStore, SeededRng
from tests.adversary.stage import MODEL, Stage, assert_dead

KINDS = get_args(messages.ServerMessage)
ANYWHERE = {AbandonRequest, RoundFailed}


def _failed(stage: Stage) -> RoundFailed:
    where = stage.parameters
    return RoundFailed(run=where.run, round=where.round, attempt=where.attempt, reason="enough")


def _abandon(stage: Stage) -> AbandonRequest:
    where = stage.parameters
    return AbandonRequest(run=where.run, round=where.round, attempt=where.attempt)


def _aborted(stage: Stage) -> None:
    stage.advertise()
    stage.tell_all(_failed(stage))


REACH: dict[Phase, Callable[[Stage], object]] = {
    Phase.ADVERTISE: lambda _: None,
    Phase.SHARE: Stage.advertise,
    Phase.MASK: Stage.announce,
    Phase.SURVIVORS: Stage.mask,
    Phase.UNMASK: Stage.agree,
    Phase.RESULT: Stage.open_shares,
    Phase.CLOSED: Stage.finish,
    Phase.ABORTED: _aborted,
}


@pytest.fixture(scope="module")
def honest() -> dict[type, messages.ServerMessage]:
    """Each message of an honest attempt as silo 1 gets it; the silos below draw the same keys."""
    stage = Stage(4)
    result = stage.finish()
    said = (
        stage.opening(),
        stage.keys(),
        stage.boxes(1),
        stage.notice(),
        stage.request(),
        stage.certificate(),
        result,
        _abandon(stage),
        _failed(stage),
        messages.Disclosure(binding=bytes(32), nonces=(), opened=()),
        messages.ChunkAnswer(binding=bytes(32), chunk=0, of=0, data=b"", path=()),
    )
    assert {type(item) for item in said} == set(KINDS)
    return {type(item): item for item in said}


@pytest.mark.parametrize(("phase", "kind"), list(product(Phase, KINDS)))
def test_every_message_in_every_phase(
    phase: Phase, kind: type, honest: dict[type, messages.ServerMessage]
) -> None:
    """Answered where it is awaited; else refused by name, and the round is dead."""
    stage = Stage(4)
    REACH[phase](stage)
    silo = stage.silos[1]
    assert silo.phase is phase
    message = honest[kind]
    if kind in ANYWHERE:
        if phase is Phase.ADVERTISE and kind is AbandonRequest:
            stage.refuses(1, message, _named("A2_REPLAY"))
            return
        stage.tell(1, message)
        over = phase is Phase.CLOSED or (kind is AbandonRequest and phase is Phase.RESULT)
        assert silo.phase is (phase if over else Phase.ABORTED)
        return
    if phase in {Phase.CLOSED, Phase.ABORTED}:
        with pytest.raises(LocalProtocolError, match=f"this round is {phase}"):
            stage.tell(1, message)
        assert silo.phase is phase
        return
    if kind not in SILO_HEARS[phase]:
        stage.refuses(1, message, WrongPhaseError, f"not awaited in phase {phase}")
        return
    if phase is Phase.MASK:
        # U2 and the state were accepted, once each; silo 1 did not submit what the list holds.
        with pytest.raises(RemoteProtocolError) as caught:
            stage.tell(1, message)
        assert caught.type is not WrongPhaseError
        assert_dead(silo)
        return
    if kind is messages.Result:
        stage.result(stage.sum_of(1, 2, 3, 4))  # puts the sum's chunks into the store
    stage.tell(1, message)
    assert silo.phase is not Phase.ABORTED


def _named(code: str) -> type[RemoteProtocolError]:
    (found,) = [kind for kind in RemoteProtocolError.__subclasses__() if kind.code == code]
    return found


def test_an_honest_attempt_effect_by_effect() -> None:
    """What is persisted comes before what is sent, and the driver is told when to train."""
    stage = Stage(4)
    effects = stage.tell(1, stage.opening())
    assert [type(e) for e in effects] == [Persist, Send]
    assert isinstance(effects[1], Send)
    assert isinstance(effects[1].message, Advertise)
    for seat in (2, 3, 4):
        stage.tell(seat, stage.opening())
    effects = stage.tell(1, stage.keys())
    assert [type(e) for e in effects] == [Send]
    for seat in (2, 3, 4):
        stage.tell(seat, stage.keys())
    assert stage.tell(1, stage.boxes(1)) == []
    for seat in (2, 3, 4):
        stage.tell(seat, stage.boxes(seat))
    for seat in stage.cohort:
        stage.stores[seat].put_state(MODEL)
    (wanted,) = stage.tell(1, stage.notice())
    assert isinstance(wanted, TrainingWanted)
    assert wanted.parameters == stage.parameters
    assert wanted.state_hash == messages.model_hash("training", MODEL)
    stage.tell_all(stage.notice(), (2, 3, 4))
    stage.submit()
    events = [record.event for record in stage.journals[1]]
    assert events == [JournalEvent.OPENED, JournalEvent.SUBMITTED]
    effects = stage.tell(1, stage.request())
    assert [type(e) for e in effects] == [Persist, Send]
    stage.tell_all(stage.request(), (2, 3, 4))
    effects = stage.tell(1, stage.certificate())
    assert [type(e) for e in effects] == [Persist, Send]
    assert stage.silos[1].survivors == (1, 2, 3, 4)
    # The sum is used before the submission is closed: a crash in between leaves it open.
    (finished, persisted) = stage.tell(1, stage.result(stage.sum_of(1, 2, 3, 4)))
    assert isinstance(finished, Finished)
    assert finished.aggregate.cohort == (1, 2, 3, 4)
    assert isinstance(persisted, Persist)
    assert persisted.record.event is JournalEvent.CLOSED
    kinds = [type(item) for item in stage.sent[1]]
    assert kinds == [Advertise, Share, MaskedInput, Survivors, Unmask]


def test_secrets_are_wiped_once_the_shares_are_opened() -> None:
    """What is left is the key of the tags, for the result; what was sent stays readable."""
    stage = Stage(4, suite=4, policies={n: SiloPolicy(suites=frozenset({4})) for n in range(1, 5)})
    stage.agree()
    silo = stage.silos[1]
    shares = [share for held in silo._own.held.values() for share in (held.share_a, held.share_b)]
    secrets = [silo._own.a, silo._own.b, silo._own.k, *shares, *silo._own.pairs.values()]
    assert len(secrets) == 3 + 2 * 4 + 3
    assert all(len(secret) in {32, 33} for secret in secrets)
    stage.tell(1, stage.certificate())
    assert [len(secret) for secret in secrets] == [0] * len(secrets)
    assert silo._own.held == {}
    with pytest.raises(LocalProtocolError, match="wiped"):
        _ = silo._own.keys
    assert silo._view.tag_key is not None
    assert all(len(item.share) == 33 for item in stage.last(1, Unmask).openings)


def test_secrets_are_wiped_by_a_result_that_needed_no_opening() -> None:
    """The others were enough: the silo accepts the sum and opens nothing any more."""
    stage = Stage(4)
    stage.agree()
    silo = stage.silos[1]
    secrets = [silo._own.a, silo._own.b, silo._own.k]
    stage.tell(1, stage.result(stage.sum_of(1, 2, 3, 4)))
    assert silo.phase is Phase.CLOSED
    assert 1 in stage.finished
    assert [len(secret) for secret in secrets] == [0, 0, 0]
    assert silo._own.held == {}


def test_a_helper_signs_and_opens_without_a_vector() -> None:
    """Silo 4 goes late, by its driver's word, and sees the result like the others."""
    stage = Stage(4)
    stage.announce()
    effects = stage.carry_out(4, stage.silos[4].go_late())
    assert [type(e) for e in effects] == [Persist, Send]
    assert stage.last(4, Late).setup == stage.setup
    stage.submit(1, 2, 3)
    for message in (stage.request(), stage.certificate):
        told = message() if callable(message) else message
        stage.tell_all(told)
    stage.tell_all(stage.result(stage.sum_of(1, 2, 3), 1, 2, 3))
    assert stage.finished[4].aggregate.survivors == (1, 2, 3)
    assert [record.event for record in stage.journals[4]] == [
        JournalEvent.OPENED,
        JournalEvent.LATE,
        JournalEvent.SIGNED,
        JournalEvent.UNMASKED,
        JournalEvent.CLOSED,
    ]


def test_a_silo_that_still_trains_goes_late_by_itself() -> None:
    """The survivors are announced before its vector is ready."""
    stage = Stage(4)
    stage.announce()
    stage.submit(1, 2, 3)
    stage.tell(4, stage.request())
    assert [type(item) for item in stage.sent[4]][-2:] == [Late, Survivors]
    with pytest.raises(LocalProtocolError, match="due between state and survivors"):
        stage.silos[4].contribute(stage.inputs[4])


def test_survivors_before_the_state() -> None:
    """A helper has to know the state; without it the survivors cannot be checked."""
    stage = Stage(4)
    stage.announce()
    stage.submit()
    early = Stage(4)
    early.deliver()
    early.refuses(1, stage.request(), SurvivorsMismatchError, "before the round's state")
    events = [record.event for record in early.journals[1]]
    assert events == [JournalEvent.OPENED, JournalEvent.REFUSED]


@pytest.mark.parametrize(
    "phase", [phase for phase in Phase if phase not in {Phase.MASK, Phase.CLOSED, Phase.ABORTED}]
)
def test_vectors_and_lateness_out_of_place(phase: Phase) -> None:
    """A driver that errs ends the round: nothing is known of what it wanted."""
    for act in ("contribute", "go_late"):
        stage = Stage(4)
        REACH[phase](stage)
        silo = stage.silos[1]
        arguments = [stage.inputs[1]] if act == "contribute" else []
        with pytest.raises(LocalProtocolError):
            getattr(silo, act)(*arguments)
        assert_dead(silo)
        assert silo.farewell is None
    for phase_ in (Phase.CLOSED, Phase.ABORTED):
        stage = Stage(4)
        REACH[phase_](stage)
        with pytest.raises(LocalProtocolError):
            stage.silos[1].go_late()
        assert stage.silos[1].phase is phase_


def test_going_late_before_the_state_is_known() -> None:
    """Between U2 and the state there is nothing to be late for."""
    stage = Stage(4)
    stage.deliver()
    with pytest.raises(LocalProtocolError, match="due between state and survivors"):
        stage.silos[1].go_late()
    assert_dead(stage.silos[1])


def _inputs(stage: Stage, **changes: Any) -> dict[str, Any]:
    return {name: column.copy() for name, column in stage.inputs[1].items()} | changes


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"update": np.zeros(8)}, "expected int64 of shape .8,., got float64"),
        ({"update": np.zeros(8, np.float32)}, "float32"),
        ({"update": np.zeros(8, ">i8")}, "got >i8"),
        ({"update": np.zeros(7, np.int64)}, r"shape \(7,\)"),
        ({"update": np.zeros((8, 1), np.int64)}, r"shape \(8, 1\)"),
        ({"update": np.full(8, 2**15)}, "beyond its bound 32767"),
        ({"update": np.full(8, -(2**15))}, "beyond its bound 32767"),
        ({"count": np.array([2**40 + 1, 0])}, "'count' holds a value beyond its bound"),
        ({"count": np.array([-(2**63), 0])}, "'count' holds a value beyond its bound"),
        ({"more": np.zeros(1, np.int64)}, "expected the segments update, variate, count, got"),
    ],
)
def test_enc_10_vectors_that_do_not_fit(changes: dict[str, Any], match: str) -> None:
    """Nothing is cast in silence, nothing leaves the silo, and no value is named."""
    stage = Stage(4)
    stage.announce()
    before = list(stage.sent[1])
    with pytest.raises(ParameterError, match=match) as caught:
        stage.silos[1].contribute(_inputs(stage, **changes))
    assert stage.sent[1] == before
    assert stage.stores[1].chunks(messages.MASKED) == 0
    assert str(2**40 + 1) not in str(caught.value)
    assert_dead(stage.silos[1])


def test_a_missing_segment() -> None:
    """All of them, every time."""
    stage = Stage(4)
    stage.announce()
    with pytest.raises(ParameterError, match="got update, variate"):
        stage.silos[1].contribute(
            {name: column for name, column in stage.inputs[1].items() if name != "count"}
        )


def test_the_extremes_of_the_range_are_summed() -> None:
    """All silos at +bound and at -bound."""
    for sign in (1, -1):
        stage = Stage(4)
        for seat in stage.cohort:
            stage.inputs[seat] = {
                segment.name: np.full(segment.length, sign * segment.bound)
                for segment in stage.spec.segments
            }
        stage.finish()
        values = stage.finished[1].aggregate.values
        for segment in stage.spec.segments:
            assert set(values[segment.name].tolist()) == {sign * 4 * segment.bound}


def test_the_identity_must_be_the_rosters() -> None:
    """Found before anything is said."""
    stage = Stage(4)
    with pytest.raises(ParameterError, match="another identity key for seat 1"):
        SiloRound(
            seat=1,
            identity=stage.federation.identities[2],
            roster=stage.roster,
            policy=SiloPolicy(),
            history=SiloHistory(),
            store=MemoryStore(),
            rng=SeededRng(0),
        )


@pytest.mark.parametrize("members", [{1, 2, 3, 4}, {1, 2, 3, 4, 5, 6}, None])
def test_a_cohort_beyond_the_members(members: set[int] | None) -> None:
    """No share is dealt to a seat that the driver has not allowed."""
    stage = Stage(5)
    stage.silos[1] = SiloRound(
        seat=1,
        identity=stage.federation.identities[1],
        roster=stage.roster,
        policy=SiloPolicy(),
        history=stage.histories[1],
        store=stage.stores[1],
        rng=SeededRng("members"),
        members=None if members is None else frozenset(members),
    )
    stage.advertise()
    if members is not None and 5 not in members:
        stage.refuses(1, stage.keys(), PolicyRefusedError, r"\[1, 2, 3, 4\] only.* \[5\]")
        assert 1 not in stage.all_of(messages.Share)
    else:
        stage.tell(1, stage.keys())
        assert 1 in stage.all_of(messages.Share)


def test_a_round_that_is_not_open_has_no_parameters() -> None:
    """Asking is the driver's mistake."""
    silo = Stage(4).silos[1]
    for name in ("parameters", "attempt", "public_coins", "_own", "_view"):
        with pytest.raises(LocalProtocolError):
            getattr(silo, name)


def test_a_refusal_is_signed_and_says_what_was_expected() -> None:
    """Over the ctx that was refused; nothing secret is in it."""
    stage = Stage(4, policies={1: SiloPolicy(n_min=4)})
    stage.refuses(1, stage.opening(), PolicyRefusedError)
    farewell = stage.silos[1].farewell
    assert isinstance(farewell, Refusal)
    verify(stage.roster.seat(1).identity_key, farewell.signature, farewell.signed_bytes())
    assert farewell.ctx == stage.parameters.ctx()
    assert farewell.code == "A1_POLICY_REFUSED"


def test_notice_of_another_attempts_failure() -> None:
    """A message that is late by an attempt ends nothing."""
    stage = Stage(4)
    stage.advertise()
    assert stage.tell(1, replace(_failed(stage), attempt=7)) == []
    assert stage.silos[1].phase is Phase.SHARE
    (aborted,) = stage.tell(1, _failed(stage))
    assert aborted == Aborted(reason=AbortReason.STOPPED, detail="enough")
    assert_dead(stage.silos[1])
    assert stage.tell(1, _failed(stage)) == []
    fresh = Stage(4)
    fresh.tell(1, _failed(fresh))
    assert_dead(fresh.silos[1])


def test_no_opening_after_a_promise_made_elsewhere() -> None:
    """The journal's word counts, whoever gave it."""
    stage = Stage(4)
    stage.agree()
    effects = abandon(
        stage.parameters.attempt_id,
        history=stage.histories[1],
        identity=stage.federation.identities[1],
        seat=1,
        roster=stage.roster,
    )
    assert [type(e) for e in effects] == [Persist, Send]
    stage.refuses(1, stage.certificate(), SecondUnmaskError, "promised to open nothing")


def test_abandoning_wipes() -> None:
    """And the statement is about this attempt."""
    stage = Stage(4)
    stage.mask()
    stage.tell(1, _abandon(stage))
    assert_dead(stage.silos[1])
    statement = stage.last(1, Abandon)
    assert statement.attempt_id == stage.parameters.attempt_id
    assert stage.histories[1].has(statement.attempt_id, JournalEvent.ABANDONED)
    stage.tell(1, _failed(stage))
    stage.tell(1, _abandon(stage))
    assert stage.last(1, Abandon) == statement


def test_a_state_beyond_the_policys_size() -> None:
    """The silo's own limit."""
    stage = Stage(4, policies={1: SiloPolicy(max_state_bytes=len(MODEL) - 1)})
    stage.deliver()
    stage.stores[1].put_state(MODEL)
    stage.refuses(1, stage.notice(), PolicyRefusedError, "max_state_bytes")
    fits = Stage(4, policies={1: SiloPolicy(max_state_bytes=len(MODEL))})
    fits.announce()


def test_an_announced_size_that_is_not_the_states() -> None:
    """The size is not signed, and checked."""
    stage = Stage(4)
    stage.deliver()
    stage.stores[1].put_state(MODEL)
    forged = replace(stage.notice(), nbytes=len(MODEL) - 1)
    stage.refuses(1, forged, ModelMismatchError, "not those that the coordinator signed")


def test_an_interrupt_ends_the_round_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is raised, the secrets go."""
    stage = Stage(4)
    stage.advertise()

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("secagg.holdings.deal", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stage.tell(1, stage.keys())
    assert_dead(stage.silos[1])
    assert stage.silos[1].farewell is None


def test_pro_09_round_zero_is_a_round() -> None:
    """The first round may have number 0."""
    stage = Stage(4, round=0)
    stage.finish()
    assert sorted(stage.finished) == [1, 2, 3, 4]


def test_a_result_that_came_while_the_silo_trained() -> None:
    """Opened ahead, on a state that is not the one which follows: the vector is not sent."""
    stage = Stage(4)
    stage.announce()
    stage.silos[1].standpoint = Standpoint(round=0, model_hash=bytes(32))
    effects = stage.carry_out(1, stage.silos[1].contribute(stage.inputs[1]))
    assert [type(e) for e in effects] == [Persist, Send]
    assert stage.last(1, Late).setup == stage.setup
    assert 1 not in stage.all_of(MaskedInput)

"""Tests of secagg.server: every message in every phase, every end, and that refusals move nothing.

What lying silos can do is tested in tests/adversary.
"""

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest

from secagg import messages
from secagg.blame import Suspect
from secagg.effects import AbortReason, Broadcast, DeadlineSet, Finished, ReleaseWanted
from secagg.errors import (
    BadSignatureError,
    ContradictionError,
    LocalProtocolError,
    ParameterError,
    RemoteProtocolError,
    ReplayError,
    RosterError,
    WrongPhaseError,
)
from secagg.ids import FederationId, RunId
from secagg.messages import (
    Abandon,
    AbandonRequest,
    Advertise,
    Complaint,
    Late,
    MaskedInput,
    Refusal,
    RoundFailed,
    Share,
    SignedMessage,
    SiloMessage,
    Survivors,
    Unmask,
)
from secagg.parameters import MODE_SEMI_HONEST
from secagg.phases import SERVER_HEARS, Phase
from secagg.server import PhaseDeadlines, ServerRound
from secagg.testing import PLAN, MemoryStore, make_federation
from secagg.vectors import put_sum
from tests.adversary.stage import MODEL, Stage
from tests.secagg.meeting import Meeting

KINDS: tuple[type[Any], ...] = (*get_args(messages.SignedSiloMessage), Late)
ODD = 5  # the silo whose message is out of time
TIMED = (Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.SURVIVORS, Phase.UNMASK)


def _signed(stage: Stage, message: Any) -> Any:
    return messages.signed(message, stage.federation.identities[message.seat])


def _unprompted(stage: Stage, kind: type[Any], setup: bytes) -> SiloMessage:
    """A well-formed message of a kind that no silo sends in an honest attempt."""
    where = stage.parameters
    made: dict[type[Any], Any] = {
        Late: Late(setup=setup, seat=ODD),
        Complaint: Complaint(setup=setup, seat=ODD, dealer=1, reason="A4_BAD_SHARE"),
        Refusal: Refusal(ctx=where.ctx(), seat=ODD, code="TRAINING", reason="no data"),
        Abandon: Abandon(federation=where.federation, run=where.run, round=1, attempt=0, seat=ODD),
    }
    message: SiloMessage = made[kind] if kind is Late else _signed(stage, made[kind])
    return message


@pytest.fixture(scope="module")
def honest() -> Stage:
    """All that five silos say in an honest attempt; those below draw the same keys."""
    stage = Stage(5)
    Meeting(stage).until(Phase.CLOSED).drain()
    return stage


def _reach(phase: Phase, kind: type[Any]) -> Meeting:
    """A server in this phase that has not heard a message of this kind from silo 5."""
    meeting = Meeting(
        Stage(5), withhold=lambda seat, message: seat == ODD and isinstance(message, kind)
    )
    if phase is Phase.ABORTED:
        meeting.until(Phase.MASK)
        meeting.carry_out(meeting.server.stop("enough"))
        return meeting
    meeting.until(phase)
    return meeting.drain() if kind is MaskedInput and phase is Phase.MASK else meeting


def _told(meeting: Meeting, message: SiloMessage) -> RemoteProtocolError | None:
    try:
        meeting.deliver(message)
    except RemoteProtocolError as error:
        return error
    return None


@pytest.mark.parametrize(("phase", "kind"), list(product(Phase, KINDS)))
def test_every_message_in_every_phase(phase: Phase, kind: type[Any], honest: Stage) -> None:
    """Taken where it is awaited; else refused by name, and nothing has changed."""
    meeting = _reach(phase, kind)
    server = meeting.server
    assert server.phase is phase
    sent = [item for item in meeting.withheld if isinstance(item, kind)]
    if kind in {Late, Complaint, Refusal, Abandon}:
        message = _unprompted(meeting.stage, kind, honest.setup)
    else:
        message = sent[0] if sent else honest.last(ODD, kind)
    before = meeting.snapshot()
    error = _told(meeting, message)
    after = meeting.snapshot()
    if error is None:
        assert kind in SERVER_HEARS[phase]
        assert after != before
    else:
        # Chunks come before the message that speaks of them.
        after["stored"].pop("masked.5", None)
        before["stored"].pop("masked.5", None)
        assert after == before
        # What is awaited is refused only if silo 5 fell out before, for want of this message.
        fell_out = isinstance(error, RosterError | ReplayError)
        assert fell_out if kind in SERVER_HEARS[phase] else type(error) is WrongPhaseError
        return
    # Again, it is nothing new; changed, it is a contradiction.
    before = meeting.snapshot()
    assert server.receive(ODD, message, meeting.now) == []
    assert meeting.snapshot() == before
    if isinstance(message, SignedMessage):
        with pytest.raises(ContradictionError, match="two different"):
            server.receive(ODD, replace(message, signature=bytes(64)), meeting.now)
        assert meeting.snapshot() == before


@pytest.mark.parametrize("kind", [Advertise, Share, MaskedInput, Survivors, Unmask])
def test_a_bad_signature_moves_nothing(kind: type[Any]) -> None:
    """Of each signed message in its phase."""
    phases = dict(zip([Advertise, Share, MaskedInput, Survivors, Unmask], TIMED, strict=True))
    meeting = _reach(phases[kind], kind).drain()
    (message,) = meeting.withheld
    assert isinstance(message, SignedMessage)
    for forged in (
        replace(message, signature=bytes(64)),
        messages.signed(message, meeting.stage.federation.identities[1]),
    ):
        before = meeting.snapshot()
        for item in messages.attachments(forged):
            for chunk in range(item.chunks):
                data = meeting.stage.stores[ODD].read(item.name, chunk)
                meeting.store.write("masked.5", chunk, data)
        before["stored"] = meeting.snapshot()["stored"]
        with pytest.raises(BadSignatureError):
            meeting.server.receive(ODD, forged, meeting.now)
        assert meeting.snapshot() == before


@pytest.mark.parametrize("kind", KINDS)
def test_messages_about_another_attempt_move_nothing(kind: type[Any], honest: Stage) -> None:
    """Setup, ctx, binding and attempt are compared, whoever signs."""
    phases: dict[type[Any], Phase] = {
        Advertise: Phase.ADVERTISE,
        Share: Phase.SHARE,
        MaskedInput: Phase.MASK,
        Late: Phase.MASK,
        Complaint: Phase.MASK,
        Refusal: Phase.MASK,
        Survivors: Phase.SURVIVORS,
        Unmask: Phase.UNMASK,
        Abandon: Phase.ABORTED,
    }
    meeting = _reach(phases[kind], kind)
    if kind in {Late, Complaint, Refusal, Abandon}:
        message: Any = _unprompted(meeting.stage, kind, honest.setup)
    else:
        message = honest.last(ODD, kind)
    names = {"ctx", "setup", "binding", "survivors", "federation", "run", "round", "attempt"}
    for name in names & set(type(message).__dataclass_fields__):
        other: Any = {
            "round": 9,
            "attempt": 9,
            "run": RunId(bytes(16)),
            "federation": FederationId("another"),
        }.get(name, bytes(32))
        forged = replace(message, **{name: other})
        if kind is not Late:
            forged = _signed(meeting.stage, forged)
        before = meeting.snapshot()
        with pytest.raises(ReplayError):
            meeting.server.receive(ODD, forged, meeting.now)
        assert meeting.snapshot() == before


def test_seats_that_may_not_speak() -> None:
    """In another's name, uninvited, or after having fallen out."""
    stage = Stage(5, cohort=(1, 2, 3, 4))
    meeting = Meeting(stage)
    other = Stage(5)
    other.tell(5, other.opening(stage.parameters))
    uninvited = other.last(5, Advertise)
    with pytest.raises(RosterError, match="seat 5 is not invited"):
        meeting.server.receive(5, uninvited, 0.0)
    with pytest.raises(RosterError, match="seat 1 sent a message in the name of seat 5"):
        meeting.server.receive(1, uninvited, 0.0)
    refusal = Refusal(ctx=stage.parameters.ctx(), seat=5, code="X", reason="x")
    with pytest.raises(RosterError, match="not invited"):
        meeting.server.receive(5, _signed(other, refusal), 0.0)


def test_seats_outside_u1_and_u2(honest: Stage) -> None:
    """Each phase counts the members of the one before."""
    meeting = _reach(Phase.SHARE, Advertise)
    with pytest.raises(RosterError, match="has not advertised"):
        meeting.server.receive(5, honest.last(5, Share), 0.0)
    meeting = _reach(Phase.MASK, Share)
    setup = meeting.stage.setup
    with pytest.raises(RosterError, match="no masked vector is awaited"):
        meeting.server.receive(5, honest.last(5, MaskedInput), 0.0)
    with pytest.raises(RosterError, match="cannot go late"):
        meeting.server.receive(5, Late(setup=setup, seat=5), 0.0)
    for seat, dealer in ((5, 1), (1, 5)):
        complaint = Complaint(setup=setup, seat=seat, dealer=dealer, reason="x")
        with pytest.raises(RosterError, match="outside U2"):
            meeting.server.receive(seat, _signed(meeting.stage, complaint), 0.0)
    meeting.until(Phase.SURVIVORS)
    with pytest.raises(RosterError, match="not in U2"):
        meeting.server.receive(5, honest.last(5, Survivors), 0.0)
    meeting.until(Phase.UNMASK)
    with pytest.raises(RosterError, match="not in U2"):
        meeting.server.receive(5, honest.last(5, Unmask), 0.0)
    aborted = _reach(Phase.SHARE, Advertise)
    aborted.carry_out(aborted.server.stop("enough"))
    with pytest.raises(RosterError, match="only silos of U1"):
        aborted.server.receive(5, _unprompted(aborted.stage, Abandon, setup), 0.0)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"signing_key": make_federation(5, seed="x").coordinator}, "another coordinator key"),
        ({"plan": b"another"}, "another training plan"),
        ({"cohort": (2, 1, 3)}, "sorted tuple of distinct seats"),
        ({"cohort": (1, 1, 2)}, "sorted tuple of distinct seats"),
        ({"cohort": (1, 2, 3, 9)}, "sorted tuple of distinct seats"),
        ({"roster": make_federation(5, organizations=2).roster}, "another"),
    ],
)
def test_what_a_server_must_be_given(changes: dict[str, Any], match: str) -> None:
    """Found at construction."""
    stage = Stage(5)
    arguments: dict[str, Any] = {
        "parameters": stage.parameters,
        "plan": PLAN,
        "roster": stage.roster,
        "signing_key": stage.federation.coordinator,
        "store": MemoryStore(),
        "cohort": stage.cohort,
        "deadlines": PhaseDeadlines(),
    }
    ServerRound(**arguments)
    with pytest.raises(ParameterError, match=match):
        ServerRound(**(arguments | changes))
    with pytest.raises(ParameterError, match="n_max = 4 silos, got 5"):
        ServerRound(**(arguments | {"parameters": replace(stage.parameters, n_max=4)}))


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize("name", ["advertise_s", "share_s", "mask_s", "survivors_s", "unmask_s"])
def test_deadlines_lie_ahead(name: str, seconds: float) -> None:
    """Each is above zero."""
    with pytest.raises(ParameterError, match="must be above 0 seconds"):
        PhaseDeadlines(**{name: seconds})


def _keep(kind: type[Any], *seats: int) -> Meeting:
    """A meeting in which these silos' messages of one kind are lost, to its end."""
    meeting = Meeting(
        Stage(5), withhold=lambda seat, message: seat in seats and isinstance(message, kind)
    )
    return meeting.until(Phase.ABORTED)


@pytest.mark.parametrize(
    ("kind", "reason", "asks"),
    [
        (Advertise, AbortReason.TOO_FEW_ADVERTISED, False),
        (Share, AbortReason.TOO_FEW_SHARED, False),
        (MaskedInput, AbortReason.TOO_FEW_MASKED, True),
        (Survivors, AbortReason.TOO_FEW_SIGNED, True),
        (Unmask, AbortReason.TOO_FEW_OPENED, True),
    ],
)
def test_too_few_in_each_phase(kind: type[Any], reason: AbortReason, asks: bool) -> None:
    """Named with who is missing; once vectors may be masked, silos are asked to abandon."""
    meeting = _keep(kind, 2, 3, 4)
    assert meeting.aborted is not None
    assert meeting.aborted.reason is reason
    assert meeting.aborted.missing == (2, 3, 4)
    said = [e.message for e in meeting.effects if isinstance(e, Broadcast)]
    assert any(isinstance(message, AbandonRequest) for message in said) is asks
    failed = said[-1]
    assert isinstance(failed, RoundFailed)
    assert failed.reason.startswith(reason.value)
    assert meeting.effects[-2] == DeadlineSet(at=None)
    assert meeting.server.deadline is None
    assert meeting.server.awaited() == ()
    assert meeting.server.may_retry is not asks
    # Nothing opens the sum of an aborted attempt.
    with pytest.raises(LocalProtocolError, match="nothing to open in phase aborted"):
        meeting.server.open()
    with pytest.raises(LocalProtocolError):
        meeting.server.stop("again")


def test_too_few_organizations() -> None:
    """Five silos of three organizations; the only one of the third is lost."""
    stage = Stage(5, federation=make_federation(5, organizations=4), n_orgs=4)
    meeting = Meeting(stage, withhold=lambda seat, _message: seat == 4)
    meeting.until(Phase.ABORTED)
    assert meeting.aborted is not None
    assert meeting.aborted.reason is AbortReason.TOO_FEW_ORGANIZATIONS
    assert meeting.aborted.detail == "3 of at least 4"
    assert meeting.server.may_retry


def test_a_complaint_ends_the_attempt() -> None:
    """Both silos are named, neither is blamed."""
    meeting = Meeting(Stage(5), withhold=lambda _s, message: isinstance(message, MaskedInput))
    meeting.until(Phase.MASK).drain()
    meeting.deliver(_unprompted(meeting.stage, Complaint, meeting.stage.setup))
    assert meeting.aborted is not None
    assert meeting.aborted.reason is AbortReason.COMPLAINT
    assert meeting.aborted.detail == "seat 5 about seat 1: A4_BAD_SHARE"
    assert meeting.server.evidence == ()


def _keeps_vectors_of(seats: set[int], seat: int, message: SiloMessage) -> bool:
    return isinstance(message, MaskedInput) and seat in seats


def _complaint(meeting: Meeting, seat: int, dealer: int) -> Complaint:
    unsigned = Complaint(setup=meeting.stage.setup, seat=seat, dealer=dealer, reason="A4_BAD_SHARE")
    complaint = _signed(meeting.stage, unsigned)
    assert isinstance(complaint, Complaint)
    return complaint


@pytest.mark.parametrize("friends", [(), (4,)])
def test_a_complaint_leaves_out_both_ends(friends: tuple[int, ...]) -> None:
    """A friend of the dealer may say Late, which shows no check: that speaks for nobody."""
    meeting = Meeting(Stage(5), withhold=partial(_keeps_vectors_of, {1, 2, 3, 4, 5}))
    meeting.until(Phase.MASK).drain()
    for seat in friends:
        meeting.deliver(Late(setup=meeting.stage.setup, seat=seat))
    complaint = _complaint(meeting, 5, 2)
    meeting.deliver(complaint)
    assert meeting.aborted is not None
    both = (Suspect(seat=2, complaint=complaint), Suspect(seat=5, complaint=complaint))
    assert meeting.aborted.suspects == meeting.server.suspects == both


def test_a_prior_that_differs_ends_the_attempt() -> None:
    """The server sees what every silo would refuse."""
    first = Stage(5)
    Meeting(first).until(Phase.CLOSED).drain()
    second = Stage(5, histories=first.histories, run=RunId(b"another run 1234"))
    meeting = Meeting(second, withhold=lambda s, m: s == 2 and isinstance(m, MaskedInput))
    meeting.until(Phase.ABORTED)
    assert meeting.aborted is not None
    assert meeting.aborted.reason is AbortReason.REPEAT
    assert "[1, 3, 4, 5]" in meeting.aborted.detail


def test_abandon_statements_allow_a_retry() -> None:
    """T of U1, and not one less."""
    meeting = Meeting(
        Stage(5),
        withhold=lambda seat, message: seat < 3 and isinstance(message, Survivors | Abandon),
    )
    meeting.until(Phase.ABORTED).drain()
    assert [item.seat for item in meeting.server.abandons] == [3, 4, 5]
    assert not meeting.server.may_retry
    statements = [item for item in meeting.withheld if isinstance(item, Abandon)]
    meeting.deliver(statements[0])
    assert meeting.server.may_retry


def test_only_silos_that_opened_nothing_abandon() -> None:
    """Silo 1 has sent its shares, and its Unmask was lost: it promises nothing."""
    meeting = _keep(Survivors, 2, 3).drain()
    assert [item.seat for item in meeting.server.abandons] == [1, 2, 3, 4, 5]
    assert meeting.server.may_retry
    lost = _keep(Unmask, 2, 3).drain()
    assert lost.server.abandons == ()
    assert not lost.server.may_retry


def _asked_to_abandon() -> Meeting:
    """Three of the four openings that are needed are lost; silos 1 and 2 have opened."""
    meeting = Meeting(
        Stage(5),
        withhold=lambda seat, message: (
            isinstance(message, Abandon) or (seat > 2 and isinstance(message, Unmask))
        ),
    )
    meeting.until(Phase.UNMASK).drain()
    meeting.now = meeting.server.deadline or 0.0
    meeting.carry_out(meeting.server.expire(meeting.now))
    return meeting


def _abandons(meeting: Meeting, seat: int) -> Abandon:
    where = meeting.stage.parameters
    unsigned = Abandon(
        federation=where.federation, run=where.run, round=where.round, attempt=0, seat=seat
    )
    statement = _signed(meeting.stage, unsigned)
    assert isinstance(statement, Abandon)
    return statement


def test_the_last_promise_that_is_needed_ends_the_wait_for_shares() -> None:
    """Not the one before, and no deadline: t of them make the attempt dead."""
    meeting = _asked_to_abandon()
    for seat in (3, 4, 5):
        assert meeting.deliver(_abandons(meeting, seat)) == []
        assert meeting.server.phase is Phase.UNMASK
    meeting.deliver(_abandons(meeting, 2))
    assert meeting.aborted is not None
    assert meeting.aborted.reason is AbortReason.TOO_FEW_OPENED
    assert meeting.server.may_retry


def test_promises_are_awaited_when_no_shares_are() -> None:
    """Whoever was restarted opens nothing any more, and can still promise."""
    meeting = _asked_to_abandon()
    for seat in (3, 4, 5):
        assert meeting.server.lost(seat, meeting.now) == []
    assert meeting.server.awaited() == ()
    assert meeting.server.phase is Phase.UNMASK


@pytest.mark.parametrize(("kind", "phase"), [(Survivors, Phase.SURVIVORS), (Unmask, Phase.UNMASK)])
def test_nobody_is_waited_for_in_vain(kind: type[Any], phase: Phase) -> None:
    """If all who could still answer are lost, the phase ends before its deadline."""
    meeting = Meeting(
        Stage(5), withhold=lambda seat, message: seat > 3 and isinstance(message, kind)
    )
    meeting.until(phase).drain()
    assert meeting.server.lost(4, meeting.now) == []
    assert meeting.carry_out(meeting.server.lost(5, meeting.now)) != []
    asks = [
        e
        for e in meeting.effects
        if isinstance(e, Broadcast) and isinstance(e.message, AbandonRequest)
    ]
    assert len(asks) == 1
    assert (meeting.server.phase is phase) is (kind is Unmask)  # there promises may still come


def test_promises_prove_nothing_in_a_regular_graph() -> None:
    """The quorum is proven for the complete graph alone: the same inputs are not summed again."""
    meeting = _keep(Survivors, 2, 3).drain()
    assert meeting.server.may_retry
    meeting.server.parameters = replace(
        meeting.stage.parameters, mode=MODE_SEMI_HONEST, graph="regular/10"
    )
    assert not meeting.server.may_retry


def test_an_exact_sum_is_made_anew() -> None:
    """What lies under its name in the store, a crashed process's half, say, counts for nothing."""
    stage = Stage(5)
    meeting = Meeting(stage)
    wire = stage.parameters.wire_spec
    put_sum(
        {name: np.zeros(wire.segment(name).length, np.int64) for name in wire.names},
        spec=wire,
        store=meeting.store,
        name=messages.SUM,
    )
    assert meeting.store.chunks(messages.SUM) == len(wire.chunks)
    meeting.until(Phase.CLOSED).drain()
    assert meeting.errors == []
    assert sorted(stage.finished) == [1, 2, 3, 4, 5]


def test_a_state_that_comes_late() -> None:
    """Nobody is waited for, and nothing closes, while the round before still runs."""
    meeting = Meeting(Stage(5), with_state=False).until(Phase.MASK).drain()
    assert meeting.stage.wants_training == set()
    meeting.carry_out(meeting.server.set_state(meeting.now))
    with pytest.raises(LocalProtocolError, match="set before"):
        meeting.server.set_state(meeting.now)
    meeting.until(Phase.CLOSED)
    assert meeting.aggregate is not None


def test_nothing_closes_before_the_state() -> None:
    """Even if nobody is left to wait for: the state may still come, and with it silos."""
    meeting = Meeting(Stage(5), with_state=False).until(Phase.MASK).drain()
    for seat in meeting.stage.cohort:
        assert meeting.server.lost(seat, meeting.now) == []
    assert meeting.server.phase is Phase.MASK
    assert meeting.server.awaited() == ()


def test_an_upload_before_the_state(honest: Stage) -> None:
    """Without a binding there is nothing that it could be masked for."""
    meeting = Meeting(Stage(5), with_state=False).until(Phase.MASK).drain()
    with pytest.raises(ReplayError, match="another view"):
        meeting.server.receive(1, honest.last(1, MaskedInput), meeting.now)


def test_phases_close_when_all_have_answered_or_enough() -> None:
    """No deadline passes in an honest attempt; t signatures and t openings are enough."""
    meeting = Meeting(Stage(5))
    start = meeting.now
    meeting.until(Phase.CLOSED)
    assert meeting.now == start
    assert meeting.aggregate is not None
    (certificate,) = [
        e.message
        for e in meeting.effects
        if isinstance(e, Broadcast) and isinstance(e.message, messages.Certificate)
    ]
    assert len(certificate.endorsements) == 4
    kinds = [type(e) for e in meeting.effects]
    assert kinds.index(ReleaseWanted) < kinds.index(Finished)
    # The fifth signature and the fifth opening are welcome and change nothing.
    meeting.drain()
    assert meeting.errors == []
    assert sorted(meeting.stage.finished) == [1, 2, 3, 4, 5]


def test_lost_silos_are_not_awaited() -> None:
    """A phase closes as soon as all others have answered."""
    meeting = Meeting(Stage(5), withhold=lambda seat, _message: seat == 5)
    meeting.drain()
    assert meeting.server.awaited() == (5,)
    start = meeting.now
    meeting.carry_out(meeting.server.lost(5, meeting.now))
    meeting.until(Phase.CLOSED)
    assert meeting.now == start
    assert meeting.aggregate is not None
    assert meeting.aggregate.survivors == (1, 2, 3, 4)
    assert meeting.server.lost(5, meeting.now) == []


def test_deadlines_are_kept() -> None:
    """Early is nothing; each phase has its own time."""
    deadlines = PhaseDeadlines(
        advertise_s=1.0, share_s=2.0, mask_s=4.0, survivors_s=8.0, unmask_s=16.0
    )
    kinds = dict(zip(TIMED, [Advertise, Share, MaskedInput, Survivors, Unmask], strict=True))
    for phase, seconds in zip(TIMED, (1.0, 2.0, 4.0, 8.0, 16.0), strict=True):
        meeting = Meeting(
            Stage(5),
            deadlines=deadlines,
            withhold=lambda seat, m, k=kinds[phase]: seat > 3 and isinstance(m, k),  # type: ignore[misc]  # a default binds the phase
        )
        meeting.drain()
        assert meeting.server.phase is phase
        assert meeting.server.deadline == meeting.now + seconds
        assert meeting.server.expire(meeting.now + seconds - 0.01) == []
        assert meeting.server.awaited() == (4, 5)
        meeting.carry_out(meeting.server.expire(meeting.now + seconds))
        if phase is Phase.UNMASK:  # once more, for late openings or promises
            assert meeting.server.phase is phase
            assert meeting.server.deadline == meeting.now + 2 * seconds
            meeting.carry_out(meeting.server.expire(meeting.now + 2 * seconds))
        assert meeting.server.phase is not phase
    done = Meeting(Stage(5)).until(Phase.CLOSED)
    assert done.server.expire(1e9) == []


def test_the_result_is_what_every_silo_checks() -> None:
    """And the aggregate names cohort, survivors, parameters and state."""
    stage = Stage(5)
    meeting = Meeting(stage, withhold=lambda s, m: s == 3 and isinstance(m, MaskedInput))
    meeting.until(Phase.CLOSED).drain()
    aggregate = meeting.aggregate
    assert aggregate is not None
    assert aggregate.survivors == (1, 2, 4, 5)
    assert aggregate.cohort == (1, 2, 3, 4, 5)
    assert aggregate.parameters == stage.parameters
    assert aggregate.state_hash == messages.model_hash("training", MODEL)
    expected = stage.sum_of(1, 2, 4, 5)
    assert set(aggregate.values) == set(stage.spec.names)
    for name, column in aggregate.values.items():
        assert column.tolist() == expected[name].tolist()
    for finished in stage.finished.values():
        for name, column in finished.aggregate.values.items():
            assert column.tolist() == expected[name].tolist()


def test_what_is_asked_too_early() -> None:
    """The driver's mistakes are named."""
    fresh = Meeting(Stage(5), with_state=False)
    with pytest.raises(LocalProtocolError, match="not known yet"):
        _ = fresh.server._intake.graph
    with pytest.raises(LocalProtocolError, match="no state yet"):
        _ = fresh.server._state_notice
    with pytest.raises(LocalProtocolError, match="nothing to open in phase advertise"):
        fresh.server.open()
    assert not fresh.server.may_retry


def test_earlier_abandons_travel_with_the_opening() -> None:
    """So that silos can join a second attempt."""
    meeting = _keep(Survivors, 2, 3).drain()
    first = meeting.stage
    second = Stage(5, histories=first.histories, attempt=1, inputs=first.inputs)
    again = Meeting(second, abandons=meeting.server.abandons).until(Phase.CLOSED).drain()
    assert again.errors == []
    assert again.aggregate is not None
    assert sorted(second.finished) == [1, 2, 3, 4, 5]

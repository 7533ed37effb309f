"""A server that plays attempts against each other: the difference of two sums is an input.

SA1 spec 2.5. Every test ends with the checker over both attempts.
"""

from dataclasses import replace

import pytest

from secagg import messages
from secagg.errors import (
    BadSignatureError,
    PolicyRefusedError,
    ReplayError,
    RosterError,
    SecondUnmaskError,
    SurvivorsMismatchError,
)
from secagg.ids import FederationId, RunId
from secagg.journal import JournalEvent, SiloHistory
from secagg.messages import Abandon, AbandonRequest, Late, MaskedInput
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from tests.adversary.stage import MODEL, Stage

pytestmark = pytest.mark.adversary


def _abandons(stage: Stage, *seats: int) -> tuple[Abandon, ...]:
    """Ask these silos to abandon the attempt."""
    where = stage.parameters
    request = AbandonRequest(run=where.run, round=where.round, attempt=where.attempt)
    for seat in seats:
        stage.tell(seat, request)
    return tuple(stage.last(seat, Abandon) for seat in seats)


def _next(stage: Stage, **changes: object) -> Stage:
    """The next attempt, with the same inputs, journals and adversary."""
    changes = {"attempt": stage.parameters.attempt + 1} | changes
    return Stage(
        len(stage.roster.seats),
        histories=stage.histories,
        view=stage.view,
        inputs=stage.inputs,
        corrupted=stage.corrupted,
        **changes,  # type: ignore[arg-type]  # parameters by name
    )


def _opening(stage: Stage, abandons: tuple[Abandon, ...]) -> messages.RoundOpen:
    return replace(stage.opening(), abandons=abandons)


def test_a_retry_without_an_abandon_certificate() -> None:
    """Who has submitted does not submit the same again on the server's word that it failed."""
    first = Stage(4)
    first.mask(1, 2, 3)
    failed = messages.RoundFailed(run=first.parameters.run, round=1, attempt=0, reason="sorry")
    first.tell_all(failed)
    assert all(silo.phase is Phase.ABORTED for silo in first.silos.values())
    second = _next(first)
    for seat in (1, 2, 3):
        second.refuses(seat, second.opening(), ReplayError, "no abandon certificate")
    second.tell(4, second.opening())  # it has sent no vector, so it needs no certificate
    second.assert_hidden(first)


def test_too_few_abandon_statements() -> None:
    """N=5, n_c=1, t=4: three statements are too few, the fourth makes the attempt dead."""
    first = Stage(5)
    first.mask()
    abandons = _abandons(first, 1, 2, 3, 4)
    for few in (abandons[:3], (*abandons[:3], abandons[0])):
        second = _next(first)
        second.refuses(5, _opening(second, few), ReplayError, "no abandon certificate")
    second = _next(first)
    second.tell(1, _opening(second, abandons))
    assert first.histories[1].has(first.parameters.attempt_id, JournalEvent.DEAD)
    second.assert_hidden(first)


def test_what_is_dead_is_on_the_disk_although_the_attempt_is_refused() -> None:
    """The statements count, whatever they came with; memory and journal must not differ."""
    first = Stage(5)
    first.mask()
    again = _next(first, attempt=0)
    opening = _opening(again, _abandons(first, 1, 2, 3, 4))
    again.refuses(5, opening, ReplayError, "opened before")
    assert first.histories[5].has(first.parameters.attempt_id, JournalEvent.DEAD)
    assert JournalEvent.DEAD in {record.event for record in again.journals[5]}


def test_abandon_statements_of_outsiders() -> None:
    """Silos outside U1 hold no shares: their statements prove nothing, even to the quorum."""
    policies = {seat: SiloPolicy(n_c=2) for seat in range(1, 11)}
    first = Stage(10, policies=policies, cohort=(1, 2, 3, 4, 5), corrupted=(4, 5), n_c=2)
    first.mask()
    assert first.threshold == 4
    honest = _abandons(first, 1, 2, 3)
    where = first.parameters
    outsiders = tuple(
        messages.signed(
            Abandon(federation=where.federation, run=where.run, round=1, attempt=0, seat=seat),
            first.federation.identities[seat],
        )
        for seat in (6, 7, 8, 9, 10)
    )
    second = Stage(
        10,
        policies=policies,
        cohort=first.cohort,
        histories=first.histories,
        view=first.view,
        inputs=first.inputs,
        n_c=2,
        attempt=1,
    )
    second.refuses(1, _opening(second, honest + outsiders), ReplayError, "no abandon certificate")
    second.assert_hidden(first)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"attempt": 7}, "no abandon certificate"),
        ({"round": 9}, "no abandon certificate"),
        ({"run": RunId(b"another run 1234")}, "belongs to another run"),
        ({"federation": FederationId("another")}, "belongs to another run"),
    ],
)
def test_abandon_statements_about_something_else(changes: dict[str, object], match: str) -> None:
    """Statements about another attempt, round, run or federation leave this one open."""
    first = Stage(4)
    first.mask()
    where = first.parameters
    honest = Abandon(federation=where.federation, run=where.run, round=1, attempt=0, seat=1)
    forged = tuple(
        messages.signed(replace(honest, seat=seat, **changes), first.federation.identities[seat])  # type: ignore[arg-type]  # fields by name
        for seat in first.cohort
    )
    second = _next(first)
    second.refuses(1, _opening(second, forged), ReplayError, match)
    second.assert_hidden(first)


def test_forged_abandon_statements() -> None:
    """Signed by the server, or by no seat of the roster."""
    first = Stage(4)
    first.mask()
    where = first.parameters
    item = Abandon(federation=where.federation, run=where.run, round=1, attempt=0, seat=2)
    second = _next(first)
    by_server = messages.signed(item, first.federation.coordinator)
    second.refuses(1, _opening(second, (by_server,)), BadSignatureError)
    stranger = messages.signed(replace(item, seat=99), first.federation.coordinator)
    second.refuses(2, _opening(second, (stranger,)), RosterError)
    second.assert_hidden(first)


def test_an_opened_attempt_is_never_abandoned() -> None:
    """Who has opened its shares promises nothing; with t openers the quorum is out of reach."""
    first = Stage(4)
    first.agree()
    for seat in (1, 2, 3):
        first.tell(seat, first.certificate())
    where = first.parameters
    request = AbandonRequest(run=where.run, round=1, attempt=0)
    for seat in (1, 2, 3):
        assert first.silos[seat].receive(request) == []
        assert first.silos[seat].phase is Phase.RESULT
    only = _abandons(first, 4)
    second = _next(first)
    second.refuses(4, _opening(second, only), ReplayError, "no abandon certificate")
    for seat in (1, 2, 3):
        # These have opened: they may help, but they submit nothing.
        second.tell(seat, _opening(second, only))
    second.assert_hidden(first)


def test_withheld_requests_and_helpers_and_then_a_retry() -> None:
    """Two of five opened; the other three abandon, which is no quorum of four."""
    first = Stage(5, corrupted=(5,))
    first.agree()
    for seat in (1, 2):
        first.tell(seat, first.certificate())
    abandons = _abandons(first, 3, 4, 5)
    second = _next(first)
    for seat in (3, 4, 5):
        second.refuses(seat, _opening(second, abandons), ReplayError, "no abandon certificate")
    second.assert_hidden(first)


def test_after_opening_a_silo_only_helps() -> None:
    """One of five opened, four abandoned: the attempt is dead, and the one submits no more."""
    first = Stage(5)
    first.agree()
    first.tell(1, first.certificate())
    abandons = _abandons(first, 2, 3, 4, 5)
    second = _next(first)
    for seat in second.cohort:
        second.tell(seat, _opening(second, abandons))
    second.view.see_keys(second.setup, second.advertises, second.threshold)
    second.tell_all(second.keys())
    for seat in second.cohort:
        second.tell(seat, second.boxes(seat))
        second.stores[seat].put_state(MODEL)
        second.tell(seat, second.notice())
    assert second.wants_training == {2, 3, 4, 5}
    assert second.last(1, Late).setup == second.setup
    second.submit()
    second.tell_all(second.request())
    second.refuses(1, second.certificate(), SecondUnmaskError, "has opened its shares")
    for seat in (2, 3, 4, 5):
        second.tell(seat, second.certificate())
    second.assert_hidden(first)


def test_an_abandoned_attempt_opens_nothing() -> None:
    """After its promise a silo is dead to this attempt."""
    stage = Stage(4)
    stage.agree()
    _abandons(stage, 1)
    assert stage.silos[1].phase is Phase.ABORTED
    from secagg.errors import LocalProtocolError

    with pytest.raises(LocalProtocolError, match="aborted"):
        stage.tell(1, stage.certificate())
    again = _abandons(stage, 1)  # the promise itself is repeated, byte for byte
    assert [item for item in stage.sent[1] if isinstance(item, Abandon)] == [again[0]] * 2
    stage.assert_hidden()


def test_a_result_withheld_and_the_same_state_as_next_round() -> None:
    """Round 2 on the state of round 1: everybody names the earlier survivors, one less is refused.

    The server has the sum over all and never sent it.
    """
    first = Stage(5)
    first.open_shares()
    second = _next(first, round=2, attempt=0)
    second.announce()
    second.submit(1, 2, 4, 5)
    assert all(item.prior == (1, 2, 3, 4, 5) for item in second.all_of(MaskedInput).values())
    for seat in second.cohort:
        second.refuses(seat, second.request(), SurvivorsMismatchError, "summed before over other")
    second.assert_hidden(first)


def test_a_result_withheld_and_a_state_moved_by_one_bit() -> None:
    """The submission is still open, so the next round of its kind is a repeat as well."""
    first = Stage(5)
    first.open_shares()
    moved = MODEL[:-1] + b"\x01"
    second = _next(first, round=2, attempt=0)
    second.announce(state=moved)
    second.submit(1, 2, 4, 5)
    for seat in second.cohort:
        second.refuses(seat, second.request(), SurvivorsMismatchError, "summed before over other")
    second.assert_hidden(first)


def test_an_equal_state_in_a_new_session_with_one_silo_less() -> None:
    """A new run, another seed, the same model: the hash of the state is what counts."""
    first = Stage(5)
    first.finish()
    second = _next(first, run=RunId(b"another run 1234"), round=1, attempt=0)
    second.announce()
    second.submit(1, 2, 4, 5)
    for seat in second.cohort:
        second.refuses(seat, second.request(), SurvivorsMismatchError, "summed before over other")
    second.assert_hidden(first)


def test_an_equal_state_with_a_newcomer() -> None:
    """The newcomer has no prior of its own, and signs nothing that contradicts the others'."""
    first = Stage(5, cohort=(1, 2, 3, 4))
    first.finish()
    second = Stage(
        5,
        histories=first.histories,
        view=first.view,
        inputs={**Stage(5, seed=9).inputs, **first.inputs},
        run=RunId(b"another run 1234"),
    )
    second.announce()
    second.submit(1, 2, 3, 5)
    assert second.last(5, MaskedInput).prior == ()
    for seat in second.cohort:
        second.refuses(seat, second.request(), SurvivorsMismatchError, "summed before over other")
    second.assert_hidden(first)


def test_an_equal_state_with_equal_survivors_is_fine() -> None:
    """The same sum once more shows nothing new."""
    first = Stage(4)
    first.finish()
    second = _next(first, run=RunId(b"another run 1234"), round=1, attempt=0)
    second.finish()
    assert sorted(second.finished) == [1, 2, 3, 4]
    second.assert_hidden(first)


def test_a_repeat_whose_survivors_are_unknown() -> None:
    """A silo that never saw a certificate cannot name them: it goes late."""
    first = Stage(4)
    first.mask()
    for seat in (1, 2, 3):
        first.tell(seat, first.request())
    for seat in (1, 2, 3):
        first.tell(seat, first.certificate())
    second = _next(first, round=2, attempt=0)
    second.announce()
    assert second.wants_training == {1, 2, 3}
    assert 4 in second.all_of(Late)
    second.assert_hidden(first)


def test_two_earlier_sums_over_one_state() -> None:
    """Two different priors cannot both be met: the silo goes late."""
    first = Stage(5)
    first.finish()
    histories = {seat: SiloHistory() for seat in range(1, 6)}
    other = Stage(5, histories=histories, run=RunId(b"a forgotten run!"))
    other.finish(1, 2, 3, 4)
    for record in first.journals[1]:
        histories[1].apply(record)
    third = Stage(5, histories=histories, run=RunId(b"one more run 123"))
    third.announce()
    assert third.wants_training == {2, 3, 4, 5}
    assert 1 in third.all_of(Late)


def test_a_silo_that_was_left_out_may_take_part_again() -> None:
    """Its vector was in no sum: a certificate says so, and the next state is not a repeat."""
    first = Stage(5)
    first.announce()
    first.submit()
    first.tell_all(first.request(1, 2, 3, 4))
    first.tell_all(first.certificate())
    assert first.histories[5].has(first.parameters.attempt_id, JournalEvent.LEFT_OUT)
    second = _next(first, round=2, attempt=0)
    second.announce()
    second.submit(1, 2, 3, 4, 5)
    assert second.last(5, MaskedInput).prior == ()
    assert second.last(1, MaskedInput).prior == (1, 2, 3, 4)
    for seat in second.cohort:
        second.refuses(seat, second.request(), SurvivorsMismatchError, "summed before over other")
    second.assert_hidden(first)


def test_an_abandon_request_for_another_attempt() -> None:
    """The promise is about the attempt that the silo knows."""
    stage = Stage(4)
    stage.mask()
    request = AbandonRequest(run=stage.parameters.run, round=1, attempt=5)
    stage.refuses(1, request, ReplayError, "another attempt")
    early = Stage(4)
    early.refuses(1, request, ReplayError, "another attempt")
    stage.assert_hidden()


def test_an_n_c_of_the_coordinators_choice_weakens_no_quorum() -> None:
    """The quorum is computed from the n_c that the silo itself has accepted."""
    stage = Stage(5, n_c=0)
    stage.refuses(1, stage.opening(), PolicyRefusedError, "n_c")

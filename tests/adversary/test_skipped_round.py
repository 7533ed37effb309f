"""A coordinator that would have one input summed twice over states that hardly differ.

It leaves out round numbers, samples who is invited, lets colluders vouch for its state, and plays
honest silos' words again: older ones, those of another run, federation, round or state (SA1 spec
2.5 v). The state of a round, moved by 10^-12, gives the same integers; two sums over it whose
survivors differ by one silo give that silo's input.
"""

from dataclasses import replace
from typing import Final

import pytest

from fl.memory import RunMemory
from fl.testing import DictMemory
from secagg import messages
from secagg.chain import Standpoint
from secagg.errors import (
    BadSignatureError,
    ModelMismatchError,
    RemoteProtocolError,
    ReplayError,
    RosterError,
)
from secagg.ids import FederationId, RunId
from secagg.journal import SiloHistory
from secagg.messages import MaskedInput, Settled, Succession, model_hash, signed
from secagg.ring import IntVector
from secagg.testing import make_federation
from tests.adversary.stage import Stage, random_inputs, small_spec
from tests.adversary.view import View

pytestmark = pytest.mark.adversary

SILOS: Final = 7
SEATS: Final = tuple(range(1, SILOS + 1))
VICTIM: Final = 7
LIARS: Final = (1, 2)
FEDERATION: Final = make_federation(SILOS)
X1: Final = b"x1 = 0.500000000000"
NEAR_X1: Final = b"x1 = 0.500000000001"
X2: Final = b"x2, by the server's step on x1"
X3: Final = b"x3, by the server's step on x2"


def _hash(state: bytes) -> bytes:
    return model_hash("training", state)


def _inputs(state: bytes) -> dict[int, dict[str, IntVector]]:
    """What silos make of a state: the same of the one that is as good as x1."""
    return random_inputs(SEATS, small_spec(8), seed=state[1])


class Run:
    """A run whose silos keep what they settle in their memories, as `fl.participant` has it."""

    def __init__(self) -> None:
        self.run = RunId(b"run-for-testing!")
        self.memories = {seat: RunMemory(DictMemory(), self.run) for seat in SEATS}
        self.stages: list[Stage] = []

    def stage(
        self, number: int, state: bytes, cohort: tuple[int, ...] = SEATS, *, attempt: int = 0
    ) -> Stage:
        """Another attempt by the same silos, in the one view."""
        known = {seat: self.memories[seat].standpoint() for seat in cohort}
        view = self.stages[0].view if self.stages else None
        made = Stage(
            SILOS,
            federation=FEDERATION,
            cohort=cohort,
            corrupted=tuple(seat for seat in LIARS if seat in cohort),
            histories=self.stages[0].histories if self.stages else None,
            standpoints={seat: one for seat, one in known.items() if one is not None},
            view=view or View(spec=small_spec(8).with_tags()),
            inputs={seat: _inputs(state)[seat] for seat in cohort},
            round=number,
            attempt=attempt,
            run=self.run,
            seed=number,
        )
        self.stages.append(made)
        return made

    def sum(
        self, number: int, state: bytes, following: bytes, cohort: tuple[int, ...] = SEATS
    ) -> Stage:
        """A round that is opened, told and settled by its whole cohort."""
        stage = self.stage(number, state, cohort)
        stage.finish(state=state)
        assert set(stage.finished) == set(cohort)
        for seat in cohort:
            self.memories[seat].settle(number, _hash(following), keeps=False)
        return stage

    def assert_hidden(self) -> None:
        """The view of all attempts together gives no honest input away."""
        self.stages[-1].assert_hidden(*self.stages[:-1])


def _shown(stage: Stage, state: bytes) -> Stage:
    """The stage up to the state, whose bytes lie at every silo."""
    stage.deliver()
    for seat in stage.cohort:
        stage.stores[seat].put_state(state)
    return stage


def _word(seat: int, state: bytes, after: int, **changes: object) -> Settled:
    """What a silo signs of where the run stands; `changes` make it another statement."""
    parameters = Run().stage(1, X1).parameters
    honest = Settled(
        federation=parameters.federation,
        run=parameters.run,
        round=after,
        model_hash=_hash(state),
        seat=seat,
    )
    return signed(replace(honest, **changes), FEDERATION.identities[seat])  # type: ignore[arg-type]  # checked at run time


def _vouched(*words: Settled, after: int) -> Succession:
    """These signatures, whatever they were given for, under the word of round `after`."""
    return replace(Succession.of(*words), round=after)


@pytest.mark.parametrize("number", [2, 3, 10])
def test_a_round_number_is_left_out(number: int) -> None:
    """After round 1 all insist on x2, in whatever round comes next; not one trains on x1 again."""
    run = Run()
    run.sum(1, X1, X2)
    jumped = _shown(run.stage(number, NEAR_X1), NEAR_X1)
    for seat in SEATS:
        jumped.refuses(
            seat, jumped.notice(NEAR_X1, vouched=False), ModelMismatchError, "from round 1"
        )
    assert jumped.wants_training == set()
    run.assert_hidden()


def test_the_attack_works_on_silos_that_insist_on_nothing() -> None:
    """The control: without their standpoints the view's search finds the victim's input."""
    run = Run()
    run.sum(1, X1, X2)
    for seat in SEATS:
        run.memories[seat] = RunMemory(DictMemory(), run.run)
    others = tuple(seat for seat in SEATS if seat != VICTIM)
    jumped = run.stage(3, NEAR_X1)
    jumped.announce(state=NEAR_X1)  # the stage's colluders are more than n_c here: all vouch
    jumped.submit(*others)
    jumped.tell_all(jumped.request(*others))
    jumped.tell_all(jumped.certificate())
    jumped.view.see_sum(jumped.setup, "the sum without the victim", jumped.sum_of(*others))
    truth = {**run.stages[0].truth(), **jumped.truth()}
    assert any(str(VICTIM) in leak for leak in map(str, jumped.view.search(truth)))


@pytest.mark.parametrize("number", [2, 3, 10])
def test_the_number_of_a_failed_round_is_not_used_again(number: int) -> None:
    """The honest case: the next state is right in any later round, and needs nobody's word."""
    run = Run()
    run.sum(1, X1, X2)
    later = _shown(run.stage(number, X2), X2)
    later.tell_all(later.notice(X2, vouched=False))
    assert later.wants_training == set(SEATS)


def test_sampled_cohorts() -> None:
    """Rounds over different silos: each accepts its own next state, or a vouched newer one."""
    run = Run()
    run.sum(1, X1, X2, (1, 2, 3, 4, 5, 6))
    run.sum(2, X2, X3, (1, 2, 3, 4, 5, 7))
    cases = ((NEAR_X1, ()), (X1, ()), (X2, (6,)), (X3, (1, 2, 3, 4, 5, 7)))
    for number, (state, welcome) in enumerate(cases, start=4):
        later = _shown(run.stage(number, state), state)
        for seat in SEATS:
            if seat in welcome:
                later.tell(seat, later.notice(state, vouched=False))
            else:
                later.refuses(seat, later.notice(state, vouched=False), ModelMismatchError)
        assert later.wants_training == set(welcome)
    run.assert_hidden()


def test_a_silo_that_was_away_comes_back_with_the_others_word() -> None:
    """Silo 6 missed round 2, silo 7 the first one, too: n_c + 1 others tell both of x3."""
    run = Run()
    run.sum(1, X1, X2, (1, 2, 3, 4, 5, 6))
    run.sum(2, X2, X3, (1, 2, 3, 4, 5))
    third = _shown(run.stage(3, X3), X3)
    words = [_word(seat, X3, 2) for seat in (3, 4, 5)]
    third.tell_all(third.notice(X3, succession=Succession.of(*words)))
    assert third.wants_training == set(SEATS)
    third.submit()
    assert set(third.all_of(MaskedInput)) == set(SEATS)
    run.assert_hidden()


_FALSE: Final[dict[str, tuple[Succession, type[RemoteProtocolError], str]]] = {
    "n_c colluders": (
        _vouched(*(_word(seat, NEAR_X1, 2) for seat in LIARS), after=2),
        ModelMismatchError,
        "expected 3 distinct silos",
    ),
    "a colluder twice": (
        _vouched(*(_word(seat, NEAR_X1, 2) for seat in (1, 1, 2)), after=2),
        ModelMismatchError,
        "expected 3 distinct silos",
    ),
    "colluders out of order": (
        Succession(
            round=2,
            endorsements=tuple(
                reversed(
                    Succession.of(*(_word(seat, NEAR_X1, 2) for seat in (1, 2, 3))).endorsements
                )
            ),
        ),
        ModelMismatchError,
        "sorted",
    ),
    "more than are needed": (
        _vouched(*(_word(seat, NEAR_X1, 2) for seat in (1, 2, 3, 4)), after=2),
        ModelMismatchError,
        "expected 3 distinct silos",
    ),
    "an honest silo's word on another state": (
        _vouched(*(_word(seat, NEAR_X1, 2) for seat in LIARS), _word(3, X3, 2), after=2),
        BadSignatureError,
        ".",
    ),
    "an honest silo's word on another round": (
        _vouched(*(_word(seat, NEAR_X1, 2) for seat in LIARS), _word(3, NEAR_X1, 1), after=2),
        BadSignatureError,
        ".",
    ),
    "an honest silo's word in another run": (
        _vouched(
            *(_word(seat, NEAR_X1, 2) for seat in LIARS),
            _word(3, NEAR_X1, 2, run=RunId(b"another run 1234")),
            after=2,
        ),
        BadSignatureError,
        ".",
    ),
    "an honest silo's word in another federation": (
        _vouched(
            *(_word(seat, NEAR_X1, 2) for seat in LIARS),
            _word(3, NEAR_X1, 2, federation=FederationId("another-federation")),
            after=2,
        ),
        BadSignatureError,
        ".",
    ),
    "a word in an honest silo's name": (
        Succession(
            round=2,
            endorsements=(
                *Succession.of(*(_word(seat, NEAR_X1, 2) for seat in LIARS)).endorsements,
                messages.Endorsement(seat=3, signature=_word(2, NEAR_X1, 2).signature),
            ),
        ),
        BadSignatureError,
        ".",
    ),
    "a seat that the roster does not have": (
        Succession(
            round=2,
            endorsements=(
                *Succession.of(*(_word(seat, NEAR_X1, 2) for seat in LIARS)).endorsements,
                messages.Endorsement(seat=99, signature=bytes(64)),
            ),
        ),
        RosterError,
        "seat 99",
    ),
    "a round that is yet to come": (
        _vouched(*(_word(seat, NEAR_X1, 3) for seat in (1, 2, 3)), after=3),
        ModelMismatchError,
        "not from 3",
    ),
    "words of the silo's own last round": (
        _vouched(*(_word(seat, NEAR_X1, 1) for seat in (1, 2, 3)), after=1),
        ModelMismatchError,
        "theirs is of round 1",
    ),
}


@pytest.mark.parametrize("name", _FALSE)
def test_false_words(name: str) -> None:
    """Not one silo takes a state that n_c colluders, and nobody else, vouch for."""
    succession, error, says = _FALSE[name]
    run = Run()
    run.sum(1, X1, X2)
    third = _shown(run.stage(3, NEAR_X1), NEAR_X1)
    for seat in SEATS:
        third.refuses(seat, third.notice(NEAR_X1, succession=succession), error, says)
    run.assert_hidden()


def test_older_words_are_played_again() -> None:
    """Everybody has signed that x2 follows round 1; who has settled round 2 is past that."""
    run = Run()
    run.sum(1, X1, X2)
    run.sum(2, X2, X3, (1, 2, 3, 4, 5, 7))
    words = Succession.of(*(_word(seat, X2, 1) for seat in (3, 4, 5)))
    third = _shown(run.stage(3, X2), X2)
    for seat in (1, 2, 3, 4, 5, 7):
        third.refuses(seat, third.notice(X2, succession=words), ModelMismatchError, "round 2")
    third.tell(6, third.notice(X2, succession=words))  # that is where it stands itself
    assert third.wants_training == {6}
    run.assert_hidden()


def test_a_newcomer_joins_no_fork_of_the_server_s() -> None:
    """Who has settled nothing takes a first state in the first round, and words in later ones."""
    run = Run()
    run.sum(1, X1, X2, (1, 2, 3, 4, 5, 6))
    second = _shown(run.stage(2, NEAR_X1), NEAR_X1)
    second.refuses(7, second.notice(NEAR_X1, vouched=False), ModelMismatchError, "settled no round")
    third = _shown(run.stage(3, NEAR_X1), NEAR_X1)
    liars = _vouched(*(_word(seat, NEAR_X1, 2) for seat in LIARS), after=2)
    third.refuses(7, third.notice(NEAR_X1, succession=liars), ModelMismatchError, "3 distinct")
    run.assert_hidden()


def test_newcomers_alone_may_begin_the_run_elsewhere() -> None:
    """The limit: silos that were in no round of the run begin it anew, from any state.

    Whoever was in its first round is not among them, so no input is in two of these sums.
    """
    run = Run()
    run.sum(1, X1, X2, (1, 2, 3, 4, 5))
    fork = run.stage(1, NEAR_X1, (3, 6, 7), attempt=1)
    fork.refuses(3, fork.opening(), ReplayError)
    for seat in (6, 7):
        fork.tell(seat, fork.opening())
    run.assert_hidden()


def test_words_lead_a_silo_over_to_a_chain_beside_its_own() -> None:
    """The other limit: honest silos that were in no sum, and the colluders, fork the run.

    Words on a later round of the fork lead an honest silo over. Its state is two sums away from
    the one that the silo has been summed over, and the server could choose neither.
    """
    run = Run()
    run.sum(1, X1, X2, (1, 2, 3, 4, 5))
    for liar in LIARS:
        run.stages[0].histories[liar] = SiloHistory()
        run.memories[liar] = RunMemory(DictMemory(), run.run)
    beside = (*LIARS, 6, 7)
    run.sum(1, b"y5", b"y6", beside)
    run.sum(2, b"y6", b"y7", beside)
    third = _shown(run.stage(3, b"y7", (1, 2, 3, 6, 7)), b"y7")
    same_round = Succession.of(*(_word(seat, b"y7", 1) for seat in (1, 2, 6)))
    later_round = Succession.of(*(_word(seat, b"y7", 2) for seat in (1, 2, 6)))
    third.tell(3, third.notice(b"y7", succession=later_round))
    assert third.wants_training == {3}
    fourth = _shown(run.stage(4, b"y7", (1, 2, 3, 6, 7)), b"y7")
    fourth.refuses(3, fourth.notice(b"y7", succession=same_round), ModelMismatchError, "round 1")
    run.assert_hidden()


def test_a_result_that_comes_between_an_older_state_and_the_vector() -> None:
    """The silo took x3 on others' word; a newer own result makes it too old to train on."""
    run = Run()
    run.sum(1, X1, X2)
    third = _shown(run.stage(3, X3), X3)
    words = Succession.of(*(_word(seat, X3, 2) for seat in (3, 4, 5)))
    third.tell_all(third.notice(X3, succession=words))
    third.silos[6].standpoint = Standpoint(round=1, model_hash=_hash(b"told late"))
    third.silos[7].standpoint = Standpoint(round=2, model_hash=_hash(b"of a cohort beside"))
    third.submit()
    assert set(third.all_of(MaskedInput)) == set(SEATS) - {7}
    run.assert_hidden()


def test_a_first_state_stays_one_while_all_rounds_are_lost() -> None:
    """Who has submitted to x1 takes it again, naming its survivors; no other state, nobody new."""
    run = Run()
    lost = run.stage(1, X1, (1, 2, 3, 4, 5))
    lost.open_shares(state=X1)  # and no result
    again = _shown(run.stage(2, X1), X1)
    again.tell_all(again.notice(X1, vouched=False), (1, 2, 3, 4, 5))
    for seat in (6, 7):
        again.refuses(seat, again.notice(X1, vouched=False), ModelMismatchError, "settled no round")
    again.submit()
    assert {item.prior for item in again.all_of(MaskedInput).values()} == {(1, 2, 3, 4, 5)}
    moved = _shown(run.stage(3, NEAR_X1), NEAR_X1)
    for seat in SEATS:
        moved.refuses(seat, moved.notice(NEAR_X1, vouched=False), ModelMismatchError, "no round")
    run.assert_hidden()

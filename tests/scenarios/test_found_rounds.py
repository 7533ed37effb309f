"""Rounds that the machine of tests/machine has found wanting, as named lists of operations.

Each is played twice: as the rules are, where all promises hold, and with the rule taken away that
was missing or would be missed, where the world must notice.
"""

from collections.abc import Callable, Iterable, Mapping

import pytest

import secagg.silo
from secagg.effects import Finished, SiloEffect
from secagg.ids import AttemptId, RunId
from secagg.journal import JournalEvent, SiloHistory
from secagg.messages import Abandon, Result
from secagg.phases import Phase
from secagg.ring import IntVector
from secagg.silo import SiloRound
from tests.machine.round_world import RUNS, Packet, State, World

# Of the round that each scenario begins with, after the one in which all silos have settled.
START = State(label=1)


def _begun() -> World:
    """Four silos that have settled round 1."""
    world = World(4)
    world.open(run=RUNS[0], number=1, attempt=0, state=State(label=0))
    world.settle_down()
    assert len(world.finished_at_silo) == 4
    return world


def _deliver_all(world: World) -> None:
    """Packets arrive; no training ends."""
    while world.flying:
        world.deliver(0)


def _play_until(world: World, is_reached: Callable[[], bool]) -> None:
    while not is_reached():
        if world.flying:
            world.deliver(0)
        else:
            assert world.train_one()


def two_rounds_open_at_once() -> World:
    """Both states are announced before either vector is masked; one silo is late in the second."""
    world = _begun()
    for number in (2, 3):
        world.open(run=RUNS[0], number=number, attempt=0, state=START)
    _deliver_all(world)
    world.train_one(1, late=True)
    while world.train_one():
        pass
    world.settle_down()
    return world


def killed_while_the_sum_is_used() -> World:
    """All silos die between the two effects of a result; then a state that is as good as the old.

    The result is not sent again, so nobody knows more than its disk.
    """
    world = _begun()
    first = world.open(run=RUNS[0], number=2, attempt=0, state=START)
    _play_until(world, lambda: world.attempts[first].server.phase is Phase.CLOSED)
    for seat in world.seats:
        world.crash(seat, after=1)
    world.settle_down()
    assert all(silo.life == 1 for silo in world.silos.values())
    world.open(run=RUNS[0], number=3, attempt=0, state=State(label=1, nudge=1))
    _deliver_all(world)
    world.train_one(late=True)
    world.settle_down()
    return world


def result_between_the_state_and_the_vector() -> World:
    """The next round's state, as good as the last one's, comes before the last one's result.

    When it comes, the first sum is open and its survivors are known; when the vector is there, the
    sum is closed and would not be a reason to name them.
    """
    world = _begun()
    first = world.open(run=RUNS[0], number=2, attempt=0, state=START)
    _play_until(world, lambda: len(world.attempts[first].opened) == len(world.seats))
    # Not before the four have opened: only then all of them know the survivors.
    second = world.open(run=RUNS[0], number=3, attempt=0, state=State(label=1, nudge=1))
    while _first_of(world, second):
        world.flying.insert(0, world.flying.pop(world.flying.index(_first_of(world, second)[0])))
        world.deliver(0)
    _deliver_all(world)
    world.train_one(late=True)
    world.settle_down()
    return world


def _first_of(world: World, attempt: AttemptId) -> list[Packet]:
    return [packet for packet in world.flying if packet.attempt == attempt]


def result_withheld_and_the_state_again() -> World:
    """No result arrives, and the next round starts from the same state with one silo less."""
    world = _begun()
    first = world.open(run=RUNS[0], number=2, attempt=0, state=START)
    _play_until(world, lambda: world.attempts[first].aggregate is not None)
    world.flying.clear()
    world.open(run=RUNS[0], number=3, attempt=0, state=START)
    _deliver_all(world)
    world.train_one(late=True)
    world.settle_down()
    return world


def abandoned_by_too_few() -> World:
    """The sum is opened and the answers are lost; who has not opened abandons; the state again.

    Fewer than t = 3 statements prove nothing: the attempt is not dead.
    """
    world = _begun()
    first = world.open(run=RUNS[0], number=2, attempt=0, state=START)
    _play_until(world, lambda: world.attempts[first].released is not None)
    world.flying.clear()
    world.stop(first)
    world.settle_down()
    assert len(world.attempts[first].server.abandons) == 1
    world.open(run=RUNS[0], number=3, attempt=0, state=START)
    _deliver_all(world)
    world.train_one(late=True)
    world.settle_down()
    return world


def a_round_number_left_out() -> World:
    """A sum, then round 4 on a state as good as that of round 2: nobody was in a round 3."""
    world = _begun()
    world.open(run=RUNS[0], number=2, attempt=0, state=START)
    world.settle_down()
    world.open(run=RUNS[0], number=4, attempt=0, state=State(label=1, nudge=1))
    _deliver_all(world)
    world.train_one(late=True)
    world.settle_down()
    return world


def shares_asked_for_in_a_second_attempt() -> World:
    """Some have opened shares; the others abandon the attempt, and it is tried again by all."""
    world = World(4)
    first = world.open(run=RUNS[0], number=1, attempt=0, state=START)
    _play_until(world, lambda: bool(world.attempts[first].opened))
    world.flying.clear()
    world.stop(first)
    world.settle_down()
    world.open(run=RUNS[0], number=1, attempt=1, state=START)
    world.settle_down()
    return world


def restarted_in_the_middle() -> World:
    """Every silo is restarted after its upload, and is sent everything once more."""
    world = World(4)
    first = world.open(run=RUNS[0], number=1, attempt=0, state=START)
    _play_until(world, lambda: world.attempts[first].server.phase is Phase.SURVIVORS)
    for seat in world.seats:
        world.restart(seat)
    for place in range(len(world.past)):
        world.replay(place, first)
    world.settle_down()
    return world


Scenario = Callable[[], World]
SCENARIOS = (
    two_rounds_open_at_once,
    killed_while_the_sum_is_used,
    result_between_the_state_and_the_vector,
    result_withheld_and_the_state_again,
    abandoned_by_too_few,
    a_round_number_left_out,
    shares_asked_for_in_a_second_attempt,
    restarted_in_the_middle,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_promises_hold(scenario: Scenario) -> None:
    """What the machine found does not happen again."""
    world = scenario()
    world.check()
    assert world.submitted  # the scenario came as far as a masked vector


def test_a_round_finishes_when_nothing_goes_wrong() -> None:
    """The world can do what it is for: two rounds, each from the state before."""
    world = World(4)
    for number in (1, 2):
        world.open(run=RUNS[0], number=number, attempt=0, state=State(label=number))
        world.settle_down()
        world.check()
    assert [a.aggregate is not None for a in world.attempts.values()] == [True, True]
    assert len(world.finished_at_silo) == 8
    assert not world.refused


# --- each rule is needed, and the world notices when it is missing -----------------------------


def _submit_unasked(self: SiloRound, values: Mapping[str, IntVector]) -> list[SiloEffect]:
    return self._submit(values)


def _close_first(
    real: Callable[[SiloRound, Result], list[SiloEffect]],
) -> Callable[[SiloRound, Result], list[SiloEffect]]:
    def reversed_order(self: SiloRound, message: Result) -> list[SiloEffect]:
        effects = real(self, message)
        assert isinstance(effects[0], Finished)
        return effects[::-1]

    return reversed_order


def _whatever_comes(*_arguments: object, **_more: object) -> int:
    return 10**6  # as if later than any round


def _no_prior(_self: SiloHistory, _kind: str, _model: bytes, _run: RunId) -> tuple[()]:
    return ()


def _all_dead(
    self: SiloHistory, run: RunId, _statements: Iterable[Abandon]
) -> tuple[AttemptId, ...]:
    return self.open_submissions(run)


def _never_unmasked(_self: SiloHistory, _run: RunId, _round: int) -> None:
    return None


def _never_opened(self: SiloHistory, attempt: AttemptId, event: JournalEvent) -> bool:
    trace = self._traces.get(attempt)
    return event is not JournalEvent.OPENED and trace is not None and event in trace.events


@pytest.mark.parametrize(
    ("scenario", "broken", "finding"),
    [
        (two_rounds_open_at_once, {"contribute": _submit_unasked}, "two different sums"),
        (
            killed_while_the_sum_is_used,
            {
                "preceding_round": _whatever_comes,
                "_on_result": _close_first(SiloRound._on_result),
            },
            "two different sums",
        ),
        (
            result_between_the_state_and_the_vector,
            {"preceding_round": _whatever_comes},
            "two different sums",
        ),
        (result_withheld_and_the_state_again, {"prior": _no_prior}, "two different sums"),
        (abandoned_by_too_few, {"newly_dead": _all_dead}, "two different sums"),
        (a_round_number_left_out, {"preceding_round": _whatever_comes}, "two different sums"),
        (
            shares_asked_for_in_a_second_attempt,
            {"unmasked_in": _never_unmasked},
            "two attempts|after Abandon",
        ),
        (
            restarted_in_the_middle,
            {"has": _never_opened, "check_open": lambda _self, _parameters: None},
            "two different",
        ),
    ],
    ids=[scenario.__name__ for scenario in SCENARIOS],
)
def test_the_world_notices_a_missing_rule(
    scenario: Scenario,
    broken: Mapping[str, object],
    finding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine that cannot fail proves nothing."""
    for name, replacement in broken.items():
        owner = next(one for one in (SiloRound, SiloHistory, secagg.silo) if hasattr(one, name))
        monkeypatch.setattr(owner, name, replacement)
    with pytest.raises(AssertionError, match=finding):
        scenario().check()

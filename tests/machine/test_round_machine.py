"""A hypothesis machine over whole rounds on a bad network.

Failures, which the machine looks for:
- a sum that is not the exact sum of its survivors, at the server or at a silo;
- a silo whose sum differs from the server's, or that has one which the server never announced;
- a silo that sends two different messages of one kind in one attempt (refusals apart);
- a silo that opens both shares of a dealer, or shares in two attempts of a round, or after it has
  promised to abandon the attempt;
- an input in two sums whose survivors differ (SA1 spec 2.5), where a sum counts as soon as shares
  of it have left t silos, whether or not they arrive;
- any exception but a SecAggError, and none at all from a server that opens a sum.

Not failures:
- a round that aborts, however needlessly;
- a silo that leaves an attempt for good because a message came twice, too early or from another
  attempt, or because it was restarted: it is a dropout;
- a silo that stays out of a run's later rounds because it does not know what became of its input;
- refused messages at the server.

The operations are those of `World`: what the network, the processes and a forgetful but honest
coordinator can do. Lies are the affair of tests/adversary.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from secagg.ids import AttemptId
from tests.machine.round_world import RUNS, State, World

PLACES = st.integers(0, 30)
STEPS = st.integers(1, 40)
MOST_ATTEMPTS = 6


class RoundMachine(RuleBasedStateMachine):
    """Random operations on a world of four or five silos."""

    world: World

    @initialize(silos=st.sampled_from([4, 4, 5]))
    def begin(self, silos: int) -> None:
        """A run's first attempt."""
        self.world = World(silos)
        self.world.open(run=RUNS[0], number=1, attempt=0, state=State(label=0))

    @property
    def newest(self) -> AttemptId:
        """The attempt that the coordinator opened last."""
        return list(self.world.attempts)[-1]

    def _pick(self, place: int) -> AttemptId:
        attempts = list(self.world.attempts)
        return attempts[-1 - place % min(3, len(attempts))]

    def _seat(self, place: int) -> int:
        return self.world.seats[place % len(self.world.seats)]

    @rule(steps=STEPS, train=st.booleans())
    def flow(self, steps: int, train: bool) -> None:
        """Packets arrive in order; trainings end in between, or are still busy."""
        for _ in range(steps):
            self.world.deliver(0)
            if train:
                self.world.train_one()

    @rule(steps=STEPS, stride=st.integers(1, 5))
    def flow_in_disorder(self, steps: int, stride: int) -> None:
        """Packets overtake one another."""
        for step in range(steps):
            self.world.deliver(step * stride)
            self.world.train_one(step)

    @rule()
    def settle_down(self) -> None:
        """All that flies arrives, and all trainings end."""
        self.world.settle_down()

    @rule(what=st.sampled_from(["lose", "lose", "duplicate", "late", "train"]), place=PLACES)
    def disturb(self, what: str, place: int) -> None:
        """The network loses a packet or will deliver it twice; a training ends, in time or not."""
        match what:
            case "lose":
                self.world.lose_packet(place)
            case "duplicate":
                self.world.duplicate(place)
            case _:
                self.world.train_one(place, late=what == "late")

    @rule(place=st.integers(0, 300), own=st.booleans(), into=PLACES)
    def replay(self, place: int, own: bool, into: int) -> None:
        """An old packet arrives once more, in its own attempt or in another one."""
        past = self.world.past[place % len(self.world.past)]
        self.world.replay(place, past.attempt if own else self._pick(into))

    @rule(seat=PLACES, after=st.integers(-1, 3))
    def crash(self, seat: int, after: int) -> None:
        """A silo's process is killed: now, or between two of its next effects."""
        if after < 0:
            self.world.restart(self._seat(seat))
        else:
            self.world.crash(self._seat(seat), after=after)

    @rule(what=st.sampled_from(["expire", "expire", "stop", "lose", "ask"]), at=PLACES, seat=PLACES)
    def coordinate(self, what: str, at: int, seat: int) -> None:
        """A deadline passes; the coordinator stops, stops waiting, or asks a silo to abandon."""
        attempt = self._pick(at)
        match what:
            case "expire":
                self.world.expire(attempt)
            case "stop":
                self.world.stop(attempt)
            case "lose":
                self.world.lose(attempt, self._seat(seat))
            case _:
                self.world.ask_to_abandon(attempt, self._seat(seat))

    @precondition(lambda self: len(self.world.attempts) < MOST_ATTEMPTS)
    @rule(
        kind=st.sampled_from(["attempt", "attempt", "round", "round", "jump", "ahead", "run"]),
        nudge=st.booleans(),
    )
    def open_another(self, kind: str, nudge: bool) -> None:
        """The coordinator opens a next attempt, round or run: on the same state, or as good as."""
        at, following = self.newest, self._following(nudge)
        match kind:
            case "attempt":
                self.world.open(
                    run=at.run, number=at.round, attempt=at.attempt + 1, state=following
                )
            case "round":
                self.world.open(run=at.run, number=at.round + 1, attempt=0, state=following)
            case "jump":  # as after a failed round, whose number is not used again
                self.world.open(run=at.run, number=at.round + 2, attempt=0, state=following)
            case "ahead":
                self.world.open(run=at.run, number=at.round + 1, attempt=0, state=None)
            case _ if at.run == RUNS[0] and not any(state.nudge for state in self._states()):
                self.world.open(run=RUNS[1], number=1, attempt=0, state=following)
            case _:
                pass

    @rule(nudge=st.booleans())
    def announce(self, nudge: bool) -> None:
        """The state of an attempt that was opened ahead of it is there."""
        self.world.announce(self.newest, self._following(nudge))

    def _states(self) -> list[State]:
        return [a.state for a in self.world.attempts.values() if a.state is not None]

    def _following(self, nudge: bool) -> State:
        """The successor of the last state if there is its sum; or the same, or as good as."""
        last = self._states()[-1]
        is_summed = any(
            attempt.aggregate is not None
            for attempt in self.world.attempts.values()
            if attempt.state == last
        )
        if is_summed and not nudge:
            return last.successor
        # Only the hash tells a repeat in another run, so there the states are not nudged.
        return State(label=last.label, nudge=last.nudge + (nudge and self.newest.run == RUNS[0]))

    @invariant()
    def promises_hold(self) -> None:
        """What the world has noted shows no failure."""
        self.world.check()


PROFILE = settings.default or settings()
TestRoundMachine = RoundMachine.TestCase
TestRoundMachine.settings = settings(
    PROFILE,
    max_examples=4 * PROFILE.max_examples,
    stateful_step_count=2 * PROFILE.stateful_step_count,
)

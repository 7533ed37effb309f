"""A coordinator that plays at random, with a colluding silo, over several attempts and rounds.

It shows silos different U2, asks for signatures under different survivors, opens with any
signatures it can get (the colluder signs everything), asks any silos to abandon, and tries the
same inputs again: in the same round, the next one, another run, on the same state. Whatever it
reaches, its view holds no honest input. The controls take a rule out, and the same play finds one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import messages
from secagg.errors import SecAggError
from secagg.ids import AttemptId, RunId
from secagg.journal import SiloHistory
from secagg.messages import Abandon, AbandonRequest, MaskedInput, SurvivorEntry, Survivors
from secagg.phases import Phase
from secagg.ring import IntVector
from tests.adversary.mutants import silo_without
from tests.adversary.stage import MODEL, Stage
from tests.adversary.view import View

pytestmark = pytest.mark.adversary

SILOS, COLLUDER = 5, 5
HONEST = (1, 2, 3, 4)
Dice = np.random.Generator


class Play:
    """Several attempts on the same inputs; `seed` decides all that is chosen."""

    def __init__(self, seed: int) -> None:
        self.dice: Dice = np.random.default_rng(seed)
        self.histories: dict[int, SiloHistory] = {}
        self.statements: list[Abandon] = []
        self.stages: list[Stage] = []
        self.view: View | None = None
        self.inputs = Stage(SILOS).inputs

    def some(self, seats: tuple[int, ...], least: int) -> tuple[int, ...]:
        """A random set of at least so many, the whole more often than not."""
        if len(seats) <= least or self.dice.random() < 0.5:
            return seats
        size = int(self.dice.integers(least, len(seats)))
        return tuple(sorted(int(s) for s in self.dice.choice(seats, size, replace=False)))

    def attempt(self, where: dict[str, object]) -> None:
        """One attempt, to wherever it gets."""
        cohort = self.some((*HONEST, COLLUDER), 4)
        stage = Stage(
            SILOS,
            cohort=cohort,
            corrupted=(COLLUDER,) if COLLUDER in cohort else (),
            histories=self.histories,
            view=self.view,
            inputs=self.inputs,
            **where,  # type: ignore[arg-type]  # parameters by name
        )
        self.view = stage.view
        self.view.corrupted.add(COLLUDER)
        opening = replace(stage.opening(), abandons=tuple(self.statements))
        joined = [seat for seat in cohort if self.tell(stage, seat, opening)]
        if len(joined) < len(cohort):
            return  # the others would refuse a U1 of which a part has not advertised
        self.stages.append(stage)
        self.deal(stage)
        self.add_up(stage)
        self.abandon(stage)

    def deal(self, stage: Stage) -> None:
        """Keys, boxes and state; sometimes each silo has a U2 of its own."""
        stage.view.see_keys(stage.setup, stage.advertises, stage.threshold)
        for seat in stage.cohort:
            self.tell(stage, seat, stage.keys())
        stage.corrupt()
        common = self.some(stage.cohort, 4) if self.dice.random() < 0.7 else ()
        for seat in stage.cohort:
            self.tell(stage, seat, stage.boxes(seat, *(common or self.some(stage.cohort, 4))))
            stage.stores[seat].put_state(MODEL)
            self.tell(stage, seat, stage.notice())

    def add_up(self, stage: Stage) -> None:
        """Uploads, survivors, openings; sometimes each silo is asked for others."""
        for seat in self.some(tuple(sorted(stage.wants_training)), 3):
            stage.submit(seat)
        uploaded = tuple(stage.all_of(MaskedInput))
        common = self.some(uploaded, 3) if self.dice.random() < 0.7 else ()
        for seat in self.some(stage.cohort, 3):
            self.request(stage, seat, common or self.some(uploaded, 3))
        for seat in self.some(stage.cohort, 1):
            self.open(stage, seat)

    def abandon(self, stage: Stage) -> None:
        """Ask some; the colluder swears to anything, in U1 or not."""
        where = stage.parameters
        request = AbandonRequest(run=where.run, round=where.round, attempt=where.attempt)
        for seat in self.some(stage.cohort, 0):
            self.tell(stage, seat, request)
        self.statements += stage.all_of(Abandon).values()
        self.statements.append(self.oath(stage))

    def tell(self, stage: Stage, seat: int, message: messages.ServerMessage) -> bool:
        """Whether the silo took it."""
        try:
            stage.tell(seat, message)
        except SecAggError:
            return False
        return True

    def request(self, stage: Stage, seat: int, chosen: tuple[int, ...]) -> None:
        """Ask one silo to sign these of its view, and what the colluder makes up for it."""
        binding = stage.silos[seat]._view.binding
        known = {
            s: item.entry
            for s, item in stage.all_of(MaskedInput).items()
            if item.binding == binding and s in chosen and s != COLLUDER
        }
        known[COLLUDER] = self.invented(stage, binding, self.prior_of(known))
        ordered = tuple(known[s] for s in sorted(known))
        self.tell(stage, seat, messages.SurvivorsRequest(entries=ordered))

    def prior_of(self, entries: Mapping[int, SurvivorEntry]) -> tuple[int, ...]:
        """What the others name, so that the colluder names the same."""
        priors = [entry.prior for entry in entries.values() if entry.prior]
        return priors[0] if priors else ()

    def invented(self, stage: Stage, binding: bytes, prior: tuple[int, ...]) -> SurvivorEntry:
        """An upload that the colluder has signed for any binding."""
        unsigned = SurvivorEntry(
            seat=COLLUDER,
            root=bytes(32),
            lengths=tuple(segment.length for segment in stage.wire.segments),
            prior=prior,
            signature=bytes(64),
        )
        identity = stage.federation.identities[COLLUDER]
        signature = identity.sign(messages.masked_signed_bytes(binding, unsigned))
        return replace(unsigned, signature=signature)

    def oath(self, stage: Stage) -> Abandon:
        """The colluder abandons whatever is wanted."""
        where = stage.parameters
        unsigned = Abandon(
            federation=where.federation,
            run=where.run,
            round=where.round,
            attempt=where.attempt,
            seat=COLLUDER,
        )
        return messages.signed(unsigned, stage.federation.identities[COLLUDER])

    def open(self, stage: Stage, seat: int) -> None:
        """Every signature under what this silo signed, and the colluder's."""
        silo = stage.silos[seat]
        if silo.phase is not Phase.UNMASK:
            return
        own = stage.last(seat, Survivors)
        statement = messages.survivors_signed_bytes(own.binding, own.survivors)
        endorsements = {
            s: item.signature
            for s, item in stage.all_of(Survivors).items()
            if (item.binding, item.survivors) == (own.binding, own.survivors)
        }
        endorsements[COLLUDER] = stage.federation.identities[COLLUDER].sign(statement)
        certificate = messages.Certificate(
            endorsements=tuple(
                messages.Endorsement(seat=s, signature=endorsements[s])
                for s in sorted(endorsements)
            )
        )
        self.tell(stage, seat, certificate)

    def leaks(self) -> list[str]:
        """What the view gives away of the honest inputs of all attempts."""
        truth: dict[tuple[bytes, int], Mapping[str, IntVector]] = {}
        for stage in self.stages:
            truth |= stage.truth()
        return [] if self.view is None else self.view.search(truth)


def _attempts(dice: Dice) -> list[dict[str, object]]:
    """Three attempts: again, as the next round, or in another run."""
    first: dict[str, object] = {"round": 1, "attempt": 0}
    choices: list[list[dict[str, object]]] = [
        [first, {"round": 1, "attempt": 1}, {"round": 1, "attempt": 2}],
        [first, {"round": 1, "attempt": 1}, {"round": 2, "attempt": 0}],
        [first, {"round": 2, "attempt": 0}, {"round": 3, "attempt": 0}],
        [first, first | {"run": RunId(b"another run 1234")}, {"round": 2, "attempt": 0}],
    ]
    return choices[int(dice.integers(len(choices)))]


def _play(seed: int) -> Play:
    play = Play(seed)
    for where in _attempts(play.dice):
        play.attempt(where)
    return play


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_no_play_leads_to_an_honest_input(seed: int) -> None:
    """Whatever the coordinator and one silo do."""
    assert _play(seed).leaks() == []


def _first_leak() -> bool:
    """Whether a hundred plays find an input."""
    return any(_play(seed).leaks() for seed in range(100))


def test_the_same_play_finds_inputs_without_priors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silos that sign survivors whatever was summed over the state before (2.5 v)."""
    mutant = silo_without(
        ("if entry.prior and set(entry.prior) - liars != set(seats):", "if False:")
    )
    defaults = Stage.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "silo_class", mutant)
    assert _first_leak()


def test_the_same_play_finds_inputs_if_any_abandon_statement_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Silos that believe an attempt dead on a single word (2.5 ii)."""

    def credulous(
        self: SiloHistory, run: RunId, statements: Iterable[Abandon]
    ) -> tuple[AttemptId, ...]:
        spoken = {item.attempt_id for item in statements}
        return tuple(attempt for attempt in self.open_submissions(run) if attempt in spoken)

    monkeypatch.setattr(SiloHistory, "newly_dead", credulous)
    assert _first_leak()


def test_plays_get_somewhere() -> None:
    """The control of the control: in many plays a silo opens shares."""
    plays = [_play(seed) for seed in range(15)]
    opened = [any(stage.all_of(messages.Unmask) for stage in play.stages) for play in plays]
    assert sum(opened) > 3

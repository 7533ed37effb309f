"""A server that meets real silos step by step, and stops in whatever phase a test wants."""

import copy
from collections.abc import Callable
from typing import Any

from secagg import messages
from secagg.effects import (
    Aborted,
    Aggregate,
    Broadcast,
    DeadlineSet,
    Finished,
    ReleaseWanted,
    SendTo,
    ServerEffect,
)
from secagg.intake import masked_name
from secagg.phases import Phase
from secagg.server import PhaseDeadlines, ServerRound
from secagg.testing import PLAN, MemoryStore
from tests.adversary.stage import MODEL, Stage

# Whether a silo's message is kept from the server.
Withhold = Callable[[int, messages.SiloMessage], bool]


class Meeting:
    """One attempt of an honest server with the silos of a stage.

    Args:
        stage: the silos, untouched so far.
        withhold: which of their messages the server does not get; they are kept in `withheld`.
        deadlines: of the server.
        with_state: whether the state is there from the start.
    """

    def __init__(
        self,
        stage: Stage,
        *,
        withhold: Withhold = lambda _seat, _message: False,
        deadlines: PhaseDeadlines | None = None,
        with_state: bool = True,
        abandons: tuple[messages.Abandon, ...] = (),
    ) -> None:
        self.stage = stage
        self.store = MemoryStore()
        self.store.put_state(MODEL)
        self.withheld: list[messages.SiloMessage] = []
        self.errors: list[Exception] = []
        self.effects: list[ServerEffect] = []
        self.aggregate: Aggregate | None = None
        self.aborted: Aborted | None = None
        self.release_wanted = False
        self.now = 100.0
        self._withhold = withhold
        self._post: list[tuple[int, messages.ServerMessage]] = []
        self._heard = dict.fromkeys(stage.cohort, 0)
        self.server = ServerRound(
            parameters=stage.parameters,
            plan=PLAN,
            roster=stage.roster,
            signing_key=stage.federation.coordinator,
            store=self.store,
            cohort=stage.cohort,
            deadlines=deadlines or PhaseDeadlines(),
            abandons=abandons,
        )
        self.carry_out(self.server.start(self.now))
        if with_state:
            self.carry_out(self.server.set_state(self.now))

    def carry_out(self, effects: list[ServerEffect]) -> list[ServerEffect]:
        """Queue what is to be sent, note the rest."""
        self.effects += effects
        for effect in effects:
            match effect:
                case Broadcast():
                    self._post += [(seat, effect.message) for seat in effect.seats]
                case SendTo():
                    self._post.append((effect.seat, effect.message))
                case ReleaseWanted():
                    self.release_wanted = True
                case Finished():
                    self.aggregate = effect.aggregate
                case Aborted():
                    self.aborted = effect
                case DeadlineSet():
                    pass
        return effects

    def step(self) -> bool:
        """Deliver one message to a silo and what it answers to the server."""
        if not self._post:
            return False
        seat, message = self._post.pop(0)
        for item in messages.attachments(message):
            for chunk in range(item.chunks):
                data = self.store.read(item.name, chunk)
                self.stage.stores[seat].write(item.name, chunk, data)
        silo = self.stage.silos[seat]
        try:
            self.stage.tell(seat, message)
            if seat in self.stage.wants_training and silo.phase is Phase.MASK:
                self.stage.submit(seat)
        except Exception as error:  # noqa: BLE001  # a silo's refusal is looked at by the test
            self.errors.append(error)
        self._collect(seat)
        return True

    def _collect(self, seat: int) -> None:
        sent = self.stage.sent[seat]
        while self._heard[seat] < len(sent):
            message = sent[self._heard[seat]]
            self._heard[seat] += 1
            if self._withhold(seat, message):
                self.withheld.append(message)
            else:
                self.deliver(message)

    def deliver(self, message: messages.SiloMessage) -> list[ServerEffect]:
        """A silo's message reaches the server, its vector first."""
        seat = message.seat
        own = self.stage.stores[seat]
        for item in messages.attachments(message):
            for chunk in range(own.chunks(item.name)):
                self.store.write(masked_name(seat), chunk, own.read(item.name, chunk))
        return self.carry_out(self.server.receive(seat, message, self.now))

    def until(self, phase: Phase) -> "Meeting":
        """Go on until the server is in this phase; deadlines pass when nothing moves."""
        while self.server.phase is not phase:
            if self.step():
                continue
            if self.release_wanted:
                self.release_wanted = False
                self.carry_out(self.server.open())
                continue
            assert self.server.deadline is not None, f"ended in {self.server.phase}"
            self.now = self.server.deadline
            self.carry_out(self.server.expire(self.now))
        return self

    def drain(self) -> "Meeting":
        """Deliver all that is under way."""
        while self.step():
            pass
        return self

    def snapshot(self) -> dict[str, Any]:
        """All that the server knows but its evidence, in copies that no longer change."""
        state: dict[str, Any] = {}
        for thing in (self.server, self.server._intake):
            state |= {
                name: copy.copy(value) if isinstance(value, dict | list | set) else value
                for name, value in vars(thing).items()
            }
        state.pop("evidence")
        state["stored"] = {name: dict(chunks) for name, chunks in self.store.vectors.items()}
        return state

"""A federation on a bad network: real servers and silos, and a log of all that left a process.

The world keeps what survives a crash (journals, vectors) apart from what does not (rounds), moves
packets only when told to, and checks its promises after each step (`check`). A silo may have
several attempts alive at once, and a server of an old attempt goes on beside the new one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from secagg import messages
from secagg.chain import Standpoint
from secagg.effects import (
    Aborted,
    Aggregate,
    Broadcast,
    DeadlineSet,
    Finished,
    Persist,
    ReleaseWanted,
    Send,
    SendTo,
    ServerEffect,
    SiloEffect,
    TrainingWanted,
)
from secagg.errors import SecAggError
from secagg.ids import AttemptId, RunId
from secagg.intake import masked_name
from secagg.journal import JournalEvent, JournalRecord, SiloHistory
from secagg.parameters import RoundParameters, VectorSpec, bulk, meta
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.recall import RecalledRound
from secagg.ring import IntVector
from secagg.server import PhaseDeadlines, ServerRound
from secagg.silo import SiloRound
from secagg.testing import PLAN, MemoryStore, SeededRng, make_federation, make_parameters

SERVER = 0
RUNS = (RunId(b"a run of a world"), RunId(b"another such run"))


@dataclass(frozen=True, kw_only=True)
class State:
    """A round's state: `label` tells the inputs, `nudge` changes the bytes and nothing else."""

    label: int
    nudge: int = 0

    @property
    def data(self) -> bytes:
        return f"state {self.label}, nudged {self.nudge} times".encode()

    @property
    def digest(self) -> bytes:
        return messages.model_hash("training", self.data)

    @property
    def successor(self) -> "State":
        return State(label=self.label + 1)


@dataclass(frozen=True, kw_only=True)
class Packet:
    """A message on its way between the server of an attempt and a silo."""

    attempt: AttemptId
    seat: int
    to_server: bool
    data: bytes


@dataclass(kw_only=True)
class Attempt:
    """The coordinator's end of one attempt.

    Attributes:
        state: None in an attempt that was opened ahead of it.
        cohort: |U1|, once the server has announced it.
        opened: by silo, the survivors of the Unmask that has left it.
    """

    server: ServerRound
    store: MemoryStore
    state: State | None
    aggregate: Aggregate | None = None
    aborted: Aborted | None = None
    cohort: int = 0
    opened: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def id(self) -> AttemptId:
        return self.server.parameters.attempt_id

    @property
    def released(self) -> tuple[int, ...] | None:
        """The survivors whose sum follows from the shares that have left the silos."""
        openers = list(self.opened.values())
        threshold = self.server.parameters.threshold(self.cohort)
        return next((s for s in openers if openers.count(s) >= threshold), None)


@dataclass(kw_only=True)
class Silo:
    """One silo's process and its disk.

    Attributes:
        journal: encoded records; with `stores` and `settled`, all that survives a crash.
        settled: by run, the last round whose sum was used, and the state that must follow.
        crash_in: the process dies before it carries out this many more effects.
    """

    history: SiloHistory = field(default_factory=SiloHistory)
    live: dict[AttemptId, SiloRound | RecalledRound] = field(default_factory=dict)
    wanted: dict[AttemptId, TrainingWanted] = field(default_factory=dict)
    journal: list[bytes] = field(default_factory=list)
    stores: dict[AttemptId, MemoryStore] = field(default_factory=dict)
    settled: dict[RunId, tuple[int, State]] = field(default_factory=dict)
    crash_in: int | None = None
    life: int = 0


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """A silo has submitted one input in two attempts."""

    seat: int
    earlier: AttemptId
    later: AttemptId


class World:
    """All of it. Operations are methods; none raises anything if the promises hold."""

    def __init__(self, silos: int) -> None:
        self.federation = make_federation(silos)
        self.spec = VectorSpec(
            segments=(
                bulk("update", 3, value_bits=16, n_max=silos),
                meta("weight", 1, bound=2**20),
            )
        )
        self.seats = self.federation.roster.indices
        self.silos = {seat: Silo() for seat in self.seats}
        self.attempts: dict[AttemptId, Attempt] = {}
        self.flying: list[Packet] = []
        self.past: list[Packet] = []
        self.sent: dict[tuple[int, AttemptId, str], bytes] = {}
        self.submitted: list[tuple[int, AttemptId]] = []
        self.repeats: list[Repeat] = []
        self.finished_at_silo: set[tuple[int, AttemptId]] = set()
        self.refused: list[SecAggError] = []
        self.settled: dict[tuple[RunId, int], messages.Settled] = {}
        self.now = 0.0

    # --- the coordinator ----------------------------------------------------------------------

    def open(self, *, run: RunId, number: int, attempt: int, state: State | None) -> AttemptId:
        """Open an attempt, with every abandon statement of the run's earlier ones.

        Without a state it is opened ahead of it; `announce` gives the state.
        """
        parameters = make_parameters(
            self.federation.roster, self.spec, run=run, round=number, attempt=attempt
        )
        store = MemoryStore()
        server = ServerRound(
            parameters=parameters,
            plan=PLAN,
            roster=self.federation.roster,
            signing_key=self.federation.coordinator,
            store=store,
            cohort=self.seats,
            deadlines=PhaseDeadlines(),
            abandons=tuple(
                statement
                for earlier in self.attempts.values()
                if earlier.id.run == run
                for statement in earlier.server.abandons
            ),
        )
        opened = Attempt(server=server, store=store, state=None)
        self.attempts[opened.id] = opened
        self._server_does(opened, server.start(self.now))
        if state is not None:
            self.announce(opened.id, state)
        return opened.id

    def announce(self, attempt: AttemptId, state: State) -> None:
        """The state of an attempt is there."""
        found = self.attempts[attempt]
        if found.state is None:
            found.state = state
            found.store.put_state(state.data)
            succession = self._succession(found.server.parameters, state)
            self._server_does(found, found.server.set_state(self.now, succession))

    def _succession(self, parameters: RoundParameters, state: State) -> messages.Succession | None:
        """What silos have said of this state, if enough have: with any luck they stand there."""
        found = [
            item
            for (run, _), item in self.settled.items()
            if run == parameters.run
            and item.model_hash == state.digest
            and item.round < parameters.round
        ]
        newest = max((item.round for item in found), default=0)
        signers = [item for item in found if item.round == newest]
        needed = parameters.n_c + 1
        return messages.Succession.of(*signers[:needed]) if len(signers) >= needed else None

    def expire(self, attempt: AttemptId) -> None:
        """Let the deadline of the attempt's phase pass."""
        found = self.attempts[attempt]
        if found.server.deadline is not None:
            self.now = max(self.now, found.server.deadline)
            self._server_does(found, found.server.expire(self.now))

    def stop(self, attempt: AttemptId) -> None:
        """The coordinator gives the attempt up, if it is not over."""
        found = self.attempts[attempt]
        if found.server.phase not in {Phase.CLOSED, Phase.ABORTED}:
            self._server_does(found, found.server.stop("stopped by hand"))

    def lose(self, attempt: AttemptId, seat: int) -> None:
        """The coordinator stops waiting for a silo."""
        found = self.attempts[attempt]
        self._server_does(found, found.server.lost(seat, self.now))

    def ask_to_abandon(self, attempt: AttemptId, seat: int) -> None:
        """The coordinator asks one silo, whatever the attempt's phase."""
        request = messages.AbandonRequest(
            run=attempt.run, round=attempt.round, attempt=attempt.attempt
        )
        self._post(attempt, seat, request, to_server=False)

    def _server_does(self, attempt: Attempt, effects: Sequence[ServerEffect]) -> None:
        for effect in effects:
            match effect:
                case Broadcast():
                    if isinstance(effect.message, messages.Keys):
                        attempt.cohort = len(effect.message.advertises)
                    for seat in effect.seats:
                        self._post(attempt.id, seat, effect.message, to_server=False)
                case SendTo():
                    self._post(attempt.id, effect.seat, effect.message, to_server=False)
                case ReleaseWanted():
                    self._server_does(attempt, attempt.server.open())
                case Finished():
                    assert attempt.aggregate is None
                    attempt.aggregate = effect.aggregate
                case Aborted():
                    assert attempt.aggregate is None
                    attempt.aborted = effect
                case DeadlineSet():
                    pass

    # --- the network --------------------------------------------------------------------------

    def deliver(self, place: int) -> None:
        """Deliver a flying packet."""
        if self.flying:
            packet = self.flying.pop(place % len(self.flying))
            self._arrive(packet, packet.attempt)

    def lose_packet(self, place: int) -> None:
        """Drop a flying packet for good."""
        if self.flying:
            self.flying.pop(place % len(self.flying))

    def duplicate(self, place: int) -> None:
        """Deliver a flying packet, and keep it flying."""
        if self.flying:
            packet = self.flying[place % len(self.flying)]
            self._arrive(packet, packet.attempt)

    def replay(self, place: int, into: AttemptId) -> None:
        """Deliver a packet of the past once more, under the name of some attempt."""
        if self.past:
            self._arrive(self.past[place % len(self.past)], into)

    def settle_down(self, *, limit: int = 10_000) -> None:
        """Deliver in order and train until nothing moves."""
        for _ in range(limit):
            if self.flying:
                self.deliver(0)
            elif not self.train_one():
                return
        raise AssertionError("the world does not come to rest")

    def _post(
        self, attempt: AttemptId, seat: int, message: messages.Message, *, to_server: bool
    ) -> None:
        packet = Packet(attempt=attempt, seat=seat, to_server=to_server, data=message.encode())
        self.flying.append(packet)
        self.past.append(packet)

    def _arrive(self, packet: Packet, into: AttemptId) -> None:
        message = messages.decode_message(packet.data)
        if packet.to_server:
            assert isinstance(message, messages.SiloMessage)
            self._at_server(packet, self.attempts[into], message)
        else:
            assert isinstance(message, messages.ServerMessage)
            self._at_silo(packet, into, message)

    # --- at the server ------------------------------------------------------------------------

    def _at_server(self, packet: Packet, attempt: Attempt, message: messages.SiloMessage) -> None:
        source = self.silos[packet.seat].stores.get(packet.attempt, MemoryStore())
        name = masked_name(packet.seat)
        for item in messages.attachments(message):
            for chunk in range(item.chunks):
                held = attempt.store.vectors.get(name, {}).get(chunk)
                data = source.read(item.name, chunk)
                if held not in (None, data):
                    return  # the transport takes no second vector in place of the first
                attempt.store.write(name, chunk, data)
        try:
            effects = attempt.server.receive(packet.seat, message, self.now)
        except SecAggError as error:
            self.refused.append(error)
            return
        self._server_does(attempt, effects)

    # --- at a silo ----------------------------------------------------------------------------

    def crash(self, seat: int, *, after: int) -> None:
        """The process dies before it carries out its (after + 1)-th effect from now."""
        self.silos[seat].crash_in = after

    def restart(self, seat: int) -> None:
        """A new process: it has the disk, and nothing else."""
        old = self.silos[seat]
        self.silos[seat] = Silo(
            history=SiloHistory(JournalRecord.decode(line) for line in old.journal),
            journal=old.journal,
            stores=old.stores,
            settled=old.settled,
            life=old.life + 1,
        )

    def train_one(self, place: int = 0, *, late: bool = False) -> bool:
        """One of the wanted trainings ends; False if none is wanted."""
        waiting = [(seat, a) for seat, silo in self.silos.items() for a in silo.wanted]
        if not waiting:
            return False
        seat, attempt = waiting[place % len(waiting)]
        silo = self.silos[seat]
        wanted = silo.wanted.pop(attempt)
        protocol = silo.live[attempt]
        if isinstance(protocol, SiloRound) and protocol.phase is Phase.MASK:
            values = self.inputs(seat, self._state_of(wanted.state_hash))
            self._silo_does(
                seat, attempt, protocol.go_late() if late else protocol.contribute(values)
            )
        return True

    def inputs(self, seat: int, state: State) -> dict[str, IntVector]:
        """A silo's integers: powers of two show a double count; a nudge changes nothing."""
        return {
            "update": np.array([2**seat, -(2**seat), state.label], np.int64),
            "weight": np.array([3**seat], np.int64),
        }

    def _state_of(self, digest: bytes) -> State:
        states = (attempt.state for attempt in self.attempts.values())
        return next(state for state in states if state and state.digest == digest)

    def _of(self, attempt: AttemptId) -> State:
        state = self.attempts[attempt].state
        assert state is not None  # a vector was masked for it
        return state

    def _at_silo(self, packet: Packet, into: AttemptId, message: messages.ServerMessage) -> None:
        seat = packet.seat
        silo = self.silos[seat]
        protocol = self._round_of(seat, into, message)
        if protocol is None:
            return
        store = silo.stores[into]
        for item in messages.attachments(message):
            for chunk in range(item.chunks):
                store.write(
                    item.name, chunk, self.attempts[packet.attempt].store.read(item.name, chunk)
                )
        try:
            effects = protocol.receive(message)
        except SecAggError as error:
            self.refused.append(error)
            for effect in protocol.parting:
                if isinstance(effect, Send):  # a refusal is no statement: its reason may change
                    self._post(into, seat, effect.message, to_server=True)
                else:
                    self._silo_does(seat, into, [effect])
            return
        self._silo_does(seat, into, effects)

    def _round_of(
        self, seat: int, attempt: AttemptId, message: messages.ServerMessage
    ) -> SiloRound | RecalledRound | None:
        silo = self.silos[seat]
        if attempt in silo.live:
            return silo.live[attempt]
        store = silo.stores.setdefault(attempt, MemoryStore())
        identity = self.federation.identities[seat]
        if silo.history.has(attempt, JournalEvent.OPENED):
            silo.live[attempt] = RecalledRound(
                attempt,
                seat=seat,
                identity=identity,
                roster=self.federation.roster,
                history=silo.history,
                store=store,
            )
        elif isinstance(message, messages.RoundOpen):
            silo.live[attempt] = SiloRound(
                seat=seat,
                identity=identity,
                roster=self.federation.roster,
                policy=SiloPolicy(),
                history=silo.history,
                store=store,
                rng=SeededRng(f"{seat}/{silo.life}/{attempt}/{len(silo.live)}"),
                standpoint=self._standpoint(seat, message.parameters.run),
            )
        return silo.live.get(attempt)

    def _standpoint(self, seat: int, run: RunId) -> Standpoint | None:
        """Where the silo left the run (2.5 v)."""
        settled = self.silos[seat].settled.get(run)
        if settled is None:
            return None
        return Standpoint(round=settled[0], model_hash=settled[1].digest)

    def _silo_does(self, seat: int, envelope: AttemptId, effects: Sequence[SiloEffect]) -> None:
        silo = self.silos[seat]
        # A replayed opening may come in the envelope of another attempt.
        attempt = silo.live[envelope].attempt
        for effect in effects:
            if silo.crash_in is not None:
                if silo.crash_in == 0:
                    self.restart(seat)
                    return
                silo.crash_in -= 1
            match effect:
                case Persist():
                    silo.journal.append(effect.record.encode())
                    if effect.record.event is JournalEvent.SUBMITTED:
                        self._note_submission(seat, attempt)
                case Send():
                    self._note_sent(seat, attempt, effect.message)
                    self._post(envelope, seat, effect.message, to_server=True)
                case TrainingWanted():
                    silo.wanted[envelope] = effect
                case Finished():
                    self._note_finished(seat, attempt, effect.aggregate)
                case Aborted():
                    pass

    # --- the promises -------------------------------------------------------------------------

    def _note_sent(self, seat: int, attempt: AttemptId, message: messages.SiloMessage) -> None:
        """A silo never sends two different messages of one kind in one attempt."""
        key = (seat, attempt, message.LABEL)
        data = message.encode()
        assert self.sent.setdefault(key, data) == data, f"two different {message.LABEL}"
        if isinstance(message, messages.Unmask):
            self._note_unmask(seat, attempt, message)

    def _note_unmask(self, seat: int, attempt: AttemptId, message: messages.Unmask) -> None:
        """One share of each dealer, in one attempt of a round, and never after an Abandon."""
        dealers = [item.dealer for item in message.openings]
        assert len(dealers) == len(set(dealers)), "two shares of one dealer"
        for other_seat, other, label in self.sent:
            same_round = (other.run, other.round) == (attempt.run, attempt.round)
            if other_seat == seat and same_round and label == messages.Unmask.LABEL:
                assert other == attempt, "shares opened in two attempts of a round"
        assert (seat, attempt, messages.Abandon.LABEL) not in self.sent, "opened after Abandon"
        survivors = tuple(
            item.dealer for item in message.openings if item.kind is messages.ShareKind.SELF
        )
        self.attempts[attempt].opened[seat] = survivors

    def _note_submission(self, seat: int, attempt: AttemptId) -> None:
        """Remember which earlier submissions of the silo this one repeats (2.5 v)."""
        state = self._of(attempt)
        for other_seat, earlier in self.submitted:
            before = self._of(earlier)
            # Within a run a nudged state is as good as the same one.
            counts = before == state or (earlier.run == attempt.run and before.label == state.label)
            if other_seat == seat and counts:
                self.repeats.append(Repeat(seat=seat, earlier=earlier, later=attempt))
        self.submitted.append((seat, attempt))

    def _note_finished(self, seat: int, attempt: AttemptId, aggregate: Aggregate) -> None:
        """A silo's sum is the server's, and it is used once."""
        self.finished_at_silo.add((seat, attempt))
        self._check_exact(aggregate)
        announced = self.attempts[attempt].aggregate
        assert announced is not None, "a sum that the server has not announced"
        assert aggregate.survivors == announced.survivors
        silo = self.silos[seat]
        known = silo.settled.get(attempt.run, (-1, State(label=0)))
        if attempt.round > known[0]:
            following = self._of(attempt).successor
            silo.settled[attempt.run] = (attempt.round, following)
            standpoint = Standpoint(round=attempt.round, model_hash=following.digest)
            self.settled[attempt.run, seat] = standpoint.settled(
                federation=self.federation.roster.federation,
                run=attempt.run,
                seat=seat,
                identity=self.federation.identities[seat],
            )
            for opened, protocol in silo.live.items():
                # What was opened ahead learns what it has to start from.
                if isinstance(protocol, SiloRound) and opened.run == attempt.run:
                    protocol.standpoint = self._standpoint(seat, attempt.run)

    def _check_exact(self, aggregate: Aggregate) -> None:
        state = self._state_of(aggregate.state_hash)
        parts = [self.inputs(seat, state) for seat in aggregate.survivors]
        for name, column in aggregate.values.items():
            assert column.tolist() == np.sum([part[name] for part in parts], axis=0).tolist()
        floor = aggregate.parameters.floor(len(aggregate.cohort))
        assert len(aggregate.survivors) >= floor

    def check(self) -> None:
        """Every sum is exact; no input stands in two sums whose survivors differ."""
        for attempt in self.attempts.values():
            if attempt.aggregate is not None:
                self._check_exact(attempt.aggregate)
        for repeat in self.repeats:
            sums = [self.attempts[a].released for a in (repeat.earlier, repeat.later)]
            if all(found is not None and repeat.seat in found for found in sums):
                assert sums[0] == sums[1], f"seat {repeat.seat} is in two different sums"

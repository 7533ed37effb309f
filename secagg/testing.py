"""A whole round in memory: server, silos, a fake link and scripted faults.

The harness drives the very objects that the services drive; the simulator in `fl` and the tests
share it. Everything is deterministic from a seed. Nothing here is safe for real data: the seed
stands for all secrets.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

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
from secagg.errors import LocalProtocolError, SecAggError
from secagg.evidence import Evidence
from secagg.ids import FederationId, RunId, SiloId
from secagg.intake import masked_name
from secagg.journal import SiloHistory
from secagg.keys import IdentityKey
from secagg.parameters import RoundParameters, VectorSpec
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.ring import IntVector
from secagg.roster import Roster, Seat
from secagg.server import Noising, PhaseDeadlines, ServerRound
from secagg.silo import SiloRound

PLAN = b"a plan"
# A round passes two for each of its phases at most.
_MOST_DEADLINES = 100


class SeededRng:
    """Reproducible bytes: AES-256-CTR under the hash of a seed. For tests and simulations."""

    def __init__(self, seed: int | str) -> None:
        """Start the stream of this seed."""
        key = hashlib.sha256(f"secagg.testing/{seed}".encode()).digest()
        self._stream = Cipher(AES256(key), CTR(bytes(16))).encryptor()

    def bytes(self, count: int) -> bytes:
        """The next `count` bytes."""
        return self._stream.update(bytes(count))


class MemoryStore:
    """A `VectorStore` in a dictionary."""

    def __init__(self) -> None:
        """Start empty."""
        self.vectors: dict[str, dict[int, bytes]] = {}

    def write(self, name: str, chunk: int, data: bytes) -> None:
        """Keep a chunk."""
        self.vectors.setdefault(name, {})[chunk] = data

    def read(self, name: str, chunk: int) -> bytes:
        """Give a chunk back."""
        return self.vectors[name][chunk]

    def chunks(self, name: str) -> int:
        """How many chunks are there without a gap."""
        have = self.vectors.get(name, {})
        count = 0
        while count in have:
            count += 1
        return count

    def discard(self, name: str) -> None:
        """Forget a vector."""
        self.vectors.pop(name, None)

    def put_state(self, state: bytes) -> None:
        """Keep a round's state, cut as the wire cuts it."""
        self.discard(messages.STATE)
        for piece in range(messages.state_chunks(len(state))):
            start = piece * messages.STATE_CHUNK_BYTES
            self.write(messages.STATE, piece, state[start : start + messages.STATE_CHUNK_BYTES])

    def get_state(self) -> bytes:
        """The state's bytes."""
        pieces = range(self.chunks(messages.STATE))
        return b"".join(self.read(messages.STATE, piece) for piece in pieces)


@dataclass(slots=True)
class Federation:
    """A roster with all its private keys."""

    roster: Roster
    coordinator: IdentityKey
    identities: dict[int, IdentityKey]


def make_federation(
    silos: int, *, seed: int | str = 0, organizations: int | None = None
) -> Federation:
    """A federation of `silos` seats numbered from 1, each an organization of its own by default."""
    rng = SeededRng(f"federation/{seed}")
    coordinator = IdentityKey.generate(rng)
    identities = {index: IdentityKey.generate(rng) for index in range(1, silos + 1)}
    distinct = organizations or silos
    seats = tuple(
        Seat(
            index=index,
            silo=SiloId(f"silo-{index}"),
            organization=f"organization {1 + (index - 1) % distinct}",
            identity_key=identities[index].public,
            certificate_key=rng.bytes(32),
        )
        for index in identities
    )
    roster = Roster(
        federation=FederationId("test-federation"),
        version=1,
        previous=bytes(32),
        coordinator_key=coordinator.public,
        seats=seats,
    )
    return Federation(roster=roster, coordinator=coordinator, identities=identities)


def make_parameters(roster: Roster, spec: VectorSpec, **changes: object) -> RoundParameters:
    """Parameters that the default policy accepts; `changes` override single fields."""
    fields: dict[str, object] = {
        "federation": roster.federation,
        "run": RunId(b"run-for-testing!"),
        "roster_digest": roster.digest(),
        "kind": "training",
        "round": 1,
        "attempt": 0,
        "n_c": SiloPolicy().colluding(roster),
        "n_max": len(roster.seats),
        "spec": spec,
        "training_plan": messages.plan_hash(PLAN),
    }
    return RoundParameters(**(fields | changes))  # type: ignore[arg-type]  # checked at run time


def make_succession(
    federation: Federation, parameters: RoundParameters, state: bytes, *seats: int, after: int = 0
) -> messages.Succession:
    """These silos' word that a round's state follows from round `after`, the one before by default.

    By default n_c + 1 silos give it: as many as are needed.
    """
    standpoint = Standpoint(
        round=after or parameters.round - 1,
        model_hash=messages.model_hash(parameters.kind, state),
    )
    return messages.Succession.of(
        *(
            standpoint.settled(
                federation=parameters.federation,
                run=parameters.run,
                seat=seat,
                identity=federation.identities[seat],
            )
            for seat in seats or federation.roster.indices[: parameters.n_c + 1]
        )
    )


# What a silo contributes: its integers by segment, or None to go late.
Trainer = Callable[[int, RoundParameters, bytes], Mapping[str, IntVector] | None]
# Sees every message before it is delivered; gives it back, changed, or None to lose it.
Tamper = Callable[[int, messages.Message], messages.Message | None]


@dataclass(slots=True)
class Outcome:
    """What came of a round."""

    aggregate: Aggregate | None = None
    aborted: Aborted | None = None
    silo_aggregates: dict[int, Aggregate] = field(default_factory=dict)
    silo_errors: dict[int, SecAggError] = field(default_factory=dict)
    server_errors: list[SecAggError] = field(default_factory=list)
    # Everything that reached the server, in order: (seat, message).
    received: list[tuple[int, messages.SiloMessage]] = field(default_factory=list)
    server_store: MemoryStore = field(default_factory=MemoryStore)


class RoundHarness:
    """One attempt of a round over a link that loses, delays and changes what the script says.

    Args:
        federation: roster and keys.
        parameters: of the attempt.
        state: the round's state bytes.
        train: gives each silo's integers.
        drop: seat → the phase in which it vanishes, before it sends that phase's message.
        plan: the training plan's document.
        cohort: invited seats; all by default.
        histories: the silos' journals; new ones by default.
        policies: the silos' policies; the default one by default.
        standpoints: where each silo left the run; nowhere by default.
        succession: goes with the state.
        seed: of all secrets.
        to_silo, to_server: see every message before it is delivered.
        abandons: statements for earlier attempts.
        cases: evidence from earlier rounds.
        noise: of a vector that the server noises.
    """

    def __init__(
        self,
        *,
        federation: Federation,
        parameters: RoundParameters,
        state: bytes,
        train: Trainer,
        drop: Mapping[int, Phase] | None = None,
        plan: bytes = PLAN,
        cohort: tuple[int, ...] | None = None,
        histories: dict[int, SiloHistory] | None = None,
        policies: Mapping[int, SiloPolicy] | None = None,
        standpoints: Mapping[int, Standpoint] | None = None,
        succession: messages.Succession | None = None,
        seed: int | str = 0,
        to_silo: Tamper | None = None,
        to_server: Tamper | None = None,
        abandons: tuple[messages.Abandon, ...] = (),
        cases: tuple[Evidence, ...] = (),
        noise: Noising | None = None,
    ) -> None:
        self.outcome = Outcome()
        self._noise = noise
        self._succession = succession
        self.federation = federation
        self.stores: dict[int, MemoryStore] = {}
        self.silos: dict[int, SiloRound] = {}
        self._train = train
        self._state = state
        self._drop = dict(drop or {})
        self._to_silo = to_silo
        self._to_server = to_server
        self._inboxes: dict[int, list[messages.ServerMessage]] = {}
        self._now = 0.0
        roster = federation.roster
        cohort = roster.indices if cohort is None else cohort
        histories = {} if histories is None else histories
        for seat in cohort:
            self.stores[seat] = MemoryStore()
            self._inboxes[seat] = []
            self.silos[seat] = SiloRound(
                seat=seat,
                identity=federation.identities[seat],
                roster=roster,
                policy=(policies or {}).get(seat, SiloPolicy()),
                history=histories.setdefault(seat, SiloHistory()),
                store=self.stores[seat],
                rng=SeededRng(f"{seed}/{parameters.ctx().hex()}/{seat}"),
                standpoint=(standpoints or {}).get(seat),
            )
        self.outcome.server_store.put_state(state)
        self.server = ServerRound(
            parameters=parameters,
            plan=plan,
            roster=roster,
            signing_key=federation.coordinator,
            store=self.outcome.server_store,
            cohort=cohort,
            deadlines=PhaseDeadlines(),
            abandons=abandons,
        )
        self.server.show(cases)

    def run(self, *, ahead: bool = False) -> Outcome:
        """Drive the round to its end; silence is broken by the server's deadlines.

        With `ahead` keys and shares are exchanged first, as during the training of the round
        before; the state comes when nothing else is left to do.
        """
        self._carry_out(self.server.start(self._now))
        if ahead:
            self._drive()
        if self.outcome.aborted is None:
            self._carry_out(self.server.set_state(self._now, self._succession))
        self._drive()
        return self.outcome

    def _drive(self) -> None:
        """Deliver and let deadlines pass until nobody waits for anything."""
        for _ in range(_MOST_DEADLINES):
            while self._deliver_one():
                pass
            if self.server.deadline is None:
                return
            self._now = self.server.deadline
            self._carry_out(self.server.expire(self._now))
        raise LocalProtocolError(f"expected a round's end within {_MOST_DEADLINES} deadlines")

    def _deliver_one(self) -> bool:
        for seat, inbox in self._inboxes.items():
            if inbox:
                self._to_seat(seat, inbox.pop(0))
                return True
        return False

    def _to_seat(self, seat: int, message: messages.ServerMessage) -> None:
        changed = message if self._to_silo is None else self._to_silo(seat, message)
        if changed is None:
            return
        delivered = messages.decode_message(changed.encode())
        assert isinstance(delivered, messages.ServerMessage)  # just encoded above
        for item in messages.attachments(delivered):
            for chunk in range(item.chunks):
                data = self.outcome.server_store.read(item.name, chunk)
                self.stores[seat].write(item.name, chunk, data)
        silo = self.silos[seat]
        try:
            effects = silo.receive(delivered)
        except SecAggError as error:
            self.outcome.silo_errors.setdefault(seat, error)
            effects = silo.parting
        self._silo_effects(seat, effects)
        if isinstance(delivered, messages.Result) and silo.auditor is not None:
            self._silo_effects(seat, silo.recompute())

    def _silo_effects(self, seat: int, effects: list[SiloEffect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._to_coordinator(seat, effect.message)
                case TrainingWanted():
                    self._contribute(seat, effect)
                case Finished():
                    self.outcome.silo_aggregates[seat] = effect.aggregate
                case Persist() | Aborted():
                    pass
                case _:
                    assert_never(effect)

    def _contribute(self, seat: int, wanted: TrainingWanted) -> None:
        if self._gone(seat, Phase.MASK):
            return
        values = self._train(seat, wanted.parameters, self.stores[seat].get_state())
        silo = self.silos[seat]
        self._silo_effects(seat, silo.go_late() if values is None else silo.contribute(values))

    def _gone(self, seat: int, phase: Phase) -> bool:
        """Whether the script has this silo vanish before it sends this phase's message."""
        if self._drop.get(seat) is not phase:
            return seat not in self._inboxes
        self._inboxes.pop(seat, None)
        return True

    def _to_coordinator(self, seat: int, message: messages.SiloMessage) -> None:
        phase = _PHASE_OF.get(type(message))
        if seat not in self._inboxes or (phase is not None and self._gone(seat, phase)):
            return
        changed = message if self._to_server is None else self._to_server(seat, message)
        if changed is None:
            return
        sent = messages.decode_message(changed.encode())
        assert isinstance(sent, messages.SiloMessage)  # just encoded above
        for item in messages.attachments(sent):
            for chunk in range(item.chunks):
                data = self.stores[seat].read(item.name, chunk)
                self.outcome.server_store.write(masked_name(seat), chunk, data)
        self.outcome.received.append((seat, sent))
        try:
            effects = self.server.receive(seat, sent, self._now)
        except SecAggError as error:
            self.outcome.server_errors.append(error)
            return
        self._carry_out(effects)

    def _carry_out(self, effects: list[ServerEffect]) -> None:
        for effect in effects:
            match effect:
                case Broadcast():
                    for seat in effect.seats:
                        self._post(seat, effect.message)
                case SendTo():
                    self._post(effect.seat, effect.message)
                case ReleaseWanted():
                    self._carry_out(self.server.open(noise=self._noise))
                case Finished():
                    self.outcome.aggregate = effect.aggregate
                case Aborted():
                    self.outcome.aborted = effect
                case DeadlineSet():
                    pass
                case _:
                    assert_never(effect)

    def _post(self, seat: int, message: messages.ServerMessage) -> None:
        if seat in self._inboxes:
            self._inboxes[seat].append(message)


_PHASE_OF: dict[type[messages.SiloMessage], Phase] = {
    messages.Advertise: Phase.ADVERTISE,
    messages.Share: Phase.SHARE,
    messages.MaskedInput: Phase.MASK,
    messages.Survivors: Phase.SURVIVORS,
    messages.Unmask: Phase.UNMASK,
    messages.RecomputeNonce: Phase.CLOSED,
}

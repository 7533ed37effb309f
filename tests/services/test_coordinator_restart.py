"""A coordinator that dies at any entry of its logbook goes on in that attempt, word for word."""

import asyncio
import itertools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from secagg.effects import Finished, Send, TrainingWanted
from secagg.evidence import Evidence, EvidenceKind
from secagg.journal import SiloHistory
from secagg.messages import (
    MASKED,
    MaskedInput,
    ServerMessage,
    SiloMessage,
    decode_message,
    plan_hash,
)
from secagg.parameters import VectorSpec, bulk
from secagg.policy import SiloPolicy
from secagg.server import PhaseDeadlines, ServerRound
from secagg.silo import SiloRound
from secagg.testing import MemoryStore, SeededRng, make_federation, make_parameters
from services.coordinator.attempt import AttemptDriver
from services.coordinator.logbook import Entry, Event, Logbook
from services.coordinator.mailbox import Mailbox
from services.errors import CorruptError, UnavailableError
from services.observe.logs import get_logger
from services.storage.blobs import FileVectorStore
from services.wire.calls import Chunk, ProtocolEnvelope, VectorId

PLAN = b"{}"
SEATS = (1, 2, 3)
FEDERATION = make_federation(3)
SPEC = VectorSpec(segments=(bulk("update", 10, value_bits=16, n_max=3),))
PARAMETERS = make_parameters(FEDERATION.roster, SPEC, training_plan=plan_hash(PLAN))
QUICK = PhaseDeadlines(advertise_s=60, share_s=60, mask_s=60, survivors_s=60, unmask_s=60)


class KilledError(BaseException):
    """The coordinator's process is gone."""


class DyingLogbook(Logbook):
    """Kills its process before or after an entry is on disk."""

    def __init__(self, folder: Path, *, place: int = -1, is_after: bool = False) -> None:
        super().__init__(folder)
        self.place = place
        self.is_after = is_after
        self.is_dead = False
        self.written = len(self.found)

    def add(self, entry: Entry, what: str) -> None:
        if self.is_dead or (self.written == self.place and not self.is_after):
            self.is_dead = True
            raise KilledError
        super().add(entry, what)
        self.written += 1
        if self.written > self.place >= 0 and self.is_after:
            self.is_dead = True
            raise KilledError


@dataclass
class Silo:
    """A silo's process, which outlives the coordinator's."""

    seat: int
    round: SiloRound
    store: MemoryStore = field(default_factory=MemoryStore)
    handled: set[bytes] = field(default_factory=set)
    unanswered: list[SiloMessage] = field(default_factory=list)
    sum: list[int] | None = None


def new_silo(seat: int) -> Silo:
    """A silo before the attempt; its secrets depend on the seat alone."""
    store = MemoryStore()
    protocol = SiloRound(
        seat=seat,
        identity=FEDERATION.identities[seat],
        roster=FEDERATION.roster,
        policy=SiloPolicy(),
        history=SiloHistory(),
        store=store,
        rng=SeededRng(str(seat)),
    )
    return Silo(seat=seat, round=protocol, store=store)


class Coordinator:
    """One process of the coordinator, on an attempt's folder."""

    def __init__(self, folder: Path, *, place: int = -1, is_after: bool = False) -> None:
        store = FileVectorStore(folder)
        store.write("state", 0, b"the state")
        self.logbook = DyingLogbook(folder, place=place, is_after=is_after)
        self.mailboxes = {seat: Mailbox() for seat in SEATS}
        self.driver = AttemptDriver(
            server=ServerRound(
                parameters=PARAMETERS,
                plan=PLAN,
                roster=FEDERATION.roster,
                signing_key=FEDERATION.coordinator,
                store=store,
                cohort=SEATS,
                deadlines=QUICK,
            ),
            cohort=self.mailboxes,
            store=store,
            logbook=self.logbook,
            incarnations=dict.fromkeys(SEATS, b"the same"),
            silent=frozenset[int],
            changed=lambda: None,
            hold=lambda: None,
            log=get_logger("test"),
        )

    async def live(self, silos: list[Silo]) -> None:
        """Run until all silos have the sum, or until killed."""
        if self.logbook.found:
            self.driver.replay()
        tasks: list[asyncio.Task[object]] = [asyncio.create_task(self.driver.run())]
        tasks += [asyncio.create_task(self.serve(silo)) for silo in silos]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.driver.close()

    async def serve(self, silo: Silo) -> None:
        """Be the silo's loop: what was not answered is sent again, what was handled is skipped."""
        after = 0
        while silo.sum is None:
            while silo.unanswered:
                await self.deliver(silo, silo.unanswered[0])
                silo.unanswered.pop(0)
            found = await self.mailboxes[silo.seat].wait_after(after, 30)
            assert found is not None
            after, envelope = found
            assert isinstance(envelope, ProtocolEnvelope)
            if envelope.message not in silo.handled:
                silo.handled.add(envelope.message)
                self.handle(silo, envelope)

    def handle(self, silo: Silo, envelope: ProtocolEnvelope) -> None:
        """Let the silo's round take a message."""
        message = decode_message(envelope.message)
        assert isinstance(message, ServerMessage)
        for reference in envelope.vectors:
            for index in range(reference.chunks):
                data = self.driver.store.read(reference.vector.name, index)
                silo.store.write(reference.vector.name, index, data)
        effects = silo.round.receive(message)
        if any(isinstance(effect, TrainingWanted) for effect in effects):
            effects = silo.round.contribute({"update": np.full(10, silo.seat, dtype=np.int64)})
        for effect in effects:
            if isinstance(effect, Finished):
                silo.sum = effect.aggregate.values["update"].tolist()
            if isinstance(effect, Send):
                silo.unanswered.append(effect.message)

    async def deliver(self, silo: Silo, message: SiloMessage) -> None:
        """Submit a message, its vector first."""
        if isinstance(message, MaskedInput):
            count = len(PARAMETERS.wire_spec.chunks)
            vector = VectorId(
                run=PARAMETERS.run,
                round=PARAMETERS.round,
                attempt=PARAMETERS.attempt,
                name=MASKED,
            )
            for index in range(count):
                chunk = Chunk(
                    vector=vector, index=index, count=count, data=silo.store.read(MASKED, index)
                )
                await self.driver.put_chunk(silo.seat, chunk)
        await self.driver.submit(silo.seat, message.encode())


def entries(folder: Path) -> tuple[Entry, ...]:
    """What the logbook holds."""
    logbook = Logbook(folder)
    logbook.close()
    return logbook.found


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_entry_changes_no_word(tmp_path: Path, *, is_after: bool) -> None:
    """Opening, each message of each silo, state and result (bug cases RES-01 and RES-05).

    No silo sees a contradiction (its round would die of it), all see the exact sum, and the result
    is the one, byte for byte, that the logbook of a coordinator that never died shows.
    """
    folder = tmp_path / "calm"
    asyncio.run(Coordinator(folder).live([new_silo(seat) for seat in SEATS]))
    calm = entries(folder)
    assert [entry.event for entry in calm].count(Event.MESSAGE) >= 3 * 3 + 2 * 2
    for place in range(len(calm)):
        folder, silos = tmp_path / str(place), [new_silo(seat) for seat in SEATS]
        with pytest.raises(KilledError):
            asyncio.run(Coordinator(folder, place=place, is_after=is_after).live(silos))
        again = Coordinator(folder)
        asyncio.run(again.live(silos))
        assert [silo.sum for silo in silos] == [[6] * 10] * 3, f"killed at entry {place}"
        assert [entry.event for entry in entries(folder)].count(Event.RESULT) == 1


def test_a_coordinator_that_is_killed_at_every_entry_comes_through(tmp_path: Path) -> None:
    """Each process writes one entry and dies; no work is done twice."""
    silos = [new_silo(seat) for seat in SEATS]
    deaths = 0
    while any(silo.sum is None for silo in silos):
        found = len(entries(tmp_path)) if (tmp_path / "logbook").exists() else 0
        try:
            asyncio.run(Coordinator(tmp_path, place=found, is_after=True).live(silos))
        except KilledError:
            deaths += 1
        assert deaths < 100
    assert [silo.sum for silo in silos] == [[6] * 10] * 3
    assert deaths >= 15


def test_a_sum_that_was_being_fetched_is_there_again_after_a_restart(tmp_path: Path) -> None:
    """Until it is opened again a silo is asked to try again, not told that there is none.

    It would let the message go, and be left with an open submission (SA1 spec 2.5 v).
    """
    silos = [new_silo(seat) for seat in SEATS]
    for place in itertools.count():
        try:
            asyncio.run(Coordinator(tmp_path, place=place, is_after=True).live(silos))
        except KilledError:
            if entries(tmp_path)[-1].event is Event.RESULT:
                break
    again = Coordinator(tmp_path)
    again.driver.replay()
    wanted = VectorId(
        run=PARAMETERS.run, round=PARAMETERS.round, attempt=PARAMETERS.attempt, name="sum"
    )

    async def go() -> int:
        with pytest.raises(UnavailableError, match="opened again"):
            await again.driver.get_chunk(wanted, 0)
        await again.driver.run()
        chunk = await again.driver.get_chunk(wanted, 0)
        again.driver.close()
        return chunk.count

    assert asyncio.run(go()) > 0


def test_cases_are_told_once_before_the_state(tmp_path: Path) -> None:
    """From the logbook to the next process, so that it chooses the same survivors."""
    case = Evidence(
        kind=EvidenceKind.BAD_DEALER, accused=3, parameters=PARAMETERS, statements=(b"a share",)
    )
    silos = [new_silo(seat) for seat in SEATS]
    events: list[Event] = []
    while Event.CASE not in events:
        dying = Coordinator(tmp_path, place=len(events), is_after=True)
        dying.driver.cases = (case,)
        with pytest.raises(KilledError):
            asyncio.run(dying.live(silos))
        events = [entry.event for entry in entries(tmp_path)]
    assert Event.STATE not in events
    again = Coordinator(tmp_path)
    again.driver.cases = (case,)
    asyncio.run(again.live(silos))
    assert again.driver.server._cases == [case]
    events = [entry.event for entry in entries(tmp_path)]
    assert events.count(Event.CASE) == 2  # told by both processes, heard once
    assert [silo.sum for silo in silos] == [[6] * 10] * 3


def test_a_sum_that_could_not_be_opened_is_no_result(tmp_path: Path) -> None:
    """Its entry is there, and holds no message."""
    silos = [new_silo(seat) for seat in SEATS]
    with pytest.raises(KilledError):
        asyncio.run(Coordinator(tmp_path, place=0, is_after=True).live(silos))
    logbook = Logbook(tmp_path)
    logbook.add(Entry(event=Event.RESULT, now=1.0), Event.RESULT.value)
    logbook.close()
    assert Logbook(tmp_path).result is None


def test_another_process_of_a_silo_is_not_waited_for(tmp_path: Path) -> None:
    """It has lost the attempt's secrets; the one that was there at the opening is met again."""

    async def go() -> None:
        coordinator = Coordinator(tmp_path)
        driver = coordinator.driver
        running = asyncio.create_task(driver.run())
        await coordinator.mailboxes[1].wait_after(0, 30)
        await driver.meet(1, b"the same")
        await driver.meet(2, b"another")
        running.cancel()
        driver.close()

    asyncio.run(go())
    assert [(entry.event, entry.seat) for entry in entries(tmp_path)] == [
        (Event.OPENED, 0),
        (Event.LOST, 2),
    ]
    again = Coordinator(tmp_path)
    again.driver.replay()
    assert again.driver.server.awaited() == (1, 3)
    again.driver.close()


def test_a_logbook_that_begins_in_the_middle_is_refused(tmp_path: Path) -> None:
    """Without its opening nothing can be told again."""
    logbook = Logbook(tmp_path)
    logbook.add(Entry(event=Event.STATE, now=1.0), "state")
    logbook.close()
    with pytest.raises(CorruptError, match="expected an opening first"):
        Logbook(tmp_path)

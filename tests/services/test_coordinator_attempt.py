"""The coordinator's driver of one attempt, with real rounds on both sides and no network."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from secagg import phases
from secagg.effects import Aborted, Finished, Send, TrainingWanted
from secagg.errors import RemoteProtocolError
from secagg.journal import SiloHistory
from secagg.messages import (
    MASKED,
    ChunkRequest,
    MaskedInput,
    Result,
    RoundOpen,
    ServerMessage,
    Survivors,
    decode_message,
    plan_hash,
)
from secagg.parameters import RoundParameters, VectorSpec, bulk, meta
from secagg.policy import SiloPolicy
from secagg.server import PhaseDeadlines, ServerRound
from secagg.silo import SiloRound
from secagg.testing import Federation, MemoryStore, SeededRng, make_federation, make_parameters
from services.coordinator.attempt import AttemptDriver, Outcome
from services.coordinator.logbook import Event, Logbook
from services.coordinator.mailbox import Mailbox
from services.errors import (
    ConflictError,
    InvalidRequestError,
    LeaseLostError,
    NotAllowedError,
    NotNowError,
    UnavailableError,
)
from services.observe.logs import get_logger
from services.storage.blobs import FileVectorStore
from services.wire.calls import Chunk, Phase, ProtocolEnvelope, VectorId

PLAN = b"{}"
SEATS = (1, 2, 3, 4, 5)
SPEC = VectorSpec(
    segments=(bulk("update", 10, value_bits=16, n_max=5), meta("count", 1, bound=1000))
)
QUICK = PhaseDeadlines(advertise_s=20, share_s=20, mask_s=20, survivors_s=20, unmask_s=20)


class Attempt:
    """One attempt at the coordinator and its silos."""

    def __init__(
        self,
        folder: Path,
        *,
        silent: set[int] | None = None,
        shown: int = 0,
        replaced_after: int = -1,
    ) -> None:
        self.silent = silent or set()
        self.heard: list[type[ServerMessage]] = []
        self.holds = 0
        self.replaced_after = replaced_after
        self.federation: Federation = make_federation(5)
        self.parameters: RoundParameters = make_parameters(
            self.federation.roster, SPEC, training_plan=plan_hash(PLAN), redundancy=shown
        )
        store = FileVectorStore(folder)
        store.write("state", 0, b"the state")
        self.verified: dict[int, int] = {}
        self.mailboxes = {seat: Mailbox() for seat in SEATS}
        self.driver = AttemptDriver(
            server=ServerRound(
                parameters=self.parameters,
                plan=PLAN,
                roster=self.federation.roster,
                signing_key=self.federation.coordinator,
                store=store,
                cohort=SEATS,
                deadlines=QUICK,
            ),
            cohort=self.mailboxes,
            store=store,
            logbook=Logbook(folder),
            incarnations=dict.fromkeys(SEATS, b"first"),
            silent=lambda: frozenset(self.silent),
            changed=lambda: None,
            hold=self.hold,
            log=get_logger("test"),
        )

    def hold(self) -> None:
        """Find a standby in our place after so many looks, if that was asked for."""
        if self.holds == self.replaced_after:
            raise LeaseLostError("a standby has taken over")
        self.holds += 1

    def silo(self, seat: int, *, seed: str = "", store: MemoryStore | None = None) -> SiloRound:
        """A silo's round."""
        return SiloRound(
            seat=seat,
            identity=self.federation.identities[seat],
            roster=self.federation.roster,
            policy=SiloPolicy(max_redundancy=2),
            history=SiloHistory(),
            store=store or MemoryStore(),
            rng=SeededRng(f"{seat}{seed}"),
        )

    def vector(self, name: str = MASKED) -> VectorId:
        """A vector of this attempt."""
        where = self.parameters
        return VectorId(run=where.run, round=where.round, attempt=where.attempt, name=name)

    async def next(self, seat: int, after: int) -> tuple[int, ServerMessage]:
        """The silo's next message."""
        found = await self.mailboxes[seat].wait_after(after, 20)
        assert found is not None
        sequence, envelope = found
        assert isinstance(envelope, ProtocolEnvelope)
        message = decode_message(envelope.message)
        assert isinstance(message, ServerMessage)
        self.heard.append(type(message))
        return sequence, message

    async def upload(self, seat: int, store: MemoryStore) -> None:
        """Put a silo's masked vector."""
        count = len(self.parameters.wire_spec.chunks)
        for index in range(count):
            data = store.read(MASKED, index)
            chunk = Chunk(vector=self.vector(), index=index, count=count, data=data)
            assert await self.driver.put_chunk(seat, chunk) == index + 1
            assert await self.driver.put_chunk(seat, chunk) == index + 1, "a repeat is fine"

    async def send(self, seat: int, effect: Send, store: MemoryStore) -> None:
        """Put a silo's vector, if the message speaks of one, and submit the message, twice."""
        if isinstance(effect.message, MaskedInput):
            await self.upload(seat, store)
        await self.driver.submit(seat, effect.message.encode())
        await self.driver.submit(seat, effect.message.encode())

    async def play(self, seat: int, *, looks: bool = False) -> None:
        """Be the silo, making every call twice, until its sum is checked, or recomputed."""
        store, after = MemoryStore(), 0
        silo = self.silo(seat, store=store)
        while True:
            after, message = await self.next(seat, after)
            for name in ("state", "sum"):
                for index in range(self.driver.store.chunks(name)):
                    store.write(name, index, self.driver.store.read(name, index))
            effects = silo.receive(message)
            if any(isinstance(effect, TrainingWanted) for effect in effects):
                effects = silo.contribute(
                    {"update": np.full(10, seat, dtype=np.int64), "count": np.array([2**seat])}
                )
            if isinstance(message, Result):
                effects = silo.recompute() if looks else []
            for effect in effects:
                if isinstance(effect, Send):
                    await self.send(seat, effect, store)
            if silo.auditor is not None and silo.auditor.is_done:
                self.verified[seat] = len(silo.auditor.verified)
            if silo.phase is phases.Phase.CLOSED and (seat in self.verified or not looks):
                return


def test_an_attempt_ends_with_the_exact_sum(tmp_path: Path) -> None:
    """Every call is made twice; each silo counts once (bug case DRP-06)."""

    async def go() -> None:
        attempt = Attempt(tmp_path)
        async with asyncio.TaskGroup() as group:
            outcome = group.create_task(attempt.driver.run())
            for seat in SEATS:
                group.create_task(attempt.play(seat))
        ended = outcome.result()
        assert isinstance(ended, Finished)
        opened = attempt.driver.take_sum()
        assert opened.values["update"].tolist() == [15] * 10
        assert opened.values["count"].tolist() == [62]
        assert not ended.aggregate.values, "the outcome must not hold the sum beside its taker"
        with pytest.raises(NotNowError):
            attempt.driver.take_sum()
        assert attempt.driver.dropouts(ended.aggregate.survivors) == ()
        assert {cost.phase for cost in attempt.driver.costs} >= {Phase.MASK, Phase.UNMASK}
        assert (await attempt.driver.get_chunk(attempt.vector("sum"), 0)).count == 2 + 1

    asyncio.run(go())


def test_a_silent_silo_is_not_waited_for(tmp_path: Path) -> None:
    """Seat 5 never answers: the phase ends when it has been silent, not at its deadline."""

    async def go() -> None:
        attempt = Attempt(tmp_path, silent={5})
        async with asyncio.TaskGroup() as group:
            outcome = group.create_task(attempt.driver.run())
            for seat in (1, 2, 3, 4):
                group.create_task(attempt.play(seat))
        ended = outcome.result()
        assert isinstance(ended, Finished)
        assert ended.aggregate.survivors == (1, 2, 3, 4)
        assert attempt.driver.absent() == (5,)

    asyncio.run(go())


def test_a_sum_is_shown_beside_what_comes_next(tmp_path: Path) -> None:
    """Nobody waits for a silo that is gone by then; a restart knows nothing of it."""

    async def go() -> None:
        attempt = Attempt(tmp_path, shown=2)
        async with asyncio.TaskGroup() as group:
            outcome = group.create_task(attempt.driver.run())
            playing = [group.create_task(attempt.play(seat, looks=seat < 5)) for seat in SEATS]
            await outcome
            attempt.silent.add(5)
            showing = group.create_task(attempt.driver.show(20.0))
            await asyncio.gather(*playing)
            assert attempt.driver.is_shown
            showing.cancel()
        assert attempt.verified.keys() == {1, 2, 3, 4}
        assert sum(attempt.verified.values()) >= 2 * len(attempt.parameters.wire_spec.chunks)
        attempt.driver.close()
        told = [entry.event for entry in Logbook(tmp_path).found]
        assert told[-1] is Event.RESULT

    asyncio.run(go())


def test_a_sum_that_nobody_wants_to_see_is_put_away(tmp_path: Path) -> None:
    """Then its files may go."""

    async def go() -> None:
        attempt = Attempt(tmp_path, shown=2)
        async with asyncio.TaskGroup() as group:
            group.create_task(attempt.driver.run())
            for seat in SEATS:
                group.create_task(attempt.play(seat))
        await attempt.driver.show(0.0)
        assert not attempt.driver.is_shown

    asyncio.run(go())


def test_a_stopped_attempt_is_aborted(tmp_path: Path) -> None:
    """The operator's word ends it; late messages are refused by their phase."""

    async def go() -> None:
        attempt = Attempt(tmp_path)
        running = asyncio.create_task(attempt.driver.run())
        await attempt.next(1, 0)
        await attempt.driver.stop("enough")
        ended = await running
        assert isinstance(ended, Aborted)
        assert ended.detail == "enough"

    asyncio.run(go())


@pytest.mark.parametrize("patience_s", [20.0, 0.1])
def test_a_stop_waits_for_the_release_of_a_sum_that_is_open(
    tmp_path: Path, patience_s: float
) -> None:
    """Shares are open, so no other attempt could follow; it does not wait for ever."""

    async def go() -> None:
        attempt, asked, signed = Attempt(tmp_path), asyncio.Event(), asyncio.Event()

        async def release(_survivors: tuple[int, ...]) -> None:
            asked.set()
            await signed.wait()

        attempt.driver.release = release
        running = asyncio.create_task(attempt.driver.run())
        playing = [asyncio.create_task(attempt.play(seat)) for seat in SEATS]
        await asked.wait()
        stopping = asyncio.create_task(attempt.driver.stop("enough", wait_s=patience_s))
        if patience_s < 1:
            await stopping
        else:
            assert not (await asyncio.wait({stopping}, timeout=0.1))[0]
        signed.set()
        await stopping
        assert isinstance(await running, Aborted if patience_s < 1 else Finished)
        for task in playing:
            task.cancel()

    asyncio.run(go())


class StoppedAtTheLastSignature(Attempt):
    """One whose stop is asked for while the last signature that it needs is being taken."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.last = self.parameters.threshold(len(SEATS))
        self.signed = 0
        self.others_signed, self.stop_asked = asyncio.Event(), asyncio.Event()
        self.stopping: asyncio.Task[None] | None = None

    async def send(self, seat: int, effect: Send, store: MemoryStore) -> None:
        """Hand that signature in when all before it are there, and the stop right behind it."""
        is_signature = isinstance(effect.message, Survivors)
        if is_signature and seat == self.last:
            await self.others_signed.wait()
            async with self.driver._lock:
                sending = asyncio.create_task(super().send(seat, effect, store))
                await asyncio.sleep(0)
                self.stopping = asyncio.create_task(self.driver.stop("enough", wait_s=20.0))
                await asyncio.sleep(0)
                assert self.driver.phase is Phase.SURVIVORS
            self.stop_asked.set()
            await sending
            return
        if is_signature and seat > self.last:
            await self.stop_asked.wait()
        await super().send(seat, effect, store)
        self.signed += is_signature
        if self.signed == self.last - 1:
            self.others_signed.set()


def test_a_stop_looks_again_when_it_is_its_turn(tmp_path: Path) -> None:
    """The survivors were being signed when it was asked for; now silos open their shares."""

    async def go() -> None:
        attempt = StoppedAtTheLastSignature(tmp_path)
        async with asyncio.TaskGroup() as group:
            outcome = group.create_task(attempt.driver.run())
            for seat in SEATS:
                group.create_task(attempt.play(seat))
        assert attempt.stopping is not None
        await attempt.stopping
        assert isinstance(outcome.result(), Finished)

    asyncio.run(go())


def test_a_coordinator_that_was_replaced_writes_and_says_nothing_more(tmp_path: Path) -> None:
    """Wherever it slept: what it does next ends it by name, and silos are told to try again."""

    async def go(attempt: Attempt) -> Outcome:
        running = asyncio.create_task(attempt.driver.run())
        playing = [asyncio.create_task(attempt.play(seat)) for seat in SEATS]
        try:
            return await running
        finally:
            for one in playing:
                one.cancel()
            left = await asyncio.gather(*playing, return_exceptions=True)
            ends = {type(one) for one in left if one is not None}
            assert ends <= {UnavailableError, asyncio.CancelledError}
            attempt.driver.close()

    whole = Attempt(tmp_path / "whole")
    assert isinstance(asyncio.run(go(whole)), Finished)
    for looks in (0, 1, 2, *range(3, whole.holds, 4)):
        folder = tmp_path / str(looks)
        attempt = Attempt(folder, replaced_after=looks)
        with pytest.raises(LeaseLostError):
            asyncio.run(go(attempt))
        told = [entry.event for entry in Logbook(folder).found]
        assert told[:1] == [Event.OPENED][:looks]
        assert (RoundOpen in attempt.heard) == (looks > 1)
        assert Result not in attempt.heard


def test_other_bytes_and_other_seats_are_refused(tmp_path: Path) -> None:
    """The first message counts; a silo speaks only for itself (bug cases DRP-06 and TLS-04)."""

    async def go() -> None:
        attempt = Attempt(tmp_path)
        running = asyncio.create_task(attempt.driver.run())
        _, opening = await attempt.next(1, 0)
        assert isinstance(opening, RoundOpen)
        first, second = (
            [e.message for e in attempt.silo(1, seed=seed).receive(opening) if isinstance(e, Send)]
            for seed in "ab"
        )
        with pytest.raises(NotAllowedError, match="seat 2 sent a message in the name of seat 1"):
            await attempt.driver.submit(2, first[0].encode())
        await attempt.driver.submit(1, first[0].encode())
        await attempt.driver.submit(1, first[0].encode())
        with pytest.raises(ConflictError, match="the first one counts"):
            await attempt.driver.submit(1, second[0].encode())
        with pytest.raises(InvalidRequestError, match="silos do not send"):
            await attempt.driver.submit(1, opening.encode())
        assert attempt.driver.completed == {1: Phase.ADVERTISE}
        running.cancel()

    asyncio.run(go())


def test_chunks_have_their_time_place_and_size(tmp_path: Path) -> None:
    """Before the masks are awaited nothing is stored; a wrong size or name never is."""

    async def go() -> None:
        attempt = Attempt(tmp_path)
        running = asyncio.create_task(attempt.driver.run())
        await attempt.next(1, 0)
        pieces = attempt.parameters.wire_spec.chunks
        data = bytes(pieces[0].nbytes)
        early = Chunk(vector=attempt.vector(), index=0, count=len(pieces), data=data)
        with pytest.raises(NotNowError, match="phase advertise"):
            await attempt.driver.put_chunk(1, early)
        long = Chunk(vector=attempt.vector(), index=0, count=len(pieces), data=data + b"1")
        with pytest.raises(InvalidRequestError, match="chunk 0 has"):
            await attempt.driver.put_chunk(1, long)
        foreign = Chunk(vector=attempt.vector("state"), index=0, count=1, data=b"1")
        with pytest.raises(InvalidRequestError, match="expected 3 chunks of 'masked'"):
            await attempt.driver.put_chunk(1, foreign)
        with pytest.raises(InvalidRequestError, match="there is no chunk"):
            await attempt.driver.get_chunk(attempt.vector("sum"), 0)
        with pytest.raises(InvalidRequestError, match="there is no chunk"):
            await attempt.driver.get_chunk(attempt.vector("masked.1"), 0)
        assert (await attempt.driver.get_chunk(attempt.vector("state"), 0)).data == b"the state"
        running.cancel()

    asyncio.run(go())


def test_what_lies_unread_bounds_what_is_shown(tmp_path: Path) -> None:
    """A silo that only asks does not fill the coordinator's memory."""

    async def go() -> None:
        attempt = Attempt(tmp_path, shown=2)
        where = attempt.parameters
        asked = ChunkRequest(binding=bytes(32), seat=5, chunk=0, of=0).encode()
        envelope = ProtocolEnvelope(
            run=where.run, round=where.round, attempt=where.attempt, message=b"shown"
        )
        for _ in range(7):
            attempt.mailboxes[5].post(envelope)
        with pytest.raises(RemoteProtocolError):  # it reaches the round, which shows nothing yet
            await attempt.driver.submit(5, asked)
        attempt.mailboxes[5].post(envelope)
        with pytest.raises(NotNowError):
            await attempt.driver.submit(5, asked)
        attempt.driver.close()

    asyncio.run(go())

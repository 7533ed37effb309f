"""The driver of one attempt: it carries out the ServerRound's effects and tells it the time.

No protocol decision is made here. What the driver owns: the order in which calls reach the round
(one lock), the logbook of these calls, the silos' mailboxes, the attempt's vectors on disk, the
timer, and the figures for the operator (seconds and bytes of each phase).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, assert_never

from secagg import phases
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
from secagg.errors import ContradictionError
from secagg.evidence import Evidence
from secagg.ids import AttemptId
from secagg.intake import masked_name
from secagg.messages import (
    MASKED,
    STATE,
    SUM,
    Abandon,
    Advertise,
    AuditorMessage,
    Complaint,
    Late,
    MaskedInput,
    Refusal,
    Result,
    RoundOpen,
    ServerMessage,
    Share,
    SiloMessage,
    Succession,
    Survivors,
    Unmask,
    attachments,
    decode_message,
)
from secagg.parameters import RoundParameters
from secagg.server import Noising, ServerRound
from services import faults
from services.clock import monotonic
from services.coordinator.hub import RETURN_S
from services.coordinator.ledger import LedgerUnsignedError
from services.coordinator.logbook import Entry, Event, Logbook, Opening
from services.coordinator.mailbox import Mailbox
from services.errors import (
    ConflictError,
    InvalidRequestError,
    NotAllowedError,
    NotNowError,
    StorageError,
    UnavailableError,
)
from services.observe.logs import Logger
from services.storage.blobs import FileVectorStore
from services.wire.calls import (
    Chunk,
    Phase,
    PhaseCost,
    ProtocolEnvelope,
    VectorId,
    VectorReference,
)

Outcome = Finished | Aborted
# Envelopes of one silo; what it asks for beyond them would fill this process's memory.
_MOST_UNREAD: Final = 8
_COMPLETES: Final[Mapping[type[SiloMessage], Phase]] = {
    Advertise: Phase.ADVERTISE,
    Share: Phase.SHARE,
    MaskedInput: Phase.MASK,
    Survivors: Phase.SURVIVORS,
    Unmask: Phase.UNMASK,
}
# Names of fault points.
_WORDS: Final[Mapping[type[SiloMessage], str]] = {
    Advertise: "advertise",
    Share: "share",
    MaskedInput: "masked",
    Survivors: "survivors",
    Unmask: "unmask",
    Abandon: "abandon",
}
_GOES_DOWN: Final = "the coordinator goes down: its disk or its database has failed; try again"
_SILENT: Final = "its process is gone or cannot reach the coordinator"
_LONGEST_REASON: Final = 1000
# Shares are open, or may be: the round is summed now or never.
_OPENING: Final = frozenset({phases.Phase.UNMASK, phases.Phase.RESULT})
# How often a wait looks for silos that have gone silent.
_GLANCE_S: Final = 1.0


@dataclass(slots=True)
class _Cost:
    duration_s: float = 0.0
    received_bytes: int = 0
    sent_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class AttemptDriver:
    """One attempt from its first message to its outcome.

    Attributes:
        server: the protocol's object; nobody else touches it.
        cohort: invited seats with their silos' mailboxes.
        store: the attempt's vectors; "state" is in it before `run` starts.
        logbook: says what the round was told; an entry is in it before anything follows from it.
        incarnations: the process that spoke for each seat when the attempt was opened.
        silent: which seats have not been heard of for too long.
        changed: called after each change that an operator can see.
        hold: raises LeaseLostError if another coordinator has taken over; then nothing more is
            written or said.
        completed: the last phase that each seat has completed.
        refusals: why a seat takes no part, by its own word.
        unwilling: those of them that refused the round itself, not only failed to train.
        release: settles the privacy ledger with the survivors before the sum is opened.
        noise: of a sum that the coordinator noises before it tells or keeps it.
        cases: evidence from earlier rounds for silos to see; set before `run` (SA1 spec 2.5 v).
        is_shown: whether silos may recompute the sum now.
    """

    server: ServerRound
    cohort: Mapping[int, Mailbox]
    store: FileVectorStore
    logbook: Logbook
    incarnations: Mapping[int, bytes]
    silent: Callable[[], frozenset[int]]
    changed: Callable[[], None]
    hold: Callable[[], None]
    log: Logger
    release: Callable[[tuple[int, ...]], Awaitable[None]] | None = None
    noise: Noising | None = None
    cases: tuple[Evidence, ...] = ()
    outcome: Outcome | None = None
    phase: Phase = Phase.ADVERTISE
    completed: dict[int, Phase] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    unwilling: set[int] = field(default_factory=set)
    is_shown: bool = False
    _sharers: set[int] = field(default_factory=set)
    _lost: dict[int, str] = field(default_factory=dict)
    _late: set[int] = field(default_factory=set)
    _costs: dict[Phase, _Cost] = field(default_factory=dict)
    _phase_since: float = 0.0
    _release_wanted: bool = False
    _is_started: bool = False
    _has_state: bool = False
    _taken: set[bytes] = field(default_factory=set)
    _asked: dict[int, bytes] = field(default_factory=dict)
    _failure: StorageError | None = None
    _sum: Aggregate | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _turned: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def parameters(self) -> RoundParameters:
        """What the attempt sums."""
        return self.server.parameters

    @property
    def deadline_s(self) -> float:
        """Seconds until the phase's deadline, 0 if there is none."""
        deadline = self.server.deadline
        return 0.0 if deadline is None else max(deadline - monotonic(), 0.0)

    @property
    def costs(self) -> tuple[PhaseCost, ...]:
        """Seconds and payload bytes of each phase so far."""
        return tuple(
            PhaseCost(
                phase=phase,
                duration_s=cost.duration_s,
                received_bytes=cost.received_bytes,
                sent_bytes=cost.sent_bytes,
            )
            for phase, cost in self._costs.items()
        )

    @property
    def sharers(self) -> frozenset[int]:
        """Seats that dealt shares."""
        return frozenset(self._sharers)

    def dropouts(self, survivors: tuple[int, ...]) -> tuple[int, ...]:
        """Seats that shared keys and are not in the sum."""
        return tuple(sorted(self._sharers - set(survivors)))

    def absent(self) -> tuple[int, ...]:
        """Invited seats that never shared keys."""
        return tuple(sorted(set(self.cohort) - self._sharers))

    def reasons(self, survivors: tuple[int, ...]) -> dict[int, str]:
        """Why invited seats are not in the sum, as far as it is known here."""
        found = {}
        for seat in self.cohort.keys() - set(survivors):
            late = "it was too late, or could not train" if seat in self._late else ""
            why = self.refusals.get(seat) or self._lost.get(seat) or late
            found[seat] = (why or "nothing came of it in time")[:_LONGEST_REASON]
        return found

    async def prepare(self) -> None:
        """Exchange keys and shares; returns when only the state is missing, or at an abort.

        Raises:
            StorageError: the disk or the database has failed, or another coordinator took over.
        """
        with self._naming_failures():
            if not self._is_started:
                self._is_started = True
                self._phase_since = now = monotonic()
                opened = Entry(event=Event.OPENED, now=now)
                async with self._lock:
                    await self._step(lambda: self.server.start(now), opened)
            while self.outcome is None and self.phase in {Phase.ADVERTISE, Phase.SHARE}:
                await self._wait()

    @contextmanager
    def _naming_failures(self) -> Iterator[None]:
        """Raise in the attempt's own course what has failed, not what silos are told of it."""
        try:
            yield
        except UnavailableError:
            if self._failure is None:
                raise
            raise self._failure from None

    @property
    def is_intact(self) -> bool:
        """Whether keys and shares are exchanged and no silo that dealt any has been lost since."""
        ready = self.outcome is None and self.phase is Phase.MASK
        return ready and not self._lost.keys() & self._sharers

    async def has_masks(self) -> bool:
        """Wait until the round awaits masked vectors; False if it ends before."""
        while self.outcome is None and self.phase in {Phase.ADVERTISE, Phase.SHARE}:
            await self._turned.wait()
            self._turned.clear()
        return self.outcome is None

    async def run(
        self, vouched: Callable[[], Awaitable[Succession | None]] | None = None
    ) -> Outcome:
        """Drive the round until it is finished or aborted; its state is in the store.

        Args:
            vouched: gives silos' word on which round the state follows; waited for, with its own
                bound, before the state is announced.

        Raises:
            StorageError: the disk or the database has failed, or another coordinator took over.
        """
        with self._naming_failures():
            return await self._run(vouched)

    async def _run(self, vouched: Callable[[], Awaitable[Succession | None]] | None) -> Outcome:
        await self.prepare()
        self._phase_since = monotonic()  # what was waited for the last round is not this one's
        if self.outcome is None and not self._has_state:
            succession = await vouched() if vouched is not None else None
            async with self._lock:
                if self.outcome is None:
                    self._has_state, now = True, monotonic()
                    for case in self.cases:
                        entry = Entry(event=Event.CASE, now=now, body=case.encode())
                        await self._step(partial(self.server.show, [case]), entry)
                    body = b"" if succession is None else succession.encode()
                    await self._step(
                        lambda: self.server.set_state(now, succession),
                        Entry(event=Event.STATE, now=now, body=body),
                    )
        while self.outcome is None:
            if not self._release_wanted:
                await self._wait()
                continue
            self._release_wanted = False
            await self._open_sum()
        return self.outcome

    def take_sum(self) -> Aggregate:
        """Hand the opened sum out, once: it is big, and whoever takes it can let go of it.

        The outcome says everything else of it.

        Raises:
            NotNowError: there is none, or it was taken.
        """
        taken, self._sum = self._sum, None
        if taken is None:
            raise NotNowError("expected a sum that is opened and not yet taken; there is none")
        return taken

    async def _open_sum(self) -> None:
        """Open the sum, if the privacy ledger holds its release; else give the attempt up."""
        if self.release is not None:
            try:
                await self.release(self.server.survivors)
            except LedgerUnsignedError as error:
                await self.stop(str(error))
                return
        async with self._lock:
            if self.outcome is None:
                await self._step(self._publish, Entry(event=Event.RESULT, now=monotonic()))

    def _publish(self) -> list[ServerEffect]:
        """Open the sum; a noised one is on disk before it is told, and told again after a crash."""
        self.hold()
        effects = self.server.open(noise=self.noise)
        if self.noise is not None:
            self.store.sync()
        return effects

    async def show(self, wait_s: float) -> None:
        """After the result: let silos recompute it (SA1 spec 5.2), until their time is over.

        Nothing of this is in the logbook: after a restart the sum is told again, but not shown.

        Args:
            wait_s: how long nobody has to ask for it until it is not shown any more.
        """
        self.is_shown, give_up = True, monotonic() + wait_s
        with suppress(UnavailableError):
            while self.server.is_shown:
                deadline = self.server.deadline
                left = (give_up if deadline is None else deadline) - monotonic()
                if left <= 0 and deadline is None:
                    break
                self._moved.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, _GLANCE_S)):
                        await self._moved.wait()
                for seat in self.silent():
                    await self.lose(seat, _SILENT)
                async with self._lock:
                    await self._step(partial(self.server.expire, monotonic()), None)
        self.is_shown = False

    def replay(self) -> None:
        """Tell the round again what an earlier process told it; then `run` goes on from there.

        Silos skip what they have handled before, so every mailbox is filled from the start.
        """
        self._is_started, self._phase_since = True, monotonic()
        for entry in self.logbook.found:
            for effect in self._retell(entry):
                self._carry_out(effect)
            self._note_phase()
        if self.server.deadline is not None:
            # What was left of the phase by that process's clock, and time for silos to come back.
            left = self.server.deadline - self.logbook.found[-1].now
            self.server.deadline = monotonic() + max(left, RETURN_S)

    def _retell(self, entry: Entry) -> list[ServerEffect]:
        match entry.event:
            case Event.OPENED:
                return self.server.start(entry.now)
            case Event.STATE:
                self._has_state = True
                said = Succession.decode(entry.body) if entry.body else None
                return self.server.set_state(entry.now, said)
            case Event.MESSAGE:
                message = decode_message(entry.body)
                assert isinstance(message, SiloMessage)  # nothing else was taken
                effects = self.server.receive(entry.seat, message, entry.now)
                self._taken.add(entry.body)
                self._note(entry.seat, message)
                return effects
            case Event.LOST:
                self._lost[entry.seat] = "it was lost before the coordinator was started again"
                return self.server.lost(entry.seat, entry.now)
            case Event.EXPIRED:
                return self.server.expire(entry.now)
            case Event.STOPPED:
                return self.server.stop(entry.body.decode())
            case Event.CASE:
                return self.server.show([Evidence.decode(entry.body)])
            case Event.RESULT:
                return []  # `run` opens the sum again, and gets the same
            case _:
                assert_never(entry.event)

    def close(self) -> None:
        """Close the attempt's files; they stay."""
        self.store.close()
        self.logbook.close()

    def drop_uploads(self) -> None:
        """Free the disk of what is summed; the sum itself stays."""
        for seat in self.cohort:
            self.store.discard(masked_name(seat))

    async def stop(self, reason: str, *, wait_s: float = 0.0) -> None:
        """Give the attempt up, unless it is over.

        Args:
            reason: why.
            wait_s: how long the sum is awaited if silos open their shares, or have: no other
                attempt could follow.
        """
        give_up = monotonic() + wait_s
        while True:
            async with self._lock:
                left = give_up - monotonic()
                if self.outcome is not None:
                    return
                if self.server.phase not in _OPENING or left <= 0:
                    entry = Entry(event=Event.STOPPED, now=monotonic(), body=reason.encode())
                    await self._step(lambda: self.server.stop(reason), entry)
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._ended.wait()

    async def lose(self, seat: int, why: str) -> None:
        """Await nothing more of a silo that was restarted or is gone."""
        is_over = self.outcome is not None
        if seat in self._lost or seat not in self.cohort or (is_over and not self.is_shown):
            return
        self._lost[seat] = why
        self.log.info("lost", seat=seat, reason=why)
        async with self._lock:
            now = monotonic()
            entry = None if is_over else Entry(event=Event.LOST, now=now, seat=seat)
            await self._step(lambda: self.server.lost(seat, now), entry)

    async def meet(self, seat: int, incarnation: bytes) -> None:
        """A process speaks for this seat; if it is another one than before, that one is lost."""
        if self.incarnations.get(seat) != incarnation:
            await self.lose(seat, "its process was started again")

    async def gather_abandons(self, wait_s: float) -> None:
        """After an abort: wait for the promises that allow another attempt (SA1 spec 2.5 ii).

        Whoever has opened shares promises nothing; if too few others are left, none is awaited.
        """
        give_up = monotonic() + wait_s
        opened = {seat for seat, phase in self.completed.items() if phase is Phase.UNMASK}
        if len(self._sharers - opened) < self.parameters.threshold(len(self._sharers)):
            return
        while not self.server.may_retry and (left := give_up - monotonic()) > 0:
            self._moved.clear()
            try:
                async with asyncio.timeout(left):
                    await self._moved.wait()
            except TimeoutError:
                return

    async def submit(self, seat: int, data: bytes) -> None:
        """Take one silo's message; the same bytes again change nothing.

        Raises:
            ConflictError: other bytes of the same kind were taken before (bug case DRP-06).
            NotAllowedError: the message speaks for another seat (bug case TLS-04).
            RemoteProtocolError: the round refuses the message; nothing has changed.
        """
        message = decode_message(data)
        if not isinstance(message, SiloMessage):
            raise InvalidRequestError(f"silos do not send {message.LABEL}")
        if message.seat != seat:
            self.log.warning("violation", seat=seat, what="a message in another seat's name")
            raise NotAllowedError(
                f"seat {seat} sent a message in the name of seat {message.seat}; "
                "a silo speaks only for itself"
            )
        async with self._lock:
            phase, now = self.phase, monotonic()
            is_audit = isinstance(message, AuditorMessage)
            if is_audit and self._asked.get(seat) == data:
                return  # the reply was lost; what was asked for lies in the mailbox
            if is_audit and self.cohort[seat].depth >= _MOST_UNREAD:
                raise NotNowError("look at what was shown before asking for more")
            entry = Entry(event=Event.MESSAGE, now=now, seat=seat, body=data)
            try:
                await self._step(
                    lambda: self.server.receive(seat, message, now),
                    None if is_audit or data in self._taken else entry,
                    what=_WORDS.get(type(message), ""),
                )
            except ContradictionError as error:
                self.log.warning("violation", seat=seat, what=str(error))
                raise ConflictError(
                    f"{error}; the first one counts", remote_code=error.code
                ) from error
            self._cost(phase).received_bytes += len(data)
            if is_audit:
                self._asked[seat] = data
                return
            self._taken.add(data)
            self._note(seat, message)
        self.changed()

    async def put_chunk(self, seat: int, chunk: Chunk) -> int:
        """Store a piece of the seat's masked vector; returns the first missing index.

        Raises:
            NotNowError: the attempt does not await masked vectors.
            InvalidRequestError: the piece has no place in the vector.
            ConflictError: the place holds other bytes already.
        """
        pieces = self.parameters.wire_spec.chunks
        if chunk.vector.name != MASKED or chunk.count != len(pieces):
            raise InvalidRequestError(
                f"expected {len(pieces)} chunks of {MASKED!r}, got {chunk.count} of "
                f"{chunk.vector.name!r}"
            )
        if len(chunk.data) != pieces[chunk.index].nbytes:
            raise InvalidRequestError(
                f"chunk {chunk.index} has {pieces[chunk.index].nbytes} bytes, got {len(chunk.data)}"
            )
        name = masked_name(seat)
        async with self._lock:
            present = self.store.chunks(name)
            if chunk.index < present:
                if await asyncio.to_thread(self.store.read, name, chunk.index) != chunk.data:
                    raise ConflictError(f"chunk {chunk.index} is there with other bytes")
                return present
            if self.phase is not Phase.MASK or seat not in self._sharers:
                raise NotNowError(
                    f"the attempt is in phase {self.phase}: it awaits no masked vector",
                    remote_code="STALE",
                )
            if chunk.index > present:
                return present
            try:
                await asyncio.to_thread(self._keep, name, chunk)
            except StorageError as error:
                raise self._fail(error) from error
            self._cost(Phase.MASK).received_bytes += len(chunk.data)
            return present + 1

    def _keep(self, name: str, chunk: Chunk) -> None:
        self.hold()
        self.store.write(name, chunk.index, chunk.data)

    async def get_chunk(self, vector: VectorId, index: int) -> Chunk:
        """Read a piece of the round's state or sum.

        Raises:
            InvalidRequestError: no such vector or piece.
            UnavailableError: an earlier process has published the sum; this one opens it again.
        """
        if vector.name == SUM and not isinstance(self.outcome, Finished):
            if self.logbook.result is not None and self.outcome is None:
                raise UnavailableError("the sum is opened again after a restart; try again")
            raise InvalidRequestError(f"there is no chunk {index} of {vector} yet")
        chunk = await read_public(self.store, vector, index)
        cost = self._cost(Phase.MASK if vector.name == STATE else Phase.CLOSED)
        cost.sent_bytes += len(chunk.data)
        return chunk

    async def _step(
        self, move: Callable[[], list[ServerEffect]], entry: Entry | None, *, what: str = ""
    ) -> None:
        """Let the round move in a thread (sums take seconds), log it, carry out what it says.

        Whoever calls must not be canceled in here: `services.wire.servicers` sees to that.
        """
        if self._failure is not None:
            raise UnavailableError(_GOES_DOWN)
        effects = await asyncio.to_thread(move)
        if entry is not None:
            what = what or entry.event.value
            try:
                await asyncio.to_thread(self._log, entry, effects, what)
            except StorageError as error:
                raise self._fail(error) from error
        for effect in effects:
            self._carry_out(effect)
        if entry is not None:
            faults.hit(f"coordinator.after-{what}", self.parameters.round)
        self._note_phase()
        self._moved.set()
        self._turned.set()
        if self.outcome is not None:
            self._ended.set()

    def _log(self, entry: Entry, effects: list[ServerEffect], what: str) -> None:
        """Put an entry on disk; what follows from it may leave afterwards."""
        self.hold()
        match effects:
            case [Broadcast(message=RoundOpen() as message), *_]:
                self.logbook.begin(
                    Opening(
                        message=message,
                        cohort=tuple(self.cohort),
                        incarnations=self.incarnations,
                    ),
                    entry.now,
                )
            case [Broadcast(message=Result() as message), *_]:
                if self.logbook.result is None:  # else an earlier process was killed after it
                    self.logbook.add(replace(entry, body=message.encode()), what)
            case [] if entry.event is Event.EXPIRED:
                return
            case _:
                if effects:
                    self.store.sync()  # the entry may speak of vectors
                self.logbook.add(entry, what)
        if effects:
            self.logbook.sync()
            self.hold()

    def _fail(self, error: StorageError) -> UnavailableError:
        """Say nothing more: what the round was told last is not on disk. `run` ends with it."""
        self._failure = error
        self._moved.set()
        return UnavailableError(_GOES_DOWN)

    def _carry_out(self, effect: ServerEffect) -> None:
        match effect:
            case SendTo():
                self._post((effect.seat,), effect.message)
            case Broadcast():
                self._post(effect.seats, effect.message)
            case DeadlineSet():
                pass  # the round keeps its deadline; `_wait` reads it after every step
            case ReleaseWanted():
                self._release_wanted = True
            case Finished():
                self._sum = effect.aggregate
                self.outcome = Finished(aggregate=replace(effect.aggregate, values={}))
            case Aborted():
                self.outcome = effect
            case _:
                assert_never(effect)

    def _post(self, seats: Iterable[int], message: ServerMessage) -> None:
        envelope = envelope_of(self.parameters.attempt_id, message)
        for seat in seats:
            self.cohort[seat].post(envelope)
            self._cost(self.phase).sent_bytes += len(envelope.message)

    @property
    def _is_decided(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.outcome is not None or self._release_wanted

    async def _wait(self) -> None:
        """Wait for the round to move, for its deadline, or for a silo to have gone silent."""
        if self._failure is not None:
            raise self._failure
        self._moved.clear()
        if self._is_decided:
            return
        deadline, now = self.server.deadline, monotonic()
        left = _GLANCE_S if deadline is None else min(max(deadline - now, 0.0), _GLANCE_S)
        try:
            async with asyncio.timeout(left):
                await self._moved.wait()
        except TimeoutError:
            for seat in self.silent():
                await self.lose(seat, _SILENT)
            async with self._lock:
                if not self._is_decided:
                    now = monotonic()
                    entry = Entry(event=Event.EXPIRED, now=now)
                    await self._step(lambda: self.server.expire(now), entry)

    def _note(self, seat: int, message: SiloMessage) -> None:
        """Remember what the operator wants to see of a message that was taken."""
        if isinstance(message, Share):
            self._sharers.add(seat)
        if isinstance(message, Late):
            self._late.add(seat)
        if isinstance(message, Refusal):
            self.refusals[seat] = f"{message.code}: {message.reason}"
            if seat not in self._sharers:
                self.unwilling.add(seat)
            self.log.warning("refusal", seat=seat, code=message.code, reason=message.reason)
        if isinstance(message, Complaint):
            self.log.warning("complaint", seat=seat, dealer=message.dealer, reason=message.reason)
        if (phase := _COMPLETES.get(type(message))) is not None:
            self.completed[seat] = phase

    def _note_phase(self) -> None:
        now, phase = monotonic(), _shown(self.server.phase)
        self._cost(self.phase).duration_s += now - self._phase_since
        self._phase_since = now
        if phase is not self.phase:
            self.phase = phase
            self.log.info("phase", phase=phase.value)
            self.changed()

    def _cost(self, phase: Phase) -> _Cost:
        return self._costs.setdefault(phase, _Cost())


def envelope_of(attempt: AttemptId, message: ServerMessage) -> ProtocolEnvelope:
    """A message as it is posted, with the vectors that it speaks of."""
    run, number = attempt.run, attempt.round
    return ProtocolEnvelope(
        run=run,
        round=number,
        attempt=attempt.attempt,
        message=message.encode(),
        vectors=tuple(
            VectorReference(
                vector=VectorId(run=run, round=number, attempt=attempt.attempt, name=item.name),
                chunks=item.chunks,
                nbytes=item.nbytes,
            )
            for item in attachments(message)
        ),
    )


async def read_public(store: FileVectorStore, vector: VectorId, index: int) -> Chunk:
    """A piece of what an attempt's cohort may read: its state or its sum.

    Raises:
        InvalidRequestError: no such vector or piece.
    """
    count = store.chunks(vector.name) if vector.name in {STATE, SUM} else 0
    if index >= count:
        raise InvalidRequestError(f"there is no chunk {index} of {vector}")
    data = await asyncio.to_thread(store.read, vector.name, index)
    return Chunk(vector=vector, index=index, count=count, data=data)


def _shown(phase: phases.Phase) -> Phase:
    """The phase as operators see it: opening the sum is the work that closes the round."""
    return Phase.CLOSED if phase is phases.Phase.RESULT else Phase(phase.value)

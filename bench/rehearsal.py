"""One round of the real server and one real silo amid a crowd, with the time of each phase.

A party's time runs from bytes to bytes: reading a message, all checks, the answer's encoding.
What the crowd does is nobody's time.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, thread_time
from typing import Final, TypeVar

from bench.crowd import REAL, SEGMENT, Crowd
from secagg import messages
from secagg.effects import (
    Broadcast,
    Finished,
    Send,
    SendTo,
    ServerEffect,
    SiloEffect,
    TrainingWanted,
)
from secagg.intake import masked_name
from secagg.journal import SiloHistory
from secagg.policy import SiloPolicy
from secagg.server import PhaseDeadlines, ServerRound
from secagg.silo import SiloRound
from secagg.testing import PLAN, MemoryStore, SeededRng

_STATE: Final = b"a model"
_M = TypeVar("_M", bound=messages.SiloMessage)


@dataclass(slots=True)
class Rehearsal:
    """What was measured.

    Attributes:
        silo_s: the real silo's seconds by phase.
        server_s: the server's;
            "open" is the last: it rebuilds secrets and takes masks off.
        seeds: how many masks the server takes off.
        inbox: every message to the real silo, in order.
    """

    silo_s: dict[str, float] = field(default_factory=dict)
    server_s: dict[str, float] = field(default_factory=dict)
    seeds: int = 0
    inbox: list[bytes] = field(default_factory=list)


def fresh_silo(crowd: Crowd, store: MemoryStore) -> SiloRound:
    """The real silo before its first message; always with the same secrets."""
    store.put_state(_STATE)
    return SiloRound(
        seat=REAL,
        identity=crowd.federation.identities[REAL],
        roster=crowd.federation.roster,
        policy=SiloPolicy(),
        history=SiloHistory(),
        store=store,
        rng=SeededRng("the real silo"),
    )


class Stage:
    """Plays one round.

    Args:
        crowd: the other silos.
        drop_share: how many of all silos vanish after their shares, 0 to below 1.
        executor: for the server's unmasking.
    """

    def __init__(
        self, crowd: Crowd, *, drop_share: float, executor: Executor | None = None
    ) -> None:
        roster = crowd.federation.roster
        self._crowd = crowd
        self._executor = executor
        self._silo_store = MemoryStore()
        self._silo = fresh_silo(crowd, self._silo_store)
        self._server_store = MemoryStore()
        self._server_store.put_state(_STATE)
        self._server = ServerRound(
            parameters=crowd.parameters,
            plan=PLAN,
            roster=roster,
            signing_key=crowd.federation.coordinator,
            store=self._server_store,
            cohort=roster.indices,
            deadlines=PhaseDeadlines(),
        )
        self._dropped = int(drop_share * len(roster.seats))
        others = [seat for seat in roster.indices if seat != REAL]
        self._alive = others[: len(others) - self._dropped]
        self._finished: list[Finished] = []
        self._heard = 0
        self._found = Rehearsal()

    def play(self) -> Rehearsal:
        """Go through the phases.

        Raises:
            RuntimeError: the sum is not the survivors'; the figures would mean nothing.
        """
        crowd, server = self._crowd, self._server
        self._serve("advertise", lambda: server.start(0.0) + server.set_state(0.0))
        real = self._answer("advertise", messages.Advertise)
        self._submit("advertise", [real, *crowd.advertises()])

        share = self._answer("share", messages.Share)
        shares = crowd.shares(share.setup, real)
        crowd.hold(share, real)
        self._submit("share", [share, *shares])
        self._hear("share")

        own = self._answer("mask", messages.MaskedInput)
        vectors = crowd.masked(share.setup, own.binding, real)
        self._upload(REAL, self._silo_store, messages.MASKED)
        for seat in self._alive:
            self._upload(seat, crowd.store, masked_name(seat))
        self._submit("mask", [own, *(vectors[seat] for seat in self._alive)])
        if server.deadline is not None and self._dropped:
            self._serve("mask", lambda: server.expire(server.deadline or 0.0))

        entries = tuple(item.entry for item in (own, *(vectors[s] for s in self._alive)))
        survivors = self._answer("survivors", messages.Survivors)
        signatures = crowd.survivors(self._alive, own.binding, entries)
        self._submit("survivors", [survivors, *signatures])

        unmask = self._answer("unmask", messages.Unmask)
        alive = (REAL, *self._alive)
        openings = crowd.unmask(self._alive, own.binding, alive)
        self._submit("unmask", [unmask, *openings])
        self._open()

        for chunk in range(self._server_store.chunks(messages.SUM)):
            data = self._server_store.read(messages.SUM, chunk)
            self._silo_store.write(messages.SUM, chunk, data)
        self._hear("result")
        for end in self._finished:
            if set(end.aggregate.values[SEGMENT]) != {sum(alive)}:
                raise RuntimeError("the rehearsed sum is not the sum of the survivors' vectors")
        return self._found

    def _serve(self, phase: str, work: Callable[[], list[ServerEffect]]) -> None:
        """Let the server work and encode what it sends."""
        with _clocked(self._found.server_s, phase):
            for effect in work():
                match effect:
                    case Broadcast():
                        self._post(effect.seats, effect.message.encode())
                    case SendTo():
                        self._post((effect.seat,), effect.message.encode())
                    case Finished():
                        self._finished.append(effect)
                    case _:
                        pass

    def _post(self, seats: tuple[int, ...], data: bytes) -> None:
        if REAL in seats:
            self._found.inbox.append(data)

    def _submit(self, phase: str, sent: Iterable[messages.SiloMessage]) -> None:
        """Give the server these messages as bytes."""
        for message in sent:
            self._serve(phase, partial(self._take, message.seat, message.encode()))

    def _take(self, seat: int, data: bytes) -> list[ServerEffect]:
        message = messages.decode_message(data)
        assert isinstance(message, messages.SiloMessage)  # encoded by `_submit`
        return self._server.receive(seat, message, 0.0)

    def _upload(self, seat: int, source: MemoryStore, name: str) -> None:
        """Move a masked vector, as the transport does."""
        for chunk in range(source.chunks(name)):
            self._server_store.write(masked_name(seat), chunk, source.read(name, chunk))

    def _open(self) -> None:
        """Let the server take the masks off; on a pool it is the wall's time that counts."""
        survivors = len(self._crowd.federation.roster.seats) - self._dropped
        self._found.seeds = survivors + survivors * self._dropped
        start = perf_counter()
        self._serve("open", lambda: self._server.open(self._executor))
        if self._executor is not None:
            self._found.server_s["open"] = perf_counter() - start

    def _answer(self, phase: str, kind: type[_M]) -> _M:
        """Hand the silo its next message; returns what it answers with."""
        sent = self._hear(phase)
        (answer,) = (messages.decode_message(data) for data in sent)
        assert isinstance(answer, kind)  # the protocol's next message
        return answer

    def _hear(self, phase: str) -> list[bytes]:
        data = self._found.inbox[self._heard]
        self._heard += 1
        with _clocked(self._found.silo_s, phase):
            message = messages.decode_message(data)
            assert isinstance(message, messages.ServerMessage)  # encoded by `_serve`
            return self._follow(self._silo.receive(message))

    def _follow(self, effects: list[SiloEffect]) -> list[bytes]:
        sent: list[bytes] = []
        for effect in effects:
            match effect:
                case Send():
                    sent.append(effect.message.encode())
                case TrainingWanted():
                    sent += self._follow(self._silo.contribute(self._crowd.values(REAL)))
                case Finished():
                    self._finished.append(effect)
                case _:
                    pass
        return sent


@contextmanager
def _clocked(times: dict[str, float], phase: str) -> Iterator[None]:
    """Add this thread's processor time to the phase."""
    start = thread_time()
    yield
    times[phase] = times.get(phase, 0.0) + thread_time() - start

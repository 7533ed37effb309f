"""Which process speaks for a silo: one at a time, named by its incarnation.

A copied start script must not make two processes race for one seat, and a crashed process must not
keep its own successor out. So: a process that calls is the silo; a second one is refused while the
first polls or has called within `silent_after_s`; after that silence, or once the first's
connection is seen to close, the second takes over and the first is fenced: refused from then on.
A process that holds the first's storage folder, which is locked while its holder lives, takes over
at once.
(Bug cases DRP-07 and DRP-08.)
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from secagg.ids import SiloId
from services.errors import ConflictError, NotAllowedError, NotNowError

# After its poll was cut, a silo tries again some five times within these seconds (silo.link).
_CUT_S: Final = 3.0
# Replaced processes of one silo that are told so; older ones are strangers, and refused as such.
_MOST_FENCED: Final = 16


@dataclass(slots=True)
class _Session:
    incarnation: bytes
    since: str
    last_call: float
    polls: int = 0
    is_cut: bool = False  # its open poll was cancelled by the other end, and nothing came since
    must_greet: bool = False  # what it knows of us has changed


@dataclass(slots=True)
class Presence:
    """The silos' sessions; times are seconds of the driver's monotonic clock.

    Attributes:
        silent_after_s: how long after its last call a silo counts as gone.
        return_s: how long after this process's start a silo that has not called does.
    """

    silent_after_s: float
    now: Callable[[], float]
    wall_clock: Callable[[], str]
    return_s: float = 0.0
    _began: float = field(init=False)
    _sessions: dict[SiloId, _Session] = field(default_factory=dict)
    _fenced: dict[SiloId, deque[bytes]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Note when this process began: silos that knew an earlier one have yet to come back."""
        self._began = self.now()

    def hello(self, silo: SiloId, incarnation: bytes, predecessors: Collection[bytes] = ()) -> bool:
        """Let this process speak for the silo; returns whether it is a new one.

        Args:
            silo: by its certificate.
            incarnation: of the process.
            predecessors: processes that have ended, by its word.

        Raises:
            ConflictError: another process does, and it is not silent yet.
            NotAllowedError: this process was replaced by a later one.
        """
        self._refuse_fenced(silo, incarnation)
        session = self._sessions.get(silo)
        if session is not None and session.incarnation != incarnation:
            if session.incarnation not in predecessors and self._is_alive(session):
                raise ConflictError(
                    f"silo {silo} is already connected since {session.since}",
                    hint="stop that process, or wait until it has been silent for "
                    f"{self.silent_after_s:g} s",
                    remote_code="ALREADY_CONNECTED",
                )
            self._fenced.setdefault(silo, deque(maxlen=_MOST_FENCED)).append(session.incarnation)
            session = None
        is_new = session is None
        if session is None:
            session = _Session(incarnation, self.wall_clock(), self.now())
            self._sessions[silo] = session
        session.last_call = self.now()
        session.is_cut = session.must_greet = False
        self._changed.set()
        return is_new

    def incarnation(self, silo: SiloId) -> bytes:
        """The process that speaks for the silo; empty if none has said Hello."""
        session = self._sessions.get(silo)
        return b"" if session is None else session.incarnation

    def check(self, silo: SiloId, incarnation: bytes) -> None:
        """Note a call of the silo's process.

        Raises:
            NotAllowedError: a later process has taken over.
            NotNowError: no Hello came first (the coordinator may have restarted, or has a newer
                roster).
        """
        self._refuse_fenced(silo, incarnation)
        session = self._sessions.get(silo)
        if session is None or session.incarnation != incarnation or session.must_greet:
            raise NotNowError(
                f"silo {silo} must say Hello before anything else", remote_code="HELLO_FIRST"
            )
        session.last_call = self.now()
        session.is_cut = False

    def touch(self, silo: SiloId, incarnation: bytes) -> None:
        """Note a call of a process that need not greet before it: a long upload is no silence.

        Raises:
            NotAllowedError: another process speaks for the silo.
        """
        self._refuse_fenced(silo, incarnation)
        session = self._sessions.get(silo)
        if session is None:
            return  # this coordinator has just started; Hello comes soon
        if session.incarnation != incarnation:
            raise _fenced(silo)
        session.last_call = self.now()
        session.is_cut = False

    def greet_again(self) -> None:
        """Ask every silo for another Hello before its next message."""
        for session in self._sessions.values():
            session.must_greet = True

    @contextmanager
    def polling(self, silo: SiloId) -> Iterator[None]:
        """Count the silo as alive while its long poll is open."""
        session = self._sessions[silo]
        session.polls += 1
        self._changed.set()
        try:
            yield
        except asyncio.CancelledError:
            session.is_cut = True
            raise
        finally:
            session.polls -= 1
            session.last_call = self.now()

    def connected(self) -> frozenset[SiloId]:
        """The silos whose process is alive now."""
        return frozenset(s for s, session in self._sessions.items() if self._is_alive(session))

    def is_silent(self, silo: SiloId) -> bool:
        """Whether the silo has not called for `silent_after_s`; a cut line alone is not silence.

        It shortens the wait, for a process that lives calls again at once.
        """
        session = self._sessions.get(silo)
        if session is None:
            return self.now() - self._began >= self.return_s
        patience = min(_CUT_S, self.silent_after_s) if session.is_cut else self.silent_after_s
        return session.polls == 0 and self.now() - session.last_call >= patience

    def wake(self) -> None:
        """Let whoever waits for a change look again."""
        self._changed.set()

    async def changed(self, wait_s: float) -> None:
        """Wait for the next change, at most `wait_s` seconds."""
        self._changed.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _is_alive(self, session: _Session) -> bool:
        if session.polls > 0:
            return True
        return not session.is_cut and self.now() - session.last_call < self.silent_after_s

    def _refuse_fenced(self, silo: SiloId, incarnation: bytes) -> None:
        if incarnation in self._fenced.get(silo, ()):
            raise _fenced(silo)


def _fenced(silo: SiloId) -> NotAllowedError:
    return NotAllowedError(
        f"silo {silo} was taken over by a later process; this one must stop",
        remote_code="FENCED",
    )

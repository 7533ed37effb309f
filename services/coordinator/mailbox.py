"""What one silo has yet to be told: numbered envelopes, handed out by a bounded long poll.

Silos open the connections, so the coordinator cannot push. It posts; the silo asks for the next
envelope after the last number it has handled, which acknowledges all up to it. Asking again gives
the same answer, so a lost reply costs nothing (architecture.md, "The wire"). Numbers only grow,
over attempts and runs, within one process of the coordinator.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from services.wire.calls import WAIT_S, Envelope


@dataclass(slots=True)
class Mailbox:
    """One silo's envelopes; lives on one event loop."""

    _last: int = 0
    _envelopes: dict[int, Envelope] = field(default_factory=dict)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _interrupts: int = 0

    def post(self, envelope: Envelope) -> int:
        """Append an envelope and wake whoever waits; returns its number."""
        self._last += 1
        self._envelopes[self._last] = envelope
        self._arrived.set()
        return self._last

    def drop(self, is_void: Callable[[Envelope], bool]) -> None:
        """Forget the envelopes that no longer mean anything, such as those of a dead attempt."""
        self._envelopes = {n: e for n, e in self._envelopes.items() if not is_void(e)}

    def holds(self, is_meant: Callable[[Envelope], bool]) -> bool:
        """Whether an envelope of this kind has not been handled yet."""
        return any(is_meant(envelope) for envelope in self._envelopes.values())

    @property
    def depth(self) -> int:
        """How many envelopes wait to be handled."""
        return len(self._envelopes)

    def interrupt(self) -> None:
        """End the waits that are open now."""
        self._interrupts += 1
        self._arrived.set()

    async def wait_after(self, sequence: int, wait_s: float) -> tuple[int, Envelope] | None:
        """The first envelope after `sequence`; waits for one at most `wait_s` (≤ 30) seconds."""
        if sequence > self._last:
            sequence = 0  # another process's number, of before a restored backup: it says nothing
        self._envelopes = {n: e for n, e in self._envelopes.items() if n > sequence}
        interrupts = self._interrupts
        try:
            async with asyncio.timeout(min(max(wait_s, 0.0), WAIT_S)):
                while (first := min(self._envelopes, default=None)) is None:
                    if self._interrupts != interrupts:
                        return None
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return None
        return first, self._envelopes[first]

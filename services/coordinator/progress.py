"""A counter that grows with every visible change, and the bounded wait for it."""

import asyncio
from dataclasses import dataclass, field

from services.wire.calls import WAIT_S


@dataclass(slots=True)
class Progress:
    """Revisions of what operators see of one run; lives on one event loop."""

    revision: int = 1
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self) -> None:
        """Something visible has changed."""
        self.revision += 1
        self._changed.set()

    async def wait(self, after_revision: int, wait_s: float) -> None:
        """Return once there is something newer, at the latest after `wait_s` (≤ 30) seconds."""
        try:
            async with asyncio.timeout(min(wait_s, WAIT_S)):
                while self.revision <= after_revision:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return

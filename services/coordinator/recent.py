"""What was read from the disk last, for whoever asks for its next piece.

Big files go out in pieces of a MiB, one call each, often to many silos at once. The file is read,
checked and decoded for the first of these calls, and forgotten soon after the last one.
"""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

_KEPT_S: Final = 10.0
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(slots=True)
class Recent(Generic[_Key]):
    """One file at most, by a key that another content would not have."""

    kept_s: float = _KEPT_S
    _key: _Key | None = None
    _data: bytes = b""
    _forgetting: asyncio.TimerHandle | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def read(self, key: _Key, load: Callable[[], bytes]) -> bytes:
        """Return the bytes of `key`; `load` gives them, in a thread, if they are not those kept."""
        async with self._lock:
            if key != self._key:
                self._forget()
                self._data = await asyncio.to_thread(load)
                self._key = key
            if self._forgetting is not None:
                self._forgetting.cancel()
            self._forgetting = asyncio.get_running_loop().call_later(self.kept_s, self._forget)
            return self._data

    def _forget(self) -> None:
        self._key, self._data = None, b""

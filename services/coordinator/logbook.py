"""An attempt's logbook: what its round was told, in order, so that a new process can tell it again.

The server's round says nothing that does not follow from what it is told, and it draws no
randomness. So an entry is on disk before anything that follows from it leaves, and before the
silo that caused it gets its answer. A coordinator that is killed at any point and started again
replays the logbook and stands where it stood: the same attempt goes on, and no silo ever sees it
say two different things. Security: everything in it has crossed the wire; it holds no secret.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from secagg.canonical import decode, encode
from secagg.messages import Result, RoundOpen, decode_message
from services import faults
from services.errors import CorruptError
from services.storage.records import RecordFile

_FILE: Final = "logbook"
_OPENING: Final = "attempt-opening"
_HEAD: Final = struct.Struct("<BdI")
_MAX_BYTES: Final = 64 * 1024 * 1024


class Event(StrEnum):
    """What a round can be told; the order is the file's format."""

    OPENED = "opened"
    STATE = "state"
    MESSAGE = "message"
    LOST = "lost"
    EXPIRED = "expired"
    STOPPED = "stopped"
    RESULT = "result"
    CASE = "case"


_EVENTS: Final = tuple(Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that the round was told.

    Attributes:
        now: the time it was told, seconds of that process's monotonic clock.
        seat: whose message, or who was lost.
        body: the opening, the message, the reason of a stop, the result that was published (empty
            if the sum could not be opened), the case against a silo, or silos' word on the state
            (empty if there was none).
    """

    event: Event
    now: float
    seat: int = 0
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What the round was made of.

    Attributes:
        message: its first message: parameters, training plan, promises about earlier attempts.
        cohort: invited seats.
        incarnations: the process that spoke for each seat when the round was opened.
    """

    message: RoundOpen
    cohort: tuple[int, ...]
    incarnations: Mapping[int, bytes]

    def encode(self) -> bytes:
        """Return its bytes."""
        told = {str(seat): self.incarnations[seat].hex() for seat in self.cohort}
        return encode(_OPENING, self.message.encode(), json.dumps(told).encode())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote."""
        message, told = decode(data, _OPENING, max_bytes=_MAX_BYTES, fields=2)
        opened = decode_message(message)
        assert isinstance(opened, RoundOpen)  # `encode` writes nothing else
        incarnations = {int(seat): bytes.fromhex(name) for seat, name in json.loads(told).items()}
        return cls(message=opened, cohort=tuple(sorted(incarnations)), incarnations=incarnations)


class Logbook:
    """The logbook in an attempt's folder.

    Attributes:
        found: the entries that an earlier process wrote.
    """

    def __init__(self, folder: Path) -> None:
        """Open the logbook, or begin one.

        Raises:
            CorruptError: it is damaged.
            StorageError: the disk refuses.
        """
        self._file = RecordFile(folder / _FILE)
        self.found = tuple(map(_decode, self._file.found))
        if self.found and self.found[0].event is not Event.OPENED:
            raise CorruptError(f"{folder / _FILE}: expected an opening first")
        self.round_number = self.opening.message.parameters.round if self.found else 0

    @property
    def opening(self) -> Opening:
        """What an earlier process opened the attempt with."""
        return Opening.decode(self.found[0].body)

    @property
    def result(self) -> Result | None:
        """What an earlier process published, if it did."""
        for entry in self.found:
            if entry.event is Event.RESULT and entry.body:
                message = decode_message(entry.body)
                assert isinstance(message, Result)  # nothing else is written
                return message
        return None

    def has(self, event: Event) -> bool:
        """Whether an earlier process wrote of this."""
        return any(entry.event is event for entry in self.found)

    def begin(self, opening: Opening, now: float) -> None:
        """Write what the attempt is made of: the first entry."""
        self.round_number = opening.message.parameters.round
        entry = Entry(event=Event.OPENED, now=now, body=opening.encode())
        self.add(entry, Event.OPENED.value)

    def add(self, entry: Entry, what: str) -> None:
        """Write an entry; it survives a kill.

        Args:
            entry: the entry.
            what: names the fault points around it.
        """
        faults.hit(f"log.before-{what}", self.round_number)
        self._file.append(_encode(entry))
        faults.hit(f"log.after-{what}", self.round_number)

    def sync(self) -> None:
        """Return when all entries would survive a power cut."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def has_logbook(folder: Path) -> bool:
    """Whether an attempt's folder has a logbook."""
    return (folder / _FILE).exists()


def _encode(entry: Entry) -> bytes:
    return _HEAD.pack(_EVENTS.index(entry.event), entry.now, entry.seat) + entry.body


def _decode(record: bytes) -> Entry:
    number, now, seat = _HEAD.unpack_from(record)
    return Entry(event=_EVENTS[number], now=now, seat=seat, body=record[_HEAD.size :])

"""For tests of ledgers: a store in memory, and the contract that every store must keep."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from dp.errors import LedgerConflictError
from dp.ledger import LedgerStore


class MemoryLedgerStore:
    """Lines in a list, behind a lock."""

    def __init__(self, lines: Sequence[bytes] = ()) -> None:
        """Begin with these lines."""
        self.lines = list(lines)
        self._lock = threading.Lock()

    def read(self, start: int) -> Sequence[bytes]:
        """All lines from place `start` on."""
        with self._lock:
            return self.lines[start:]

    def append(self, line: bytes, *, expected_lines: int) -> None:
        """Add a line if there are exactly `expected_lines`."""
        with self._lock:
            if len(self.lines) != expected_lines:
                raise LedgerConflictError(
                    f"expected {expected_lines} lines, the ledger has {len(self.lines)}"
                )
            self.lines.append(line)


class LedgerStoreContract(ABC):
    """What every store must keep; inherit in a test class and say how to open one.

    `opened` is called several times in a test and must give handles to the same ledger, as two
    processes have them.
    """

    @abstractmethod
    def opened(self) -> LedgerStore:
        """A handle to the ledger under test, empty when the test begins."""

    def test_a_new_store_is_empty(self) -> None:
        """There is nothing before the first line."""
        assert list(self.opened().read(0)) == []

    def test_lines_come_back_in_order_through_every_handle(self) -> None:
        """What one handle appended another reads, from any place on."""
        store, other = self.opened(), self.opened()
        for place, line in enumerate((b"one", b"two", b"three")):
            store.append(line, expected_lines=place)
        assert list(other.read(0)) == [b"one", b"two", b"three"]
        assert list(other.read(2)) == [b"three"]
        assert list(other.read(3)) == []

    def test_a_stale_or_early_append_conflicts_and_changes_nothing(self) -> None:
        """Compare and append: the number of lines is what the writer saw, or nothing happens."""
        store, other = self.opened(), self.opened()
        store.append(b"one", expected_lines=0)
        assert _conflicts(other, b"late", 0)
        assert _conflicts(other, b"early", 2)
        assert list(store.read(0)) == [b"one"]

    def test_of_many_writers_at_one_place_exactly_one_wins(self) -> None:
        """Handles that race for a place leave one line there."""
        handles = [self.opened() for _ in range(8)]

        def attempt(number: int) -> bool:
            return _conflicts(handles[number], b"%d" % number, 0)

        with ThreadPoolExecutor(len(handles)) as pool:
            lost = list(pool.map(attempt, range(len(handles))))
        assert lost.count(False) == 1
        assert list(self.opened().read(0)) == [b"%d" % lost.index(False)]


def _conflicts(store: LedgerStore, line: bytes, expected_lines: int) -> bool:
    """Whether an append is refused because somebody was first."""
    try:
        store.append(line, expected_lines=expected_lines)
    except LedgerConflictError:
        return True
    return False

"""Files that go out in pieces are read once, and not kept for long."""

import asyncio

import pytest

from services.coordinator.recent import Recent
from services.errors import CorruptError


class Disk:
    """Files by name; counts how often one is read."""

    def __init__(self) -> None:
        self.reads: list[str] = []

    def load(self, name: str) -> bytes:
        """Read one."""
        self.reads.append(name)
        if name == "damaged":
            raise CorruptError("expected another digest")
        return name.encode()


def test_many_who_ask_at_once_cost_one_read() -> None:
    """Another key is another file; the one before is let go."""

    async def scene() -> None:
        disk, recent = Disk(), Recent[str]()
        ask = [recent.read("a", lambda: disk.load("a")) for _ in range(5)]
        assert await asyncio.gather(*ask) == [b"a"] * 5
        assert disk.reads == ["a"]
        assert await recent.read("b", lambda: disk.load("b")) == b"b"
        assert await recent.read("a", lambda: disk.load("a")) == b"a"
        assert disk.reads == ["a", "b", "a"]

    asyncio.run(scene())


def test_what_nobody_asks_for_is_forgotten() -> None:
    """It would hold a model's memory for the life of the process."""

    async def scene() -> None:
        disk, recent = Disk(), Recent[str](kept_s=0.01)
        await recent.read("a", lambda: disk.load("a"))
        async with asyncio.timeout(10):
            while disk.reads == ["a"]:
                await asyncio.sleep(0.02)
                await recent.read("a", lambda: disk.load("a"))

    asyncio.run(scene())


def test_a_file_that_cannot_be_read_is_not_taken_for_the_one_before() -> None:
    """Nor does it keep the next caller out."""

    async def scene() -> None:
        disk, recent = Disk(), Recent[str]()
        await recent.read("a", lambda: disk.load("a"))
        for _ in range(2):
            with pytest.raises(CorruptError):
                await recent.read("damaged", lambda: disk.load("damaged"))
        assert await recent.read("a", lambda: disk.load("a")) == b"a"
        assert disk.reads == ["a", "damaged", "damaged", "a"]

    asyncio.run(scene())

"""What the core needs from outside for vectors longer than a chunk.

A silo's store holds "state" (the round's model), "masked" (its own upload) and "sum"; the
server's holds "state", "masked.<seat>" and "sum". Chunk boundaries follow the vector's spec.
"""

from typing import Protocol


class VectorStore(Protocol):
    """Long vectors, chunk by chunk; in memory for simulations, in files for services."""

    def write(self, name: str, chunk: int, data: bytes) -> None:
        """Keep chunk number `chunk` of the vector `name`; a repeated write replaces it."""
        ...

    def read(self, name: str, chunk: int) -> bytes:
        """Give back that chunk. KeyError if it is not there."""
        ...

    def chunks(self, name: str) -> int:
        """How many chunks of `name` are there without a gap, counted from 0."""
        ...

    def discard(self, name: str) -> None:
        """Forget the vector; nothing happens if there is none."""
        ...

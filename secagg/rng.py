"""The package's one door to randomness: a source that is injected, never reached for."""

import os
from typing import Protocol


class Rng(Protocol):
    """A cryptographically secure source of bytes."""

    def bytes(self, count: int) -> bytes:
        """Return `count` fresh uniform bytes."""
        ...


class SystemRng:
    """The operating system's generator."""

    def bytes(self, count: int) -> bytes:
        """Return `count` bytes of os.urandom."""
        return os.urandom(count)

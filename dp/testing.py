"""Noise sources for tests: one plays back chosen words, one counts; neither is private."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from dp.rng import ReplayStream, Words


class ScriptedSource:
    """Plays back chosen words: the only way to see what happens once in 2**64 draws.

    Args:
        script: the words, each below 2**64.
    """

    is_private: Final = False

    def __init__(self, script: Sequence[int]) -> None:
        self._left = list(script)

    def words(self, count: int) -> Words:
        """Return the next `count` words of the script.

        Raises:
            ValueError: the script is shorter.
        """
        if count > len(self._left):
            raise ValueError(f"expected a script of {count} more words, {len(self._left)} are left")
        now, self._left = self._left[:count], self._left[count:]
        return np.array(now, np.uint64)


class CountingSource:
    """Replays from a seed and counts: how many words are drawn must not depend on data.

    Attributes:
        drawn: words so far.
    """

    is_private: Final = False

    def __init__(self, seed: bytes = b"") -> None:
        self._inner = ReplayStream(seed)
        self.drawn = 0

    def words(self, count: int) -> Words:
        """Return the next `count` words."""
        self.drawn += count
        return self._inner.words(count)

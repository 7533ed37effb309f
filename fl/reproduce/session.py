"""Results on disk, one file each, so that a long reproduction can be stopped and taken up again."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from fl.errors import DataError

# A result is numbers and lists of numbers by name.
Figures: TypeAlias = Mapping[str, float | list[float]]


class Session:
    """One reproduction's folder.

    Args:
        folder: made if it is not there.
        data: the folder of the data sets.
        tell: shows a line of progress.
        clock: seconds, growing.
        is_quick: whether the short form is asked for.
        seeds: how many; None for the reproduction's own number.
    """

    def __init__(
        self,
        folder: Path,
        *,
        data: Path,
        tell: Callable[[str], None],
        clock: Callable[[], float],
        is_quick: bool = False,
        seeds: int | None = None,
    ) -> None:
        self.data = data
        self.is_quick = is_quick
        self._seeds = seeds
        self._results = folder / "results"
        self._tell = tell
        self._clock = clock
        self._results.mkdir(parents=True, exist_ok=True)

    @property
    def kept(self) -> int:
        """How many results are there already, of whatever settings."""
        return len(list(self._results.glob("*.json")))

    def seeds(self, full: int, quick: int) -> range:
        """Return the seeds to run, from 0."""
        return range(self._seeds or (quick if self.is_quick else full))

    def figures(self, key: str, of: bytes, work: Callable[[], Figures]) -> Figures:
        """Return a result from disk, or work it out and write it there.

        Args:
            key: of the result, fit for a file's name.
            of: digest of all settings; a file of other settings is not used.
            work: gives the result.

        Raises:
            DataError: the folder cannot be written.
        """
        path = self._results / f"{key}.json"
        settings = of.hex()
        try:
            found = json.loads(path.read_text("utf-8"))
            if found["of"] == settings:
                kept: Figures = found["figures"]
                return kept
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not there, cut short or of another version: it is worked out again
        start = self._clock()
        figures = work()
        self._tell(f"{key}: {self._clock() - start:.1f} s")
        fresh = path.with_suffix(".part")
        try:
            fresh.write_text(json.dumps({"of": settings, "figures": figures}), "utf-8")
            fresh.replace(path)
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror}") from error
        return figures


def number(figures: Figures, name: str) -> float:
    """Return one number of a result."""
    value = figures[name]
    if isinstance(value, list):
        raise DataError(f"result {name!r}: expected a number, found a list; delete the folder")
    return value


def series(figures: Figures, name: str) -> list[float]:
    """Return one list of a result."""
    value = figures[name]
    if not isinstance(value, list):
        raise DataError(f"result {name!r}: expected a list, found a number; delete the folder")
    return value

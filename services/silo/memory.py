"""A run's memory on the silo's disk, as `fl.participant` wants it."""

from collections.abc import Mapping
from dataclasses import dataclass

from secagg.ids import RunId
from services.storage.silo import SiloStore


@dataclass(frozen=True, slots=True)
class StoredMemory:
    """`fl.ports.SiloMemory` over the silo's database; names are `<run>/<name>`."""

    store: SiloStore

    def read(self, name: str, /) -> bytes | None:
        """Return what was last written under `name`, None if nothing."""
        run, _, key = name.partition("/")
        return self.store.recall(RunId.parse(run), key)

    def write(self, values: Mapping[str, bytes | None], /) -> None:
        """Write all of `values` or nothing, durably; None removes the name."""
        by_run: dict[str, dict[str, bytes | None]] = {}
        for name, value in values.items():
            run, _, key = name.partition("/")
            by_run.setdefault(run, {})[key] = value
        for run, entries in by_run.items():
            self.store.remember(RunId.parse(run), entries)

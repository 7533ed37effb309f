"""Evidence files: cases against a silo or the coordinator, for whoever has the roster.

A file holds the canonical bytes of one `secagg.evidence.Evidence`. It contains signed statements
and, in some cases, opened shares and masked vectors, all of which the coordinator has seen anyway;
give it to those who have to judge, not to everybody. `secagg transcript verify` checks it.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from secagg.errors import ParameterError, RemoteProtocolError
from secagg.evidence import Evidence
from secagg.ids import RunId
from secagg.lifting import OF_DEALERS
from secagg.roster import Roster
from services.errors import CorruptError
from services.files import make_private_dir, write_secret
from services.observe.logs import Logger

FOLDER: Final = "evidence"
SUFFIX: Final = ".evidence"
# Who is accused where it is no seat.
COORDINATOR: Final = 0


def keep_evidence(folder: Path, cases: Iterable[Evidence], log: Logger) -> None:
    """Write each case once, under a name that says its attempt and follows from its bytes.

    Raises:
        StorageError: the disk refuses.
    """
    for case in cases:
        data, where = case.encode(), case.parameters
        digest = hashlib.sha256(data).hexdigest()[:16]
        name = f"{where.run.hex}-{where.round}-{where.attempt}-{digest}{SUFFIX}"
        path = make_private_dir(folder) / name
        if not path.exists():
            write_secret(path, data)
            log.error("evidence", kind=case.kind.value, accused=case.accused, file=str(path))


def accused(folder: Path, run: RunId | None = None) -> dict[int, str]:
    """Who is accused, by seat, with what the last case says; of one run, or of all.

    Raises:
        CorruptError: a file is damaged.
    """
    cases = map(load_evidence, sorted(folder.glob(f"{run.hex if run else ''}*{SUFFIX}")))
    return {case.accused: case.kind.value for case in cases}


@dataclass(slots=True)
class DealerCases:
    """The cases against dealers in a folder, each file read once: its name follows from its bytes.

    Attributes:
        folder: of evidence; a file that is taken away counts no more.
    """

    folder: Path
    log: Logger
    _read: dict[str, Evidence | None] = field(default_factory=dict)

    def under(self, roster: Roster) -> tuple[Evidence, ...]:
        """Those under this roster, which silos may have to see again.

        A damaged file is logged, once, and passed over.
        """
        paths = sorted(self.folder.glob(f"*{SUFFIX}"))
        self._read = {path.name: self._case(path) for path in paths}
        of_roster = roster.digest()
        return tuple(
            case
            for case in self._read.values()
            if case and case.parameters.roster_digest == of_roster
        )

    def _case(self, path: Path) -> Evidence | None:
        """The file's case; None if it is damaged or of another kind."""
        if path.name in self._read:
            return self._read[path.name]
        try:
            case = load_evidence(path)
        except CorruptError as error:
            self.log.error("evidence-damaged", reason=str(error))  # noqa: TRY400 - the message says it all
            return None
        return case if case.kind in OF_DEALERS else None


def load_evidence(path: Path) -> Evidence:
    """Read an evidence file.

    Raises:
        CorruptError: it cannot be read or does not hold the canonical bytes of a case.
    """
    try:
        return Evidence.decode(path.read_bytes())
    except OSError as error:
        raise CorruptError(f"{path}: cannot be read: {error.strerror}") from error
    except (RemoteProtocolError, ParameterError) as error:
        raise CorruptError(f"{path}: not an evidence file, or a damaged one") from error

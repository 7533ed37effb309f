"""What this silo has answered and found in runs' ledgers, in one file that no restart forgets.

A silo answers one PLAN_COMMIT of a run: with two signatures of one plan a coordinator could show
silos two sets of signers, and every other draft that is answered says something of what is left of
the budget. A run whose ledger is proven false is remembered with the proof.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from dp.canonical import Json, canonical_json, parse_canonical
from dp.entries import Entry
from dp.errors import PlanError
from secagg.ids import RunId
from services.storage.ledger import FileLedgerStore

FILE: Final = "said.jsonl"
# Runs whose plan was answered and for which nothing stayed charged; each is one yes or no.
MOST_UNCHARGED: Final = 8
WITHIN: Final = timedelta(days=7)
_PLAN: Final = "plan"
_TWO: Final = "two-histories"
_BROKEN: Final = "broken"
_FORGIVEN: Final = "forgiven"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """What a silo has said to a draft of PLAN_COMMIT.

    Attributes:
        draft: the entry's hash.
        is_signed: yes, or the budget is spent.
        at: when, in seconds of the epoch.
        data_set: that the run is charged to; empty in lines of before this was noted.
        ledger: the first entry's hash of that data set's ledger, likewise.
    """

    draft: str
    is_signed: bool
    at: int
    data_set: str = ""
    ledger: str = ""


def forgive(folder: Path, charged: Collection[str], *, by: str, now: datetime) -> list[str]:
    """Let a silo answer the plans of new runs again; notes who decided that, and about which runs.

    Security:
        Each answer is a yes or no about what is left of a budget, so each of these runs was a
        question that cost nothing. Whoever forgives them gives as many questions again.

    Args:
        folder: of the file.
        charged: runs for which something stayed charged, in hex.
        by: who decides.
        now: the time.

    Returns:
        the runs, in hex; none were in the way if it is empty, and nothing was noted.

    Raises:
        LedgerConflictError: a process of this silo wrote at the same moment; nothing was noted.
    """
    said = Said(folder)
    runs = said.uncharged(now, charged)
    if runs:
        said.note_forgiven(runs, by, now)
    return runs


class Said:
    """The file as it is when it is read; what is decided by it is written only if it still is so.

    Every writing method raises LedgerConflictError where another process of this silo has written
    meanwhile, and writes nothing then: read again, decide again.
    """

    def __init__(self, folder: Path) -> None:
        """Read it from this folder, and write it there.

        Raises:
            PlanError: a line cannot be read.
        """
        self._store = FileLedgerStore(folder / FILE)
        self._lines = [_read(line, place) for place, line in enumerate(self._store.read(0))]

    def plan(self, run: str) -> PlanAnswer | None:
        """The answer to the plan of a run, which is named in hex."""
        for line in self._of(_PLAN):
            if line.get("run") == run:
                at = line.get("at")
                return PlanAnswer(
                    draft=str(line.get("draft")),
                    is_signed=line.get("is_signed") is True,
                    at=at if isinstance(at, int) else 0,
                    data_set=str(line.get("data_set", "")),
                    ledger=str(line.get("ledger", "")),
                )
        return None

    def uncharged(self, now: datetime, charged: Collection[str]) -> list[str]:
        """Runs in hex whose plans were answered of late and that count against this silo's room.

        Args:
            now: the time.
            charged: runs for which something stayed charged, in hex.
        """
        since = (now - WITHIN).timestamp()
        forgiven = max(
            (place for place, one in enumerate(self._lines) if one.get("kind") == _FORGIVEN),
            default=-1,
        )
        return [
            str(line.get("run"))
            for line in self._lines[forgiven + 1 :]
            if line.get("kind") == _PLAN
            and isinstance(at := line.get("at"), int)
            and at > since
            and line.get("run") not in charged
        ]

    def require_room(self, now: datetime, charged: Collection[str]) -> None:
        """Refuse to answer the plans of ever new runs that never cost anything.

        Args:
            now: the time.
            charged: runs for which something stayed charged, in hex.

        Raises:
            PlanError: too many were answered of late.
        """
        if len(self.uncharged(now, charged)) >= MOST_UNCHARGED:
            raise PlanError(
                f"PLAN_COMMIT: this silo has answered the plans of {MOST_UNCHARGED} runs within "
                f"{WITHIN.days} days that charged nothing; it answers another one later, or when "
                "its operator has looked at them: `secagg silo forgive`"
            )

    def note_plan(self, run: str, answer: PlanAnswer) -> None:
        """Keep an answer, before it is given."""
        self._append(
            {
                "kind": _PLAN,
                "run": run,
                "draft": answer.draft,
                "is_signed": answer.is_signed,
                "at": answer.at,
                "data_set": answer.data_set,
                "ledger": answer.ledger,
            }
        )

    def note_forgiven(self, runs: Sequence[str], by: str, now: datetime) -> None:
        """Count these answers no longer; that a run's plan was answered once stays known."""
        listed: list[Json] = list(runs)
        self._append(
            {
                "kind": _FORGIVEN,
                "by": by,
                "at": int(now.timestamp()),
                "count": len(runs),
                "runs": listed,
            }
        )

    def broken(self, run: RunId) -> str:
        """Why a run's ledger is over here, for good; empty if it is not."""
        for line in self._lines:
            if line.get("run") == run.hex and line.get("kind") == _TWO:
                return f"its coordinator has signed two histories; {FILE} has both"
            if line.get("run") == run.hex and line.get("kind") == _BROKEN:
                return f"{line.get('reason')}; {FILE} has the proof"
        return ""

    def note_two_histories(self, run: RunId, entries: Sequence[Entry]) -> None:
        """Keep the two entries that one writer signed at one place, once for a run."""
        if not self.broken(run):
            lines: list[Json] = [one.to_line().decode() for one in entries]
            self._append({"kind": _TWO, "run": run.hex, "entries": lines})

    def note_broken(self, run: RunId, reason: str, proof: Sequence[bytes]) -> None:
        """Keep what proves a run's ledger false, once for a run."""
        if not self.broken(run):
            lines: list[Json] = [one.decode() for one in proof]
            self._append({"kind": _BROKEN, "run": run.hex, "reason": reason, "proof": lines})

    def _append(self, line: dict[str, Json]) -> None:
        self._store.append(canonical_json(line), expected_lines=len(self._lines))
        self._lines.append(line)

    def _of(self, kind: str) -> Iterator[Mapping[str, Json]]:
        return (line for line in self._lines if line.get("kind") == kind)


def _read(data: bytes, place: int) -> Mapping[str, Json]:
    try:
        line = parse_canonical(data)
    except PlanError as error:
        raise _unreadable(place) from error
    if not isinstance(line, Mapping):
        raise _unreadable(place)
    return line


def _unreadable(place: int) -> PlanError:
    return PlanError(
        f"{FILE}: line {place + 1} cannot be read, and what this silo has answered is not to be "
        "forgotten; put the newest backup of the file back"
    )

"""What this silo has answered and found in runs' ledgers, in one file that no restart forgets.

A silo answers one PLAN_COMMIT of a run: with two signatures of one plan a coordinator could show
silos two sets of signers, and every other draft that is answered says something of what is left of
the budget. A coordinator that has signed two histories is remembered with both entries.
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
_BROKEN: Final = "two-histories"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """What a silo has said to a draft of PLAN_COMMIT.

    Attributes:
        draft: the entry's hash.
        is_signed: yes, or the budget is spent.
    """

    draft: str
    is_signed: bool


class Said:
    """The file."""

    def __init__(self, folder: Path) -> None:
        """Read it from this folder, and write it there."""
        self._store = FileLedgerStore(folder / FILE)

    def plan(self, run: RunId) -> PlanAnswer | None:
        """The answer to a run's plan."""
        for line in self._of(_PLAN):
            if line["run"] == run.hex:
                return PlanAnswer(draft=str(line["draft"]), is_signed=line["is_signed"] is True)
        return None

    def require_room(self, now: datetime, charged: Collection[str]) -> None:
        """Refuse to answer the plans of ever new runs that never cost anything.

        Args:
            now: the time.
            charged: runs for which something stayed charged, in hex.

        Raises:
            PlanError: too many were answered of late.
        """
        since = (now - WITHIN).timestamp()
        recent = [
            line
            for line in self._of(_PLAN)
            if isinstance(at := line["at"], int) and at > since and line["run"] not in charged
        ]
        if len(recent) >= MOST_UNCHARGED:
            raise PlanError(
                f"PLAN_COMMIT: this silo has answered the plans of {MOST_UNCHARGED} runs within "
                f"{WITHIN.days} days that charged nothing; it answers another one later"
            )

    def note_plan(self, run: RunId, answer: PlanAnswer, now: datetime) -> None:
        """Keep an answer, before it is given.

        Raises:
            LedgerConflictError: another process of this silo wrote at the same time.
        """
        at = int(now.timestamp())
        self._append(
            {
                "kind": _PLAN,
                "run": run.hex,
                "draft": answer.draft,
                "is_signed": answer.is_signed,
                "at": at,
            }
        )

    def broken(self, run: RunId) -> bool:
        """Whether this run's coordinator has shown two histories."""
        return any(line["run"] == run.hex for line in self._of(_BROKEN))

    def note_broken(self, run: RunId, entries: Sequence[Entry]) -> None:
        """Keep the two entries that one writer signed at one place, once for a run."""
        if not self.broken(run):
            lines: list[Json] = [one.to_line().decode() for one in entries]
            self._append({"kind": _BROKEN, "run": run.hex, "entries": lines})

    def _append(self, line: dict[str, Json]) -> None:
        self._store.append(canonical_json(line), expected_lines=len(self._store.read(0)))

    def _of(self, kind: str) -> Iterator[Mapping[str, Json]]:
        for data in self._store.read(0):
            line = parse_canonical(data)
            if isinstance(line, Mapping) and line.get("kind") == kind:
                yield line

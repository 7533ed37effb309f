"""A silo as the witness of what the coordinator signs in one attempt.

Two openings, states or results of one attempt that differ prove that the coordinator tells
different stories; the proof stands without this silo's word (SA1 spec 3.1, `evidence`).
"""

from secagg.errors import EvidenceError
from secagg.evidence import Evidence, EvidenceKind, judge, two_statements
from secagg.messages import Result, RoundOpen, ServerMessage, StateNotice
from secagg.parameters import RoundParameters
from secagg.roster import Roster


class Witness:
    """Remembers the first of each kind.

    Attributes:
        evidence: the cases against the coordinator, those of tier 2 among them.
    """

    def __init__(self, roster: Roster) -> None:
        self.evidence: list[Evidence] = []
        self._roster = roster
        self._announced: dict[str, RoundOpen | StateNotice | Result] = {}

    def see(self, message: ServerMessage, parameters: RoundParameters | None) -> None:
        """Keep evidence if the coordinator has signed another message of this kind before.

        Args:
            message: any message of the server.
            parameters: of the attempt, None before it is open.
        """
        if not isinstance(message, RoundOpen | StateNotice | Result):
            return
        first = self._announced.setdefault(message.LABEL, message)
        is_known = any(first.encode() in case.statements for case in self.evidence)
        if first == message or is_known or parameters is None:
            return
        case = two_statements(EvidenceKind.EQUIVOCATION, 0, parameters, first, message)
        try:
            judge(case, self._roster)
        except EvidenceError:
            return
        self.evidence.append(case)

    def add(self, case: Evidence | None) -> None:
        """Keep this case, once."""
        if case is not None and case not in self.evidence:
            self.evidence.append(case)

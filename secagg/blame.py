"""Whom the next attempt does without (SA1 spec 3.4).

A case that a third party can judge excludes the accused. A complaint proves nothing: either the
dealer made a useless box or the accuser lies. So both are left out. Whoever believed one of them
would let a liar choose which honest silo takes part; this way a lie costs its author as much as
its victim.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from secagg.evidence import Evidence
from secagg.messages import Complaint


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A silo that the next attempt does without, and why.

    Attributes:
        seat: the silo's.
        evidence: a case that a third party can judge.
        complaint: signed, by or about this silo; one of its two ends lies.
    """

    seat: int
    evidence: Evidence | None = None
    complaint: Complaint | None = None

    @property
    def is_proven(self) -> bool:
        """Whether a third party would agree."""
        return self.evidence is not None


def suspects(evidence: Iterable[Evidence], complaints: Iterable[Complaint]) -> tuple[Suspect, ...]:
    """All that the next attempt does without, by seat; a proof counts more than a complaint."""
    found = {
        seat: Suspect(seat=seat, complaint=complaint)
        for complaint in complaints
        for seat in (complaint.seat, complaint.dealer)
    }
    for case in evidence:
        found[case.accused] = Suspect(seat=case.accused, evidence=case)
    return tuple(found[seat] for seat in sorted(found))

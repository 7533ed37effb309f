"""Whom the next attempt of a round does without (SA1 spec 3.4).

A case that a third party can judge excludes the accused. A complaint proves nothing: either the
dealer made a useless box or the accuser lies. One of the two is left out: the dealer, unless
another holder accepted that dealer's shares or the accuser has complained about others before. So
a lying accuser costs the round one honest dealer, and then itself.
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
        complaint: signed, and one of two lies; with it the exclusion is this round's only.
    """

    seat: int
    evidence: Evidence | None = None
    complaint: Complaint | None = None

    @property
    def is_proven(self) -> bool:
        """Whether a third party would agree."""
        return self.evidence is not None


def disbelieved(complaint: Complaint, *, earlier: Iterable[Complaint], is_accepted: bool) -> int:
    """The seat of the one that is left out after a complaint.

    Args:
        complaint: of this attempt.
        earlier: those of the round's earlier attempts.
        is_accepted: whether another holder of this dealer's shares has found no fault with them.
    """
    has_complained = any(
        item.seat == complaint.seat and item.dealer != complaint.dealer for item in earlier
    )
    return complaint.seat if is_accepted or has_complained else complaint.dealer


def suspects(evidence: Iterable[Evidence], complaints: dict[int, Complaint]) -> tuple[Suspect, ...]:
    """All that the next attempt does without, by seat; a proof counts more than a complaint.

    Args:
        evidence: cases against silos.
        complaints: by the seat that is disbelieved.
    """
    found = {
        seat: Suspect(seat=seat, complaint=complaint) for seat, complaint in complaints.items()
    }
    for case in evidence:
        found[case.accused] = Suspect(seat=case.accused, evidence=case)
    return tuple(found[seat] for seat in sorted(found))

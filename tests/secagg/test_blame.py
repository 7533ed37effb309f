"""Mirror of `secagg.blame`: whom the next attempt of a round does without."""

from dataclasses import replace

from secagg.blame import Suspect, suspects
from secagg.evidence import EvidenceKind, two_statements
from secagg.messages import Complaint
from secagg.testing import make_federation, make_parameters
from tests.adversary.stage import small_spec

COMPLAINT = Complaint(setup=bytes(32), seat=2, dealer=4, reason="A4_BAD_SHARE")


def test_a_complaint_leaves_out_both_ends() -> None:
    """Either may lie, so neither is believed."""
    assert suspects([], [COMPLAINT]) == (
        Suspect(seat=2, complaint=COMPLAINT),
        Suspect(seat=4, complaint=COMPLAINT),
    )


def test_suspects_are_sorted_and_named_once() -> None:
    """A proof counts more than a complaint about the same silo."""
    federation = make_federation(4)
    parameters = make_parameters(federation.roster, small_spec(4))
    case = two_statements(EvidenceKind.CONTRADICTION, 4, parameters, COMPLAINT, COMPLAINT)
    other = replace(case, accused=1)
    found = suspects([case, other], [COMPLAINT])
    assert found == (
        Suspect(seat=1, evidence=other),
        Suspect(seat=2, complaint=COMPLAINT),
        Suspect(seat=4, evidence=case),
    )
    assert [item.is_proven for item in found] == [True, False, True]
    assert suspects([], []) == ()

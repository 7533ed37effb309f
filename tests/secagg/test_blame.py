"""Mirror of `secagg.blame`: whom the next attempt of a round does without."""

from dataclasses import replace

import pytest

from secagg.blame import Suspect, disbelieved, suspects
from secagg.evidence import EvidenceKind, two_statements
from secagg.messages import Complaint
from secagg.testing import make_federation, make_parameters
from tests.adversary.stage import small_spec

COMPLAINT = Complaint(setup=bytes(32), seat=2, dealer=4, reason="A4_BAD_SHARE")


@pytest.mark.parametrize(
    ("earlier", "is_accepted", "seat"),
    [
        ((), False, 4),
        ((), True, 2),
        ((replace(COMPLAINT, dealer=3),), False, 2),  # it has complained about another one
        ((COMPLAINT,), False, 4),  # about the same one, in another attempt
        ((replace(COMPLAINT, seat=1, dealer=3),), False, 4),  # others' quarrels
    ],
)
def test_either_the_dealer_or_the_accuser_lies(
    earlier: tuple[Complaint, ...], is_accepted: bool, seat: int
) -> None:
    """The dealer is left out, unless something speaks for it."""
    assert disbelieved(COMPLAINT, earlier=earlier, is_accepted=is_accepted) == seat


def test_suspects_are_sorted_and_named_once() -> None:
    """A proof counts more than a complaint about the same silo."""
    federation = make_federation(4)
    parameters = make_parameters(federation.roster, small_spec(4))
    case = two_statements(EvidenceKind.CONTRADICTION, 4, parameters, COMPLAINT, COMPLAINT)
    other = replace(case, accused=1)
    found = suspects([case, other], {4: COMPLAINT, 2: COMPLAINT})
    assert found == (
        Suspect(seat=1, evidence=other),
        Suspect(seat=2, complaint=COMPLAINT),
        Suspect(seat=4, evidence=case),
    )
    assert [item.is_proven for item in found] == [True, False, True]
    assert suspects([], {}) == ()

"""A server that tells different silos, or one silo twice, different things about the survivors."""

from dataclasses import replace

import pytest

from secagg.errors import (
    SurvivorsMismatchError,
    SurvivorsUncertifiedError,
    WrongPhaseError,
)
from secagg.messages import ShareKind, SurvivorsRequest, Unmask
from tests.adversary.stage import Stage

pytestmark = pytest.mark.adversary


def test_one_silo_alive_and_dropped_in_one_list() -> None:
    """Listed twice, a silo could count as alive here and as dropped there."""
    stage = Stage(4)
    stage.mask()
    once = stage.request(1, 2, 3).entries
    stage.refuses(1, SurvivorsRequest(entries=(*once, once[-1])), SurvivorsMismatchError, "once")
    stage.refuses(2, SurvivorsRequest(entries=once[::-1]), SurvivorsMismatchError, "sorted")
    stage.assert_hidden()


def test_one_silo_alive_to_some_and_dropped_to_others() -> None:
    """Silo 4 alive to silos 1 and 2, dropped to 3 and 4: neither story gets t signatures."""
    stage = Stage(4)
    stage.mask()
    for seat in (1, 2):
        stage.tell(seat, stage.request(1, 2, 3, 4))
    for seat in (3, 4):
        stage.tell(seat, stage.request(1, 2, 3))
    for seat in stage.cohort:
        stage.refuses(seat, stage.certificate(), SurvivorsUncertifiedError, "2 silos of")
    assert stage.view.shares == {}
    stage.assert_hidden()


def test_a_second_list_of_survivors() -> None:
    """A silo that has signed one list signs no other one; the same one it sends again."""
    stage = Stage(4)
    stage.agree()
    before = stage.sent[1][-1]
    stage.tell(1, stage.request())
    assert stage.sent[1][-2:] == [before, before]
    stage.refuses(1, stage.request(1, 2, 3), SurvivorsMismatchError, "has signed other")
    stage.assert_hidden()


def test_pro_12_both_shares_across_two_messages() -> None:
    """After the openings for one list no other list is heard, and a certificate opens no more."""
    stage = Stage(4)
    stage.announce()
    stage.submit(1, 2, 3)
    stage.tell_all(stage.request(1, 2, 3))
    stage.tell_all(stage.certificate())
    opened = [item for item in stage.sent[1] if isinstance(item, Unmask)]
    assert [item.kind for item in opened[0].openings] == [ShareKind.SELF] * 3 + [ShareKind.KEY]
    stage.tell(1, stage.certificate())  # asked again, the same bytes
    assert [item for item in stage.sent[1] if isinstance(item, Unmask)] == opened * 2
    late = stage.silos[4]
    assert late.phase == "result"  # silo 4 cannot send its upload any more
    stage.refuses(2, stage.request(1, 2, 3), WrongPhaseError)
    kinds = {(dealer, kind) for _, dealer, kind in stage.view.shares}
    assert len(kinds) == 4
    stage.assert_hidden()


def test_pro_12_a_late_upload_stays_masked() -> None:
    """Silo 4's vector arrives after its mask key was opened: it is in no sum and stays hidden."""
    stage = Stage(4)
    stage.announce()
    stage.submit()
    stage.tell_all(stage.request(1, 2, 3))
    stage.tell_all(stage.certificate())
    stage.tell_all(stage.result(stage.sum_of(1, 2, 3), 1, 2, 3))
    for finished in stage.finished.values():
        assert finished.aggregate.survivors == (1, 2, 3)
        for name, column in stage.sum_of(1, 2, 3).items():
            assert name == "tags" or finished.aggregate.values[name].tolist() == column.tolist()
    stage.assert_hidden()


def test_signatures_for_another_list_certify_nothing() -> None:
    """The certificate counts what the silo itself has signed, byte for byte."""
    stage = Stage(5)
    stage.mask()
    stage.tell(1, stage.request(1, 2, 3, 4))
    for seat in (2, 3, 4, 5):
        stage.tell(seat, stage.request())
    stage.refuses(1, stage.certificate(), SurvivorsUncertifiedError, "1 silos of")
    stage.assert_hidden()


def test_one_signature_counted_twice() -> None:
    """Distinct members count."""
    stage = Stage(4)
    stage.mask()
    for seat in (1, 2):
        stage.tell(seat, stage.request())
    certificate = stage.certificate()
    doubled = replace(certificate, endorsements=certificate.endorsements * 2)
    stage.refuses(1, doubled, SurvivorsUncertifiedError, "2 silos of")
    stage.assert_hidden()


def test_own_upload_changed_or_invented() -> None:
    """A silo knows its own root, and that it has sent nothing."""
    stage = Stage(5)
    stage.announce()
    stage.submit(1, 2, 3, 4)
    entries = stage.request().entries
    other = replace(entries[0], root=bytes(32))
    forged = SurvivorsRequest(entries=(other, *entries[1:]))
    stage.refuses(1, forged, SurvivorsMismatchError, "changed or invented")
    stage.refuses(2, forged, SurvivorsMismatchError, "not signed")
    invented = SurvivorsRequest(entries=(*entries, replace(entries[0], seat=5)))
    stage.refuses(5, invented, SurvivorsMismatchError, "changed or invented")
    lengths = replace(entries[1], lengths=(1, 2, 3))
    wrong = SurvivorsRequest(entries=(entries[0], lengths, *entries[2:]))
    stage.refuses(3, wrong, SurvivorsMismatchError, "segment lengths")
    stage.assert_hidden()

"""A silo whose disk was restored between Survivors and Unmask: it may answer twice.

Fsync and journal are rolled back with it, so such a silo counts toward n_c (SA1 spec 3.5).
"""

import pytest

from secagg.errors import ReplayError
from secagg.journal import JournalEvent, SiloHistory
from secagg.messages import AbandonRequest, Unmask
from secagg.recall import RecalledRound
from tests.adversary.stage import Stage

pytestmark = pytest.mark.adversary


def test_one_restored_silo_is_one_colluder() -> None:
    """It opens, forgets, and abandons: with n_c = 1 that breaks neither sum nor secrecy."""
    stage = Stage(5)
    stage.agree()
    snapshot = [record for record in stage.journals[5] if record.event is not JournalEvent.UNMASKED]
    for seat in (1, 2, 3, 5):
        stage.tell(seat, stage.certificate())
    assert 5 in stage.all_of(Unmask)
    restored = SiloHistory(snapshot)
    recalled = RecalledRound(
        stage.parameters.attempt_id,
        seat=5,
        identity=stage.federation.identities[5],
        roster=stage.roster,
        history=restored,
        store=stage.stores[5],
    )
    where = stage.parameters
    request = AbandonRequest(run=where.run, round=where.round, attempt=where.attempt)
    stage.carry_out(5, recalled.receive(request))
    # With silo 4, that never opened, these are two statements of the four that are needed.
    stage.tell(4, request)
    abandons = tuple(stage.sent[seat][-1] for seat in (4, 5))
    again = Stage(5, histories=stage.histories, view=stage.view, inputs=stage.inputs, attempt=1)
    assert [type(item).__name__ for item in abandons] == ["Abandon", "Abandon"]
    again.refuses(4, again.opening(), ReplayError, "no abandon certificate")
    stage.assert_hidden()


def test_a_restored_silo_opens_nothing_new() -> None:
    """A process that did not open the attempt has no shares, whatever its journal says."""
    stage = Stage(4)
    stage.agree()
    recalled = RecalledRound(
        stage.parameters.attempt_id,
        seat=1,
        identity=stage.federation.identities[1],
        roster=stage.roster,
        history=SiloHistory(stage.journals[1]),
        store=stage.stores[1],
    )
    assert recalled.receive(stage.certificate()) == []
    stage.assert_hidden()

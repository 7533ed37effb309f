"""A server that replays what was said in another attempt, round, run or federation."""

from dataclasses import replace

import pytest

from secagg import messages
from secagg.errors import (
    BadSignatureError,
    CohortRefusedError,
    LocalProtocolError,
    ReplayError,
    RosterError,
    SurvivorsMismatchError,
    SurvivorsUncertifiedError,
)
from secagg.ids import RunId
from secagg.recall import RecalledRound
from secagg.testing import make_federation
from tests.adversary.stage import Stage

pytestmark = pytest.mark.adversary

ELSEWHERE = [
    {"round": 2},
    {"attempt": 1},
    {"run": RunId(b"another run 1234")},
    {"federation": make_federation(4, seed="elsewhere")},
]
NAMES = ["round", "attempt", "run", "federation"]


def _elsewhere(where: dict[str, object]) -> Stage:
    """A whole round in another round, attempt, run or federation."""
    stage = Stage(4, **where)  # type: ignore[arg-type]  # parameters by name
    stage.finish()
    return stage


@pytest.mark.parametrize("where", ELSEWHERE, ids=NAMES)
def test_keys_from_elsewhere(where: dict[str, object]) -> None:
    """Silo 2's Advertise, replayed to silo 1."""
    other = _elsewhere(where)
    stage = Stage(4)
    stage.advertise()
    keys = list(stage.keys().advertises)
    keys[1] = other.last(2, messages.Advertise)
    stage.refuses(1, messages.Keys(advertises=tuple(keys)), ReplayError, "another attempt")
    # Silo 2 itself misses its own keys.
    stage.refuses(2, messages.Keys(advertises=tuple(keys)), RosterError, "own keys")
    stage.assert_hidden()


@pytest.mark.parametrize("where", ELSEWHERE, ids=NAMES)
def test_a_box_from_elsewhere(where: dict[str, object]) -> None:
    """Silo 2's share for silo 1, replayed: its signature is for another setup."""
    other = _elsewhere(where)
    stage = Stage(4)
    stage.share()
    boxes = list(stage.boxes(1).deliveries)
    boxes[1] = other.delivery(2, 1)
    stage.refuses(1, messages.Boxes(deliveries=tuple(boxes)), BadSignatureError)
    stage.assert_hidden()


@pytest.mark.parametrize("where", ELSEWHERE, ids=NAMES)
def test_an_upload_from_elsewhere(where: dict[str, object]) -> None:
    """Silo 2's masked entry, replayed: it is signed for another binding."""
    other = _elsewhere(where)
    stage = Stage(4)
    stage.mask()
    entries = list(stage.request().entries)
    entries[1] = other.last(2, messages.MaskedInput).entry
    forged = messages.SurvivorsRequest(entries=tuple(entries))
    stage.refuses(1, forged, SurvivorsMismatchError, "not signed for this silo's view")
    stage.refuses(2, forged, SurvivorsMismatchError, "own upload")
    stage.assert_hidden()


@pytest.mark.parametrize("where", ELSEWHERE, ids=NAMES)
def test_survivor_signatures_from_elsewhere(where: dict[str, object]) -> None:
    """Two fresh signatures and two old ones are two."""
    other = _elsewhere(where)
    stage = Stage(4)
    stage.agree()
    mixed = stage.certificate(1, 2).endorsements + other.certificate(3, 4).endorsements
    forged = messages.Certificate(endorsements=mixed)
    stage.refuses(1, forged, SurvivorsUncertifiedError, "2 silos")
    stage.assert_hidden()


@pytest.mark.parametrize("where", ELSEWHERE, ids=NAMES)
def test_a_state_notice_from_elsewhere(where: dict[str, object]) -> None:
    """The same state, signed for another setup."""
    from secagg.errors import ModelMismatchError

    other = _elsewhere(where)
    stage = Stage(4)
    stage.deliver()
    stage.refuses(1, other.notice(), ModelMismatchError, "another attempt")
    stage.assert_hidden()


def test_an_opening_from_another_federation() -> None:
    """Another coordinator's signature."""
    other = Stage(4, federation=make_federation(4, seed="elsewhere"))
    stage = Stage(4)
    stage.refuses(1, other.opening(), BadSignatureError)


def test_pro_01_an_attempt_that_was_opened_before() -> None:
    """A silo makes no second set of keys, and no second mask, for one attempt."""
    first = Stage(4)
    first.mask()
    again = Stage(4, histories=first.histories)
    again.refuses(1, again.opening(), ReplayError, "opened before")
    earlier = Stage(4, histories=first.histories, round=0)
    earlier.tell(2, earlier.opening())  # an earlier round is no replay while nothing is released
    first.assert_hidden()


def test_pro_01_a_round_that_was_consumed() -> None:
    """Once a later round was opened, no earlier one is joined; nor a finished one again."""
    first = Stage(4, round=5)
    first.finish()
    for number in (4, 5):
        again = Stage(4, histories=first.histories, round=number)
        again.refuses(1, again.opening(), ReplayError)
    retried = Stage(4, histories=first.histories, round=5, attempt=1)
    retried.refuses(1, retried.opening(), ReplayError, "released")
    after = Stage(4, histories=first.histories, round=6)
    after.tell(2, after.opening())


def test_messages_after_the_end() -> None:
    """A round that is over hears nothing, whatever comes."""
    stage = Stage(4)
    result = stage.finish()
    for message in (stage.opening(), stage.keys(), stage.request(), result):
        with pytest.raises(LocalProtocolError, match="this round is closed"):
            stage.tell(1, message)
    stage.assert_hidden()


def test_pro_01_re_masking_after_a_crash() -> None:
    """Killed after its upload is in the journal: the same bytes again, never another mask."""
    stage = Stage(4)
    stage.mask()
    upload = stage.last(1, messages.MaskedInput)
    recalled = RecalledRound(
        stage.parameters.attempt_id,
        seat=1,
        identity=stage.federation.identities[1],
        roster=stage.roster,
        history=stage.histories[1],
        store=stage.stores[1],
    )
    sent = [effect.message for effect in recalled.receive(stage.notice())]  # type: ignore[union-attr]  # Send alone
    assert sent == [upload]
    assert recalled.receive(stage.request()) == []  # signs nothing new
    assert (
        recalled.receive(stage.certificate(1)) == [] if stage.all_of(messages.Survivors) else True
    )
    stage.assert_hidden()


def test_own_shares_from_elsewhere() -> None:
    """A dealer's own line must be the one it made in this attempt."""
    other = _elsewhere({"attempt": 1})
    stage = Stage(4)
    stage.share()
    boxes = list(stage.boxes(1).deliveries)
    boxes[0] = other.delivery(1, 1)
    forged = messages.Boxes(deliveries=tuple(boxes))
    stage.refuses(1, forged, CohortRefusedError, "own shares")
    left_out = replace(stage.boxes(2), deliveries=stage.boxes(2, 1, 3, 4).deliveries)
    stage.refuses(2, left_out, CohortRefusedError, "own shares")
    stage.assert_hidden()

"""Silos that deal or open wrong shares: each is named, and not the other one.

The liar here has its own identity key, so that all it says is properly signed.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg import dealing, messages, shamir
from secagg.blame import Suspect
from secagg.effects import AbortReason
from secagg.errors import BadShareError, ContradictionError, EvidenceError
from secagg.evidence import Evidence, EvidenceKind, judge
from secagg.messages import Message, Opening, ShareKind, Unmask
from secagg.phases import Phase
from secagg.secretbytes import Secret
from secagg.shamir import FIELD_PRIME
from secagg.testing import Outcome, RoundHarness, make_federation, make_parameters
from tests.adversary.stage import random_inputs, small_spec
from tests.adversary.watched import Watch

pytestmark = pytest.mark.adversary

FEDERATION = make_federation(5)
SPEC = small_spec(8)
INPUTS = random_inputs(range(1, 6), SPEC, 7)
LIAR = 3


def _round(**script: Any) -> tuple[RoundHarness, Outcome]:
    harness = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC),
        state=b"state",
        train=lambda seat, _parameters, _state: INPUTS[seat],
        **script,
    )
    watch = Watch(harness, LIAR)
    outcome = harness.run()
    watch.assert_hidden(INPUTS)  # whatever the liar does
    return harness, outcome


def _finds(evidence: tuple[Evidence, ...], kind: EvidenceKind, accused: int) -> str:
    """One case, which a third party confirms from its bytes alone."""
    (case,) = evidence
    assert (case.kind, case.accused) == (kind, accused)
    verdict = judge(Evidence.decode(case.encode()), FEDERATION.roster)
    assert verdict.accused == f"silo-{accused}"
    for innocent in {1, 2, 3, 4, 5} - {accused}:
        with pytest.raises(EvidenceError):
            judge(replace(case, accused=innocent), FEDERATION.roster)
    return verdict.finding


def _suspects(outcome: Outcome) -> tuple[Suspect, ...]:
    """Whom the next attempt is to do without."""
    assert outcome.aborted is not None
    return outcome.aborted.suspects


def _proven(harness: RoundHarness) -> Suspect:
    """The liar, with the case against it."""
    (case,) = harness.server.evidence
    return Suspect(seat=LIAR, evidence=case)


def _opens_wrongly(kind: ShareKind, value: int) -> Any:
    """The liar opens another share of the first dealer of this kind."""

    def lie(seat: int, message: Message) -> Message:
        if seat != LIAR or not isinstance(message, Unmask):
            return message
        place = [item.kind for item in message.openings].index(kind)
        wrong = replace(message.openings[place], share=Secret(value.to_bytes(33, "big")))
        openings = (*message.openings[:place], wrong, *message.openings[place + 1 :])
        return messages.signed(replace(message, openings=openings), FEDERATION.identities[LIAR])

    return lie


@pytest.mark.parametrize("value", [0, 12345, FIELD_PRIME, 2**264 - 1])
@pytest.mark.parametrize("kind", list(ShareKind))
def test_a_bad_revealer(kind: ShareKind, value: int) -> None:
    """Named at once by the dealer's commitment; the sum comes from the others' shares."""
    harness, outcome = _round(to_server=_opens_wrongly(kind, value), drop={5: Phase.MASK})
    (error,) = outcome.server_errors
    assert type(error) is BadShareError
    assert error.silo == LIAR
    finding = _finds(harness.server.evidence, EvidenceKind.BAD_REVEALER, LIAR)
    dealer = 5 if kind is ShareKind.KEY else 1
    assert finding == f"it opened another share of silo-{dealer} than it was dealt"
    # Four silos are left of five, one of them lies: t = 4 opened shares never come.
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.TOO_FEW_OPENED
    assert outcome.aborted.missing == (LIAR, 5)
    assert _suspects(outcome) == harness.server.suspects == (_proven(harness),)


def test_a_bad_revealer_among_enough_others() -> None:
    """All five are there: the four honest ones suffice, and the sum is exact."""
    harness, outcome = _round(to_server=_opens_wrongly(ShareKind.SELF, 1))
    assert outcome.aggregate is not None
    for name, column in outcome.aggregate.values.items():
        assert column.tolist() == np.sum([INPUTS[s][name] for s in range(1, 6)], axis=0).tolist()
    _finds(harness.server.evidence, EvidenceKind.BAD_REVEALER, LIAR)
    assert harness.server.suspects == (_proven(harness),)  # though the round went well


@pytest.mark.parametrize("flaw", ["none", "twice", "missing", "wrong kind", "both kinds"])
def test_a_wrong_set_of_openings(flaw: str) -> None:
    """One share of each silo of U2, of the kind that its fate asks for."""

    def lie(seat: int, message: Message) -> Message:
        if seat != LIAR or not isinstance(message, Unmask):
            return message
        first, *rest = message.openings
        other = Opening(dealer=first.dealer, kind=ShareKind.KEY, share=first.share)
        openings = {
            "none": (),
            "twice": (first, first, *rest),
            "missing": tuple(rest),
            "wrong kind": (other, *rest),
            "both kinds": (first, other, *rest),
        }[flaw]
        return messages.signed(replace(message, openings=openings), FEDERATION.identities[LIAR])

    harness, outcome = _round(to_server=lie)
    (error,) = outcome.server_errors
    assert type(error) is BadShareError
    assert error.silo == LIAR
    assert harness.server.evidence == ()
    assert outcome.aggregate is not None


@pytest.mark.parametrize("drop", [{}, {LIAR: Phase.MASK}])
@pytest.mark.parametrize("rebuilds", ["another secret", "no secret"])
def test_a_bad_dealer(
    drop: dict[int, Phase], rebuilds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shares fit its commitments and rebuild what it did not commit to.

    Nobody notices before the shares are opened; then the round is lost and the dealer is named,
    by its self seed if it survived and by its mask key if not.
    """
    honest = shamir.split

    def split(secret: Secret, **rest: Any) -> dict[int, Secret]:
        shares = honest(secret, **rest)
        if 5 not in shares or len(calls) // 2 != LIAR - 1:
            calls.append(secret)
            return shares
        calls.append(secret)
        if rebuilds == "another secret":
            return honest(bytes(32), **rest)
        top = 2**256 + 11  # an element of the field that is no 32-byte string
        return dict.fromkeys(shares, Secret(top.to_bytes(33, "big")))

    calls: list[Secret] = []
    monkeypatch.setattr(dealing, "split", split)
    harness, outcome = _round(drop=drop)
    assert outcome.aggregate is None
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.BAD_DEALER
    assert f"seat {LIAR}" in outcome.aborted.detail
    assert _suspects(outcome) == (_proven(harness),)
    finding = _finds(harness.server.evidence, EvidenceKind.BAD_DEALER, LIAR)
    assert ("no secret at all" in finding) == (rebuilds == "no secret")
    assert outcome.silo_aggregates == {}


@pytest.mark.parametrize("flaw", ["one missing", "out of order", "none", "a short box", "no own"])
def test_shares_that_are_not_for_everybody(flaw: str) -> None:
    """One line for each silo of U1, in order, each of its size; the rest go on without the liar."""

    def lie(seat: int, message: Message) -> Message:
        if seat != LIAR or not isinstance(message, messages.Share):
            return message
        lines = message.boxes
        boxes = {
            "one missing": lines[1:],
            "out of order": lines[::-1],
            "none": (),
            "a short box": (replace(lines[0], box=lines[0].box[:-1]), *lines[1:]),
            "no own": tuple(line for line in lines if line.holder != LIAR),
        }[flaw]
        # Signed over the honest lines: no silo signs an empty tree.
        return replace(message, boxes=boxes)

    _, outcome = _round(to_server=lie)
    (error,) = outcome.server_errors
    assert error.code == "MALFORMED"
    assert outcome.aggregate is not None
    assert outcome.aggregate.survivors == (1, 2, 4, 5)


def test_two_different_messages_of_one_kind() -> None:
    """The first one stands, and the two are evidence."""
    seen: list[Message] = []

    def lie(seat: int, message: Message) -> Message:
        if seat == LIAR and isinstance(message, messages.Survivors):
            seen.append(message)
        return message

    harness, outcome = _round(to_server=lie)
    assert outcome.aggregate is not None
    first = seen[0]
    assert isinstance(first, messages.Survivors)
    second = messages.signed(replace(first, survivors=bytes(32)), FEDERATION.identities[LIAR])
    for _ in range(3):
        with pytest.raises(ContradictionError, match="two different"):
            harness.server.receive(LIAR, second, 0.0)
    finding = _finds(harness.server.evidence, EvidenceKind.CONTRADICTION, LIAR)
    assert finding == "it signed two different Survivors messages in one attempt"


def test_evidence_that_proves_nothing() -> None:
    """An honest round's own statements convict nobody, however they are put together."""
    harness, outcome = _round(to_server=_opens_wrongly(ShareKind.SELF, 1))
    (case,) = harness.server.evidence
    unmasks = [item for seat, item in outcome.received if isinstance(item, Unmask) and seat != LIAR]
    honest = tuple(item.encode() for item in unmasks)
    roster = FEDERATION.roster
    dealt = case.statements[:-1]
    dropped: list[Evidence] = [
        replace(case, statements=()),
        replace(case, statements=dealt),
        replace(case, statements=(*dealt, honest[0]), accused=unmasks[0].seat),
        replace(case, statements=(*dealt[1:], case.statements[-1])),
        replace(case, model_hash=b"\x01" * 32),
        replace(case, share_roots=case.share_roots[1:]),
        replace(case, parameters=replace(case.parameters, round=9)),
        replace(case, parameters=replace(case.parameters, roster_digest=bytes(32))),
        replace(case, statements=(*dealt, replace(unmasks[0], openings=()).encode())),
        replace(case, kind=EvidenceKind.BAD_DEALER),
        replace(case, kind=EvidenceKind.BAD_DEALER, accused=1),
        replace(case, kind=EvidenceKind.BAD_DEALER, accused=1, statements=(*dealt, *honest)),
        replace(case, kind=EvidenceKind.BAD_DEALER, accused=1, statements=(*dealt, honest[0])),
        replace(case, kind=EvidenceKind.CONTRADICTION),
        replace(case, kind=EvidenceKind.CONTRADICTION, statements=(honest[0], honest[0])),
        replace(case, kind=EvidenceKind.CONTRADICTION, statements=honest[:2]),
        replace(case, kind=EvidenceKind.EQUIVOCATION, statements=honest[:2]),
        replace(case, statements=(b"rubbish",)),
    ]
    for item in dropped:
        with pytest.raises(EvidenceError):
            judge(item, roster)

"""Silos that lie about a pair's secret in the hybrid suite: the author is named, nobody else."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg import dealing, hybrid, messages
from secagg.dealing import Dealing
from secagg.effects import AbortReason
from secagg.errors import BadShareError, EvidenceError
from secagg.evidence import Evidence, EvidenceKind, judge
from secagg.messages import KemPair, Message
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.secretbytes import Secret
from secagg.testing import Outcome, RoundHarness, make_federation, make_parameters
from tests.adversary.stage import random_inputs, small_spec

pytestmark = pytest.mark.adversary

FEDERATION = make_federation(5)
SPEC = small_spec(8)
INPUTS = random_inputs(range(1, 6), SPEC, 11)
LIAR, VICTIM = 2, 4


def _round(**script: Any) -> tuple[RoundHarness, Outcome]:
    harness = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC, suite=4),
        state=b"state",
        train=lambda seat, _parameters, _state: INPUTS[seat],
        policies=dict.fromkeys(range(1, 6), SiloPolicy(suites=frozenset({4}))),
        **script,
    )
    return harness, harness.run()


def _lie(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Have the liar deal one false part to the victim, properly signed."""
    honest = dealing._encapsulate_pair

    def encapsulate(own: Dealing, holder: int, secret_a: Secret) -> tuple[Secret, KemPair] | None:
        made = honest(own, holder, secret_a)
        if made is None or (own.seat, holder) != (LIAR, VICTIM):
            return made
        ends = (own.setup, LIAR, VICTIM)
        other = Secret(bytes(32))
        changes = {
            "escrow": {"escrow": hybrid.seal_escrow(secret_a, *ends, other)},
            "no escrow": {"escrow": bytes(hybrid.ESCROW_BYTES)},
            "commitment": {"commitment": hybrid.commit_pair(*ends, other)},
            "ciphertext": {"ciphertext": bytes(hybrid.CIPHERTEXT_BYTES)},
        }[what]
        return made[0], replace(made[1], **changes)

    monkeypatch.setattr(dealing, "_encapsulate_pair", encapsulate)


def _deaf(seat: int, message: Message) -> Message | None:
    """The victim shares keys and then hears nothing any more: it is a dropout of the sum."""
    return None if seat == VICTIM and not isinstance(message, _BEFORE_BOXES) else message


_BEFORE_BOXES = (messages.RoundOpen, messages.Keys)


def _convicts_the_liar(harness: RoundHarness) -> None:
    (case,) = harness.server.evidence
    assert (case.kind, case.accused) == (EvidenceKind.FALSE_PAIR, LIAR)
    verdict = judge(Evidence.decode(case.encode()), FEDERATION.roster)
    assert verdict.accused == f"silo-{LIAR}"
    assert f"silo-{VICTIM}" in verdict.finding
    for changed in (
        *(replace(case, accused=seat) for seat in (1, 3, 4, 5)),
        replace(case, statements=case.statements[:-2]),
        replace(case, kind=EvidenceKind.BAD_DEALER),
        replace(case, model_hash=bytes(32)),
    ):
        with pytest.raises(EvidenceError):
            judge(changed, FEDERATION.roster)


@pytest.mark.parametrize("what", ["escrow", "no escrow", "commitment"])
def test_a_false_escrow_is_found_when_its_author_drops_out(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """a_u opens the escrow, com_ss says what should have been in it."""
    _lie(monkeypatch, what)
    script: dict[str, Any] = {"drop": {LIAR: Phase.MASK}}
    if what == "commitment":  # the victim would complain; it is gone too, and five are too few
        harness, outcome = _round(**script)
        assert outcome.aborted is not None
        assert outcome.aborted.reason is AbortReason.COMPLAINT
        assert harness.server.evidence == ()
        return
    harness, outcome = _round(**script)
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.BAD_DEALER
    assert f"seat {LIAR}" in outcome.aborted.detail
    _convicts_the_liar(harness)


@pytest.mark.parametrize("what", ["commitment", "ciphertext"])
def test_a_false_commitment_is_complained_about(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The higher seat compares at A4, before anything secret has left a silo."""
    _lie(monkeypatch, what)
    harness, outcome = _round()
    error = outcome.silo_errors[VICTIM]
    assert isinstance(error, BadShareError)
    assert error.silo == LIAR
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.COMPLAINT
    assert f"seat {VICTIM} about seat {LIAR}" in outcome.aborted.detail
    assert harness.server.evidence == ()  # a complaint blames nobody


@pytest.mark.parametrize("what", ["commitment", "ciphertext"])
def test_a_false_ciphertext_is_found_when_its_receiver_drops_out(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has opened it before; the receiver's rebuilt key shows what it holds."""
    _lie(monkeypatch, what)
    harness, outcome = _round(to_silo=_deaf)
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.BAD_DEALER
    _convicts_the_liar(harness)


def test_a_false_escrow_of_a_survivor_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not needed, so the sum is exact."""
    _lie(monkeypatch, "escrow")
    _, outcome = _round(drop={5: Phase.MASK})
    assert outcome.aggregate is not None
    for name, column in outcome.aggregate.values.items():
        total = np.sum([INPUTS[seat][name] for seat in (1, 2, 3, 4)], axis=0)
        assert column.tolist() == total.tolist()


def test_honest_pairs_convict_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same statements without a lie in them are no case."""
    _lie(monkeypatch, "escrow")
    harness, _ = _round(drop={LIAR: Phase.MASK})
    (case,) = harness.server.evidence
    monkeypatch.undo()
    honest, outcome = _round(drop={LIAR: Phase.MASK})
    assert outcome.aggregate is not None
    kept = honest.server._intake

    def innocent(accused: int, holders: list[int]) -> Evidence:
        return replace(
            case,
            accused=accused,
            statements=(
                *(kept.advertises[seat].encode() for seat in kept.u1),
                kept.shares[accused].encode(),
                *(kept.unmasks[seat].encode() for seat in holders),
            ),
            share_roots=tuple(
                replace(item, root=kept.share_roots[item.seat]) for item in case.share_roots
            ),
        )

    for accused in (1, LIAR):
        for holders in (sorted(kept.unmasks), sorted(kept.unmasks)[:2]):  # the latter below t
            with pytest.raises(EvidenceError, match="every pair secret"):
                judge(innocent(accused, holders), FEDERATION.roster)

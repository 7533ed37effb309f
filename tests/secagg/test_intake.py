"""Mirror of `secagg.intake`, where a whole round would not tell which key was bad."""

from dataclasses import replace
from typing import Any

import pytest

from secagg import hybrid
from secagg.errors import BadKeyError, BadSignatureError, ContradictionError
from secagg.intake import Intake
from secagg.messages import Abandon, Advertise, Complaint, Refusal, Share, signed
from secagg.policy import SiloPolicy
from secagg.testing import MemoryStore
from tests.adversary.stage import Stage


@pytest.mark.parametrize("name", ["enc_key", "mask_key", "kem.box_key", "kem.mask_key"])
def test_each_advertised_key_must_be_usable(name: str) -> None:
    """One bad key that is relayed would make all silos leave."""
    policies = {seat: SiloPolicy(suites=frozenset({4})) for seat in range(1, 5)}
    stage = Stage(4, suite=4, policies=policies)
    stage.advertise()
    own = stage.last(1, Advertise)
    assert own.kem is not None
    changes: Any = {name.removeprefix("kem."): bytes(32)}  # a point of low order
    if name.startswith("kem."):
        changes = {name.removeprefix("kem."): b"\xff" * hybrid.PUBLIC_BYTES}
        bad = replace(own, kem=replace(own.kem, **changes))
    else:
        bad = replace(own, **changes)
    intake = Intake(stage.parameters, roster=stage.roster, cohort=stage.cohort, store=MemoryStore())
    with pytest.raises(BadKeyError, match="an advertised key"):
        intake.take(signed(bad, stage.federation.identities[1]))
    assert intake.advertises == {}
    intake.take(own)
    assert intake.u1 == (1,)


@pytest.fixture
def dealt() -> tuple[Stage, Intake]:
    """Four silos that have dealt shares, and what the server has of them."""
    stage = Stage(4)
    stage.share()
    intake = Intake(stage.parameters, roster=stage.roster, cohort=stage.cohort, store=MemoryStore())
    for seat in stage.cohort:
        intake.take(stage.last(seat, Advertise))
    intake.setup = stage.setup
    intake.shares = stage.all_of(Share)
    return stage, intake


def test_words_against_a_round_must_be_signed(dealt: tuple[Stage, Intake]) -> None:
    """Another's signature, or none, neither abandons nor complains nor refuses."""
    stage, intake = dealt
    own = stage.parameters
    run, ctx = own.run, own.ctx()
    for message in (
        Abandon(federation=own.federation, run=run, round=own.round, attempt=0, seat=1),
        Complaint(setup=stage.setup, seat=1, dealer=2, reason="A4_BAD_SHARE"),
        Refusal(ctx=ctx, seat=1, code="A1_POLICY_REFUSED", reason="no"),
    ):
        with pytest.raises(BadSignatureError):
            intake.take(signed(message, stage.federation.identities[2]))
    assert (intake.abandons, intake.complaints) == ({}, [])


def test_a_second_story_that_nobody_signed_is_no_evidence(dealt: tuple[Stage, Intake]) -> None:
    """It is refused all the same."""
    stage, intake = dealt
    forged = replace(stage.last(1, Advertise), nonce=bytes(32))
    with pytest.raises(ContradictionError):
        intake.has(forged)
    assert intake.evidence == []

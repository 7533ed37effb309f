"""A server that shows silos different sets U2, and survivors that are not in a silo's own one.

The worked cases of SA1 spec 3.4. The last test takes the clause out: then the same moves recover
the victim's input, and the checker finds it.
"""

from dataclasses import replace

import pytest

from secagg import messages
from secagg.errors import CohortRefusedError, SurvivorsMismatchError, SurvivorsUncertifiedError
from secagg.messages import ShareKind, SurvivorEntry, SurvivorsRequest
from secagg.policy import SiloPolicy
from secagg.silo import SiloRound
from tests.adversary.mutants import silo_without
from tests.adversary.stage import Stage

pytestmark = pytest.mark.adversary

# The victim, the silo whose key is to be opened, the one outside the victim's U2, another one.
U, A, B, C = 1, 2, 3, 4


def test_three_silos_and_a_threshold_of_two() -> None:
    """N=3, t=2: a U2 of two, or a sum of two, is below every floor."""
    trusting = {seat: SiloPolicy(n_c=0, n_min=2, n_orgs=2) for seat in (1, 2, 3)}
    stage = Stage(3, policies=trusting, n_c=0, n_min=2, n_orgs=2)
    assert stage.threshold == 2
    stage.share()
    stage.refuses(U, stage.boxes(U, U, A), CohortRefusedError, "at least 3")
    stage.assert_hidden()
    stage = Stage(3, policies=trusting, n_c=0, n_min=2, n_orgs=2)
    stage.mask()
    stage.refuses(U, stage.request(U, B), SurvivorsMismatchError, "at least 3")
    stage.assert_hidden()


def _split(silo_class: type[SiloRound] = SiloRound) -> tuple[Stage, SurvivorEntry]:
    """N=4, n_c=1, t=3: the victim's U2 lacks B, a colluder that signs the victim's binding."""
    stage = Stage(4, corrupted=(B,), silo_class=silo_class)
    stage.announce(views={U: (U, A, C), A: (U, A, C), C: (U, A, C)})
    stage.submit(U, A, C)
    binding = stage.last(U, messages.MaskedInput).binding
    theirs = replace(stage.last(U, messages.MaskedInput).entry, seat=B, root=bytes(32))
    identity = stage.federation.identities[B]
    signature = identity.sign(messages.masked_signed_bytes(binding, theirs))
    return stage, replace(theirs, signature=signature)


def test_a_survivor_outside_the_silos_own_u2() -> None:
    """B is in nobody's U2, and signs the victim's binding all the same."""
    stage, colluder = _split()
    entries = stage.request(U, C).entries
    forged = SurvivorsRequest(entries=(entries[0], colluder, entries[1]))
    for seat in (U, A, C):
        stage.refuses(seat, forged, SurvivorsMismatchError, "outside this silo's own U2")
    stage.assert_hidden()


def test_a_survivor_from_another_view() -> None:
    """An honest B was shown a larger U2: its upload is signed for another binding."""
    stage = Stage(4)
    stage.announce(views={U: (U, A, C)})
    stage.submit()
    stage.refuses(U, stage.request(U, B, C), SurvivorsMismatchError, "outside")
    stage.refuses(A, stage.request(U, B, C), SurvivorsMismatchError, "another|not signed")
    stage.assert_hidden()


def test_signatures_from_outside_the_own_u2() -> None:
    """With an absolute n_c, colluders outside U2 would certify two different sets (A7)."""
    policies = {seat: SiloPolicy(n_c=2) for seat in range(1, 8)}
    stage = Stage(7, corrupted=(6, 7), policies=policies, n_c=2)
    stage.announce(views=dict.fromkeys(range(1, 6), (1, 2, 3, 4, 5)))
    stage.submit(1, 2, 3, 4, 5)
    assert stage.threshold == 5
    for seat in (1, 2, 3):
        stage.tell(seat, stage.request(1, 2, 3, 4, 5))
    signed = stage.last(1, messages.Survivors)
    statement = messages.survivors_signed_bytes(signed.binding, signed.survivors)
    colluders = tuple(
        messages.Endorsement(seat=seat, signature=stage.federation.identities[seat].sign(statement))
        for seat in (6, 7)
    )
    honest = stage.certificate(1, 2, 3).endorsements
    forged = messages.Certificate(endorsements=(*honest, *colluders))
    stage.refuses(1, forged, SurvivorsUncertifiedError, "3 silos of this silo's U2")
    stage.assert_hidden()


def test_strangers_to_the_roster_certify_nothing() -> None:
    """A signature of a seat that does not exist is passed over."""
    stage = Stage(4)
    stage.mask()
    stage.tell(1, stage.request())
    stage.tell(2, stage.request())
    honest = stage.certificate().endorsements
    stranger = replace(honest[0], seat=77)
    forged = messages.Certificate(endorsements=(*honest, stranger))
    stage.refuses(1, forged, SurvivorsUncertifiedError, "2 silos")
    stage.assert_hidden()


def test_without_the_clause_the_victims_input_is_found() -> None:
    """The same moves against silos without A6's first clause.

    Of the victim's masks one is with A, whose key is opened, and one with C, a colluder here: two
    colluders where the threshold is made for one, so that the clause stands alone. With it the
    victim refuses; without it the server opens b_u for the sum {U, B, C}, and a_A.
    """
    unwary = silo_without(("if not set(seats) <= set(share_roots):", "if False:"))
    for silo_class, hidden in ((SiloRound, True), (unwary, False)):
        stage, colluder = _split(silo_class)
        stage.view.corrupted.add(C)
        entries = stage.request(U, C).entries
        forged = SurvivorsRequest(entries=(entries[0], colluder, entries[1]))
        for name, kind in (("a", ShareKind.KEY), ("b", ShareKind.SELF)):
            secret = getattr(stage.silos[C]._own, name).reveal()
            stage.view.see_secret(stage.setup, C, kind, secret)
        if hidden:
            stage.refuses(U, forged, SurvivorsMismatchError, "outside")
            continue
        for seat in (U, A, C):
            stage.tell(seat, forged)
        for seat in (U, A, C):
            stage.tell(seat, stage.certificate())
        assert any(leak.startswith("seat 1") for leak in stage.view.search(stage.truth()))

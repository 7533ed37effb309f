"""A server that makes the set of silos so small that a sum would show an input."""

import pytest

from secagg import messages
from secagg.errors import (
    CohortRefusedError,
    PolicyRefusedError,
    RosterError,
    SurvivorsMismatchError,
    SurvivorsUncertifiedError,
)
from secagg.policy import SiloPolicy
from secagg.testing import make_federation
from tests.adversary.stage import Stage

pytestmark = pytest.mark.adversary


@pytest.mark.parametrize("u3", [(1,), (1, 2), (1, 2, 3)])
def test_pro_11_fewer_survivors_than_the_floor(u3: tuple[int, ...]) -> None:
    """N=5, n_c=1: t=4. One, two or three survivors are refused by every silo."""
    stage = Stage(5)
    assert stage.parameters.floor(5) == 4
    stage.mask()
    for seat in stage.cohort:
        stage.refuses(seat, stage.request(*u3), SurvivorsMismatchError, "at least 4")
    stage.assert_hidden()


def test_no_survivors_at_all() -> None:
    """The empty set is a set below the floor."""
    stage = Stage(4)
    stage.mask()
    nobody = messages.SurvivorsRequest(entries=())
    stage.refuses(1, nobody, SurvivorsMismatchError, "0 silos")
    stage.assert_hidden()


def test_fewer_signatures_than_the_threshold() -> None:
    """Three of five signatures, where four are needed; and none."""
    stage = Stage(5)
    stage.agree()
    for seat, signers in ((1, (1, 2, 3)), (2, (3,))):
        stage.refuses(seat, stage.certificate(*signers), SurvivorsUncertifiedError, "4 are needed")
    none = messages.Certificate(endorsements=())
    stage.refuses(3, none, SurvivorsUncertifiedError, "0 silos")
    stage.assert_hidden()


@pytest.mark.parametrize("u1", [(1,), (1, 2)])
def test_pro_11_a_cohort_of_one_or_two(u1: tuple[int, ...]) -> None:
    """The coordinator tells silo 1 that it is alone, or with one other."""
    stage = Stage(4)
    stage.advertise()
    stage.refuses(1, stage.keys(*u1), RosterError, "are needed")
    stage.assert_hidden()


def test_pro_11_a_companion_that_is_not_registered() -> None:
    """U1 = {1, 2, 3} of a roster of four, and a made-up fifth."""
    stage = Stage(4)
    stage.advertise()
    honest = stage.keys(1, 2, 3).advertises
    stranger = messages.signed(
        messages.Advertise(
            ctx=honest[0].ctx,
            nonce=bytes(32),
            enc_key=b"\x09" + bytes(31),
            mask_key=b"\x0a" + bytes(31),
            seat=5,
        ),
        make_federation(5, seed="another").identities[5],
    )
    forged = messages.Keys(advertises=(*honest, stranger))
    stage.refuses(1, forged, RosterError, "seat 5 is not in roster")
    stage.assert_hidden()


def test_the_victim_and_all_colluders_of_the_roster() -> None:
    """Roster of 7 with 2 colluders: U1 = {1, 6, 7} is refused, because n_c is the roster's."""
    stage = Stage(7, corrupted=(6, 7))
    assert stage.parameters.n_c == 2
    stage.advertise()
    stage.refuses(1, stage.keys(1, 6, 7), RosterError, "4 to 7 are needed")
    stage.assert_hidden()


def test_an_n_c_made_for_the_victims_cohort() -> None:
    """With n_c = ⌊(|U1|-1)/3⌋ = 0 the same U1 would pass; the silo's policy refuses that n_c."""
    stage = Stage(7, corrupted=(6, 7), n_c=0)
    stage.refuses(1, stage.opening(), PolicyRefusedError, "rule n_c")


def test_a_cohort_that_shrinks_at_u2() -> None:
    """Five advertised; a U2 of three is below the floor of four."""
    stage = Stage(5, corrupted=(5,))
    stage.share()
    stage.refuses(1, stage.boxes(1, 1, 2, 5), CohortRefusedError, "at least 4")
    stage.assert_hidden()


def test_too_few_honest_noise_shares() -> None:
    """Under a noise plan of 4 honest shares, F is n_c + h_dp = 6 of 7, whatever t is."""
    stage = Stage(7, h_dp=4)
    assert (stage.threshold, stage.parameters.floor(7)) == (5, 6)
    stage.advertise()
    stage.refuses(1, stage.keys(1, 2, 3, 4, 5), RosterError, "6 to 7")
    stage.tell_all(stage.keys(), (2, 3, 4, 5, 6, 7))
    stage.assert_hidden()


def test_many_silos_of_few_organizations() -> None:
    """Six silos of two organizations, at U1; and at U2 and U3 where U1 still had three."""
    federation = make_federation(6, organizations=2)
    stage = Stage(6, federation=federation)
    stage.advertise()
    stage.refuses(1, stage.keys(), RosterError, "2 organizations; at least 3")
    federation = make_federation(6, organizations=3)
    policies = {seat: SiloPolicy(n_c=1, n_orgs=3) for seat in range(1, 7)}
    one, two = (1, 2, 4, 5), (1, 2, 4, 5)
    stage = Stage(6, federation=federation, policies=policies)
    stage.share()
    stage.refuses(1, stage.boxes(1, *one), CohortRefusedError, "2 organizations")
    stage.assert_hidden()
    stage = Stage(6, federation=federation, policies=policies)
    stage.mask()
    stage.refuses(1, stage.request(*two), SurvivorsMismatchError, "2 organizations")
    stage.assert_hidden()


def test_more_silos_than_the_ring_is_made_for() -> None:
    """Four silos where ctx allows three: their sum could wrap around."""
    stage = Stage(4, n_max=3)
    stage.advertise()
    for seat in stage.cohort:
        stage.refuses(seat, stage.keys(), RosterError, "4 silos; 3 to 3 are needed")
    stage.assert_hidden()

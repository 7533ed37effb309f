"""Tests of secagg.roster."""

from dataclasses import replace
from typing import Any

import pytest

from secagg import canonical
from secagg.errors import (
    BadSignatureError,
    MalformedMessageError,
    OversizeError,
    ParameterError,
    RosterError,
)
from secagg.ids import SiloId
from secagg.keys import IdentityKey
from secagg.roster import MAX_SEATS, Officer, OfficerRole, Roster, Seat, SignedRoster
from secagg.testing import SeededRng, make_federation

ROSTER = make_federation(5, organizations=3).roster
ROOTS = [IdentityKey.generate(SeededRng(f"root {number}")) for number in range(3)]


def _signed(*roots: IdentityKey, roster: Roster = ROSTER) -> SignedRoster:
    pairs = tuple((root.public, root.sign(roster.signed_bytes())) for root in roots)
    return SignedRoster(roster=roster, signatures=pairs)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"index": 0}, r"index must be in \[1, 10000\], got 0"),
        ({"index": 10_001}, "index"),
        ({"organization": " "}, "names no organization"),
        ({"identity_key": bytes(31)}, "identity_key must be 32 bytes, got 31"),
        ({"certificate_key": bytes(33)}, "certificate_key must be 32 bytes, got 33"),
    ],
)
def test_what_a_seat_must_have(changes: dict[str, Any], match: str) -> None:
    """A seat in range, an organization, whole keys."""
    with pytest.raises(ParameterError, match=match):
        replace(ROSTER.seats[0], **changes)


def test_what_an_officer_must_have() -> None:
    """A name by the rule of names, a whole key, one of two roles."""
    officer = Officer(name="anna", role=OfficerRole.OPERATOR, certificate_key=bytes(32))
    assert Officer.decode(officer.encode()) == officer
    for changes in ({"name": "an na"}, {"certificate_key": b""}):
        with pytest.raises(ParameterError):
            replace(officer, **changes)
    with pytest.raises(MalformedMessageError, match="expected one of"):
        Officer.decode(officer.encode().replace(b"operator", b"dictator"))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"version": 0}, "version starts at 1"),
        ({"previous": b""}, "previous digest must be 32 bytes"),
        ({"coordinator_key": bytes(31)}, "coordinator_key must be 32 bytes"),
        ({"seats": ROSTER.seats[::-1]}, "sorted by index"),
        ({"seats": (*ROSTER.seats, ROSTER.seats[-1])}, "seat index once; 5 stands twice"),
    ],
)
def test_what_a_roster_must_have(changes: dict[str, Any], match: str) -> None:
    """A version, whole keys, sorted and distinct seats."""
    with pytest.raises(ParameterError, match=match):
        replace(ROSTER, **changes)


@pytest.mark.parametrize(
    ("field", "what"),
    [("silo", "silo name"), ("identity_key", "identity key"), ("certificate_key", "certificate")],
)
def test_seats_share_no_name_and_no_key(field: str, what: str) -> None:
    """One seat a silo."""
    double = replace(ROSTER.seats[1], **{field: getattr(ROSTER.seats[0], field)})
    with pytest.raises(ParameterError, match=f"each {what}.* once"):
        replace(ROSTER, seats=(ROSTER.seats[0], double, *ROSTER.seats[2:]))


def test_the_highest_seat() -> None:
    """The limit itself is allowed."""
    assert replace(ROSTER.seats[0], index=MAX_SEATS).index == MAX_SEATS
    with pytest.raises(ParameterError, match="index must be in"):
        replace(ROSTER.seats[0], index=MAX_SEATS + 1)


def test_a_key_that_stands_twice_is_shown_by_its_beginning() -> None:
    """In hexadecimal, as elsewhere."""
    first, second, *rest = ROSTER.seats
    shown = first.identity_key.hex()[:16]
    with pytest.raises(ParameterError, match=f"identity key once; {shown} stands twice"):
        replace(ROSTER, seats=(first, replace(second, identity_key=first.identity_key), *rest))


def test_an_officer_shares_no_certificate_with_a_silo() -> None:
    """A certificate has one role."""
    officer = Officer(
        name="anna",
        role=OfficerRole.COORDINATOR,
        certificate_key=ROSTER.seats[2].certificate_key,
    )
    with pytest.raises(ParameterError, match="certificate key once"):
        replace(ROSTER, officers=(officer,))


def test_seats_are_found_by_index_and_by_silo() -> None:
    """And missed by a named error."""
    assert ROSTER.indices == (1, 2, 3, 4, 5)
    assert ROSTER.seat(3).silo == SiloId("silo-3")
    assert ROSTER.seat_of(SiloId("silo-3")) == ROSTER.seat(3)
    with pytest.raises(RosterError, match="seat 6 is not in roster version 1"):
        ROSTER.seat(6)
    with pytest.raises(RosterError, match="'silo-6' has no seat"):
        ROSTER.seat_of(SiloId("silo-6"))


def test_organizations_are_counted_once() -> None:
    """Five seats of three organizations."""
    assert ROSTER.organizations(()) == 0
    assert ROSTER.organizations((1, 4)) == 1
    assert ROSTER.organizations(ROSTER.indices) == 3


def test_every_field_is_under_the_digest() -> None:
    """A change of anything is another roster."""
    officer = Officer(name="anna", role=OfficerRole.OPERATOR, certificate_key=bytes(32))
    others = [
        replace(ROSTER, version=2),
        replace(ROSTER, previous=ROSTER.digest()),
        replace(ROSTER, coordinator_key=bytes(32)),
        replace(ROSTER, seats=ROSTER.seats[:4]),
        replace(ROSTER, officers=(officer,)),
        replace(ROSTER, officers=(replace(officer, name="berta"),)),
        replace(ROSTER, officers=(replace(officer, role=OfficerRole.COORDINATOR),)),
        replace(ROSTER, officers=(replace(officer, certificate_key=bytes(31) + b"x"),)),
        make_federation(5, organizations=2).roster,
        replace(ROSTER, federation=replace(ROSTER.federation, name="another")),
    ]
    assert len({ROSTER.digest(), *(other.digest() for other in others)}) == 1 + len(others)


def test_a_roster_needs_every_trusted_root() -> None:
    """Further roots do no harm; a missing or wrong signature does."""
    trusted = frozenset({ROOTS[0].public, ROOTS[1].public})
    assert _signed(*ROOTS).verify(trusted) == ROSTER
    with pytest.raises(BadSignatureError, match="lacks the signature"):
        _signed(ROOTS[0], ROOTS[2]).verify(trusted)
    moved = replace(_signed(*ROOTS), roster=replace(ROSTER, version=2))
    with pytest.raises(BadSignatureError, match="expected a signature"):
        moved.verify(trusted)
    with pytest.raises(ParameterError, match="no trusted root"):
        _signed(*ROOTS).verify(frozenset())


def test_a_signed_roster_comes_back_from_its_bytes() -> None:
    """With all signatures; more than 64 are refused."""
    signed = _signed(*ROOTS)
    assert SignedRoster.decode(signed.encode()) == signed
    many = replace(signed, signatures=signed.signatures[:1] * 65)
    with pytest.raises(OversizeError):
        SignedRoster.decode(many.encode())


@pytest.mark.parametrize(("root", "signature"), [(31, 64), (32, 63), (33, 65)])
def test_root_signatures_have_their_size(root: int, signature: int) -> None:
    """32 and 64 bytes."""
    bad = SignedRoster(roster=ROSTER, signatures=((bytes(root), bytes(signature)),))
    with pytest.raises(MalformedMessageError):
        SignedRoster.decode(bad.encode())


def test_signed_bytes_are_canonical() -> None:
    """Roots sign the digest under a label of its own."""
    assert ROSTER.signed_bytes() == canonical.encode("roster-signature", ROSTER.digest())
    assert Seat.decode(ROSTER.seats[0].encode()) == ROSTER.seats[0]

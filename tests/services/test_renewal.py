"""Renewed certificates: what the coordinator hands out and what a holder takes."""

from datetime import timedelta
from pathlib import Path

import pytest

from services.clock import utc_now
from services.enrollment import authority
from services.enrollment.renewal import MAX_BYTES, renewed_certificate, take_renewal
from services.errors import CredentialError
from services.security.identity import Role
from services.testing import LocalFederation, make_federation

NOW = utc_now()


@pytest.fixture
def federation(tmp_path: Path) -> LocalFederation:
    """Two silos whose certificates end in ten days."""
    federation = make_federation(tmp_path, silos=["a", "b"], now=NOW)
    for name in ("a", "b"):
        authority.issue(
            federation.authority,
            federation.folder(name) / "request.json",
            role=Role.SILO,
            now=NOW,
            valid_days=10,
        )
        authority.install(federation.authority / "issued" / name, federation.folder(name))
    return federation


def issue(federation: LocalFederation, name: str, days: int) -> bytes:
    """Renew a silo's certificate at the authority; returns it."""
    authority.issue(
        federation.authority,
        federation.folder(name) / "request.json",
        role=Role.SILO,
        now=NOW,
        valid_days=days,
    )
    return (federation.authority / "issued" / name / "tls.pem").read_bytes()


def test_a_certificate_that_ends_later_is_handed_out_and_taken(federation: LocalFederation) -> None:
    """Only to the holder of its key, and only if it is news."""
    issued, known = federation.authority / "issued", federation.credentials("a", Role.SILO)
    key = federation.roster().seats[0].certificate_key
    assert renewed_certificate(issued, "a", key, known.not_after) == b""
    pem = issue(federation, "a", 30)
    assert renewed_certificate(issued, "a", bytes(32), known.not_after) == b""
    assert renewed_certificate(issued, "nobody", key, known.not_after) == b""
    assert renewed_certificate(issued, "a", key, known.not_after) == pem
    taken = take_renewal(known, pem, now=NOW)
    assert taken.not_after - known.not_after == timedelta(days=20)
    assert federation.credentials("a", Role.SILO) == taken
    (issued / "a/tls.pem").write_bytes(b"no certificate")
    assert renewed_certificate(issued, "a", key, known.not_after) == b""


def test_what_is_no_renewal_is_not_taken(federation: LocalFederation, tmp_path: Path) -> None:
    """Whatever a coordinator hands out: whom a silo trusts and who it is stay as they are."""
    known = federation.credentials("a", Role.SILO)
    stranger = make_federation(tmp_path / "other", silos=["a"], now=NOW)
    for pem, words in (
        (issue(federation, "b", 30), "is for secagg://silo/b or for another key"),
        (issue(stranger, "a", 30), "not issued by the authority that this holder trusts"),
        (issue(federation, "a", 5), "ends no later than the one in use"),
        (b"rubbish", "not issued by the authority"),
        (bytes(MAX_BYTES + 1), "expected at most 65536 bytes"),
    ):
        with pytest.raises(CredentialError, match=words):
            take_renewal(known, pem, now=NOW)
    later = NOW + timedelta(days=40)
    with pytest.raises(CredentialError, match="is not valid now"):
        take_renewal(known, issue(federation, "a", 30), now=later)
    assert federation.credentials("a", Role.SILO) == known

"""Renewed certificates: what the coordinator hands out and what a holder takes."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.clock import utc_now
from services.config import CoordinatorConfig
from services.coordinator.serve import warn_of_end
from services.enrollment import authority
from services.enrollment.renewal import MAX_BYTES, renewed_certificate, take_renewal
from services.errors import CredentialError
from services.observe.logs import get_logger
from services.security.identity import Role
from services.settings import parse_config
from services.silo.line import Line
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


@pytest.mark.parametrize(("days", "left"), [(30, 29), (32, None)])
@pytest.mark.parametrize("party", ["a", "coordinator"])
def test_the_end_of_a_certificate_is_said_thirty_days_before(
    federation: LocalFederation, party: str, days: int, left: int | None
) -> None:
    """By a silo and by a coordinator, as soon as they start (bug case TLS-03)."""
    role = Role.SILO if party == "a" else Role.COORDINATOR
    request = federation.folder(party) / "request.json"
    authority.issue(federation.authority, request, role=role, now=NOW, valid_days=days)
    authority.install(federation.authority / "issued" / party, federation.folder(party))
    log = get_logger("test")

    async def first_look() -> None:
        if role is Role.SILO:
            line = Line(
                target="localhost:1",
                credentials=federation.credentials(party, role),
                proxy=False,
                incarnation=bytes(16),
                log=log,
            )
            looking, close = line.keep_renewed(), line.close
        else:
            text = 'listen = "localhost:1"\ndirectory = "coordinator"\nstorage = "storage"\n'
            config = parse_config(text.encode(), CoordinatorConfig, source="", base=federation.root)
            looking, close = warn_of_end(config, log), None
        with suppress(TimeoutError):
            await asyncio.wait_for(looking, 0.5)
        if close is not None:
            await close()

    with capture_logs() as lines:
        asyncio.run(first_look())
    said = [line["days_left"] for line in lines if line["event"] == "certificate-ends"]
    assert said == ([] if left is None else [left])

"""The authority: what it certifies, what it lists, and what it refuses."""

import json
import os
import shutil
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from secagg.rng import SystemRng
from secagg.roster import SignedRoster
from services.enrollment import authority
from services.enrollment.authority import Issued
from services.enrollment.request import EnrollmentRequest, enroll
from services.enrollment.roster_file import accept_newer, load_roster, load_signed, load_trust
from services.errors import CredentialError, EnrollmentError
from services.security.credentials import load_credentials, load_identity
from services.security.identity import CertificateIdentity, Role, subject_names

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOSTS = ("localhost", "127.0.0.1")


class Federation:
    """An authority in a folder, with a coordinator."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "authority"
        self.trust = authority.init(self.directory, federation="demo", rng=SystemRng(), now=NOW)
        self.add("coord", Role.COORDINATOR)

    def request(self, name: str, role: Role, folder: str = "") -> Path:
        hosts = HOSTS if role is Role.COORDINATOR else ()
        directory = self.root / (folder or name)
        return enroll(directory, name=name, role=role, rng=SystemRng(), hosts=hosts)

    def issue(self, request: Path, role: Role, organization: str = "") -> Issued:
        return authority.issue(
            self.directory, request, role=role, now=NOW, organization=organization
        )

    def add(self, name: str, role: Role, organization: str = "") -> Issued:
        issued = self.issue(self.request(name, role), role, organization)
        authority.install(issued.bundle, self.root / name)
        return issued


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """An authority with a coordinator and no silo yet."""
    return Federation(tmp_path)


def test_each_silo_is_a_new_version_chained_to_the_one_before(federation: Federation) -> None:
    """Seats are numbered from 1, and each version names its predecessor's digest."""
    federation.add("a", Role.SILO, "Hôpital A")
    federation.add("b", Role.SILO, "Bank B")
    federation.add("ops", Role.OPERATOR)
    chain = [
        load_roster(federation.directory / f"roster-{version}.json", federation.trust)
        for version in range(1, 5)
    ]
    assert [roster.previous for roster in chain[1:]] == [roster.digest() for roster in chain[:-1]]
    newest = chain[-1]
    assert [(seat.index, seat.silo.name, seat.organization) for seat in newest.seats] == [
        (1, "a", "Hôpital A"),
        (2, "b", "Bank B"),
    ]
    assert [officer.name for officer in newest.officers] == ["coord", "ops"]
    assert newest.coordinator_key == load_identity(federation.root / "coord").public
    assert newest.seats[0].identity_key == load_identity(federation.root / "a").public


def test_a_certificate_names_its_holder_and_the_roster_its_key(federation: Federation) -> None:
    """The name is a URI, a coordinator's hosts stand beside it, and the key is the roster's."""
    federation.add("a", Role.SILO, "A")
    silo = load_credentials(federation.root / "a", role=Role.SILO, now=NOW)
    coordinator = load_credentials(federation.root / "coord", role=Role.COORDINATOR, now=NOW)
    assert (silo.identity.uri, silo.hosts) == ("secagg://silo/a", ())
    assert coordinator.hosts == HOSTS
    roster = authority.newest_roster(federation.directory)
    assert roster is not None
    assert roster.seats[0].certificate_key == silo.identity.certificate_key
    assert silo.days_left(NOW) == 365


def test_issuing_again_renews_and_changes_no_roster(federation: Federation) -> None:
    """The same name with the same keys is no news."""
    first = federation.add("a", Role.SILO, "A")
    issued = x509.load_pem_x509_certificate((first.bundle / "tls.pem").read_bytes())
    before, first_key = CertificateIdentity.of(issued), issued.public_key()
    later = authority.issue(
        federation.directory,
        federation.request("a", Role.SILO),
        role=Role.SILO,
        now=NOW + timedelta(days=300),
    )
    certificate = x509.load_pem_x509_certificate((later.bundle / "tls.pem").read_bytes())
    assert (later.is_renewal, later.roster_version) == (True, first.roster_version)
    assert CertificateIdentity.of(certificate).uri == before.uri
    assert certificate.public_key() == first_key
    assert certificate.not_valid_after_utc == NOW + timedelta(days=665)


@pytest.mark.parametrize("name", ["a", "A"])
def test_another_key_under_a_known_name_is_refused(federation: Federation, name: str) -> None:
    """A duplicate silo, also one that differs in case only, gets no seat."""
    federation.add("a", Role.SILO, "A")
    with pytest.raises(
        EnrollmentError, match="is the name of another silo already, with other keys; choose"
    ):
        federation.issue(federation.request(name, Role.SILO, "thief"), Role.SILO, "A")
    assert not (federation.directory / "roster-3.json").exists()


def test_known_keys_under_another_name_are_refused(federation: Federation) -> None:
    """One silo cannot take two seats with one pair of keys."""
    federation.add("a", Role.SILO, "A")
    twin = federation.root / "twin"
    twin.mkdir()
    for file in ("tls.key", "identity.key"):
        (twin / file).write_bytes((federation.root / "a" / file).read_bytes())
        (twin / file).chmod(0o600)
    with pytest.raises(EnrollmentError, match="b cannot be listed"):
        federation.issue(federation.request("b", Role.SILO, "twin"), Role.SILO, "B")


def test_the_coordinator_comes_first_and_once(tmp_path: Path) -> None:
    """The roster cannot exist without its key, and has room for one."""
    directory = tmp_path / "authority"
    authority.init(directory, federation="demo", rng=SystemRng(), now=NOW)
    request = enroll(tmp_path / "a", name="a", role=Role.SILO, rng=SystemRng())
    with pytest.raises(EnrollmentError, match="issue the coordinator's request first"):
        authority.issue(directory, request, role=Role.SILO, now=NOW, organization="A")
    federation = Federation(tmp_path / "other")
    with pytest.raises(EnrollmentError, match="has a coordinator already"):
        federation.add("second", Role.COORDINATOR)


def test_the_role_granted_must_be_the_role_asked_for(federation: Federation) -> None:
    """An operator's request does not become a silo by a slip."""
    with pytest.raises(EnrollmentError, match="asks for the role operator, and silo"):
        federation.issue(federation.request("ops", Role.OPERATOR), Role.SILO, "A")
    with pytest.raises(EnrollmentError, match="an organization exactly for a silo"):
        federation.issue(federation.request("a", Role.SILO), Role.SILO)


def test_a_listed_silo_keeps_its_organization(federation: Federation) -> None:
    """Renewing under another one would change who stands behind a seat."""
    federation.add("a", Role.SILO, "A")
    with pytest.raises(EnrollmentError, match="listed for the organization 'A', got 'B'"):
        federation.issue(federation.request("a", Role.SILO), Role.SILO, "B")


def test_officers_are_renewed_and_protected_like_silos(federation: Federation) -> None:
    """The coordinator's identity key counts, since it signs rounds."""
    assert federation.add("coord", Role.COORDINATOR).is_renewal
    federation.add("ops", Role.OPERATOR)
    assert federation.add("ops", Role.OPERATOR).is_renewal
    with pytest.raises(EnrollmentError, match="is the name of another operator already"):
        federation.issue(federation.request("ops", Role.SILO, "thief"), Role.SILO, "A")


@pytest.mark.parametrize("days", [0, 4000])
def test_a_certificate_lasts_a_day_at_least_and_not_longer_than_the_authority(
    federation: Federation, days: int
) -> None:
    """A longer one would fail in mid-project for a reason that nobody looks for."""
    request = federation.request("a", Role.SILO)
    with pytest.raises(EnrollmentError, match="ends before the authority's own on 2036-11-27"):
        authority.issue(
            federation.directory,
            request,
            role=Role.SILO,
            now=NOW,
            organization="A",
            valid_days=days,
        )


@pytest.mark.parametrize("name", ["", "a/b", "Zürich"])
def test_a_federation_has_a_name_by_the_same_rule(tmp_path: Path, name: str) -> None:
    """It stands in every round's hash."""
    with pytest.raises(EnrollmentError, match="federation name"):
        authority.init(tmp_path / "authority", federation=name, rng=SystemRng(), now=NOW)


def test_only_p256_keys_are_certified(federation: Federation) -> None:
    """Others are refused by gRPC later, with an error that nobody understands."""
    path = federation.request("a", Role.SILO)
    (path.parent / "tls.key").write_bytes(
        Ed25519PrivateKey.generate().private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
    )
    with pytest.raises(EnrollmentError, match="expected an ECDSA P-256 key"):
        federation.request("a", Role.SILO)


def test_an_older_bundle_is_not_installed(federation: Federation) -> None:
    """It would take seats out of the silo's roster."""
    federation.add("a", Role.SILO, "A")
    old = federation.root / "old"
    shutil.copytree(federation.directory / "issued" / "a", old)
    issued = federation.issue(federation.request("b", Role.SILO), Role.SILO, "B")
    authority.install(federation.directory / "issued" / "a", federation.root / "a")
    with pytest.raises(CredentialError, match="holds roster version 2, and version 3 is installed"):
        authority.install(old, federation.root / "a")
    (issued.bundle / "ca.pem").unlink()
    with pytest.raises(CredentialError, match=r"ca.pem, found no such file; ask"):
        authority.install(issued.bundle, federation.root / "b")


def test_an_authority_is_not_overwritten(federation: Federation) -> None:
    """A second init would make every certificate worthless."""
    with pytest.raises(EnrollmentError, match="holds an authority already"):
        authority.init(federation.directory, federation="demo", rng=SystemRng(), now=NOW)


@pytest.mark.parametrize("name", ["../x", "A/B", "", "Hôpital-Zürich", "x" * 64, "-a"])
def test_a_name_that_could_become_a_path_is_refused(tmp_path: Path, name: str) -> None:
    """The rule is in the message, and nothing is written."""
    with pytest.raises(EnrollmentError, match="letters, digits, dots"):
        enroll(tmp_path / "silo", name=name, role=Role.SILO, rng=SystemRng())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["", "a b", "*.example", "http://x", "exämple"])
def test_a_host_must_be_a_name_or_an_address(tmp_path: Path, host: str) -> None:
    """What cannot stand in a certificate is refused before any key is made."""
    with pytest.raises(EnrollmentError, match="a DNS name or an IP address"):
        enroll(tmp_path / "c", name="c", role=Role.COORDINATOR, rng=SystemRng(), hosts=(host,))


def test_private_keys_are_0600_from_the_first_byte_whatever_the_umask(tmp_path: Path) -> None:
    """Under umask 000 too, and the folder is entered by its owner only."""
    old = os.umask(0)
    try:
        federation = Federation(tmp_path)
    finally:
        os.umask(old)
    secrets = ["authority/ca.key", "authority/roster-root.key", "coord/tls.key"]
    for name in [*secrets, "coord/identity.key"]:
        assert stat.S_IMODE((federation.root / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE((federation.root / "coord").stat().st_mode) == 0o700


def test_the_request_holds_public_keys_only(federation: Federation) -> None:
    """No private byte, in any form, leaves the silo's folder."""
    path = federation.request("a", Role.SILO)
    text = path.read_text(encoding="utf-8")
    secret = (path.parent / "identity.key").read_bytes()
    assert secret.hex() not in text
    assert "PRIVATE" not in text
    assert EnrollmentRequest.load(path).identity_key == load_identity(path.parent).public


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "b"), ("role", "operator"), ("identity_key", "11" * 32), ("signature", "00" * 64)],
)
def test_a_changed_request_is_refused(federation: Federation, field: str, value: str) -> None:
    """The identity key's signature covers every field."""
    path = federation.request("a", Role.SILO)
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps(document | {field: value}), encoding="utf-8")
    with pytest.raises(EnrollmentError):
        EnrollmentRequest.load(path)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\x80\x04\x95.", b'{"format": "secagg-request-2"}']
)
def test_what_is_no_request_is_refused(tmp_path: Path, content: bytes) -> None:
    """Another form of file is named as such."""
    path = tmp_path / "request.json"
    path.write_bytes(content)
    with pytest.raises(CredentialError, match="expected an enrollment request"):
        EnrollmentRequest.load(path)


def test_a_folder_belongs_to_one_holder(federation: Federation) -> None:
    """Keys of one holder do not become another's."""
    federation.request("a", Role.SILO)
    with pytest.raises(EnrollmentError, match="belongs to the silo a"):
        federation.request("b", Role.SILO, "a")


def test_enrolling_again_keeps_the_keys(federation: Federation) -> None:
    """A second call is harmless."""
    path = federation.request("a", Role.SILO)
    before = EnrollmentRequest.load(path)
    after = EnrollmentRequest.load(federation.request("a", Role.SILO))
    assert (before.identity_key, before.public_key) == (after.identity_key, after.public_key)


def test_a_bundle_for_another_key_is_not_installed(federation: Federation) -> None:
    """Mixed-up bundles are found before TLS fails."""
    issued = federation.add("a", Role.SILO, "A")
    federation.request("b", Role.SILO)
    with pytest.raises(CredentialError, match="issued for another key"):
        authority.install(issued.bundle, federation.root / "b")


def test_a_bundle_of_another_federation_does_not_change_whom_a_silo_trusts(
    federation: Federation,
) -> None:
    """Trust is set once."""
    federation.add("a", Role.SILO, "A")
    other = Federation(federation.root / "other")
    issued = other.issue(federation.root / "a" / "request.json", Role.SILO, "A")
    with pytest.raises(CredentialError, match="another federation or other roots"):
        authority.install(issued.bundle, federation.root / "a")


def test_every_bundle_carries_the_newest_roster(federation: Federation) -> None:
    """Whoever installs late need not ask again."""
    issued = federation.issue(federation.request("a", Role.SILO), Role.SILO, "A")
    federation.add("b", Role.SILO, "B")
    assert authority.install(issued.bundle, federation.root / "a").version == 3


@pytest.mark.parametrize(
    "change",
    [
        {"version": 7},
        {"federation": "other"},
        {"coordinator_key": "22" * 32},
        {"seats": []},
        {"signatures": []},
    ],
)
def test_a_changed_roster_file_is_refused(
    federation: Federation, change: dict[str, object]
) -> None:
    """What is shown must be what was signed."""
    federation.add("a", Role.SILO, "A")
    path = federation.root / "a" / "roster.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change), encoding="utf-8")
    with pytest.raises(CredentialError, match="not signed by the roots"):
        load_roster(path, load_trust(federation.root / "a" / "trust.json"))


class TestRevocation:
    """Who is taken out of the roster, and what that leaves of everybody else."""

    def test_a_revoked_silo_leaves_the_next_version_and_nothing_else_changes(
        self, federation: Federation
    ) -> None:
        """The others' certificates and seats stay; its number and its keys never come back."""
        first, second = federation.add("a", Role.SILO, "A"), federation.add("b", Role.SILO, "B")
        kept = (first.bundle / "tls.pem").read_bytes()
        assert authority.revoke(federation.directory, "b") == 4
        roster = authority.newest_roster(federation.directory)
        assert roster is not None
        assert [seat.silo.name for seat in roster.seats] == ["a"]
        assert (first.bundle / "tls.pem").read_bytes() == kept
        assert not second.bundle.exists()
        with pytest.raises(EnrollmentError, match="the keys of b were revoked"):
            federation.issue(federation.request("b", Role.SILO), Role.SILO, "B")
        federation.issue(federation.request("b", Role.SILO, "new"), Role.SILO, "B")
        again = authority.newest_roster(federation.directory)
        assert again is not None
        assert [(seat.index, seat.silo.name) for seat in again.seats] == [(1, "a"), (3, "b")]

    def test_an_operator_is_revoked_too_but_not_the_coordinator(
        self, federation: Federation
    ) -> None:
        """There is no federation without one; it is replaced."""
        federation.add("alice", Role.OPERATOR)
        assert authority.revoke(federation.directory, "alice") == 3
        with pytest.raises(EnrollmentError, match="coord is the coordinator"):
            authority.revoke(federation.directory, "coord")
        with pytest.raises(EnrollmentError, match="as 'alice'; the roster lists coord"):
            authority.revoke(federation.directory, "alice")

    def test_a_coordinators_bundle_leads_from_every_version_to_the_newest(
        self, federation: Federation
    ) -> None:
        """What silos that were away need, one link after the other."""
        federation.add("a", Role.SILO, "A")
        federation.add("b", Role.SILO, "B")
        authority.revoke(federation.directory, "a")
        authority.install(federation.directory / "issued/coord", federation.root / "coord")
        rosters = [
            load_signed(federation.root / f"coord/rosters/roster-{version}.json")
            for version in (1, 2, 3, 4)
        ]
        current = rosters[0].roster
        for signed in rosters[1:]:
            current = accept_newer(current, signed.encode(), federation.trust).roster
        assert current == authority.newest_roster(federation.directory)
        with pytest.raises(CredentialError, match="expected version 2, got 4"):
            accept_newer(rosters[0].roster, rosters[3].encode(), federation.trust)

    def test_a_bundle_of_a_fork_is_not_installed(self, federation: Federation) -> None:
        """The same version with another content, and a next one that does not follow."""
        federation.add("a", Role.SILO, "A")
        copied = federation.root / "copied"
        shutil.copytree(federation.directory, copied)
        federation.issue(federation.request("b", Role.SILO), Role.SILO, "B")
        authority.install(federation.directory / "issued/a", federation.root / "a")
        request = federation.request("c", Role.SILO)
        authority.issue(copied, request, role=Role.SILO, now=NOW, organization="C")
        with pytest.raises(CredentialError, match="another roster version 3 than is installed"):
            authority.install(copied / "issued/a", federation.root / "a")
        authority.revoke(copied, "c")
        with pytest.raises(CredentialError, match="version 4 does not continue version 3"):
            authority.install(copied / "issued/a", federation.root / "a")


class TestCoordinatorKeyRotation:
    """A coordinator with new keys takes the place of the old one."""

    def test_the_next_version_names_the_new_keys(self, federation: Federation) -> None:
        """Silos take it along the chain; the old keys are worth nothing from then on."""
        federation.add("a", Role.SILO, "A")
        old = authority.newest_roster(federation.directory)
        request = federation.request("coord", Role.COORDINATOR, "fresh")
        issued = authority.issue(
            federation.directory, request, role=Role.COORDINATOR, now=NOW, replace_coordinator=True
        )
        roster = authority.install(issued.bundle, federation.root / "fresh")
        assert old is not None
        assert roster.version == old.version + 1
        assert roster.coordinator_key == load_identity(federation.root / "fresh").public
        assert [officer.name for officer in roster.officers] == ["coord"]
        signed = load_signed(issued.bundle / "roster.json")
        assert accept_newer(old, signed.encode(), federation.trust).roster == roster
        with pytest.raises(EnrollmentError, match="keys of coord were revoked"):
            federation.issue(federation.root / "coord/request.json", Role.COORDINATOR)

    def test_only_a_coordinator_with_new_keys_replaces_one(self, federation: Federation) -> None:
        """Neither its own keys again, nor a silo, nor under a silo's name."""
        federation.add("a", Role.SILO, "A")
        for request, role, words in (
            (federation.root / "coord/request.json", Role.COORDINATOR, "that the coordinator has"),
            (federation.root / "a/request.json", Role.SILO, "got a silo"),
            (
                federation.request("A", Role.COORDINATOR, "named"),
                Role.COORDINATOR,
                "another holder's name",
            ),
        ):
            with pytest.raises(EnrollmentError, match=words):
                authority.issue(
                    federation.directory, request, role=role, now=NOW, replace_coordinator=True
                )


def test_all_certificates_are_renewed_at_once(federation: Federation) -> None:
    """From the requests that the authority has kept; the roster stays as it is."""
    empty = federation.root / "empty"
    authority.init(empty, federation="empty", rng=SystemRng(), now=NOW)
    with pytest.raises(EnrollmentError, match="nobody is enrolled yet"):
        authority.renew_all(empty, now=NOW, valid_days=7)
    federation.add("a", Role.SILO, "A")
    federation.add("alice", Role.OPERATOR)
    renewed = authority.renew_all(
        federation.directory, now=NOW + timedelta(days=300), valid_days=90
    )
    assert [one.bundle.name for one in renewed] == ["a", "coord", "alice"]
    assert all(one.is_renewal and one.roster_version == 3 for one in renewed)
    for name, role in (("a", Role.SILO), ("coord", Role.COORDINATOR), ("alice", Role.OPERATOR)):
        authority.install(federation.directory / "issued" / name, federation.root / name)
        now = NOW + timedelta(days=389)
        assert load_credentials(federation.root / name, role=role, now=now).days_left(now) == 1


class TestNewerRoster:
    """What a silo accepts from the coordinator."""

    def test_the_next_version_is_accepted(self, federation: Federation) -> None:
        federation.add("a", Role.SILO, "A")
        signed = load_signed(federation.directory / "roster-2.json")
        first = load_signed(federation.directory / "roster-1.json").roster
        assert accept_newer(first, signed.encode(), federation.trust).roster == signed.roster

    def test_an_older_one_is_not(self, federation: Federation) -> None:
        federation.add("a", Role.SILO, "A")
        second = load_signed(federation.directory / "roster-2.json")
        first = load_signed(federation.directory / "roster-1.json")
        for offered in (first, second):
            with pytest.raises(CredentialError, match="expected version 3, got"):
                accept_newer(second.roster, offered.encode(), federation.trust)

    def test_a_fork_is_not(self, federation: Federation) -> None:
        other = Federation(federation.root / "other")
        root = other.trust
        first = load_signed(federation.directory / "roster-1.json").roster
        other.add("a", Role.SILO, "A")
        fork = load_signed(other.directory / "roster-2.json")
        with pytest.raises(CredentialError, match="does not continue version 1"):
            accept_newer(first, fork.encode(), root)

    def test_one_that_nobody_signed_is_not(self, federation: Federation) -> None:
        federation.add("a", Role.SILO, "A")
        first = load_signed(federation.directory / "roster-1.json").roster
        second = load_signed(federation.directory / "roster-2.json").roster
        unsigned = SignedRoster(roster=second, signatures=())
        with pytest.raises(CredentialError, match="not signed by the roots"):
            accept_newer(first, unsigned.encode(), federation.trust)

    def test_rubbish_is_not(self, federation: Federation) -> None:
        first = load_signed(federation.directory / "roster-1.json").roster
        with pytest.raises(CredentialError, match="malformed"):
            accept_newer(first, b"\x80\x04\x95.", federation.trust)


class TestCredentials:
    """What a start refuses to begin with."""

    def test_a_missing_file_is_named_with_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(CredentialError, match=r"expected a TLS key at .*tls.key.*enroll"):
            load_credentials(tmp_path, role=Role.SILO, now=NOW)

    @pytest.mark.parametrize(
        ("days", "words"),
        [(366, "expired on 2027-11-30 12:00 UTC"), (-1, "is valid from 2026-11-30 11:55 UTC on")],
    )
    def test_dates_are_checked_by_the_given_clock(
        self, federation: Federation, days: int, words: str
    ) -> None:
        with pytest.raises(CredentialError, match=words):
            load_credentials(
                federation.root / "coord", role=Role.COORDINATOR, now=NOW + timedelta(days=days)
            )

    def test_a_key_that_others_may_read_is_refused(self, federation: Federation) -> None:
        for name in ("tls.key", "identity.key"):
            (federation.root / "coord" / name).chmod(0o640)
        with pytest.raises(CredentialError, match="mode 0640; chmod 600"):
            load_credentials(federation.root / "coord", role=Role.COORDINATOR, now=NOW)
        with pytest.raises(CredentialError, match="mode 0640; chmod 600"):
            load_identity(federation.root / "coord")

    def test_files_must_belong_together(self, federation: Federation) -> None:
        coord = federation.root / "coord"
        with pytest.raises(CredentialError, match="expected a certificate for the role silo"):
            load_credentials(coord, role=Role.SILO, now=NOW)
        other = Federation(federation.root / "other")
        (coord / "ca.pem").write_bytes((other.directory / "ca.pem").read_bytes())
        with pytest.raises(CredentialError, match=r"not issued by the authority in ca.pem"):
            load_credentials(coord, role=Role.COORDINATOR, now=NOW)
        (coord / "tls.pem").write_bytes((other.root / "coord" / "tls.pem").read_bytes())
        with pytest.raises(CredentialError, match=r"does not belong to tls.key"):
            load_credentials(coord, role=Role.COORDINATOR, now=NOW)

    def test_a_certificate_without_our_name_is_refused(self, federation: Federation) -> None:
        authority_certificate = x509.load_pem_x509_certificate(
            (federation.directory / "ca.pem").read_bytes()
        )
        assert subject_names(authority_certificate) == ((), ())
        with pytest.raises(CredentialError, match="one name such as secagg://silo/NAME"):
            CertificateIdentity.of(authority_certificate)

    def test_an_identity_key_of_another_length_is_refused(self, federation: Federation) -> None:
        (federation.root / "coord" / "identity.key").write_bytes(b"short")
        with pytest.raises(CredentialError, match="expected 32 bytes, got 5"):
            load_identity(federation.root / "coord")

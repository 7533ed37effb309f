"""The federation's authority: certifies holders and signs the roster, offline.

Two keys, both 0600 and used here only: the certificate authority's, which TLS checks, and the
roster root's, which every silo checks. A new silo is a new version of the roster, chained to the
one before by its digest. Issuing the same request again renews the certificate and changes
nothing else; another key under a known name is refused, because it would be a second silo. Who is
revoked leaves the next version; neither its seat's number nor its keys are ever used again.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from secagg.errors import ParameterError
from secagg.ids import FederationId, SiloId
from secagg.keys import IdentityKey
from secagg.rng import Rng
from secagg.roster import Officer, OfficerRole, Roster, Seat, SignedRoster
from services.enrollment.request import EnrollmentRequest, host_name
from services.enrollment.roster_file import (
    HISTORY,
    ROSTER,
    TRUST,
    Document,
    Hex32,
    Trust,
    check_follows,
    load_document,
    load_roster,
    load_signed,
    load_trust,
    save_document,
    save_signed,
    save_trust,
    version_file,
)
from services.errors import CredentialError, EnrollmentError, missing_file
from services.files import make_private_dir, read_secret, write_atomic, write_secret
from services.security.credentials import AUTHORITY, CERTIFICATE, TLS_KEY
from services.security.identity import Role, certificate_key, identity_uri

_CA_KEY: Final = "ca.key"
_ROOT_KEY: Final = "roster-root.key"
_ISSUED: Final = "issued"
_REQUESTS: Final = "requests"
_REVOKED: Final = "revoked.json"
_AUTHORITY_DAYS: Final = 3650
VALID_DAYS: Final = 365
# A holder's clock may be a little behind the authority's.
_SKEW: Final = timedelta(minutes=5)


class _Revoked(Document):
    seats: tuple[int, ...] = ()
    keys: tuple[Hex32, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """What `issue` made.

    Attributes:
        bundle: a folder of public files to send to the holder, who installs it.
        roster_version: the version of the roster that lists the holder.
        is_renewal: whether the holder was listed before, with these very keys.
    """

    bundle: Path
    roster_version: int
    is_renewal: bool


def init(directory: Path, *, federation: str, rng: Rng, now: datetime) -> Trust:
    """Make a new authority in an empty folder.

    Args:
        directory: made if it is not there, 0700; keep it offline.
        federation: the federation's name.
        rng: draws the roster root's key.
        now: the time from which the authority's certificate is valid; it lasts ten years.

    Raises:
        EnrollmentError: the name is refused or the folder holds an authority already.
    """
    try:
        name = FederationId(federation)
    except ParameterError as error:
        raise EnrollmentError(str(error)) from error
    if (directory / TRUST).exists() or (directory / _CA_KEY).exists():
        raise EnrollmentError(
            f"{directory} holds an authority already",
            hint="use it, or choose another folder; its certificates would all become worthless",
        )
    make_private_dir(directory)
    key = Ed25519PrivateKey.generate()
    root = IdentityKey.from_bytes(secret := rng.bytes(32))
    write_secret(
        directory / _CA_KEY,
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
    write_secret(directory / _ROOT_KEY, secret)
    certificate = _authority_certificate(key, f"{federation} authority", now)
    write_atomic(directory / AUTHORITY, certificate.public_bytes(Encoding.PEM))
    trust = Trust(federation=name, roots=frozenset({root.public}))
    # The last file: an authority without it was never finished.
    save_trust(directory / TRUST, trust)
    return trust


def issue(
    directory: Path,
    request_file: Path,
    *,
    role: Role,
    now: datetime,
    organization: str = "",
    valid_days: int = VALID_DAYS,
    replace_coordinator: bool = False,
    spread_roster: bool = True,
) -> Issued:
    """Certify a holder and list it in the roster.

    The coordinator comes first, since the roster names its key.

    Args:
        directory: the authority's.
        request_file: what `enroll` made.
        role: what the authority's owner means to grant; must be what the request asks for.
        now: the time from which the certificate is valid.
        organization: the legal entity behind a silo; policies count distinct ones.
        valid_days: how long the certificate lasts.
        replace_coordinator: whether a coordinator with new keys takes the place of the old one,
            whose keys are revoked.
        spread_roster: whether every bundle gets the newest roster at once; of many requests, leave
            it to one `spread` after the last.

    Raises:
        CredentialError: the authority's own files or the request cannot be read.
        EnrollmentError: the request is refused; says why and what to do.
    """
    trust = load_trust(directory / TRUST)
    request = EnrollmentRequest.load(request_file)
    if request.role is not role:
        raise EnrollmentError(
            f"{request_file} asks for the role {request.role.value}, and {role.value} was to be "
            "granted"
        )
    revoked = _load_revoked(directory)
    if {request.identity_key.hex(), _key_hash(request).hex()} & set(revoked.keys):
        raise EnrollmentError(
            f"the keys of {request.name} were revoked",
            hint="make new ones, with `enroll` in an empty folder",
        )
    roster = newest_roster(directory)
    old = _coordinator_of(roster) if replace_coordinator else None
    if roster is not None and old is not None:
        listed = _with_new_coordinator(roster, old, request)
    else:
        listed = _list_holder(roster, trust, request, organization, revoked.seats)
    certificate = _holder_certificate(directory, request, now, valid_days)
    if roster is not None and old is not None:
        _add_revoked(directory, keys=(roster.coordinator_key, old.certificate_key))
        _forget(directory, old.name)
    bundle = make_private_dir(make_private_dir(directory / _ISSUED) / request.name)
    write_atomic(
        make_private_dir(directory / _REQUESTS) / f"{request.name}.json", request_file.read_bytes()
    )
    write_atomic(bundle / CERTIFICATE, certificate.public_bytes(Encoding.PEM))
    write_atomic(bundle / AUTHORITY, (directory / AUTHORITY).read_bytes())
    save_trust(bundle / TRUST, trust)
    if listed is not roster:
        _sign(directory, listed)
    if spread_roster:
        spread(directory)
    return Issued(bundle=bundle, roster_version=listed.version, is_renewal=listed is roster)


def renew_all(directory: Path, *, now: datetime, valid_days: int) -> tuple[Issued, ...]:
    """Issue every listed holder's request again: new certificates, the same roster.

    Raises:
        CredentialError: a request that was issued before is no longer there.
        EnrollmentError: as from `issue`.
    """
    roster = newest_roster(directory)
    if roster is None:
        raise EnrollmentError("nobody is enrolled yet", hint="issue the coordinator's request")
    holders = [(seat.silo.name, Role.SILO) for seat in roster.seats]
    holders += [(officer.name, Role(officer.role.value)) for officer in roster.officers]
    return tuple(
        issue(
            directory,
            directory / _REQUESTS / f"{name}.json",
            role=role,
            now=now,
            valid_days=valid_days,
        )
        for name, role in holders
    )


def revoke(directory: Path, name: str) -> int:
    """Take a silo or an operator out of the roster; returns the version without it.

    It counts from the moment when the coordinator has that version, also on connections that are
    open. The others' certificates stay as they are.

    Raises:
        CredentialError: the authority's own files cannot be read.
        EnrollmentError: nobody has this name, or the coordinator has.
    """
    roster = newest_roster(directory)
    entries: tuple[Seat | Officer, ...] = (*roster.seats, *roster.officers) if roster else ()
    entry = next((one for one in entries if _entry_name(one) == name), None)
    if roster is None or entry is None:
        known = ", ".join(map(_entry_name, entries)) or "nobody"
        raise EnrollmentError(f"nobody is enrolled as {name!r}; the roster lists {known}")
    if isinstance(entry, Officer) and entry.role is OfficerRole.COORDINATOR:
        raise EnrollmentError(
            f"{name} is the coordinator, without which there is no federation",
            hint="give it new keys: `authority issue --coordinator --replace` with a new request",
        )
    following = replace(
        roster,
        version=roster.version + 1,
        previous=roster.digest(),
        seats=tuple(seat for seat in roster.seats if seat is not entry),
        officers=tuple(officer for officer in roster.officers if officer is not entry),
    )
    if isinstance(entry, Seat):
        _add_revoked(
            directory, seats=(entry.index,), keys=(entry.identity_key, entry.certificate_key)
        )
    else:
        _add_revoked(directory, keys=(entry.certificate_key,))
    _forget(directory, name)
    _sign(directory, following)
    spread(directory)
    return following.version


def spread(directory: Path) -> None:
    """Let every bundle carry all versions of the roster; what an old key signed stays known.

    Bundles issued earlier may not be installed yet.
    """
    versions = set(_versions(directory))
    signed = load_signed(version_file(directory, max(versions)))
    for folder in (directory / _ISSUED).iterdir():
        save_signed(folder / ROSTER, signed)
        history = make_private_dir(folder / HISTORY)
        for version in versions - set(_versions(history)):
            path = version_file(directory, version)
            write_atomic(history / path.name, path.read_bytes())


def newest_roster(directory: Path) -> Roster | None:
    """Return the authority's newest roster, checked; None before the first `issue`."""
    versions = sorted(_versions(directory))
    if not versions:
        return None
    return load_roster(version_file(directory, versions[-1]), load_trust(directory / TRUST))


def install(bundle: Path, directory: Path) -> Roster:
    """Copy an issued bundle beside the holder's keys.

    Raises:
        CredentialError: the bundle is for another key, is incomplete, would change whom this
            holder trusts, or would bring back an older roster.
    """
    trust = load_trust(bundle / TRUST)
    roster = load_roster(bundle / ROSTER, trust)
    pem = _read(bundle / CERTIFICATE, "a certificate")
    authority = _read(bundle / AUTHORITY, "the authority's certificate")
    key = load_pem_private_key(read_secret(directory / TLS_KEY, "the TLS key"), password=None)
    if x509.load_pem_x509_certificate(pem).public_key() != key.public_key():
        raise CredentialError(
            f"{bundle} was issued for another key than {directory / TLS_KEY}",
            hint="ask the authority to issue this folder's request",
        )
    if (directory / TRUST).exists():
        if load_trust(directory / TRUST) != trust:
            raise CredentialError(
                f"{bundle} belongs to another federation or other roots than {directory / TRUST}",
                hint="remove the trust file only if you mean to leave the old federation",
            )
        _check_newer(bundle, roster, directory / ROSTER)
    write_atomic(directory / CERTIFICATE, pem)
    write_atomic(directory / AUTHORITY, authority)
    for path in sorted((bundle / HISTORY).glob("roster-*.json")):
        write_atomic(make_private_dir(directory / HISTORY) / path.name, path.read_bytes())
    # After what leads to it: a coordinator that runs takes it from here.
    save_signed(directory / ROSTER, load_signed(bundle / ROSTER))
    save_trust(directory / TRUST, trust)
    return roster


def _check_newer(bundle: Path, roster: Roster, installed: Path) -> None:
    """Refuse a bundle's roster that is older than the installed one, or of another chain."""
    if not installed.exists():
        return
    known = load_signed(installed).roster
    if roster.version < known.version:
        raise CredentialError(
            f"{bundle} holds roster version {roster.version}, and version {known.version} is "
            "installed",
            hint="ask the authority for a new bundle",
        )
    if roster.version == known.version + 1:
        check_follows(known, roster, str(bundle))
    if roster.version == known.version and roster.digest() != known.digest():
        raise CredentialError(
            f"{bundle} holds another roster version {roster.version} than is installed",
            hint="ask the authority which of the two it signed for this federation",
        )


def _sign(directory: Path, roster: Roster) -> None:
    """Sign a version of the roster and keep it for good."""
    root = IdentityKey.from_bytes(read_secret(directory / _ROOT_KEY, "the roster root's key"))
    signature = (root.public, root.sign(roster.signed_bytes()))
    signed = SignedRoster(roster=roster, signatures=(signature,))
    save_signed(version_file(directory, roster.version), signed)


def _load_revoked(directory: Path) -> _Revoked:
    path = directory / _REVOKED
    if not path.exists():
        return _Revoked()
    return load_document(path, "a list of revoked keys", _Revoked, "restore the authority's backup")


def _add_revoked(
    directory: Path, *, seats: tuple[int, ...] = (), keys: tuple[bytes, ...] = ()
) -> None:
    known = _load_revoked(directory)
    document = _Revoked(
        seats=tuple(sorted({*known.seats, *seats})),
        keys=tuple(sorted({*known.keys, *(key.hex() for key in keys)})),
    )
    save_document(directory / _REVOKED, document)


def _forget(directory: Path, name: str) -> None:
    """Remove the bundle and the request of a holder that is no longer listed."""
    shutil.rmtree(directory / _ISSUED / name, ignore_errors=True)
    (directory / _REQUESTS / f"{name}.json").unlink(missing_ok=True)


def _coordinator_of(roster: Roster | None) -> Officer | None:
    officers = roster.officers if roster is not None else ()
    return next((one for one in officers if one.role is OfficerRole.COORDINATOR), None)


def _with_new_coordinator(roster: Roster, old: Officer, request: EnrollmentRequest) -> Roster:
    """Return the version in which a coordinator with new keys stands in the old one's place."""
    if request.role is not Role.COORDINATOR:
        raise EnrollmentError(f"only a coordinator replaces one, got a {request.role.value}")
    if {request.identity_key, _key_hash(request)} & {roster.coordinator_key, old.certificate_key}:
        raise EnrollmentError(
            "the request holds keys that the coordinator has now",
            hint="make new ones, with `secagg coordinator enroll` in an empty folder",
        )
    others = tuple(one for one in roster.officers if one is not old)
    entries: tuple[Seat | Officer, ...] = (*roster.seats, *others)
    names = {_entry_name(entry).casefold() for entry in entries}
    if request.name.casefold() in names:
        raise EnrollmentError(f"{request.name} is another holder's name already")
    return replace(
        roster,
        version=roster.version + 1,
        previous=roster.digest(),
        coordinator_key=request.identity_key,
        officers=(_officer(request), *others),
    )


def _list_holder(
    roster: Roster | None,
    trust: Trust,
    request: EnrollmentRequest,
    organization: str,
    former: tuple[int, ...],
) -> Roster:
    """Return the roster that lists the holder: the same object if it does already."""
    if roster is None and request.role is not Role.COORDINATOR:
        raise EnrollmentError(
            f"the roster needs the coordinator's key before it can list {request.name}",
            hint="issue the coordinator's request first",
        )
    if roster is None:
        return Roster(
            federation=trust.federation,
            version=1,
            previous=bytes(32),
            coordinator_key=request.identity_key,
            seats=(),
            officers=(_officer(request),),
        )
    entries: tuple[Seat | Officer, ...] = (*roster.seats, *roster.officers)
    for entry in entries:
        if _entry_name(entry).casefold() == request.name.casefold():
            _require_same_holder(entry, roster, request, organization)
            return roster
    if request.role is Role.COORDINATOR:
        raise EnrollmentError(
            "the federation has a coordinator already",
            hint="one federation has one coordinator: `--replace` puts this one in its place",
        )
    try:
        organization.encode()
    except UnicodeEncodeError as error:
        raise EnrollmentError(
            "the organization's name is no text in this terminal's encoding",
            hint="set LC_ALL=C.UTF-8",
        ) from error
    if (request.role is Role.SILO) != bool(organization.strip()):
        raise EnrollmentError(
            f"expected an organization exactly for a silo, got {organization!r} for a "
            f"{request.role.value}"
        )
    next_version = replace(roster, version=roster.version + 1, previous=roster.digest())
    try:
        if request.role is Role.OPERATOR:
            return replace(next_version, officers=(*roster.officers, _officer(request)))
        seat = Seat(
            index=1 + max((*roster.indices, *former), default=0),
            silo=SiloId(request.name),
            organization=organization.strip(),
            identity_key=request.identity_key,
            certificate_key=_key_hash(request),
        )
        return replace(next_version, seats=(*roster.seats, seat))
    except ParameterError as error:
        raise EnrollmentError(
            f"{request.name} cannot be listed: {error}",
            hint="each holder makes its own keys, with `enroll` in a folder of its own",
        ) from error


def _require_same_holder(
    entry: Seat | Officer, roster: Roster, request: EnrollmentRequest, organization: str
) -> None:
    """Refuse a second holder of a name."""
    if isinstance(entry, Seat):
        role, identity_key = Role.SILO, entry.identity_key
    else:
        role = Role(entry.role.value)
        # Operators sign nothing in the protocol: the roster lists no identity key for them.
        is_coordinator = role is Role.COORDINATOR
        identity_key = roster.coordinator_key if is_coordinator else request.identity_key
    same = (_entry_name(entry), role, identity_key, entry.certificate_key) == (
        request.name,
        request.role,
        request.identity_key,
        _key_hash(request),
    )
    if not same:
        raise EnrollmentError(
            f"{_entry_name(entry)} is the name of another {role.value} already, with other keys",
            hint="choose another name, also if the old keys were lost",
        )
    if isinstance(entry, Seat) and organization.strip() not in {"", entry.organization}:
        raise EnrollmentError(
            f"{request.name} is listed for the organization {entry.organization!r}, "
            f"got {organization!r}"
        )


def _officer(request: EnrollmentRequest) -> Officer:
    return Officer(
        name=request.name,
        role=OfficerRole(request.role.value),
        certificate_key=_key_hash(request),
    )


def _entry_name(entry: Seat | Officer) -> str:
    return entry.silo.name if isinstance(entry, Seat) else entry.name


def _key_hash(request: EnrollmentRequest) -> bytes:
    return certificate_key(request.public_key)


def _versions(directory: Path) -> Iterator[int]:
    for path in directory.glob("roster-*.json"):
        number = path.stem.removeprefix("roster-")
        if number.isdecimal():
            yield int(number)


def _read(path: Path, kind: str) -> bytes:
    if not path.is_file():
        raise missing_file(kind, path, "ask the authority for a complete bundle")
    return path.read_bytes()


def _authority_certificate(key: Ed25519PrivateKey, name: str, now: datetime) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=_AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, None)
    )


def _holder_certificate(
    directory: Path, request: EnrollmentRequest, now: datetime, valid_days: int
) -> x509.Certificate:
    key = load_pem_private_key(
        read_secret(directory / _CA_KEY, "the authority's key"), password=None
    )
    if not isinstance(key, Ed25519PrivateKey):
        raise CredentialError(f"{directory / _CA_KEY}: expected an Ed25519 key")
    authority = x509.load_pem_x509_certificate((directory / AUTHORITY).read_bytes())
    end = now + timedelta(days=valid_days)
    if valid_days < 1 or end > authority.not_valid_after_utc:
        raise EnrollmentError(
            f"expected a certificate of 1 day at least that ends before the authority's own on "
            f"{authority.not_valid_after_utc:%Y-%m-%d}, got {valid_days} days"
        )
    # A silo's certificate cannot pose as a coordinator: it has no host and serves clients only.
    usage = (
        ExtendedKeyUsageOID.SERVER_AUTH
        if request.role is Role.COORDINATOR
        else ExtendedKeyUsageOID.CLIENT_AUTH
    )
    names = [
        x509.UniformResourceIdentifier(identity_uri(request.role, request.name)),
        *map(host_name, request.hosts),
    ]
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, request.name)]))
        .issuer_name(authority.subject)
        .public_key(request.public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(request.public_key), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
        .sign(key, None)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )

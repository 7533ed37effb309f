"""A certificate that ends later, with the same key: handed out by the coordinator, checked here.

The authority is offline, so renewal is two steps: its owner issues the same request again, and the
coordinator's operator puts the answer into the coordinator's `issued` folder. Silos ask for theirs
in time and take it without a restart. Whom a silo trusts never changes this way: the new one must
be of the authority and of the key that it has.
"""

from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from services.errors import CredentialError
from services.files import write_atomic
from services.security.credentials import CERTIFICATE, Credentials, load_credentials
from services.security.identity import CertificateIdentity

MAX_BYTES: Final = 64 * 1024


def renewed_certificate(
    issued: Path, name: str, certificate_key: bytes, not_after: datetime
) -> bytes:
    """Return a holder's certificate in PEM if one ends after `not_after`; empty otherwise.

    Args:
        issued: the folder of bundles, one a holder.
        name: the holder's, as its certificate says: checked to be no path.
        certificate_key: of the roster; another key's certificate is nobody's renewal.
        not_after: when the one in use ends.
    """
    try:
        pem = (issued / name / CERTIFICATE).read_bytes()
        identity = CertificateIdentity.of(x509.load_pem_x509_certificate(pem))
    except (OSError, ValueError, CredentialError):
        return b""
    is_its_own = identity.certificate_key == certificate_key
    return pem if is_its_own and identity.not_after > not_after else b""


def take_renewal(credentials: Credentials, pem: bytes, *, now: datetime) -> Credentials:
    """Put a renewed certificate in the place of the one in use.

    Args:
        credentials: those in use.
        pem: what the coordinator handed out.
        now: this machine's time.

    Raises:
        CredentialError: no certificate, of another holder, key or authority, or it ends no later.
    """
    where = "the renewed certificate"
    if len(pem) > MAX_BYTES:
        raise CredentialError(f"{where}: expected at most {MAX_BYTES} bytes, got {len(pem)}")
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        authority = x509.load_pem_x509_certificate(credentials.authority_file.read_bytes())
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise CredentialError(
            f"{where} was not issued by the authority that this holder trusts"
        ) from error
    identity, known = CertificateIdentity.of(certificate), credentials.identity
    if (identity.uri, identity.certificate_key) != (known.uri, known.certificate_key):
        raise CredentialError(f"{where} is for {identity.uri} or for another key")
    if not certificate.not_valid_before_utc <= now < identity.not_after:
        raise CredentialError(f"{where} is not valid now")
    if identity.not_after <= credentials.not_after:
        raise CredentialError(f"{where} ends no later than the one in use")
    write_atomic(credentials.certificate_file, pem)
    return load_credentials(credentials.directory, role=known.role, now=now)

"""A holder's keys, made where they will be used, and the request that asks for a certificate.

The request holds public keys only. It proves possession of both private keys: the TLS key signs
the certificate request, the identity key signs everything together, so that nobody can enroll
another's identity key under a name of his own.
"""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from secagg import canonical
from secagg.errors import BadSignatureError, ParameterError
from secagg.ids import SiloId
from secagg.keys import IdentityKey, verify
from secagg.rng import Rng
from services.enrollment.roster_file import Document, Hex32, Hex64, load_document, save_document
from services.errors import EnrollmentError
from services.files import make_private_dir, read_secret, write_secret
from services.security.credentials import IDENTITY_KEY, TLS_KEY, load_identity
from services.security.identity import Role

REQUEST: Final = "request.json"
_ENROLL: Final = "make one with `enroll` of `secagg silo`, `coordinator` or `run`"


class _RequestDocument(Document):
    format: Literal["secagg-request-1"] = "secagg-request-1"
    name: str
    role: Role
    hosts: tuple[str, ...]
    identity_key: Hex32
    certificate_request: str
    signature: Hex64


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrollmentRequest:
    """A checked request.

    Attributes:
        name: of the silo, coordinator or operator.
        hosts: DNS names and addresses under which a coordinator is reached; empty for others.
        identity_key: Ed25519 public key, 32 bytes.
        public_key: TLS public key, ECDSA P-256.
    """

    name: str
    role: Role
    hosts: tuple[str, ...]
    identity_key: bytes
    public_key: ec.EllipticCurvePublicKey

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a request file and check both proofs of possession.

        Raises:
            CredentialError: it is missing or has another form.
            EnrollmentError: a name, key or signature in it cannot be accepted.
        """
        document = load_document(path, "an enrollment request", _RequestDocument, _ENROLL)
        try:
            request = x509.load_pem_x509_csr(document.certificate_request.encode())
            identity_key = bytes.fromhex(document.identity_key)
            verify(
                identity_key, bytes.fromhex(document.signature), _signed_bytes(document, request)
            )
            name = SiloId(document.name).name
        except (ValueError, ParameterError, BadSignatureError) as error:
            raise EnrollmentError(f"{path}: {error}", hint=_ENROLL) from error
        public_key = request.public_key()
        if not request.is_signature_valid:
            raise EnrollmentError(
                f"{path}: the certificate request is not signed by its own key", hint=_ENROLL
            )
        if not isinstance(public_key, ec.EllipticCurvePublicKey) or not isinstance(
            public_key.curve, ec.SECP256R1
        ):
            raise EnrollmentError(f"{path}: expected an ECDSA P-256 TLS key", hint=_ENROLL)
        _check_hosts(document.role, document.hosts)
        return cls(
            name=name,
            role=document.role,
            hosts=document.hosts,
            identity_key=identity_key,
            public_key=public_key,
        )


def enroll(
    directory: Path, *, name: str, role: Role, rng: Rng, hosts: tuple[str, ...] = ()
) -> Path:
    """Make a holder's keys and its request; doing it again keeps the keys.

    Args:
        directory: made if it is not there, 0700.
        name: 1 to 63 letters, digits, dots, underscores or hyphens.
        role: what the holder will be.
        rng: draws the identity key.
        hosts: for a coordinator: every DNS name and address by which silos will dial it.

    Returns:
        The request's path: what the authority needs, public keys only.

    Raises:
        EnrollmentError: the name or a host is refused, or the folder belongs to another holder.
    """
    try:
        SiloId(name)
    except ParameterError as error:
        raise EnrollmentError(str(error)) from error
    _check_hosts(role, hosts)
    path = make_private_dir(directory) / REQUEST
    if path.exists():
        known = EnrollmentRequest.load(path)
        if (known.name, known.role) != (name, role):
            raise EnrollmentError(
                f"{directory} belongs to the {known.role.value} {known.name}, and a {role.value} "
                f"{name} was asked for",
                hint="use an empty folder for each holder",
            )
    identity = _identity_key(directory, rng)
    tls_key = _tls_key(directory)
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .sign(tls_key, hashes.SHA256())
    )
    unsigned = _RequestDocument(
        name=name,
        role=role,
        hosts=hosts,
        identity_key=identity.public.hex(),
        certificate_request=request.public_bytes(Encoding.PEM).decode(),
        signature=bytes(64).hex(),
    )
    signature = identity.sign(_signed_bytes(unsigned, request)).hex()
    save_document(path, unsigned.model_copy(update={"signature": signature}))
    return path


def _identity_key(directory: Path, rng: Rng) -> IdentityKey:
    path = directory / IDENTITY_KEY
    if not path.exists():
        write_secret(path, rng.bytes(32))
    return load_identity(directory)


def _tls_key(directory: Path) -> ec.EllipticCurvePrivateKey:
    path = directory / TLS_KEY
    if not path.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_secret(path, pem)
    loaded = load_pem_private_key(read_secret(path, "the TLS key"), password=None)
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise EnrollmentError(f"{path}: expected an ECDSA P-256 key")
    return loaded


def _signed_bytes(document: _RequestDocument, request: x509.CertificateSigningRequest) -> bytes:
    return canonical.encode(
        "enrollment-request",
        canonical.text(document.name),
        canonical.text(document.role.value),
        canonical.encode_list([canonical.text(host) for host in document.hosts]),
        bytes.fromhex(document.identity_key),
        request.public_bytes(Encoding.DER),
    )


def _check_hosts(role: Role, hosts: tuple[str, ...]) -> None:
    if (role is Role.COORDINATOR) != bool(hosts):
        raise EnrollmentError(
            "expected host names and addresses exactly for a coordinator, "
            f"got {list(hosts)} for a {role.value}",
            hint="list every name by which silos will dial the coordinator",
        )
    for host in hosts:
        host_name(host)


def host_name(host: str) -> x509.GeneralName:
    """Return a host as it stands in a certificate.

    Raises:
        EnrollmentError: it is neither an IP address nor an ASCII DNS name.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    if len(host) > 253 or not all(
        label.isascii() and label.replace("-", "").isalnum() for label in labels
    ):
        raise EnrollmentError(f"expected a DNS name or an IP address, got {host!r}")
    return x509.DNSName(host)

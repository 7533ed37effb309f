"""The three uses of keys: identities sign, agreement keys agree, HKDF derives.

No key has two uses (SA1 spec 3.1): the identity key never agrees, the key that seals boxes never
makes masks, and none of them is the key of the transport.
"""

from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secagg.errors import BadKeyError, BadSignatureError, ParameterError
from secagg.rng import Rng
from secagg.secretbytes import Secret, reveal

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_X25519_PRIME: Final = 2**255 - 19


class IdentityKey:
    """A long-term Ed25519 key; its public half, 32 bytes, stands in the roster."""

    __slots__ = ("_private", "public")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public: bytes = private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, rng: Rng) -> Self:
        """Draw a new key."""
        return cls.from_bytes(rng.bytes(KEY_BYTES))

    @classmethod
    def from_bytes(cls, private: Secret | bytes) -> Self:
        """Read the 32-byte private key of RFC 8032."""
        return cls(Ed25519PrivateKey.from_private_bytes(_private_bytes(private)))

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte signature over `data`, which must be `canonical.encode`'s."""
        return self._private.sign(data)


def verify(public: bytes, signature: bytes, data: bytes) -> None:
    """Check an Ed25519 signature.

    Raises:
        BadSignatureError: it does not verify, or the key is none.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError) as error:
        raise BadSignatureError(
            "expected a signature of the key that the roster names, got another"
        ) from error


class AgreementKey:
    """An X25519 key of one attempt and its 32 public bytes."""

    __slots__ = ("_private", "public")

    def __init__(self, private: X25519PrivateKey) -> None:
        self._private = private
        self.public: bytes = private.public_key().public_bytes_raw()

    @classmethod
    def from_secret(cls, private: Secret | bytes) -> Self:
        """Read the 32-byte scalar of RFC 7748."""
        return cls(X25519PrivateKey.from_private_bytes(_private_bytes(private)))

    def exchange(self, peer_public: bytes) -> Secret:
        """Return the 32 bytes shared with the owner of `peer_public`.

        Raises:
            BadKeyError: another length, or a point of low order, which would make the result a
                value that everybody knows.
        """
        try:
            return Secret(self._private.exchange(X25519PublicKey.from_public_bytes(peer_public)))
        except ValueError as error:
            raise BadKeyError(
                "expected an X25519 public key of 32 bytes and high order, got another value"
            ) from error


_PROBE: Final = AgreementKey(X25519PrivateKey.from_private_bytes(b"\x01" * KEY_BYTES))


def check_encoding(public: bytes, *, silo: int | None = None) -> None:
    """Raise BadKeyError unless these bytes are the one encoding of an X25519 public key.

    RFC 7748 (section 5) has `exchange` ignore the top bit and reduce modulo the prime, so that one
    key has several encodings. Check A3 wants every key to be another one, and compares bytes.
    """
    if len(public) != KEY_BYTES or int.from_bytes(public, "little") >= _X25519_PRIME:
        raise BadKeyError(
            "expected the canonical encoding of an X25519 public key, 32 bytes below the prime",
            silo=silo,
        )


def check_agreement_key(public: bytes) -> None:
    """Raise BadKeyError unless this is canonical and `exchange` accepts it, whoever asks."""
    check_encoding(public)
    _PROBE.exchange(public)


def mask_key_from_seed(seed: Secret | bytes) -> AgreementKey:
    """Return the key of the pairwise masks that a_u stands for.

    Whoever rebuilds a_u can compare the result's public half with the advertised one.
    """
    return AgreementKey.from_secret(hkdf(seed, salt=b"", info=b"SA1/mask-sk", length=KEY_BYTES))


def hkdf(secret: Secret | bytes, *, salt: bytes, info: bytes, length: int) -> bytes:
    """Return HKDF-SHA256 of RFC 5869; an empty salt stands for 32 zero bytes, as there."""
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(reveal(secret))


def _private_bytes(private: Secret | bytes) -> bytes:
    content = reveal(private)
    if len(content) != KEY_BYTES:
        raise ParameterError(f"expected a private key of {KEY_BYTES} bytes, got {len(content)}")
    return content

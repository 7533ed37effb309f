"""ML-KEM-768 beside X25519, for data that must outlive today's key agreement (suite 4).

Whoever records a round today and breaks X25519 later would open every box and every mask. In the
hybrid suite each of them depends on an ML-KEM secret too. A silo has two such keys an attempt:
one that boxes are encapsulated to, and one for pairwise masks that follows from a_u, so that who
rebuilds a dropout's a_u also rebuilds that key. In a pair u < v it is u that encapsulates; if u
drops out, its own result comes back from an escrow that a_u opens.

Source: SA1 spec 2.2 (8); FIPS 203.
"""

from dataclasses import dataclass
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import (
    MLKEM768PrivateKey,
    MLKEM768PublicKey,
)
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.canonical import digest, encode, u32
from secagg.errors import BadKeyError, BadShareError
from secagg.keys import hkdf
from secagg.secretbytes import Secret, reveal

PUBLIC_BYTES: Final = 1184
CIPHERTEXT_BYTES: Final = 1088
SEED_BYTES: Final = 64
ESCROW_BYTES: Final = 32 + 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Encapsulated:
    """A secret of 32 bytes and the ciphertext that carries it."""

    secret: Secret
    ciphertext: bytes


class KemKey:
    """An ML-KEM-768 key of one attempt."""

    __slots__ = ("_private", "public")

    def __init__(self, private: MLKEM768PrivateKey) -> None:
        """Hold the private key and compute the 1184 public bytes once."""
        self._private = private
        self.public: bytes = private.public_key().public_bytes_raw()

    @classmethod
    def from_seed(cls, seed: Secret | bytes) -> Self:
        """Read the 64-byte seed of FIPS 203."""
        return cls(MLKEM768PrivateKey.from_seed_bytes(reveal(seed)))

    @classmethod
    def for_masks(cls, secret_a: Secret | bytes) -> Self:
        """The key of the pairwise masks that a_u stands for."""
        seed = hkdf(secret_a, salt=b"", info=b"SA1/kem-mask", length=SEED_BYTES)
        return cls.from_seed(seed)

    def decapsulate(self, ciphertext: bytes) -> Encapsulated:
        """Read a ciphertext; a foreign one gives another secret, not an error (FIPS 203).

        Raises:
            BadKeyError: another length.
        """
        try:
            secret = self._private.decapsulate(ciphertext)
        except ValueError as error:
            raise BadKeyError("expected an ML-KEM-768 ciphertext of 1088 bytes") from error
        return Encapsulated(secret=Secret(secret), ciphertext=ciphertext)


def read_public_key(public: bytes) -> MLKEM768PublicKey:
    """Read an ML-KEM-768 public key.

    Raises:
        BadKeyError: another length, or a coefficient beyond the modulus (FIPS 203, 7.2).
    """
    try:
        return MLKEM768PublicKey.from_public_bytes(public)
    except ValueError as error:
        raise BadKeyError("expected an ML-KEM-768 public key of 1184 bytes") from error


def encapsulate(public: bytes) -> Encapsulated:
    """Make a secret for the owner of `public`; its randomness is the library's own.

    Raises:
        BadKeyError: not an ML-KEM-768 public key.
    """
    secret, ciphertext = read_public_key(public).encapsulate()
    return Encapsulated(secret=Secret(secret), ciphertext=ciphertext)


def commit_pair(setup: bytes, low: int, high: int, secret: Secret) -> bytes:
    """com_ss: the lower seat's commitment to what it encapsulated to the higher one."""
    return digest("com-ss", setup, u32(low), u32(high), secret.reveal())


def _escrow(secret_a: Secret | bytes, setup: bytes, low: int, high: int) -> tuple[AESGCM, bytes]:
    key = hkdf(secret_a, salt=setup, info=encode("escrow", u32(low), u32(high)), length=32)
    return AESGCM(key), encode("escrow-aad", setup, u32(low), u32(high))


def seal_escrow(
    secret_a: Secret | bytes, setup: bytes, low: int, high: int, secret: Secret
) -> bytes:
    """Seal a pair's secret under a_u of the lower seat.

    The key serves this one message, so the nonce may be constant.
    """
    cipher, data = _escrow(secret_a, setup, low, high)
    return cipher.encrypt(bytes(12), secret.reveal(), data)


def open_escrow(
    secret_a: Secret | bytes, setup: bytes, low: int, high: int, escrow: bytes
) -> Secret:
    """Open an escrow with a rebuilt a_u.

    Raises:
        BadShareError: it does not open: the dealer sealed something else.
    """
    cipher, data = _escrow(secret_a, setup, low, high)
    try:
        return Secret(cipher.decrypt(bytes(12), escrow, data))
    except InvalidTag as error:
        raise BadShareError("a pair's escrow does not open", silo=low) from error

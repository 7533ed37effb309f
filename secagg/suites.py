"""The cipher suites: which primitives a round uses, by one number that is inside every hash.

1 is the default. 2 trades 256- for 128-bit masks. 3 is for processors without AES instructions.
4 adds ML-KEM-768 to X25519, for data that must stay secret from a later quantum computer. There
is no negotiation: the coordinator names a suite in ctx, and a silo's policy allows it or not.
"""

from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from secagg.errors import ParameterError
from secagg.prg import AES_128_CTR, AES_256_CTR, CHACHA20, Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One set of primitives; X25519, Ed25519, HKDF-SHA256 and SHA-256 are in all of them.

    Attributes:
        number: as in ctx.
        generator: expands mask and tag seeds.
        aead: seals shares; a 32-byte key and a 12-byte nonce.
        is_hybrid: whether every X25519 result is joined with an ML-KEM-768 one.
    """

    number: int
    generator: Generator
    aead: type[AESGCM] | type[ChaCha20Poly1305]
    is_hybrid: bool


DEFAULT: Final = Suite(number=1, generator=AES_256_CTR, aead=AESGCM, is_hybrid=False)
SUITES: Final = {
    suite.number: suite
    for suite in (
        DEFAULT,
        Suite(number=2, generator=AES_128_CTR, aead=AESGCM, is_hybrid=False),
        Suite(number=3, generator=CHACHA20, aead=ChaCha20Poly1305, is_hybrid=False),
        Suite(number=4, generator=AES_256_CTR, aead=AESGCM, is_hybrid=True),
    )
}


def suite_of(number: int) -> Suite:
    """The suite of this number; ParameterError if there is none."""
    if number not in SUITES:
        raise ParameterError(f"expected a suite of {sorted(SUITES)}, got {number}")
    return SUITES[number]

"""What the machine and the cryptographic library can do: the yardstick beside every figure."""

import hashlib
from collections.abc import Callable
from functools import partial
from time import thread_time
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from secagg.keys import AgreementKey, IdentityKey, hkdf, verify
from secagg.sealing import PAYLOAD_BYTES
from secagg.shamir import Interpolator, split
from secagg.testing import SeededRng

WORD_BYTES: Final = 4
_BUFFERS: Final = tuple(2**power for power in range(14, 21))


def best_s(work: Callable[[], object], *, repeats: int = 5) -> float:
    """Return the shortest of several times of one thread, seconds.

    Processor time, because a neighbor's turn on the core is not the work's; on an idle machine
    it is the wall's. The shortest, because what disturbs a run only makes it longer.
    """
    times = []
    for _ in range(repeats):
        start = thread_time()
        work()
        times.append(thread_time() - start)
    return min(times)


def aes_limit_ns(*, nbytes: int = 2**25) -> float:
    """Return the nanoseconds in which AES-256-CTR makes the 4 bytes of one masked coordinate.

    The best of several buffer sizes.
    """
    fastest = min(best_s(partial(encrypt, nbytes, size)) for size in _BUFFERS)
    return fastest / nbytes * WORD_BYTES * 1e9


def encrypt(nbytes: int, size: int = 2**17) -> None:
    """Make so much keystream of AES-256-CTR in a buffer of `size` bytes, a power of two.

    The buffer is used again and again, so that memory is no limit.
    """
    encryptor = Cipher(AES256(bytes(32)), CTR(bytes(16))).encryptor()
    zeros, out = bytes(size), bytearray(size + 16)
    for _ in range(nbytes // size):
        encryptor.update_into(zeros, out)


def primitive_times() -> dict[str, float]:
    """Return the microseconds of each primitive, as the product calls it."""
    rng = SeededRng("primitives")
    secret, holders = rng.bytes(32), range(1, 101)
    own, peer = AgreementKey.from_secret(secret), AgreementKey.from_secret(rng.bytes(32))
    identity, message = IdentityKey.generate(rng), rng.bytes(128)
    signature = identity.sign(message)
    shares = split(secret, threshold=67, holders=holders, rng=rng)
    weights = Interpolator(tuple(holders)[:67])
    block = rng.bytes(2**18)
    works: dict[str, tuple[Callable[[], object], int]] = {
        "x25519_keygen_us": (lambda: AgreementKey.from_secret(secret), 200),
        "x25519_exchange_us": (lambda: own.exchange(peer.public), 200),
        "ed25519_sign_us": (lambda: identity.sign(message), 200),
        "ed25519_verify_us": (lambda: verify(identity.public, signature, message), 200),
        "hkdf_us": (lambda: hkdf(secret, salt=message, info=message, length=48), 500),
        "aes_gcm_seal_us": (
            lambda: AESGCM(secret).encrypt(bytes(12), message[:PAYLOAD_BYTES], message),
            500,
        ),
        "sha256_256KiB_us": (lambda: hashlib.sha256(block).digest(), 20),
        "shamir_split_67_of_100_us": (
            lambda: split(secret, threshold=67, holders=holders, rng=rng),
            1,
        ),
        "shamir_weights_67_us": (lambda: Interpolator(weights.holders), 1),
        "shamir_rebuild_67_us": (lambda: weights.rebuild(shares), 20),
    }
    return {name: _microseconds(work, count) for name, (work, count) in works.items()}


def _microseconds(work: Callable[[], object], count: int) -> float:
    def repeat() -> None:
        for _ in range(count):
            work()

    return best_s(repeat) / count * 1e6

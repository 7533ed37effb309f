"""Noise has one source: an AES-256-CTR stream keyed by the operating system, and by nothing else.

A stream has no seed to set. Its key is never derived from mask seeds, a run's seed, a
configuration or a clock, never stored and never logged. Make one stream for each purpose of each
attempt (privacy.md 6.2): the same key in two releases would cancel in their difference.

`ReplayStream` is the other class, for tests and simulations. What is drawn from it carries
`is_private = False`, and whoever books such a release books it as NON_PRIVATE.
"""

import os
from typing import Final, Protocol, Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from numpy.typing import NDArray

from dp.errors import PrivacyError

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 16
_WORD_BYTES: Final = 8

Words = NDArray[np.uint64]


class NoiseSource(Protocol):
    """Where samplers draw their words from."""

    @property
    def is_private(self) -> bool:
        """Return whether nobody can know or repeat the words."""
        ...

    def words(self, count: int) -> Words:
        """Return `count` fresh uniform words, shape (count,), uint64."""
        ...


class NoiseStream:
    """Uniform words that nobody can predict or repeat, this process included.

    Use as a context manager, or call `close`. Not for several threads at once.

    Security: the key is overwritten as soon as the cipher has it; the cipher's own copy goes with
    `close`. In a forked child, which inherits the cipher's state, the next draw takes a new key.
    """

    is_private: Final = True

    def __init__(self) -> None:
        self._cipher: CipherContext | None = None
        self._take_key()

    def words(self, count: int) -> Words:
        """Return `count` fresh uniform words, shape (count,), uint64.

        Raises:
            PrivacyError: the stream is closed.
        """
        if self._cipher is None:
            raise PrivacyError("expected an open noise stream, got a closed one; make a new one")
        if os.getpid() != self._process:
            self._take_key()  # a child must not repeat its parent's words
        return _draw(self._cipher, count)

    def close(self) -> None:
        """Forget the cipher; later draws raise."""
        self._cipher = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_key(self) -> None:
        self._process = os.getpid()
        self._cipher = _keyed(bytearray(os.urandom(KEY_BYTES)))

    def __reduce__(self) -> str:
        raise TypeError("a noise stream is not copied or sent; make a new one where it is needed")


class ReplayStream:
    """Words that follow from a seed, for tests and simulations: NOT private.

    Args:
        seed: any bytes; the same seed repeats the same words.
    """

    is_private: Final = False

    def __init__(self, seed: bytes) -> None:
        digest = Hash(SHA256())
        digest.update(b"dp/replay\x00" + seed)
        self._cipher = _keyed(bytearray(digest.finalize()))

    def words(self, count: int) -> Words:
        """Return the next `count` words, shape (count,), uint64."""
        return _draw(self._cipher, count)


def _keyed(key: bytearray) -> CipherContext:
    """Return AES-256-CTR from block 0 and overwrite the key; one key serves one stream only."""
    cipher = Cipher(AES(key), CTR(bytes(_NONCE_BYTES))).encryptor()
    key[:] = bytes(len(key))
    return cipher


def _draw(cipher: CipherContext, count: int) -> Words:
    return np.frombuffer(cipher.update(bytes(_WORD_BYTES * count)), "<u8").astype(
        np.uint64, copy=False
    )

"""The generator behind masks, tags and rounding coins: AES-256-CTR as a seekable word stream.

A seed is 32 bytes of key and 16 bytes of first counter block; the block counter is big-endian and
counts modulo 2**128. The keystream is read as little-endian words of the container's width
(SA1 spec 3.2). Chunk c of a vector starts at word c·CHUNK_WORDS, so chunks can be expanded in any
order. Words come in slices that stay in the processor's second-level cache: generating a slice
and using it at once is several times faster than passing a long vector through memory twice.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from secagg import canonical
from secagg.errors import ParameterError
from secagg.ids import RunId
from secagg.keys import hkdf
from secagg.ring import U32, RingDType, RingVector
from secagg.secretbytes import Secret

CHUNK_WORDS: Final = 65536
KEY_BYTES: Final = 32
BLOCK_BYTES: Final = 16
SEED_BYTES: Final = KEY_BYTES + BLOCK_BYTES

# Measured: 64 to 128 KiB are best where the second-level cache has 1 MiB.
_SLICE_BYTES: Final = 128 * 1024
_ZEROS: Final = memoryview(bytes(_SLICE_BYTES))


def new_scratch() -> NDArray[np.uint8]:
    """Return the working memory of one stream; streams used in turn may share it."""
    return np.empty(_SLICE_BYTES + BLOCK_BYTES, np.uint8)


class MaskStream:
    """The words of one seed. Not for two threads at once.

    Args:
        seed: 48 bytes.
        dtype: '<u4' or '<u8'.
        scratch: from `new_scratch`, shared with streams that are not read at the same time.
    """

    __slots__ = ("_cipher", "_dtype", "_first_counter", "_position", "_scratch")

    def __init__(
        self, seed: bytes, dtype: RingDType, *, scratch: NDArray[np.uint8] | None = None
    ) -> None:
        if len(seed) != SEED_BYTES:
            raise ParameterError(f"expected a seed of {SEED_BYTES} bytes, got {len(seed)}")
        counter = seed[KEY_BYTES:]
        self._dtype = dtype
        self._first_counter = int.from_bytes(counter, "big")
        self._cipher = Cipher(AES256(seed[:KEY_BYTES]), CTR(counter)).encryptor()
        self._position = 0
        self._scratch = new_scratch() if scratch is None else scratch

    def slices(self, first_word: int, count: int) -> Iterator[tuple[int, RingVector]]:
        """Yield words first_word .. first_word+count-1 as (offset, words) in order.

        The words are a view of the scratch memory: valid until the next step only. Reading on
        where the last call ended costs nothing; reading elsewhere resets the counter.
        """
        self._seek(first_word)
        itemsize = self._dtype.itemsize
        step = _SLICE_BYTES // itemsize
        for start in range(0, count, step):
            size = min(step, count - start)
            self._cipher.update_into(_ZEROS[: size * itemsize], self._scratch.data)
            self._position += size
            yield start, self._scratch[: size * itemsize].view(self._dtype)

    def words(self, chunk: int, count: int) -> RingVector:
        """Return the first `count` words of a chunk, in a new array."""
        _check_chunk(chunk, count)
        result = np.empty(count, self._dtype)
        for start, words in self.slices(chunk * CHUNK_WORDS, count):
            result[start : start + len(words)] = words
        return result

    def add_to(self, acc: RingVector, chunk: int) -> None:
        """Add the chunk's words to `acc`, of the stream's dtype, in place."""
        self._check_acc(acc, chunk)
        for start, words in self.slices(chunk * CHUNK_WORDS, len(acc)):
            piece = acc[start : start + len(words)]
            np.add(piece, words, out=piece)

    def subtract_from(self, acc: RingVector, chunk: int) -> None:
        """Subtract the chunk's words from `acc`, of the stream's dtype, in place."""
        self._check_acc(acc, chunk)
        for start, words in self.slices(chunk * CHUNK_WORDS, len(acc)):
            piece = acc[start : start + len(words)]
            np.subtract(piece, words, out=piece)

    def _check_acc(self, acc: RingVector, chunk: int) -> None:
        _check_chunk(chunk, len(acc))
        if acc.dtype != self._dtype:
            raise ParameterError(f"expected a chunk of {self._dtype}, got {acc.dtype}")

    def _seek(self, word: int) -> None:
        if word == self._position:
            return
        block, rest = divmod(word * self._dtype.itemsize, BLOCK_BYTES)
        counter = (self._first_counter + block) % (1 << 8 * BLOCK_BYTES)
        self._cipher.reset_nonce(counter.to_bytes(BLOCK_BYTES, "big"))
        self._cipher.update(_ZEROS[:rest])
        self._position = word


def expand(seed: bytes, count: int, dtype: RingDType, *, first_word: int = 0) -> RingVector:
    """Return `count` words of a seed's stream from `first_word` on, in a new array."""
    result = np.empty(count, dtype)
    for start, words in MaskStream(seed, dtype).slices(first_word, count):
        result[start : start + len(words)] = words
    return result


def rounding_coins(
    secret: Secret | bytes, run: RunId, round_number: int, segment: str
) -> MaskStream:
    """Return the coins for rounding one segment of one round: a stream of uint32 words.

    The same arguments give the same coins, so that a retry encodes the same integers: two
    roundings of one update would differ by what rounding hides.

    Args:
        secret: 32 bytes that never leave the silo.
        run: with `round_number` and `segment`, what the coins are for.
        round_number: as in `RoundId`.
        segment: as in the vector spec.
    """
    info = canonical.encode("coins", canonical.u64(round_number), canonical.text(segment))
    return MaskStream(hkdf(secret, salt=run.value, info=info, length=SEED_BYTES), U32)


def _check_chunk(chunk: int, count: int) -> None:
    if chunk < 0 or not 0 <= count <= CHUNK_WORDS:
        raise ParameterError(
            f"expected a chunk of at most {CHUNK_WORDS} words, got chunk {chunk} of {count} words"
        )

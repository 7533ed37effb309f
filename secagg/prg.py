"""The generators behind masks, tags and rounding coins: stream ciphers as seekable word streams.

The suite names the cipher. A seed is the cipher's key followed by its start: for AES in counter
mode the first 16-byte counter block, big-endian, counted modulo 2**128; for ChaCha20 a 12-byte
nonce, with the block counter starting at 0 (a random first counter would sooner or later overflow
its 32 bits). The keystream is read as little-endian words of the container's width (SA1 spec
3.2). Chunk c of a vector starts at word c·CHUNK_WORDS, so chunks can be expanded in any order.
Words come in slices that stay in the processor's second-level cache: generating a slice and using
it at once is several times faster than passing a long vector through memory twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from secagg import canonical
from secagg.errors import ParameterError
from secagg.ids import RunId
from secagg.keys import hkdf
from secagg.ring import U32, RingDType, RingVector
from secagg.secretbytes import Secret

CHUNK_WORDS: Final = 65536

# Measured: 64 to 128 KiB are best where the second-level cache has 1 MiB.
_SLICE_BYTES: Final = 128 * 1024
_MAX_BLOCK_BYTES: Final = 64
_ZEROS: Final = memoryview(bytes(_SLICE_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """One stream cipher.

    Attributes:
        name: for messages and benchmarks.
        key_bytes: of the key.
        start_bytes: of the counter block or nonce that follows it in a seed.
        block_bytes: of one keystream block.
    """

    name: str
    key_bytes: int
    start_bytes: int
    block_bytes: int

    @property
    def seed_bytes(self) -> int:
        """Length of a seed."""
        return self.key_bytes + self.start_bytes

    def cipher(self, seed: bytes) -> CipherContext:
        """Start the keystream at block 0."""
        key, start = seed[: self.key_bytes], self.start(seed, 0)
        if self.name == CHACHA20.name:
            return Cipher(ChaCha20(key, start), mode=None).encryptor()
        return Cipher(AES(key), CTR(start)).encryptor()

    def start(self, seed: bytes, block: int) -> bytes:
        """The 16 bytes that make the cipher go on at this block."""
        rest = seed[self.key_bytes :]
        if self.name == CHACHA20.name:
            if block >> 32:
                raise ParameterError("a ChaCha20 stream has 2**38 bytes; use an AES suite")
            return block.to_bytes(4, "little") + rest
        return ((int.from_bytes(rest, "big") + block) % (1 << 128)).to_bytes(16, "big")


AES_256_CTR: Final = Generator(name="AES-256-CTR", key_bytes=32, start_bytes=16, block_bytes=16)
AES_128_CTR: Final = Generator(name="AES-128-CTR", key_bytes=16, start_bytes=16, block_bytes=16)
CHACHA20: Final = Generator(name="ChaCha20", key_bytes=32, start_bytes=12, block_bytes=64)
SEED_BYTES: Final = AES_256_CTR.seed_bytes


def new_scratch() -> NDArray[np.uint8]:
    """Return the working memory of one stream; streams used in turn may share it."""
    return np.empty(_SLICE_BYTES + _MAX_BLOCK_BYTES, np.uint8)


class MaskStream:
    """The words of one seed. Not for two threads at once.

    Args:
        seed: of the generator's length; 48 bytes for the default one.
        dtype: '<u4' or '<u8'.
        scratch: from `new_scratch`, shared with streams that are not read at the same time.
        generator: the cipher.
    """

    __slots__ = ("_cipher", "_dtype", "_generator", "_position", "_scratch", "_seed")

    def __init__(
        self,
        seed: bytes,
        dtype: RingDType,
        *,
        scratch: NDArray[np.uint8] | None = None,
        generator: Generator = AES_256_CTR,
    ) -> None:
        if len(seed) != generator.seed_bytes:
            raise ParameterError(
                f"expected a seed of {generator.seed_bytes} bytes for {generator.name}, "
                f"got {len(seed)}"
            )
        self._seed = seed
        self._generator = generator
        self._dtype = dtype
        self._cipher = generator.cipher(seed)
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
        block, rest = divmod(word * self._dtype.itemsize, self._generator.block_bytes)
        self._cipher.reset_nonce(self._generator.start(self._seed, block))
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

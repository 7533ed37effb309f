"""Linear tags by which silos check the sum that the server announces.

The silos of a round share a key K that the server does not know. Each adds to its vector x the
tags ⟨r, x⟩ + f modulo 2**64, where r and f come from K: r is the same for all silos, f is the
silo's own. The tags are masked and summed like everything else, so after unmasking
Σ tags = ⟨r, Σ x⟩ + Σ f holds, and a server that changed the sum or the set of silos would have to
guess. A change below 2**b is caught with probability 1 - 2**(b-65) by one tag, whence
`tag_count` (SA1 spec 5.1). Valid only together with the check that every decoded value is in its
declared range. Integrity only: a silo that colludes with the server can forge for the others.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secagg.canonical import digest, encode, text, u32
from secagg.errors import ForgedSumError, ParameterError
from secagg.keys import hkdf
from secagg.prg import AES_256_CTR, CHUNK_WORDS, Generator, MaskStream, new_scratch
from secagg.ring import I64, U64, IntVector, check_vector
from secagg.secretbytes import Secret

TagVector = NDArray[np.uint64]

_SECURITY_BITS: Final = 64
_BLIND_BYTES: Final = 8


def tag_count(sum_bits: int) -> int:
    """Return how many tags a segment needs whose sum has `sum_bits` bits with its sign."""
    if not 1 <= sum_bits <= _SECURITY_BITS:
        raise ParameterError(f"expected sums of 1 to {_SECURITY_BITS} bits, got {sum_bits}")
    return -(-_SECURITY_BITS // (_SECURITY_BITS + 1 - sum_bits))


def verification_key(setup: bytes, parts: Iterable[tuple[int, Secret]]) -> Secret:
    """Return K, the hash of all k_v by seat; `parts` has one (seat, k_v) for each sharer."""
    fields = [setup]
    for seat, part in sorted(parts, key=lambda item: item[0]):
        fields += (u32(seat), part.reveal())
    return Secret(digest("ver", *fields))


class SegmentTags:
    """The running value of ⟨r, x⟩ for each tag of one segment, fed chunk by chunk.

    Attributes:
        totals: shape (count,), uint64; starts at zero.
    """

    __slots__ = ("_streams", "totals")

    def __init__(
        self,
        *,
        key: Secret,
        binding: bytes,
        segment: str,
        count: int,
        generator: Generator = AES_256_CTR,
    ) -> None:
        scratch = new_scratch()
        self._streams = [
            MaskStream(
                hkdf(
                    key,
                    salt=binding,
                    info=encode("mac-r", text(segment), u32(tag)),
                    length=generator.seed_bytes,
                ),
                U64,
                scratch=scratch,
                generator=generator,
            )
            for tag in range(count)
        ]
        self.totals: TagVector = np.zeros(count, np.uint64)

    def add(self, values: IntVector, *, first_word: int) -> None:
        """Add the share of the coordinates from `first_word` on; any order, each once."""
        check_vector(values, I64)
        words = values.view(np.uint64)  # Two's complement: the integer modulo 2**64.
        for tag, stream in enumerate(self._streams):
            for start, coefficients in stream.slices(first_word, len(words)):
                piece = words[start : start + len(coefficients)]
                # A slice, because numpy warns when scalars wrap and arrays are meant to.
                self.totals[tag : tag + 1] += np.einsum("i,i->", coefficients, piece)


def segment_tags(
    values: IntVector, *, key: Secret, binding: bytes, segment: str, count: int
) -> TagVector:
    """Return ⟨r, x⟩ modulo 2**64 for each tag, without the blinds.

    Args:
        values: shape (d,), the integers with their sign, before reduction to the ring.
        key: K.
        binding: the round's binding.
        segment: the segment's name.
        count: how many tags, from `tag_count`.

    Returns:
        shape (count,), uint64.
    """
    tags = SegmentTags(key=key, binding=binding, segment=segment, count=count)
    for start in range(0, len(values), CHUNK_WORDS):
        tags.add(values[start : start + CHUNK_WORDS], first_word=start)
    return tags.totals


def tag_blinds(*, key: Secret, binding: bytes, segment: str, seat: int, count: int) -> TagVector:
    """Return f of one seat for each tag: shape (count,), uint64, little-endian of 8 bytes."""
    blinds = b"".join(
        hkdf(
            key,
            salt=binding,
            info=encode("mac-f", text(segment), u32(seat), u32(tag)),
            length=_BLIND_BYTES,
        )
        for tag in range(count)
    )
    return np.frombuffer(blinds, U64).copy()


def check_tags(*, expected: TagVector, got: TagVector, segment: str) -> None:
    """Compare ⟨r, z⟩ + Σ f with the tags that came with the sum z.

    Raises:
        ForgedSumError: they differ. Which tag differs is not said.
    """
    if not np.array_equal(expected, got):
        raise ForgedSumError(
            f"expected the sum of segment {segment!r} to match its tags, it does not",
            hint="the coordinator announced a wrong sum, or a silo sent a wrong tag",
        )

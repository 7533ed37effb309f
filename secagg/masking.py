"""Double masking: seeds bound to the round's transcript, and signs that make pairs cancel.

Silo u adds its self mask, adds the mask it shares with every lower seat and subtracts the one it
shares with every higher seat; in the sum over both ends of a pair the shared mask vanishes.
Every seed is salted with `binding`, the hash of all that the round has fixed, the model among it:
silos that were shown different models make masks that do not cancel (SA1 spec 3.2). Each segment
has its own seeds: two vectors under one mask would give away their difference.

Source: Bonawitz et al. 2017, fig. 4, rounds 2 and 3.
"""

from collections.abc import Sequence

from secagg.canonical import encode, text, u32
from secagg.errors import ParameterError
from secagg.keys import AgreementKey, hkdf
from secagg.prg import AES_256_CTR, Generator, MaskStream, new_scratch
from secagg.ring import RingDType, RingVector
from secagg.secretbytes import Secret


def pairwise_seeds(
    own: AgreementKey,
    peer_public: bytes,
    *,
    binding: bytes,
    own_seat: int,
    peer_seat: int,
    segments: Sequence[str],
    kem_secret: Secret | None = None,
    generator: Generator = AES_256_CTR,
) -> dict[str, bytes]:
    """Return the seed of each segment that two seats share, from one key agreement.

    Args:
        own: this end's mask key.
        peer_public: the other end's, 32 bytes.
        binding: of the attempt.
        own_seat: this end.
        peer_seat: the other end.
        segments: names.
        kem_secret: what ML-KEM gave both ends, in the hybrid suite.
        generator: whose seeds these are.

    Raises:
        BadKeyError: `peer_public` is no usable key.
    """
    low, high = sorted((own_seat, peer_seat))
    shared = own.exchange(peer_public).join(kem_secret)
    return {
        name: hkdf(
            shared,
            salt=binding,
            info=encode("mask", u32(low), u32(high), text(name)),
            length=generator.seed_bytes,
        )
        for name in segments
    }


def pairwise_seed(
    own: AgreementKey,
    peer_public: bytes,
    *,
    binding: bytes,
    own_seat: int,
    peer_seat: int,
    segment: str,
) -> bytes:
    """Return `pairwise_seeds` of a single segment."""
    return pairwise_seeds(
        own,
        peer_public,
        binding=binding,
        own_seat=own_seat,
        peer_seat=peer_seat,
        segments=(segment,),
    )[segment]


def self_seed(
    secret: Secret | bytes,
    *,
    binding: bytes,
    seat: int,
    segment: str,
    generator: Generator = AES_256_CTR,
) -> bytes:
    """Return the seed of a seat's self mask; `secret` is its b_u."""
    info = encode("self", u32(seat), text(segment))
    return hkdf(secret, salt=binding, info=info, length=generator.seed_bytes)


def pairwise_sign(own_seat: int, peer_seat: int) -> int:
    """Return +1 where `own_seat` adds the pair's mask and -1 where it subtracts it."""
    if own_seat == peer_seat:
        raise ParameterError(f"expected two seats, got seat {own_seat} twice")
    return 1 if peer_seat < own_seat else -1


class MaskBundle:
    """Several masks applied to a vector chunk by chunk. Not for two threads at once.

    Args:
        streams: the masks as pairs of a sign (+1 or -1) and a 48-byte seed.
        dtype: '<u4' or '<u8'.
        generator: whose seeds these are.
    """

    __slots__ = ("_streams",)

    def __init__(
        self,
        streams: Sequence[tuple[int, bytes]],
        dtype: RingDType,
        *,
        generator: Generator = AES_256_CTR,
    ) -> None:
        if any(sign not in (1, -1) for sign, _ in streams):
            raise ParameterError("expected the sign of a mask to be +1 or -1, got another number")
        scratch = new_scratch()
        self._streams = [
            (sign, MaskStream(seed, dtype, scratch=scratch, generator=generator))
            for sign, seed in streams
        ]

    def apply(self, acc: RingVector, chunk: int) -> None:
        """Add or subtract every mask's words of the chunk to `acc` in place."""
        for sign, stream in self._streams:
            if sign > 0:
                stream.add_to(acc, chunk)
            else:
                stream.subtract_from(acc, chunk)

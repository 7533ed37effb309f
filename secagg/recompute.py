"""Tier 2: anybody who is shown the uploads of a chunk can compute the sum's chunk again.

The silos have signed the roots of their masked vectors, the coordinator that of the sum, and the
opened secrets are checkable against what was public before. So a chunk of the sum is a function of
things that nobody can change any more, and a wrong one convicts the coordinator before a third
party. Unlike the tags it needs no shared key: it tells a lying coordinator from a lying silo.

Chunks are assigned to silos by a hash over the signed root and nonces that the silos send after
it: a server that knew the assignment before could falsify the chunks of its accomplices. With
redundancy r an honest server's n silos are assigned about r·d/n coordinates each. The list of
nonces is the server's word, though, and may differ from silo to silo: it can leave out others'
nonces until a wrong chunk is assigned to its accomplices alone. So each silo adds as many chunks
of its own choice, which nobody knows before the sum is signed: of h honest silos one finds a wrong
chunk with probability 1 - (1 - r/n)^h at least, whatever the server shows.

Privacy: to recompute, a silo is shown masked vectors, the self mask secrets of survivors and the
mask keys of dropouts: all that the coordinator has seen. **Every silo that recomputes therefore
counts toward n_c**, together with all silos that it pools what it saw with, whether the
coordinator is honest or not. Parameters with n_c = 0 cannot ask for it, and a silo's policy has to
allow it (`max_redundancy`).

Source: SA1 spec 5.2.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from secagg import canonical
from secagg.canonical import digest, u32
from secagg.errors import (
    BadDealerError,
    BadDisclosureError,
    MalformedMessageError,
)
from secagg.masking import MaskBundle
from secagg.messages import Advertise, ChunkAnswer, Disclosure, KemPair, PairProof, Result
from secagg.parameters import Chunk, RoundParameters, VectorSpec
from secagg.ring import add_into, container, pack, unpack
from secagg.transcript import binding_digest, setup_digest
from secagg.unmasking import removal_seeds
from secagg.vectors import Seeds

# In requests and answers: the sum itself, beside the seats of the survivors.
THE_SUM = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a signed result says, and what its binding fixes.

    Attributes:
        advertises: U1's keys.
        share_roots: of U2.
    """

    parameters: RoundParameters
    advertises: Mapping[int, Advertise]
    share_roots: Mapping[int, bytes]
    model_hash: bytes
    result: Result

    @property
    def setup(self) -> bytes:
        """Of the attempt."""
        return setup_digest(self.parameters.ctx(), self.advertises)

    @property
    def survivors(self) -> tuple[int, ...]:
        """U3."""
        return tuple(entry.seat for entry in self.result.entries)

    @property
    def roots(self) -> dict[int, bytes]:
        """Merkle roots of the uploads and of the sum."""
        return {entry.seat: entry.root for entry in self.result.entries} | {
            THE_SUM: self.result.root
        }

    def check_binding(self) -> None:
        """Raise BadDisclosureError unless keys and share roots are those of the result's binding.

        The binding is in the result's signature, so all that follows from it is signed too.
        """
        found = binding_digest(self.setup, self.model_hash, self.share_roots)
        if found != self.result.binding:
            raise BadDisclosureError(
                "keys and share roots are not those that the result is bound to"
            )


def assigned_chunks(
    *, root: bytes, nonces: Mapping[int, bytes], seat: int, redundancy: int, chunks: int
) -> tuple[int, ...]:
    """Which chunks a silo recomputes.

    Args:
        root: of the sum, signed before the nonces were sent.
        nonces: of all silos that recompute, 32 bytes each.
        seat: whose chunks.
        redundancy: silos a chunk.
        chunks: how many the vector has.
    """
    parts = (part for other in sorted(nonces) for part in (u32(other), nonces[other]))
    seed = digest("recompute-seed", root, *parts)

    def rank(number: int, other: int) -> bytes:
        return digest("recompute-rank", seed, u32(number), u32(other))

    return tuple(
        number
        for number in range(chunks)
        if seat in sorted(nonces, key=lambda other: rank(number, other))[:redundancy]
    )


def disclosed_masks(claim: Claim, disclosure: Disclosure) -> dict[str, Seeds]:
    """The masks that have to be taken off, from secrets that are checked one by one.

    Raises:
        BadDisclosureError: a secret is missing or not the one that its owner committed to.
    """
    if disclosure.binding != claim.result.binding:
        raise BadDisclosureError("secrets of another attempt were disclosed")
    if [item.seat for item in disclosure.opened] != sorted(claim.share_roots):
        raise BadDisclosureError("one secret is disclosed for each silo of U2, in order")
    for item in disclosure.opened:
        if item.root != claim.share_roots[item.seat]:
            raise BadDisclosureError(f"a commitment of seat {item.seat} is not the one it dealt")
    parameters, setup = claim.parameters, claim.setup
    try:
        return dict(
            removal_seeds(
                suite=parameters.cipher_suite,
                setup=setup,
                binding=disclosure.binding,
                segments=parameters.wire_spec.names,
                survivors=claim.survivors,
                advertises=claim.advertises,
                commitments={item.seat: item.commitment_b for item in disclosure.opened},
                secrets={item.seat: item.secret.reveal() for item in disclosure.opened},
                pairs=_disclosed_pairs(claim, disclosure),
                graph=parameters.neighborhoods(tuple(sorted(claim.advertises)), setup),
            )
        )
    except BadDealerError as error:
        raise BadDisclosureError(f"a disclosed secret is not the committed one: {error}") from error


def _disclosed_pairs(claim: Claim, disclosure: Disclosure) -> dict[tuple[int, int], KemPair]:
    """In the hybrid suite, what was dealt in every pair of a survivor and a dropout."""
    alive = set(claim.survivors)
    dead = set(claim.share_roots) - alive
    needed = {(min(u, v), max(u, v)) for u in alive for v in dead}
    found = {}
    boxes_roots = {item.seat: item.boxes_root for item in disclosure.opened}
    for item in disclosure.pairs:
        ends = (item.dealer, item.box.holder)
        if ends in needed and item.box.kem and item.box.kem.pair:
            _check_pair(claim, item, boxes_roots[item.dealer])
            found[ends] = item.box.kem.pair
    if claim.parameters.cipher_suite.is_hybrid and found.keys() != needed:
        raise BadDisclosureError("what was dealt in a pair of a survivor and a dropout is missing")
    return found


def _check_pair(claim: Claim, item: PairProof, boxes_root: bytes) -> None:
    u1 = sorted(claim.advertises)
    try:
        place = u1.index(item.box.holder)
        canonical.merkle_verify(boxes_root, len(u1), place, item.box.encode(), item.path)
    except MalformedMessageError as error:
        raise BadDisclosureError(f"a pair of seat {item.dealer} is not the dealt one") from error


def check_answer(claim: Claim, answer: ChunkAnswer, chunks: int) -> None:
    """Raise BadDisclosureError unless a shown chunk lies under the root that was signed for it."""
    if answer.binding != claim.result.binding:
        raise BadDisclosureError("a chunk of another sum was shown")
    root = claim.roots.get(answer.of, b"")  # nothing lies under the root of no upload
    try:
        canonical.merkle_verify(root, chunks, answer.chunk, answer.data, answer.path)
    except MalformedMessageError as error:
        raise BadDisclosureError("a shown chunk is not the one under its signed root") from error


def recompute_chunk(
    wire: VectorSpec,
    chunk: Chunk,
    uploads: Iterable[bytes],
    masks: Mapping[str, Seeds],
    parameters: RoundParameters,
) -> bytes:
    """The packed chunk of the sum that follows from the packed chunks of the uploads.

    Raises:
        BadDisclosureError: an upload's chunk cannot be unpacked; no honest server takes one.
    """
    segment = wire.segments[chunk.segment]
    words = container(segment.ring_bits)
    total = np.zeros(chunk.count, words)
    try:
        for data in uploads:
            add_into(total, unpack(data, segment.ring_bits, chunk.count))
    except MalformedMessageError as error:
        raise BadDisclosureError("a shown chunk cannot be unpacked") from error
    bundle = MaskBundle(masks[segment.name], words, generator=parameters.cipher_suite.generator)
    bundle.apply(total, chunk.index)
    return pack(total, segment.ring_bits)

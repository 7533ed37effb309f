"""Long vectors, one chunk at a time: mask and send, sum and unmask, read and check.

A chunk is quantized integers in, packed ring words out; all that is done to it (tags, every
mask, packing, hashing) is done while it is in the processor's cache. Memory does not grow with
the number of silos: the server sums the spooled uploads chunk by chunk.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from secagg import canonical
from secagg.errors import ForgedSumError, MalformedMessageError, ParameterError
from secagg.masking import MaskBundle
from secagg.parameters import TAG_SEGMENT, Chunk, Segment, VectorSpec
from secagg.ports import VectorStore
from secagg.prg import CHUNK_WORDS, Generator
from secagg.ring import IntVector, RingVector, add_into, container, from_ring, pack, to_ring, unpack
from secagg.secretbytes import Secret
from secagg.verification import SegmentTags, TagVector, check_tags, tag_blinds

# Signed seeds of the masks on one segment: (+1 or -1, 48 bytes).
Seeds = Sequence[tuple[int, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TagContext:
    """What makes the tags of one attempt: K, the binding, and the suite's generator."""

    key: Secret
    binding: bytes
    generator: Generator

    def start(self, segment: Segment) -> SegmentTags:
        """Running tags of one segment."""
        return SegmentTags(
            key=self.key,
            binding=self.binding,
            segment=segment.name,
            count=segment.tags,
            generator=self.generator,
        )

    def blinds(self, segment: Segment, seat: int) -> TagVector:
        """F of one seat for this segment's tags."""
        return tag_blinds(
            key=self.key,
            binding=self.binding,
            segment=segment.name,
            seat=seat,
            count=segment.tags,
        )


def check_values(values: Mapping[str, IntVector], spec: VectorSpec) -> None:
    """A silo's integers have the spec's segments, lengths and bounds.

    Raises:
        ParameterError: names the segment; nothing has been masked.
    """
    if set(values) != set(spec.names):
        raise ParameterError(
            f"expected the segments {', '.join(spec.names)}, got {', '.join(sorted(values))}"
        )
    for segment in spec.segments:
        column = values[segment.name]
        if column.dtype != np.int64 or column.shape != (segment.length,):
            raise ParameterError(
                f"segment {segment.name!r}: expected int64 of shape ({segment.length},), got "
                f"{column.dtype} of shape {column.shape}; encode reals with a quantizer first"
            )
        if int(column.max()) > segment.bound or int(column.min()) < -segment.bound:
            raise ParameterError(
                f"segment {segment.name!r} holds a value beyond its bound {segment.bound}"
            )


def mask_vector(
    values: Mapping[str, IntVector],
    *,
    spec: VectorSpec,
    tags: TagContext | None,
    generator: Generator,
    seat: int,
    seeds: Mapping[str, Seeds],
    store: VectorStore,
    name: str,
) -> bytes:
    """Tag, mask, pack and store one silo's vector.

    Args:
        values: per data segment the silo's integers, already checked against their bounds.
        spec: the data segments, without tags.
        tags: makes this attempt's tags; None sends none.
        generator: whose seeds these are.
        seat: the silo's own seat.
        seeds: per segment, the tag segment too, the masks to apply.
        store: where the packed chunks go.
        name: under which name.

    Returns:
        The Merkle root over the stored chunks, 32 bytes.
    """
    wire = spec.with_tags() if tags else spec
    bundles = {
        segment.name: MaskBundle(
            seeds[segment.name], container(segment.ring_bits), generator=generator
        )
        for segment in wire.segments
    }
    running = [tags.start(segment) for segment in spec.segments] if tags else []
    columns = dict(values)
    leaves = []
    store.discard(name)
    for number, chunk in enumerate(wire.chunks):
        segment = wire.segments[chunk.segment]
        if tags and chunk.segment == len(running):
            columns[segment.name] = _own_tags(spec, running, tags, seat)
        piece = columns[segment.name][chunk.start : chunk.start + chunk.count]
        if chunk.segment < len(running):
            running[chunk.segment].add(piece, first_word=chunk.start)
        words = to_ring(piece, segment.ring_bits)
        bundles[segment.name].apply(words, chunk.index)
        data = pack(words, segment.ring_bits)
        store.write(name, number, data)
        leaves.append(canonical.leaf_hash(number, data))
    return canonical.MerkleTree(leaves).root


def _own_tags(
    spec: VectorSpec, running: Sequence[SegmentTags], tags: TagContext, seat: int
) -> IntVector:
    """All tags of a silo's vector, segment by segment: ⟨r, x⟩ + f modulo 2^64."""
    parts = [
        state.totals + tags.blinds(segment, seat)
        for segment, state in zip(spec.segments, running, strict=True)
    ]
    return np.concatenate(parts).view(np.int64)


def root_of(store: VectorStore, name: str, spec: VectorSpec) -> bytes:
    """The Merkle root over a stored vector, after checking every chunk's length and padding.

    Raises:
        MalformedMessageError: a chunk is missing, has the wrong length or dirty padding.
    """
    if store.chunks(name) != len(spec.chunks):
        raise MalformedMessageError(
            f"expected a vector of {len(spec.chunks)} chunks, got {store.chunks(name)}"
        )
    leaves = []
    for number, chunk in enumerate(spec.chunks):
        data = store.read(name, number)
        unpack(data, spec.segments[chunk.segment].ring_bits, chunk.count)
        leaves.append(canonical.leaf_hash(number, data))
    return canonical.MerkleTree(leaves).root


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSum:
    """A sum as it was packed, and as integers."""

    root: bytes
    values: Mapping[str, IntVector]
    tags: IntVector


def sum_and_unmask(
    *,
    spec: VectorSpec,
    store: VectorStore,
    uploads: Sequence[str],
    removals: Mapping[str, Seeds],
    name: str,
    generator: Generator,
    executor: Executor | None = None,
) -> OpenedSum:
    """Sum the uploads, take the masks off, store the packed sum and decode it.

    Args:
        spec: the segments that travel, tags included.
        store: holds the uploads and takes the sum.
        uploads: names of the survivors' vectors.
        removals: per segment the masks that do not cancel, with the sign that removes them.
        name: of the sum.
        generator: whose seeds these are.
        executor: spreads the chunks over threads; None does them in this one.
    """
    # Neighboring chunks go to one worker, so that its streams are read on without seeking.
    chunks = list(enumerate(spec.chunks))
    share = max(1, -(-len(chunks) // 8)) if executor else len(chunks)
    stretches = [chunks[start : start + share] for start in range(0, len(chunks), share)]

    def bundles() -> dict[str, MaskBundle]:
        return {
            segment.name: MaskBundle(
                removals[segment.name], container(segment.ring_bits), generator=generator
            )
            for segment in spec.segments
        }

    decoded = [np.empty(segment.length, np.int64) for segment in spec.segments]

    def work(stretch: Sequence[tuple[int, Chunk]]) -> list[bytes]:
        leaves = []
        for number, chunk, total in _summed(spec, store, uploads, bundles(), stretch):
            bits = spec.segments[chunk.segment].ring_bits
            data = pack(total, bits)
            store.write(name, number, data)
            leaves.append(canonical.leaf_hash(number, data))
            decoded[chunk.segment][chunk.start : chunk.start + chunk.count] = from_ring(total, bits)
        return leaves

    store.discard(name)
    results = executor.map(work, stretches) if executor else map(work, stretches)
    leaves = [leaf for found in results for leaf in found]
    return _opened(canonical.MerkleTree(leaves).root, spec, decoded)


class Unkept:
    """A store's vectors to read; what is written is forgotten."""

    def __init__(self, inner: VectorStore) -> None:
        self._inner = inner

    def write(self, name: str, chunk: int, data: bytes) -> None:
        """Keep nothing."""

    def read(self, name: str, chunk: int) -> bytes:
        """Give back that chunk."""
        return self._inner.read(name, chunk)

    def chunks(self, name: str) -> int:
        """How many chunks there are."""
        return self._inner.chunks(name)

    def discard(self, name: str) -> None:
        """Forget nothing of the inner store's."""


def put_sum(
    values: Mapping[str, IntVector], *, spec: VectorSpec, store: VectorStore, name: str
) -> OpenedSum:
    """Pack and store a sum that the server has noised."""
    store.discard(name)
    leaves = []
    for number, chunk in enumerate(spec.chunks):
        segment = spec.segments[chunk.segment]
        piece = values[segment.name][chunk.start : chunk.start + chunk.count]
        data = pack(to_ring(piece, segment.ring_bits), segment.ring_bits)
        store.write(name, number, data)
        leaves.append(canonical.leaf_hash(number, data))
    root = canonical.MerkleTree(leaves).root
    return _opened(root, spec, [values[segment.name] for segment in spec.segments])


def _opened(root: bytes, spec: VectorSpec, decoded: Sequence[IntVector]) -> OpenedSum:
    by_name = dict(zip(spec.names, decoded, strict=True))
    tags = by_name.pop(TAG_SEGMENT, np.empty(0, np.int64))
    return OpenedSum(root=root, values=by_name, tags=tags)


def _summed(
    spec: VectorSpec,
    store: VectorStore,
    uploads: Sequence[str],
    bundles: Mapping[str, MaskBundle],
    stretch: Sequence[tuple[int, Chunk]],
) -> Iterator[tuple[int, Chunk, RingVector]]:
    """Yield a stretch's chunks, each summed and without masks."""
    for number, chunk in stretch:
        segment = spec.segments[chunk.segment]
        total = np.zeros(chunk.count, container(segment.ring_bits))
        for upload in uploads:
            add_into(total, unpack(store.read(upload, number), segment.ring_bits, chunk.count))
        bundles[segment.name].apply(total, chunk.index)
        yield number, chunk, total


def read_sum(store: VectorStore, name: str, spec: VectorSpec, root: bytes) -> OpenedSum:
    """Read a packed sum from the store and check it against its root.

    Raises:
        ForgedSumError: the stored chunks are not those under the root (part of check A9).
    """
    try:
        found = root_of(store, name, spec)
    except MalformedMessageError as error:
        raise ForgedSumError("the sum's chunks do not fit the round's vector") from error
    if found != root:
        raise ForgedSumError("the sum's chunks are not those that the coordinator signed")
    decoded = [np.empty(segment.length, np.int64) for segment in spec.segments]
    for number, chunk in enumerate(spec.chunks):
        bits = spec.segments[chunk.segment].ring_bits
        words = unpack(store.read(name, number), bits, chunk.count)
        decoded[chunk.segment][chunk.start : chunk.start + chunk.count] = from_ring(words, bits)
    return _opened(root, spec, decoded)


def check_ranges(values: Mapping[str, IntVector], spec: VectorSpec, silos: int) -> None:
    """Raise ForgedSumError if a sum of `silos` vectors lies outside its declared range.

    Without this check a 64-bit value moved by 2^63 would pass two tags with probability 1/4.
    """
    for segment in spec.segments:
        limit = segment.bound * silos
        column = values[segment.name]
        if int(column.max()) > limit or int(column.min()) < -limit:
            raise ForgedSumError(
                f"segment {segment.name!r} of the sum lies outside the range that {silos} silos "
                f"can reach"
            )


def check_sum(
    opened: OpenedSum, *, spec: VectorSpec, tags: TagContext | None, seats: Sequence[int]
) -> None:
    """Check A9: every value in range, and Σ τ_u = ⟨r, z⟩ + Σ_{u∈U3} f_u for every tag.

    Args:
        opened: the sum.
        spec: the data segments, without tags.
        tags: of this attempt; None checks ranges only.
        seats: U3.

    Raises:
        ForgedSumError: the sum is not the sum of these silos' vectors.

    Source: SA1 spec 5.1; a forgery passes with probability at most 2^-64 a segment.
    """
    check_ranges(opened.values, spec, len(seats))
    if tags is None:
        return
    got = opened.tags.view(np.uint64)
    position = 0
    for segment in spec.segments:
        running = tags.start(segment)
        column = opened.values[segment.name]
        for start in range(0, segment.length, CHUNK_WORDS):
            running.add(column[start : start + CHUNK_WORDS], first_word=start)
        expected = running.totals
        for seat in seats:
            expected = expected + tags.blinds(segment, seat)
        check_tags(
            expected=expected,
            got=got[position : position + segment.tags],
            segment=segment.name,
        )
        position += segment.tags

"""Tests of secagg.vectors: chunk by chunk is the same as at once."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from secagg import canonical
from secagg.errors import ForgedSumError, MalformedMessageError
from secagg.parameters import VectorSpec, bulk, meta
from secagg.prg import AES_256_CTR, CHUNK_WORDS, expand
from secagg.ring import IntVector, container, pack, to_ring, unpack
from secagg.secretbytes import Secret
from secagg.testing import MemoryStore
from secagg.vectors import (
    OpenedSum,
    TagContext,
    check_ranges,
    check_sum,
    mask_vector,
    put_sum,
    read_sum,
    root_of,
    sum_and_unmask,
)
from secagg.verification import segment_tags, tag_blinds

SPEC = VectorSpec(
    segments=(
        bulk("update", 2 * CHUNK_WORDS + 7, value_bits=16, n_max=3),
        bulk("odd", 1, value_bits=16, n_max=3),
        meta("n", 3, bound=1000),
    )
)
WIRE = SPEC.with_tags()
TAGS = TagContext(key=Secret(b"K" * 32), binding=b"b" * 32, generator=AES_256_CTR)
SEATS = (1, 2, 3)


def _inputs(seat: int) -> dict[str, IntVector]:
    rng = np.random.default_rng(seat)
    return {s.name: rng.integers(-s.bound, s.bound + 1, s.length) for s in SPEC.segments}


def _seeds(seat: int) -> dict[str, list[tuple[int, bytes]]]:
    """Two masks a segment."""
    return {
        name: [
            (1, canonical.digest("one", name.encode(), bytes([seat])) + bytes(16)),
            (-1, canonical.digest("two", name.encode(), bytes([seat])) + bytes(16)),
        ]
        for name in WIRE.names
    }


def _mask(seat: int, store: MemoryStore, **changes: Any) -> bytes:
    arguments: dict[str, Any] = {
        "spec": SPEC,
        "tags": TAGS,
        "generator": AES_256_CTR,
        "seat": seat,
        "seeds": _seeds(seat),
        "store": store,
        "name": f"masked.{seat}",
    }
    return mask_vector(_inputs(seat), **(arguments | changes))


@pytest.fixture(scope="module")
def uploads() -> MemoryStore:
    """Three masked vectors."""
    store = MemoryStore()
    for seat in SEATS:
        _mask(seat, store)
    return store


def _removals() -> dict[str, list[tuple[int, bytes]]]:
    return {
        name: [(-sign, seed) for seat in SEATS for sign, seed in _seeds(seat)[name]]
        for name in WIRE.names
    }


def _open(store: MemoryStore, **changes: Any) -> OpenedSum:
    arguments: dict[str, Any] = {
        "spec": WIRE,
        "store": store,
        "uploads": [f"masked.{seat}" for seat in SEATS],
        "removals": _removals(),
        "name": "sum",
        "generator": AES_256_CTR,
    }
    return sum_and_unmask(**(arguments | changes))


def test_a_masked_vector_is_values_tags_and_masks(uploads: MemoryStore) -> None:
    """Word for word, computed at once."""
    values = _inputs(2)
    tags = [
        segment_tags(
            values[s.name], key=TAGS.key, binding=TAGS.binding, segment=s.name, count=s.tags
        )
        + tag_blinds(key=TAGS.key, binding=TAGS.binding, segment=s.name, seat=2, count=s.tags)
        for s in SPEC.segments
    ]
    values["tags"] = np.concatenate(tags).view(np.int64)
    number = 0
    for segment in WIRE.segments:
        dtype = container(segment.ring_bits)
        words = to_ring(values[segment.name], segment.ring_bits)
        for sign, seed in _seeds(2)[segment.name]:
            mask = expand(seed, segment.length, dtype)
            words = words + mask if sign > 0 else words - mask
        for start in range(0, segment.length, CHUNK_WORDS):
            piece = words[start : start + CHUNK_WORDS]
            assert uploads.read("masked.2", number) == pack(piece, segment.ring_bits)
            number += 1
    assert number == uploads.chunks("masked.2") == len(WIRE.chunks)


def test_the_root_is_that_of_the_stored_chunks() -> None:
    """What was there before under this name is gone."""
    store = MemoryStore()
    store.write("masked.1", 99, b"old")
    root = _mask(1, store)
    chunks = [store.read("masked.1", number) for number in range(len(WIRE.chunks))]
    assert root == canonical.merkle_root(chunks) == root_of(store, "masked.1", WIRE)
    assert 99 not in store.vectors["masked.1"]


def test_without_tags_only_the_values_travel() -> None:
    """In the semi-honest mode."""
    store = MemoryStore()
    root = _mask(1, store, tags=None)
    assert root == root_of(store, "masked.1", SPEC)
    with pytest.raises(MalformedMessageError, match="chunks"):
        root_of(store, "masked.1", WIRE)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_pro_03_the_opened_sum_is_the_plain_sum(uploads: MemoryStore, workers: int) -> None:
    """In one thread and in several; integers, packed chunks and root agree."""
    if workers:
        with ThreadPoolExecutor(workers) as executor:
            opened = _open(uploads, executor=executor)
    else:
        opened = _open(uploads)
    for segment in SPEC.segments:
        expected = np.sum([_inputs(seat)[segment.name] for seat in SEATS], axis=0)
        np.testing.assert_array_equal(opened.values[segment.name], expected)
    assert set(opened.values) == set(SPEC.names)
    assert opened.root == root_of(uploads, "sum", WIRE)
    again = read_sum(uploads, "sum", WIRE, opened.root)
    assert again.tags.tolist() == opened.tags.tolist()
    for name, column in again.values.items():
        np.testing.assert_array_equal(column, opened.values[name])
    check_sum(again, spec=SPEC, tags=TAGS, seats=SEATS)


@pytest.mark.parametrize("length", [1, 255, 256, 257, CHUNK_WORDS, CHUNK_WORDS + 1])
def test_pro_03_every_length_with_a_scalar_beside_it(length: int) -> None:
    """Chunk borders do not show: masks are read by place, tags are added up."""
    spec = VectorSpec(segments=(bulk("w", length, value_bits=16, n_max=2), meta("n", 1, bound=9)))
    store = MemoryStore()
    inputs = {
        seat: {"w": np.arange(length) % 100 - 50 * seat, "n": np.array([seat])} for seat in (1, 2)
    }
    for seat, values in inputs.items():
        mask_vector(
            values,
            spec=spec,
            tags=TAGS,
            generator=AES_256_CTR,
            seat=seat,
            seeds={name: [(3 - 2 * seat, b"m" * 48)] for name in ("w", "n", "tags")},
            store=store,
            name=f"masked.{seat}",
        )
    opened = sum_and_unmask(
        spec=spec.with_tags(),
        store=store,
        uploads=["masked.1", "masked.2"],
        removals={name: [] for name in ("w", "n", "tags")},
        name="sum",
        generator=AES_256_CTR,
    )
    np.testing.assert_array_equal(opened.values["w"], inputs[1]["w"] + inputs[2]["w"])
    assert opened.values["n"].tolist() == [3]
    check_sum(opened, spec=spec, tags=TAGS, seats=(1, 2))


def test_chunks_that_do_not_fit(uploads: MemoryStore) -> None:
    """Missing, too short, too long, with dirty padding."""
    for number, change in ((0, b""), (0, None), (2, b"\xff"), (3, b"\xff")):
        store = MemoryStore()
        for place in range(len(WIRE.chunks)):
            store.write("v", place, uploads.read("masked.1", place))
        if change is None:
            del store.vectors["v"][number]
        elif change:
            store.write("v", number, change * len(store.read("v", number)))
        else:
            store.write("v", number, store.read("v", number)[:-1])
        with pytest.raises(MalformedMessageError):
            root_of(store, "v", WIRE)
        with pytest.raises(ForgedSumError, match="do not fit"):
            read_sum(store, "v", WIRE, bytes(32))
    with pytest.raises(ForgedSumError, match="not those that the coordinator signed"):
        read_sum(uploads, "masked.1", WIRE, bytes(32))


def test_ranges_hold_for_as_many_silos_as_survived() -> None:
    """±n·bound, and one beyond."""
    for segment in SPEC.segments:
        for sign in (1, -1):
            values = {s.name: np.zeros(s.length, np.int64) for s in SPEC.segments}
            values[segment.name][-1] = sign * 2 * segment.bound
            check_ranges(values, SPEC, 2)
            with pytest.raises(ForgedSumError, match=f"{segment.name!r}.*1 silos"):
                check_ranges(values, SPEC, 1)
            values[segment.name][-1] += sign
            with pytest.raises(ForgedSumError, match=f"{segment.name!r}.*2 silos"):
                check_ranges(values, SPEC, 2)


def test_a_sum_is_checked_segment_by_segment(uploads: MemoryStore) -> None:
    """A change of one segment, or of one segment's tags, is found there."""
    opened = _open(uploads)
    place = 0
    for segment in SPEC.segments:
        values = {name: column.copy() for name, column in opened.values.items()}
        values[segment.name][-1] -= np.sign(values[segment.name][-1])
        changed = OpenedSum(root=opened.root, values=values, tags=opened.tags)
        with pytest.raises(ForgedSumError, match=f"segment {segment.name!r}"):
            check_sum(changed, spec=SPEC, tags=TAGS, seats=SEATS)
        tags = opened.tags.copy()
        tags[place] ^= 1
        wrong = OpenedSum(root=opened.root, values=opened.values, tags=tags)
        with pytest.raises(ForgedSumError, match=f"segment {segment.name!r}"):
            check_sum(wrong, spec=SPEC, tags=TAGS, seats=SEATS)
        place += segment.tags
    with pytest.raises(ForgedSumError):
        check_sum(opened, spec=SPEC, tags=TAGS, seats=(1, 2, 4))
    # Without tags the ranges are what is left to check.
    check_sum(opened, spec=SPEC, tags=None, seats=(1, 2, 4))
    with pytest.raises(ForgedSumError, match="range"):
        check_sum(opened, spec=SPEC, tags=None, seats=(1,))


def test_uploads_are_read_and_not_written(uploads: MemoryStore) -> None:
    """Opening twice gives the same."""
    before = {name: dict(chunks) for name, chunks in uploads.vectors.items() if name != "sum"}
    assert _open(uploads).root == _open(uploads).root
    after = {name: dict(chunks) for name, chunks in uploads.vectors.items() if name != "sum"}
    assert before == after
    words = unpack(uploads.read("masked.1", 1), WIRE.segments[0].ring_bits, CHUNK_WORDS)
    assert words.flags.writeable


def test_a_sum_takes_the_place_of_what_was_there(uploads: MemoryStore) -> None:
    """Opened or noised, no chunk of an older one stays behind it."""
    uploads.write("sum", 99, b"old")
    opened = _open(uploads)
    assert 99 not in uploads.vectors["sum"]
    uploads.write("sum", 99, b"old")
    put = put_sum(opened.values, spec=SPEC, store=uploads, name="sum")
    assert put.root == root_of(uploads, "sum", SPEC)
    assert sorted(uploads.vectors["sum"]) == list(range(len(SPEC.chunks)))

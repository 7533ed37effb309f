"""Who recomputes what, and how a chunk of the sum follows from those of the uploads."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import canonical
from secagg.auditors import _choose
from secagg.errors import BadDisclosureError, ParameterError
from secagg.parameters import VectorSpec, bulk, meta
from secagg.prg import expand
from secagg.recompute import assigned_chunks, recompute_chunk
from secagg.ring import U32, pack, to_ring
from secagg.testing import SeededRng, make_federation, make_parameters

ROSTER = make_federation(4).roster
SPEC = VectorSpec(
    segments=(bulk("update", 10, value_bits=8, n_max=4), meta("count", 2, bound=2**40))
)
PARAMETERS = make_parameters(ROSTER, SPEC)
NONCES = {seat: bytes([seat]) * 32 for seat in (1, 2, 5, 9)}


def assignment(
    nonces: dict[int, bytes], *, redundancy: int, chunks: int, root: bytes = bytes(32)
) -> dict[int, tuple[int, ...]]:
    """Every silo's chunks."""
    return {
        seat: assigned_chunks(
            root=root, nonces=nonces, seat=seat, redundancy=redundancy, chunks=chunks
        )
        for seat in nonces
    }


@given(st.sets(st.integers(1, 300), min_size=1, max_size=12), st.integers(1, 4), st.binary())
def test_each_chunk_has_as_many_silos_as_asked(
    seats: set[int], redundancy: int, salt: bytes
) -> None:
    """Or all there are."""
    nonces = {seat: canonical.digest("nonce", salt, canonical.u32(seat)) for seat in seats}
    made = assignment(nonces, redundancy=redundancy, chunks=9)
    counts = Counter(chunk for mine in made.values() for chunk in mine)
    assert counts == Counter(dict.fromkeys(range(9), min(redundancy, len(seats))))


def test_the_assignment_follows_from_the_root_and_every_nonce() -> None:
    """One other bit anywhere, and the silos get other chunks."""
    made = assignment(NONCES, redundancy=2, chunks=64)
    assert made == assignment(dict(reversed(NONCES.items())), redundancy=2, chunks=64)
    for seat in NONCES:
        other = NONCES | {seat: bytes(32)}
        assert assignment(other, redundancy=2, chunks=64) != made
    assert assignment(NONCES, redundancy=2, chunks=64, root=b"\x01" * 32) != made
    # A silo that is asked about without a nonce of its own has nothing to do.
    nothing = assigned_chunks(root=bytes(32), nonces=NONCES, seat=7, redundancy=2, chunks=64)
    assert nothing == ()


def test_the_load_is_spread() -> None:
    """Half of the chunks each, for two of four silos; binomial, so within 5 standard deviations."""
    made = assignment(NONCES, redundancy=2, chunks=400)
    assert all(150 <= len(mine) <= 250 for mine in made.values())


@pytest.mark.parametrize(("count", "among", "expected"), [(0, 5, 0), (2, 5, 2), (9, 5, 5)])
def test_chunks_of_ones_own_choice(count: int, among: int, expected: int) -> None:
    """So many distinct ones, or all; others for another silo."""
    chosen = _choose(SeededRng(1), count, among)
    assert len(chosen) == expected
    assert chosen <= set(range(among))
    assert len({_choose(SeededRng(seed), 3, 1000) for seed in range(5)}) == 5


def test_a_chunk_is_the_sum_less_the_masks() -> None:
    """The uploads' words and the signed mask streams, modulo the ring, packed."""
    segment, chunk = SPEC.segments[0], SPEC.chunks[0]
    rng = np.random.default_rng(5)
    columns = [rng.integers(-100, 100, 10) for _ in range(3)]
    seeds = [SeededRng(n).bytes(48) for n in range(2)]
    uploads = [pack(to_ring(column, segment.ring_bits), segment.ring_bits) for column in columns]
    masks = {"update": [(1, seeds[0]), (-1, seeds[1])], "count": []}
    found = recompute_chunk(SPEC, chunk, uploads, masks, PARAMETERS)
    total = np.sum(columns, axis=0).astype(np.uint32)
    total = total + expand(seeds[0], 10, U32) - expand(seeds[1], 10, U32)
    assert found == pack(total.astype(np.uint32), segment.ring_bits)


@pytest.mark.parametrize("data", [b"", b"\xff" * 44])
def test_an_upload_that_cannot_be_unpacked(data: bytes) -> None:
    """Another length, or padding that is not zero."""
    with pytest.raises(BadDisclosureError, match="cannot be unpacked"):
        recompute_chunk(SPEC, SPEC.chunks[0], [data], {"update": [], "count": []}, PARAMETERS)


def test_nobody_recomputes_if_nobody_may_collude() -> None:
    """Every silo that recomputes counts toward n_c."""
    with pytest.raises(ParameterError, match="n_c of at least 1"):
        replace(PARAMETERS, n_c=0, redundancy=2)
    assert replace(PARAMETERS, n_c=1, redundancy=2).redundancy == 2

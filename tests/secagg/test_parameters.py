"""Tests of secagg.parameters."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import OversizeError, ParameterError
from secagg.ids import FederationId, RoundId, RunId
from secagg.parameters import (
    MAX_SEGMENTS,
    MAX_SILOS,
    Chunk,
    CoefficientVector,
    RoundParameters,
    Segment,
    SegmentKind,
    VectorSpec,
    bulk,
    meta,
    threshold,
)
from secagg.prg import CHUNK_WORDS
from secagg.testing import make_federation, make_parameters

FEDERATION = make_federation(4)
SPEC = VectorSpec(segments=(bulk("update", 10, value_bits=16, n_max=5), meta("n", 2, bound=99)))
PARAMETERS = make_parameters(FEDERATION.roster, SPEC)
TINY = VectorSpec(segments=(meta("n", 1, bound=1),))


@pytest.mark.parametrize("name", ["", "Upper", "1st", "a-b", "a" * 41, "a b", "é", "a\n"])
def test_segments_have_plain_names(name: str) -> None:
    """They are hashed into keys and shown in messages."""
    with pytest.raises(ParameterError, match="segment's name"):
        bulk(name, 1, value_bits=8, n_max=3)


@pytest.mark.parametrize("length", [0, -1, 2**31 + 1])
def test_segments_have_a_length_in_range(length: int) -> None:
    """At least one coordinate, at most 2^31."""
    with pytest.raises(ParameterError, match="length must be in"):
        bulk("update", length, value_bits=8, n_max=3)


@pytest.mark.parametrize(
    ("value_bits", "ring_bits"), [(3, 20), (16, 16), (17, 16), (30, 49), (0, 64)]
)
def test_bulk_segments_need_room_in_the_ring(value_bits: int, ring_bits: int) -> None:
    """4 <= v < b <= 48."""
    with pytest.raises(ParameterError, match="need 4 <= value_bits < ring_bits <= 48"):
        Segment(
            name="update",
            kind=SegmentKind.BULK,
            length=1,
            value_bits=value_bits,
            ring_bits=ring_bits,
            bound=2 ** max(value_bits - 1, 0) - 1,
        )


def test_the_largest_segments() -> None:
    """2^31 coordinates, 48 bits, in one segment or in several."""
    half = meta("half", 2**30, bound=1)
    whole = Segment(
        name="w", kind=SegmentKind.BULK, length=2**31, value_bits=30, ring_bits=48, bound=2**29 - 1
    )
    for segments in ((whole,), (half, replace(half, name="other"))):
        assert sum(one.length for one in VectorSpec(segments=segments).segments) == 2**31
        with pytest.raises(ParameterError, match="together have at most 2147483648 coordinates"):
            VectorSpec(segments=(*segments, meta("one", 1, bound=1)))


def test_the_bound_of_a_bulk_segment_follows_from_its_bits() -> None:
    """2^(v-1)-1, no other."""
    segment = bulk("update", 1, value_bits=16, n_max=5)
    assert (segment.bound, segment.ring_bits, segment.sum_bits) == (2**15 - 1, 19, 19)
    with pytest.raises(ParameterError, match="bound of 16 value bits is 32767, got 5"):
        replace(segment, bound=5)


@pytest.mark.parametrize("bound", [0, -1, 2**47])
def test_meta_segments_have_a_bound_below_2_to_the_47(bound: int) -> None:
    """So that 48 bits hold every sum with its sign."""
    with pytest.raises(ParameterError, match=r"bound must be in \[1, 2\^47\)"):
        meta("n", 1, bound=bound)


@pytest.mark.parametrize("changes", [{"value_bits": 8}, {"ring_bits": 32}])
def test_meta_and_tag_segments_live_in_64_bits(changes: dict[str, int]) -> None:
    """With no quantizer."""
    segment = meta("n", 1, bound=9)
    tags = SPEC.with_tags().segments[-1]
    for one in (segment, tags):
        with pytest.raises(ParameterError, match="value_bits 0 and ring_bits 64"):
            replace(one, **changes)  # type: ignore[arg-type]  # fields by name
    with pytest.raises(ParameterError, match="tags have no bound"):
        replace(tags, bound=1)


def test_tags_of_each_kind() -> None:
    """⌈64/(65−b)⌉ for data, none for the tags themselves."""
    wire = SPEC.with_tags()
    assert [segment.tags for segment in wire.segments] == [2, 4, 0]
    assert wire.segments[-1].length == 6
    assert wire.names == ("update", "n", "tags")


def test_enc_02_the_ring_is_checked_against_the_cohort_at_configuration() -> None:
    """13 bits of values and 10 silos of weight 60000 need 17 more bits than 6 silos have to spare.

    Weights are scaled floats here, so that silos alone count; a ring that is too small names the
    numbers and one that fits, before anybody trains.
    """
    narrow = Segment(
        name="update",
        kind=SegmentKind.BULK,
        length=4,
        value_bits=13,
        ring_bits=15,
        bound=4095,
    )
    spec = VectorSpec(segments=(narrow,))
    make_parameters(FEDERATION.roster, spec, n_max=4)
    with pytest.raises(ParameterError, match=r"13.*15.*17|17"):
        make_parameters(FEDERATION.roster, spec, n_max=10)
    assert bulk("update", 4, value_bits=13, n_max=10).ring_bits == 17


def test_enc_02_declared_integers_are_checked_too() -> None:
    """Ten silos with up to 2^45 each pass 2^47; the error names a bound that fits."""
    spec = VectorSpec(segments=(meta("n", 1, bound=2**45),))
    make_parameters(FEDERATION.roster, spec, n_max=3)
    lower = (2**47 - 1) // 10
    with pytest.raises(ParameterError, match=f"lower the bound to {lower}"):
        make_parameters(FEDERATION.roster, spec, n_max=10)
    with pytest.raises(ParameterError, match="below 2"):
        meta("n", 1, bound=2**46).check_sum_fits(2)
    fits = VectorSpec(segments=(meta("n", 1, bound=lower),))
    make_parameters(FEDERATION.roster, fits, n_max=10)


@given(silos=st.integers(2, 10_000), value_bits=st.integers(4, 32))
def test_a_bulk_segment_made_for_its_cohort_never_wraps(silos: int, value_bits: int) -> None:
    """n·(2^(v-1)-1) < 2^(b-1), and the ring one bit smaller is not always enough."""
    segment = bulk("update", 1, value_bits=value_bits, n_max=silos)
    assert silos * segment.bound < 2 ** (segment.ring_bits - 1)
    segment.check_sum_fits(silos)


@pytest.mark.parametrize(
    ("seats", "weights"), [((1, 2), (1,)), ((1,), (1, 2)), ((2, 1), (1, 1)), ((1, 1), (1, 1))]
)
def test_coefficient_vectors_have_one_weight_for_each_seat(
    seats: tuple[int, ...], weights: tuple[int, ...]
) -> None:
    """Of sorted, distinct seats."""
    with pytest.raises(ParameterError, match="one weight for each"):
        CoefficientVector(name="common", seats=seats, weights=weights)


def test_public_coefficients_are_those_that_are_named() -> None:
    """All or none, in the order of their names."""
    one = CoefficientVector(name="one", seats=(1, 2), weights=(1, 1))
    two = replace(one, name="two")
    good: list[tuple[CoefficientVector, ...]] = [(), (one, two)]
    for public in good:
        replace(PARAMETERS, coefficients=("one", "two"), public_coefficients=public)
    bad: list[tuple[CoefficientVector, ...]] = [(one,), (two, one), (one, two, two)]
    for public in bad:
        with pytest.raises(ParameterError, match="expected the public coefficient vectors"):
            replace(PARAMETERS, coefficients=("one", "two"), public_coefficients=public)


def test_the_largest_cohort() -> None:
    """The limit itself is allowed."""
    assert replace(PARAMETERS, spec=TINY, n_max=MAX_SILOS).n_max == MAX_SILOS
    with pytest.raises(ParameterError, match="n_max must be in"):
        replace(PARAMETERS, spec=TINY, n_max=MAX_SILOS + 1)


def test_a_noised_vector() -> None:
    """It is noised as a whole, has no tags, and nobody recomputes it."""
    segment = bulk("update", 10, value_bits=16, n_max=5, kind=SegmentKind.NOISED)
    noised = replace(PARAMETERS, spec=VectorSpec(segments=(segment,)))
    assert (noised.is_noised, noised.has_tags, noised.wire_spec) == (True, False, noised.spec)
    assert (PARAMETERS.is_noised, PARAMETERS.has_tags) == (False, True)
    with pytest.raises(ParameterError, match="not recomputed"):
        replace(noised, redundancy=1)
    assert replace(PARAMETERS, redundancy=1).redundancy == 1
    with pytest.raises(ParameterError, match="noised as a whole"):
        replace(noised, spec=VectorSpec(segments=(segment, meta("n", 2, bound=99))))


def test_vectors_have_distinct_segments() -> None:
    """One at least; each is found by its name."""
    with pytest.raises(ParameterError, match="at least one segment"):
        VectorSpec(segments=())
    with pytest.raises(ParameterError, match="distinct"):
        VectorSpec(segments=(SPEC.segments[0], SPEC.segments[0]))
    assert SPEC.segment("n") == SPEC.segments[1]
    with pytest.raises(ParameterError, match="no segment 'm'; the vector has update, n"):
        SPEC.segment("m")
    many = tuple(meta(f"s{number}", 1, bound=1) for number in range(MAX_SEGMENTS + 1))
    with pytest.raises(OversizeError):
        VectorSpec.decode(VectorSpec(segments=many).encode())


def test_chunks_cover_the_vector_once() -> None:
    """Segment by segment, 65536 words each, the last one with the rest."""
    spec = VectorSpec(
        segments=(
            bulk("update", 2 * CHUNK_WORDS + 1, value_bits=16, n_max=5),
            meta("n", CHUNK_WORDS, bound=9),
        )
    )
    chunks = spec.chunks
    assert [(c.segment, c.start, c.count, c.index) for c in chunks] == [
        (0, 0, CHUNK_WORDS, 0),
        (0, CHUNK_WORDS, CHUNK_WORDS, 1),
        (0, 2 * CHUNK_WORDS, 1, 2),
        (1, 0, CHUNK_WORDS, 0),
    ]
    assert isinstance(chunks[0], Chunk)
    assert [c.nbytes for c in chunks] == [155648, 155648, 76, 524288]
    assert spec.wire_bytes == sum(c.nbytes for c in chunks)


@pytest.mark.parametrize(
    ("silos", "colluding", "expected"),
    # SA1 spec 2.2: n=N with n_c=⌊(N−1)/3⌋, and with n_c=1.
    [
        *[(3, 0, 2), (4, 1, 3), (5, 1, 4), (6, 1, 4), (7, 2, 5), (10, 3, 7)],
        *[(20, 6, 14), (50, 16, 34), (100, 33, 67), (200, 66, 134)],
        *[(3, 1, 3), (10, 1, 6), (20, 1, 11), (50, 1, 26), (200, 1, 101)],
    ],
)
def test_thresholds_of_the_specifications_table(silos: int, colluding: int, expected: int) -> None:
    """The smallest t with 2t > n + n_c."""
    assert threshold(silos, colluding) == expected
    assert 2 * expected > silos + colluding >= 2 * (expected - 1)


@pytest.mark.parametrize(
    ("silos", "colluding", "drops"),
    [
        *[(3, 0, 0), (4, 1, 1), (5, 1, 1), (6, 1, 2), (7, 2, 2), (10, 3, 3), (20, 6, 6)],
        *[(3, 1, 0), (10, 1, 4), (20, 1, 9)],
    ],
)
def test_floors_of_the_specifications_table(silos: int, colluding: int, drops: int) -> None:
    """N − F silos may drop out before their upload."""
    changed = replace(PARAMETERS, n_c=colluding, n_max=4)
    assert silos - changed.floor(silos) == drops


def test_every_term_of_the_floor_counts() -> None:
    """F = max(t, n_min, max(n_c, 1) + h_min, n_c + h_dp)."""
    base = replace(PARAMETERS, n_c=0, n_min=2, h_min=2)
    assert base.floor(3) == 3  # max(n_c, 1) + h_min
    assert replace(base, h_min=4).floor(3) == 5
    assert replace(base, n_min=4).floor(3) == 4
    assert replace(base, h_dp=6).floor(3) == 6
    assert replace(base, n_c=2, h_dp=6).floor(3) == 8
    assert base.floor(10) == 6  # t


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"roster_digest": bytes(31)}, "roster_digest must be a 32-byte digest"),
        ({"training_plan": b""}, "training_plan must be a 32-byte digest"),
        ({"kind": "Training"}, "kind must be a lower-case word"),
        ({"suite": 9}, "expected a suite"),
        ({"mode": "naive"}, "expected mode 'malicious'"),
        ({"graph": "regular/30"}, "expected mode 'malicious'"),
        ({"mode": "semi-honest"}, "expected mode 'malicious'"),
        ({"mode": "semi-honest", "graph": "regular/100"}, "expected mode 'malicious'"),
        ({"round": -1}, "round must be at least 0"),
        ({"attempt": -1}, "attempt must be at least 0"),
        ({"n_c": -1}, "n_c must be at least 0"),
        ({"h_dp": -1}, "h_dp must be at least 0"),
        ({"h_min": 1}, "h_min must be at least 2"),
        ({"n_min": 1}, "n_min must be at least 2"),
        ({"n_orgs": 0}, "n_orgs must be at least 1"),
        ({"n_max": 2}, "n_max must be in"),
        ({"n_max": 10_001}, "n_max must be in"),
        ({"n_max": 9}, "ring"),
        ({"spec": SPEC.with_tags()}, "added by the protocol"),
        ({"redundancy": 1, "n_c": 0}, "n_c of at least 1"),
        ({"redundancy": 1, "mode": "semi-honest", "graph": "regular/30"}, "'malicious'"),
    ],
)
def test_what_parameters_must_be(changes: dict[str, Any], match: str) -> None:
    """Refused at configuration, with the field and its range."""
    with pytest.raises(ParameterError, match=match):
        replace(PARAMETERS, **changes)


OTHER: dict[str, Any] = {
    "suite": 2,
    "mode": "semi-honest",
    "federation": FederationId("another"),
    "run": RunId(bytes(16)),
    "roster_digest": bytes(32),
    "kind": "statistics",
    "round": 0,
    "attempt": 1,
    "n_c": 0,
    "h_min": 3,
    "h_dp": 1,
    "n_min": 4,
    "n_orgs": 4,
    "n_max": 3,
    "graph": "regular/30",
    "spec": VectorSpec(segments=SPEC.segments[::-1]),
    "dp": b"plan",
    "training_plan": bytes(32),
    "coefficients": (),
    "public_coefficients": (CoefficientVector(name="common", seats=(1, 2), weights=(1, -2)),),
    "redundancy": 2,
}
TOGETHER = {"mode": {"graph": "regular/30"}, "graph": {"mode": "semi-honest"}}


def test_pro_09_ctx_binds_every_field() -> None:
    """Two parties with different parameters have different ctx; round 0 is as good as round 1."""
    names = {item.name for item in fields(RoundParameters)}
    assert names == set(OTHER)
    digests = {PARAMETERS.ctx()}
    for name, value in OTHER.items():
        changed = replace(PARAMETERS, **({name: value} | TOGETHER.get(name, {})))
        digests.add(changed.ctx())
        assert RoundParameters.decode(changed.encode()) == changed
    # Mode and graph change together, so that these two are one.
    assert len(digests) == len(names)
    assert replace(PARAMETERS, mode="semi-honest", graph="regular/29").ctx() not in digests


def test_ctx_binds_every_public_weight() -> None:
    """And whose weight it is."""

    def ctx(seats: tuple[int, ...], weights: tuple[int, ...]) -> bytes:
        vector = CoefficientVector(name="common", seats=seats, weights=weights)
        return replace(PARAMETERS, public_coefficients=(vector,)).ctx()

    assert len({ctx((1, 2), (1, 1)), ctx((1, 3), (1, 1)), ctx((1, 2), (1, 2))}) == 3


def test_identifiers() -> None:
    """Run, round and attempt; the next attempt differs in its number alone."""
    assert PARAMETERS.round_id == RoundId(PARAMETERS.run, 1)
    following = PARAMETERS.next_attempt()
    assert following.attempt_id == replace(PARAMETERS.attempt_id, attempt=1)
    assert replace(following, attempt=0) == PARAMETERS


def test_the_semi_honest_mode() -> None:
    """A regular graph, no tags, another threshold of the cohort."""
    changes: dict[str, Any] = {"mode": "semi-honest", "graph": "regular/30"}
    semi = replace(PARAMETERS, **changes)
    assert (semi.has_tags, PARAMETERS.has_tags) == (False, True)
    assert semi.wire_spec == SPEC
    assert PARAMETERS.wire_spec == SPEC.with_tags()
    assert semi.threshold(10) == 6
    assert replace(semi, n_c=8).threshold(10) == 9
    assert PARAMETERS.cipher_suite.number == 1
    u1 = (1, 2, 3, 4)
    assert PARAMETERS.neighborhoods(u1, bytes(32)).holders(2) == u1
    with pytest.raises(ParameterError, match="at least 150"):
        semi.neighborhoods(u1, bytes(32))
    many = tuple(range(1, 201))
    graph = replace(semi, n_c=10, n_max=4).neighborhoods(many, bytes(32))
    assert 2 not in graph.holders(1) or len(graph.holders(1)) < 200

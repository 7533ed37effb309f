"""What one attempt of a round is: its vector, its limits, and the hash that binds them.

`RoundParameters` holds every field of ctx (SA1 spec 3.2). Its digest enters every signature, key
and mask of the attempt, so two parties with different parameters cannot complete a round.
The threshold and the floor are functions of ctx and of |U1|; nobody sends them.
"""

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from secagg import canonical
from secagg.codec import (
    DIGEST,
    FEDERATION,
    I64,
    RUN,
    SEATS,
    TEXT,
    U16,
    U32,
    U64,
    Record,
    blob,
    choice,
    listed,
    nested,
)
from secagg.errors import ParameterError
from secagg.graph import Graph, complete, regular
from secagg.ids import AttemptId, FederationId, RoundId, RunId
from secagg.prg import CHUNK_WORDS
from secagg.quantizer import check_no_wrap, required_ring_bits
from secagg.ring import packed_bytes
from secagg.suites import Suite, suite_of
from secagg.verification import tag_count

SUITE_DEFAULT: Final = 1
MODE_MALICIOUS: Final = "malicious"
MODE_SEMI_HONEST: Final = "semi-honest"
GRAPH_COMPLETE: Final = "complete"
# "regular/30": a k-regular graph, k chosen for 30 % of the silos dropping out.
_GRAPH_REGULAR: Final = re.compile(r"regular/([1-9][0-9]?)")
# One set of public coefficients for all that a round releases (SA1 spec 2.3).
COMMON_COEFFICIENTS: Final = ("common",)

META_RING_BITS: Final = 64
# |Σ| of a meta segment stays below 2^47, so that 48 bits bound it and four tags protect it.
META_SUM_BITS: Final = 48
# With b bits bounding the sum one tag is forged with probability 2^-(65-b); beyond 48 bits the
# number of tags for 64 bits of soundness grows past four.
MAX_BULK_RING_BITS: Final = 48
MAX_SILOS: Final = 10_000
MAX_VECTOR_LENGTH: Final = 2**31
MAX_SEGMENTS: Final = 256
MAX_PRIVACY_PLAN_BYTES: Final = 64 * 1024
TAG_SEGMENT: Final = "tags"

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


class SegmentKind(StrEnum):
    """What a segment's integers are."""

    BULK = "bulk"  # quantized reals in Z_{2^b}
    NOISED = "noised"  # likewise; the server adds noise to the sum before it tells or keeps it
    META = "meta"  # integers with a declared bound, in Z_{2^64}
    TAG = "tag"  # the linear MAC's tags, in Z_{2^64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(Record):
    """One named stretch of the vector.

    Attributes:
        name: lower-case letters, digits and underscores.
        kind: bulk, noised, meta or tag.
        length: number of coordinates, ≥ 1.
        value_bits: v of the quantizer for bulk, 0 otherwise.
        ring_bits: b; sums are taken modulo 2^b.
        bound: one silo's values lie in [-bound, bound]; 0 for tags, which have no range.
    """

    LABEL: ClassVar[str] = "segment"

    name: Annotated[str, TEXT]
    kind: Annotated[SegmentKind, choice(SegmentKind)]
    length: Annotated[int, U64]
    value_bits: Annotated[int, U16]
    ring_bits: Annotated[int, U16]
    bound: Annotated[int, U64]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ParameterError(
                f"a segment's name must be 1 to 40 lower-case letters, digits or underscores "
                f"and start with a letter, got {self.name!r}"
            )
        if not 1 <= self.length <= MAX_VECTOR_LENGTH:
            raise ParameterError(
                f"segment {self.name!r}: length must be in [1, {MAX_VECTOR_LENGTH}], "
                f"got {self.length}"
            )
        if self.holds_reals:
            self._check_bulk()
        elif (self.value_bits, self.ring_bits) != (0, META_RING_BITS):
            raise ParameterError(
                f"segment {self.name!r}: a {self.kind} segment has value_bits 0 and ring_bits 64, "
                f"got {self.value_bits} and {self.ring_bits}"
            )
        if self.kind is SegmentKind.META and not 1 <= self.bound < 2 ** (META_SUM_BITS - 1):
            raise ParameterError(
                f"segment {self.name!r}: bound must be in [1, 2^47), got {self.bound}"
            )
        if self.kind is SegmentKind.TAG and self.bound != 0:
            raise ParameterError(f"segment {self.name!r}: tags have no bound, got {self.bound}")

    def _check_bulk(self) -> None:
        if not 4 <= self.value_bits < self.ring_bits <= MAX_BULK_RING_BITS:
            raise ParameterError(
                f"segment {self.name!r}: need 4 <= value_bits < ring_bits <= {MAX_BULK_RING_BITS}, "
                f"got {self.value_bits} and {self.ring_bits}"
            )
        if self.bound != 2 ** (self.value_bits - 1) - 1:
            raise ParameterError(
                f"segment {self.name!r}: the bound of {self.value_bits} value bits is "
                f"{2 ** (self.value_bits - 1) - 1}, got {self.bound}"
            )

    @property
    def holds_reals(self) -> bool:
        """Whether its integers are quantized reals."""
        return self.kind in {SegmentKind.BULK, SegmentKind.NOISED}

    @property
    def sum_bits(self) -> int:
        """b_s: the sum over all silos lies in [-2^(b_s-1), 2^(b_s-1))."""
        return META_SUM_BITS if self.kind is SegmentKind.META else self.ring_bits

    @property
    def tags(self) -> int:
        """m_s: how many tags protect this segment's sum."""
        return 0 if self.kind is SegmentKind.TAG else tag_count(self.sum_bits)

    def check_sum_fits(self, n_max: int) -> None:
        """Raise ParameterError unless n_max silos' values cannot wrap around the ring."""
        if self.holds_reals:
            check_no_wrap(self.value_bits, self.ring_bits, n_max)
        elif n_max * self.bound >= 2 ** (META_SUM_BITS - 1):  # tags have no bound: 0
            raise ParameterError(
                f"segment {self.name!r}: n_max * bound = {n_max} * {self.bound} must stay below "
                f"2^47; lower the bound to {(2 ** (META_SUM_BITS - 1) - 1) // n_max}"
            )


def bulk(
    name: str,
    length: int,
    *,
    value_bits: int,
    n_max: int,
    kind: SegmentKind = SegmentKind.BULK,
) -> Segment:
    """A segment of quantized reals in the smallest ring where n_max silos cannot wrap."""
    return Segment(
        name=name,
        kind=kind,
        length=length,
        value_bits=value_bits,
        ring_bits=required_ring_bits(value_bits, n_max),
        bound=2 ** (value_bits - 1) - 1,
    )


def meta(name: str, length: int, *, bound: int) -> Segment:
    """A segment of bounded integers: weights, counts, metrics."""
    return Segment(
        name=name,
        kind=SegmentKind.META,
        length=length,
        value_bits=0,
        ring_bits=META_RING_BITS,
        bound=bound,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A stretch of one segment that is masked, hashed and sent as one piece."""

    segment: int
    start: int
    count: int
    nbytes: int

    @property
    def index(self) -> int:
        """Which chunk of its segment this is; the mask streams seek by it."""
        return self.start // CHUNK_WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSpec(Record):
    """The ordered segments of one round's vector."""

    LABEL: ClassVar[str] = "vector"

    segments: Annotated[tuple[Segment, ...], listed(nested(Segment), MAX_SEGMENTS)]

    def __post_init__(self) -> None:
        if not self.segments:
            raise ParameterError("a vector needs at least one segment")
        names = [segment.name for segment in self.segments]
        if len(set(names)) != len(names):
            raise ParameterError(f"a vector's segment names must be distinct, got {names}")
        # Each chunk of it becomes an object; a silo must be able to hold their list.
        length = sum(s.length for s in self.segments if s.kind is not SegmentKind.TAG)
        if length > MAX_VECTOR_LENGTH:
            raise ParameterError(
                f"a vector's segments together have at most {MAX_VECTOR_LENGTH} coordinates, "
                f"got {length}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Segment names in order."""
        return tuple(segment.name for segment in self.segments)

    def segment(self, name: str) -> Segment:
        """The segment of this name; ParameterError if there is none."""
        for segment in self.segments:
            if segment.name == name:
                return segment
        raise ParameterError(f"no segment {name!r}; the vector has {', '.join(self.names)}")

    def with_tags(self) -> "VectorSpec":
        """This vector followed by the segment that carries its tags."""
        length = sum(segment.tags for segment in self.segments)
        tags = Segment(
            name=TAG_SEGMENT,
            kind=SegmentKind.TAG,
            length=length,
            value_bits=0,
            ring_bits=META_RING_BITS,
            bound=0,
        )
        return VectorSpec(segments=(*self.segments, tags))

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The pieces in wire order: segment by segment, CHUNK_WORDS words each (the last fewer)."""
        pieces = []
        for number, segment in enumerate(self.segments):
            for start in range(0, segment.length, CHUNK_WORDS):
                count = min(CHUNK_WORDS, segment.length - start)
                pieces.append(
                    Chunk(
                        segment=number,
                        start=start,
                        count=count,
                        nbytes=packed_bytes(count, segment.ring_bits),
                    )
                )
        return tuple(pieces)

    @property
    def wire_bytes(self) -> int:
        """Bytes of one packed vector."""
        return sum(chunk.nbytes for chunk in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoefficientVector(Record):
    """With which public weight each silo enters one of the released sums.

    Attributes:
        name: as in `RoundParameters.coefficients`.
        seats: sorted.
        weights: one for each seat, in any unit: a common factor changes nothing.
    """

    LABEL: ClassVar[str] = "coefficient-vector"

    name: Annotated[str, TEXT]
    seats: Annotated[tuple[int, ...], SEATS]
    weights: Annotated[tuple[int, ...], listed(I64)]

    def __post_init__(self) -> None:
        if len(self.seats) != len(self.weights) or list(self.seats) != sorted(set(self.seats)):
            raise ParameterError(
                f"coefficient vector {self.name!r}: expected one weight for each of its sorted, "
                f"distinct seats, got {len(self.weights)} for {len(self.seats)}"
            )


def threshold(silos: int, colluding: int) -> int:
    """t: the smallest integer with 2t > n + n_c (SA1 spec 2.2, malicious server)."""
    return (silos + colluding) // 2 + 1


def _check_graph(graph: str, mode: str) -> None:
    """A regular graph is for the semi-honest mode, and the complete one for the other."""
    wanted = {MODE_MALICIOUS: graph == GRAPH_COMPLETE}
    wanted[MODE_SEMI_HONEST] = _GRAPH_REGULAR.fullmatch(graph) is not None
    if not wanted.get(mode, False):
        raise ParameterError(
            f"expected mode {MODE_MALICIOUS!r} with graph {GRAPH_COMPLETE!r}, or mode "
            f"{MODE_SEMI_HONEST!r} with graph 'regular/PERCENT' (the dropouts to stand), "
            f"got {mode!r} with {graph!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundParameters(Record):
    """All that is known of an attempt before its model exists; the fields of ctx.

    Attributes:
        suite: 1 = X25519, Ed25519, HKDF-SHA256, AES-256-GCM, AES-256-CTR.
        mode: "malicious": complete graph, consistency among all, tags; "semi-honest": regular
            graph, no tags, no second attempt with the same inputs.
        kind: what is summed, "training" or "statistics"; kinds whose inputs are linear images of
            one another share one kind.
        round: number of the round in its run; only grows.
        attempt: 0 for the first try of the round.
        n_c: seats of the roster that may collude with the coordinator.
        h_min: honest inputs that every released sum must hold.
        h_dp: honest noise shares that a privacy plan counts on; 0 without one.
        n_min: least number of survivors. n_orgs: least number of their organizations.
        n_max: most silos that may take part; the ring is sized for it.
        spec: the data segments; the tag segment is the protocol's and not listed.
        dp: canonical bytes of the privacy plan, empty without one.
        training_plan: digest of the training plan.
        coefficients: names of the coefficient vectors whose sums are released.
        public_coefficients: the vectors themselves, all or none; without them there may be one.
        redundancy: silos that recompute each chunk of the sum (SA1 spec 5.2); 0 asks none to.
    """

    LABEL: ClassVar[str] = "parameters"

    suite: Annotated[int, U16] = SUITE_DEFAULT
    mode: Annotated[str, TEXT] = MODE_MALICIOUS
    federation: Annotated[FederationId, FEDERATION]
    run: Annotated[RunId, RUN]
    roster_digest: Annotated[bytes, DIGEST]
    kind: Annotated[str, TEXT]
    round: Annotated[int, U64]
    attempt: Annotated[int, U32]
    n_c: Annotated[int, U32]
    h_min: Annotated[int, U32] = 2
    h_dp: Annotated[int, U32] = 0
    n_min: Annotated[int, U32] = 3
    n_orgs: Annotated[int, U32] = 3
    n_max: Annotated[int, U32]
    graph: Annotated[str, TEXT] = GRAPH_COMPLETE
    spec: Annotated[VectorSpec, nested(VectorSpec)]
    dp: Annotated[bytes, blob(MAX_PRIVACY_PLAN_BYTES, "a privacy plan")] = b""
    training_plan: Annotated[bytes, DIGEST]
    coefficients: Annotated[tuple[str, ...], listed(TEXT, 64)] = COMMON_COEFFICIENTS
    public_coefficients: Annotated[
        tuple[CoefficientVector, ...], listed(nested(CoefficientVector), 64)
    ] = ()
    redundancy: Annotated[int, U16] = 0

    def __post_init__(self) -> None:
        for name in ("roster_digest", "training_plan"):
            if len(getattr(self, name)) != 32:
                raise ParameterError(f"{name} must be a 32-byte digest")
        if not _NAME.fullmatch(self.kind):
            raise ParameterError(f"a round's kind must be a lower-case word, got {self.kind!r}")
        suite_of(self.suite)
        _check_graph(self.graph, self.mode)
        # With h_min = 1 a sum could be one honest input; with n_min = 1, one input at all.
        least = {"round": 0, "attempt": 0, "n_c": 0, "h_dp": 0, "h_min": 2, "n_min": 2, "n_orgs": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ParameterError(f"{name} must be at least {low}, got {getattr(self, name)}")
        if not self.n_min <= self.n_max <= MAX_SILOS:
            raise ParameterError(
                f"n_max must be in [n_min, {MAX_SILOS}] = [{self.n_min}, {MAX_SILOS}], "
                f"got {self.n_max}"
            )
        if TAG_SEGMENT in self.spec.names:
            raise ParameterError("the tag segment is added by the protocol; leave it out of spec")
        for segment in self.spec.segments:
            segment.check_sum_fits(self.n_max)
        names = tuple(vector.name for vector in self.public_coefficients)
        if names not in {(), self.coefficients}:
            raise ParameterError(
                f"expected the public coefficient vectors {', '.join(self.coefficients)}, got "
                f"{', '.join(names)}"
            )
        self._check_redundancy()

    def _check_redundancy(self) -> None:
        """Silos that recompute see what the coordinator sees, so each of them colludes with it."""
        if self.is_noised and self.redundancy:
            raise ParameterError("a noised sum is not recomputed: silos would see the exact one")
        if self.is_noised and any(s.kind is not SegmentKind.NOISED for s in self.spec.segments):
            raise ParameterError("a vector is noised as a whole: an exact segment would tell")
        if self.redundancy and (self.mode != MODE_MALICIOUS or self.n_c < 1):
            raise ParameterError(
                f"recomputing shows each silo the coordinator's view of what it recomputes: that "
                f"needs mode {MODE_MALICIOUS!r} and n_c of at least 1, got {self.mode!r} and "
                f"{self.n_c}"
            )

    @property
    def cipher_suite(self) -> Suite:
        """The primitives of this round."""
        return suite_of(self.suite)

    @property
    def round_id(self) -> RoundId:
        """Run and number of the round."""
        return RoundId(self.run, self.round)

    @property
    def attempt_id(self) -> AttemptId:
        """Run, round and attempt."""
        return AttemptId(run=self.run, round=self.round, attempt=self.attempt)

    @property
    def has_tags(self) -> bool:
        """Whether silos check the sum by tags: only a complete graph gives all the same key.

        A sum that the server noises is not the sum of what was tagged; there the silos trust it.
        """
        return self.mode == MODE_MALICIOUS and not self.is_noised

    @property
    def is_noised(self) -> bool:
        """Whether the server adds noise to the sum before anybody else sees it."""
        return any(segment.kind is SegmentKind.NOISED for segment in self.spec.segments)

    @property
    def wire_spec(self) -> VectorSpec:
        """The segments that travel: data, then tags."""
        return self.spec.with_tags() if self.has_tags else self.spec

    def neighborhoods(self, u1: tuple[int, ...], setup: bytes) -> Graph:
        """Who shares secrets and masks with whom among U1.

        Raises:
            ParameterError: the regular graph cannot be had for so many silos.
        """
        found = _GRAPH_REGULAR.fullmatch(self.graph)
        if found is None:
            return complete(u1, self.threshold(len(u1)))
        return regular(u1, setup=setup, colluding=self.n_c, dropout_percent=int(found.group(1)))

    def threshold(self, silos: int) -> int:
        """T of the whole cohort for |U1| = silos (SA1 spec 2.2, 4)."""
        if self.mode == MODE_SEMI_HONEST:
            return max(silos // 2 + 1, self.n_c + 1)
        return threshold(silos, self.n_c)

    def floor(self, silos: int) -> int:
        """F: the least |U1|, |U2| and |U3| for |U1| = silos (SA1 spec 2.2)."""
        return max(
            self.threshold(silos),
            self.n_min,
            max(self.n_c, 1) + self.h_min,
            self.n_c + self.h_dp,
        )

    def next_attempt(self) -> "RoundParameters":
        """The same round, tried once more."""
        return replace(self, attempt=self.attempt + 1)

    def ctx(self) -> bytes:
        """The attempt's digest over every field, 32 bytes (SA1 spec 3.2)."""
        return canonical.digest("ctx", *self.field_bytes())

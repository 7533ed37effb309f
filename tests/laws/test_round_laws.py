"""Laws of a whole round: the sum is exact or there is none, whoever vanishes and in what order.

Each law drives the real server and silos through the harness. Who can be lost is told by a model
of four lines (`Case.expected`), so that a round that aborts needlessly fails as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secagg import parameters as parameters_module
from secagg import prg, vectors, verification
from secagg.effects import AbortReason
from secagg.messages import MASKED
from secagg.parameters import RoundParameters, VectorSpec, bulk, meta
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.quantizer import Quantizer
from secagg.ring import IntVector, unpack
from secagg.suites import DEFAULT, SUITES
from secagg.testing import (
    Federation,
    MemoryStore,
    Outcome,
    RoundHarness,
    make_federation,
    make_parameters,
)

STATE = b"a state"
# Silos to the share of a profile's examples: a round costs the square of its silos.
SHARES = {3: 0.8, 4: 0.8, 5: 0.6, 10: 0.2, 20: 0.08}
FEDERATIONS = {silos: make_federation(silos) for silos in SHARES}
ANY_SUITE = SiloPolicy(suites=frozenset(SUITES))
PHASES = (Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.SURVIVORS, Phase.UNMASK)

Inputs = Mapping[int, Mapping[str, IntVector]]


def share_of_examples(share: float) -> settings:
    """The profile's settings with a share of its examples."""
    profile = settings.default
    assert profile is not None
    return settings(
        max_examples=max(2, int(profile.max_examples * share)),
        suppress_health_check=list(HealthCheck),
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """One attempt: its vector, the silos' integers, who vanishes when and who goes late."""

    federation: Federation
    parameters: RoundParameters
    inputs: Inputs
    drop: Mapping[int, Phase]
    late: frozenset[int]

    def run(self, *, harness: type[RoundHarness] = RoundHarness) -> tuple[RoundHarness, Outcome]:
        """Drive it to its end."""
        driven = harness(
            federation=self.federation,
            parameters=self.parameters,
            state=STATE,
            train=lambda seat, _p, _s: None if seat in self.late else self.inputs[seat],
            drop=self.drop,
            policies=dict.fromkeys(self.inputs, ANY_SUITE),
        )
        return driven, driven.run()

    def before(self, phase: Phase) -> set[int]:
        """Seats that have not vanished by the end of this phase."""
        gone = PHASES[: PHASES.index(phase) + 1]
        return {seat for seat in self.inputs if self.drop.get(seat) not in gone}

    def expected(self) -> tuple[int, ...] | AbortReason:
        """U3, or why there is none (SA1 spec 2.2, 3.6)."""
        u1, u2 = self.before(Phase.ADVERTISE), self.before(Phase.SHARE)
        u3 = self.before(Phase.MASK) - self.late
        floor, t = self.parameters.floor(len(u1)), self.parameters.threshold(len(u1))
        for members, reason in (
            (u1, AbortReason.TOO_FEW_ADVERTISED),
            (u2, AbortReason.TOO_FEW_SHARED),
            (u3, AbortReason.TOO_FEW_MASKED),
        ):
            if len(members) < floor:
                return reason
        if len(self.before(Phase.SURVIVORS)) < t:
            return AbortReason.TOO_FEW_SIGNED
        if len(self.before(Phase.UNMASK)) < t:
            return AbortReason.TOO_FEW_OPENED
        return tuple(sorted(u3))

    def total(self, survivors: tuple[int, ...]) -> dict[str, list[int]]:
        """The sum in Python's integers."""
        return {
            name: [
                sum(column)
                for column in zip(*(self.inputs[s][name].tolist() for s in survivors), strict=True)
            ]
            for name in self.parameters.spec.names
        }


@st.composite
def specs(draw: st.DrawFn, silos: int) -> VectorSpec:
    """One or two bulk segments and perhaps a meta segment."""
    lengths = st.integers(1, 70)
    bits = st.sampled_from([4, 8, 16, 20, 24, 32])
    segments = [
        bulk(name, draw(lengths), value_bits=draw(bits), n_max=silos)
        for name in ("update", "variate")[: draw(st.integers(1, 2))]
    ]
    if draw(st.booleans()):
        bound = draw(st.sampled_from([1, 1000, (2**47 - 1) // silos]))
        segments.append(meta("weight", draw(st.integers(1, 5)), bound=bound))
    return VectorSpec(segments=tuple(segments))


@st.composite
def cases(draw: st.DrawFn, silos: int, *, suites: tuple[int, ...] = (DEFAULT.number,)) -> Case:
    """Any vector, any values up to the bounds, any dropouts at any phase, any helpers."""
    federation = FEDERATIONS[silos]
    spec = draw(specs(silos))
    seats = federation.roster.indices
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    # Every silo at one end of the range: the sum that comes closest to the ring's edge.
    extreme = draw(st.sampled_from([None, -1, 1]))
    few = draw(st.integers(0, silos // 2 + 1))
    order = draw(st.permutations(seats))
    late = frozenset(order[: draw(st.integers(0, max(1, silos // 4)))])
    return Case(
        federation=federation,
        parameters=make_parameters(
            federation.roster,
            spec,
            n_c=draw(st.sampled_from(_n_c(silos))),
            suite=draw(st.sampled_from(suites)),
        ),
        inputs={seat: _values(spec, rng, extreme) for seat in seats},
        drop={seat: draw(st.sampled_from(PHASES)) for seat in order[-few:] if few},
        late=late if draw(st.booleans()) else frozenset(),
    )


def _n_c(silos: int) -> list[int]:
    """The policy's own number of colluders, and a coordinator that asks for one more."""
    own = (silos - 1) // 3
    return [own, own, own + 1]


def _values(
    spec: VectorSpec, rng: np.random.Generator, extreme: int | None
) -> dict[str, IntVector]:
    values = {}
    for segment in spec.segments:
        bound = segment.bound
        column = rng.integers(-bound, bound, segment.length, endpoint=True)
        ends = rng.choice([-bound, 0, bound], segment.length)
        column = np.where(rng.random(segment.length) < 0.2, ends, column)
        values[segment.name] = column if extreme is None else np.full_like(column, extreme * bound)
    return values


@pytest.mark.parametrize("silos", list(SHARES))
def test_the_sum_is_exact_or_the_round_aborts_cleanly(silos: int) -> None:
    """Secure equals plain for every dropout set, and everyone has the same sum."""

    @given(cases(silos, suites=tuple(SUITES)))
    @share_of_examples(SHARES[silos])
    def check(case: Case) -> None:
        _, outcome = case.run()
        expected = case.expected()
        assert outcome.server_errors == []
        assert outcome.silo_errors == {}
        if isinstance(expected, AbortReason):
            assert outcome.aggregate is None
            assert outcome.silo_aggregates == {}
            assert outcome.aborted is not None
            assert outcome.aborted.reason is expected
            return
        assert outcome.aborted is None
        assert outcome.aggregate is not None
        assert outcome.aggregate.survivors == expected
        total = case.total(expected)
        assert {n: v.tolist() for n, v in outcome.aggregate.values.items()} == total
        # All who are still there get it: survivors and helpers alike.
        assert set(outcome.silo_aggregates) == case.before(Phase.UNMASK)
        for aggregate in outcome.silo_aggregates.values():
            assert {n: v.tolist() for n, v in aggregate.values.items()} == total
            assert (aggregate.survivors, aggregate.cohort, aggregate.state_hash) == (
                outcome.aggregate.survivors,
                outcome.aggregate.cohort,
                outcome.aggregate.state_hash,
            )

    check()


@given(cases(5), st.randoms(use_true_random=False))
@share_of_examples(0.4)
def test_the_order_of_delivery_changes_nothing(case: Case, order: Random) -> None:
    """Whoever is served first, the same vectors go out and the same sum comes back."""

    class Shuffled(RoundHarness):
        def _deliver_one(self) -> bool:
            seats = list(self._inboxes)
            order.shuffle(seats)
            self._inboxes = {seat: self._inboxes[seat] for seat in seats}
            return super()._deliver_one()

    plain, one = case.run()
    shuffled, two = case.run(harness=Shuffled)
    assert (one.aborted and one.aborted.reason) == (two.aborted and two.aborted.reason)
    assert {s: store.vectors.get(MASKED) for s, store in plain.stores.items()} == {
        s: store.vectors.get(MASKED) for s, store in shuffled.stores.items()
    }
    if one.aggregate is None:
        assert two.aggregate is None
        return
    assert two.aggregate is not None
    assert one.aggregate.survivors == two.aggregate.survivors
    for name, column in one.aggregate.values.items():
        np.testing.assert_array_equal(column, two.aggregate.values[name])


def _masked_words(store: MemoryStore, spec: VectorSpec) -> list[int]:
    words: list[int] = []
    for number, chunk in enumerate(spec.chunks):
        bits = spec.segments[chunk.segment].ring_bits
        words += unpack(store.read(MASKED, number), bits, chunk.count).tolist()
    return words


@given(cases(4), st.sampled_from([16, 32, 48]))
@share_of_examples(0.5)
def test_the_size_of_a_chunk_changes_no_word(case: Case, chunk_words: int) -> None:
    """Masks and tags belong to coordinates, not to the pieces that they travel in."""
    wire = case.parameters.wire_spec
    whole, one = case.run()
    expected = {s: _masked_words(h, wire) for s, h in whole.stores.items() if h.chunks(MASKED)}
    with pytest.MonkeyPatch.context() as patch:
        for module in (prg, parameters_module, vectors, verification):
            patch.setattr(module, "CHUNK_WORDS", chunk_words)
        cut, two = case.run()
        assert expected == {
            s: _masked_words(h, wire) for s, h in cut.stores.items() if h.chunks(MASKED)
        }
        for store in (h for s, h in cut.stores.items() if s in expected):
            assert store.chunks(MASKED) == sum(-(-s.length // chunk_words) for s in wire.segments)
    assert (one.aggregate is None) == (two.aggregate is None)
    if one.aggregate is not None and two.aggregate is not None:
        for name, column in one.aggregate.values.items():
            np.testing.assert_array_equal(column, two.aggregate.values[name])
        assert set(two.silo_aggregates) == set(one.silo_aggregates)


@given(st.data())
@share_of_examples(0.5)
def test_the_mean_of_floats_is_within_one_step(data: st.DataObject) -> None:
    """|mean of the decoded sum − mean of the clipped reals| ≤ one step of the quantizer."""
    silos = data.draw(st.sampled_from([3, 4, 5]))
    federation = FEDERATIONS[silos]
    quantizer = Quantizer(
        value_bits=data.draw(st.sampled_from([4, 8, 16, 24, 32])),
        clip_range=data.draw(st.sampled_from([1e-3, 1.0, 50.0])),
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    length = data.draw(st.integers(1, 50))
    spread = quantizer.clip_range * data.draw(st.sampled_from([0.01, 1.0, 3.0]))
    reals = {seat: rng.normal(0, spread, length) for seat in federation.roster.indices}
    spec = VectorSpec(
        segments=(bulk("update", length, value_bits=quantizer.value_bits, n_max=silos),)
    )
    inputs = {
        seat: {"update": quantizer.encode(real, rand=rng.bytes(4 * length)).values}
        for seat, real in reals.items()
    }
    case = Case(
        federation=federation,
        parameters=make_parameters(federation.roster, spec),
        inputs=inputs,
        drop={1: Phase.MASK} if silos > 3 else {},
        late=frozenset(),
    )
    _, outcome = case.run()
    assert outcome.aggregate is not None
    survivors = outcome.aggregate.survivors
    assert len(survivors) == silos - (silos > 3)
    decoded = quantizer.decode(outcome.aggregate.values["update"])
    limit = quantizer.clip_range
    clipped = np.sum([np.clip(reals[seat], -limit, limit) for seat in survivors], axis=0)
    error = np.abs(decoded - clipped).max()
    assert error <= quantizer.error_bound(len(survivors)) * (1 + 1e-9)
    assert error / len(survivors) <= quantizer.step * (1 + 1e-9)

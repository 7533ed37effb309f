"""Secure equals plain: encode, mask, drop out, unmask, decode is a sum, for whoever survives."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl.pipeline import (
    Decoded,
    EncodedContribution,
    IntVector,
    decode_aggregate,
    encode_contribution,
    vector_spec,
    with_usage,
)
from fl.plan import LocalPlan, TaskPlan, TrainingPlan, Weighting
from fl.ports import FloatVector
from fl.weights import silo_weight
from secagg.ids import RunId
from secagg.parameters import VectorSpec, threshold
from secagg.phases import Phase
from secagg.testing import RoundHarness, make_federation, make_parameters, make_succession

RUN = RunId(b"sixteen bytes ..")
NUMBER = 2
SEGMENTS = ("update", "variate_delta")
# Silos to examples: a round costs their square.
EXAMPLES = {3: 20, 4: 20, 5: 20, 10: 8, 20: 4}
# Vanishing there, a silo is not in the sum; later, it is.
BEFORE_UPLOAD = (Phase.ADVERTISE, Phase.SHARE, Phase.MASK)


@dataclass(frozen=True)
class Case:
    """One round: the silos' updates, their examples, and who vanishes when."""

    plan: TrainingPlan
    ranges: dict[str, float]
    updates: dict[int, dict[str, FloatVector]]
    counts: dict[int, int]
    gone: dict[int, Phase]

    @property
    def spec(self) -> VectorSpec:
        """What the round sums."""
        return vector_spec(self.plan, NUMBER, len(self.updates[1]["update"]))

    def encoded(self, seat: int) -> EncodedContribution:
        """One silo's contribution."""
        weight = silo_weight(self.plan, f"silo-{seat}", self.counts[seat])
        parts = {name: weight * values for name, values in self.updates[seat].items()}
        meta = {
            "weight": np.array([min(self.counts[seat], self.plan.n_cap)]),
            "members": np.array([0]),
        }
        return encode_contribution(
            Decoded(bulk=parts, meta=with_usage(parts, meta, self.ranges)),
            spec=self.spec,
            ranges=self.ranges,
            secret=bytes([seat]) * 32,
            run=RUN,
            number=NUMBER,
        )


@st.composite
def cases(draw: st.DrawFn, silos: int) -> Case:
    """A random model, random counts, and as many dropouts as the threshold bears."""
    size = draw(st.integers(1, 60))
    draws = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([1e-6, 0.3, 50.0]))
    colluding = (silos - 1) // 3
    bearable = silos - max(threshold(silos, colluding), 3)
    seats = draw(st.permutations(range(1, silos + 1)))[: draw(st.integers(0, bearable))]
    phases = st.sampled_from([*BEFORE_UPLOAD, Phase.SURVIVORS, Phase.UNMASK])
    return Case(
        plan=TrainingPlan(
            task=TaskPlan(),
            local=LocalPlan(local_steps=2, learning_rate=0.1),
            rounds=3,
            max_silos=silos,
            algorithm="scaffold",
            algorithm_settings={"option": "I"},
            weighting=Weighting.HIDDEN,
            n_cap=100,
            value_bits=draw(st.sampled_from([8, 16, 24])),
            metrics=False,
        ),
        ranges={"update": 1.0, "variate_delta": 20.0},
        updates={
            seat: {name: draws.normal(0, spread, size) for name in SEGMENTS}
            for seat in range(1, silos + 1)
        },
        counts={seat: int(draws.integers(1, 200)) for seat in range(1, silos + 1)},
        gone={seat: draw(phases) for seat in seats},
    )


@pytest.mark.parametrize("silos", list(EXAMPLES))
def test_secure_equals_plain(silos: int) -> None:
    """The aggregate is the survivors' integers, and its mean the floats' within the bound."""

    @given(cases(silos))
    @settings(
        max_examples=EXAMPLES[silos],
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Case) -> None:
        federation = make_federation(silos)
        parameters = make_parameters(
            federation.roster, case.spec, run=RUN, round=NUMBER, n_max=silos
        )
        encoded = {seat: case.encoded(seat) for seat in case.updates}
        outcome = RoundHarness(
            federation=federation,
            parameters=parameters,
            state=b"a state",
            succession=make_succession(federation, parameters, b"a state"),
            train=lambda seat, _parameters, _state: encoded[seat].segments,
            drop=case.gone,
        ).run()
        aggregate = outcome.aggregate
        assert aggregate is not None, outcome.aborted
        expected = {s for s in case.updates if case.gone.get(s) not in BEFORE_UPLOAD}
        assert set(aggregate.survivors) == expected
        for name in case.spec.names:
            total = np.sum([encoded[seat].segments[name] for seat in expected], axis=0)
            np.testing.assert_array_equal(aggregate.values[name], total)
        for other in outcome.silo_aggregates.values():
            for name in case.spec.names:
                np.testing.assert_array_equal(other.values[name], aggregate.values[name])
        check_mean(case, aggregate.values, sorted(expected))

    check()


def check_mean(case: Case, values: Mapping[str, IntVector], survivors: list[int]) -> None:
    """The weighted mean of the clipped floats, within |S| steps over Σ ρ."""
    back = decode_aggregate(values, spec=case.spec, ranges=case.ranges)
    weights = {s: silo_weight(case.plan, f"silo-{s}", case.counts[s]) for s in survivors}
    total = sum(weights.values())
    assert int(back.meta["weight"][0]) / case.plan.n_cap == pytest.approx(total, rel=1e-12)
    for name in SEGMENTS:
        limit = case.ranges[name]
        clipped = [np.clip(weights[s] * case.updates[s][name], -limit, limit) for s in survivors]
        bits = case.spec.segment(name).value_bits
        bound = len(survivors) * limit / (2 ** (bits - 1) - 1) / total
        error = np.abs(back.bulk[name] / total - np.sum(clipped, axis=0) / total).max()
        assert error <= bound * (1 + 1e-9)

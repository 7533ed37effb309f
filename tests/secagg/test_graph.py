"""The k-regular graph: its parameters, its shape, and whole rounds with it."""

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest

from secagg import graph, messages
from secagg.effects import AbortReason
from secagg.errors import ParameterError, PolicyRefusedError, ReplayError, SecAggError
from secagg.graph import complete, find_degree, regular
from secagg.journal import SiloHistory
from secagg.parameters import VectorSpec, bulk, meta
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.ring import IntVector
from secagg.testing import (
    Federation,
    Outcome,
    RoundHarness,
    make_federation,
    make_parameters,
)

SPEC = VectorSpec(
    segments=(bulk("update", 4, value_bits=16, n_max=160), meta("count", 1, bound=2**20))
)
CHANGES = {"mode": "semi-honest", "graph": "regular/10", "n_c": 15}


def colluders(silos: int) -> int:
    """Fifteen in the sizes that are allowed, fewer in the small rounds."""
    return min(silos // 10, 15)


def policy(silos: int) -> SiloPolicy:
    """Of a silo that accepts a regular graph."""
    return SiloPolicy(n_c=colluders(silos), modes=frozenset({"semi-honest"}))


@pytest.mark.parametrize(
    ("silos", "colluding", "percent", "degree", "threshold"),
    [
        (50, 5, 30, 22, 6),
        (100, 10, 30, 34, 11),
        (200, 20, 30, 54, 21),
        (500, 50, 30, 76, 31),
        (1000, 100, 30, 88, 36),
        (50, 10, 30, 26, 11),
        (100, 20, 30, 48, 21),
        (200, 40, 30, 80, 38),
        (500, 100, 30, 120, 57),
        (1000, 200, 30, 140, 67),
    ],
)
def test_the_parameters_of_the_specification(
    silos: int, colluding: int, percent: int, degree: int, threshold: int
) -> None:
    """SA1 spec 1, the columns for a semi-honest server: γ = 0.1 and 0.2 with δ = 0.3."""
    assert find_degree(silos, colluding, percent) == (degree, threshold)


def test_no_graph_stands_too_many() -> None:
    """Half colluding and half dropping out leaves nobody to open."""
    with pytest.raises(ParameterError, match="no regular graph of 150 silos"):
        find_degree(150, 75, 50)


def test_neighborhoods_are_symmetric_and_of_one_size() -> None:
    """Each silo's closed neighborhood has k + 1 members, and neighbors name each other."""
    seats = tuple(range(3, 153))
    degree, threshold = find_degree(150, 15, 10)
    graph = regular(seats, setup=bytes(32), colluding=15, dropout_percent=10)
    assert graph.threshold == threshold
    assert sorted(graph.ring) == list(seats)
    for seat in seats:
        near = graph.holders(seat)
        assert len(near) == degree + 1 < 150
        assert list(near) == sorted(set(near))
        assert seat in near
        assert all(seat in graph.holders(other) for other in near)


def test_the_labels_follow_from_setup() -> None:
    """Another nonce of one silo is another setup, and another ring."""
    seats = tuple(range(1, 151))
    rings = {
        regular(seats, setup=setup, colluding=15, dropout_percent=10).ring
        for setup in (bytes(32), bytes(31) + b"\x01", bytes(32))
    }
    assert len(rings) == 2


def test_the_complete_graph_joins_everybody() -> None:
    """Everybody is everybody's neighbor."""
    graph = complete((1, 2, 5), 2)
    assert {graph.holders(seat) for seat in (1, 2, 5)} == {(1, 2, 5)}


def test_fewer_than_150_silos_get_no_regular_graph() -> None:
    """Below, a sparse graph saves little and costs a much lower threshold."""
    with pytest.raises(ParameterError, match="at least 150 silos, got 149"):
        regular(tuple(range(149)), setup=bytes(32), colluding=5, dropout_percent=10)


@lru_cache(maxsize=2)
def federation(silos: int) -> Federation:
    """One federation for all tests of a size."""
    return make_federation(silos)


def inputs(silos: int) -> dict[int, dict[str, IntVector]]:
    """Integers over each segment's whole range."""
    rng = np.random.default_rng(silos)
    return {
        seat: {
            segment.name: rng.integers(-segment.bound, segment.bound + 1, segment.length)
            for segment in SPEC.segments
        }
        for seat in range(1, silos + 1)
    }


def run(
    silos: int,
    *,
    drop: Mapping[int, Phase] | None = None,
    histories: dict[int, SiloHistory] | None = None,
    **changes: object,
) -> tuple[RoundHarness, Outcome]:
    """One attempt in the semi-honest mode."""
    roster = federation(silos).roster
    values = inputs(silos)
    harness = RoundHarness(
        federation=federation(silos),
        parameters=make_parameters(roster, SPEC, **(CHANGES | {"n_c": colluders(silos)} | changes)),
        state=b"state",
        train=lambda seat, _parameters, _state: values[seat],
        drop=drop,
        histories=histories,
        policies=dict.fromkeys(roster.indices, policy(silos)),
    )
    return harness, harness.run()


# A round of the smallest size that is allowed takes some 15 s; a smaller one shows the same.
SIZES = [40, pytest.param(160, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 30 silos have a graph; the rule for its degree holds for any number."""
    monkeypatch.setattr(graph, "MIN_REGULAR_SILOS", 30)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("silos", SIZES)
def test_a_whole_round_with_dropouts_in_every_phase(silos: int) -> None:
    """Absent, lost after sharing, lost before signing and before opening."""
    absent = (7, 8, silos)
    lost = (1, 20, 21, silos // 2, silos - 1)
    drop = dict.fromkeys(absent, Phase.ADVERTISE) | dict.fromkeys(lost, Phase.MASK)
    drop |= {2: Phase.SURVIVORS, 30: Phase.UNMASK}
    _, outcome = run(silos, drop=drop)
    assert (outcome.silo_errors, outcome.server_errors) == ({}, [])
    assert outcome.aggregate is not None
    survivors = tuple(s for s in range(1, silos + 1) if s not in {*absent, *lost})
    assert outcome.aggregate.survivors == survivors
    values = inputs(silos)
    for name in SPEC.names:
        total = np.sum([values[seat][name] for seat in survivors], axis=0)
        assert outcome.aggregate.values[name].tolist() == total.tolist()
    assert set(outcome.silo_aggregates) == set(range(1, silos + 1)) - set(drop)
    # Each deals to its neighborhood alone.
    degree, _ = find_degree(silos - 3, colluders(silos), 10)
    assert degree < silos // 2
    for _, message in outcome.received:
        if isinstance(message, messages.Share):
            assert len(message.boxes) == degree + 1
        if isinstance(message, messages.Unmask):
            assert len(message.openings) <= degree + 1


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("silos", SIZES)
def test_no_second_attempt_with_the_same_inputs(silos: int) -> None:
    """The quorum of abandons is proven for the complete graph only, so none is enough here."""
    histories: dict[int, SiloHistory] = {}
    drop = dict.fromkeys(range(1, silos * 3 // 4), Phase.SURVIVORS)
    harness, outcome = run(silos, drop=drop, histories=histories)
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.TOO_FEW_SIGNED
    abandons = harness.server.abandons
    assert len(abandons) == silos - len(drop)
    assert not harness.server.may_retry
    changes = CHANGES | {"attempt": 1, "n_c": colluders(silos)}
    again = make_parameters(federation(silos).roster, SPEC, **changes)
    opening = messages.signed(
        messages.RoundOpen(parameters=again, plan=b"a plan", abandons=abandons),
        federation(silos).coordinator,
    )
    second = RoundHarness(
        federation=federation(silos),
        parameters=again,
        state=b"state",
        train=lambda _seat, _parameters, _state: None,
        histories=histories,
        policies=dict.fromkeys(range(1, silos + 1), policy(silos)),
    )
    with pytest.raises(ReplayError, match="no abandon certificate"):
        second.silos[silos].receive(opening)


def test_a_cohort_below_150_ends_without_a_sum() -> None:
    """The silos that did come are too few for the graph that ctx names."""
    drop = dict.fromkeys(range(2, 150), Phase.ADVERTISE) | {1: Phase.ADVERTISE}
    _, outcome = run(151, drop=drop)
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.TOO_FEW_ADVERTISED


def test_silos_refuse_a_graph_that_cannot_be() -> None:
    """A coordinator that goes on with five silos meets their own finder."""
    small = make_federation(5)
    harness = RoundHarness(
        federation=small,
        parameters=make_parameters(small.roster, SPEC, **(CHANGES | {"n_c": 1})),
        state=b"state",
        train=lambda _seat, _parameters, _state: None,
        policies=dict.fromkeys(range(1, 6), SiloPolicy(n_c=1, modes=frozenset({"semi-honest"}))),
    )
    outcome = harness.run()
    assert outcome.aborted is not None
    assert outcome.aborted.reason is AbortReason.TOO_FEW_ADVERTISED
    assert "at least 150 silos" in outcome.aborted.detail
    advertises = tuple(
        message for _, message in outcome.received if isinstance(message, messages.Advertise)
    )
    again = RoundHarness(
        federation=small,
        parameters=harness.server.parameters,
        state=b"state",
        train=lambda _seat, _parameters, _state: None,
        policies=dict.fromkeys(range(1, 6), SiloPolicy(n_c=1, modes=frozenset({"semi-honest"}))),
    )
    opening = messages.signed(
        messages.RoundOpen(parameters=harness.server.parameters, plan=b"a plan"),
        small.coordinator,
    )
    again.silos[1].receive(opening)
    with pytest.raises(SecAggError, match="no graph for this cohort") as caught:
        again.silos[1].receive(messages.Keys(advertises=advertises))
    assert caught.value.code == "A3_ROSTER"


def test_the_mode_must_be_allowed_by_name() -> None:
    """The default policy knows the malicious mode alone."""
    small = make_federation(5)
    parameters = make_parameters(small.roster, SPEC, **(CHANGES | {"n_c": 1}))
    with pytest.raises(PolicyRefusedError, match=r"rule modes: expected \['malicious'\]"):
        SiloPolicy().check(parameters, small.roster)


@pytest.mark.parametrize(
    ("mode", "graph"),
    [
        ("semi-honest", "complete"),
        ("malicious", "regular/10"),
        ("semi-honest", "regular/0"),
        ("semi-honest", "regular/100"),
        ("semi-honest", "regular/1O"),
        ("none", "complete"),
    ],
)
def test_modes_and_graphs_go_together(mode: str, graph: str) -> None:
    """A regular graph is for the semi-honest mode, and the complete one for the other."""
    with pytest.raises(ParameterError, match="expected mode"):
        make_parameters(federation(160).roster, SPEC, mode=mode, graph=graph)


@pytest.mark.parametrize(("total", "marked", "draws"), [(10, 4, 5), (30, 10, 12), (9, 9, 3)])
def test_quantiles_are_the_definitions(total: int, marked: int, draws: int) -> None:
    """The smallest x with P[hits > x] ≤ limit, and the largest with P[hits < x] ≤ limit."""
    chances = graph._hypergeometric(total, marked, draws)
    assert sum(chances) == 1
    for limit in (Fraction(1, 1000), Fraction(1, 10), Fraction(1, 2), Fraction(1)):
        above = [x for x in range(draws + 1) if sum(chances[x + 1 :]) <= limit]
        below = [x for x in range(draws + 1) if sum(chances[:x]) <= limit]
        assert graph._upper_tail_quantile(total, marked, draws, limit) == min(above)
        assert graph._lower_tail_quantile(total, marked, draws, limit) == max(below)

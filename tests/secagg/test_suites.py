"""Every cipher suite through whole rounds, and none without the silo's consent."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from secagg import messages
from secagg.errors import ParameterError, PolicyRefusedError, ReplayError
from secagg.parameters import RoundParameters, VectorSpec, bulk, meta
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.ring import IntVector
from secagg.suites import SUITES, suite_of
from secagg.testing import Outcome, RoundHarness, make_federation, make_parameters
from secagg.transcript import setup_digest

SILOS = range(1, 6)
FEDERATION = make_federation(5)
SPEC = VectorSpec(
    segments=(bulk("update", 40, value_bits=16, n_max=5), meta("count", 3, bound=2**40))
)
ANY = SiloPolicy(suites=frozenset(SUITES))


def inputs(seed: int = 3) -> dict[int, dict[str, IntVector]]:
    """Integers over each segment's whole range."""
    rng = np.random.default_rng(seed)
    return {
        seat: {
            segment.name: rng.integers(-segment.bound, segment.bound + 1, segment.length)
            for segment in SPEC.segments
        }
        for seat in SILOS
    }


def run(
    parameters: RoundParameters,
    *,
    drop: Mapping[int, Phase] | None = None,
    late: frozenset[int] = frozenset(),
    policies: Mapping[int, SiloPolicy] | None = None,
) -> Outcome:
    """One attempt; silos in `late` send no vector."""
    values = inputs()
    return RoundHarness(
        federation=FEDERATION,
        parameters=parameters,
        state=b"state",
        train=lambda seat, _parameters, _state: None if seat in late else values[seat],
        drop=drop,
        policies=dict.fromkeys(SILOS, ANY) if policies is None else policies,
    ).run()


@pytest.mark.parametrize(
    ("drop", "late", "survivors"),
    [
        ({}, frozenset(), (1, 2, 3, 4, 5)),
        ({1: Phase.MASK}, frozenset(), (2, 3, 4, 5)),
        ({5: Phase.MASK}, frozenset(), (1, 2, 3, 4)),
        ({3: Phase.UNMASK}, frozenset(), (1, 2, 3, 4, 5)),
        ({1: Phase.SHARE}, frozenset(), (2, 3, 4, 5)),
        ({}, frozenset({1}), (2, 3, 4, 5)),
        ({}, frozenset({5}), (1, 2, 3, 4)),
    ],
)
@pytest.mark.parametrize("suite", SUITES)
def test_the_sum_is_exact_in_every_suite(
    suite: int, drop: dict[int, Phase], late: frozenset[int], survivors: tuple[int, ...]
) -> None:
    """Dropouts at both ends of the order: in suite 4 they take different ways."""
    parameters = make_parameters(FEDERATION.roster, SPEC, suite=suite)
    outcome = run(parameters, drop=drop, late=late)
    assert (outcome.silo_errors, outcome.server_errors) == ({}, [])
    assert outcome.aggregate is not None
    assert outcome.aggregate.survivors == survivors
    values = inputs()
    for name in SPEC.names:
        total = np.sum([values[seat][name] for seat in survivors], axis=0)
        assert outcome.aggregate.values[name].tolist() == total.tolist()
    assert set(outcome.silo_aggregates) == set(SILOS) - set(drop)


@pytest.mark.parametrize("suite", [2, 3, 4])
def test_a_silo_refuses_a_suite_that_its_policy_does_not_name(suite: int) -> None:
    """The coordinator names the suite; the silo's list decides."""
    parameters = make_parameters(FEDERATION.roster, SPEC, suite=suite)
    outcome = run(parameters, policies={})
    assert outcome.aggregate is None
    assert {type(error) for error in outcome.silo_errors.values()} == {PolicyRefusedError}
    assert "policy rule suites: expected [1]" in str(outcome.silo_errors[1])


def test_the_default_suite_can_be_refused_too() -> None:
    """Who insists on the hybrid suite takes part in no other: there is no way down."""
    strict = dict.fromkeys(SILOS, SiloPolicy(suites=frozenset({4})))
    outcome = run(make_parameters(FEDERATION.roster, SPEC), policies=strict)
    assert {type(error) for error in outcome.silo_errors.values()} == {PolicyRefusedError}
    assert run(make_parameters(FEDERATION.roster, SPEC, suite=4), policies=strict).aggregate


@pytest.mark.parametrize("told", [2, 4])
def test_one_silo_cannot_be_told_another_suite(told: int) -> None:
    """Keys that were advertised for one suite are no keys of an attempt in another."""
    parameters = make_parameters(FEDERATION.roster, SPEC)

    def lie(seat: int, message: messages.Message) -> messages.Message:
        if seat != 2 or not isinstance(message, messages.RoundOpen):
            return message
        other = replace(message, parameters=replace(parameters, suite=told))
        return messages.signed(other, FEDERATION.coordinator)

    outcome = RoundHarness(
        federation=FEDERATION,
        parameters=parameters,
        state=b"state",
        train=lambda seat, _parameters, _state: inputs()[seat],
        policies=dict.fromkeys(SILOS, ANY),
        to_silo=lie,
    ).run()
    assert [type(error) for error in outcome.server_errors][:1] == [ReplayError]
    assert outcome.aggregate is not None
    assert outcome.aggregate.survivors == (1, 3, 4, 5)


def test_the_suite_is_in_every_hash() -> None:
    """Two attempts that differ in the suite alone share no ctx, and so no setup or binding."""
    made = [make_parameters(FEDERATION.roster, SPEC, suite=suite).ctx() for suite in SUITES]
    assert len(set(made)) == len(SUITES)
    assert len({setup_digest(ctx, {}) for ctx in made}) == len(SUITES)


@pytest.mark.parametrize("number", [0, 5, 65535])
def test_an_unknown_suite_is_refused(number: int) -> None:
    """Nobody falls back to a default."""
    with pytest.raises(ParameterError, match="expected a suite of"):
        suite_of(number)
    with pytest.raises(ParameterError, match="expected a suite of"):
        make_parameters(FEDERATION.roster, SPEC, suite=number)

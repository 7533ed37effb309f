"""Tests of secagg.policy."""

from dataclasses import replace
from typing import Any

import pytest

from secagg.errors import ParameterError, PolicyRefusedError
from secagg.ids import FederationId
from secagg.parameters import VectorSpec, bulk, meta
from secagg.policy import SiloPolicy
from secagg.testing import make_federation, make_parameters

ROSTER = make_federation(7).roster
SPEC = VectorSpec(segments=(bulk("update", 4, value_bits=16, n_max=7), meta("n", 1, bound=9)))
PARAMETERS = make_parameters(ROSTER, SPEC)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"n_c": -1}, "n_c must be at least 0"),
        ({"h_min": 1}, "with one honest input a sum is that input"),
        ({"n_min": 1}, "n_min must be at least 2"),
        ({"n_orgs": 0}, "n_orgs at least 1"),
    ],
)
def test_a_policy_cannot_allow_the_sum_of_one(changes: dict[str, Any], match: str) -> None:
    """Whatever the file says."""
    with pytest.raises(ParameterError, match=match):
        SiloPolicy(**changes)


@pytest.mark.parametrize(
    ("silos", "expected"), [(3, 0), (4, 1), (6, 1), (7, 2), (10, 3), (200, 66)]
)
def test_the_default_n_c_is_the_rosters(silos: int, expected: int) -> None:
    """⌊(N−1)/3⌋ of all seats, whoever takes part; a number of the policy's own overrides it."""
    roster = make_federation(silos).roster
    assert SiloPolicy().colluding(roster) == expected
    assert SiloPolicy(n_c=0).colluding(roster) == 0


def test_the_default_policy_accepts_the_default_parameters() -> None:
    """And stricter ones."""
    SiloPolicy().check(PARAMETERS, ROSTER)
    stricter = replace(PARAMETERS, n_c=3, h_min=3, n_min=5, n_orgs=4, h_dp=2)
    SiloPolicy().check(stricter, ROSTER)


@pytest.mark.parametrize(
    ("policy", "changes", "rule"),
    [
        ({}, {"n_c": 1}, "n_c: expected at least 2, the coordinator asks 1"),
        ({"h_min": 3}, {}, "h_min: expected at least 3"),
        ({"n_min": 5}, {"n_min": 4}, "n_min: expected at least 5"),
        ({"n_orgs": 4}, {}, "n_orgs: expected at least 4"),
        ({}, {"federation": FederationId("x")}, "federation: expected test-federation"),
        ({}, {"roster_digest": bytes(32)}, "roster: expected version 1 as this silo knows it"),
        ({}, {"suite": 2}, r"suites: expected \[1\], the coordinator asks 2"),
        ({}, {"mode": "semi-honest", "graph": "regular/30"}, "modes: expected"),
        ({}, {"coefficients": ("common", "odd")}, "coefficients: expected one common vector"),
        ({"min_value_bits": 20}, {}, "value_bits of segment update: expected 20 to 32"),
        ({"max_value_bits": 12}, {}, "value_bits of segment update: expected 4 to 12"),
        ({"training_plans": frozenset()}, {}, "training_plans: expected a pinned plan"),
    ],
)
def test_refusals_name_the_rule(policy: dict[str, Any], changes: dict[str, Any], rule: str) -> None:
    """With what was expected and what was asked."""
    with pytest.raises(PolicyRefusedError, match=f"policy rule {rule}"):
        SiloPolicy(**policy).check(replace(PARAMETERS, **changes), ROSTER)


def test_what_a_policy_lets_through() -> None:
    """A pinned plan, an allowed suite; the bits of meta segments are nobody's choice."""
    SiloPolicy(training_plans=frozenset({PARAMETERS.training_plan})).check(PARAMETERS, ROSTER)
    SiloPolicy(suites=frozenset({1, 2})).check(replace(PARAMETERS, suite=2), ROSTER)
    only_meta = replace(PARAMETERS, spec=VectorSpec(segments=(SPEC.segments[1],)))
    SiloPolicy(min_value_bits=30).check(only_meta, ROSTER)

"""The silo's policy: each rule by its name, at the step at which it is asked."""

from dataclasses import replace
from typing import Any

import pytest

from secagg.errors import ParameterError, PolicyRefusedError, SurvivorsMismatchError
from secagg.ids import FederationId
from secagg.parameters import CoefficientVector, RoundParameters, VectorSpec, bulk, meta
from secagg.policy import MAX_LEDGER_WINDOW, SiloPolicy, privacy_plan_hash
from secagg.testing import make_federation, make_parameters

ROSTER = make_federation(7).roster
SPEC = VectorSpec(
    segments=(bulk("update", 4, value_bits=16, n_max=7), meta("count", 1, bound=2**40))
)
SEATS = tuple(range(1, 8))


def parameters(**changes: Any) -> RoundParameters:
    """What the default policy accepts, with changes."""
    return make_parameters(ROSTER, SPEC, **changes)


def vectors(*weights: tuple[int, ...]) -> dict[str, Any]:
    """Public coefficient vectors for all seats."""
    names = tuple(f"vector{n}" for n in range(len(weights)))
    return {
        "coefficients": names,
        "public_coefficients": tuple(
            CoefficientVector(name=name, seats=SEATS, weights=row)
            for name, row in zip(names, weights, strict=True)
        ),
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_c": -1}, "n_c must be at least 0"),
        ({"h_min": 1}, "h_min must be at least 2"),
        ({"n_min": 1}, "n_min must be at least 2"),
        ({"n_orgs": 0}, "n_orgs at least 1"),
        ({"ledger_window": -1}, r"ledger_window must be in \[0, 64\]"),
        ({"ledger_window": 65}, "ledger_window"),
        ({"min_redundancy": 1}, "expected 0 <= min_redundancy <= max_redundancy"),
        ({"min_redundancy": -1}, "got -1, 0 and None"),
        ({"own_chunks": -1}, "own_chunks >= 0"),
    ],
)
def test_a_policy_that_protects_nothing(changes: dict[str, Any], words: str) -> None:
    """Refused when it is made, with the rule's name."""
    with pytest.raises(ParameterError, match=words):
        SiloPolicy(**changes)


@pytest.mark.parametrize(("silos", "expected"), [(3, 0), (4, 1), (6, 1), (7, 2), (10, 3)])
def test_who_may_collude_depends_on_the_roster_alone(silos: int, expected: int) -> None:
    """A third of the seats by default, whoever takes part."""
    assert SiloPolicy().colluding(make_federation(silos).roster) == expected
    assert SiloPolicy(n_c=4).colluding(ROSTER) == 4


@pytest.mark.parametrize(
    ("policy", "changes", "rule"),
    [
        ({}, {"n_c": 1}, "n_c: expected at least 2, the coordinator asks 1"),
        ({"h_min": 3}, {}, "h_min"),
        ({"h_dp": 3}, {"h_dp": 2}, "h_dp"),
        ({"n_min": 5}, {}, "n_min"),
        ({"n_orgs": 5}, {}, "n_orgs"),
        ({}, {"suite": 3}, "suites"),
        ({}, {"mode": "semi-honest", "graph": "regular/10"}, "modes"),
        ({"max_value_bits": 12}, {}, "value_bits of segment update: expected 4 to 12"),
        ({"max_ring_bits": 18}, {}, "max_ring_bits of segment update: expected at most 18"),
        ({"training_plans": frozenset({bytes(32)})}, {}, "training_plans: expected a pinned one"),
        ({"privacy_plans": frozenset({bytes(32)})}, {"dp": b"plan"}, "privacy_plans"),
        ({"privacy_plans": frozenset({privacy_plan_hash(b"plan")})}, {}, "privacy_plans"),
        ({"max_redundancy": 2}, {"redundancy": 3}, "max_redundancy: expected at most 2"),
        ({}, {"redundancy": 1}, "max_redundancy: expected at most 0"),
        ({"max_redundancy": 2, "min_redundancy": 1}, {}, "min_redundancy: expected at least 1"),
        ({}, vectors((1,) * 7), "coefficients: expected one common vector"),
        (
            {},
            vectors((1,) * 7) | {"coefficients": ("common",)},
            "public_coefficients: expected none",
        ),
        ({"public_coefficients": True}, {"coefficients": ("a", "b")}, "coefficients"),
    ],
)
def test_a_coordinator_that_asks_for_less(
    policy: dict[str, Any], changes: dict[str, Any], rule: str
) -> None:
    """Each rule refuses by its own name."""
    if changes.get("coefficients") == ("common",):
        public = changes["public_coefficients"][0]
        changes |= {"public_coefficients": (replace(public, name="common"),)}
    with pytest.raises(PolicyRefusedError, match=f"policy rule {rule}"):
        SiloPolicy(**policy).check(parameters(**changes), ROSTER)


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ({}, {}),
        ({}, {"n_c": 3, "h_min": 3, "n_min": 7, "n_orgs": 7}),
        ({"n_c": 0}, {"n_c": 0}),
        ({"suites": frozenset({3})}, {"suite": 3}),
        ({"max_value_bits": 16, "max_ring_bits": 19}, {}),
        ({"privacy_plans": frozenset({privacy_plan_hash(b"plan")})}, {"dp": b"plan"}),
        ({"max_redundancy": 2, "min_redundancy": 2}, {"redundancy": 2}),
        ({"public_coefficients": True}, vectors((1,) * 7, (4,) * 7)),
    ],
)
def test_what_a_policy_lets_pass(policy: dict[str, Any], changes: dict[str, Any]) -> None:
    """More protection than it asks for, or exactly that."""
    SiloPolicy(**policy).check(parameters(**changes), ROSTER)


def test_a_round_of_another_roster_or_federation() -> None:
    """The remaining fixed values."""
    foreign = parameters(federation=FederationId("another-federation"))
    with pytest.raises(PolicyRefusedError, match="policy rule federation"):
        SiloPolicy().check(foreign, ROSTER)
    other = make_federation(7, seed=1).roster
    with pytest.raises(PolicyRefusedError, match="policy rule roster: expected version 1"):
        SiloPolicy().check(parameters(), other)
    with pytest.raises(PolicyRefusedError, match="policy rule roster"):
        SiloPolicy().check(parameters(roster_digest=bytes(32)), ROSTER)


@pytest.mark.parametrize(
    ("weights", "u1", "works"),
    [
        # n_c = 2 and h_min = 2; t = 5 of 7, so that two of the seven may drop out.
        (((1, 1, 1, 1, 1, 1, 1),), SEATS, True),
        (((1, 1, 1, 1, 1, 1, 1), (5, 5, 5, 5, 5, 5, 5)), SEATS, True),
        (((20,) * 7, (4, 4, 4, 4, 4, 4, 5)), SEATS, False),
        (((20,) * 7, (4, 4, 4, 4, 4, 4, 5)), (1, 2, 3, 4, 5, 6), True),
        (((1, 1, 1, 1, 1, 1, 0),), SEATS, True),
        (((1, 1, 1, 1, 1, 0, 0),), SEATS, False),
        (((1, 1, 1, 1, 1, 0, 0),), (1, 2, 3, 4, 5), True),
        (((0,) * 7,), SEATS, True),
    ],
)
def test_the_coefficient_rule(
    weights: tuple[tuple[int, ...], ...], u1: tuple[int, ...], *, works: bool
) -> None:
    """Whatever drops out, every combination touches nobody or n_c + h_min silos of the sum."""
    policy = SiloPolicy(public_coefficients=True)
    asked = parameters(**vectors(*weights))
    policy.check(asked, ROSTER)
    if works:
        policy.check_cohort(asked, u1)
        return
    with pytest.raises(PolicyRefusedError, match="policy rule public_coefficients: expected every"):
        policy.check_cohort(asked, u1)


def test_the_coefficient_rule_without_public_vectors() -> None:
    """One common vector that nobody need see."""
    SiloPolicy().check_cohort(parameters(), SEATS)


def test_a_silo_without_a_weight() -> None:
    """A vector must speak of everybody who takes part."""
    asked = parameters(**vectors((1,) * 7))
    with pytest.raises(PolicyRefusedError, match="a weight for every silo of U1"):
        SiloPolicy(public_coefficients=True).check_cohort(asked, (1, 2, 9))


def test_coefficients_that_cannot_be_decided() -> None:
    """Refused: a rule that nobody has checked is none."""
    roster = make_federation(120).roster
    seats = roster.indices
    names = ("a", "b", "c", "d")
    public = tuple(
        CoefficientVector(name=name, seats=seats, weights=tuple(s**n for s in seats))
        for n, name in enumerate(names)
    )
    asked = make_parameters(roster, SPEC, coefficients=names, public_coefficients=public, n_max=7)
    with pytest.raises(PolicyRefusedError, match="few enough to decide"):
        SiloPolicy(public_coefficients=True).check_cohort(asked, seats)


@pytest.mark.parametrize(
    "changes",
    [
        {"coefficients": ("other",)},
        {"coefficients": ("vector0", "vector1")},
        {"coefficients": ()},
    ],
)
def test_public_vectors_have_the_names_of_the_released_ones(changes: dict[str, Any]) -> None:
    """All of them are public, or none is."""
    with pytest.raises(ParameterError, match="expected the public coefficient vectors"):
        parameters(**(vectors((1,) * 7) | changes))


@pytest.mark.parametrize(
    ("seats", "weights"), [((1, 2), (1,)), ((2, 1), (1, 1)), ((1, 1), (1, 1)), ((), (1,))]
)
def test_a_malformed_coefficient_vector(seats: tuple[int, ...], weights: tuple[int, ...]) -> None:
    """One weight for each seat, sorted, once."""
    with pytest.raises(ParameterError, match="one weight for each of its sorted"):
        CoefficientVector(name="a", seats=seats, weights=weights)


def test_a_pinned_first_state() -> None:
    """Asked of a state that does not follow from a result this silo has checked."""
    policy = SiloPolicy(first_states=frozenset({bytes(32)}))
    policy.check_state(bytes(32), is_successor=False)
    policy.check_state(b"\x01" * 32, is_successor=True)
    with pytest.raises(PolicyRefusedError, match="policy rule first_states"):
        policy.check_state(b"\x01" * 32, is_successor=False)
    SiloPolicy().check_state(b"\x01" * 32, is_successor=False)


@pytest.mark.parametrize(
    ("policy", "earlier", "survivors", "rule"),
    [
        ({}, [{1, 2, 3, 4}], {2, 3, 4}, None),
        ({"ledger_window": 4}, [], {1, 2, 3, 4}, None),
        ({"ledger_window": 4}, [{1, 2, 3, 4}], {1, 2, 3, 4}, None),
        ({"ledger_window": 4}, [{1, 2, 3, 4}], {2, 3, 4}, "ledger_window"),
        ({"ledger_window": 4}, [{2, 3, 4}], {1, 2, 3, 4}, "ledger_window"),
        ({"ledger_window": 4}, [{1, 2, 3, 4}], {1, 2, 3}, "ledger_window"),  # shows one who is away
        ({"ledger_window": 2}, [{2, 3}, {4, 5}], {1, 2, 3, 4, 5}, "ledger_window"),
        ({"ledger_window": 1}, [{2, 3}, {4, 5}], {1, 2, 3, 4, 5}, None),
        ({"ledger_min_change": 2}, [], {2, 3, 4}, None),
        ({"ledger_min_change": 2}, [{1, 2, 3, 4}], {1, 2, 3, 4}, None),
        ({"ledger_min_change": 2}, [{1, 2, 3, 4}], {1, 2, 3}, "ledger_min_change"),
        ({"ledger_min_change": 2}, [{1, 2, 3, 4}], {1, 2, 3, 5}, None),
        ({"ledger_min_change": 3}, [{1, 2, 3, 4}], {1, 2, 3, 5}, "ledger_min_change"),
        ({"ledger_window": 4}, [{1, 2, 3, 4}], {1, 2}, None),
        # What earlier sums show, as from before the rule, the same silos again add nothing to.
        ({"ledger_window": 4}, [{1, 2, 3, 4}, {2, 3, 4}], {2, 3, 4}, None),
        ({"ledger_window": 4}, [{1, 2, 3, 4}, {2, 3, 4}], {2, 3}, "ledger_window"),
        # Equal sums are one: it stays in the window, and is as young as the last of them.
        ({"ledger_window": 2}, [{2, 3, 4}, *[{5, 6}] * 9], {1, 2, 3, 4}, "ledger_window"),
        (
            {"ledger_window": 2},
            [{2, 3, 4}, {5, 6}, {7, 8}, {2, 3, 4}],
            {1, 2, 3, 4},
            "ledger_window",
        ),
        ({"ledger_window": 2}, [{2, 3, 4}, {5, 6}, {7, 8}, {5, 6}], {1, 2, 3, 4}, None),
    ],
)
def test_the_participation_ledger(
    policy: dict[str, Any], earlier: list[set[int]], survivors: set[int], rule: str | None
) -> None:
    """Off by default; every silo's input counts, not the own alone."""
    ask = SiloPolicy(**policy).check_ledger
    sums = [frozenset(item) for item in earlier]
    if rule is None:
        ask(sums, frozenset(survivors))
        return
    with pytest.raises(SurvivorsMismatchError, match=f"policy rule {rule}"):
        ask(sums, frozenset(survivors))


def test_the_limits_themselves_are_allowed() -> None:
    """Of the policy's own numbers, and of a segment's bits."""
    loosest = SiloPolicy(n_min=2, n_orgs=1, ledger_window=MAX_LEDGER_WINDOW)
    assert (loosest.n_min, loosest.n_orgs, loosest.ledger_window) == (2, 1, 64)
    for bits in ({"min_value_bits": 16}, {"max_value_bits": 16}):
        SiloPolicy(**bits).check(parameters(), ROSTER)  # type: ignore[arg-type]  # rules by name


def test_without_a_ledger_nothing_is_compared() -> None:
    """Not even a sum of one: floors are others' business."""
    SiloPolicy().check_ledger([frozenset({1, 2, 3})], frozenset({1}))

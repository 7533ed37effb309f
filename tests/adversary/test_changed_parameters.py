"""A server that shows one silo other parameters, or asks for less than a silo's policy allows."""

from dataclasses import fields, replace
from typing import Any

import pytest

from secagg import messages
from secagg.errors import (
    BadSignatureError,
    MalformedMessageError,
    PolicyRefusedError,
    ReplayError,
    WrongPhaseError,
)
from secagg.ids import FederationId, RunId
from secagg.messages import RoundOpen, plan_hash
from secagg.parameters import CoefficientVector, RoundParameters, VectorSpec, bulk, meta
from secagg.policy import SiloPolicy
from secagg.testing import PLAN
from tests.adversary.stage import LENGTH, Stage

pytestmark = pytest.mark.adversary

# Every field of ctx with a value that a lenient silo would accept as well.
OTHER: dict[str, Any] = {
    "suite": 2,
    "mode": "semi-honest",
    "federation": FederationId("another-federation"),
    "run": RunId(b"another run 1234"),
    "roster_digest": bytes(32),
    "kind": "statistics",
    "round": 2,
    "attempt": 1,
    "n_c": 2,
    "h_min": 3,
    "h_dp": 1,
    "n_min": 4,
    "n_orgs": 4,
    "n_max": 5,
    "graph": "regular/30",
    "spec": VectorSpec(
        segments=(
            bulk("update", LENGTH, value_bits=12, n_max=4),
            bulk("variate", LENGTH, value_bits=16, n_max=4),
            meta("count", 2, bound=2**40),
        )
    ),
    "dp": b"a privacy plan",
    "training_plan": bytes(32),
    "coefficients": ("common", "another"),
    "public_coefficients": (
        CoefficientVector(name="common", seats=(1, 2, 3, 4), weights=(1, 1, 1, 2)),
    ),
    "redundancy": 2,
}
# These two go together (a mode has its graph).
TOGETHER = {"mode": {"graph": "regular/30"}, "graph": {"mode": "semi-honest"}}


def _changed(stage: Stage, name: str) -> RoundParameters:
    changes = {name: OTHER[name]} | TOGETHER.get(name, {})
    changed: RoundParameters = replace(stage.parameters, **changes)
    return changed


def test_every_field_of_ctx_is_tried() -> None:
    """A new field needs a line above."""
    assert set(OTHER) == {item.name for item in fields(RoundParameters)}


@pytest.mark.parametrize("name", sorted(OTHER))
def test_another_value_to_one_silo(name: str) -> None:
    """Keys advertised under another ctx are refused by all, by the lured silo as well."""
    stage = Stage(4)
    lured = stage.silos[1]
    # As if the silo's own policy did not mind.
    lured._policy = _Careless()
    opening = replace(stage.opening(_changed(stage, name)), plan=PLAN)
    if name == "training_plan":
        other = b"another plan"
        changed = replace(stage.parameters, training_plan=plan_hash(other))
        unsigned = RoundOpen(parameters=changed, plan=other)
        opening = messages.signed(unsigned, stage.federation.coordinator)
    stage.tell(1, opening)
    for seat in (2, 3, 4):
        stage.tell(seat, stage.opening())
    keys = stage.keys()
    assert len({item.ctx for item in keys.advertises}) == 2
    for seat in stage.cohort:
        stage.refuses(seat, keys, ReplayError, "another attempt")
    assert stage.view.search({}) == []


class _Careless(SiloPolicy):
    """A policy that refuses nothing; for silos that the ctx alone must protect."""

    def check(self, *_: object) -> None:
        """Accept."""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_c", 0),
        ("n_min", 2),
        ("n_orgs", 2),
        ("suite", 3),
        ("mode", OTHER["mode"]),
        ("federation", OTHER["federation"]),
        ("roster_digest", OTHER["roster_digest"]),
        ("coefficients", OTHER["coefficients"]),
        ("coefficients", ()),
        ("public_coefficients", OTHER["public_coefficients"]),
        ("redundancy", OTHER["redundancy"]),
    ],
)
def test_less_than_the_policy_allows(name: str, value: Any) -> None:
    """Refused by the rule's name, before any key is made."""
    changes = {name: value} | TOGETHER.get(name, {})
    stage = Stage(4)
    opening = stage.opening(replace(stage.parameters, **changes))
    error = stage.refuses(1, opening, PolicyRefusedError, "policy rule")
    assert error.code == "A1_POLICY_REFUSED"
    farewell = stage.silos[1].farewell
    assert isinstance(farewell, messages.Refusal)
    assert farewell.reason.startswith("policy rule")
    assert stage.sent[1] == []
    assert stage.journals[1] == []


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (SiloPolicy(h_min=3), "h_min"),
        (SiloPolicy(n_min=4), "n_min"),
        (SiloPolicy(n_orgs=4), "n_orgs"),
        (SiloPolicy(n_c=2), "n_c"),
        (SiloPolicy(min_value_bits=17), "value_bits of segment update"),
        (SiloPolicy(max_value_bits=15), "value_bits of segment update"),
        (SiloPolicy(training_plans=frozenset({bytes(32)})), "training_plans"),
        (SiloPolicy(suites=frozenset({4})), "suites"),
        (SiloPolicy(modes=frozenset({"semi-honest"})), "modes"),
        (SiloPolicy(h_dp=1), "h_dp"),
        (SiloPolicy(max_ring_bits=18), "max_ring_bits of segment update"),
        (SiloPolicy(privacy_plans=frozenset({bytes(32)})), "privacy_plans"),
    ],
)
def test_a_silo_that_is_stricter_than_the_coordinator(policy: SiloPolicy, rule: str) -> None:
    """The silo's limits hold whatever the coordinator proposes."""
    stage = Stage(4, policies={1: policy})
    stage.refuses(1, stage.opening(), PolicyRefusedError, f"policy rule {rule}")
    stage.tell(2, stage.opening())


def test_a_plan_that_is_not_the_one_in_ctx() -> None:
    """The document is not signed; its digest is."""
    stage = Stage(4)
    forged = replace(stage.opening(), plan=b"another plan")
    stage.refuses(1, forged, PolicyRefusedError, "training_plans")


def test_an_opening_that_the_coordinator_did_not_sign() -> None:
    """By a silo, or moved to other parameters."""
    stage = Stage(4)
    by_a_silo = messages.signed(stage.opening(), stage.federation.identities[2])
    stage.refuses(1, by_a_silo, BadSignatureError)
    moved = replace(stage.opening(), parameters=replace(stage.parameters, round=9))
    stage.refuses(2, moved, BadSignatureError)


def test_parameters_changed_in_mid_session() -> None:
    """A second opening of a running attempt."""
    for steps in ("advertise", "share", "announce", "mask", "agree", "open_shares"):
        stage = Stage(4)
        getattr(stage, steps)()
        again = stage.opening(replace(stage.parameters, n_min=4))
        stage.refuses(1, again, WrongPhaseError, "not awaited in phase")
        stage.assert_hidden()


@pytest.mark.parametrize("value", [1, 3, 99])
def test_parameters_that_are_no_parameters(value: int) -> None:
    """A sum of one input, a vector that wraps: the decoder refuses what cannot be a round."""
    stage = Stage(4)
    data = stage.opening().encode()
    honest = stage.parameters.encode()
    fields_ = {1: ("h_min", b"\x00\x00\x00\x02", b"\x00\x00\x00\x01")}
    if value in fields_:
        name, old, new = fields_[value]
        position = [item.name for item in fields(RoundParameters)].index(name)
        forged = _replace_field(honest, position, old, new)
    else:
        forged = _replace_field(honest, 0, b"\x00\x01", value.to_bytes(2, "big") + b"\x00")
    with pytest.raises(MalformedMessageError):
        messages.decode_message(data.replace(honest, forged))


def _replace_field(record: bytes, position: int, old: bytes, new: bytes) -> bytes:
    from secagg.canonical import decode_list, encode_list

    items = list(decode_list(record, max_items=100))
    assert items[position + 1] == old
    items[position + 1] = new
    return encode_list(items)

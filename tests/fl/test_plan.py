"""The plan's document: canonical, strict, and complete."""

import json
from dataclasses import replace
from typing import Any

import pytest

from fl.errors import PlanError
from fl.plan import LocalPlan, RoundKind, TaskPlan, TrainingPlan, Weighting
from fl.schedules import Curve, Schedule
from secagg.messages import plan_hash


def example(**changes: Any) -> TrainingPlan:
    """A plan with every field set."""
    values: dict[str, Any] = {
        "task": TaskPlan(settings={"schema": {"ä": [1, 2.5, None, True]}}),
        "local": LocalPlan(local_steps=5, batch_size=16, learning_rate=0.1),
        "rounds": 3,
        "max_silos": 10,
        "algorithm": "scaffold",
        "algorithm_settings": {"option": "I"},
        "weighting": Weighting.HIDDEN,
        "n_cap": 500,
        "standardize": True,
        "seed": 2**63,
    }
    return TrainingPlan(**{**values, **changes})


def test_round_trip() -> None:
    """Parse gives back the plan, and its document the same bytes."""
    for plan in (
        example(),
        example(weighting="declared", n_cap=0, declared={"a": 1, "b": 0.5}),
        example(weighting="declared", n_cap=0, declared={"a": 1e-6, "b": 1e-9}),
        example(weighting="uniform", n_cap=0, server_learning_rate=1),
    ):
        back = TrainingPlan.parse(plan.document())
        assert back == plan
        assert back.document() == plan.document()
        assert back.digest() == plan.digest() == plan_hash(plan.document())


def test_the_lowest_class_and_the_lowest_rate_each_alone() -> None:
    """What is exactly at the floor is a plan, also where a quotient is rounded."""
    classes = {"weighting": "declared", "n_cap": 0}
    for largest in (1.0, 0.3, 0.7, 1e-7):
        example(declared={"a": largest, "b": 0.001 * largest}, **classes)
    example(declared={"a": 0.2, "b": 0.2}, server_learning_rate=0.001, **classes)


def test_digest_depends_on_every_field() -> None:
    """Whatever changes, the round's ctx changes."""
    plan = example()
    others = [
        replace(plan, rounds=4),
        replace(plan, seed=1),
        replace(plan, metrics=False),
        replace(plan, algorithm="fedavg"),
        replace(plan, local=replace(plan.local, learning_rate=0.2)),
        replace(plan, task=replace(plan.task, settings={})),
    ]
    assert len({one.digest() for one in [plan, *others]}) == len(others) + 1


def test_later_changes_of_settings_do_not_reach_the_plan() -> None:
    """A plan is frozen to the bottom."""
    settings = {"hidden": [8]}
    plan = example(task=TaskPlan(settings=settings))
    before = plan.digest()
    settings["hidden"].append(9)
    assert plan.digest() == before


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda d: d.update(extra=1), "unknown extra"),
        (lambda d: d.pop("rounds"), "missing rounds"),
        (lambda d: d["local"].update(momentum=0.9), r"unknown local\.momentum"),
        (lambda d: d["task"].pop("name"), r"missing task\.name"),
        (lambda d: d.update(local=3), "local"),
        (lambda d: d.update(rounds="3"), "rounds: expected a whole number"),
        (lambda d: d.update(rounds=True), "rounds: .* got True"),
        (lambda d: d.update(metrics=1), "metrics"),
        (lambda d: d.update(weighting="none"), "weighting"),
        (lambda d: d.update(server_learning_rate=1), "canonical"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_documents_are_refused(change: Any, word: str) -> None:
    """The key that is missing, unknown or wrong is named."""
    content = json.loads(example().document())
    change(content)
    document = json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    ).encode()
    with pytest.raises(PlanError, match=word):
        TrainingPlan.parse(document)


def test_no_plan_asks_for_a_second_sum_over_the_same_model() -> None:
    """A silo that reads such a document refuses it, and no schedule falls below the least step.

    With 10^-300 the next state is the last one under another hash: every rule of protocol.md 8
    holds, and two sums whose survivors differ by one silo give its update.
    """
    document = example(server_learning_rate=0.5).document()
    with pytest.raises(PlanError, match="hardly moves"):
        TrainingPlan.parse(document.replace(b'_rate":0.5', b'_rate":1e-300'))
    falling = (
        Schedule(curve=Curve.COSINE),
        Schedule(curve=Curve.EXPONENTIAL, factor=1e-300),
        Schedule(curve=Curve.STEPS, factor=1e-9, at=(1,)),
    )
    for one in falling:
        assert example(rounds=100, server_schedule=one).server_rate(99) == 1e-3
        classes = {"weighting": "declared", "n_cap": 0, "declared": {"a": 0.5, "b": 0.125}}
        diluted = example(rounds=100, server_schedule=one, **classes)
        assert diluted.server_rate(99) == pytest.approx(4e-3)


@pytest.mark.parametrize(
    "document",
    [b"\xff", b"[]", b"", b"{", b'{"rounds": NaN}', example().document() + b" ", b"[" * 10**5],
    ids=range(7),
)
def test_no_json_or_not_canonical(document: bytes) -> None:
    """Bytes that `document` did not write give one typed error."""
    with pytest.raises(PlanError):
        TrainingPlan.parse(document)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"value_bits": 3}, "value_bits"),
        ({"value_bits": 2.5}, "value_bits"),
        ({"first_value_bits": 33}, "first_value_bits"),
        ({"max_silos": 201}, "max_silos"),
        ({"rounds": 0}, "rounds"),
        ({"seed": -1}, "seed"),
        ({"server_learning_rate": float("nan")}, "server_learning_rate"),
        ({"server_learning_rate": "1"}, "server_learning_rate"),
        ({"server_learning_rate": 9e-4}, "server_learning_rate.*hardly moves"),
        ({"n_cap": 0}, "n_cap"),
        ({"weighting": "uniform"}, "n_cap"),
        ({"weighting": "declared", "n_cap": 0}, "declared"),
        ({"weighting": "declared", "n_cap": 0, "declared": {"a": 1.5}}, r"declared\.a"),
        ({"declared": {"a": 1.0}}, "declared"),
        # A class far below another one: whoever has the large one can stop the model with zeros.
        (
            {"weighting": "declared", "n_cap": 0, "declared": {"a": 1.0, "b": 9e-4}},
            r"declared\.b: .*at least 0\.001 of the largest",
        ),
        (
            {"weighting": "declared", "n_cap": 0, "declared": {"a": 9e-10, "b": 1e-6}},
            r"declared\.a",
        ),
        # Nor do two floors multiply.
        (
            {
                "weighting": "declared",
                "n_cap": 0,
                "declared": {"a": 1.0, "b": 0.001},
                "server_learning_rate": 0.5,
            },
            "server_learning_rate.*hardly moves",
        ),
        ({"algorithm_settings": {"x": float("inf")}}, "algorithm_settings"),
        ({"algorithm_settings": 3}, "algorithm_settings"),
        ({"algorithm": ""}, "algorithm"),
    ],
)
def test_values_out_of_range_are_named(changes: dict[str, Any], word: str) -> None:
    """Nothing is opened or trained with a plan that cannot work (ENC-06)."""
    with pytest.raises(PlanError, match=word):
        example(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"local_steps": 0},
        {"batch_size": -1},
        {"learning_rate": 0},
        {"learning_rate": float("inf")},
        {"learning_rate": True},
        {"optimizer": ""},
        {"optimizer_settings": 3},
        {"proximal": -1},
    ],
)
def test_local_values_out_of_range(changes: dict[str, Any]) -> None:
    """The local plan names its field, too."""
    with pytest.raises(PlanError, match=f"local.{next(iter(changes))}"):
        LocalPlan(**{"local_steps": 1, "learning_rate": 0.1, **changes})


def test_numbers_of_rounds() -> None:
    """Kind and precision follow from a round's number."""
    plan = example()
    assert [plan.kind_of(n) for n in (1, 2, 4)] == [
        RoundKind.STATISTICS,
        RoundKind.TRAINING,
        RoundKind.TRAINING,
    ]
    assert [plan.value_bits_of(n) for n in (2, 3, 4)] == [24, 16, 16]
    assert (plan.last_round, plan.highest_round) == (4, 30)
    for number in (0, 31):
        with pytest.raises(PlanError, match="round number"):
            plan.kind_of(number)

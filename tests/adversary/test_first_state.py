"""Rule A5 and the first state: the server begins a run with tensors of its own making.

Control: F(S, z) of such a state has S's model bit for bit and another hash, so the rule about equal
states would not see the second sum over it (docs/protocol.md 8).
"""

from typing import Any

import numpy as np
import pytest

from fl.algorithms import algorithm_of
from fl.errors import SpecMismatchError
from fl.participant import RunParticipant
from fl.pipeline import Decoded, vector_spec
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.run import TrainingRun
from fl.state import (
    ENROLLED,
    LAST_ROUND,
    MODEL,
    PERSONAL,
    SEATS,
    State,
    decode_state,
    encode_state,
    model_of,
)
from fl.step import initial_state, next_state
from fl.testing import DictMemory, LeastSquaresTask, least_squares_toy
from secagg.ids import RunId
from secagg.messages import model_hash
from secagg.parameters import RoundParameters
from secagg.testing import SeededRng, make_federation, make_parameters

NAMES = {1: "a", 2: "b", 3: "c"}
RUN = RunId(bytes(range(16)))
ROSTER = make_federation(3).roster
TASK = least_squares_toy(1, silos=3)["silo-01"]
MAX_BYTES = 10**6
PLANS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {},
    "scaffold I": {"algorithm": "scaffold", "algorithm_settings": {"option": "I"}},
    "fedadam": {"server_learning_rate": 1.0},
    "fedyogi": {"server_learning_rate": 1.0},
    "fedadagrad": {"server_learning_rate": 1.0},
    "qfedavg": {},
    "afl": {},
    "fednova": {},
}


def plan_of(name: str) -> TrainingPlan:
    """A plan for up to four silos of the toy."""
    values: dict[str, Any] = {
        "task": TaskPlan(name="fl.testing:toy_task"),
        "local": LocalPlan(local_steps=2, learning_rate=0.05),
        "rounds": 5,
        "max_silos": 4,
        "metrics": False,
        "algorithm": name,
        **PLANS[name],
    }
    return TrainingPlan(**values)


class Silo:
    """One silo, and what the coordinator asks of it."""

    def __init__(self, name: str, pins: frozenset[bytes] = frozenset()) -> None:
        self.plan = plan_of(name)
        self.one = RunParticipant(
            self.plan,
            run=RUN,
            seat=1,
            names=NAMES,
            task=TASK,
            memory=DictMemory(),
            rng=SeededRng(1),
            first_states=pins,
        )
        run = TrainingRun(self.plan, model=TASK.initial_model(0), names=NAMES)
        self.first = decode_state(run.state, MAX_BYTES)

    def parameters(self, number: int = 1) -> RoundParameters:
        """Of a training round."""
        return make_parameters(
            ROSTER,
            vector_spec(self.plan, number, 1),
            run=RUN,
            round=number,
            n_max=self.plan.max_silos,
            training_plan=self.plan.digest(),
        )

    def answers(self, state: State, number: int = 1) -> bool:
        """Train on it; raises what the silo says."""
        return bool(self.one.contribute(self.parameters(number), encode_state(state)))


def drawn_model(seed: int) -> dict[str, Any]:
    """Float32 weights that depend on the seed."""
    rng = np.random.default_rng(seed)
    return {"weights": rng.normal(size=1).astype(np.float32)}


class DrawnTask(LeastSquaresTask):
    """The toy with such a model."""

    def initial_model(self, seed: int, /) -> dict[str, Any]:
        """By the seed."""
        return drawn_model(seed)


def drawn_silo(plan: TrainingPlan) -> RunParticipant:
    """A silo with such a task."""
    return RunParticipant(
        plan,
        run=RUN,
        seat=1,
        names=NAMES,
        task=DrawnTask(TASK.inputs, TASK.targets),
        memory=DictMemory(),
        rng=SeededRng(1),
    )


@pytest.mark.parametrize("name", PLANS)
def test_every_tensor_beside_the_model_is_the_plan_s(name: str) -> None:
    """Each is changed by itself, in one bit or to what undoes the floor of a step."""
    for tensor in sorted(Silo(name).first):
        if tensor.startswith((MODEL, PERSONAL)) or tensor == SEATS:  # seats: see below
            continue
        first = Silo(name).first
        found = first[tensor]
        odd = [found + 1, found - 1]
        if found.dtype == np.float64:
            odd += [np.full_like(found, one) for one in (1e300, 2.0**-70, -0.0, 0.5)]
            odd += [np.nextafter(found, np.inf)]
        changed = [one for one in odd if one.tobytes() != found.tobytes()]
        assert changed
        for value in changed:
            silo = Silo(name)
            with pytest.raises(SpecMismatchError, match=f"first state: .*{tensor}"):
                silo.answers({**silo.first, tensor: value})


def test_the_control_a_second_moment_makes_the_step_nothing() -> None:
    """What a silo would settle: the same model, another state."""
    silo = Silo("fedadam")
    made = {
        **silo.first,
        "model/weights": np.ones(1),
        "server/second_moment": np.full(1, 1e300),
    }
    spec = vector_spec(silo.plan, 1, 1)
    released = Decoded(
        bulk={"update": np.ones(1)},
        meta={s.name: np.zeros(s.length, np.int64) for s in spec.segments if not s.holds_reals},
    )
    following = next_state(silo.plan, made, 1, released, NAMES)
    assert model_of(following)["weights"].tobytes() == model_of(made)["weights"].tobytes()
    assert encode_state(following) != encode_state(made)


@pytest.mark.parametrize("value", [1e-12, -64.0, 2.0**60])
def test_a_model_of_the_server_s_choice_is_refused(value: float) -> None:
    """Where a last layer is saturated each round's step is alike, however far the model moves."""
    silo = Silo("fedavg")
    with pytest.raises(SpecMismatchError, match="weights: not the initial"):
        silo.answers({**silo.first, "model/weights": np.array([value])})


def test_another_seed_s_model_is_refused() -> None:
    """A model that is drawn; in the last places only may it differ (another CPU)."""
    plan = plan_of("fedavg")
    first = drawn_model(plan.seed)
    one = drawn_silo(plan)
    for found, is_taken in (
        (first, True),
        ({name: np.nextafter(part, np.float32(9)) for name, part in first.items()}, True),
        ({name: part * np.float32(1.0001) for name, part in first.items()}, False),
        (drawn_model(plan.seed + 1), False),
    ):
        state = encode_state(initial_state(plan, found, ()))
        parameters = make_parameters(
            ROSTER,
            vector_spec(plan, 1, sum(part.size for part in first.values())),
            run=RUN,
            round=1,
            n_max=plan.max_silos,
            training_plan=plan.digest(),
        )
        if is_taken:
            assert one.contribute(parameters, state)
        else:
            with pytest.raises(SpecMismatchError, match="not the initial model"):
                one.contribute(parameters, state)


@pytest.mark.parametrize("name", PLANS)
def test_a_pinned_state_may_have_any_model(name: str) -> None:
    """A run from a trained model: the refusal says what to pin; the rest is the plan's."""
    plain = Silo(name)
    trained = {**plain.first, "model/weights": np.array([630.0])}
    digest = model_hash("training", encode_state(trained))
    with pytest.raises(SpecMismatchError, match=f"first_states: {digest.hex()}"):
        plain.answers(trained)
    odd = {**trained, "range/update": np.array(2.0**-70)}
    pins = frozenset({digest, model_hash("training", encode_state(odd))})
    silo = Silo(name, pins)
    assert silo.answers(trained)
    with pytest.raises(SpecMismatchError, match="range/update"):
        silo.answers(odd)


@pytest.mark.parametrize("seats", [(1, 1, 2), (2, 1), (1, 2, 3, 4, 5)])
def test_seats_are_sorted_distinct_and_no_more_than_the_plan_has(seats: tuple[int, ...]) -> None:
    """N, by which SCAFFOLD's c moves, is no number of the server's."""
    silo = Silo("scaffold")
    first = initial_state(silo.plan, TASK.initial_model(0), ())
    first[SEATS] = np.array(seats, dtype=np.int64)
    first[LAST_ROUND] = np.zeros(len(seats), dtype=np.int64)
    first[ENROLLED] = np.array(len(seats), dtype=np.int64)
    with pytest.raises(SpecMismatchError, match=SEATS):
        silo.answers(first)


def test_a_state_that_a_later_round_showed_is_looked_at_again() -> None:
    """What is remembered of a state is not whether it may be the first."""
    silo = Silo("fedavg")
    later = {**silo.first, "range/update": np.array(2.0**-70)}
    assert silo.answers(later, number=2)
    with pytest.raises(SpecMismatchError, match="range/update"):
        silo.answers(later)


def test_the_plans_are_of_all_algorithms_that_keep_something() -> None:
    """Whoever adds an algorithm with tensors of its own adds it here."""
    kept = {name for name in PLANS if algorithm_of(plan_of(name)).initial_state(1)}
    assert kept == set(PLANS)

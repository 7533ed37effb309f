"""FedAvg and SCAFFOLD as formulas, without any round around them."""

from typing import Any

import numpy as np
import pytest

from fl.algorithms import SERVER_VARIATE, UPDATE, VARIATE_DELTA, Sums, algorithm_of
from fl.errors import PlanError, RunStateError
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.ports import FloatVector, LocalResult, Tensor
from fl.state import State, model_of
from fl.step import initial_state

K, RATE = 4, 0.05


def plan(algorithm: str, **changes: Any) -> TrainingPlan:
    """A plan with K = 4 and η = 0.05."""
    values: dict[str, Any] = {
        "task": TaskPlan(),
        "local": LocalPlan(local_steps=K, learning_rate=RATE),
        "rounds": 3,
        "max_silos": 10,
        "algorithm": algorithm,
        **changes,
    }
    return TrainingPlan(**values)


def state_of(one: TrainingPlan, server: list[float]) -> State:
    """A state with the model (1, 2) and this server variate."""
    state = initial_state(one, {"w": np.array([1.0, 2.0])}, (1, 2, 3, 4))
    if SERVER_VARIATE in state:
        state[SERVER_VARIATE] = np.array(server)
    return state


def close(got: Tensor | None, expected: Any) -> None:
    """Equal up to rounding."""
    assert got is not None
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=1e-12)


def test_fedavg_divides_by_those_who_took_part() -> None:
    """Five enrolled, three in the sum, each moved by one: the model moves by one (AGG-03)."""
    algorithm = algorithm_of(plan("fedavg"))
    sums = Sums(segments={UPDATE: np.array([3.0, 3.0])}, weight=3.0, survivors=3, enrolled=5)
    moved = algorithm.apply(state_of(plan("fedavg"), []), sums)
    assert model_of(moved)["w"].tolist() == [2.0, 3.0]


def test_server_learning_rate_scales_the_model_only() -> None:
    """η_g moves x; c moves by what the silos' variates moved."""
    one = plan("scaffold", server_learning_rate=0.5)
    sums = Sums(segments={UPDATE: np.array([2.0, 0.0])}, weight=2.0, survivors=2, enrolled=2)
    moved = algorithm_of(one).apply(state_of(one, [0.0, 0.0]), sums)
    assert model_of(moved)["w"].tolist() == [1.5, 2.0]
    close(moved[SERVER_VARIATE], [-1 / (K * RATE), 0.0])


def test_option_two_is_the_paper_s() -> None:
    """c_k⁺ = c_k − c + (x − y_k) / (Kη), and the correction is c − c_k."""
    one = plan("scaffold")
    algorithm, state = algorithm_of(one), state_of(one, [0.5, -1.0])
    mine, start, after = np.array([2.0, 3.0]), np.array([1.0, 2.0]), np.array([0.8, 2.5])
    correction = algorithm.correction(state, mine)
    assert correction is not None
    close(correction, [0.5 - 2.0, -1.0 - 3.0])
    parts = algorithm.parts(start, LocalResult(model_after=after, steps=K), None, mine)
    assert list(parts) == [UPDATE]
    following = algorithm.next_variate(parts, state, mine)
    expected = mine - [0.5, -1.0] + (start - after) / (K * RATE)
    close(following, expected)


def test_option_one_is_the_gradient_at_x() -> None:
    """c_k⁺ is the full-batch gradient, whatever the local steps did."""
    one = plan("scaffold", algorithm_settings={"option": "I"})
    algorithm, state = algorithm_of(one), state_of(one, [0.5, -1.0])
    mine, gradient = np.array([2.0, 3.0]), np.array([7.0, 8.0])
    result = LocalResult(model_after=np.array([9.0, 9.0]), steps=K)
    parts = algorithm.parts(np.array([1.0, 2.0]), result, gradient, mine)
    close(parts[VARIATE_DELTA], gradient - mine)
    close(algorithm.next_variate(parts, state, mine), gradient)
    with pytest.raises(RunStateError, match="gradient"):
        algorithm.parts(np.array([1.0, 2.0]), result, None, mine)


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.25, 1.0, 0.125]])
def test_the_derived_variate_sum_is_the_sum(weights: list[float]) -> None:
    """Σ ρ_k (c_k⁺ − c_k) = −c Σ ρ_k − Σ ρ_k Δ_k / (Kη), uniform and by data (protocol.md 2.3)."""
    draws = np.random.default_rng(5)
    one = plan("scaffold")
    algorithm, server = algorithm_of(one), draws.normal(size=2)
    state = state_of(one, server.tolist())
    total, moved = np.zeros(2), np.zeros(2)
    for weight in weights:
        mine, update = draws.normal(size=2), draws.normal(size=2)
        following = algorithm.next_variate({UPDATE: update}, state, mine)
        assert following is not None
        total += weight * update
        moved += weight * (following - mine)
    derived = -server * sum(weights) - total / (K * RATE)
    close(derived, moved)
    sums = Sums(segments={UPDATE: total}, weight=sum(weights), survivors=3, enrolled=4)
    after = algorithm.apply(state, sums)[SERVER_VARIATE]
    close(after, server + 3 / 4 * moved / sum(weights))


def test_first_round_starts_from_zero_variates() -> None:
    """All variates are zero at the start and for a late joiner, never drawn (SCA-06)."""
    one = plan("scaffold")
    algorithm, state = algorithm_of(one), state_of(one, [0.0, 0.0])
    correction = algorithm.correction(state, None)
    assert correction is not None
    assert correction.tolist() == [0.0, 0.0]
    update: FloatVector = np.array([0.2, -0.4])
    following = algorithm.next_variate({UPDATE: update}, state, None)
    close(following, -update / (K * RATE))


def test_fedavg_has_neither_correction_nor_variate() -> None:
    """FedAvg keeps nothing at a silo."""
    algorithm, state = algorithm_of(plan("fedavg")), state_of(plan("fedavg"), [])
    assert algorithm.correction(state, None) is None
    assert algorithm.next_variate({}, state, None) is None
    assert (algorithm.has_variate, algorithm.needs_gradient) == (False, False)


@pytest.mark.parametrize(
    ("algorithm", "settings", "word"),
    [
        ("fedprox", {}, "fedavg, scaffold"),
        ("fedavg", {"option": "I"}, "fedavg has none"),
        ("scaffold", {"option": "III"}, "'I' or 'II'"),
        ("scaffold", {"momentum": 0.9}, "'I' or 'II'"),
    ],
)
def test_unknown_algorithms_and_settings_are_refused(
    algorithm: str, settings: dict[str, object], word: str
) -> None:
    """Momentum with SCAFFOLD, too, is refused rather than done wrong."""
    with pytest.raises(PlanError, match=word):
        algorithm_of(plan(algorithm, algorithm_settings=settings))

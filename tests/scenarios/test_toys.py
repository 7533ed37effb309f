"""The articles' toy and R1 through the simulator, plain and secure, with the numbers expected."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.ports import FloatVector, LocalResult, LocalTask, NamedTensors
from fl.rounds import RoundFailure, RoundReport, RunStatus
from fl.run import TrainingRun
from fl.simulation import SimulationResult, simulate
from fl.state import decode_state
from fl.testing import LeastSquaresTask, least_squares_toy, pooled_solution, quadratic_task


def plan(algorithm: str, local_steps: int, rounds: int, **changes: Any) -> TrainingPlan:
    """A plan for up to ten silos; lr 0.1."""
    rate = changes.pop("learning_rate", 0.1)
    return TrainingPlan(
        task=TaskPlan(name="fl.testing:toy_task"),
        local=LocalPlan(local_steps=local_steps, learning_rate=rate),
        rounds=rounds,
        max_silos=10,
        algorithm=algorithm,
        metrics=False,
        **changes,
    )


def curve(
    one: TrainingPlan, tasks: Mapping[str, LocalTask], *, secure: bool
) -> tuple[FloatVector, SimulationResult]:
    """The single parameter after each round, shape (rounds,), and the run's result."""
    seen: list[float] = []

    def note(_outcome: RoundReport | RoundFailure, run: TrainingRun) -> None:
        seen.append(float(run.model()["weights"].astype(np.float64)[0]))

    result = simulate(one, tasks, secure=secure, on_round=note)
    assert result.status is RunStatus.COMPLETED, result.reason
    return np.array(seen), result


def r1(copies: int) -> dict[str, LeastSquaresTask]:
    """R1's two silos, each `copies` times."""
    tasks = {}
    for copy in range(copies):
        tasks[f"one-{copy}"] = quadratic_task(1, 1)
        tasks[f"two-{copy}"] = quadratic_task(3, -1)
    return tasks


# Two silos are below every policy; doubled they have the same mean.
MODES = pytest.mark.parametrize(("secure", "copies"), [(False, 1), (True, 2)])


class WrongSign(LeastSquaresTask):
    """A silo that adds c_k − c instead of c − c_k."""

    def train(
        self,
        model: NamedTensors,
        correction: FloatVector | None,
        local: LocalPlan,
        seed: int,
        round_number: int,
        /,
    ) -> LocalResult:
        flipped = None if correction is None else -correction
        return super().train(model, flipped, local, seed, round_number)


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "at_200"), [("fedavg", (0.3e-3, 6e-3)), ("scaffold", (0, 1e-6))]
)
def test_first_sanity_run(
    algorithm: str,
    at_200: tuple[float, float],
    secure: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ten silos, K = 5: SCAFFOLD finds the pooled solution, FedAvg keeps a drift of some 10⁻³."""
    toy = least_squares_toy(0)
    found, _ = curve(plan(algorithm, 5, 200, learning_rate=0.01), toy, secure=secure)
    distances = np.abs(found - pooled_solution(toy)[0])
    at = f"{distances[59]:.2e} at 60 rounds, {distances[199]:.2e} at 200"
    with capsys.disabled():
        sys.stdout.write(f"\n{algorithm}, secure={secure}, from the pooled solution: {at}")
    assert distances[59] < 0.03
    assert at_200[0] <= distances[199] < at_200[1]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_first_sanity_run_with_other_data(seed: int) -> None:
    """The same bounds hold for other draws of the silos."""
    toy = least_squares_toy(seed)
    solution = float(pooled_solution(toy)[0])
    fedavg, _ = curve(plan("fedavg", 5, 200, learning_rate=0.01), toy, secure=False)
    scaffold, _ = curve(plan("scaffold", 5, 200, learning_rate=0.01), toy, secure=False)
    assert abs(fedavg[59] - solution) < 0.03
    assert abs(scaffold[59] - solution) < 0.03
    assert abs(scaffold[199] - solution) < 1e-6
    assert 0.3e-3 < abs(fedavg[199] - solution) < 6e-3


@MODES
def test_r1_limits(secure: bool, copies: int) -> None:
    """K = 10: SCAFFOLD reaches the optimum −0.5, plain averaging stops at −0.19742."""
    scaffold, _ = curve(plan("scaffold", 10, 60), r1(copies), secure=secure)
    fedavg, _ = curve(plan("fedavg", 10, 60), r1(copies), secure=secure)
    assert scaffold[-1] == pytest.approx(-0.5, abs=1e-5)
    assert fedavg[-1] == pytest.approx(-0.19742, abs=1e-5 if not secure else 1e-4)


@MODES
@pytest.mark.parametrize("option", ["I", "II"])
def test_sca_01_rounds(secure: bool, copies: int, option: str) -> None:
    """K = 2: −0.16, −0.2815, −0.360945 with option II; both options end at −0.5 (SCA-01)."""
    one = plan("scaffold", 2, 60, algorithm_settings={"option": option}, first_value_bits=32)
    found, result = curve(one, r1(copies), secure=secure)
    tolerance = 1e-5 if not secure else 1e-3
    if option == "II":
        np.testing.assert_allclose(found[:3], [-0.16, -0.2815, -0.360945], atol=tolerance)
    assert found[-1] == pytest.approx(-0.5, abs=1e-3)
    server = decode_state(result.state, 10**6)["server_variate"].astype(np.float64)
    mine = [variate for variate in result.variates.values() if variate is not None]
    assert len(mine) == len(r1(copies))
    np.testing.assert_allclose(server, np.mean(mine, axis=0), atol=1e-9)


@MODES
def test_sca_01_variates_after_one_round(secure: bool, copies: int) -> None:
    """c_1 = −0.95, c_2 = 2.55 and c = 0.8 (SCA-01, SCA-09)."""
    _, result = curve(plan("scaffold", 2, 1), r1(copies), secure=secure)
    for name, expected in (("one-0", -0.95), ("two-0", 2.55)):
        variate = result.variates[name]
        assert variate is not None
        np.testing.assert_allclose(variate, [expected], atol=1e-5)
    server = decode_state(result.state, 10**6)["server_variate"].astype(np.float64)
    np.testing.assert_allclose(server, [0.8], atol=1e-5)


def test_a_flipped_sign_is_found_out() -> None:
    """With g + (c_k − c) the second round is −0.2465 and the run diverges (SCA-01)."""
    flipped = {name: WrongSign(task.inputs, task.targets) for name, task in r1(1).items()}
    wrong, _ = curve(plan("scaffold", 2, 60), flipped, secure=False)
    assert wrong[1] == pytest.approx(-0.2465, abs=1e-9)
    assert abs(wrong[-1]) > 1e14


@pytest.mark.parametrize("secure", [False, True])
def test_identical_data_need_no_correction(secure: bool) -> None:
    """The same data everywhere: c_k − c is zero up to rounding, the two curves coincide."""
    task = least_squares_toy(4, silos=1)["silo-01"]
    tasks = {f"silo-{number}": task for number in range(4)}
    scaffold, result = curve(plan("scaffold", 5, 12, learning_rate=0.01), tasks, secure=secure)
    fedavg, _ = curve(plan("fedavg", 5, 12, learning_rate=0.01), tasks, secure=secure)
    # The quantizer's steps: 24 bits of range 8, then 16 bits of range 2, over Kη = 0.05.
    step = 2.0 / (2**15 - 1)
    server = decode_state(result.state, 10**6)["server_variate"].astype(np.float64)
    for variate in result.variates.values():
        assert variate is not None
        limit = 4 * step / 0.05 if secure else 1e-12
        assert np.abs(variate - server).max() <= limit
    assert np.abs(scaffold - fedavg).max() <= (20 * step if secure else 1e-12)
    assert abs(fedavg[-1] - fedavg[0]) > 0.1


def test_differences_of_independent_draws_shrink_like_one_over_root_n() -> None:
    """IID silos: sixteen times the points, a quarter of c_k − c."""
    spreads = []
    for points in (100, 1600):
        squares = []
        for seed in range(12):
            tasks = least_squares_toy(seed, silos=6, points=points, noise=1.0, slopes=False)
            _, result = curve(plan("scaffold", 5, 3, learning_rate=0.01), tasks, secure=False)
            mine = np.array([v for v in result.variates.values() if v is not None])
            squares.append(np.square(mine - mean_of(result)).mean())
        spreads.append(float(np.sqrt(np.mean(squares))))
    assert spreads[0] / spreads[1] == pytest.approx(4, rel=0.35)


def mean_of(result: SimulationResult) -> FloatVector:
    """The server's variate."""
    return decode_state(result.state, 10**6)["server_variate"].astype(np.float64)

"""Every algorithm as a formula, without any round around it, against the papers' formulas."""

import math
from typing import Any

import numpy as np
import pytest

from fl.algorithms import (
    ALGORITHMS,
    SERVER_VARIATE,
    UPDATE,
    VARIATE_DELTA,
    LocalWork,
    Sums,
    algorithm_of,
)
from fl.algorithms.afl import AGNOSTIC_WEIGHT, MEAN_WEIGHT
from fl.algorithms.fednova import path_length
from fl.algorithms.fedopt import FIRST, SECOND
from fl.algorithms.fedsgd import GRADIENT
from fl.algorithms.qfedavg import CURVATURE
from fl.errors import NonFiniteUpdateError, PlanError, RunStateError
from fl.optimizers import Sgd
from fl.pipeline import vector_spec
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.plugins import Group, register
from fl.ports import FloatVector, Tensor
from fl.reals import real_values
from fl.schedules import Curve, Schedule
from fl.state import ENROLLED, TRAINED, State, model_of
from fl.step import initial_state
from fl.work import Work, WorkPlan

K, RATE = 4, 0.05


def plan(algorithm: str, **changes: Any) -> TrainingPlan:
    """A plan with K = 4 and η = 0.05."""
    local = {"local_steps": K, "learning_rate": RATE, **changes.pop("local", {})}
    values: dict[str, Any] = {
        "task": TaskPlan(),
        "local": LocalPlan(**local),
        "rounds": 9,
        "max_silos": 10,
        "algorithm": algorithm,
        **changes,
    }
    return TrainingPlan(**values)


def state_of(one: TrainingPlan, server: list[float] | None = None) -> State:
    """A state with the model (1, 2) and this server variate."""
    state = initial_state(one, {"w": np.array([1.0, 2.0])}, (1, 2, 3, 4))
    if server is not None:
        state[SERVER_VARIATE] = np.array(server)
    return state


def work_of(state: State, change: Any, **more: Any) -> LocalWork:
    """What a silo has after a local training that moved it by `change`."""
    start = np.array([1.0, 2.0])
    return LocalWork(state=state, start=start, after=start + change, steps=K, **more)


def sums_of(segments: dict[str, Any], survivors: int = 2, **more: Any) -> Sums:
    """A released sum of silos that count the same."""
    arrays = {name: np.asarray(values, np.float64) for name, values in segments.items()}
    values = {"weight": float(survivors), "survivors": survivors, "enrolled": 4, **more}
    return Sums(segments=arrays, **values)


def model(state: State) -> list[float]:
    """The model's values."""
    values: list[float] = model_of(state)["w"].astype(np.float64).tolist()
    return values


def close(got: Tensor | list[float] | None, expected: Any) -> None:
    """Equal up to rounding."""
    assert got is not None
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=1e-12, atol=1e-15)


class TestFedAvg:
    def test_divides_by_those_who_took_part(self) -> None:
        """Five enrolled, three in the sum, each moved by one: the model moves by one (AGG-03)."""
        one = plan("fedavg")
        moved = algorithm_of(one).apply(state_of(one), sums_of({UPDATE: [3, 3]}, 3, enrolled=5))
        close(model(moved), [2.0, 3.0])

    def test_neither_corrects_nor_keeps(self) -> None:
        """FedAvg keeps nothing at a silo."""
        one = plan("fedavg")
        algorithm, state = algorithm_of(one), state_of(one)
        assert algorithm.correction(state, None) is None
        assert algorithm.next_kept({}, work_of(state, [0, 0])) is None
        assert not algorithm.traits(1).keeps

    def test_server_schedule(self) -> None:
        """η_g is halved at the second of its rounds."""
        one = plan("fedavg", server_schedule=Schedule(curve=Curve.STEPS, factor=0.5, at=(1,)))
        state = state_of(one)
        close(model(algorithm_of(one).apply(state, sums_of({UPDATE: [2, 2]}))), [2.0, 3.0])
        state[TRAINED] = np.array(1)
        close(model(algorithm_of(one).apply(state, sums_of({UPDATE: [2, 2]}))), [1.5, 2.5])


def test_fedsgd_is_gradient_descent() -> None:
    """X −= η_g Σ n_k g_k / Σ n_k."""
    one = plan("fedsgd", local={"local_steps": 1}, server_learning_rate=0.5)
    algorithm, state = algorithm_of(one), state_of(one)
    gradient = np.array([3.0, -1.0])
    close(algorithm.parts(work_of(state, 0, gradient=gradient))[GRADIENT], gradient)
    moved = algorithm.apply(state, sums_of({GRADIENT: [4, -8]}, weight=8.0))
    close(model(moved), [1 - 0.5 * 0.5, 2 + 0.5 * 1])
    with pytest.raises(RunStateError, match="gradient"):
        algorithm.parts(work_of(state, 0))


class TestFedOpt:
    CHANGES = (np.array([0.3, -0.2]), np.array([-0.1, 0.4]), np.array([0.05, 0.5]))

    def run(self, one: TrainingPlan) -> State:
        """Three rounds with these mean changes."""
        state = state_of(one)
        for change in self.CHANGES:
            state |= algorithm_of(one).apply(state, sums_of({UPDATE: 2 * change}))
        return state

    @pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
    def test_is_the_paper_s(self, name: str) -> None:
        """Reddi et al. 2021, algorithm 2, coordinate by coordinate."""
        b1, b2, tau, rate = 0.8, 0.95, 0.01, 0.3
        settings: dict[str, float] = {"beta1": b1, "tau": tau}
        if name != "fedadagrad":
            settings["beta2"] = b2
        state = self.run(plan(name, algorithm_settings=settings, server_learning_rate=rate))
        for place in range(2):
            x, m, v = [1.0, 2.0][place], 0.0, tau**2
            for change in self.CHANGES:
                d = float(change[place])
                m = b1 * m + (1 - b1) * d
                if name == "fedadagrad":
                    v += d * d
                elif name == "fedyogi":
                    v -= (1 - b2) * d * d * math.copysign(1, v - d * d)
                else:
                    v = b2 * v + (1 - b2) * d * d
                x += rate * m / (math.sqrt(v) + tau)
            assert model(state)[place] == pytest.approx(x, rel=1e-12)
            assert float(state[FIRST][place]) == pytest.approx(m, rel=1e-12)
            assert float(state[SECOND][place]) == pytest.approx(v, rel=1e-12)

    def test_fedavgm_is_the_paper_s(self) -> None:
        """Hsu et al. 2019: v ← βv + Δ, w ← w + v."""
        state = self.run(plan("fedavgm", algorithm_settings={"beta1": 0.5}))
        velocity, x = np.zeros(2), np.array([1.0, 2.0])
        for change in self.CHANGES:
            velocity = 0.5 * velocity + change
            x = x + velocity
        close(model(state), x)
        assert SECOND not in state

    def test_second_moment_may_start_at_zero(self) -> None:
        """As published tables want it."""
        one = plan("fedadam", algorithm_settings={"initial_v": 0, "tau": 1e-8})
        assert state_of(one)[SECOND].tolist() == [0, 0]


class TestFedNova:
    def test_the_published_example(self) -> None:
        """τ = (2, 8), p = (¼, ¾), deltas (−2, +8): x = 3.25, not FedAvg's 5.5 (AGG-06)."""
        one = plan(
            "fednova",
            weighting="declared",
            declared={"a": 0.25, "b": 0.75},
            work=WorkPlan(kind=Work.DECLARED, steps={"a": 2, "b": 8}),
        )
        algorithm, state = algorithm_of(one), initial_state(one, {"w": np.array([0.0])}, (1, 2))
        total = np.zeros(1)
        for weight, steps, change in ((0.25, 2, -2.0), (0.75, 8, 8.0)):
            zero = np.zeros(1)
            work = LocalWork(state=state, start=zero, after=zero + change, steps=steps)
            total += weight * algorithm.parts(work)[UPDATE]
        sums = sums_of({UPDATE: total}, weight=1.0, shares=(("a", 0.25), ("b", 0.75)))
        close(model(algorithm.apply(state, sums)), [3.25])

    def test_equal_steps_are_fedavg(self) -> None:
        """With one τ the normalization cancels (AGG-06)."""
        one = plan("fednova")
        state = state_of(one)
        algorithm = algorithm_of(one)
        total = sum(algorithm.parts(work_of(state, c))[UPDATE] for c in ([1.0, 0], [0, 3.0]))
        moved = algorithm.apply(state, sums_of({UPDATE: total}, shares=(("a", 1.0), ("b", 1.0))))
        close(model(moved), [1.5, 3.5])

    @pytest.mark.parametrize("steps", [1, 2, 7])
    @pytest.mark.parametrize(
        "local",
        [
            {},
            {"optimizer": "momentum", "optimizer_settings": {"momentum": 0.9}},
            {"proximal": 2.0},
        ],
        ids=["sgd", "momentum", "proximal"],
    )
    def test_path_length_is_that_of_the_solver(self, steps: int, local: dict[str, Any]) -> None:
        """a_k is how far constant gradients of one carry the solver, in units of η."""
        momentum = float(local.get("optimizer_settings", {}).get("momentum", 0.0))
        velocity = moved = 0.0
        for _ in range(steps):
            velocity = momentum * velocity + 1 + float(local.get("proximal", 0.0)) * moved
            moved -= RATE * velocity
        made = path_length(plan("fednova", local=local).local, steps, RATE)
        assert made == pytest.approx(-moved / RATE, rel=1e-12)


class TestQFedAvg:
    def test_is_the_paper_s(self) -> None:
        """Li et al. 2020, algorithm 2: w − Σ Δ_k / Σ h_k with L = 1/η."""
        q, lipschitz = 2.0, 1 / RATE
        one = plan("qfedavg", algorithm_settings={"q": q})
        algorithm, state = algorithm_of(one), state_of(one)
        first, second, paper_first, paper_second = np.zeros(2), 0.0, np.zeros(2), 0.0
        for loss, change in ((0.5, np.array([0.1, -0.3])), (2.0, np.array([-0.2, 0.1]))):
            parts = algorithm.parts(work_of(state, change, loss=loss))
            first, second = first + parts[UPDATE], second + float(parts[CURVATURE][0])
            delta_w = lipschitz * -change  # the paper's L (w − w̄)
            paper_first = paper_first + loss**q * delta_w
            paper_second += q * loss ** (q - 1) * float(delta_w @ delta_w) + lipschitz * loss**q
        moved = algorithm.apply(state, sums_of({UPDATE: first}, scalars={CURVATURE: second}))
        close(model(moved), np.array([1.0, 2.0]) - paper_first / paper_second)

    def test_q_zero_is_fedavg(self) -> None:
        """Whatever the losses."""
        one = plan("qfedavg", algorithm_settings={"q": 0})
        algorithm, state = algorithm_of(one), state_of(one)
        parts = [algorithm.parts(work_of(state, c, loss=7.0)) for c in ([1.0, 0], [0, 3.0])]
        sums = sums_of(
            {UPDATE: parts[0][UPDATE] + parts[1][UPDATE]},
            scalars={CURVATURE: float(parts[0][CURVATURE][0] + parts[1][CURVATURE][0])},
        )
        close(model(algorithm.apply(state, sums)), [1.5, 3.5])

    def test_negative_losses_are_refused(self) -> None:
        """Their power would mean nothing."""
        one = plan("qfedavg")
        state = state_of(one)
        with pytest.raises(NonFiniteUpdateError, match="never negative"):
            algorithm_of(one).parts(work_of(state, 0, loss=-0.1))
        with pytest.raises(RunStateError, match="loss"):
            algorithm_of(one).parts(work_of(state, 0))


class TestAgnostic:
    def test_weights_are_the_exponentiated_gradient_s(self) -> None:
        """After each round w_k / Σ w is the mirror ascent's λ_k, by loss alone."""
        one = plan("afl", algorithm_settings={"weight_rate": 0.2, "bound": 3})
        algorithm, state = algorithm_of(one), state_of(one)
        losses = np.array([[1.0, 3.0], [0.5, 2.0], [0.7, 0.9]])
        kept: list[FloatVector | None] = [None, None]
        mixture = np.array([0.5, 0.5])
        for row in losses:
            made = []
            for silo in range(2):
                work = work_of(state, [1.0, 0], loss=float(row[silo]), kept=kept[silo])
                parts = algorithm.parts(work)
                made.append(parts)
                kept[silo] = algorithm.next_kept(parts, work)
            weights = np.array([float(parts[AGNOSTIC_WEIGHT][0]) for parts in made])
            mixture = mixture * np.exp(0.2 * row)
            mixture = mixture / mixture.sum()
            close(weights / weights.sum(), mixture)
            update = made[0][UPDATE] + made[1][UPDATE]
            sums = sums_of({UPDATE: update}, scalars={AGNOSTIC_WEIGHT: float(weights.sum())})
            moved = algorithm.apply(state, sums)
            assert model(moved)[0] == pytest.approx(model(state)[0] + 1)
            assert float(moved[MEAN_WEIGHT][()]) == pytest.approx(weights.mean())
            state |= moved

    @pytest.mark.parametrize("bound", [0.1, 1, 3])
    def test_no_silo_adds_more_than_its_weight_s_bound(self, bound: float) -> None:
        """Or one that lies is the divisor of everybody's mean, and the model stands still."""
        one = plan("afl", algorithm_settings={"bound": bound})
        found = {segment.name: segment.bound for segment in vector_spec(one, 1, 2).segments}
        assert found[f"{AGNOSTIC_WEIGHT}_hi"] == math.ceil(math.exp(bound))
        algorithm, state = algorithm_of(one), state_of(one)
        largest = algorithm.parts(work_of(state, [1.0, 0], loss=1e9))[AGNOSTIC_WEIGHT]
        sent = real_values(AGNOSTIC_WEIGHT, largest, one.max_silos)
        assert all(abs(int(sent[name][0])) <= found[name] for name in sent)

    @pytest.mark.parametrize(("rate", "bound"), [(1.0, 3.5), (0.4, 3), (0.0073, 1), (0.001, 0.1)])
    def test_a_bound_and_a_rate_do_not_make_one_another_nothing(
        self, rate: float, bound: float
    ) -> None:
        """The floor of the step holds where one silo has the largest weight and sends zeros."""
        settings = {"algorithm_settings": {"bound": bound}, "server_learning_rate": rate}
        with pytest.raises(PlanError, match="hardly moves"):
            algorithm_of(plan("afl", **settings))

    def test_no_schedule_falls_below_that_floor(self) -> None:
        """e^2 times 0.001 for the bound 1."""
        one = plan(
            "afl",
            algorithm_settings={"bound": 1},
            server_schedule=Schedule(curve=Curve.EXPONENTIAL, factor=1e-9),
        )
        algorithm, state = algorithm_of(one), state_of(one)
        state["run/trained"] = np.array(2)
        sums = sums_of({UPDATE: [1.0, 0]}, scalars={AGNOSTIC_WEIGHT: 1.0})
        moved = model(algorithm.apply(state, sums))[0] - model(state)[0]
        assert moved == pytest.approx(1e-3 * math.exp(2))

    def test_the_log_weight_is_bounded(self) -> None:
        """No silo can take the sum over, nor the quantizer's range."""
        one = plan("afl", algorithm_settings={"bound": 1})
        algorithm, state = algorithm_of(one), state_of(one)
        parts = algorithm.parts(work_of(state, [1.0, 0], loss=1e6))
        close(parts[AGNOSTIC_WEIGHT], [math.e])
        with pytest.raises(RunStateError, match="loss"):
            algorithm.parts(work_of(state, 0))


class TestScaffold:
    def test_server_learning_rate_scales_the_model_only(self) -> None:
        """η_g moves x; c moves by what the silos' variates moved."""
        one = plan("scaffold", server_learning_rate=0.5)
        moved = algorithm_of(one).apply(state_of(one), sums_of({UPDATE: [2, 0]}, enrolled=4))
        close(model(moved), [1.5, 2.0])
        close(moved[SERVER_VARIATE], [-2 / 4 / (K * RATE), 0.0])

    def test_option_two_is_the_paper_s(self) -> None:
        """c_k⁺ = c_k − c + (x − y_k) / (Kη), and the correction is c − c_k."""
        one = plan("scaffold")
        algorithm, state = algorithm_of(one), state_of(one, [0.5, -1.0])
        mine, change = np.array([2.0, 3.0]), np.array([-0.2, 0.5])
        close(algorithm.correction(state, mine), [0.5 - 2.0, -1.0 - 3.0])
        work = work_of(state, change, kept=mine)
        parts = algorithm.parts(work)
        assert list(parts) == [UPDATE]
        expected = mine - [0.5, -1.0] - change / (K * RATE)
        close(algorithm.next_kept(parts, work), expected)

    def test_a_schedule_changes_the_path(self) -> None:
        """(x − y_k) is divided by this round's own Kη."""
        one = plan("scaffold", local_schedule=Schedule(curve=Curve.EXPONENTIAL, factor=0.5))
        state = state_of(one, [0.0, 0.0])
        state[TRAINED] = np.array(2)
        work = work_of(state, np.array([0.1, 0.2]))
        kept = algorithm_of(one).next_kept({UPDATE: work.change}, work)
        close(kept, -work.change / (K * RATE / 4))

    def test_option_one_is_the_gradient_at_x(self) -> None:
        """c_k⁺ is the full-batch gradient, whatever the local steps did."""
        one = plan("scaffold", algorithm_settings={"option": "I"})
        algorithm, state = algorithm_of(one), state_of(one, [0.5, -1.0])
        mine, gradient = np.array([2.0, 3.0]), np.array([7.0, 8.0])
        work = work_of(state, [8.0, 7.0], kept=mine, gradient=gradient)
        parts = algorithm.parts(work)
        close(parts[VARIATE_DELTA], gradient - mine)
        close(algorithm.next_kept(parts, work), gradient)

    def test_variates_may_move_every_third_round(self) -> None:
        """In between neither c nor c_k moves, and nothing more is uploaded."""
        one = plan("scaffold", algorithm_settings={"option": "I", "variate_every": 3})
        algorithm, state = algorithm_of(one), state_of(one, [0.5, -1.0])
        uploads = [VARIATE_DELTA in algorithm.traits(n).segments for n in range(1, 8)]
        assert uploads == [True, False, False, True, False, False, True]
        mine = np.array([2.0, 3.0])
        work = work_of(state, [1.0, 1.0], kept=mine)
        parts = algorithm.parts(work)
        assert algorithm.next_kept(parts, work) is mine
        close(algorithm.apply(state, sums_of({UPDATE: [2, 2]}))[SERVER_VARIATE], [0.5, -1.0])

    @pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.25, 1.0, 0.125]])
    def test_the_derived_variate_sum_is_the_sum(self, weights: list[float]) -> None:
        """Σ ρ_k (c_k⁺ − c_k) = −c Σ ρ_k − Σ ρ_k Δ_k / (Kη) (protocol.md 2.3)."""
        draws = np.random.default_rng(5)
        one = plan("scaffold")
        algorithm, server = algorithm_of(one), draws.normal(size=2)
        state = state_of(one, server.tolist())
        total, moved = np.zeros(2), np.zeros(2)
        for weight in weights:
            work = work_of(state, draws.normal(size=2), kept=draws.normal(size=2))
            following = algorithm.next_kept({UPDATE: work.change}, work)
            assert following is not None
            assert work.kept is not None
            total += weight * work.change
            moved += weight * (following - work.kept)
        close(-server * sum(weights) - total / (K * RATE), moved)
        sums = sums_of({UPDATE: total}, 3, weight=sum(weights))
        after = algorithm.apply(state, sums)[SERVER_VARIATE]
        close(after, server + 3 / 4 * moved / sum(weights))

    def test_two_of_four_silos_move_c_by_half_their_mean(self) -> None:
        """|S| / N = 2/4: the paper's line 17 (SCA-02)."""
        one = plan("scaffold")
        server = np.array([0.2, -0.1])
        state = state_of(one, server.tolist())
        changes = np.array([[0.1, 0.2], [-0.3, 0.4]])
        moved = algorithm_of(one).apply(state, sums_of({UPDATE: changes.sum(axis=0)}, 2))
        deltas = [-server - change / (K * RATE) for change in changes]
        close(moved[SERVER_VARIATE], server + (deltas[0] + deltas[1]) / 4)

    def test_c_is_scaled_when_a_silo_joins(self) -> None:
        """c_new = N_old / N_new · c, before this round's changes come on top."""
        one = plan("scaffold", algorithm_settings={"option": "I"})
        state = state_of(one, [1.0, 2.0])
        assert int(state[ENROLLED][()]) == 4
        sums = sums_of({UPDATE: [0, 0], VARIATE_DELTA: [3, 3]}, 3, enrolled=5)
        moved = algorithm_of(one).apply(state, sums)
        close(moved[SERVER_VARIATE], [(4 * 1 + 3) / 5, (4 * 2 + 3) / 5])

    def test_first_round_starts_from_zero_variates(self) -> None:
        """All variates are zero at the start and for a late joiner, never drawn (SCA-06)."""
        one = plan("scaffold")
        algorithm, state = algorithm_of(one), state_of(one)
        close(algorithm.correction(state, None), [0.0, 0.0])
        work = work_of(state, np.array([0.2, -0.4]))
        close(algorithm.next_kept({UPDATE: work.change}, work), -work.change / (K * RATE))


MOMENTUM = {"optimizer": "momentum", "optimizer_settings": {"momentum": 0.9}}


register(Group.LOCAL_OPTIMIZER, "own-solver", lambda _settings: Sgd())


def test_a_vanishing_step_size_is_an_error_not_a_division_by_zero() -> None:
    """SCAFFOLD divides by Kη, which a steep schedule drives to zero."""
    one = plan(
        "scaffold", rounds=5000, local_schedule=Schedule(curve=Curve.EXPONENTIAL, factor=0.5)
    )
    state = state_of(one)
    state[TRAINED] = np.array(4000)
    with pytest.raises(RunStateError, match="above 0"):
        algorithm_of(one).apply(state, sums_of({UPDATE: [1, 1]}))


@pytest.mark.parametrize(
    ("algorithm", "changes", "word"),
    [
        ("unknown", {}, "fedavg.*scaffold.*plugin"),
        ("fedavg", {"algorithm_settings": {"option": "I"}}, r"fedavg does not know \['option'\]"),
        ("fedavg", {"local": {"proximal": 0.1}}, "fedprox; say so"),
        ("fedavg", {"local": {"optimizer": "adamw"}}, "local.optimizer.*plugin"),
        ("fedavg", {"local": {"optimizer": "momentum"}}, "momentum, and nothing else"),
        ("fedprox", {}, "μ above 0"),
        ("fedbn", {}, "personal"),
        ("fedsgd", {}, "local_steps = 1"),
        ("fedsgd", {"local": {"local_steps": 1, **MOMENTUM}}, "local.optimizer"),
        ("fedsgd", {"local": {"local_steps": 1}, "personal": ["w"]}, "trains nothing"),
        ("fedadam", {"algorithm_settings": {"beta2": 1}}, "beta2"),
        ("fedadagrad", {"algorithm_settings": {"beta2": 0.9}}, "does not know"),
        ("fedadam", {"algorithm_settings": {"tau": 1e30}}, "tau.*hardly moves"),
        ("fedyogi", {"algorithm_settings": {"initial_v": 1e60}}, "initial_v.*hardly moves"),
        ("fedadagrad", {"algorithm_settings": {"beta1": 1 - 1e-12}}, "beta1"),
        ("qfedavg", {"algorithm_settings": {"q": -1}}, "algorithm_settings.q"),
        ("qfedavg", {"local": MOMENTUM}, "plain steps"),
        ("afl", {"weighting": "hidden", "n_cap": 5}, "afl learns the weights"),
        ("scaffold", {"algorithm_settings": {"option": "III"}}, "'I' or 'II'"),
        ("scaffold", {"algorithm_settings": {"momentum": 0.9}}, "does not know"),
        ("scaffold", {"local": MOMENTUM}, "plain gradients"),
        ("scaffold", {"local": {"proximal": 0.1}}, "plain gradients"),
        ("scaffold", {"work": WorkPlan(kind=Work.OWN)}, "isolate a silo"),
        ("scaffold", {"work": WorkPlan(kind=Work.DRAWN, least=2)}, "isolate a silo"),
        ("scaffold", {"algorithm_settings": {"variate_every": 2}}, "variate_every"),
        ("fednova", {"work": WorkPlan(kind=Work.OWN)}, "constants of the plan"),
        ("fednova", {"weighting": "hidden", "n_cap": 5}, "isolate one silo's n_k"),
        ("fednova", {"local": {"proximal": 0.1, **MOMENTUM}}, "local.proximal"),
        ("fednova", {"local": {"proximal": 30.0}}, "ημ below 1"),
        ("fednova", {"local": {"optimizer": "own-solver"}}, "'sgd' or 'momentum'"),
    ],
)
def test_what_does_not_fit_is_refused(algorithm: str, changes: dict[str, Any], word: str) -> None:
    """Refused with the reason rather than done wrong."""
    with pytest.raises(PlanError, match=word):
        algorithm_of(plan(algorithm, **changes))


def test_every_algorithm_of_the_table_is_there() -> None:
    """One name each."""
    assert set(ALGORITHMS) == {
        *("fedsgd", "fedavg", "fedprox", "scaffold", "fednova", "qfedavg", "afl", "fedbn"),
        *("fedavgm", "fedadagrad", "fedadam", "fedyogi"),
    }

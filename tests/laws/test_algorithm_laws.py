"""Secure equals plain for every algorithm, whoever takes part: the main property of fl."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl.algorithms import ALGORITHMS
from fl.compression import CompressionPlan
from fl.participant import RunParticipant
from fl.participation import ParticipationPlan
from fl.pipeline import decode_aggregate, quantizer_steps, vector_spec
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.reals import UNIT, real_totals
from fl.rounds import RunStatus
from fl.run import TrainingRun
from fl.simulation import Dropouts, SimulationResult, simulate
from fl.state import decode_state, ranges_of
from fl.testing import DictMemory, LeastSquaresTask
from fl.work import Work, WorkPlan
from secagg.ids import RunId
from secagg.phases import Phase
from secagg.testing import SeededRng, make_federation, make_parameters

SILOS = 6
NAMES = {seat: f"silo-{seat}" for seat in range(1, SILOS + 1)}
HIDDEN = {"weighting": "hidden", "n_cap": 40}
DECLARED = {"weighting": "declared", "declared": {n: 0.15 * s for s, n in NAMES.items()}}
STEPS = {name: seat for seat, name in NAMES.items()}
MOMENTUM = {"optimizer": "momentum", "optimizer_settings": {"momentum": 0.8}}

# Name to plan: every algorithm, and the settings that take another path through it.
CASES: dict[str, dict[str, Any]] = {
    "fedsgd": {"local": {"local_steps": 1}, "server_learning_rate": 0.1, **HIDDEN},
    "fedavg": HIDDEN,
    "fedavg/momentum": {"local": MOMENTUM, **DECLARED},
    "fedavg/own-work": {"work": WorkPlan(kind=Work.OWN)},
    "fedprox": {"local": {"proximal": 0.5}, "work": WorkPlan(kind=Work.DRAWN, least=1), **HIDDEN},
    "scaffold": {},
    "scaffold/I": {"algorithm_settings": {"option": "I"}},
    "scaffold/I-every-2": {"algorithm_settings": {"option": "I", "variate_every": 2}},
    "fednova": {"work": WorkPlan(kind=Work.DECLARED, steps=STEPS), **DECLARED},
    "fednova/momentum": {"local": MOMENTUM, "work": WorkPlan(kind=Work.DRAWN, least=1)},
    "fedavgm": HIDDEN,
    "fedadagrad": {"algorithm_settings": {"tau": 0.5}, "server_learning_rate": 0.3},
    "fedadam": {"algorithm_settings": {"tau": 0.5}, "server_learning_rate": 0.3},
    "fedyogi": {"algorithm_settings": {"tau": 0.5}, "server_learning_rate": 0.3, **HIDDEN},
    "qfedavg": {"algorithm_settings": {"q": 1.5}, **HIDDEN},
    "afl": {"algorithm_settings": {"weight_rate": 0.05}},
    "fedbn": {"personal": ["bias"]},
}
EVERY_CASE = pytest.mark.parametrize("case", list(CASES))

ROTATED = CompressionPlan(rotate=True)
BLOCKS = CompressionPlan(block=1, kept=0.75)
COMPRESSED: dict[str, dict[str, Any]] = {
    "fedavg/rotated": {"compression": ROTATED, **HIDDEN},
    "fedavg/blocks": {"compression": BLOCKS},
    "fedavg/both": {"compression": CompressionPlan(rotate=True, block=1, kept=0.5)},
    "fedavg/forgetful": {"compression": CompressionPlan(block=1, kept=0.5, feedback=False)},
    "scaffold/rotated": {"compression": ROTATED},
    "scaffold/I-blocks": {"compression": BLOCKS, "algorithm_settings": {"option": "I"}},
    "fedadam/blocks": {**CASES["fedadam"], "compression": BLOCKS},
}


class TwoTensors(LeastSquaresTask):
    """Least squares with an offset, so that there is a second tensor."""

    def initial_model(self, _seed: int, /) -> dict[str, Any]:
        return {"bias": np.zeros(1), "weights": np.zeros(self.inputs.shape[1] - 1)}

    def train(self, model: Any, correction: Any, *rest: Any) -> Any:
        return super().train(self._joined(model), correction, *rest)

    def gradient(self, model: Any, /) -> Any:
        return super().gradient(self._joined(model))

    def evaluate(self, model: Any, /) -> Any:
        return super().evaluate(self._joined(model))

    @staticmethod
    def _joined(model: Any) -> dict[str, Any]:
        return {"weights": np.concatenate([model["bias"], model["weights"]])}


def tasks(seed: int = 4) -> dict[str, TwoTensors]:
    """Uneven silos whose optima differ."""
    draws = np.random.default_rng(seed)
    made = {}
    for seat, name in NAMES.items():
        rows = 8 * seat
        inputs = np.hstack([np.ones((rows, 1)), draws.normal(size=(rows, 3))])
        truth = draws.normal(size=4)
        made[name] = TwoTensors(inputs, inputs @ truth + 0.1 * draws.normal(size=rows))
    return made


def plan(case: str, **changes: Any) -> TrainingPlan:
    """A plan of a case with 24 bits."""
    values = dict({**CASES, **COMPRESSED}[case])
    local = {"local_steps": 6, "learning_rate": 0.03, **values.pop("local", {})}
    return TrainingPlan(
        **{
            "task": TaskPlan(name="fl.testing:toy_task"),
            "local": LocalPlan(**local),
            "rounds": 4,
            "max_silos": SILOS,
            "algorithm": case.partition("/")[0],
            "value_bits": 24,
            **values,
            **changes,
        }
    )


def own_steps(silo: str, number: int) -> int:
    """What a silo can do in a round, where the plan leaves it to the silos."""
    return 1 + (STEPS[silo] + number) % 6


def run(
    one: TrainingPlan, *, secure: bool, gone: Dropouts, coins: Mapping[int, bytes] | None = None
) -> SimulationResult:
    """The plan's run."""
    result = simulate(
        one, tasks(), secure=secure, dropouts=gone, own_steps=own_steps, coins=coins or {}
    )
    assert result.status is RunStatus.COMPLETED, result.reason
    return result


def vector(result: SimulationResult) -> Any:
    """All that a state holds of model and server, flat."""
    state = decode_state(result.state, 10**6)
    names = [n for n in sorted(state) if n.startswith(("model/", "server"))]
    return np.concatenate([state[name].astype(np.float64).reshape(-1) for name in names])


PHASES = [Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.SURVIVORS, Phase.UNMASK]
SCENARIOS: dict[str, tuple[dict[str, Any], Dropouts]] = {
    "full": ({}, {}),
    "partial": ({"participation": ParticipationPlan(sampler="uniform", fraction=0.6)}, {}),
    "dropouts": ({}, {1: {2: Phase.MASK}, 3: {1: Phase.ADVERTISE}, 4: {5: Phase.UNMASK}}),
}


@pytest.mark.parametrize("case", [*CASES, *COMPRESSED])
@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_secure_runs_are_the_plain_ones(case: str, scenario: str) -> None:
    """Same survivors, and model and server state within the rounding of all rounds.

    A round's mean errs by at most |S| steps over Σ ρ, in each coordinate; what later rounds make
    of it is bounded by a factor that holds for these tasks. Variates are errors divided by Kη.
    Compressed, both send the same blocks and remember what they left out.
    """
    changes, gone = SCENARIOS[scenario]
    survivors = agreeing(plan(case, **changes), gone)
    expected = {"full": [6] * 4, "partial": [4] * 4, "dropouts": [5, 6, 5, 6]}[scenario]
    assert [len(seats) for seats in survivors] == expected


@given(
    case=st.sampled_from([*CASES, *COMPRESSED]),
    fraction=st.sampled_from([0.6, 1.0]),
    gone=st.dictionaries(
        st.integers(1, 4),
        st.dictionaries(st.integers(1, SILOS), st.sampled_from(PHASES), min_size=1, max_size=1),
    ),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_secure_runs_are_the_plain_ones_whoever_vanishes(
    case: str, fraction: float, gone: Dropouts
) -> None:
    """In any rounds and phases, with all silos or a sample."""
    sampler = "all" if fraction == 1 else "uniform"
    participation = ParticipationPlan(sampler=sampler, fraction=fraction)
    survivors = agreeing(plan(case, participation=participation), gone)
    assert all(len(seats) >= 3 for seats in survivors)


def agreeing(one: TrainingPlan, gone: Dropouts) -> list[tuple[int, ...]]:
    """Run a plan both ways and compare; return the survivors of its rounds."""
    secure = run(one, secure=True, gone=gone)
    plain = run(one, secure=False, gone=gone, coins=secure.coins)
    survivors = [report.survivors for report in secure.reports]
    assert survivors == [report.survivors for report in plain.reports]
    assert not any(report.saturated for report in secure.reports)  # clipping is no rounding
    path = one.local.local_steps * one.local.learning_rate
    steps = sum(max(report.steps.values()) for report in secure.reports)
    error = np.abs(vector(secure) - vector(plain)).max()
    assert error <= 10 * steps * max(1.0, 1 / path)
    moved = np.abs(vector(plain)).max()
    assert error < 1e-3 * moved
    return survivors


def test_every_algorithm_has_a_case() -> None:
    """A new one must be added above."""
    assert {case.partition("/")[0] for case in CASES} == set(ALGORITHMS)


@EVERY_CASE
@pytest.mark.parametrize("bits", [6, 16])
def test_each_silo_errs_by_less_than_a_step(case: str, bits: int) -> None:
    """The bound behind the property: one silo, one round, every segment and every real number."""
    one = plan(case, value_bits=bits, first_value_bits=bits)
    run_id, made = RunId(bytes(16)), tasks()
    training = TrainingRun(one, model=made["silo-1"].initial_model(0), names=NAMES)
    size = training.model()["weights"].size + (0 if one.personal else 1)
    spec = vector_spec(one, 1, size)
    parameters = make_parameters(
        make_federation(3).roster, spec, run=run_id, round=1, kind="training", n_max=SILOS
    )
    ranges = ranges_of(decode_state(training.state, 10**6))
    for seat, name in NAMES.items():
        silo, twin = (
            RunParticipant(
                one,
                run=run_id,
                seat=seat,
                names=NAMES,
                task=made[name],
                memory=DictMemory(),
                rng=SeededRng(seat),
            )
            for _ in range(2)
        )
        integers = silo.contribute(parameters, training.state)
        decoded = decode_aggregate(integers, spec=spec, ranges=ranges)
        exact = twin.contribute_exact(1, training.state, b"")
        for segment, step in quantizer_steps(spec, ranges).items():
            clipped = np.clip(exact.bulk[segment], -ranges[segment], ranges[segment])
            assert np.abs(decoded.bulk[segment] - clipped).max() <= step * (1 + 1e-9)
        for segment, values in exact.meta.items():
            np.testing.assert_array_equal(decoded.meta[segment], values)


def test_real_numbers_are_summed_to_their_last_bit() -> None:
    """Scalars do not pass the quantizer: they err by 2^-38 a silo."""
    one = plan("afl", rounds=1)
    result = run(one, secure=True, gone={})
    state = decode_state(result.state, 10**6)
    losses = [t.evaluate(t.initial_model(0)).loss_sum / t.n_examples for t in tasks().values()]
    mean = np.mean(np.exp(0.05 * np.array(losses)).clip(np.exp(-3), np.exp(3)))
    assert abs(float(state["server/mean_weight"][()]) - mean) <= 1 / UNIT
    limbs = {"x_hi": np.array([-1]), "x_lo": np.array([UNIT // 2])}
    assert real_totals("x", limbs) == [-UNIT // 2]

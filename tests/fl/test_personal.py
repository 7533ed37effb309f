"""Personal layers: trained and kept at the silo, never sent, summed or released."""

from typing import Any

import numpy as np
import pytest

from fl.errors import PlanError
from fl.participant import RunParticipant
from fl.personal import Division, split_personal
from fl.pipeline import vector_spec
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.rounds import RunStatus
from fl.simulation import simulate
from fl.state import decode_state, model_of, personal_of
from fl.testing import DictMemory, LeastSquaresTask
from secagg.canonical import digest, u64
from secagg.ids import RunId
from secagg.testing import SeededRng

MODEL = {"bn.scale": np.ones(2, np.float32), "bn.count": np.array(3), "fc.weight": np.zeros((2, 2))}


def test_patterns_split_a_model() -> None:
    """Shell-style, on whole names."""
    shared, mine = split_personal(MODEL, ("bn.*",))
    assert (sorted(shared), sorted(mine)) == (["fc.weight"], ["bn.count", "bn.scale"])
    assert split_personal(MODEL, ()) == (MODEL, {})
    with pytest.raises(PlanError, match=r"'BN\*' matches no parameter"):
        split_personal(MODEL, ("BN*",))
    with pytest.raises(PlanError, match="leave no parameter"):
        split_personal(MODEL, ("*",))


def test_division_of_flat_vectors() -> None:
    """Shared and personal coordinates in the order of the whole model's names."""
    division = Division(*split_personal(MODEL, ("bn.*",)))
    flat = np.arange(6.0)
    assert division.personal_of(flat).tolist() == [0, 1]
    assert division.shared_of(flat).tolist() == [2, 3, 4, 5]
    widened = division.widened(np.array([7.0, 8, 9, 10]))
    assert widened is not None
    assert widened.tolist() == [0, 0, 7, 8, 9, 10]
    assert division.widened(None) is None


class Offset(LeastSquaresTask):
    """y ≈ w x + b, with b a tensor of its own."""

    def initial_model(self, _seed: int, /) -> dict[str, Any]:
        return {"b": np.zeros(1), "w": np.zeros(1)}

    def train(self, model: Any, correction: Any, *rest: Any) -> Any:
        return super().train(self._joined(model), correction, *rest)

    def gradient(self, model: Any, /) -> Any:
        return super().gradient(self._joined(model))

    def evaluate(self, model: Any, /) -> Any:
        return super().evaluate(self._joined(model))

    @staticmethod
    def _joined(model: Any) -> dict[str, Any]:
        return {"weights": np.concatenate([model["b"], model["w"]])}


def tasks() -> dict[str, Offset]:
    """Silos with one slope and different offsets."""
    draws = np.random.default_rng(3)
    made = {}
    for place in range(4):
        x = draws.normal(size=40)
        made[f"silo-{place}"] = Offset(np.stack([np.ones(40), x], axis=1), 2 * x + 5 * place)
    return made


def plan(**changes: Any) -> TrainingPlan:
    """Forty rounds with the offset personal."""
    values: dict[str, Any] = {
        "task": TaskPlan(name="fl.testing:toy_task"),
        "local": LocalPlan(local_steps=5, learning_rate=0.05),
        "rounds": 40,
        "max_silos": 4,
        "algorithm": "fedbn",
        "personal": ["b"],
        **changes,
    }
    return TrainingPlan(**values)


@pytest.mark.parametrize("algorithm", ["fedbn", "scaffold"])
@pytest.mark.parametrize("secure", [False, True])
def test_each_silo_finds_its_own_offset(algorithm: str, secure: bool) -> None:
    """With a common offset the loss stays high; with personal ones it vanishes."""
    result = simulate(plan(algorithm=algorithm), tasks(), secure=secure)
    assert result.status is RunStatus.COMPLETED, result.reason
    state = decode_state(result.state, 10**6)
    assert sorted(model_of(state)) == ["w"]
    assert personal_of(state)["b"].tolist() == [0.0]  # as at the start, of nobody
    assert float(model_of(state)["w"].astype(np.float64)[0]) == pytest.approx(2, abs=0.01)
    assert result.reports[-1].loss == pytest.approx(0, abs=0.01)
    common = simulate(plan(algorithm="fedavg", personal=[]), tasks(), secure=False)
    assert common.reports[-1].loss is not None
    assert common.reports[-1].loss > 10


def test_a_silo_keeps_its_own_model() -> None:
    """Over restarts, in its memory; nothing of it is in the vector's spec."""
    one, made = plan(), tasks()
    memories = {name: DictMemory() for name in made}
    result = simulate(one, made, memories=memories)
    names = dict(enumerate(sorted(made), start=1))
    run = RunId(digest("simulated-run", u64(0))[:16])
    for seat, name in names.items():
        silo = RunParticipant(
            one,
            run=run,
            seat=seat,
            names=names,
            task=made[name],
            memory=memories[name],
            rng=SeededRng(seat),
        )
        own = silo.own_model(result.state)
        assert float(own["b"].astype(np.float64)[0]) == pytest.approx(5 * (seat - 1), abs=0.05)
    assert vector_spec(one, 1, 1).segment("update").length == 1

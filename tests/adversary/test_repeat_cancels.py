"""A repeat, in which the sum is known: one colluder takes it back, and the model stands still.

Round 1 over all is opened and its Result withheld. Round 2 sums the same state over the same silos,
as rule 5 wants; the server knows the honest sum by now, so a colluder sends minus it. Nothing is
forged: the silos settle F(S, 0), which is S but for a step of the quantizer. Round 3 over it is
without the victim (docs/protocol.md 12). A silo's `least_change` refuses round 3.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fl.errors import SpecMismatchError
from fl.participant import RunParticipant
from fl.pipeline import vector_spec
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.run import TrainingRun
from fl.state import decode_state, model_of, ranges_of
from fl.testing import DictMemory, LeastSquaresTask
from secagg.effects import Aggregate
from secagg.ids import RunId
from secagg.journal import SiloHistory
from secagg.messages import Message, Result
from secagg.parameters import RoundParameters
from secagg.phases import Phase
from secagg.testing import RoundHarness, SeededRng, make_federation, make_parameters

SILOS, SIZE = 7, 3
VICTIM, COLLUDER = 7, 6
RUN = RunId(bytes(range(16)))
MAX_BYTES = 10**6
Values = Mapping[str, NDArray[np.int64]]


class Silos:
    """Seven silos over real rounds; a colluder may replace its update."""

    def __init__(self, *, least_change: float, **changes: Any) -> None:
        values: dict[str, Any] = {
            "task": TaskPlan(name="fl.testing:toy_task"),
            "local": LocalPlan(local_steps=2, learning_rate=0.05),
            "rounds": 50,
            "max_silos": SILOS,
            "metrics": False,
        }
        self.plan = TrainingPlan(**(values | changes))
        rng = np.random.default_rng(5)
        self.federation = make_federation(SILOS)
        self.names = {seat: f"silo-{seat}" for seat in range(1, SILOS + 1)}
        self.tasks = {
            seat: LeastSquaresTask(rng.normal(size=(30, SIZE)), rng.normal(size=30))
            for seat in self.names
        }
        self.memories = {seat: DictMemory() for seat in self.names}
        self.least_change = least_change
        self.parts = {seat: self.restarted(seat) for seat in self.names}
        self.histories = {seat: SiloHistory() for seat in self.names}
        model = self.tasks[1].initial_model(self.plan.seed)
        self.state = TrainingRun(self.plan, model=model, names=self.names).state
        self.sent: dict[int, Values] = {}
        self.refusals: dict[int, str] = {}

    def restarted(self, seat: int) -> RunParticipant:
        """The silo's participant, of a new process."""
        return RunParticipant(
            self.plan,
            run=RUN,
            seat=seat,
            names=self.names,
            task=self.tasks[seat],
            memory=self.memories[seat],
            rng=SeededRng(seat),
            least_change=self.least_change,
        )

    def round(
        self,
        number: int,
        *,
        drop: tuple[int, ...] = (),
        withheld: bool = False,
        update: NDArray[np.int64] | None = None,
    ) -> Aggregate | None:
        """One round on the state there is; a settled one moves it.

        Args:
            number: of the round.
            drop: seats that the server loses before they upload.
            withheld: whether no silo hears of the result.
            update: what the colluder sends instead of its own.
        """
        parameters = make_parameters(
            self.federation.roster,
            vector_spec(self.plan, number, SIZE),
            run=RUN,
            round=number,
            n_max=SILOS,
            training_plan=self.plan.digest(),
        )
        self.sent, self.refusals = {}, {}

        def train(seat: int, asked: RoundParameters, state: bytes) -> Values | None:
            self.parts[seat].check(asked, self.plan.document())
            try:
                values = self.parts[seat].contribute(asked, state, bytes(32))
            except SpecMismatchError as error:
                self.refusals[seat] = str(error)
                return None
            if seat == COLLUDER and update is not None:
                values = {**values, "update": update}
            self.sent[seat] = values
            return values

        def told(_seat: int, message: Message) -> Message | None:
            return None if withheld and isinstance(message, Result) else message

        known = {seat: one.standpoint() for seat, one in self.parts.items()}
        outcome = RoundHarness(
            federation=self.federation,
            parameters=parameters,
            state=self.state,
            train=train,
            to_silo=told,
            plan=self.plan.document(),
            drop=dict.fromkeys(drop, Phase.SHARE),
            histories=self.histories,
            seed=f"{number}",
            standpoints={seat: one for seat, one in known.items() if one is not None},
        ).run()
        following = self.state
        for seat, aggregate in outcome.silo_aggregates.items():
            following = self.parts[seat].settle(aggregate, self.state)
        self.state = following
        return outcome.aggregate

    def reals(self, values: Values, number: int, state: bytes) -> NDArray[np.float64]:
        """The update of a round in reals."""
        bound = vector_spec(self.plan, number, SIZE).segments[0].bound
        return values["update"] / bound * ranges_of(decode_state(state, MAX_BYTES))["update"]


def attack(silos: Silos) -> tuple[NDArray[np.float64] | None, NDArray[np.float64]]:
    """Three rounds; returns what the server finds of the victim, and the victim's update."""
    first_state = silos.state
    first = silos.round(1, withheld=True)
    assert first is not None
    total = silos.reals(first.values, 1, first_state)
    own = silos.reals(silos.sent[COLLUDER], 1, first_state)
    truth = silos.reals(silos.sent[VICTIM], 1, first_state)
    bound, clip = vector_spec(silos.plan, 2, SIZE).segments[0].bound, 8.0
    cancel = np.rint(-(total - own) / clip * bound).astype(np.int64)
    second = silos.round(2, update=cancel)
    assert second is not None
    assert not silos.refusals
    second_state = silos.state
    assert second_state != first_state
    third = silos.round(3, drop=(VICTIM,))
    if third is None:
        return None, truth
    rest = silos.reals(third.values, 3, second_state)
    rest = rest - silos.reals(silos.sent[COLLUDER], 3, second_state)
    return total - own - rest, truth


def test_the_control_without_the_rule() -> None:
    """The limit that section 12 states: the victim's update to a few digits."""
    found, truth = attack(Silos(least_change=0.0))
    assert found is not None
    np.testing.assert_allclose(found, truth, atol=0.02 * np.abs(truth).max())


def test_a_model_that_stands_still_is_not_trained_on() -> None:
    """Every honest silo refuses by the rule's name; the server has one sum, no difference."""
    silos = Silos(least_change=0.01)
    found, _ = attack(silos)
    assert found is None
    assert silos.refusals.keys() >= set(silos.names) - {VICTIM, COLLUDER}
    assert all("policy rule least_change" in said for said in silos.refusals.values())


def test_a_divisor_that_stops_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """q-FedAvg's number has no bound: a colluder makes everybody's step nothing, for one round."""
    silos = Silos(least_change=0.01, algorithm="qfedavg")
    parts = silos.parts[COLLUDER]
    honest = parts.contribute

    def lying(*args: Any) -> dict[str, NDArray[np.int64]]:
        values = honest(*args)
        return {**values, "update": 0 * values["update"], "curvature_hi": np.array([10**13])}

    monkeypatch.setattr(parts, "contribute", lying)
    assert silos.round(1) is not None
    assert silos.round(2, drop=(VICTIM,)) is None
    assert silos.refusals.keys() >= set(silos.names) - {VICTIM, COLLUDER}


def test_an_honest_run_goes_on_also_after_restarts() -> None:
    """The rule stops nothing that learns, and is remembered on the disk."""
    silos = Silos(least_change=0.01)
    for number in range(1, 5):
        assert silos.round(number) is not None
        assert silos.refusals == {}
        silos.parts = {seat: silos.restarted(seat) for seat in silos.names}
    before = model_of(decode_state(silos.state, MAX_BYTES))
    assert silos.round(5, update=np.zeros(SIZE, np.int64)) is not None
    after = model_of(decode_state(silos.state, MAX_BYTES))
    assert any((before[name] != after[name]).any() for name in before)


@pytest.mark.parametrize("least_change", [0.0, 0.01])
def test_what_is_kept_for_the_rule(least_change: float) -> None:
    """Nothing without it: a model's size on the disk is not free."""
    silos = Silos(least_change=least_change)
    silos.round(1)
    kept = any(b"seen" in data for data in silos.memories[1].entries.values())
    assert kept == bool(least_change)

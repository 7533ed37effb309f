"""One silo's side: what it refuses, repeats, keeps and commits."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fl.errors import (
    NonFiniteUpdateError,
    RunStateError,
    SpecMismatchError,
    VariateLostError,
    WeightError,
)
from fl.participant import RunParticipant
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.ports import FloatVector, LocalResult, NamedTensors, Tensor
from fl.rounds import RoundReport, RoundRequest
from fl.run import TrainingRun
from fl.state import TRAINED, decode_state, encode_state
from fl.testing import DictMemory, LeastSquaresTask, least_squares_toy, quadratic_task
from secagg.chain import Standpoint
from secagg.effects import Aggregate
from secagg.ids import RunId
from secagg.parameters import RoundParameters
from secagg.testing import SeededRng, make_federation, make_parameters

NAMES = {1: "a", 2: "b", 3: "c"}
RUN = RunId(bytes(range(16)))
ROSTER = make_federation(3).roster


def plan(algorithm: str = "scaffold", **changes: Any) -> TrainingPlan:
    """A plan for three silos of the toy."""
    values: dict[str, Any] = {
        "task": TaskPlan(name="fl.testing:toy_task"),
        "local": LocalPlan(local_steps=5, learning_rate=0.01),
        "rounds": 6,
        "max_silos": 4,
        "algorithm": algorithm,
        **changes,
    }
    return TrainingPlan(**values)


class Silos:
    """Three participants, their memories, and the run; sums are made without masks."""

    def __init__(self, one: TrainingPlan, tasks: Mapping[int, LeastSquaresTask]) -> None:
        self.plan = one
        self.tasks = tasks
        self.memories = {seat: DictMemory() for seat in NAMES}
        self.participants = {seat: self.restarted(seat) for seat in NAMES}
        self.run = TrainingRun(one, model=tasks[1].initial_model(0), names=NAMES, features=1)

    def restarted(self, seat: int) -> RunParticipant:
        """The participant of a new process over the same memory."""
        return RunParticipant(
            self.plan,
            run=RUN,
            seat=seat,
            names=NAMES,
            task=self.tasks[seat],
            memory=self.memories[seat],
            rng=SeededRng(seat),
        )

    def request(self) -> RoundRequest:
        """What the run wants now."""
        step = self.run.next()
        assert isinstance(step, RoundRequest)
        return step

    def parameters(self, **changes: object) -> RoundParameters:
        """The current attempt's."""
        step = self.request()
        fields = {
            "run": RUN,
            "kind": step.kind.value,
            "round": step.number,
            "attempt": step.attempt,
            "n_max": self.plan.max_silos,
            "training_plan": self.plan.digest(),
        }
        return make_parameters(ROSTER, step.spec, **(fields | changes))

    def aggregate(self, seats: tuple[int, ...] = (1, 2, 3)) -> Aggregate:
        """The exact sum over these seats, after their training."""
        step, parameters = self.request(), self.parameters()
        sent = [self.participants[seat].contribute(parameters, step.state) for seat in seats]
        values = {name: np.sum([one[name] for one in sent], axis=0) for name in step.spec.names}
        return Aggregate(
            values=values,
            survivors=seats,
            cohort=(1, 2, 3),
            parameters=parameters,
            state_hash=step.state_hash,
        )

    def round(
        self, seats: tuple[int, ...] = (1, 2, 3), settling: tuple[int, ...] = (1, 2, 3)
    ) -> None:
        """A whole round, where only some are there for the result."""
        state = self.request().state
        aggregate = self.aggregate(seats)
        assert isinstance(self.run.receive(aggregate), RoundReport)
        for seat in settling:
            assert self.participants[seat].settle(aggregate, state) == self.run.state

    def invariant(self) -> None:
        """Check c = mean c_k over all enrolled silos."""
        server = decode_state(self.run.state, 10**6)["server_variate"].astype(np.float64)
        mine = [p.variate() for p in self.participants.values()]
        mean = np.mean([0 * server if one is None else one for one in mine], axis=0)
        np.testing.assert_allclose(server, mean, atol=1e-12)


@pytest.fixture
def silos() -> Silos:
    """Three silos of the toy under SCAFFOLD."""
    toy = least_squares_toy(1, silos=3)
    return Silos(plan(), dict(enumerate(toy.values(), start=1)))


def test_the_next_state_is_the_run_s_bit_for_bit(silos: Silos) -> None:
    """Every silo recomputes the server's step, and then insists on it (protocol.md 2.5 v)."""
    for _ in range(4):
        silos.round()
        step = silos.request()
        for participant in silos.participants.values():
            expected = Standpoint(round=step.number - 1, model_hash=step.state_hash)
            assert participant.standpoint() == expected
    silos.invariant()


@pytest.mark.parametrize("option", ["I", "II"])
def test_invariant_under_partial_participation(option: str) -> None:
    """After every round c is the mean of all three c_k, whoever took part (SCA-02)."""
    toy = least_squares_toy(2, silos=3)
    one = plan(algorithm_settings={"option": option})
    silos = Silos(one, dict(enumerate(toy.values(), start=1)))
    for seats in ((1, 2), (3,), (1, 2, 3), (2,), (1, 3)):
        silos.round(seats)
        silos.invariant()


def test_variates_are_committed_by_survivors_only(silos: Silos) -> None:
    """Silo 3 trained but is not in the sum: its c_3 stays what it was."""
    silos.round()
    before = silos.participants[3].variate()
    state, parameters = silos.request().state, silos.parameters()
    silos.participants[3].contribute(parameters, state)
    silos.round((1, 2))
    after = silos.participants[3].variate()
    assert before is not None
    assert after is not None
    np.testing.assert_array_equal(after, before)
    silos.invariant()


def test_a_silo_that_missed_the_result_finds_out_from_the_state(silos: Silos) -> None:
    """It was counted in, went away, came back: the state's record settles its variate."""
    silos.round()
    silos.round(settling=(1, 2))
    silos.participants[3] = silos.restarted(3)
    standpoint = silos.participants[3].standpoint()
    assert standpoint is not None
    assert standpoint.round == 1
    silos.round()
    silos.invariant()


@pytest.mark.parametrize("seats", [(1, 2, 3), (1, 2)])
def test_restart_between_rounds_loses_nothing(silos: Silos, seats: tuple[int, ...]) -> None:
    """A new process over the same memory continues the run."""
    for _ in range(2):
        silos.round(seats)
        silos.participants = {seat: silos.restarted(seat) for seat in NAMES}
    silos.round()
    silos.invariant()


def test_settling_twice_is_settling_once(silos: Silos) -> None:
    """A result that comes again after a crash changes nothing."""
    state = silos.request().state
    aggregate = silos.aggregate()
    silos.run.receive(aggregate)
    for _ in range(2):
        for seat in NAMES:
            assert silos.restarted(seat).settle(aggregate, state) == silos.run.state
    silos.invariant()


def test_a_lost_variate_is_detected(silos: Silos) -> None:
    """An empty memory, or an old one, is never taken for zero (SCA-10)."""
    silos.round()
    old = dict(silos.memories[2].entries)
    silos.round()
    for entries in ({}, old):
        silos.memories[2].entries = dict(entries)
        # The old memory still holds round 2's number as provisional only if it contributed then.
        with pytest.raises(VariateLostError, match="restore"):
            silos.restarted(2).contribute(silos.parameters(), silos.request().state)


def test_a_lost_memory_does_not_matter_without_variates() -> None:
    """FedAvg's silos keep nothing that a run counts on."""
    toy = least_squares_toy(1, silos=3)
    silos = Silos(plan("fedavg"), dict(enumerate(toy.values(), start=1)))
    silos.round()
    silos.memories[2].entries.clear()
    silos.participants[2] = silos.restarted(2)
    silos.round()


def test_a_new_attempt_repeats_the_integers(silos: Silos) -> None:
    """Same round and state, same integers, after a restart too (protocol.md 2.5 iii, iv)."""
    silos.round()
    step = silos.request()
    one = silos.participants[1].contribute(silos.parameters(), step.state)
    again = silos.participants[1].contribute(silos.parameters(attempt=1), step.state)
    restarted = silos.restarted(1).contribute(silos.parameters(attempt=2), step.state)
    for name, values in one.items():
        np.testing.assert_array_equal(again[name], values)
        np.testing.assert_array_equal(restarted[name], values)


def test_rounding_coins_are_the_silo_s_own(silos: Silos) -> None:
    """Two silos with the same data do not round alike, nor one silo in two rounds."""
    task = silos.tasks[1]
    twins = Silos(plan("fedavg"), dict.fromkeys(NAMES, task))
    step = twins.request()
    sent = [twins.participants[s].contribute(twins.parameters(), step.state) for s in NAMES]
    secrets = {memory.entries[f"{RUN}/secret"] for memory in twins.memories.values()}
    assert len(secrets) == 3
    assert all(abs(int(one["update"][0]) - int(sent[0]["update"][0])) <= 1 for one in sent)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"run": RunId(bytes(16))}, "run"),
        ({"kind": "statistics"}, "kind"),
        ({"n_max": 3}, "n_max"),
        ({"coefficients": ("common", "other")}, "coefficients"),
        ({"round": plan().highest_round + 1}, f"rounds 1 to {plan().highest_round}"),
        ({"round": 2}, "vector"),
        ({"training_plan": bytes(32)}, "plan"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_rounds_than_the_plan_s_are_refused(
    silos: Silos, changes: dict[str, object], field: str
) -> None:
    """The silo computes what each round is and compares; nothing is trained."""
    participant = silos.participants[1]
    document = silos.plan.document()
    participant.check(silos.parameters(), document)
    with pytest.raises(SpecMismatchError, match=field):
        participant.check(silos.parameters(**changes), document)


def test_another_plan_document_is_refused(silos: Silos) -> None:
    """The plan of the run does not change on the way."""
    other = replace(silos.plan, seed=9).document()
    with pytest.raises(SpecMismatchError, match="plan"):
        silos.participants[1].check(silos.parameters(), other)


def test_a_state_with_other_tensors_is_refused_by_names(silos: Silos) -> None:
    """Missing, unexpected, reshaped: all named before any training (AGG-10)."""
    state = decode_state(silos.request().state, 10**6)
    del state["server_variate"]
    state["model/extra"] = np.zeros(1)
    state["model/weights"] = np.zeros(2)
    with pytest.raises(SpecMismatchError) as caught:
        silos.participants[1].contribute(silos.parameters(), encode_state(state))
    for word in ("missing 'server_variate'", "unexpected 'model/extra'", "'model/weights'"):
        assert word in str(caught.value)


def test_a_state_that_is_not_finite_is_refused(silos: Silos) -> None:
    """NaN in a received model is named, not trained on."""
    state = decode_state(silos.request().state, 10**6)
    state["model/weights"] = np.array([np.nan])
    with pytest.raises(NonFiniteUpdateError, match="model/weights"):
        silos.participants[1].contribute(silos.parameters(), encode_state(state))


def test_no_more_training_rounds_than_the_plan_has(silos: Silos) -> None:
    """Numbers beyond the last are for refreshes; they do not make the training longer."""
    state = decode_state(silos.request().state, 10**6)
    state[TRAINED] = np.array(6)
    with pytest.raises(SpecMismatchError, match="6 training rounds are done"):
        silos.participants[1].contribute(silos.parameters(round=2), encode_state(state))


class Diverging(LeastSquaresTask):
    """A task whose training ends in infinity."""

    def train(
        self,
        model: NamedTensors,
        _correction: FloatVector | None,
        local: LocalPlan,
        _seed: int,
        _round_number: int,
        /,
    ) -> LocalResult:
        weights = model["weights"].astype(np.float64)
        return LocalResult(model_after=weights + np.inf, steps=local.local_steps)


class ShortOfSteps(LeastSquaresTask):
    """A task that stops one step early."""

    def train(
        self,
        model: NamedTensors,
        correction: FloatVector | None,
        local: LocalPlan,
        seed: int,
        round_number: int,
        /,
    ) -> LocalResult:
        fewer = replace(local, local_steps=local.local_steps - 1)
        return super().train(model, correction, fewer, seed, round_number)


class Empty(LeastSquaresTask):
    """A task that reports no examples."""

    @property
    def n_examples(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("kind", "error", "word"),
    [
        (Diverging, NonFiniteUpdateError, "'weights'"),
        (ShortOfSteps, SpecMismatchError, "4 steps"),
        (Empty, WeightError, "n_examples"),
    ],
)
def test_what_cannot_be_used_stays_at_the_silo(
    kind: type[LeastSquaresTask], error: type[Exception], word: str
) -> None:
    """NaN (ENC-08), another K (SCA-04), weight zero (AGG-01): a local error, nothing to upload."""
    silos = Silos(plan(), dict.fromkeys(NAMES, kind(np.ones((2, 1)), np.ones(2))))
    with pytest.raises(error, match=word):
        silos.participants[1].contribute(silos.parameters(), silos.request().state)
    assert f"{RUN}/pending" not in silos.memories[1].entries


def test_a_sum_on_another_state_is_not_settled(silos: Silos) -> None:
    """State and sum must belong together."""
    first = silos.request().state
    silos.round()
    with pytest.raises(SpecMismatchError, match="another state"):
        silos.participants[1].settle(silos.aggregate(), first)


def test_a_survivor_without_memory_of_its_vector_is_an_error(silos: Silos) -> None:
    """The sum says that this silo contributed; it must know with what."""
    state = silos.request().state
    aggregate = silos.aggregate()
    silos.memories[1].entries.clear()
    with pytest.raises(RunStateError, match="remembers no contribution"):
        silos.restarted(1).settle(aggregate, state)


def test_sca_01_numbers() -> None:
    """The variates of R1 after one round of K = 2: −0.95 and 2.55, c = 0.8 (SCA-01, SCA-09)."""
    one = plan(
        local=LocalPlan(local_steps=2, learning_rate=0.1), value_bits=32, first_value_bits=32
    )
    tasks = {1: quadratic_task(1, 1), 2: quadratic_task(3, -1), 3: quadratic_task(1, 1)}
    silos = Silos(one, tasks)
    silos.round((1, 2))
    found: dict[int, Tensor | None] = {s: p.variate() for s, p in silos.participants.items()}
    assert found[3] is None
    for seat, expected in ((1, -0.95), (2, 2.55)):
        variate = found[seat]
        assert variate is not None
        np.testing.assert_allclose(variate.astype(np.float64), [expected], atol=1e-6)
    server = decode_state(silos.run.state, 10**6)["server_variate"]
    np.testing.assert_allclose(server.astype(np.float64), [0.8 * 2 / 3], atol=1e-6)


def test_a_statistics_round_comes_first() -> None:
    """The silo computes its spec, sums moments, and expects mean and scale from round 2 on."""
    toy = least_squares_toy(1, silos=3)
    silos = Silos(plan(standardize=True), dict(enumerate(toy.values(), start=1)))
    silos.participants[1].check(silos.parameters(), silos.plan.document())
    silos.round()
    silos.participants[1].check(silos.parameters(), silos.plan.document())
    pooled = np.concatenate([task.inputs for task in toy.values()])
    state = decode_state(silos.run.state, 10**6)
    mean = state["preprocess/mean"].astype(np.float64)
    np.testing.assert_allclose(mean, pooled.mean(0), atol=1e-9)
    silos.round()
    del state["preprocess/scale"]
    with pytest.raises(SpecMismatchError, match="missing 'preprocess/scale'"):
        silos.participants[1].contribute(silos.parameters(), encode_state(state))

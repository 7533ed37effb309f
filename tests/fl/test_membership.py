"""Silos that join, leave, vanish or lose their variate: c stays the mean of the c_k that count."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fl.errors import LeftRunError, RenewedError, RunStateError, VariateLostError
from fl.participant import RunParticipant
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.ports import FloatVector
from fl.rounds import RoundFailure, RoundReport, RoundRequest, RunStatus
from fl.run import TrainingRun
from fl.simulation import simulate
from fl.state import decode_state, enrolled_of, seats_of
from fl.testing import DictMemory, LeastSquaresTask, least_squares_toy, quadratic_task
from secagg.effects import Aggregate
from secagg.ids import RunId
from secagg.testing import SeededRng, make_federation, make_parameters

NAMES = {1: "a", 2: "b", 3: "c", 4: "d", 5: "e"}
RUN = RunId(bytes(range(16)))
ROSTER = make_federation(5).roster
OPTIONS = pytest.mark.parametrize("option", ["I", "II"])


def plan(**changes: Any) -> TrainingPlan:
    """SCAFFOLD for up to five silos of the toy."""
    values: dict[str, Any] = {
        "task": TaskPlan(name="fl.testing:toy_task"),
        "local": LocalPlan(local_steps=5, learning_rate=0.01),
        "rounds": 40,
        "max_silos": 5,
        "algorithm": "scaffold",
        **changes,
    }
    return TrainingPlan(**values)


class Silos:
    """A run and its participants over memories; sums are made without masks."""

    def __init__(self, one: TrainingPlan, seats: tuple[int, ...]) -> None:
        self.plan = one
        self.tasks = dict(zip(NAMES, least_squares_toy(1, silos=5).values(), strict=True))
        self.memories = {seat: DictMemory() for seat in NAMES}
        self.participants = {seat: self.restarted(seat) for seat in NAMES}
        model = self.tasks[1].initial_model(0)
        self.run = TrainingRun(one, model=model, names={s: NAMES[s] for s in seats})

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

    def round(self, *seats: int, settling: tuple[int, ...] | None = None) -> RoundReport:
        """A whole round over these seats."""
        step = self.request()
        parameters = make_parameters(
            ROSTER,
            step.spec,
            run=RUN,
            kind=step.kind.value,
            round=step.number,
            attempt=step.attempt,
            n_max=self.plan.max_silos,
            training_plan=self.plan.digest(),
        )
        sent = []
        for seat in seats:
            self.participants[seat].check(parameters, self.plan.document())
            sent.append(self.participants[seat].contribute(parameters, step.state))
        aggregate = Aggregate(
            values={name: np.sum([one[name] for one in sent], axis=0) for name in step.spec.names},
            survivors=seats,
            cohort=seats,
            parameters=parameters,
            state_hash=step.state_hash,
        )
        report = self.run.receive(aggregate)
        assert isinstance(report, RoundReport)
        for seat in seats if settling is None else settling:
            assert self.participants[seat].settle(aggregate, step.state) == self.run.state
        return report

    @property
    def server(self) -> FloatVector:
        """C."""
        variate: FloatVector = decode_state(self.run.state, 10**6)["server_variate"].astype(float)
        return variate

    @property
    def enrolled(self) -> int:
        """N."""
        return enrolled_of(decode_state(self.run.state, 10**6))

    def mine(self, *seats: int) -> FloatVector:
        """The mean of these silos' c_k."""
        kept = [self.participants[seat].variate() for seat in seats]
        mean: FloatVector = np.mean(
            [0 * self.server if one is None else one for one in kept], axis=0
        )
        return mean

    def invariant(self, *seats: int) -> None:
        """Check that c is the mean of the c_k of exactly these."""
        assert self.enrolled == len(seats)
        np.testing.assert_allclose(self.server, self.mine(*seats), atol=1e-12)


def test_the_others_hear_of_a_silo_that_is_new_to_the_roster() -> None:
    """Its weight goes by its name, which they learn with the roster."""
    silos = Silos(plan(), (1, 2, 3))
    silos.participants[1]._names.pop(4)  # it came up under a roster without seat 4
    silos.round(1, 2, 3)
    silos.run.admit(4, NAMES[4])
    silos.participants[1].know({4: NAMES[4]})
    silos.round(1, 2, 3, 4)
    silos.invariant(1, 2, 3, 4)


@OPTIONS
def test_a_silo_joins_with_zero(option: str) -> None:
    """From its first sum on N is one more and c counts it in (algorithms.md, rules; SCA-06)."""
    silos = Silos(plan(algorithm_settings={"option": option}), (1, 2, 3))
    for _ in range(3):
        silos.round(1, 2, 3)
    silos.run.admit(4, NAMES[4])
    silos.round(1, 2, 3)
    silos.invariant(1, 2, 3)  # it was not in the sum
    silos.round(1, 3, 4)
    silos.invariant(1, 2, 3, 4)
    silos.round(2, 4)
    silos.invariant(1, 2, 3, 4)


@OPTIONS
def test_two_join_in_one_round_and_one_misses_the_result(option: str) -> None:
    """What it was counted with, it finds in the state's record."""
    silos = Silos(plan(algorithm_settings={"option": option}), (1, 2, 3))
    silos.round(1, 2, 3)
    silos.run.admit(4, NAMES[4])
    silos.run.admit(5, NAMES[5])
    silos.round(1, 2, 3, 4, 5, settling=(1, 2, 3, 4))
    silos.participants[5] = silos.restarted(5)
    silos.round(1, 2, 3, 4, 5)
    silos.invariant(1, 2, 3, 4, 5)


@OPTIONS
def test_a_silo_leaves_in_good_order(option: str) -> None:
    """It uploads −c_k; what stays in c is less than a step of the quantizer."""
    silos = Silos(plan(algorithm_settings={"option": option}), (1, 2, 3, 4))
    for _ in range(4):
        silos.round(1, 2, 3, 4)
    silos.participants[4].leave()
    report = silos.round(1, 2, 3, 4)
    while silos.enrolled == 4:  # −c_k lies beyond the range of Δc_k: it widens fourfold a round
        assert report.saturated
        silos.invariant(1, 2, 3, 4)
        report = silos.round(1, 2, 3, 4)
    silos.run.dismiss(4)
    assert report.number < 9
    path = silos.plan.local.local_steps * silos.plan.local.learning_rate
    step = report.steps["variate_delta"] if option == "I" else report.steps["update"] / path
    assert np.abs(silos.server - silos.mine(1, 2, 3)).max() <= step / 3
    residual = silos.participants[4].variate()
    assert residual is not None
    assert np.abs(residual).max() <= step
    before = silos.server
    silos.round(1, 2, 3)
    assert silos.enrolled == 3
    assert np.abs(silos.server - before).max() > 0


@OPTIONS
def test_a_silo_that_left_may_come_back(option: str) -> None:
    """As one that joins, and the invariant is exact again: its residual counts with it."""
    silos = Silos(plan(algorithm_settings={"option": option}), (1, 2, 3, 4))
    silos.round(1, 2, 3, 4)
    silos.round(1, 2, 3, 4)
    silos.participants[4].leave()
    while silos.enrolled == 4:
        silos.round(1, 2, 3, 4)
    with pytest.raises(LeftRunError, match="has left"):
        silos.round(1, 2, 3, 4)
    silos.round(1, 2, 3)
    silos.participants[4] = silos.restarted(4)
    silos.participants[4]._memory.come_back()
    silos.round(1, 2, 3, 4)
    silos.invariant(1, 2, 3, 4)
    silos.round(1, 2, 3, 4)
    silos.invariant(1, 2, 3, 4)


def test_a_leaver_that_drops_out_leaves_in_the_next_round() -> None:
    """It has left only once it was counted; until then its c_k counts."""
    silos = Silos(plan(), (1, 2, 3, 4))
    silos.round(1, 2, 3, 4)
    silos.participants[4].leave()
    silos.round(1, 2, 3)
    silos.invariant(1, 2, 3, 4)
    silos.participants[4] = silos.restarted(4)
    while silos.enrolled == 4:
        assert silos.request().number < 9
        silos.round(1, 2, 3, 4)
    assert silos.enrolled == 3


@OPTIONS
def test_a_lost_variate_is_renewed_by_a_refresh(option: str) -> None:
    """Every silo takes its gradient at x, c becomes their mean, the model stays (SCA-10)."""
    silos = Silos(plan(algorithm_settings={"option": option}), (1, 2, 3))
    silos.round(1, 2, 3)
    silos.round(1, 2, 3)
    silos.memories[2].entries.clear()
    silos.participants[2] = silos.restarted(2)
    with pytest.raises(VariateLostError, match="refresh"):
        silos.round(1, 2, 3)
    silos.round(1, 3)
    silos.run.request_refresh()
    assert silos.request().is_refresh
    before = silos.run.model()["weights"].astype(np.float64)
    report = silos.round(1, 2, 3)
    assert report.is_refresh
    assert silos.run.model()["weights"].tolist() == before.tolist()
    silos.invariant(1, 2, 3)
    for seat in (1, 2, 3):
        gradient = silos.tasks[seat].gradient(silos.run.model())
        assert np.abs(silos.mine(seat) - gradient).max() <= report.steps["variate"]
    assert not silos.request().is_refresh
    silos.round(1, 2, 3)
    silos.invariant(1, 2, 3)


def test_a_refresh_forgets_those_who_vanished() -> None:
    """N is its survivors; who comes back later joins, at zero."""
    silos = Silos(plan(), (1, 2, 3, 4))
    silos.round(1, 2, 3, 4)
    silos.round(1, 2, 3, 4)
    silos.run.request_refresh()
    silos.round(1, 2, 3)
    silos.invariant(1, 2, 3)
    assert seats_of(decode_state(silos.run.state, 10**6)) == (1, 2, 3)
    silos.round(1, 2, 3)
    silos.invariant(1, 2, 3)
    silos.round(1, 2, 3, 4)
    silos.invariant(1, 2, 3, 4)


class Pushing(TrainingRun):
    """A coordinator that asks for a refresh whenever it likes."""

    @property
    def _is_refresh(self) -> bool:
        return self._due


def test_silos_do_not_renew_twice_at_one_model() -> None:
    """Two refreshes in a row with other survivors differ by one silo's gradient."""
    silos = Silos(plan(), (1, 2, 3, 4))
    silos.run = Pushing(silos.plan, model=silos.run.model(), names=NAMES)
    silos.round(1, 2, 3, 4)
    silos.run.request_refresh()
    silos.round(1, 2, 3, 4)
    silos.run.request_refresh()
    again = silos.request()
    assert again.is_refresh
    for seat in (1, 2, 3, 5):  # nor does one that was in neither, or whose process is new
        silos.participants[seat] = silos.restarted(seat)
        with pytest.raises(RenewedError, match="one silo's gradient"):
            silos.round(seat)
    silos.run._due = False
    silos.round(1, 2, 3)
    silos.run._due = True
    assert silos.round(1, 2, 3).is_refresh  # the model has moved


def test_a_run_waits_for_a_training_round_between_two_refreshes() -> None:
    """An operator dismisses two silos, one after the other: what is due stays due, also on disk."""
    silos = Silos(plan(), (1, 2, 3, 4, 5))
    silos.round(1, 2, 3, 4, 5)
    silos.run.dismiss(5)
    silos.run.request_refresh()
    assert silos.round(1, 2, 3, 4).is_refresh
    silos.run.dismiss(4)
    silos.run.request_refresh()
    again = TrainingRun.restore(silos.run.snapshot(), {})
    assert again.next() == silos.run.next()
    assert again.preview() is None  # what comes after is a refresh
    silos.run = again
    assert not silos.run.fail("too few").reason.startswith("round")  # another attempt, no skip
    assert (silos.request().attempt, silos.request().is_refresh) == (1, False)
    assert not silos.round(1, 2, 3).is_refresh
    assert silos.round(1, 2, 3).is_refresh
    silos.invariant(1, 2, 3)
    assert not silos.request().is_refresh


@OPTIONS
def test_who_missed_a_refresh_joins_after_the_next_sum(option: str) -> None:
    """Those of the refresh have Δc_k = 0 at its model: the sum would be the joiner's gradient."""
    silos = Silos(plan(algorithm_settings={"option": option}), (1, 2, 3, 4))
    silos.round(1, 2, 3, 4)
    silos.run.request_refresh()
    silos.round(1, 2, 3)
    silos.run.admit(5, NAMES[5])
    for seat in (4, 5):  # it was there before, or is new to the run
        with pytest.raises(RenewedError, match="without this silo"):
            silos.round(1, 2, 3, seat)
    silos.round(1, 2, 3)
    silos.round(1, 2, 3, 4, 5)
    silos.invariant(1, 2, 3, 4, 5)


@OPTIONS
def test_who_leaves_stays_for_the_round_after_a_refresh(option: str) -> None:
    """−c_k among zeros would be its gradient."""
    silos = Silos(plan(algorithm_settings={"option": option}), (1, 2, 3, 4))
    silos.round(1, 2, 3, 4)
    silos.run.request_refresh()
    silos.round(1, 2, 3, 4)
    silos.participants[4].leave()
    before = silos.server
    silos.round(1, 2, 3, 4)
    silos.invariant(1, 2, 3, 4)
    if option == "I":  # gradients at one model twice: c moves by what the quantizer leaves
        assert np.abs(silos.server - before).max() < np.abs(silos.mine(4)).max() / 100
    while silos.enrolled == 4:
        assert silos.request().number < 12
        silos.round(1, 2, 3, 4)
    assert silos.enrolled == 3


def test_a_failed_round_is_skipped_for_a_refresh() -> None:
    """Its number is never used again: silos may have submitted under it (protocol.md 2.5)."""
    silos = Silos(plan(), (1, 2, 3))
    silos.round(1, 2, 3)
    assert isinstance(silos.run.fail("too few"), RoundFailure)
    silos.run.request_refresh()
    step = silos.request()
    assert (step.number, step.attempt, step.is_refresh) == (3, 0, True)
    silos.round(1, 2, 3)
    assert silos.request().number == 4


def test_the_run_has_all_its_training_rounds_and_bounded_refreshes() -> None:
    """A refresh takes none away, and a run that loses variates again and again ends."""
    silos = Silos(plan(rounds=3, max_refreshes=1), (1, 2, 3))
    silos.run.request_refresh()
    assert not silos.request().is_refresh  # nothing is lost before there is anything
    silos.round(1, 2, 3)
    silos.run.request_refresh()
    silos.run.request_refresh()
    kinds = [silos.round(1, 2, 3).is_refresh for _ in range(3)]
    assert kinds == [True, False, False]
    assert silos.run.status is RunStatus.COMPLETED

    silos = Silos(plan(rounds=3, max_refreshes=1), (1, 2, 3))
    silos.round(1, 2, 3)
    silos.run.request_refresh()
    silos.round(1, 2, 3)
    silos.run.request_refresh()
    assert silos.run.status is RunStatus.FAILED


def test_algorithms_without_variates_need_no_refresh() -> None:
    """Nothing is counted on there."""
    silos = Silos(plan(algorithm="fedavg"), (1, 2, 3))
    silos.round(1, 2, 3)
    silos.run.request_refresh()
    assert not silos.request().is_refresh


def test_a_restart_in_between_forgets_nothing() -> None:
    """Joined silos, dismissed ones and a refresh that is due are in the snapshot."""
    silos = Silos(plan(), (1, 2, 3))
    silos.round(1, 2, 3)
    silos.run.admit(4, NAMES[4])
    silos.run.dismiss(3)
    silos.run.request_refresh()
    names = {1: "a", 2: "b", 3: "c"}
    again = TrainingRun.restore(silos.run.snapshot(), names)
    assert again.snapshot() == silos.run.snapshot()
    assert again.next() == silos.run.next()
    assert again.cohort((1, 2, 4)) == (1, 2, 4)
    with pytest.raises(RunStateError, match="other silos"):
        TrainingRun.restore(silos.run.snapshot(), {1: "someone else"})


def test_a_run_admits_only_whom_the_plan_has_room_for() -> None:
    """The ring is sized for so many; a seat has one owner."""
    silos = Silos(plan(max_silos=4), (1, 2, 3))
    silos.run.admit(4, NAMES[4])
    with pytest.raises(RunStateError, match="room for 4"):
        silos.run.admit(5, NAMES[5])
    with pytest.raises(RunStateError, match="another silo"):
        silos.run.admit(4, "x")
    with pytest.raises(RunStateError, match=r"the sum holds seats \[1, 5\]"):
        silos.round(1, 5)


class Forgetful(DictMemory):
    """A memory that loses what was settled after some rounds."""

    def __init__(self, losing: frozenset[int]) -> None:
        super().__init__()
        self._losing = losing
        self._settled = 0

    def write(self, values: Mapping[str, bytes | None], /) -> None:
        super().write(values)
        if any(name.endswith("/settled") for name in values):
            self._settled += 1
            if self._settled in self._losing:
                for name in list(self.entries):
                    if name.endswith(("/settled", "/pending")):
                        del self.entries[name]


@pytest.mark.parametrize("secure", [False, True])
def test_r1_reaches_its_optimum_although_variates_are_lost(secure: bool) -> None:
    """K = 10, silo two forgets c_2 three times: x = −0.5, never −1.0 (SCA-10)."""
    tasks: dict[str, LeastSquaresTask] = {}
    for copy in range(2 if secure else 1):
        tasks[f"one-{copy}"] = quadratic_task(1, 1)
        tasks[f"two-{copy}"] = quadratic_task(3, -1)
    one = TrainingPlan(
        task=TaskPlan(name="fl.testing:toy_task"),
        local=LocalPlan(local_steps=10, learning_rate=0.1),
        rounds=40,
        max_silos=4,
        algorithm="scaffold",
        metrics=False,
    )
    memory = Forgetful(frozenset({2, 5, 9}))
    result = simulate(one, tasks, secure=secure, memories={"two-0": memory})
    assert result.status is RunStatus.COMPLETED, result.reason
    assert sum(report.is_refresh for report in result.reports) == 3
    assert sum(not report.is_refresh for report in result.reports) == 40
    assert float(result.model()["weights"].astype(np.float64)[0]) == pytest.approx(-0.5, abs=1e-4)


def test_r1_goes_astray_if_the_loss_is_not_noticed() -> None:
    """The published failure, by hand: c_2 restarts at zero each round and x ends at −1.0."""
    x = server = one = 0.0
    for _ in range(400):
        changes, variates = [], []
        for curvature, optimum, kept in ((1.0, 1.0, one), (3.0, -1.0, 0.0)):
            y = x
            for _ in range(10):
                y -= 0.1 * (curvature * (y - optimum) - kept + server)
            changes.append(y - x)
            variates.append(kept - server + (x - y) / (10 * 0.1))
        deltas = (variates[0] - one, variates[1] - 0.0)
        one = variates[0]
        x += sum(changes) / 2
        server += sum(deltas) / 2
    assert x == pytest.approx(-1.0, abs=1e-3)

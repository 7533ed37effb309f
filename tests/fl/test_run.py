"""The coordinator's side of a run: requests, failures, reports, snapshots."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl.errors import RunStateError
from fl.pipeline import Decoded
from fl.plan import LocalPlan, RoundKind, TaskPlan, TrainingPlan
from fl.rounds import MAX_ATTEMPTS, RoundFailure, RoundReport, RoundRequest, RunFinished, RunStatus
from fl.run import TrainingRun
from secagg.canonical import peek_label
from secagg.effects import Aggregate
from secagg.errors import MalformedMessageError
from secagg.testing import make_federation, make_parameters

NAMES = {1: "a", 2: "b", 3: "c"}
# After the first of two rounds, as release 0.1 wrote it.
OLD_SNAPSHOT = Path(__file__).parent / "data" / "snapshot_0_1.hex"


def new_run(**changes: Any) -> TrainingRun:
    """A run of two training rounds over three silos with two parameters."""
    values: dict[str, Any] = {
        "task": TaskPlan(),
        "local": LocalPlan(local_steps=2, learning_rate=0.1),
        "rounds": 2,
        "max_silos": 4,
        **changes,
    }
    return TrainingRun(TrainingPlan(**values), model={"w": np.zeros(2)}, names=NAMES, features=1)


def request(run: TrainingRun) -> RoundRequest:
    """What the run wants."""
    step = run.next()
    assert isinstance(step, RoundRequest)
    return step


def released(update: list[float], **meta: int) -> Decoded:
    """A decoded sum with metrics of 4 examples, 3 correct, mean loss 0.5."""
    values = {"examples": 4, "correct": 3, "loss_sum": 2 * 2**16, **meta}
    integers = {name: np.array([value]) for name, value in values.items()}
    return Decoded(
        bulk={"update": np.array(update)}, meta={"usage_update": np.array([1, 2]), **integers}
    )


def test_rounds_go_by_number_until_the_plan_ends() -> None:
    """Statistics, then training, then COMPLETED; `next` alone changes nothing."""
    run = new_run(standardize=True)
    assert request(run) == request(run)
    assert (request(run).number, request(run).kind) == (1, "statistics")
    integers = {"moments_count": [2], "moments_hi": [2, 10], "moments_lo": [0, 0]}
    sums = Decoded(bulk={}, meta={name: np.array(value) for name, value in integers.items()})
    report = run.receive_decoded(sums, (1, 2, 3))
    assert isinstance(report, RoundReport)
    assert report.loss is None
    for number in (2, 3):
        assert request(run).number == number
        run.receive_decoded(released([3.0, 0.0]), (1, 2, 3))
    finished = run.next()
    assert isinstance(finished, RunFinished)
    assert finished.status is RunStatus.COMPLETED
    assert run.model()["w"].tolist() == [2.0, 0.0]


def test_a_report_shows_sums_only() -> None:
    """Loss, accuracy, norms, cosine, saturation and step of the released sum."""
    run = new_run()
    first = run.receive_decoded(released([6.0, 0.0]), (1, 3))
    second = run.receive_decoded(released([0.0, 8.0]), (1, 3))
    assert isinstance(first, RoundReport)
    assert isinstance(second, RoundReport)
    assert (first.survivors, first.examples, first.loss, first.accuracy) == ((1, 3), 4, 0.5, 0.75)
    assert (first.update_norm, first.model_norm, first.cosine, first.saturated) == (3, 3, None, 1)
    assert (second.update_norm, second.model_norm, second.cosine) == (4, 5, 0)
    assert first.steps == {"update": 8 / (2**23 - 1)}
    assert second.steps == {"update": 32 / (2**15 - 1)}


def test_a_task_that_counts_nothing_right_has_no_accuracy() -> None:
    """An accuracy of 0 would be a lie; the built-in task means it."""
    for task, accuracy in ((TaskPlan(name="fl.testing:toy_task"), None), (TaskPlan(), 0.0)):
        report = new_run(task=task).receive_decoded(released([6.0, 0.0], correct=0), (1, 3))
        assert isinstance(report, RoundReport)
        assert (report.loss, report.accuracy) == (0.5, accuracy)


def test_failing_rounds_end_the_run_after_bounded_tries() -> None:
    """The same round again, the model where it was, then FAILED with the reason (DRP-03)."""
    run = new_run()
    run.receive_decoded(released([3.0, 0.0]), (1, 2, 3))
    kept = run.state
    for attempt in range(MAX_ATTEMPTS):
        assert (request(run).number, request(run).attempt) == (2, attempt)
        failure = run.fail("too few silos")
        assert failure == RoundFailure(
            number=2, attempt=attempt, reason="too few silos", retried=attempt < MAX_ATTEMPTS - 1
        )
        assert run.state == kept
    finished = run.next()
    assert isinstance(finished, RunFinished)
    assert (finished.status, finished.state) == (RunStatus.FAILED, kept)
    assert "too few silos" in finished.reason
    for late in (lambda: run.fail("again"), lambda: run.stop("again")):
        with pytest.raises(RunStateError, match="failed"):
            late()


def test_no_retry_where_the_protocol_allows_none() -> None:
    """Masked vectors came and nobody abandoned them: another attempt must not happen."""
    run = new_run()
    assert not run.fail("lost", may_retry=False).retried
    assert run.status is RunStatus.FAILED


def test_a_round_that_was_lost_to_a_proven_dealer_is_made_again_under_the_next_number() -> None:
    """Its own number is not used again, for its silos have opened shares in it (2.5 i)."""
    run = new_run()
    before = request(run)
    run.skip_to(2)
    failure = run.fail("a bad dealer", may_retry=False, is_proven=True)
    assert (failure.number, failure.attempt, failure.retried) == (1, 2, True)
    again = TrainingRun.restore(run.snapshot(), NAMES).next()
    assert isinstance(again, RoundRequest)
    assert (again.number, again.attempt, again.state) == (2, 0, before.state)
    assert request(run) == again


def test_a_lost_statistics_round_ends_the_run() -> None:
    """The next number is a training round's, whose features would stay as they are."""
    run = new_run(standardize=True)
    assert request(run).kind is RoundKind.STATISTICS
    assert not run.fail("a bad dealer", may_retry=False, is_proven=True).retried


def test_no_more_rounds_are_skipped_than_the_plan_has_numbers() -> None:
    """Each bad dealer costs one, and the run has no more silos than that."""
    run = new_run(max_refreshes=0)
    numbers = [request(run).number]
    while run.fail("a bad dealer", may_retry=False, is_proven=True).retried:
        numbers.append(request(run).number)
    assert numbers == list(range(1, run.plan.last_round + run.plan.max_silos + 1))


def test_a_good_round_after_a_failure_starts_counting_anew() -> None:
    """Tries are counted by round."""
    run = new_run()
    run.fail("once")
    run.receive_decoded(released([0.0, 0.0]), (1, 2))
    assert (request(run).number, request(run).attempt) == (2, 0)


def test_zero_weight_ends_the_run_and_keeps_the_model() -> None:
    """A typed failure, no NaN and no success (AGG-01)."""
    run = new_run(weighting="hidden", n_cap=10)
    kept = run.state
    failure = run.receive_decoded(released([0.0, 0.0], weight=0), (1, 2, 3))
    assert isinstance(failure, RoundFailure)
    assert "sum to zero" in failure.reason
    assert (run.status, run.state) == (RunStatus.FAILED, kept)


def test_only_the_requested_sum_is_taken() -> None:
    """Another round, attempt, kind or state is refused and changes nothing."""
    run = new_run()
    step = request(run)
    values = {s.name: np.zeros(s.length, np.int64) for s in step.spec.segments}
    roster = make_federation(3).roster

    def aggregate(state_hash: bytes, **changes: object) -> Aggregate:
        return Aggregate(
            values=values,
            survivors=(1, 2, 3),
            cohort=(1, 2, 3),
            parameters=make_parameters(roster, step.spec, **changes),
            state_hash=state_hash,
        )

    for wrong in (
        aggregate(bytes(32)),
        aggregate(step.state_hash, round=2),
        aggregate(step.state_hash, attempt=1),
        aggregate(step.state_hash, kind="statistics"),
    ):
        with pytest.raises(RunStateError, match="expected the sum of round 1"):
            run.receive(wrong)
    assert isinstance(run.receive(aggregate(step.state_hash)), RoundReport)


def test_snapshot_and_restore_go_on_alike() -> None:
    """A restarted coordinator asks for the same and computes the same bytes."""
    run = new_run()
    run.receive_decoded(released([1.0, 2.0]), (1, 3))
    run.fail("once")
    twin = TrainingRun.restore(run.snapshot(), NAMES)
    assert twin.next() == run.next()
    assert twin.snapshot() == run.snapshot()
    for one in (run, twin):
        one.receive_decoded(released([0.1, 0.7]), (1, 2))
    assert twin.state == run.state
    assert TrainingRun.restore(run.snapshot(), NAMES).next() == run.next()


def test_attempts_that_a_restart_cut_short_are_no_failures() -> None:
    """The next one has its own number and the round's full number of tries."""
    run = new_run()
    run.skip_to(5)
    assert request(run).attempt == 5
    assert all(run.fail("bad").retried for _ in range(MAX_ATTEMPTS - 1))
    run = TrainingRun.restore(run.snapshot(), NAMES)
    with pytest.raises(RunStateError, match="attempt 6 lies behind attempt 9"):
        run.skip_to(6)
    assert not run.fail("bad").retried
    assert run.status is RunStatus.FAILED


def test_runs_that_cannot_work_do_not_start() -> None:
    """More silos than room, or nothing to standardize."""
    with pytest.raises(RunStateError, match="room for 2"):
        new_run(max_silos=2)
    one = new_run(standardize=True).plan
    with pytest.raises(RunStateError, match="numeric"):
        TrainingRun(one, model={"w": np.zeros(2)}, names=NAMES)


def test_a_snapshot_of_an_older_version_is_read_and_a_newer_one_refused() -> None:
    """Bug case RES-06: canonical bytes and JSON only, so nobody ever has to trust a pickle."""
    old = bytes.fromhex(OLD_SNAPSHOT.read_text(encoding="ascii").replace("\n", ""))
    run = TrainingRun.restore(old, NAMES)
    assert (request(run).number, request(run).attempt) == (2, 0)
    # The sum was 3, over a weight of 3 silos.
    np.testing.assert_array_equal(run.model()["w"], [1.0, 0.0])
    assert TrainingRun.restore(run.snapshot(), NAMES).snapshot() == run.snapshot()
    label = f"SA1/{peek_label(old)}".encode()
    newer = old.replace(label, label[:-1] + b"X", 1)
    with pytest.raises(MalformedMessageError, match="label"):
        TrainingRun.restore(newer, NAMES)

"""Silos that vanish, stall or are slow, in every phase of a round; real processes."""

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fl.rounds import MAX_ATTEMPTS
from services.demo.federation import COORDINATOR, Child, LocalFederation
from services.wire.calls import RunState, RunStatus
from tests.stage import LONG_S, Stage

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

DEADLINES = {
    "registration_s": 20.0, "advertise_s": 20.0, "share_s": 20.0, "mask_s": 20.0,
    "survivors_s": 4.0, "unmask_s": 4.0,
}  # fmt: skip
# Five silos, of which one may collude: four must be in every sum and open it.
THRESHOLD = 4
STAGES = (
    "silo.before-advertise",
    "silo.before-share",
    "silo.before-upload",
    "silo.after-upload",
    "silo.before-journal-signed",
    "silo.before-journal-unmasked",
)


def is_whole_again(status: RunStatus, *, after: int) -> bool:
    """Whether a later round has summed all five, or there will be none."""
    is_later = status.summary.rounds_done > after
    return status.summary.state.is_final or (
        is_later and status.rounds[-1].survivors == (1, 2, 3, 4, 5)
    )


def refusals(silo: Child) -> list[str]:
    """Why a silo's messages have been refused: they came too late, all of them."""
    lines = [line for line in silo.lines() if line.get("event") == "refused"]
    assert {line["code"] for line in lines} <= {"STALE"}
    return [str(line["reason"]) for line in lines]


def make_stage(home: Path, count: int, **deadlines: float) -> LocalFederation:
    """A federation of `count` silos."""
    return LocalFederation(
        home=home,
        silos=tuple(f"silo-{number}" for number in range(1, count + 1)),
        deadlines=DEADLINES | deadlines,
        forked=True,
    )


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A coordinator and five silos, all connected."""
    with make_stage(tmp_path, 5) as federation:
        made = Stage(federation)
        made.start(COORDINATOR, *made.silos)
        yield made


@pytest.mark.parametrize("point", STAGES)
def test_silos_that_are_killed_in_one_phase(stage: Stage, point: str) -> None:
    """One, two and three of five (bug case DRP-13).

    With four left the sum is exact without those that had not submitted. With fewer, the attempt
    ends by name, and the round is done again with all once they are back; only where shares have
    been opened it never can be, and the run ends by name.
    """
    stage.begin()
    for count in (1, 2, 3):
        victims = stage.silos[:count]
        for name in victims:
            stage.children[name].kill()
        # Not at once: what the restart itself costs shall be over.
        number = stage.wait_until(lambda _: True).summary.rounds_done + 8
        stage.start(*victims, fault=f"{point}@{number}=kill")
        for name in victims:
            assert stage.children[name].wait(timeout_s=LONG_S) == -9
        stage.start(*victims)
        status = stage.wait_until(partial(is_whole_again, after=number))
        if status.summary.state.is_final:
            assert point == STAGES[-1], status.summary.reason
            assert len(stage.silos) - count < THRESHOLD
            assert status.summary.state is RunState.FAILED
            assert "too few silos opened their shares" in status.summary.reason
            stage.begin()
            stage.more_rounds(1)
    for report in stage.status().rounds:
        assert len(report.survivors) >= 3, "the floor of the smallest cohort that may be invited"
    stage.check()


def test_silos_that_stall_in_one_phase_are_not_waited_for(stage: Stage) -> None:
    """Their lines stay open; they are back in a later sum (bug case DRP-13)."""
    stage.begin()
    for point in STAGES[::2]:
        stage.more_rounds(1)
        stage.children["silo-1"].kill()
        stage.start("silo-1", fault=f"{point}=stall:9")
        stage.wait_until(lambda status: status.rounds[-1].survivors == (2, 3, 4, 5))
    stage.children["silo-1"].kill()
    stage.start("silo-1")
    stage.wait_until(lambda status: status.rounds[-1].survivors == (1, 2, 3, 4, 5))
    stage.check()


def test_a_late_vector_is_refused_by_both_rounds_names(tmp_path: Path) -> None:
    """It counts in no sum; its silo is invited again (bug case DRP-04).

    The coordinator knows a round until some later ones are over, so for so long the silo sleeps. It
    is put to sleep while it stalls before its upload: when it says nothing any more.
    """
    with make_stage(tmp_path, 5, mask_s=3.0) as federation:
        stage = Stage(federation)
        stage.start(COORDINATOR, *stage.silos[:4])
        stage.start("silo-5", fault="silo.before-upload@2=stall:30")
        stage.begin()
        sleeper = stage.children["silo-5"]
        sleeper.wait_for("training", round=2, timeout_s=LONG_S)
        stage.children[COORDINATOR].wait_for("lost", seat=5, timeout_s=LONG_S)
        sleeper.process.send_signal(signal.SIGSTOP)
        stage.wait_until(lambda status: status.summary.rounds_done > 8)
        sleeper.process.send_signal(signal.SIGCONT)
        late = "round 2, attempt 0 is not open; the coordinator is at round"
        stage.wait_until(lambda _: any(why.startswith(late) for why in refusals(sleeper)))
        stage.wait_until(lambda status: status.rounds[-1].survivors == (1, 2, 3, 4, 5))
        second = stage.status().rounds[1]
        assert (second.round, second.survivors, second.dropouts) == (2, (1, 2, 3, 4), (5,))
        stage.check()


def test_a_slow_silo_costs_its_own_part_only(tmp_path: Path) -> None:
    """Rounds end at the deadline with the other four (bug case DRP-10)."""
    with make_stage(tmp_path, 5, mask_s=3.0) as federation:
        stage = Stage(federation, task="tests.hostile.slow_task:factory")
        stage.start(COORDINATOR, *stage.silos[:4])
        stage.start("silo-5", sleep_s=60.0)
        stage.begin(rounds=3)
        status = stage.wait_until(lambda status: status.summary.state is RunState.FINISHED)
        assert [report.survivors for report in status.rounds] == [(1, 2, 3, 4)] * 3
        assert [report.attempts for report in status.rounds] == [1, 1, 1]
        stage.children["silo-5"].wait_for("model-kept", timeout_s=LONG_S)


def test_a_round_that_needs_a_slow_silo_fails_at_the_deadline(tmp_path: Path) -> None:
    """Of three silos all are needed: the reason names who is missing (bug case DRP-10)."""
    with make_stage(tmp_path, 3, mask_s=3.0) as federation:
        stage = Stage(federation, task="tests.hostile.slow_task:factory")
        stage.start(COORDINATOR, *stage.silos[:2])
        stage.start("silo-3", sleep_s=600.0)
        stage.begin(rounds=3)
        status = stage.wait_until(lambda status: status.summary.state.is_final)
        assert status.summary.state is RunState.FAILED
        assert "too few silos sent a masked vector" in status.summary.reason
        assert "silo-3" in status.summary.reason
        assert status.summary.rounds_done == 0
        assert stage.children[COORDINATOR].wait_for("resting")["failures"] in range(2, MAX_ATTEMPTS)

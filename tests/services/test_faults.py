"""Fault points: armed by name and round, by the environment only."""

import signal
import subprocess
import sys
from itertools import pairwise

import pytest

from bench.flaky import PATTERN, POINTS, SILOS, drops
from services import faults
from services.errors import ConfigError


def test_a_fault_is_read() -> None:
    """Point, round and action."""
    assert faults.parse("silo.before-upload@2=kill, silo.before-share=stall:0.5") == (
        faults.Fault(point="silo.before-upload", round_number=2, stall_s=None),
        faults.Fault(point="silo.before-share", round_number=None, stall_s=0.5),
    )


@pytest.mark.parametrize(
    "text", ["silo.before-uplaod@2=kill", "silo.before-upload@x=kill", "silo.before-upload=explode"]
)
def test_a_misspelled_fault_is_an_error(text: str) -> None:
    """A test that arms nothing would prove nothing."""
    with pytest.raises(ConfigError):
        faults.parse(text)


def test_kill_is_sigkill_in_the_named_round_only() -> None:
    """The process dies at the point, and not in another round."""
    code = "from services import faults; faults.hit('silo.before-upload', {0}); print('alive')"
    environment = {faults.VARIABLE: "silo.before-upload@2=kill"}
    other = subprocess.run(
        [sys.executable, "-c", code.format(1)], env=environment, capture_output=True, check=False
    )
    assert other.stdout == b"alive\n"
    named = subprocess.run(
        [sys.executable, "-c", code.format(2)], env=environment, capture_output=True, check=False
    )
    assert (named.returncode, named.stdout) == (-signal.SIGKILL, b"")


def test_a_watcher_hears_of_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """So one of many silos in a process can vanish by an exception."""
    monkeypatch.delenv(faults.VARIABLE, raising=False)
    heard: list[tuple[str, int]] = []
    monkeypatch.setattr(faults, "WATCHERS", [lambda point, number: heard.append((point, number))])
    faults.hit("silo.before-upload", 3)
    assert heard == [("silo.before-upload", 3)]


def test_a_soak_loses_silos_in_every_phase_and_never_too_many() -> None:
    """What one round loses late and the next one early is missing in the same round."""
    lost = [drops(number) for number in range(3 * PATTERN)]
    assert {point for point, silos in lost if silos} == set(POINTS)
    assert {len(silos) for _, silos in lost} == {0, 2, 4, 6}
    early = set(POINTS[:2])
    for (point, silos), (following, others) in pairwise(lost):
        missing = (len(silos) if point not in early else 0) + (
            len(others) if following in early else 0
        )
        assert missing <= SILOS * 3 // 10

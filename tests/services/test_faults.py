"""Fault points: armed by name and round, by the environment only."""

import signal
import subprocess
import sys

import pytest

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

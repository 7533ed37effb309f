"""A result that the server withheld takes back nothing that a later one requires (2.5 v)."""

import pytest

from fl.memory import RunMemory
from fl.testing import DictMemory
from secagg.ids import RunId

pytestmark = pytest.mark.adversary


def test_an_old_result_that_is_heard_late_frees_no_state() -> None:
    """Round 6 must begin from what round 5 gave, whatever is told of round 4 afterwards."""
    memory = RunMemory(DictMemory(), RunId(b"run-for-testing!"))
    memory.settle(3, b"4" * 32, keeps=False)
    assert memory.required_state(4) == b"4" * 32
    memory.settle(5, b"6" * 32, keeps=False)
    memory.settle(4, b"5" * 32, keeps=False)
    assert memory.required_state(6) == b"6" * 32
    assert memory.required_state(5) is None
    memory.settle(5, b"6" * 32, keeps=False)  # again, as after a crash
    assert memory.required_state(6) == b"6" * 32

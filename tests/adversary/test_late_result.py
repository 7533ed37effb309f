"""A result that the server withheld takes back nothing that a later one requires (2.5 v)."""

import pytest

from fl.memory import RunMemory
from fl.testing import DictMemory
from secagg.chain import Standpoint
from secagg.ids import RunId

pytestmark = pytest.mark.adversary


def test_an_old_result_that_is_heard_late_frees_no_state() -> None:
    """Round 6 must begin from what round 5 gave, whatever is told of round 4 afterwards."""
    memory = RunMemory(DictMemory(), RunId(b"run-for-testing!"))
    memory.settle(3, b"4" * 32, keeps=False)
    assert memory.standpoint() == Standpoint(round=3, model_hash=b"4" * 32)
    memory.settle(5, b"6" * 32, keeps=False)
    memory.settle(4, b"5" * 32, keeps=False)
    assert memory.standpoint() == Standpoint(round=5, model_hash=b"6" * 32)
    memory.settle(5, b"6" * 32, keeps=False)  # again, as after a crash
    assert memory.standpoint() == Standpoint(round=5, model_hash=b"6" * 32)

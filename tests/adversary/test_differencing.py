"""Two rounds whose survivors differ by one silo, on states that no equal-state rule can link.

The difference of the two sums is the silo's input, as far as it contributed the same to both: a
static quantity exactly, an update approximately (SA1 spec 2.4). The participation ledger is off
by default, because a single dropout between two rounds would stop a run.
"""

from typing import Any

import pytest

from secagg.errors import SurvivorsMismatchError
from secagg.journal import SiloHistory
from secagg.policy import SiloPolicy
from tests.adversary.stage import Stage

pytestmark = pytest.mark.adversary

ALL = (1, 2, 3, 4, 5)


def _second_round(policy: SiloPolicy, first: tuple[int, ...], **changes: Any) -> Stage:
    """A round over `first`, then the next one up to the uploads of all five."""
    histories: dict[int, SiloHistory] = {}
    policies = dict.fromkeys(ALL, policy)
    earlier = Stage(5, histories=histories, policies=policies)
    earlier.finish(*first)
    second = Stage(
        5, histories=histories, policies=policies, view=earlier.view, round=2, seed=1, **changes
    )
    second.mask(state=b"a new state")
    return second


@pytest.mark.parametrize("rule", ["ledger_window", "ledger_min_change"])
def test_a_silo_that_two_sums_would_show(rule: str) -> None:
    """The victim refuses its own unit vector; a least change is everybody's concern."""
    rules: dict[str, Any] = {rule: 2}
    policy = SiloPolicy(**rules)
    second = _second_round(policy, ALL)
    request = second.request(1, 2, 3, 4)
    second.refuses(5, request, SurvivorsMismatchError, f"policy rule {rule}")
    if rule == "ledger_min_change":
        second.refuses(1, request, SurvivorsMismatchError, f"policy rule {rule}")
    else:
        second.tell(1, request)  # its own input stays among the others'
    second.assert_hidden()


def test_the_same_silos_again() -> None:
    """A fixed cohort shows nothing new."""
    second = _second_round(SiloPolicy(ledger_window=8, ledger_min_change=2), ALL)
    second.tell_all(second.request())
    second.tell_all(second.certificate())
    assert {seat: silo.survivors for seat, silo in second.silos.items()} == dict.fromkeys(ALL, ALL)


def test_the_ledger_is_off_by_default() -> None:
    """Stated in the policy's documents: dropouts defeat any hard rule across rounds."""
    second = _second_round(SiloPolicy(), ALL)
    second.tell_all(second.request(1, 2, 3, 4))
    assert all(silo.survivors == (1, 2, 3, 4) for silo in second.silos.values())


def test_the_ledger_is_on_disk_before_the_shares_leave() -> None:
    """A server that withholds its result and lets the silo restart does not empty the ledger."""
    histories: dict[int, SiloHistory] = {}
    first = Stage(5, histories=histories)
    first.open_shares()  # and no result
    replayed = SiloHistory(first.journals[5])
    assert replayed.certified() == [frozenset(ALL)]
    policy = SiloPolicy(ledger_window=1)
    with pytest.raises(SurvivorsMismatchError, match="ledger_window"):
        policy.check_ledger(replayed.certified(), frozenset({1, 2, 3, 4}), 5)

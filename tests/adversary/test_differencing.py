"""Two rounds whose survivors differ by one silo, on states that no equal-state rule can link.

The difference of the two sums is the silo's input, as far as it contributed the same to both: a
static quantity exactly, an update approximately (SA1 spec 2.4). The participation ledger is off
by default, because a single dropout between two rounds would stop a run.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from secagg.errors import SurvivorsMismatchError
from secagg.journal import JournalEvent, JournalRecord, SiloHistory
from secagg.policy import SiloPolicy
from tests.adversary.stage import Stage

pytestmark = pytest.mark.adversary

ALL = (1, 2, 3, 4, 5)


def _second_round(
    policy: SiloPolicy, first: tuple[int, ...], lines: Sequence[JournalRecord] = ()
) -> Stage:
    """A round over `first`, then the next one up to the uploads of all five.

    `lines` stand in every journal before.
    """
    histories = {seat: SiloHistory(lines) for seat in ALL}
    policies = dict.fromkeys(ALL, policy)
    earlier = Stage(5, histories=histories, policies=policies)
    earlier.finish(*first)
    second = Stage(5, histories=histories, policies=policies, view=earlier.view, round=2, seed=1)
    second.mask(state=b"a new state")
    return second


@pytest.mark.parametrize("rule", ["ledger_window", "ledger_min_change"])
def test_a_silo_that_two_sums_would_show(rule: str) -> None:
    """Everybody refuses: the victim is not in the second sum, and nobody has to ask it."""
    rules: dict[str, Any] = {rule: 2}
    policy = SiloPolicy(**rules)
    second = _second_round(policy, ALL)
    request = second.request(1, 2, 3, 4)
    for seat in ALL:
        second.refuses(seat, request, SurvivorsMismatchError, f"policy rule {rule}")
    second.assert_hidden()


@pytest.mark.parametrize("rule", ["ledger_window", "ledger_min_change"])
def test_a_liar_that_stays_hides_nobody(rule: str) -> None:
    """Once it was left out of a sum over another state; with it the ledger sees two changes."""
    lift = JournalRecord(
        event=JournalEvent.LIFTED,
        attempt=Stage(5).parameters.attempt_id,
        message=b"another state's hash",
        survivors=(4,),
    )
    rules: dict[str, Any] = {rule: 2}
    for first, then in ((ALL, (2, 3, 4, 5)), ((1, 2, 3, 5), (2, 3, 4, 5)), (ALL, (1, 2, 3, 5))):
        second = _second_round(SiloPolicy(**rules), first, lines=[lift])
        request = second.request(*then)
        second.refuses(5, request, SurvivorsMismatchError, f"policy rule {rule}")


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
        policy.check_ledger(replayed.certified(), frozenset({1, 2, 3, 4}))

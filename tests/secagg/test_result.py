"""Tests of secagg.result; forged results are in tests/adversary/test_forged_sum.py."""

from dataclasses import replace

import pytest

from secagg.errors import SurvivorsUncertifiedError
from secagg.messages import Endorsement, Survivors
from secagg.result import check_certificate, check_result
from tests.adversary.stage import Stage


@pytest.fixture(scope="module")
def stage() -> Stage:
    """Five silos that have all signed."""
    stage = Stage(5)
    stage.agree()
    return stage


def _check(
    stage: Stage, *endorsements: Endorsement, members: tuple[int, ...] | None = None
) -> None:
    signed = stage.last(1, Survivors)
    check_certificate(
        endorsements,
        survivors=signed.survivors,
        binding=signed.binding,
        members=stage.cohort if members is None else members,
        threshold=4,
        roster=stage.roster,
    )


def test_t_signatures_by_distinct_members_certify(stage: Stage) -> None:
    """In any order, with any number of useless ones beside them."""
    every = stage.certificate().endorsements
    _check(stage, *every)
    _check(stage, *every[:4])
    _check(stage, *reversed(every[1:]))
    bad = replace(every[0], signature=bytes(64))
    stranger = replace(every[0], seat=77)
    _check(stage, bad, stranger, *every[:4])
    # A bad signature in a seat's name does not take its place.
    _check(stage, bad, *every[:4], members=(1, 2, 3, 4))
    _check(stage, stranger, *every[:4], members=(1, 2, 3, 4, 77))


def test_fewer_do_not(stage: Stage) -> None:
    """Three, one of them twice, one by a non-member, one swapped."""
    one, two, three, four, _ = stage.certificate().endorsements
    swapped = replace(four, signature=three.signature)
    for some in ((one, two, three), (one, two, three, three), (one, two, three, swapped)):
        with pytest.raises(SurvivorsUncertifiedError, match=r"3 silos.*4 are needed"):
            _check(stage, *some)
    with pytest.raises(SurvivorsUncertifiedError, match="3 silos"):
        _check(stage, one, two, three, four, members=(1, 2, 3, 5))
    with pytest.raises(SurvivorsUncertifiedError, match="0 silos"):
        _check(stage)


def test_a_checked_result_says_what_was_summed() -> None:
    """Over whom, of which cohort, on which state."""
    stage = Stage(5)
    stage.open_shares(1, 2, 3, 4)
    values = stage.sum_of(1, 2, 3, 4)
    result = stage.result(values, 1, 2, 3, 4)
    silo = stage.silos[5]
    aggregate = check_result(
        result, submission=silo._view.submission, roster=stage.roster, store=stage.stores[5]
    )
    assert aggregate.survivors == (1, 2, 3, 4)
    assert aggregate.cohort == (1, 2, 3, 4, 5)
    assert aggregate.parameters == stage.parameters
    assert aggregate.state_hash == silo._view.model_hash
    assert {name: column.tolist() for name, column in aggregate.values.items()} == {
        name: values[name].tolist() for name in stage.spec.names
    }

"""Tests of secagg.repeats: which uploads are summed where silos name earlier survivors."""

from collections.abc import Set as AbstractSet

import pytest

from secagg.repeats import agreeing

NOBODY: frozenset[int] = frozenset()


def chosen(
    priors: dict[int, tuple[int, ...]],
    liars: AbstractSet[int] = NOBODY,
    least: int = 3,
    n_c: int = 0,
) -> tuple[int, ...]:
    """What is summed if this many silos are enough."""
    return agreeing(priors, n_c=n_c, liars=liars, may_sum=lambda seats: len(seats) >= least)


def test_nobody_names_anything() -> None:
    """All are summed, if they are enough."""
    priors: dict[int, tuple[int, ...]] = {3: (), 1: (), 2: ()}
    assert chosen(priors) == (1, 2, 3)
    assert chosen(priors, least=4) == ()


@pytest.mark.parametrize("namers", [(1,), (1, 2, 3), (3,)])
def test_all_of_them_again(namers: tuple[int, ...]) -> None:
    """Whoever names them: the same sum."""
    assert chosen({seat: (1, 2, 3) if seat in namers else () for seat in (1, 2, 3)}) == (1, 2, 3)


def test_a_newcomer_stays_out() -> None:
    """The earlier survivors again, and nobody else."""
    assert chosen({1: (1, 2, 3), 2: (1, 2, 3), 3: (), 4: ()}) == (1, 2, 3)


def test_one_of_the_earlier_survivors_is_missing() -> None:
    """The others would refuse; those that name nothing may be enough among themselves."""
    priors: dict[int, tuple[int, ...]] = {1: (1, 2, 3), 2: (1, 2, 3), 4: (), 5: (), 6: ()}
    assert chosen(priors) == (4, 5, 6)
    assert chosen(priors, least=4) == ()


def test_one_that_names_fewer_than_are_there() -> None:
    """It signs no sum with somebody that it does not name."""
    assert chosen({1: (1, 2), 2: (), 3: ()}) == ()
    assert chosen({1: (1, 2), 2: (), 3: (), 4: ()}) == (2, 3, 4)


def test_the_larger_of_two_earlier_sums() -> None:
    """Of those that are enough, if the others in it agree."""
    priors: dict[int, tuple[int, ...]] = {1: (1, 2, 3), 2: (), 3: (), 4: (4, 5, 6, 7)}
    assert chosen(priors | {5: (), 6: (), 7: ()}) == (4, 5, 6, 7)
    assert chosen(priors | {5: (1, 5), 6: (), 7: ()}) == (1, 2, 3)


def test_a_proven_liar_may_be_missing() -> None:
    """From the sum and from what silos name; nobody else may."""
    priors: dict[int, tuple[int, ...]] = {1: (1, 2, 3, 9), 2: (1, 2, 3, 9), 3: ()}
    assert chosen(priors) == ()
    assert chosen(priors, {8}) == ()
    assert chosen(priors, {9}) == (1, 2, 3)
    assert chosen(priors | {2: (1, 2, 3)}, {9}) == (1, 2, 3)
    assert chosen(priors | {2: (1, 2, 3, 8)}, {9}) == ()
    assert chosen(priors | {9: ()}, {9}) == (1, 2, 3, 9)


@pytest.mark.parametrize("n_c", [1, 2])
def test_so_many_liars_choose_nobodys_place_but_their_own(n_c: int) -> None:
    """One more, and the earlier sum is a true one."""
    uploads: dict[int, tuple[int, ...]] = dict.fromkeys(range(1, 8), ())
    sum_before = (1, 2, 3, 4, 5)
    liars = uploads | dict.fromkeys(range(1, n_c + 1), sum_before)
    assert chosen(liars, n_c=n_c) == tuple(range(n_c + 1, 8))
    assert chosen(liars, n_c=n_c, least=8 - n_c) == ()
    assert chosen(liars | {n_c + 1: sum_before}, n_c=n_c) == sum_before
    assert chosen(liars | {n_c + 1: (*sum_before, 9)}, {9}, n_c=n_c) == sum_before


def test_one_silo_that_names_all_who_are_there() -> None:
    """True or not, the sum is over all."""
    assert chosen({1: (1, 2, 3), 2: (), 3: ()}, n_c=2) == (1, 2, 3)

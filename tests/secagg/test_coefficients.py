"""Exact linear algebra over released sums, against brute force and the specification's cases."""

from fractions import Fraction
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.coefficients import RowSpace, least_touched, shown
from secagg.errors import ParameterError

ROWS = st.integers(1, 5).flatmap(
    lambda width: st.lists(
        st.lists(st.integers(-3, 3), min_size=width, max_size=width), min_size=1, max_size=3
    )
)


def rank(rows: list[list[int]]) -> int:
    """By plain elimination over the rationals."""
    left = [[Fraction(value) for value in row] for row in rows]
    found = 0
    for place in range(len(rows[0])):
        pivot = next((n for n in range(found, len(left)) if left[n][place]), None)
        if pivot is None:
            continue
        left[found], left[pivot] = left[pivot], left[found]
        for n in range(found + 1, len(left)):
            factor = left[n][place] / left[found][place]
            left[n] = [a - factor * b for a, b in zip(left[n], left[found], strict=True)]
        found += 1
    return found


def least_by_ranks(rows: list[list[int]]) -> int | None:
    """The smallest set of silos off which some non-zero combination vanishes."""
    width = len(rows[0])
    full = rank(rows)
    if full == 0:
        return None
    for size in range(1, width + 1):
        for touched in combinations(range(width), size):
            rest = [[row[n] for n in range(width) if n not in touched] for row in rows]
            if (rank(rest) if rest[0] else 0) < full:
                return size
    raise AssertionError("some combination touches all")


@given(ROWS)
def test_the_least_is_that_of_the_ranks(rows: list[list[int]]) -> None:
    """A combination that vanishes off a set is one by which the rank falls without the set."""
    assert least_touched(rows) == least_by_ranks(rows)


@given(ROWS, st.data())
def test_a_space_holds_its_combinations_and_nothing_of_higher_rank(
    rows: list[list[int]], data: st.DataObject
) -> None:
    """Membership is the rank's staying the same."""
    space = RowSpace(rows)
    assert len(space.basis) == rank(rows)
    factors = data.draw(st.lists(st.integers(-5, 5), min_size=len(rows), max_size=len(rows)))
    columns = list(zip(*rows, strict=True))
    assert [sum(f * v for f, v in zip(factors, column, strict=True)) for column in columns] in space
    other = data.draw(st.lists(st.integers(-3, 3), min_size=len(columns), max_size=len(columns)))
    assert (other in space) == (rank([*rows, other]) == rank(rows))


def test_one_odd_number_of_steps_isolates_a_silo() -> None:
    """SA1 spec 2.3: K = 5 everywhere and 4 at one silo, Σ Δy and Σ Δy/K."""
    ones, per_step = [20] * 7, [4] * 6 + [5]
    assert least_touched([ones, per_step]) == 1
    assert least_touched([ones, [4] * 7]) == 7
    assert least_touched([ones]) == 7
    assert least_touched([ones, [4] * 4 + [5] * 3]) == 3


def test_three_vectors() -> None:
    """Planes instead of points: two of nine silos off the line of the others, both apart."""
    ones = [1] * 9
    assert least_touched([ones, [1] * 8 + [2], [1] * 7 + [2, 1]]) == 1
    assert least_touched([ones, [1] * 3 + [2] * 6, [1] * 6 + [2] * 3]) == 3
    assert least_touched([ones, [1] * 3 + [2] * 6, [3] * 3 + [4] * 6]) == 3


def test_four_vectors_with_silos_in_a_plane() -> None:
    """Three columns that span a plane only are no hyperplane of four dimensions."""
    columns = [(1, 0, 0, 0), (0, 1, 0, 0), (1, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)] * 2
    rows = [list(row) for row in zip(*columns, strict=True)]
    assert least_touched(rows) == 2
    assert least_by_ranks(rows) == 2


def test_nothing_is_touched_by_nothing() -> None:
    """Silos without weight in any sum are in no combination."""
    assert least_touched([[0, 0], [0, 0]]) is None
    assert least_touched([[0, 5, 0, 3]]) == 2


def test_what_takes_too_long_is_refused() -> None:
    """Two hundred silos of which each is different, in four sums."""
    rows = [[seat**power for seat in range(1, 201)] for power in range(4)]
    with pytest.raises(ParameterError, match="too many to decide"):
        least_touched(rows)
    assert least_touched(rows[:2]) == 199


def test_sums_that_differ_by_one_silo_show_it() -> None:
    """And so do three sums of which no two differ by one."""
    assert 1 in shown([frozenset({1, 2, 3, 4}), frozenset({2, 3, 4})])
    assert 2 not in shown([frozenset({1, 2, 3, 4}), frozenset({2, 3, 4})])
    assert 1 not in shown([frozenset({1, 2, 3, 4})] * 5)
    three = [frozenset({1, 2, 3}), frozenset({3, 4, 5}), frozenset({1, 2, 4, 5})]
    assert 3 in shown(three)
    assert 1 not in shown(three)
    assert 3 not in shown(three[:2])
    assert 3 not in shown([])


def test_every_small_ledger() -> None:
    """All pairs of sets over four silos: one is shown if they differ by it alone, or are it."""
    sets = [frozenset(n for n in range(4) if bits >> n & 1) for bits in range(1, 16)]
    for one, two in product(sets, repeat=2):
        is_nested = one <= two or two <= one
        for silo in range(4):
            alone = frozenset({silo})
            expected = alone in {one, two} or (is_nested and one ^ two == alone)
            assert (silo in shown([one, two])) == expected

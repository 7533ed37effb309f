"""Which combinations of released sums would show a single silo: exact linear algebra on few rows.

A released sum is a row: one coefficient for each silo. Whoever holds several sums over the same
inputs can add and subtract them, so what must be looked at is the whole space of the rows. Rows
are integers; a common factor changes nothing.

Source: SA1 spec 2.3 (coefficient rule) and 2.4 (participation ledger).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from math import comb, gcd
from typing import Final, TypeAlias

from secagg.errors import ParameterError

Row: TypeAlias = Sequence[int]

# Points times subsets of them: a second's work. Coefficients from a few public classes stay below.
_MOST_STEPS: Final = 200_000


class RowSpace:
    """The rational combinations of some rows, kept as a basis in echelon form."""

    __slots__ = ("_basis",)

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._basis: list[tuple[int, list[int]]] = []  # (place of the first non-zero, row)
        for row in rows:
            rest = self._reduced(row)
            if any(rest):
                self._basis.append((_first(rest), rest))
                self._basis.sort(key=lambda item: item[0])

    def __contains__(self, row: Row) -> bool:
        """Whether the row is a combination of the rows."""
        return not any(self._reduced(row))

    @property
    def basis(self) -> tuple[tuple[int, ...], ...]:
        """As many rows as the space has dimensions."""
        return tuple(tuple(row) for _, row in self._basis)

    def _reduced(self, row: Row) -> list[int]:
        rest = list(row)
        for place, base in self._basis:
            if rest[place]:
                factor, pivot = rest[place], base[place]
                rest = _primitive(
                    [pivot * one - factor * two for one, two in zip(rest, base, strict=True)]
                )
        return _primitive(rest)


def least_touched(rows: Iterable[Row]) -> int | None:
    """How many silos the combination of rows touches that touches fewest, but at least one.

    Args:
        rows: of one length, one coefficient for each silo.

    Returns:
        The least number of non-zero coefficients of a non-zero combination; None if there is
        none.

    Raises:
        ParameterError: too many different coefficients to decide it exactly.
    """
    basis = RowSpace(rows).basis
    if not basis:
        return None
    # A combination vanishes on silos whose columns lie in one hyperplane, and a hyperplane is
    # spanned by dimension - 1 columns: the fullest one leaves the fewest silos.
    points = Counter(tuple(_primitive(column)) for column in zip(*basis, strict=True))
    points.pop((0,) * len(basis), None)
    size = len(basis) - 1
    if comb(len(points), size) * len(points) > _MOST_STEPS:
        raise ParameterError(
            f"{len(basis)} coefficient vectors with {len(points)} different silos are too many to "
            f"decide what their combinations show"
        )
    fullest = 0
    for span in combinations(points, size):
        plane = RowSpace(span)
        if len(plane.basis) == size:
            fullest = max(fullest, sum(n for point, n in points.items() if point in plane))
    return points.total() - fullest


def shown(sums: Iterable[frozenset[int]]) -> frozenset[int]:
    """Whose input alone sums over these sets of silos, of the same inputs, can be combined to."""
    sets = list(sums)
    seats = sorted(frozenset().union(*sets))
    space = RowSpace([int(seat in members) for seat in seats] for members in sets)
    return frozenset(silo for silo in seats if [int(seat == silo) for seat in seats] in space)


def _first(row: Row) -> int:
    return next(place for place, value in enumerate(row) if value)


def _primitive(row: Row) -> list[int]:
    """The row without its common factor, its first non-zero value positive."""
    factor = gcd(*row)
    if factor == 0:
        return list(row)
    return [value // (factor if row[_first(row)] > 0 else -factor) for value in row]

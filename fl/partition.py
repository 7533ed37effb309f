"""One table becomes the rows of many silos, by the rules that experiments in the field use.

Every rule deals by a seed alone, and no row to two silos. The demo's own rule, with skewed features
beside skewed labels, is in fl.skew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl import fields
from fl.errors import DataError
from fl.seeding import generator

Rows = NDArray[np.int64]
Labels = NDArray[np.floating] | NDArray[np.integer]

_MAX_SILOS: Final = 10_000


class PartitionKind(StrEnum):
    """The rules."""

    IID = "iid"
    SIMILARITY = "similarity"
    SHARDS = "shards"
    DIRICHLET = "dirichlet"
    QUANTITY = "quantity"
    COLUMN = "column"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRule:
    """A rule with its settings; those of other rules are not looked at.

    Attributes:
        kind: which rule.
        silos: how many; a column has as many silos as values.
        similarity: of "similarity", the share of a silo's rows that is dealt at random.
        shards: of "shards", how many of one label a silo gets.
        alpha: of "dirichlet" and "quantity"; small is skewed.
        least: of these two, the fewest rows of a silo.
    """

    kind: PartitionKind = PartitionKind.IID
    silos: int = 10
    similarity: float = 0.0
    shards: int = 2
    alpha: float = 0.5
    least: int = 1

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        fields.whole("partition.silos", self.silos, 1, _MAX_SILOS)
        fields.whole("partition.shards", self.shards, 1, _MAX_SILOS)
        fields.whole("partition.least", self.least, 0, 2**31)
        fields.positive("partition.alpha", self.alpha)
        if not 0 <= self.similarity <= 1:
            fields.refuse("partition.similarity", "a share in [0, 1]", self.similarity)

    def rows(self, labels: Labels, seed: int, column: Sequence[str] = ()) -> list[Rows]:
        """Return each silo's rows.

        Args:
            labels: of all rows.
            seed: of the draw.
            column: of "column", the rows' values.

        Raises:
            DataError: there are too few rows.
        """
        match self.kind:
            case PartitionKind.IID:
                return by_chance(len(labels), self.silos, seed)
            case PartitionKind.SIMILARITY:
                return by_similarity(labels, self.silos, self.similarity, seed)
            case PartitionKind.SHARDS:
                return by_shards(labels, self.silos, self.shards, seed)
            case PartitionKind.DIRICHLET:
                return by_dirichlet(labels, self.silos, self.alpha, seed, least=self.least)
            case PartitionKind.QUANTITY:
                return by_quantity(len(labels), self.silos, self.alpha, seed, least=self.least)
            case PartitionKind.COLUMN:
                return list(by_column(column).values())


def by_chance(rows: int, silos: int, seed: int) -> list[Rows]:
    """Return silos of independent and identically distributed rows; sizes differ by one at most."""
    _require(rows, silos)
    return np.array_split(generator(seed, "chance").permutation(rows), silos)


def by_similarity(labels: Labels, silos: int, share: float, seed: int) -> list[Rows]:
    """Return each silo's rows: a share of them at random, the rest in the order of their labels.

    Args:
        labels: of all rows.
        silos: how many; rows that do not divide evenly are left out.
        share: in [0, 1]; 1 is independent and identically distributed.
        seed: of the draw.

    Source: Karimireddy et al. 2020, section 7 (after Hsu et al. 2019).
    """
    _require(len(labels), silos)
    size = len(labels) // silos
    order = generator(seed, "similarity").permutation(len(labels))[: size * silos]
    alike = round(share * size)
    mixed, rest = order[: alike * silos], order[alike * silos :]
    rest = rest[np.argsort(labels[rest], kind="stable")]
    pairs = zip(mixed.reshape(silos, alike), rest.reshape(silos, size - alike), strict=True)
    return [np.concatenate(pair) for pair in pairs]


def by_shards(labels: Labels, silos: int, shards_each: int, seed: int) -> list[Rows]:
    """Return each silo's rows: some shards of the table sorted by label, dealt at random.

    Rows that do not divide evenly are left out.

    Source: McMahan et al. 2017, section 3 (200 shards of 300 rows, two to a silo).
    """
    count = silos * shards_each
    _require(len(labels), count)
    size = len(labels) // count
    shards = np.argsort(labels, kind="stable")[: count * size].reshape(count, size)
    dealt = generator(seed, "shards").permutation(count).reshape(silos, shards_each)
    return [shards[own].reshape(-1) for own in dealt]


def by_dirichlet(
    labels: Labels, silos: int, alpha: float, seed: int, *, least: int = 1
) -> list[Rows]:
    """Return silos whose shares of each label are drawn from a Dirichlet distribution.

    Args:
        labels: of all rows.
        silos: how many.
        alpha: of all shares; 100 is nearly alike, 0.1 leaves a silo one or two labels.
        seed: of the draw.
        least: rows of a silo; who has fewer takes them from the largest.

    Source: Hsu et al. 2019; Li et al. 2022 (NIID-Bench), which draws again instead of `least`.
    """
    _require(len(labels), silos * max(least, 1))
    parts: list[list[Rows]] = [[] for _ in range(silos)]
    for place, label in enumerate(np.unique(labels)):
        draws = generator(seed, "dirichlet", place)
        rows = draws.permutation(np.flatnonzero(labels == label))
        for part, own in zip(parts, _cut(rows, draws.dirichlet([alpha] * silos)), strict=True):
            part.append(own)
    return _filled([np.concatenate(part) for part in parts], least)


def by_quantity(rows: int, silos: int, alpha: float, seed: int, *, least: int = 1) -> list[Rows]:
    """Return silos alike in kind, whose sizes are drawn from a Dirichlet distribution.

    Source: Li et al. 2022 (NIID-Bench), quantity skew.
    """
    _require(rows, silos * max(least, 1))
    draws = generator(seed, "quantity")
    order = draws.permutation(rows)
    return _filled(_cut(order, draws.dirichlet([alpha] * silos)), least)


def by_column(values: Sequence[str]) -> dict[str, Rows]:
    """Return the rows of each value, in the values' order: natural silos, such as hospitals."""
    column = np.array(values, dtype=np.str_)
    return {str(one): np.flatnonzero(column == one) for one in np.unique(column)}


def _cut(rows: Rows, shares: NDArray[np.float64]) -> list[Rows]:
    """Return consecutive parts of these shares."""
    ends = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
    return np.split(rows, ends)


def _filled(silos: list[Rows], least: int) -> list[Rows]:
    """Let small silos take rows from whichever is the largest then."""
    for place in range(len(silos)):
        while len(silos[place]) < least:
            largest = max(range(len(silos)), key=lambda one: len(silos[one]))
            short = least - len(silos[place])
            spare = max((len(silos[largest]) - least) // 2, 1)
            taken = min(short, spare)
            silos[place] = np.concatenate([silos[place], silos[largest][-taken:]])
            silos[largest] = silos[largest][:-taken]
    return silos


def _require(rows: int, needed: int) -> None:
    if rows < needed:
        raise DataError(f"this partition needs at least {needed} rows, the table has {rows}")

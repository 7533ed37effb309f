"""One table becomes several unequal, label- and feature-skewed silos, by a rule anyone can repeat.

The rule, for the demo and for experiments:

1. Sizes. Silo k is due the fraction f_k of the rows.
2. Labels. Silo k draws a tilt t_k, one of the numbers evenly spaced over [−1, 1], dealt by the
   seed. Its affinity to class c is exp(label_tilt · t_k · u_c), where u_c runs evenly from −1 for
   the first class to 1 for the last. The table of affinities is scaled, rows and columns in turn,
   until rows sum to the sizes and columns to the class counts; rounded by largest remainders, it
   says how many rows of each class every silo gets. A silo short of `minimum_per_class` takes the
   rest from the silo that has most rows of that class.
3. Feature. Within a class, rows are put in the order of the named feature's rank plus seeded noise,
   and dealt to the silos in consecutive bands, the first silo lowest. The noise is `feature_noise`
   times a standard normal, in units of the class's row count: 0 cuts clean bands, 1 and more leaves
   little skew.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl.errors import DataError
from fl.seeding import generator

# Positive tables converge geometrically; at the largest tilt that is allowed the rest is below a
# row.
_SCALING_PASSES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewRule:
    """How unequal the silos shall be; the defaults are the demo's five hospitals.

    Args:
        fractions: of the rows, one for each silo, positive, summing to 1.
        label_tilt: 0 gives every silo the table's class shares; at 1 two classes' odds differ by up
            to e⁴ between the outermost silos.
        feature_noise: 0 or more; see the rule.
        minimum_per_class: every silo gets at least so many rows of every class.
    """

    fractions: tuple[float, ...] = (0.36, 0.25, 0.18, 0.12, 0.09)
    label_tilt: float = 0.8
    feature_noise: float = 0.3
    minimum_per_class: int = 5

    def __post_init__(self) -> None:
        if not self.fractions or not all(fraction > 0 for fraction in self.fractions):
            raise DataError(f"fractions must be above 0, got {self.fractions}")
        if not math.isclose(math.fsum(self.fractions), 1.0, abs_tol=1e-9):
            raise DataError(f"fractions must sum to 1, got {math.fsum(self.fractions)}")
        if not (math.isfinite(self.label_tilt) and abs(self.label_tilt) <= 10):
            raise DataError(f"label_tilt must lie within ±10, got {self.label_tilt}")
        if not (math.isfinite(self.feature_noise) and self.feature_noise >= 0):
            raise DataError(f"feature_noise must be 0 or more, got {self.feature_noise}")
        if self.minimum_per_class < 0:
            raise DataError(f"minimum_per_class must be 0 or more, got {self.minimum_per_class}")


def skewed(
    labels: NDArray[np.int64], feature: NDArray[np.float64], *, rule: SkewRule, seed: int
) -> tuple[NDArray[np.int64], ...]:
    """Split rows into silos by the module's rule.

    Args:
        labels: (rows,), from 0 to the number of classes − 1, each occurring.
        feature: (rows,), finite; the column on which the silos shall differ.
        rule: sizes and skews.
        seed: the same seed, the same split.

    Returns:
        for each silo its row numbers, ascending; every row is in exactly one silo.

    Raises:
        DataError: the shapes differ, a class is absent, or has too few rows for the minimum.
    """
    if labels.shape != feature.shape or labels.ndim != 1 or not np.isfinite(feature).all():
        raise DataError(
            f"labels and feature must be finite vectors of one length, got shapes {labels.shape}"
            f" and {feature.shape}"
        )
    counts = np.bincount(labels)
    needed = max(1, rule.minimum_per_class * len(rule.fractions))
    if len(counts) < 2 or (counts < needed).any():
        raise DataError(f"each of two or more classes needs {needed} rows; lower minimum_per_class")
    quotas = _quotas(counts, rule, seed)
    silos: list[list[NDArray[np.int64]]] = [[] for _ in rule.fractions]
    for label, count in enumerate(counts):
        rows = np.flatnonzero(labels == label)
        rank = np.argsort(np.argsort(feature[rows], kind="stable"), kind="stable")
        noise = generator(seed, "partition", "feature", label).standard_normal(count)
        order = np.argsort(rank + rule.feature_noise * count * noise, kind="stable")
        bands = np.split(rows[order], np.cumsum(quotas[:-1, label]))
        for silo, band in zip(silos, bands, strict=True):
            silo.append(band)
    return tuple(np.sort(np.concatenate(bands)) for bands in silos)


def _quotas(counts: NDArray[np.int64], rule: SkewRule, seed: int) -> NDArray[np.int64]:
    """(silos, classes): how many rows of each class every silo gets; columns sum to `counts`."""
    silos, classes = len(rule.fractions), len(counts)
    tilts = generator(seed, "partition", "labels").permutation(np.linspace(-1, 1, silos))
    table = np.exp(rule.label_tilt * np.outer(tilts, np.linspace(-1, 1, classes)))
    sizes = np.array(rule.fractions) * counts.sum()
    for _ in range(_SCALING_PASSES):
        table *= (sizes / table.sum(axis=1))[:, None]
        table *= counts / table.sum(axis=0)
    quotas: NDArray[np.int64] = np.floor(table).astype(np.int64)
    for label in range(classes):
        column = quotas[:, label]
        short = int(counts[label] - column.sum())
        column[np.argsort(column - table[:, label], kind="stable")[:short]] += 1
        while (poorest := int(column.argmin())) >= 0 and column[poorest] < rule.minimum_per_class:
            column[int(column.argmax())] -= 1
            column[poorest] += 1
    return quotas

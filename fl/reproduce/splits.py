"""How the papers cut one table into silos of equal size."""

import numpy as np
from numpy.typing import NDArray

from fl.seeding import generator

Rows = NDArray[np.int64]


def by_similarity(labels: NDArray[np.floating], silos: int, share: float, seed: int) -> list[Rows]:
    """Return each silo's rows: a share of them at random, the rest in the order of their labels.

    Args:
        labels: of all rows.
        silos: how many; rows that do not divide evenly are left out.
        share: in [0, 1]; 1 is independent and identically distributed.
        seed: of the draw.

    Source: Karimireddy et al. 2020, section 7 (after Hsu et al. 2019).
    """
    size = len(labels) // silos
    order = generator(seed, "similarity").permutation(len(labels))[: size * silos]
    alike = round(share * size)
    mixed, rest = order[: alike * silos], order[alike * silos :]
    rest = rest[np.argsort(labels[rest], kind="stable")]
    pairs = zip(mixed.reshape(silos, alike), rest.reshape(silos, size - alike), strict=True)
    return [np.concatenate(pair) for pair in pairs]


def by_shards(labels: NDArray[np.floating], silos: int, shards_each: int, seed: int) -> list[Rows]:
    """Return each silo's rows: some shards of the table sorted by label, dealt at random.

    Source: McMahan et al. 2017, section 3 (200 shards of 300 rows, two to a silo).
    """
    count = silos * shards_each
    size = len(labels) // count
    shards = np.argsort(labels, kind="stable")[: count * size].reshape(count, size)
    dealt = generator(seed, "shards").permutation(count).reshape(silos, shards_each)
    return [shards[own].reshape(-1) for own in dealt]

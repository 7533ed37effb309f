"""Who shares masks and secrets with whom: everybody, or a k-regular random graph.

The complete graph is the default. For 150 silos and more a regular graph saves work: each silo
deals shares to its k neighbors and masks with them only, and a threshold t of the neighborhood
replaces that of the cohort. It protects against a semi-honest server only: who speaks last among
the silos, or a server that drops advertisements, could try out labelings.

The graph is a Harary graph on a random ring: silos are ordered by a hash over all silos' nonces,
and each is joined with the k/2 next ones on either side.

Source: Bell et al. 2020 (SecAgg+); parameters by the rule of SA1 spec 1, for sigma = 40, eta = 20.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import comb, perm
from typing import Final

from secagg import canonical
from secagg.errors import ParameterError

# Failure probabilities: 2^-SIGMA that an adversary wins, 2^-ETA that an honest round fails.
SIGMA: Final = 40
ETA: Final = 20
MIN_REGULAR_SILOS: Final = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The neighborhoods of one attempt.

    Attributes:
        ring: U1 in the order of the labels.
        reach: how many silos on either side are neighbors; None joins everybody.
        threshold: shares that rebuild a secret, and signatures that certify survivors.
    """

    ring: tuple[int, ...]
    reach: int | None
    threshold: int
    _known: dict[int, tuple[int, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def holders(self, seat: int) -> tuple[int, ...]:
        """The closed neighborhood of a silo: itself and its neighbors, sorted."""
        if seat not in self._known:  # asked for every share that is opened
            self._known[seat] = self._holders(seat)
        return self._known[seat]

    def _holders(self, seat: int) -> tuple[int, ...]:
        if self.reach is None:
            return tuple(sorted(self.ring))
        place = self.ring.index(seat)
        count = len(self.ring)
        steps = range(-self.reach, self.reach + 1)
        return tuple(sorted(self.ring[(place + step) % count] for step in steps))


def complete(u1: tuple[int, ...], threshold: int) -> Graph:
    """Everybody with everybody."""
    return Graph(ring=u1, reach=None, threshold=threshold)


def regular(u1: tuple[int, ...], *, setup: bytes, colluding: int, dropout_percent: int) -> Graph:
    """The k-regular graph of these silos, its labels drawn from all their nonces through setup.

    Raises:
        ParameterError: too few silos, or no degree that meets both failure probabilities.
    """
    if len(u1) < MIN_REGULAR_SILOS:
        raise ParameterError(
            f"a regular graph needs at least {MIN_REGULAR_SILOS} silos, got {len(u1)}; use the "
            f"complete graph"
        )
    degree, threshold = find_degree(len(u1), colluding, dropout_percent)
    labels = {seat: canonical.digest("label", setup, canonical.u32(seat)) for seat in u1}
    ring = tuple(sorted(u1, key=lambda seat: labels[seat]))
    return Graph(ring=ring, reach=degree // 2, threshold=threshold)


@lru_cache(maxsize=64)
def find_degree(silos: int, colluding: int, dropout_percent: int) -> tuple[int, int]:
    """The smallest even degree k and its threshold t (SA1 spec 1, semi-honest).

    Args:
        silos: n.
        colluding: ⌊γn⌋.
        dropout_percent: 100·δ.

    Raises:
        ParameterError: even k = n − 1 does not meet the rule.
    """
    dropped = silos * dropout_percent // 100
    staying = -(-silos * (100 - dropout_percent) // 100)
    for degree in range(2, silos, 2):
        # (i) The honest survivors stay connected.
        gone = colluding + dropped
        cut = Fraction(silos * (silos - degree - 1), 2)
        if degree <= gone:
            cut *= Fraction(perm(gone, degree), perm(silos, degree))
        else:
            cut = Fraction(0)
        if cut >= Fraction(1, 2 ** (SIGMA + 1)):
            continue
        # (ii) Colluders hold at most t1 of a neighborhood's shares; (iii) t2 stay to open them.
        most_bad = _upper_tail_quantile(
            silos, colluding, degree, Fraction(1, silos * 2 ** (SIGMA + 1))
        )
        least_there = _lower_tail_quantile(silos, staying, degree, Fraction(1, silos * 2**ETA))
        if least_there > most_bad:
            return degree, most_bad + 1
    raise ParameterError(
        f"no regular graph of {silos} silos stands {colluding} colluders and "
        f"{dropout_percent} % dropouts; use the complete graph"
    )


def _hypergeometric(total: int, marked: int, draws: int) -> list[Fraction]:
    """P[exactly i marked among the draws] for i = 0 … draws."""
    ways = comb(total, draws)
    return [
        Fraction(comb(marked, hits) * comb(total - marked, draws - hits), ways)
        for hits in range(draws + 1)
    ]


def _upper_tail_quantile(total: int, marked: int, draws: int, limit: Fraction) -> int:
    """The smallest x with P[hits > x] ≤ limit."""
    tail = Fraction(0)
    for hits, chance in reversed(list(enumerate(_hypergeometric(total, marked, draws)))):
        tail += chance
        if tail > limit:
            return hits
    return 0


def _lower_tail_quantile(total: int, marked: int, draws: int, limit: Fraction) -> int:
    """The largest x with P[hits < x] ≤ limit."""
    tail = Fraction(0)
    for hits, chance in enumerate(_hypergeometric(total, marked, draws)):
        tail += chance
        if tail > limit:
            return hits
    return draws

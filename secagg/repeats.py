"""Which uploads the server sums so that no silo's earlier survivors stand against it.

A silo that has submitted to a state before names the survivors of that sum, and signs no other ones
for this state, proven liars aside (SA1 spec 2.5 v). The server asks for no signatures that silos
would refuse.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet


def agreeing(
    priors: Mapping[int, tuple[int, ...]],
    *,
    n_c: int,
    liars: AbstractSet[int],
    may_sum: Callable[[tuple[int, ...]], bool],
) -> tuple[int, ...]:
    """The uploads to sum: all, else those that priors name, else those without one; or none.

    Exactly the survivors that priors name, without proven liars, for then the same sum is opened
    again; n_c + 1 priors, for one of so many is true. Those without a prior, so that made-up priors
    choose nobody's place but their authors'.

    Args:
        priors: what each silo that has uploaded names, by seat; empty if it names none.
        n_c: how many of them may be made up.
        liars: whom earlier survivors may lack.
        may_sum: whether these seats are enough.
    """
    named = {seat: set(prior) for seat, prior in sorted(priors.items())}
    names = Counter(tuple(sorted(prior - liars)) for prior in named.values() if prior)
    earlier = [survivors for survivors, namers in names.items() if namers > n_c]
    fresh = tuple(seat for seat, prior in named.items() if not prior)
    for chosen in (tuple(named), *sorted(earlier, key=len, reverse=True), fresh):
        agree = all(seat in named and _signs(named[seat], chosen, liars) for seat in chosen)
        if agree and may_sum(chosen):
            return chosen
    return ()


def _signs(prior: set[int], chosen: tuple[int, ...], liars: AbstractSet[int]) -> bool:
    """Whether a silo with this prior signs these survivors."""
    return not prior or (prior >= set(chosen) and prior - set(chosen) <= liars)

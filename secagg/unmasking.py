"""Rebuilding what the shares stand for, and naming the masks that are left in the sum.

Of every survivor the self mask remains; of every dropout the pairwise masks that the survivors
added for it. Shares were checked against their commitments when they came, so a rebuilt secret
that fails its public check convicts the dealer.

Source: Bonawitz et al. 2017, fig. 4, round 4.
"""

from collections.abc import Mapping
from typing import TypeAlias

from secagg import hybrid
from secagg.errors import BadDealerError, BadShareError
from secagg.graph import Graph
from secagg.hybrid import KemKey
from secagg.keys import mask_key_from_seed
from secagg.masking import pairwise_seeds, pairwise_sign, self_seed
from secagg.messages import Advertise, Share, ShareKind
from secagg.sealing import commit_secret
from secagg.secretbytes import Secret
from secagg.shamir import combine
from secagg.suites import Suite

# One holder's opened shares by dealer and kind.
Openings: TypeAlias = dict[tuple[int, ShareKind], Secret]


def residual_masks(
    *,
    suite: Suite,
    setup: bytes,
    binding: bytes,
    segments: tuple[str, ...],
    survivors: tuple[int, ...],
    advertises: Mapping[int, Advertise],
    shares: Mapping[int, Share],
    openings: Mapping[int, Openings],
    graph: Graph,
) -> dict[str, list[tuple[int, bytes]]]:
    """Per segment the seeds of the masks in the sum, with the sign that takes each off.

    Args:
        suite: of the round.
        setup: of the attempt, 32 bytes.
        binding: of the attempt, 32 bytes.
        segments: names, the tag segment too.
        survivors: U3.
        advertises: U1's keys.
        shares: U2's Share messages.
        openings: by holder; of each dealer's neighborhood at least the graph's threshold.
        graph: the neighborhoods.

    Raises:
        BadDealerError: a dealer's shares rebuild another secret than it committed to.
    """
    opened = sorted(openings)

    def rebuild(dealer: int, kind: ShareKind) -> bytes:
        near = set(graph.holders(dealer))
        holders = [holder for holder in opened if holder in near][: graph.threshold]
        try:
            return combine({h: openings[h][dealer, kind] for h in holders}, graph.threshold)
        except BadShareError as error:
            raise _bad_dealer(dealer) from error

    seeds: dict[str, list[tuple[int, bytes]]] = {name: [] for name in segments}
    for dealer in survivors:
        secret = rebuild(dealer, ShareKind.SELF)
        if commit_secret("com-b", setup, dealer, secret) != shares[dealer].commitment_b:
            raise _bad_dealer(dealer)
        for name in segments:
            seed = self_seed(
                secret, binding=binding, seat=dealer, segment=name, generator=suite.generator
            )
            seeds[name].append((-1, seed))
    for dealer in sorted(set(shares) - set(survivors)):
        secret = rebuild(dealer, ShareKind.KEY)
        key = mask_key_from_seed(secret)
        kem = KemKey.for_masks(secret) if suite.is_hybrid else None
        promised = advertises[dealer].kem
        if key.public != advertises[dealer].mask_key or (
            kem is not None and (promised is None or kem.public != promised.mask_key)
        ):
            raise _bad_dealer(dealer)
        near = set(graph.holders(dealer))
        for survivor in (seat for seat in survivors if seat in near):
            shared = pairwise_seeds(
                key,
                advertises[survivor].mask_key,
                binding=binding,
                own_seat=dealer,
                peer_seat=survivor,
                segments=segments,
                kem_secret=_pair_secret(setup, dealer, survivor, secret, kem, shares),
                generator=suite.generator,
            )
            # The dropout's own half of the pair never came: adding it cancels the survivor's.
            sign = pairwise_sign(dealer, survivor)
            for name, seed in shared.items():
                seeds[name].append((sign, seed))
    return seeds


def _pair_secret(  # noqa: PLR0917  # one pair's facts
    setup: bytes,
    dealer: int,
    survivor: int,
    secret_a: bytes,
    kem: KemKey | None,
    shares: Mapping[int, Share],
) -> Secret | None:
    """In the hybrid suite, what the pair's lower seat encapsulated to the higher one."""
    if kem is None:
        return None
    low, high = sorted((dealer, survivor))
    box = next(item for item in shares[low].boxes if item.holder == high)
    if box.kem is None or box.kem.pair is None:
        raise _bad_dealer(low)
    pair = box.kem.pair
    if dealer == high:
        return kem.decapsulate(pair.ciphertext).secret
    try:
        found = hybrid.open_escrow(secret_a, setup, low, high, pair.escrow)
    except BadShareError as error:
        raise _bad_dealer(dealer) from error
    if hybrid.commit_pair(setup, low, high, found) != pair.commitment:
        raise _bad_dealer(dealer)
    return found


def _bad_dealer(dealer: int) -> BadDealerError:
    return BadDealerError(
        f"the shares of seat {dealer} rebuild another secret than it committed to", silo=dealer
    )

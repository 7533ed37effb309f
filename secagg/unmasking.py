"""Rebuilding what the shares stand for, and naming the masks that are left in the sum.

Of every survivor the self mask remains; of every dropout the pairwise masks that the survivors
added for it. Shares were checked against their commitments when they came, so a rebuilt secret
that fails its public check convicts the dealer.

Source: Bonawitz et al. 2017, fig. 4, round 4.
"""

from collections.abc import Mapping
from typing import TypeAlias

from secagg.errors import BadDealerError, BadShareError
from secagg.keys import mask_key_from_seed
from secagg.masking import pairwise_seeds, pairwise_sign, self_seed
from secagg.messages import Advertise, Share, ShareKind
from secagg.sealing import commit_secret
from secagg.secretbytes import Secret
from secagg.shamir import combine

# One holder's opened shares by dealer and kind.
Openings: TypeAlias = dict[tuple[int, ShareKind], Secret]


def residual_masks(
    *,
    setup: bytes,
    binding: bytes,
    segments: tuple[str, ...],
    survivors: tuple[int, ...],
    advertises: Mapping[int, Advertise],
    shares: Mapping[int, Share],
    openings: Mapping[int, Openings],
    threshold: int,
) -> dict[str, list[tuple[int, bytes]]]:
    """Per segment the seeds of the masks in the sum, with the sign that takes each off.

    Args:
        setup: of the attempt, 32 bytes.
        binding: of the attempt, 32 bytes.
        segments: names, the tag segment too.
        survivors: U3.
        advertises: U1's keys.
        shares: U2's Share messages.
        openings: by holder; at least `threshold` holders.
        threshold: t.

    Raises:
        BadDealerError: a dealer's shares rebuild another secret than it committed to.
    """
    holders = sorted(openings)[:threshold]

    def rebuild(dealer: int, kind: ShareKind) -> bytes:
        try:
            return combine({h: openings[h][dealer, kind] for h in holders}, threshold)
        except BadShareError as error:
            raise _bad_dealer(dealer) from error

    seeds: dict[str, list[tuple[int, bytes]]] = {name: [] for name in segments}
    for dealer in survivors:
        secret = rebuild(dealer, ShareKind.SELF)
        if commit_secret("com-b", setup, dealer, secret) != shares[dealer].commitment_b:
            raise _bad_dealer(dealer)
        for name in segments:
            seed = self_seed(secret, binding=binding, seat=dealer, segment=name)
            seeds[name].append((-1, seed))
    for dealer in sorted(set(shares) - set(survivors)):
        key = mask_key_from_seed(rebuild(dealer, ShareKind.KEY))
        if key.public != advertises[dealer].mask_key:
            raise _bad_dealer(dealer)
        for survivor in survivors:
            shared = pairwise_seeds(
                key,
                advertises[survivor].mask_key,
                binding=binding,
                own_seat=dealer,
                peer_seat=survivor,
                segments=segments,
            )
            # The dropout's own half of the pair never came: adding it cancels the survivor's.
            sign = pairwise_sign(dealer, survivor)
            for name, seed in shared.items():
                seeds[name].append((sign, seed))
    return seeds


def _bad_dealer(dealer: int) -> BadDealerError:
    return BadDealerError(
        f"the shares of seat {dealer} rebuild another secret than it committed to", silo=dealer
    )

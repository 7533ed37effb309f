"""Rebuilding what the shares stand for, and naming the masks that are left in the sum.

Of every survivor the self mask remains; of every dropout the pairwise masks that the survivors
added for it. Shares were checked against their commitments when they came, so a rebuilt secret
that fails its public check convicts the dealer.

Source: Bonawitz et al. 2017, fig. 4, round 4.
"""

from collections.abc import Mapping
from typing import TypeAlias

from secagg import hybrid
from secagg.errors import BadDealerError, BadShareError, FalsePairError
from secagg.graph import Graph
from secagg.hybrid import KemKey
from secagg.keys import mask_key_from_seed
from secagg.masking import pairwise_seeds, pairwise_sign, self_seed
from secagg.messages import Advertise, KemPair, Share, ShareKind
from secagg.sealing import commit_secret
from secagg.secretbytes import Secret
from secagg.shamir import combine
from secagg.suites import Suite

# One holder's opened shares by dealer and kind.
Openings: TypeAlias = dict[tuple[int, ShareKind], Secret]
# What the lower seat of a pair dealt to the higher one, by (lower, higher).
Pairs: TypeAlias = Mapping[tuple[int, int], KemPair]


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
        FalsePairError: a pair's secret is not the one that its lower seat committed to.
    """
    return removal_seeds(
        suite=suite,
        setup=setup,
        binding=binding,
        segments=segments,
        survivors=survivors,
        advertises=advertises,
        commitments={seat: share.commitment_b for seat, share in shares.items()},
        secrets=rebuild_secrets(
            dealers=tuple(sorted(shares)), survivors=survivors, openings=openings, graph=graph
        ),
        pairs=cut_pairs(shares, survivors),
        graph=graph,
    )


def rebuild_secrets(
    *,
    dealers: tuple[int, ...],
    survivors: tuple[int, ...],
    openings: Mapping[int, Openings],
    graph: Graph,
) -> dict[int, bytes]:
    """Of each dealer the secret whose shares were opened: b_u of a survivor, a_u of a dropout.

    Raises:
        BadDealerError: a dealer's shares rebuild no secret.
    """
    opened = sorted(openings)
    secrets = {}
    for dealer in dealers:
        kind = ShareKind.SELF if dealer in survivors else ShareKind.KEY
        near = set(graph.holders(dealer))
        holders = [holder for holder in opened if holder in near][: graph.threshold]
        try:
            secrets[dealer] = combine(
                {h: openings[h][dealer, kind] for h in holders}, graph.threshold
            )
        except BadShareError as error:
            raise _bad_dealer(dealer) from error
    return secrets


def cut_pairs(shares: Mapping[int, Share], survivors: tuple[int, ...]) -> Pairs:
    """In the hybrid suite, the pairs of a survivor and a dropout; else none."""
    alive = set(survivors)
    return {
        (low, box.holder): box.kem.pair
        for low, share in shares.items()
        for box in share.boxes
        if box.kem and box.kem.pair and (low in alive) != (box.holder in alive)
    }


def removal_seeds(
    *,
    suite: Suite,
    setup: bytes,
    binding: bytes,
    segments: tuple[str, ...],
    survivors: tuple[int, ...],
    advertises: Mapping[int, Advertise],
    commitments: Mapping[int, bytes],
    secrets: Mapping[int, bytes],
    pairs: Pairs,
    graph: Graph,
) -> dict[str, list[tuple[int, bytes]]]:
    """`residual_masks` from the rebuilt secrets, each checked against what was made public.

    Args:
        suite: as there.
        setup: as there.
        binding: as there.
        segments: as there.
        survivors: as there.
        advertises: as there.
        commitments: com_b of U2.
        secrets: of U2, b_u of survivors and a_u of dropouts.
        pairs: in the hybrid suite, of every survivor with every neighbor that dropped out.
        graph: as there.

    Raises:
        BadDealerError, FalsePairError: as there.
    """
    seeds: dict[str, list[tuple[int, bytes]]] = {name: [] for name in segments}
    for dealer in survivors:
        secret = secrets[dealer]
        if commit_secret("com-b", setup, dealer, secret) != commitments[dealer]:
            raise _bad_dealer(dealer)
        for name in segments:
            seed = self_seed(
                secret, binding=binding, seat=dealer, segment=name, generator=suite.generator
            )
            seeds[name].append((-1, seed))
    for dealer in sorted(set(secrets) - set(survivors)):
        secret = secrets[dealer]
        key = mask_key_from_seed(secret)
        kem = KemKey.for_masks(secret) if suite.is_hybrid else None
        promised = advertises[dealer].kem
        if key.public != advertises[dealer].mask_key or (
            kem is not None and (promised is None or kem.public != promised.mask_key)
        ):
            raise _bad_dealer(dealer)
        near = set(graph.holders(dealer))
        for survivor in (seat for seat in survivors if seat in near):
            low, high = sorted((dealer, survivor))
            shared = pairwise_seeds(
                key,
                advertises[survivor].mask_key,
                binding=binding,
                own_seat=dealer,
                peer_seat=survivor,
                segments=segments,
                kem_secret=pair_secret(setup, (low, high), dealer, secret, pairs[low, high])
                if suite.is_hybrid
                else None,
                generator=suite.generator,
            )
            # The dropout's own half of the pair never came: adding it cancels the survivor's.
            sign = pairwise_sign(dealer, survivor)
            for name, seed in shared.items():
                seeds[name].append((sign, seed))
    return seeds


def pair_secret(
    setup: bytes, ends: tuple[int, int], dropout: int, secret_a: bytes, pair: KemPair
) -> Secret:
    """In the hybrid suite, what the pair's lower seat encapsulated to the higher one.

    Args:
        setup: of the attempt.
        ends: the lower and the higher seat.
        dropout: which of them dropped out.
        secret_a: its a_u. If it is the higher seat, a_u gives the key that opens the ciphertext;
            if it is the lower one, a_u opens its escrow.
        pair: what the lower seat dealt.

    Raises:
        FalsePairError: the lower seat committed to another secret.
    """
    low, high = ends
    try:
        if dropout == high:
            found = KemKey.for_masks(secret_a).decapsulate(pair.ciphertext).secret
        else:
            found = hybrid.open_escrow(secret_a, setup, low, high, pair.escrow)
    except BadShareError as error:
        raise _false_pair(low, high) from error
    if hybrid.commit_pair(setup, low, high, found) != pair.commitment:
        raise _false_pair(low, high)
    return found


def _bad_dealer(dealer: int) -> BadDealerError:
    return BadDealerError(
        f"the shares of seat {dealer} rebuild another secret than it committed to", silo=dealer
    )


def _false_pair(low: int, high: int) -> FalsePairError:
    return FalsePairError(
        f"the pair secret of seat {low} with seat {high} is not the one it committed to", silo=low
    )

"""Dealing shares to all of U1, and accepting those that others dealt (SA1 spec 3.3, check A4).

A dealer commits to every share; a holder checks the commitment before it uses the share. So a
bad dealer is complained about before anything secret has left a silo, and a bad revealer is
named when it opens something else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from secagg import canonical, hybrid
from secagg.errors import BadShareError, CohortRefusedError, MalformedMessageError
from secagg.graph import Graph
from secagg.hybrid import KemKey, encapsulate
from secagg.keys import AgreementKey, mask_key_from_seed
from secagg.messages import Advertise, Delivery, KemBox, KemKeys, KemPair, Share, ShareBox
from secagg.rng import Rng
from secagg.sealing import SharePayload, commit_secret, commit_share, open_box, seal
from secagg.secretbytes import Secret
from secagg.shamir import read_share, split
from secagg.suites import Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class DealerKeys:
    """A silo's private keys of one attempt.

    Attributes:
        enc: X25519, for boxes.
        mask: X25519, for pairwise masks; follows from a_u.
        kem_box: ML-KEM, for boxes, in the hybrid suite.
        kem_mask: ML-KEM, for pairwise masks, in the hybrid suite; follows from a_u.
    """

    enc: AgreementKey
    mask: AgreementKey
    kem_box: KemKey | None = None
    kem_mask: KemKey | None = None

    @classmethod
    def make(cls, suite: Suite, secret_a: Secret, rng: Rng) -> Self:
        """Draw what is drawn, derive from a_u what follows from it."""
        return cls(
            enc=AgreementKey.from_secret(rng.bytes(32)),
            mask=mask_key_from_seed(secret_a),
            kem_box=KemKey.from_seed(rng.bytes(hybrid.SEED_BYTES)) if suite.is_hybrid else None,
            kem_mask=KemKey.for_masks(secret_a) if suite.is_hybrid else None,
        )

    @property
    def kem_public(self) -> KemKeys | None:
        """What Advertise says of the ML-KEM keys."""
        if self.kem_box is None or self.kem_mask is None:
            return None
        return KemKeys(box_key=self.kem_box.public, mask_key=self.kem_mask.public)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """What comes of dealing.

    Attributes:
        share: the unsigned message.
        kept: the shares that the dealer keeps for itself.
        pairs: in the hybrid suite, by higher seat what was encapsulated for the pair's masks.
    """

    share: Share
    kept: SharePayload
    pairs: dict[int, Secret]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What was in a box, and in the hybrid suite the pair's secret from a lower seat."""

    payload: SharePayload
    pair: Secret | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """One silo's place among the dealers of an attempt.

    Attributes:
        advertises: U1's keys by seat.
    """

    suite: Suite
    setup: bytes
    seat: int
    keys: DealerKeys
    advertises: Mapping[int, Advertise]
    graph: Graph

    @property
    def holders(self) -> tuple[int, ...]:
        """Whom this silo deals to: its closed neighborhood, in a complete graph all of U1."""
        return self.graph.holders(self.seat)


def deal(
    own: Dealing,
    *,
    secret_a: Secret,
    secret_b: Secret,
    key: Secret,
    rng: Rng,
) -> Dealt:
    """Split a_u and b_u, seal a share of each for every holder and commit to all of them.

    Raises:
        BadKeyError: a silo of U1 advertised an unusable key (check A3).
    """
    threshold = own.graph.threshold
    shares_a = split(secret_a, threshold=threshold, holders=own.holders, rng=rng)
    shares_b = split(secret_b, threshold=threshold, holders=own.holders, rng=rng)
    boxes = []
    pairs = {}
    for holder in own.holders:
        payload = SharePayload(
            share_a=shares_a[holder], share_b=shares_b[holder], verification_key=key
        )
        place = (own.setup, own.seat, holder)
        box = ShareBox(
            holder=holder,
            box=b"",
            commitment_a=commit_share(*place, "a", shares_a[holder]),
            commitment_b=commit_share(*place, "b", shares_b[holder]),
        )
        if holder != own.seat:
            box = _seal(own, box, payload, rng)
            pair = _encapsulate_pair(own, holder, secret_a)
            if pair is not None and box.kem is not None:
                pairs[holder], record = pair
                box = replace(box, kem=replace(box.kem, pair=record))
        boxes.append(box)
    share = Share(
        setup=own.setup,
        seat=own.seat,
        commitment_b=commit_secret("com-b", own.setup, own.seat, secret_b),
        commitment_k=commit_secret("com-k", own.setup, own.seat, key),
        boxes=tuple(boxes),
    )
    kept = SharePayload(
        share_a=shares_a[own.seat], share_b=shares_b[own.seat], verification_key=key
    )
    return Dealt(share=share, kept=kept, pairs=pairs)


def _seal(own: Dealing, box: ShareBox, payload: SharePayload, rng: Rng) -> ShareBox:
    peer = own.advertises[box.holder]
    # A3: a mask key of low order would make the pair's mask public; find it before dealing.
    own.keys.mask.exchange(peer.mask_key)
    kem = encapsulate(peer.kem.box_key) if peer.kem else None
    sealed = seal(
        own=own.keys.enc,
        peer_public=peer.enc_key,
        setup=own.setup,
        sender=own.seat,
        receiver=box.holder,
        plaintext=payload.encode(),
        rng=rng,
        suite=own.suite,
        kem=kem,
    )
    return replace(box, box=sealed, kem=KemBox(ciphertext=kem.ciphertext) if kem else None)


def _encapsulate_pair(own: Dealing, holder: int, secret_a: Secret) -> tuple[Secret, KemPair] | None:
    """In the hybrid suite the lower seat makes the pair's secret, and escrows it under its a_u."""
    peer = own.advertises[holder]
    if peer.kem is None or own.seat > holder:
        return None
    made = encapsulate(peer.kem.mask_key)
    record = KemPair(
        ciphertext=made.ciphertext,
        escrow=hybrid.seal_escrow(secret_a, own.setup, own.seat, holder, made.secret),
        commitment=hybrid.commit_pair(own.setup, own.seat, holder, made.secret),
    )
    return made.secret, record


def check_delivered(own: Dealing, item: Delivery) -> None:
    """The box is the one that its dealer signed for this silo.

    Raises:
        CohortRefusedError: it is not; the path is the server's, so this blames no dealer.
    """
    if item.box.holder != own.seat:
        raise CohortRefusedError("a box for another silo was delivered", silo=item.dealer)
    # Neighborhoods are symmetric, so the dealer's boxes follow its own holders.
    dealt = own.graph.holders(item.dealer)
    try:
        canonical.merkle_verify(
            item.boxes_root, len(dealt), dealt.index(own.seat), item.box.encode(), item.path
        )
    except MalformedMessageError as error:
        raise CohortRefusedError(
            "a box is not the one its dealer signed", silo=item.dealer
        ) from error


def open_delivery(own: Dealing, item: Delivery) -> Opened:
    """Open a box and check all that is in it against the dealer's commitments.

    Raises:
        BadShareError: the box does not open or does not fit; names the dealer.
    """
    if not item.box.is_shaped(item.dealer, hybrid_suite=own.suite.is_hybrid):
        raise BadShareError("a box lacks a part or has one too many", silo=item.dealer)
    kem = item.box.kem
    opened_kem = own.keys.kem_box.decapsulate(kem.ciphertext) if kem and own.keys.kem_box else None
    payload = SharePayload.decode(
        open_box(
            own=own.keys.enc,
            peer_public=own.advertises[item.dealer].enc_key,
            setup=own.setup,
            sender=item.dealer,
            receiver=own.seat,
            box=item.box.box,
            suite=own.suite,
            kem=opened_kem,
        )
    )
    for share in (payload.share_a, payload.share_b):
        read_share(share, silo=item.dealer)
    place = (own.setup, item.dealer, own.seat)
    found = (
        commit_share(*place, "a", payload.share_a),
        commit_share(*place, "b", payload.share_b),
        commit_secret("com-k", own.setup, item.dealer, payload.verification_key),
    )
    if found != (item.box.commitment_a, item.box.commitment_b, item.commitment_k):
        raise BadShareError(
            f"the shares dealt by seat {item.dealer} do not fit its commitments",
            silo=item.dealer,
        )
    pair = None
    if kem and kem.pair and own.keys.kem_mask:
        pair = own.keys.kem_mask.decapsulate(kem.pair.ciphertext).secret
        if hybrid.commit_pair(own.setup, item.dealer, own.seat, pair) != kem.pair.commitment:
            raise BadShareError(
                f"the pair secret of seat {item.dealer} does not fit its commitment",
                silo=item.dealer,
            )
    return Opened(payload=payload, pair=pair)

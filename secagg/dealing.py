"""Dealing shares to all of U1, and accepting those that others dealt (SA1 spec 3.3, check A4).

A dealer commits to every share; a holder checks the commitment before it uses the share. So a
bad dealer is complained about before anything secret has left a silo, and a bad revealer is
named when it opens something else.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from secagg import canonical
from secagg.errors import BadShareError, CohortRefusedError, MalformedMessageError
from secagg.keys import AgreementKey
from secagg.messages import Advertise, Delivery, Share, ShareBox
from secagg.rng import Rng
from secagg.sealing import SharePayload, commit_secret, commit_share, open_box, seal
from secagg.secretbytes import Secret
from secagg.shamir import split


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """One silo's place among the dealers of an attempt.

    Attributes:
        advertises: U1's keys by seat.
    """

    setup: bytes
    seat: int
    enc_key: AgreementKey
    mask_key: AgreementKey
    advertises: Mapping[int, Advertise]

    @property
    def u1(self) -> tuple[int, ...]:
        """Sorted seats of U1."""
        return tuple(sorted(self.advertises))


def deal(
    own: Dealing,
    *,
    secret_a: Secret,
    secret_b: Secret,
    key: Secret,
    threshold: int,
    rng: Rng,
) -> tuple[Share, SharePayload]:
    """Split a_u and b_u, seal a share of each for every silo of U1 and commit to all of them.

    Returns:
        The unsigned Share message, and the shares that the dealer keeps for itself.

    Raises:
        BadKeyError: a silo of U1 advertised a key of low order (check A3).
    """
    shares_a = split(secret_a, threshold=threshold, holders=own.u1, rng=rng)
    shares_b = split(secret_b, threshold=threshold, holders=own.u1, rng=rng)
    boxes = []
    for holder in own.u1:
        payload = SharePayload(
            share_a=shares_a[holder], share_b=shares_b[holder], verification_key=key
        )
        place = (own.setup, own.seat, holder)
        boxes.append(
            ShareBox(
                holder=holder,
                box=b"" if holder == own.seat else _seal(own, holder, payload, rng),
                commitment_a=commit_share(*place, "a", shares_a[holder]),
                commitment_b=commit_share(*place, "b", shares_b[holder]),
            )
        )
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
    return share, kept


def _seal(own: Dealing, holder: int, payload: SharePayload, rng: Rng) -> bytes:
    peer = own.advertises[holder]
    # A3: a mask key of low order would make the pair's mask public; find it before dealing.
    own.mask_key.exchange(peer.mask_key)
    return seal(
        own=own.enc_key,
        peer_public=peer.enc_key,
        setup=own.setup,
        sender=own.seat,
        receiver=holder,
        plaintext=payload.encode(),
        rng=rng,
    )


def check_delivered(own: Dealing, item: Delivery) -> None:
    """The box is the one that its dealer signed for this silo.

    Raises:
        CohortRefusedError: it is not; the path is the server's, so this blames no dealer.
    """
    if item.box.holder != own.seat:
        raise CohortRefusedError("a box for another silo was delivered", silo=item.dealer)
    u1 = own.u1
    try:
        canonical.merkle_verify(
            item.boxes_root, len(u1), u1.index(own.seat), item.box.encode(), item.path
        )
    except MalformedMessageError as error:
        raise CohortRefusedError(
            "a box is not the one its dealer signed", silo=item.dealer
        ) from error


def open_delivery(own: Dealing, item: Delivery) -> SharePayload:
    """Open a box and check both shares and the key against the dealer's commitments.

    Raises:
        BadShareError: the box does not open or does not fit; names the dealer.
    """
    payload = SharePayload.decode(
        open_box(
            own=own.enc_key,
            peer_public=own.advertises[item.dealer].enc_key,
            setup=own.setup,
            sender=item.dealer,
            receiver=own.seat,
            box=item.box.box,
        )
    )
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
    return payload

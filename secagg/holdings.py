"""All secrets that a silo holds in one attempt, together so that they are forgotten together.

Its own a, b and k, the private keys that follow from a, the shares that others dealt to it, and
in the hybrid suite the pairs' secrets. They live in memory only and nowhere else in a round
(SA1 spec 3.1).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from secagg.dealing import DealerKeys, Dealing, deal, open_delivery
from secagg.errors import LocalProtocolError
from secagg.graph import Graph
from secagg.masking import pairwise_seeds, pairwise_sign, self_seed
from secagg.messages import Advertise, Delivery, Opening, Share, ShareKind
from secagg.rng import Rng
from secagg.sealing import SharePayload
from secagg.secretbytes import Secret
from secagg.suites import Suite
from secagg.verification import verification_key

SECRET_BYTES: Final = 32


class Holdings:
    """One silo's secrets of one attempt.

    Args:
        seat: the silo's.
        suite: of the attempt.
        rng: draws them.
    """

    def __init__(self, *, seat: int, suite: Suite, rng: Rng) -> None:
        self._seat = seat
        self._suite = suite
        self.a = Secret(rng.bytes(SECRET_BYTES))
        self.b = Secret(rng.bytes(SECRET_BYTES))
        self.k = Secret(rng.bytes(SECRET_BYTES))
        self._nonce = rng.bytes(SECRET_BYTES)
        self._keys: DealerKeys | None = DealerKeys.make(suite, self.a, rng)
        self.held: dict[int, SharePayload] = {}
        self.pairs: dict[int, Secret] = {}

    @property
    def keys(self) -> DealerKeys:
        """The private keys; LocalProtocolError once they are wiped."""
        if self._keys is None:
            raise LocalProtocolError("this attempt's keys have been wiped")
        return self._keys

    def advertise(self, ctx: bytes) -> Advertise:
        """The public keys, to be signed."""
        return Advertise(
            ctx=ctx,
            seat=self._seat,
            nonce=self._nonce,
            enc_key=self.keys.enc.public,
            mask_key=self.keys.mask.public,
            kem=self.keys.kem_public,
        )

    def among(self, advertises: Mapping[int, Advertise], graph: Graph, setup: bytes) -> Dealing:
        """This silo's place among the dealers of U1."""
        return Dealing(
            suite=self._suite,
            setup=setup,
            seat=self._seat,
            keys=self.keys,
            advertises=advertises,
            graph=graph,
        )

    def deal(self, place: Dealing, rng: Rng) -> Share:
        """Deal shares of a and b to all holders, keep the own ones; the message is to be signed.

        Raises:
            BadKeyError: a silo of U1 advertised an unusable key (check A3).
        """
        dealt = deal(place, secret_a=self.a, secret_b=self.b, key=self.k, rng=rng)
        self.held[self._seat] = dealt.kept
        self.pairs = dealt.pairs
        return dealt.share

    def take(self, place: Dealing, item: Delivery) -> None:
        """Open another silo's box and hold what is in it.

        Raises:
            BadShareError: the box does not open or does not fit; names the dealer.
        """
        opened = open_delivery(place, item)
        self.held[item.dealer] = opened.payload
        if opened.pair is not None:
            self.pairs[item.dealer] = opened.pair

    def tag_key(self, setup: bytes) -> Secret:
        """The verification key K of all whose shares are held; it outlives the wiping."""
        parts = [(dealer, payload.verification_key) for dealer, payload in self.held.items()]
        return verification_key(setup, parts)

    def mask_seeds(
        self,
        segments: tuple[str, ...],
        *,
        binding: bytes,
        peers: Iterable[int],
        advertises: Mapping[int, Advertise],
    ) -> dict[str, list[tuple[int, bytes]]]:
        """Per segment: the self mask, and the pairwise mask with every one of `peers`."""
        generator = self._suite.generator
        seeds = {}
        for name in segments:
            seed = self_seed(
                self.b, binding=binding, seat=self._seat, segment=name, generator=generator
            )
            seeds[name] = [(1, seed)]
        for peer in peers:
            shared = pairwise_seeds(
                self.keys.mask,
                advertises[peer].mask_key,
                binding=binding,
                own_seat=self._seat,
                peer_seat=peer,
                segments=segments,
                kem_secret=self.pairs.get(peer),
                generator=generator,
            )
            for name in segments:
                seeds[name].append((pairwise_sign(self._seat, peer), shared[name]))
        return seeds

    def opening(self, dealer: int, *, survived: bool) -> Opening:
        """Exactly one share of this dealer, in a copy that outlives the wiping."""
        held = self.held[dealer]
        share = held.share_b if survived else held.share_a
        return Opening(
            dealer=dealer,
            kind=ShareKind.SELF if survived else ShareKind.KEY,
            share=Secret(share.reveal()),
        )

    def wipe(self) -> None:
        """Forget everything."""
        for secret in (self.a, self.b, self.k, *self.pairs.values()):
            secret.wipe()
        for payload in self.held.values():
            for secret in (payload.share_a, payload.share_b, payload.verification_key):
                secret.wipe()
        self.held = {}
        self.pairs = {}
        self._keys = None

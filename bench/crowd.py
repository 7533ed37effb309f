"""All silos of a round but one, made as cheaply as leaves the others' work as it is.

Whoever is measured, the one real silo or the server, gets messages that it cannot tell from
real ones, and does all of its own work. The crowd saves only its own: its polynomials are lines
(of any degree below the threshold, the shares rebuild in the same way), the boxes that its members
send to one another are random bytes (nobody opens them), a pair's mask seed is agreed on once
instead of at both ends, and every share and masked vector is made once for several rounds. Keys,
commitments, signatures, boxes to the real silo and masked vectors are what they claim to be.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from secagg import messages
from secagg.intake import masked_name
from secagg.keys import AgreementKey, mask_key_from_seed
from secagg.masking import pairwise_seeds, pairwise_sign, self_seed
from secagg.messages import Opening, ShareBox, ShareKind, signed
from secagg.parameters import VectorSpec, bulk
from secagg.sealing import (
    BOX_BYTES,
    SharePayload,
    commit_secret,
    commit_share,
    open_box,
    seal,
)
from secagg.secretbytes import Secret
from secagg.shamir import SHARE_BYTES, split_integer
from secagg.testing import MemoryStore, SeededRng, make_federation, make_parameters
from secagg.vectors import TagContext, mask_vector
from secagg.verification import verification_key

REAL: Final = 1  # the real silo's seat
SEGMENT: Final = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    a: Secret
    b: Secret
    k: Secret
    enc: AgreementKey
    mask: AgreementKey


class Crowd:
    """The silos on seats 2 to n.

    Args:
        silos: n, the real one included.
        dim: length of the vector.
        value_bits: of one silo's values; the ring follows.
    """

    def __init__(self, *, silos: int, dim: int, value_bits: int) -> None:
        self.federation = make_federation(silos)
        segment = bulk(SEGMENT, dim, value_bits=value_bits, n_max=silos)
        self.parameters = make_parameters(self.federation.roster, VectorSpec(segments=(segment,)))
        self.dim = dim
        self.store = MemoryStore()
        self._rng = SeededRng("crowd")
        self._members = {
            seat: self._member() for seat in self.federation.roster.indices if seat != REAL
        }
        self._dealt: dict[int, dict[int, SharePayload]] = {}
        self._shares: list[messages.Share] = []
        self._masked: dict[int, messages.MaskedInput] = {}

    def _member(self) -> _Member:
        a, b, k = (Secret(self._rng.bytes(32)) for _ in range(3))
        enc = AgreementKey.from_secret(self._rng.bytes(32))
        return _Member(a=a, b=b, k=k, enc=enc, mask=mask_key_from_seed(a))

    def values(self, seat: int) -> dict[str, "np.ndarray[tuple[int], np.dtype[np.int64]]"]:
        """What a silo contributes: its seat's number, so that a sum shows who is in it."""
        return {SEGMENT: np.full(self.dim, seat, np.int64)}

    def advertises(self) -> list[messages.Advertise]:
        """Every member's keys."""
        return [
            signed(
                messages.Advertise(
                    ctx=self.parameters.ctx(),
                    seat=seat,
                    nonce=bytes(32),
                    enc_key=member.enc.public,
                    mask_key=member.mask.public,
                ),
                self.federation.identities[seat],
            )
            for seat, member in self._members.items()
        ]

    def shares(self, setup: bytes, real: messages.Advertise) -> list[messages.Share]:
        """Every member's shares for all silos. Made once."""
        if not self._shares:
            self._shares = [
                self._share(seat, member, setup, real) for seat, member in self._members.items()
            ]
        return self._shares

    def _share(
        self, dealer: int, member: _Member, setup: bytes, real: messages.Advertise
    ) -> messages.Share:
        a, b = self._line(member.a), self._line(member.b)
        payloads = {
            holder: SharePayload(share_a=a[holder], share_b=b[holder], verification_key=member.k)
            for holder in self.federation.roster.indices
        }
        self._dealt[dealer] = payloads
        boxes = []
        for holder, payload in payloads.items():
            place = (setup, dealer, holder)
            box = b"" if holder == dealer else self._rng.bytes(BOX_BYTES)
            if holder == REAL:
                box = seal(
                    own=member.enc,
                    peer_public=real.enc_key,
                    setup=setup,
                    sender=dealer,
                    receiver=REAL,
                    plaintext=payload.encode(),
                    rng=self._rng,
                )
            boxes.append(
                ShareBox(
                    holder=holder,
                    box=box,
                    commitment_a=commit_share(*place, "a", payload.share_a),
                    commitment_b=commit_share(*place, "b", payload.share_b),
                )
            )
        unsigned = messages.Share(
            setup=setup,
            seat=dealer,
            commitment_b=commit_secret("com-b", setup, dealer, member.b),
            commitment_k=commit_secret("com-k", setup, dealer, member.k),
            boxes=tuple(boxes),
        )
        return signed(unsigned, self.federation.identities[dealer])

    def _line(self, secret: Secret) -> dict[int, Secret]:
        slope = int.from_bytes(self._rng.bytes(32))
        points = split_integer(
            int.from_bytes(secret.reveal()), [slope], self.federation.roster.indices
        )
        return {seat: Secret(y.to_bytes(SHARE_BYTES)) for seat, y in points.items()}

    def hold(self, share: messages.Share, real: messages.Advertise) -> None:
        """Open the real silo's boxes: its shares are asked for later."""
        self._dealt[REAL] = {
            box.holder: SharePayload.decode(
                open_box(
                    own=self._members[box.holder].enc,
                    peer_public=real.enc_key,
                    setup=share.setup,
                    sender=REAL,
                    receiver=box.holder,
                    box=box.box,
                )
            )
            for box in share.boxes
            if box.holder != REAL
        }

    def masked(
        self, setup: bytes, binding: bytes, real: messages.Advertise
    ) -> Mapping[int, messages.MaskedInput]:
        """Every member's masked vector; the chunks are in `store`. Made once."""
        if self._masked:
            return self._masked
        suite, wire = self.parameters.cipher_suite, self.parameters.wire_spec
        some_holder = next(iter(self._members))
        parts = [(seat, member.k) for seat, member in self._members.items()]
        parts.append((REAL, self._dealt[REAL][some_holder].verification_key))
        tags = TagContext(
            key=verification_key(setup, parts), binding=binding, generator=suite.generator
        )
        seeds = self._seeds(binding, real, wire.names)
        for seat, own_seeds in seeds.items():
            root = mask_vector(
                self.values(seat),
                spec=self.parameters.spec,
                tags=tags,
                generator=suite.generator,
                seat=seat,
                seeds=own_seeds,
                store=self.store,
                name=masked_name(seat),
            )
            unsigned = messages.MaskedInput(
                binding=binding,
                seat=seat,
                root=root,
                lengths=tuple(segment.length for segment in wire.segments),
                chunks=len(wire.chunks),
                nbytes=wire.wire_bytes,
            )
            self._masked[seat] = signed(unsigned, self.federation.identities[seat])
        return self._masked

    def _seeds(
        self, binding: bytes, real: messages.Advertise, segments: tuple[str, ...]
    ) -> dict[int, dict[str, list[tuple[int, bytes]]]]:
        """Every member's seeds by segment, each pair's agreed on once."""
        seeds: dict[int, dict[str, list[tuple[int, bytes]]]] = {}
        for seat, member in self._members.items():
            own = seeds[seat] = {
                name: [(1, self_seed(member.b, binding=binding, seat=seat, segment=name))]
                for name in segments
            }
            lower = {peer: self._members[peer].mask.public for peer in seeds if peer < seat}
            for peer, public in {REAL: real.mask_key, **lower}.items():
                shared = pairwise_seeds(
                    member.mask,
                    public,
                    binding=binding,
                    own_seat=seat,
                    peer_seat=peer,
                    segments=segments,
                )
                for name, seed in shared.items():
                    own[name].append((pairwise_sign(seat, peer), seed))
                    if peer != REAL:
                        seeds[peer][name].append((pairwise_sign(peer, seat), seed))
        return seeds

    def survivors(
        self, seats: Iterable[int], binding: bytes, entries: tuple[messages.SurvivorEntry, ...]
    ) -> list[messages.Survivors]:
        """These members' signatures under the survivors."""
        digest = messages.survivors_hash(entries)
        return [
            signed(
                messages.Survivors(binding=binding, seat=seat, survivors=digest),
                self.federation.identities[seat],
            )
            for seat in seats
        ]

    def unmask(
        self, seats: Iterable[int], binding: bytes, survivors: Sequence[int]
    ) -> list[messages.Unmask]:
        """These members' openings."""
        alive = set(survivors)
        return [
            signed(
                messages.Unmask(
                    binding=binding,
                    seat=seat,
                    openings=tuple(
                        self._opening(dealer, seat, survived=dealer in alive)
                        for dealer in sorted(self._dealt)
                    ),
                ),
                self.federation.identities[seat],
            )
            for seat in seats
        ]

    def _opening(self, dealer: int, holder: int, *, survived: bool) -> Opening:
        payload = self._dealt[dealer][holder]
        return Opening(
            dealer=dealer,
            kind=ShareKind.SELF if survived else ShareKind.KEY,
            share=payload.share_b if survived else payload.share_a,
        )

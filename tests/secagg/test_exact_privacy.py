"""The exact privacy test: what the server sees depends on nothing but the survivors' sum.

The protocol itself runs, with one thing replaced: a mask is not generated but named. The stream
of the j-th seed is the unit vector e_j, and silo u contributes the unit vector of its own place,
so a masked vector *is* its list of coefficients: which inputs and which masks it holds, with which
signs. Which masks the server knows follows from the shares that were opened, with the protocol's
own functions. All values of all inputs and masks are then enumerated over Z_q. The multiset of
views must be the same for all inputs with the same sum of survivors and must differ between sums
(SA1 spec 6). There is no chance in it: a wrong sign, a missing mask or a wrong reveal is found.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, combinations, product

import numpy as np
import pytest
from numpy.typing import NDArray

from secagg import holdings, masking, messages, unmasking
from secagg.effects import Send, SiloEffect
from secagg.keys import AgreementKey, mask_key_from_seed
from secagg.masking import pairwise_seeds, self_seed
from secagg.messages import MASKED, Advertise, MaskedInput, Opening, ShareKind, Unmask
from secagg.parameters import RoundParameters, VectorSpec, bulk
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.prg import AES_256_CTR, Generator
from secagg.ring import RingDType, RingVector, from_ring, unpack
from secagg.secretbytes import Secret
from secagg.shamir import combine
from secagg.silo import SiloRound
from secagg.testing import RoundHarness, make_federation, make_parameters

SEGMENT = "x"
STATE = b"a state"
# A silo that lets two be a sum, once the floor is lowered.
LOW = SiloPolicy(n_min=2, n_orgs=1)
# Places for inputs first, then for masks; more than there are seeds in a round of five.
PLACES = 64

Seats = tuple[int, ...]
Coefficients = NDArray[np.int64]


class NamedMasks:
    """Stands for the generator: the stream of the j-th seed it is asked for is e_j."""

    def __init__(self, first_place: int) -> None:
        self.places: dict[bytes, int] = {}
        self._first = first_place

    def place(self, seed: bytes) -> int:
        """Where the mask of this seed stands."""
        return self.places.setdefault(seed, self._first + len(self.places))

    def stream(
        self,
        seed: bytes,
        dtype: RingDType,
        *,
        scratch: NDArray[np.uint8] | None = None,
        generator: Generator = AES_256_CTR,
    ) -> "_UnitStream":
        """What `MaskBundle` asks for."""
        del dtype, scratch, generator
        return _UnitStream(self.place(seed))


@dataclass(frozen=True)
class _UnitStream:
    place: int

    def add_to(self, acc: RingVector, chunk: int) -> None:
        assert chunk == 0
        acc[self.place : self.place + 1] += 1

    def subtract_from(self, acc: RingVector, chunk: int) -> None:
        assert chunk == 0
        acc[self.place : self.place + 1] -= 1


@dataclass(frozen=True, kw_only=True)
class Story:
    """Who is in the sum, who vanished before the upload, and who is left out of the sum after it.

    Attributes:
        colluding: seats that give the server all they have.
    """

    survivors: Seats
    vanished: Seats
    left_out: Seats
    colluding: Seats = ()

    @property
    def silos(self) -> int:
        return len(self.survivors + self.vanished + self.left_out)


@dataclass(frozen=True, kw_only=True)
class View:
    """What the server holds after the round, as coefficients.

    Attributes:
        uploads: shape (uploads, PLACES).
        known: places of the masks whose seeds it can derive.
        masks: places of all masks.
        total: the sum it announced, shape (PLACES,); None if there was none.
    """

    uploads: Coefficients
    known: Seats
    masks: Seats
    total: Coefficients | None


def play(story: Story, *, floor: int | None = None) -> View:
    """Run the round of a story and collect the view."""
    names = NamedMasks(story.silos)
    federation = make_federation(story.silos)
    spec = VectorSpec(segments=(bulk(SEGMENT, PLACES, value_bits=8, n_max=story.silos),))
    pool: Pool = {}
    secrets: dict[int, tuple[AgreementKey, bytes]] = {}

    def to_silo(seat: int, message: messages.Message) -> messages.Message:
        own = harness.silos[seat]
        if isinstance(message, messages.Certificate) and seat in story.colluding:
            # It is wiped when the shares are opened: a colluder copies it before.
            for dealer, held in own._own.held.items():
                for kind, share in ((ShareKind.KEY, held.share_a), (ShareKind.SELF, held.share_b)):
                    pool.setdefault((dealer, kind), {})[seat] = Secret(share.reveal())
            secrets[seat] = (own._own.keys.mask, own._own.b.reveal())
        return message

    def to_server(seat: int, message: messages.Message) -> messages.Message | None:
        return None if isinstance(message, MaskedInput) and seat in story.left_out else message

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "MaskStream", names.stream)
        if floor is not None:
            patch.setattr(RoundParameters, "floor", lambda _self, _silos: floor)
        harness = RoundHarness(
            federation=federation,
            parameters=make_parameters(federation.roster, spec, n_min=2, n_orgs=1)
            if floor is not None
            else make_parameters(federation.roster, spec),
            state=STATE,
            train=lambda seat, _p, _s: {SEGMENT: _unit(seat - 1)},
            drop=dict.fromkeys(story.vanished, Phase.MASK),
            policies=None if floor is None else dict.fromkeys(federation.roster.indices, LOW),
            to_silo=to_silo,
            to_server=to_server,
        )
        outcome = harness.run()
    advertises = {s: m for s, m in outcome.received if isinstance(m, Advertise)}
    for holder, message in outcome.received:
        for item in message.openings if isinstance(message, Unmask) else ():
            pool.setdefault((item.dealer, item.kind), {})[holder] = item.share
    binding = next(m.binding for _, m in outcome.received if isinstance(m, messages.Survivors))
    seeds = set(
        _derivable(
            pool,
            secrets,
            advertises=advertises,
            binding=binding,
            threshold=harness.server.parameters.threshold(story.silos),
        )
    )
    uploads = [
        from_ring(
            unpack(store.read(MASKED, 0), spec.segments[0].ring_bits, PLACES),
            spec.segments[0].ring_bits,
        )
        for _, store in sorted(harness.stores.items())
        if store.chunks(MASKED)
    ]
    matrix = np.array(uploads)
    # The tags have masks of their own; those stand in no upload of this segment.
    used = tuple(p for p in names.places.values() if p < PLACES and matrix[:, p].any())
    total = outcome.aggregate.values[SEGMENT] if outcome.aggregate else None
    return View(
        uploads=matrix,
        known=tuple(p for s, p in names.places.items() if s in seeds and p in used),
        masks=used,
        total=total,
    )


def _unit(place: int) -> Coefficients:
    vector = np.zeros(PLACES, np.int64)
    vector[place] = 1
    return vector


def _derivable(
    pool: "Pool",
    secrets: dict[int, tuple[AgreementKey, bytes]],
    *,
    advertises: dict[int, Advertise],
    binding: bytes,
    threshold: int,
) -> Iterator[bytes]:
    """Every mask seed of the segment that follows from t shares of a secret, or from a colluder."""
    keys = {seat: key for seat, (key, _) in secrets.items()}
    selves = {seat: own for seat, (_, own) in secrets.items()}
    for (dealer, kind), shares in pool.items():
        if len(shares) < threshold:
            continue
        secret = combine(shares, threshold)
        if kind is ShareKind.SELF:
            selves[dealer] = secret
        else:
            keys[dealer] = mask_key_from_seed(secret)
    for seat, own in selves.items():
        yield self_seed(own, binding=binding, seat=seat, segment=SEGMENT)
    for (seat, key), (peer, advertise) in product(keys.items(), advertises.items()):
        if peer != seat:
            yield from pairwise_seeds(
                key,
                advertise.mask_key,
                binding=binding,
                own_seat=seat,
                peer_seat=peer,
                segments=(SEGMENT,),
            ).values()


# Shares by what they are of, then by holder.
Pool = dict[tuple[int, ShareKind], dict[int, Secret]]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the enumeration found.

    Attributes:
        hides: inputs with the same honest sum give the same multiset of views.
        tells: inputs with different sums give different ones.
        is_exact: the announced sum is the survivors' inputs, each once, and no mask.
    """

    hides: bool
    tells: bool
    is_exact: bool


SOUND = Verdict(hides=True, tells=True, is_exact=True)


def enumerate_views(story: Story, view: View, q: int) -> Verdict:
    """Count every view for every input over Z_q."""
    silos = story.silos
    masks = np.array(list(product(range(q), repeat=len(view.masks))), np.int64)
    mask_part = masks @ view.uploads[:, view.masks].T
    known = masks[:, [view.masks.index(place) for place in view.known]]
    by_sum: dict[Seats, set[bytes]] = {}
    for inputs in product(range(q), repeat=silos):
        uploads = (mask_part + view.uploads[:, :silos] @ np.array(inputs)) % q
        digits = np.hstack((uploads, known))
        codes = digits @ q ** np.arange(digits.shape[1])
        honest = sum(inputs[s - 1] for s in story.survivors if s not in story.colluding) % q
        public = tuple(inputs[s - 1] for s in story.colluding)
        by_sum.setdefault((honest, *public), set()).add(np.sort(codes).tobytes())
    multisets = list(chain.from_iterable(by_sum.values()))
    expected = sum((_unit(s - 1) for s in story.survivors), np.zeros(PLACES, np.int64))
    return Verdict(
        hides=all(len(found) == 1 for found in by_sum.values()),
        tells=len(set(multisets)) == len(multisets),
        is_exact=view.total is not None and bool((view.total == expected).all()),
    )


def stories(silos: int, least: int, *, colluding: Seats = ()) -> list[Story]:
    """Every survivor set, and for every dropout whether its upload came."""
    seats = range(1, silos + 1)
    told = []
    for size in range(least, silos + 1):
        for survivors in combinations(seats, size):
            gone = [seat for seat in seats if seat not in survivors]
            for uploaded in product((False, True), repeat=len(gone)):
                came = tuple(s for s, up in zip(gone, uploaded, strict=True) if up)
                told.append(
                    Story(
                        survivors=survivors,
                        vanished=tuple(s for s in gone if s not in came),
                        left_out=came,
                        colluding=colluding,
                    )
                )
    return told


def _name(story: Story) -> str:
    parts = (story.survivors, story.vanished, story.left_out, story.colluding)
    return "-".join("".join(map(str, seats)) or "0" for seats in parts)


@pytest.mark.parametrize("story", stories(3, 2), ids=_name)
def test_three_silos_over_z3(story: Story) -> None:
    """Every survivor set of n=3, d=1; the floor is lowered so that two may be a sum."""
    view = play(story, floor=2)
    assert len(view.masks) == 6 - _unused(story)
    assert enumerate_views(story, view, 3) == SOUND


@pytest.mark.parametrize("story", stories(4, 3), ids=_name)
def test_four_silos_over_z2(story: Story) -> None:
    """Every survivor set that the floor of n=4, n_c=1 admits."""
    assert enumerate_views(story, play(story), 2) == SOUND


@pytest.mark.parametrize(
    "story",
    # A colluder that vanishes tells nothing.
    [story for story in stories(4, 3, colluding=(4,)) if 4 not in story.vanished],
    ids=_name,
)
def test_four_silos_one_of_which_colludes(story: Story) -> None:
    """With a colluder's keys, inputs and shares the server learns the honest silos' sum."""
    assert enumerate_views(story, play(story), 2) == SOUND


def _unused(story: Story) -> int:
    """Masks in no upload: those of silos that sent none, and those between two of them."""
    vanished = len(story.vanished)
    return vanished + vanished * (vanished - 1) // 2


# --- negative controls: a protocol broken on purpose is found out ------------------------------

LEFT_OUT = Story(survivors=(1, 2), vanished=(), left_out=(3,))
VANISHED = Story(survivors=(1, 2), vanished=(3,), left_out=())
FULL = Story(survivors=(1, 2, 3), vanished=(), left_out=())


def _verdict(story: Story) -> Verdict:
    return enumerate_views(story, play(story, floor=2), 3)


def test_a_sign_that_does_not_cancel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends add: the pair's mask stays in the sum, which nobody learns."""
    monkeypatch.setattr(holdings, "pairwise_sign", lambda _own, _peer: 1)
    assert _verdict(FULL) == Verdict(hides=True, tells=False, is_exact=False)


def test_a_sign_that_is_wrong_when_masks_are_taken_off_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server adds the dropout's mask once more instead of removing it."""
    monkeypatch.setattr(
        unmasking, "pairwise_sign", lambda own, peer: -masking.pairwise_sign(own, peer)
    )
    assert _verdict(VANISHED) == Verdict(hides=True, tells=True, is_exact=False)


def test_a_missing_self_mask_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silo called a dropout after its upload has nothing but its self mask left."""
    real = SiloRound._mask_seeds

    def without_self(
        own: SiloRound, segments: tuple[str, ...]
    ) -> dict[str, list[tuple[int, bytes]]]:
        return {name: seeds[1:] for name, seeds in real(own, segments).items()}

    monkeypatch.setattr(SiloRound, "_mask_seeds", without_self)
    assert not _verdict(LEFT_OUT).hides


def test_a_missing_pairwise_mask_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Self masks alone: once they are opened every input lies open."""
    real = SiloRound._mask_seeds

    def without_pairs(
        own: SiloRound, segments: tuple[str, ...]
    ) -> dict[str, list[tuple[int, bytes]]]:
        return {name: seeds[:1] for name, seeds in real(own, segments).items()}

    monkeypatch.setattr(SiloRound, "_mask_seeds", without_pairs)
    assert not _verdict(FULL).hides


def _always(kind: ShareKind) -> Callable[[SiloRound, int], Opening]:
    def opening(own: SiloRound, dealer: int) -> Opening:
        held = own._own.held[dealer]
        share = held.share_a if kind is ShareKind.KEY else held.share_b
        return Opening(dealer=dealer, kind=kind, share=Secret(share.reveal()))

    return opening


def _swapped(own: SiloRound, dealer: int) -> Opening:
    kind = ShareKind.KEY if dealer in own.survivors else ShareKind.SELF
    return _always(kind)(own, dealer)


@pytest.mark.parametrize(
    ("opening", "flaw"),
    [
        # The dropout's self mask and the survivors' keys: all of the dropout's upload is opened.
        (_swapped, "hides"),
        # Self masks of all: the three uploads sum up, the one that was left out with them.
        (_always(ShareKind.SELF), "hides"),
        # Keys of all: the self masks stay on, and nobody learns the sum.
        (_always(ShareKind.KEY), "tells"),
    ],
    ids=["swapped", "self-masks-only", "keys-only"],
)
def test_a_wrong_reveal_is_found(
    opening: Callable[[SiloRound, int], Opening], flaw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each silo exactly the right one of two secrets is opened."""
    monkeypatch.setattr(SiloRound, "_opening", opening)
    verdict = _verdict(LEFT_OUT)
    assert not getattr(verdict, flaw)
    assert not verdict.is_exact


def test_both_secrets_of_one_silo_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a survivor's key beside its self mask shows its input."""
    real = SiloRound._on_certificate

    def both(own: SiloRound, message: messages.Certificate) -> list[SiloEffect]:
        extra = _always(ShareKind.KEY)(own, 1)
        effects = real(own, message)
        for place, effect in enumerate(effects):
            if isinstance(effect, Send) and isinstance(effect.message, Unmask):
                openings = (*effect.message.openings, extra)
                unsigned = Unmask(binding=effect.message.binding, seat=own.seat, openings=openings)
                effects[place] = Send(message=messages.signed(unsigned, own._identity))
        return effects

    monkeypatch.setattr(SiloRound, "_on_certificate", both)
    assert not _verdict(FULL).hides

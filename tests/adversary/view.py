"""All that an adversary's view allows, searched for an honest silo's input.

The adversary is the server together with the silos it has corrupted. `View` collects what they
hold; `search` derives what follows from it: every secret of which t shares are there, every key
and mask from those secrets, the uploads without each choice of known masks, the sums over every
set of uploads, and the differences of any two of all these vectors. An honest input among them is
a leak; so is a difference of two uploads of one silo that equals the difference of its inputs,
because then both have the same mask. The search takes the inputs from the test, so that it needs
no luck to recognize one. tests/adversary/test_view.py shows that it finds them where the protocol
is broken on purpose.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg.errors import SecAggError
from secagg.keys import AgreementKey, mask_key_from_seed
from secagg.masking import pairwise_seed, pairwise_sign, self_seed
from secagg.messages import Advertise, ShareKind, Unmask
from secagg.parameters import Segment, VectorSpec
from secagg.prg import expand
from secagg.ring import IntVector, container, to_ring, unpack
from secagg.secretbytes import Secret
from secagg.shamir import combine
from secagg.testing import MemoryStore

# Residues modulo 2^ring_bits, whatever the ring, so that vectors of all rings compare alike.
Words: TypeAlias = NDArray[np.uint64]
# (setup, seat) → segment → the integers that this silo submitted in this attempt.
Truth: TypeAlias = Mapping[tuple[bytes, int], Mapping[str, IntVector]]

_MOST_CHOICES = 64


@dataclass(frozen=True, kw_only=True)
class Upload:
    """One masked vector, by segment, and the view of the round that it was made for."""

    setup: bytes
    binding: bytes
    seat: int
    words: Mapping[str, Words]


@dataclass(kw_only=True)
class View:
    """What the adversary holds.

    Attributes:
        spec: the segments that travel, tags included.
        advertises: by setup, the keys of U1.
        thresholds: by setup.
        uploads: in the order in which they came.
        shares: (setup, dealer, kind) → holder → share, opened ones and those of corrupted silos.
        secrets: (setup, seat, kind) → secret, of corrupted silos.
        corrupted: seats.
        keys: mask keys by their public bytes.
        sums: (setup, label) → segment → a sum that somebody announced.
    """

    spec: VectorSpec
    advertises: dict[bytes, Mapping[int, Advertise]] = field(default_factory=dict)
    thresholds: dict[bytes, int] = field(default_factory=dict)
    uploads: list[Upload] = field(default_factory=list)
    shares: dict[tuple[bytes, int, ShareKind], dict[int, Secret]] = field(default_factory=dict)
    secrets: dict[tuple[bytes, int, ShareKind], bytes] = field(default_factory=dict)
    corrupted: set[int] = field(default_factory=set)
    keys: dict[bytes, AgreementKey] = field(default_factory=dict)
    sums: dict[tuple[bytes, str], Mapping[str, Words]] = field(default_factory=dict)

    # --- what it sees -------------------------------------------------------------------------

    def see_keys(self, setup: bytes, advertises: Mapping[int, Advertise], threshold: int) -> None:
        """The keys of U1 as one setup binds them."""
        self.advertises[setup] = dict(advertises)
        self.thresholds[setup] = threshold

    def see_upload(
        self, setup: bytes, binding: bytes, seat: int, store: MemoryStore, name: str
    ) -> None:
        """A masked vector, in its packed chunks."""
        words: dict[str, list[NDArray[np.uint64]]] = {}
        for number, chunk in enumerate(self.spec.chunks):
            segment = self.spec.segments[chunk.segment]
            piece = unpack(store.read(name, number), segment.ring_bits, chunk.count)
            words.setdefault(segment.name, []).append(piece.astype(np.uint64))
        whole = {segment: np.concatenate(pieces) for segment, pieces in words.items()}
        self.uploads.append(Upload(setup=setup, binding=binding, seat=seat, words=whole))

    def see_openings(self, setup: bytes, message: Unmask) -> None:
        """The shares that a silo opened."""
        for item in message.openings:
            self.see_share(setup, item.dealer, item.kind, message.seat, item.share)

    def see_share(
        self, setup: bytes, dealer: int, kind: ShareKind, holder: int, share: Secret
    ) -> None:
        """One share, from whomever."""
        self.shares.setdefault((setup, dealer, kind), {})[holder] = Secret(share.reveal())

    def see_secret(self, setup: bytes, seat: int, kind: ShareKind, secret: bytes) -> None:
        """A corrupted silo's own secret."""
        self.secrets[setup, seat, kind] = secret

    def see_key(self, key: AgreementKey) -> None:
        """A mask key that the adversary made itself."""
        self.keys[key.public] = key

    def see_sum(self, setup: bytes, label: str, values: Mapping[str, IntVector]) -> None:
        """An opened sum."""
        self.sums[setup, label] = {
            name: _residues(column, self.spec.segment(name)) for name, column in values.items()
        }

    # --- what follows -------------------------------------------------------------------------

    def rebuilt(self) -> dict[tuple[bytes, int, ShareKind], bytes]:
        """Every secret that is known or of which enough shares are."""
        found = dict(self.secrets)
        for place, shares in self.shares.items():
            threshold = self.thresholds[place[0]]
            if place in found or len(shares) < threshold:
                continue
            try:
                found[place] = combine(shares, threshold)
            except SecAggError:
                continue  # a liar's shares rebuild nothing
        return found

    def known_masks(self) -> list[dict[str, list[Words]]]:
        """For each upload and segment, every mask on it that the adversary can make."""
        secrets = self.rebuilt()
        keys = dict(self.keys)
        for (_, _, kind), secret in secrets.items():
            if kind is ShareKind.KEY:
                key = mask_key_from_seed(secret)
                keys[key.public] = key
        return [
            {
                segment.name: list(self._masks_on(upload, segment, secrets, keys))
                for segment in self.spec.segments
            }
            for upload in self.uploads
        ]

    def _masks_on(
        self,
        upload: Upload,
        segment: Segment,
        secrets: Mapping[tuple[bytes, int, ShareKind], bytes],
        keys: Mapping[bytes, AgreementKey],
    ) -> Iterator[Words]:
        own = secrets.get((upload.setup, upload.seat, ShareKind.SELF))
        if own is not None:
            seed = self_seed(own, binding=upload.binding, seat=upload.seat, segment=segment.name)
            yield _signed_mask(seed, 1, segment)
        cohort = self.advertises[upload.setup]
        mine = cohort[upload.seat].mask_key
        for peer, advertise in cohort.items():
            theirs = advertise.mask_key
            if peer == upload.seat or not {mine, theirs} & keys.keys():
                continue
            key, other = (keys[mine], theirs) if mine in keys else (keys[theirs], mine)
            seed = pairwise_seed(
                key,
                other,
                binding=upload.binding,
                own_seat=upload.seat,
                peer_seat=peer,
                segment=segment.name,
            )
            yield _signed_mask(seed, pairwise_sign(upload.seat, peer), segment)

    def search(self, truth: Truth) -> list[str]:
        """Every way in which an honest input follows from the view; empty if there is none."""
        masks = self.known_masks()
        leaks: list[str] = []
        for segment in self.spec.segments:
            variants = [
                _without(upload.words[segment.name], known[segment.name], segment)
                for upload, known in zip(self.uploads, masks, strict=True)
            ]
            derived = self._derived(segment, variants)
            for (setup, seat), inputs in truth.items():
                if seat in self.corrupted or segment.name not in inputs:
                    continue
                target = _residues(inputs[segment.name], segment)
                label = f"seat {seat}, segment {segment.name}, attempt {setup.hex()[:6]}"
                leaks += _find(target, derived, segment, label)
        return leaks + self._shared_keystreams(truth)

    def _derived(
        self, segment: Segment, variants: Sequence[Mapping[str, Words]]
    ) -> dict[bytes, str]:
        """Vectors by their bytes: uploads, sums of every set of them, announced sums."""
        derived: dict[bytes, str] = {}
        for place, upload in enumerate(self.uploads):
            for name, words in variants[place].items():
                derived.setdefault(words.tobytes(), f"upload {place} of {upload.seat} {name}")
        for binding in {upload.binding for upload in self.uploads}:
            places = [n for n, upload in enumerate(self.uploads) if upload.binding == binding]
            for subset in _subsets(places):
                for name in ("raw", "bare"):
                    total = sum((variants[n][name] for n in subset), start=_zeros(segment))
                    words = _reduced(total, segment)
                    derived.setdefault(words.tobytes(), f"{name} sum of uploads {subset}")
        for (_, label), columns in self.sums.items():
            if segment.name in columns:
                derived.setdefault(columns[segment.name].tobytes(), label)
        return derived

    def _shared_keystreams(self, truth: Truth) -> list[str]:
        """Pairs of vectors of one silo whose difference is that of its inputs."""
        rows = [
            (place, upload, segment, truth[upload.setup, upload.seat][segment.name])
            for place, upload in enumerate(self.uploads)
            for segment in self.spec.segments
            if upload.seat not in self.corrupted
            and segment.name in truth.get((upload.setup, upload.seat), {})
        ]
        leaks = []
        for (one, a, first, x), (two, b, second, w) in combinations(rows, 2):
            if a.seat != b.seat or first.ring_bits != second.ring_bits:
                continue
            if (a.binding, first) == (b.binding, second) and np.array_equal(x, w):
                continue  # the same bytes sent again
            size = min(len(x), len(w))
            apart = a.words[first.name][:size] - b.words[second.name][:size]
            inputs = _residues(x[:size], first) - _residues(w[:size], second)
            if np.array_equal(_reduced(apart, first), _reduced(inputs, first)):
                leaks.append(
                    f"one keystream of seat {a.seat}: uploads {one}/{first.name} and "
                    f"{two}/{second.name}"
                )
        return leaks


def _find(target: Words, derived: Mapping[bytes, str], segment: Segment, label: str) -> list[str]:
    """The target among the derived vectors, or as a difference of two of them."""
    if target.tobytes() in derived:
        return [f"{label}: is {derived[target.tobytes()]}"]
    leaks = []
    for data, name in derived.items():
        rest = _reduced(np.frombuffer(data, np.uint64) - target, segment).tobytes()
        if rest in derived:
            leaks.append(f"{label}: is {name} less {derived[rest]}")
    return leaks


def _without(words: Words, known: Sequence[Words], segment: Segment) -> dict[str, Words]:
    """The vector less each choice of the known masks: none is "raw", all of them "bare"."""
    choices = _subsets(range(len(known))) if 2 ** len(known) <= _MOST_CHOICES else []
    variants = {
        f"less masks {choice}": _reduced(
            words - sum((known[n] for n in choice), start=_zeros(segment)), segment
        )
        for choice in choices
    }
    bare = _reduced(words - sum(known, start=_zeros(segment)), segment)
    return {"raw": words, "bare": bare} | variants


def _subsets(items: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every non-empty subset."""
    sizes = range(1, len(items) + 1)
    return chain.from_iterable(combinations(items, size) for size in sizes)


def _signed_mask(seed: bytes, sign: int, segment: Segment) -> Words:
    words = expand(seed, segment.length, container(segment.ring_bits)).astype(np.uint64)
    return _reduced(words if sign > 0 else _zeros(segment) - words, segment)


def _residues(values: IntVector, segment: Segment) -> Words:
    return to_ring(values, segment.ring_bits).astype(np.uint64)


def _reduced(words: Words, segment: Segment) -> Words:
    return words & np.uint64(2**segment.ring_bits - 1)


def _zeros(segment: Segment) -> Words:
    return np.zeros(segment.length, np.uint64)

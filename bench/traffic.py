"""How many bytes a silo sends and receives in a round, as a formula in n, d and the ring's bits.

The formula is of suite 1, the complete graph, one bulk segment, and a round that nobody leaves; the
tests hold it against the bytes of real rounds, byte by byte. Beside it stands the expansion that
Bonawitz et al. 2017 print for their protocol: everything a silo sends, over its raw values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from secagg.codec import MAX_ITEMS
from secagg.sealing import BOX_BYTES
from secagg.shamir import SHARE_BYTES
from secagg.verification import tag_count

_PREFIX: Final = 4  # of every field, item and count
_DIGEST: Final = 32
_SIGNATURE: Final = 64
_SEAT: Final = 4
_SEGMENTS: Final = 2  # the update and its tags
# n, d and the expansion that the paper's table gives for 16-bit values.
PAPER: Final = ((2**10, 2**20, 1.734), (2**14, 2**20, 3.625), (2**14, 2**24, 1.984))


def paper_expansion(silos: int, dim: int) -> float:
    """Of 16-bit values: the ring's bits, and 7n − 4 keys, shares and seeds of 256 bits."""
    ring_bits = (silos * (2**16 - 1)).bit_length()
    return (dim * ring_bits + (7 * silos - 4) * 256) / (16 * dim)


def record(label: str, *fields: int) -> int:
    """Bytes of a record with fields of these lengths."""
    return _list(len("SA1/") + len(label), *fields)


def _list(*items: int) -> int:
    return _PREFIX + sum(_PREFIX + item for item in items)


def _path(silos: int, place: int) -> int:
    """The list of siblings that prove a leaf: one a level, but where its node moves up alone."""
    siblings, width = 0, silos
    while width > 1:
        siblings += place ^ 1 < width
        place, width = place // 2, (width + 1) // 2
    return _list(*[_DIGEST] * siblings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of one silo by phase.

    Attributes:
        up, down: control messages.
        vector_up: the packed masked vector; the sum that comes back is as long.
    """

    up: Mapping[str, int]
    down: Mapping[str, int]
    vector_up: int

    @property
    def control(self) -> int:
        """All but the vector, both ways."""
        return sum(self.up.values()) + sum(self.down.values())


def traffic(  # the formula's variables
    *,
    silos: int,
    threshold: int,
    dim: int,
    ring_bits: int,
    place: int,
    parameters: int,
    plan: int,
    vouchers: int = 0,
) -> Traffic:
    """The formula.

    Args:
        silos: n.
        threshold: t.
        dim: d.
        ring_bits: b of the bulk segment, below 32.
        place: the silo's in the sorted cohort, from 0; the lengths of Merkle paths follow.
        parameters: encoded bytes of the round's parameters.
        plan: bytes of the training plan's document.
        vouchers: silos that vouch for the state: n_c + 1 of them after a run's first round.
    """
    lengths = _list(*[8] * _SEGMENTS)
    entry = record("survivor-entry", _SEAT, _DIGEST, lengths, _PREFIX, _SIGNATURE)
    endorsement = record("endorsement", _SEAT, _SIGNATURE)
    endorsements = _list(*[endorsement] * threshold)
    succession = record("succession", 8, _list(*[endorsement] * vouchers)) if vouchers else 0
    advertise = record("advertise-message", _SIGNATURE, *[_DIGEST] * 4, 0, _SEAT)

    def box(*, own: bool) -> int:
        return record("share-box", _SEAT, 0 if own else BOX_BYTES, _DIGEST, _DIGEST, 0)

    def delivery(*, own: bool) -> int:
        path, sealed = _path(silos, place), box(own=own)
        return record("delivery", _SEAT, sealed, path, *[_DIGEST] * 3, _SIGNATURE)

    def all_of(one: int, other: int) -> int:
        return _list(one, *[other] * (silos - 1))

    boxes = all_of(box(own=True), box(own=False))
    deliveries = all_of(delivery(own=True), delivery(own=False))
    opening = record("opening", _SEAT, 1, SHARE_BYTES)
    signed = (_SIGNATURE, _DIGEST, _SEAT)
    return Traffic(
        up={
            "advertise": advertise,
            "share": record("share-message", *signed, _DIGEST, _DIGEST, boxes),
            "mask": record("masked-message", *signed, _DIGEST, lengths, _PREFIX, 4, 8),
            "survivors": record("survivors-message", *signed, _DIGEST),
            "unmask": record("unmask-message", *signed, _list(*[opening] * silos)),
        },
        down={
            "advertise": record("open-message", _SIGNATURE, parameters, plan, _PREFIX),
            "share": record("keys-message", _list(*[advertise] * silos)),
            "mask": record("boxes-message", deliveries, _PREFIX)
            + record("state-message", _SIGNATURE, _DIGEST, _DIGEST, 8, succession),
            "survivors": record("survivors-request", _list(*[entry] * silos), _PREFIX),
            "unmask": record("certificate-message", endorsements),
            "result": record(
                "result-message",
                *(_SIGNATURE, _DIGEST, _list(*[entry] * silos), endorsements, _DIGEST, 4, 8),
                _DIGEST,
            ),
        },
        # Lanes of 32 words (ADR 5); the rings of 24 value bits and 256 silos still fit 32 bits.
        vector_up=-(-dim // 32) * 32 * ring_bits // 8 + 8 * tag_count(ring_bits),
    )


def expansion(silos: int, dim: int, *, value_bits: int = 16) -> float:
    """Everything a silo sends and receives but model and sum, over its raw values."""
    ring_bits = value_bits + (silos - 1).bit_length()
    found = traffic(
        silos=silos,
        threshold=(silos + (silos - 1) // 3) // 2 + 1,
        dim=dim,
        ring_bits=ring_bits,
        place=0,
        parameters=600,  # about
        plan=0,
    )
    return (found.control + found.vector_up) * 8 / (value_bits * dim)


def figures() -> dict[str, object]:
    """The paper's three settings, and ours beside them and for hospitals, where n is allowed."""
    found = {(silos, dim): {"paper": paper_expansion(silos, dim)} for silos, dim, _ in PAPER}
    for silos, dim in (*found, (10, 10**6), (50, 10**6), (200, 10**6)):
        if silos <= MAX_ITEMS:
            found.setdefault((silos, dim), {})["ours"] = expansion(silos, dim)
    return {f"n_{silos}_d_{dim}": figure for (silos, dim), figure in found.items()}

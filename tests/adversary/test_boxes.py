"""A server, or a dealer, that delivers a box which is not the receiver's."""

from dataclasses import replace

import pytest

from secagg import canonical, messages
from secagg.errors import (
    BadShareError,
    BadSignatureError,
    CohortRefusedError,
    RemoteProtocolError,
)
from secagg.messages import Boxes, Complaint, Delivery, Share, ShareBox, ShareKind
from secagg.sealing import SharePayload, commit_secret, commit_share, seal
from secagg.secretbytes import Secret
from secagg.shamir import FIELD_PRIME
from secagg.testing import SeededRng
from tests.adversary.stage import Stage, merkle_path

pytestmark = pytest.mark.adversary


@pytest.fixture
def stage() -> Stage:
    """Four silos that have dealt; silo 4 is corrupted."""
    stage = Stage(4, corrupted=(4,))
    stage.share()
    return stage


def _with(stage: Stage, holder: int, item: Delivery) -> Boxes:
    """The honest boxes with one of them replaced."""
    kept = [d for d in stage.boxes(holder).deliveries if d.dealer != item.dealer]
    return Boxes(deliveries=tuple(sorted((*kept, item), key=lambda d: d.dealer)))


def _redealt(stage: Stage, dealer: int, holder: int, box: ShareBox) -> Delivery:
    """The corrupted dealer's shares with another line for one holder, signed by the dealer."""
    share = stage.last(dealer, Share)
    lines = tuple(box if old.holder == holder else old for old in share.boxes)
    signed = messages.signed(replace(share, boxes=lines), stage.federation.identities[dealer])
    place = [line.holder for line in lines].index(holder)
    return Delivery(
        dealer=dealer,
        box=box,
        path=merkle_path([line.encode() for line in lines], place),
        boxes_root=signed.boxes_root,
        commitment_b=signed.commitment_b,
        commitment_k=signed.commitment_k,
        signature=signed.signature,
    )


def _complains(stage: Stage, holder: int, item: Delivery) -> None:
    """The holder refuses, names the dealer, and signs a complaint."""
    error = stage.refuses(holder, _with(stage, holder, item), BadShareError)
    assert error.silo == item.dealer
    complaint = stage.silos[holder].farewell
    assert isinstance(complaint, Complaint)
    assert (complaint.seat, complaint.dealer) == (holder, item.dealer)
    assert complaint.reason == "A4_BAD_SHARE"
    stage.assert_hidden()


def test_a_box_reflected_to_its_sender(stage: Stage) -> None:
    """Silo 1's own box for silo 4, given back as silo 4's box for silo 1.

    Silo 4 signs it as its own: what stops it is that each direction has its own key.
    """
    reflected = stage.delivery(1, 4).box
    box = replace(stage.delivery(4, 1).box, box=reflected.box)
    _complains(stage, 1, _redealt(stage, 4, 1, box))


def test_a_box_for_another_silo(stage: Stage) -> None:
    """Silo 1 gets the box for silo 2, with a path that proves it."""
    item = stage.delivery(3, 2)
    stage.refuses(1, _with(stage, 1, item), CohortRefusedError, "for another silo")
    stage.assert_hidden()


def test_a_box_of_another_dealer(stage: Stage) -> None:
    """Silo 2's box under silo 3's name."""
    item = replace(stage.delivery(2, 1), dealer=3)
    stage.refuses(1, _with(stage, 1, item), BadSignatureError)
    stage.assert_hidden()


@pytest.mark.parametrize("flaw", ["path", "short", "long", "box", "commitment", "root"])
def test_a_wrong_merkle_path(stage: Stage, flaw: str) -> None:
    """Anything that does not lead to what the dealer signed is the server's doing."""
    honest = stage.delivery(3, 1)
    path = honest.path
    changed: dict[str, Delivery] = {
        "path": replace(honest, path=(bytes(32), *path[1:])),
        "short": replace(honest, path=path[:-1]),
        "long": replace(honest, path=(*path, bytes(32))),
        "box": replace(honest, box=replace(honest.box, box=bytes(126))),
        "commitment": replace(honest, box=replace(honest.box, commitment_a=bytes(32))),
        "root": replace(honest, boxes_root=bytes(32)),
    }
    error: type[RemoteProtocolError] = BadSignatureError if flaw == "root" else CohortRefusedError
    stage.refuses(1, _with(stage, 1, changed[flaw]), error)
    assert isinstance(stage.silos[1].farewell, messages.Refusal)  # and nobody is complained about
    stage.assert_hidden()


@pytest.mark.parametrize("name", ["commitment_b", "commitment_k"])
def test_a_changed_commitment_of_the_dealer(stage: Stage, name: str) -> None:
    """Both are under the dealer's signature."""
    item = stage.delivery(3, 1)
    changed = replace(item, **{name: bytes(32)})  # type: ignore[arg-type]  # a field by name
    stage.refuses(1, _with(stage, 1, changed), BadSignatureError)
    stage.assert_hidden()


def _sealed(stage: Stage, payload: SharePayload) -> ShareBox:
    """A box from the corrupted silo 4 to silo 1, with commitments to what is in it."""
    keys = stage.silos[4]._own.keys
    place = (stage.setup, 4, 1)
    return ShareBox(
        holder=1,
        box=seal(
            own=keys.enc,
            peer_public=stage.advertises[1].enc_key,
            setup=stage.setup,
            sender=4,
            receiver=1,
            plaintext=payload.encode(),
            rng=SeededRng("a liar's nonce"),
        ),
        commitment_a=commit_share(*place, "a", payload.share_a),
        commitment_b=commit_share(*place, "b", payload.share_b),
    )


def _dealt(stage: Stage) -> SharePayload:
    """What silo 4 had for silo 1, with shares of its own making."""
    key = stage.silos[4]._own.k.reveal()
    return SharePayload(
        share_a=Secret(bytes(32) + b"\x05"),
        share_b=Secret(bytes(32) + b"\x07"),
        verification_key=Secret(key),
    )


def test_the_control(stage: Stage) -> None:
    """A box made like the ones below, without a flaw, is accepted."""
    item = _redealt(stage, 4, 1, _sealed(stage, _dealt(stage)))
    stage.tell(1, _with(stage, 1, item))


@pytest.mark.parametrize("kind", [ShareKind.KEY, ShareKind.SELF])
def test_a_share_that_does_not_fit_its_commitment(stage: Stage, kind: ShareKind) -> None:
    """The dealer commits to one share and seals another."""
    box = _sealed(stage, _dealt(stage))
    name = f"commitment_{kind.value}"
    flawed = replace(box, **{name: bytes(32)})  # type: ignore[arg-type]  # a field by name
    _complains(stage, 1, _redealt(stage, 4, 1, flawed))


@pytest.mark.parametrize("kind", [ShareKind.KEY, ShareKind.SELF])
@pytest.mark.parametrize("value", [FIELD_PRIME, FIELD_PRIME + 5, 2**264 - 1])
def test_a_share_with_the_prime_added(stage: Stage, kind: ShareKind, value: int) -> None:
    """33 bytes hold small field elements twice; the second form is refused at the holder."""
    share = Secret(value.to_bytes(33, "big"))
    payload = replace(_dealt(stage), **{f"share_{kind.value}": share})
    _complains(stage, 1, _redealt(stage, 4, 1, _sealed(stage, payload)))


def test_a_client_equivocates_about_its_part_of_the_key(stage: Stage) -> None:
    """K would differ between silos, and an honest sum would fail for some: com_k forbids it."""
    payload = replace(_dealt(stage), verification_key=Secret(bytes(32)))
    _complains(stage, 1, _redealt(stage, 4, 1, _sealed(stage, payload)))


@pytest.mark.parametrize("size", [0, 11, 12, 27, 125, 127, 4096])
def test_a_box_of_another_size(stage: Stage, size: int) -> None:
    """Too short for a nonce, for a tag, for its contents; too long."""
    box = replace(stage.delivery(4, 1).box, box=bytes(size))
    _complains(stage, 1, _redealt(stage, 4, 1, box))


def test_a_missing_box_and_a_dealer_from_nowhere(stage: Stage) -> None:
    """U2 is what the deliveries name: sorted, once each, from U1."""
    honest = stage.boxes(1).deliveries
    twice = Boxes(deliveries=(*honest[:2], honest[1], *honest[2:]))
    stage.refuses(1, twice, CohortRefusedError, "once")
    stranger = Boxes(deliveries=(*stage.boxes(2).deliveries, replace(honest[-1], dealer=9)))
    stage.refuses(2, stranger, CohortRefusedError, "part of U1")
    backwards = Boxes(deliveries=stage.boxes(3).deliveries[::-1])
    stage.refuses(3, backwards, CohortRefusedError, "sorted")
    stage.assert_hidden()


def test_a_neighbor_without_its_box(stage: Stage) -> None:
    """In the complete graph everybody is a neighbor: a root alone is not enough."""
    boxes = stage.boxes(1)
    far = messages.DistantRoot(dealer=4, root=boxes.deliveries[3].root)
    forged = Boxes(deliveries=boxes.deliveries[:3], distant=(far,))
    stage.refuses(1, forged, CohortRefusedError, "from the neighbors in U2")
    stage.assert_hidden()


def test_u2_announced_twice(stage: Stage) -> None:
    """A second U2 would give a second binding."""
    stage.tell(1, stage.boxes(1))
    stage.refuses(1, stage.boxes(1, 1, 2, 3), CohortRefusedError, "before")
    stage.assert_hidden()


def test_com_k_binds_the_own_key_too(stage: Stage) -> None:
    """The dealer's own line is checked as the others are."""
    own = stage.delivery(1, 1)
    assert own.box.box == b""
    key = stage.silos[1]._own.k
    assert own.commitment_k == commit_secret("com-k", stage.setup, 1, key)
    root = canonical.merkle_root([box.encode() for box in stage.last(1, Share).boxes])
    assert own.boxes_root == root

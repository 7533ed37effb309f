"""Tests of secagg.dealing; wrong boxes and shares are in tests/adversary/test_boxes.py."""

from dataclasses import replace
from typing import Any

import pytest

from secagg.dealing import (
    DealerKeys,
    Dealing,
    Dealt,
    check_delivered,
    deal,
    open_delivery,
)
from secagg.errors import BadKeyError, BadShareError, CohortRefusedError
from secagg.graph import complete
from secagg.keys import mask_key_from_seed
from secagg.messages import Advertise, Delivery, KemBox, KemPair, Share
from secagg.sealing import BOX_BYTES, commit_secret, commit_share
from secagg.secretbytes import Secret
from secagg.shamir import combine
from secagg.suites import SUITES, Suite
from secagg.testing import SeededRng

U1 = (1, 2, 3, 7)
SETUP = b"s" * 32


def _secrets(seat: int) -> dict[str, Secret]:
    rng = SeededRng(f"dealing/{seat}")
    return {name: Secret(rng.bytes(32)) for name in ("a", "b", "k")}


def _dealings(suite: Suite) -> dict[int, Dealing]:
    keys = {
        seat: DealerKeys.make(suite, _secrets(seat)["a"], SeededRng(f"keys/{seat}")) for seat in U1
    }
    advertises = {
        seat: Advertise(
            ctx=bytes(32),
            nonce=bytes(32),
            enc_key=keys[seat].enc.public,
            mask_key=keys[seat].mask.public,
            kem=keys[seat].kem_public,
            seat=seat,
        )
        for seat in U1
    }
    return {
        seat: Dealing(
            suite=suite,
            graph=complete(U1, 3),
            setup=SETUP,
            seat=seat,
            keys=keys[seat],
            advertises=advertises,
        )
        for seat in U1
    }


def _deal(dealing: Dealing) -> Dealt:
    secrets = _secrets(dealing.seat)
    return deal(
        dealing,
        secret_a=secrets["a"],
        secret_b=secrets["b"],
        key=secrets["k"],
        rng=SeededRng(f"deal/{dealing.seat}"),
    )


def _delivery(share: Share, holder: int) -> Delivery:
    place = [box.holder for box in share.boxes].index(holder)
    return Delivery(
        dealer=share.seat,
        box=share.boxes[place],
        path=share.tree().path(place),
        boxes_root=share.boxes_root,
        commitment_b=share.commitment_b,
        commitment_k=share.commitment_k,
        signature=bytes(64),
    )


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: str(suite.number))
def test_what_is_dealt_is_opened_by_each_holder(suite: Suite) -> None:
    """Shares that rebuild both secrets, the key, and in the hybrid suite one secret a pair."""
    dealings = _dealings(suite)
    dealt = _deal(dealings[2])
    share, secrets = dealt.share, _secrets(2)
    assert [box.holder for box in share.boxes] == list(U1)
    assert share.commitment_b == commit_secret("com-b", SETUP, 2, secrets["b"])
    assert share.commitment_k == commit_secret("com-k", SETUP, 2, secrets["k"])
    payloads = {2: dealt.kept}
    for holder in (1, 3, 7):
        delivery = _delivery(share, holder)
        check_delivered(dealings[holder], delivery)
        opened = open_delivery(dealings[holder], delivery)
        payloads[holder] = opened.payload
        expected = dealt.pairs.get(holder)
        assert (opened.pair is not None) == (suite.is_hybrid and holder > 2)
        assert opened.pair == expected or opened.pair is expected is None
    assert sorted(dealt.pairs) == ([3, 7] if suite.is_hybrid else [])
    for payload in payloads.values():
        assert payload.verification_key == secrets["k"]
    assert combine({x: p.share_a for x, p in payloads.items()}, 3) == secrets["a"].reveal()
    assert combine({x: p.share_b for x, p in payloads.items()}, 3) == secrets["b"].reveal()
    for box in share.boxes:
        place = (SETUP, 2, box.holder)
        assert box.commitment_a == commit_share(*place, "a", payloads[box.holder].share_a)
        assert box.commitment_b == commit_share(*place, "b", payloads[box.holder].share_b)
        assert len(box.box) == (0 if box.holder == 2 else BOX_BYTES)


def test_the_own_line_is_checked_like_the_others() -> None:
    """It lies under the root."""
    dealings = _dealings(SUITES[1])
    share = _deal(dealings[2]).share
    check_delivered(dealings[2], _delivery(share, 2))
    other = replace(_delivery(share, 2), boxes_root=bytes(32))
    with pytest.raises(CohortRefusedError, match="not the one its dealer signed"):
        check_delivered(dealings[2], other)
    with pytest.raises(CohortRefusedError, match="for another silo") as caught:
        check_delivered(dealings[2], _delivery(share, 3))
    assert caught.value.silo == 2


def test_keys_of_the_hybrid_suite_follow_from_a() -> None:
    """The keys of the masks, not those of the boxes."""
    secret = _secrets(1)["a"]
    one, two = (DealerKeys.make(SUITES[4], secret, SeededRng(seed)) for seed in (1, 2))
    assert one.kem_public is not None
    assert two.kem_public is not None
    assert one.mask.public == two.mask.public == mask_key_from_seed(secret).public
    assert one.kem_public.mask_key == two.kem_public.mask_key
    assert one.enc.public != two.enc.public
    assert one.kem_public.box_key != two.kem_public.box_key
    assert DealerKeys.make(SUITES[1], secret, SeededRng(1)).kem_public is None


def _wrong(kem: KemBox, pair: KemPair) -> dict[str, KemBox | None]:
    return {
        "no part": None,
        "no pair": replace(kem, pair=None),
        "another ciphertext": replace(kem, ciphertext=bytes(1088)),
        "another pair": replace(kem, pair=replace(pair, ciphertext=bytes(1088))),
        "another commitment": replace(kem, pair=replace(pair, commitment=bytes(32))),
    }


@pytest.mark.parametrize(
    "flaw", ["no part", "no pair", "another ciphertext", "another pair", "another commitment"]
)
def test_wrong_parts_of_a_hybrid_box(flaw: str) -> None:
    """The dealer is named, before anything is masked."""
    dealings = _dealings(SUITES[4])
    delivery = _delivery(_deal(dealings[2]).share, 3)
    kem = delivery.box.kem
    assert kem is not None
    assert kem.pair is not None
    box = replace(delivery.box, kem=_wrong(kem, kem.pair)[flaw])
    with pytest.raises(BadShareError) as caught:
        open_delivery(dealings[3], replace(delivery, box=box))
    assert caught.value.silo == 2


@pytest.mark.parametrize("name", ["enc_key", "mask_key"])
def test_dealing_to_a_key_of_low_order(name: str) -> None:
    """Found at the first holder that has one."""
    dealings = _dealings(SUITES[1])
    bad: dict[str, Any] = {name: bytes(32)}
    advertises = dict(dealings[2].advertises)
    advertises[7] = replace(advertises[7], **bad)
    with pytest.raises(BadKeyError, match="high order"):
        _deal(replace(dealings[2], advertises=advertises))

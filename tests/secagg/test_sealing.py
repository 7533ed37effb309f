"""Tests of secagg.sealing."""

from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.canonical import digest, encode, u32
from secagg.errors import BadKeyError, BadShareError, ParameterError
from secagg.hybrid import CIPHERTEXT_BYTES, Encapsulated
from secagg.keys import AgreementKey, hkdf
from secagg.rng import SystemRng
from secagg.sealing import (
    BOX_BYTES,
    PAYLOAD_BYTES,
    SharePayload,
    commit_secret,
    commit_share,
    open_box,
    seal,
)
from secagg.secretbytes import Secret

SETUP = b"\x09" * 32  # zeros would be the same salt as none
ONE, TWO = (AgreementKey.from_secret(bytes([n]) * 32) for n in (1, 2))


def _box(**changes: Any) -> bytes:
    arguments: dict[str, Any] = {
        "own": ONE,
        "peer_public": TWO.public,
        "setup": SETUP,
        "sender": 1,
        "receiver": 2,
    }
    arguments |= {"plaintext": b"share", "rng": SystemRng()} | changes
    return seal(**arguments)


def _open(box: bytes, **changes: Any) -> bytes:
    arguments: dict[str, Any] = {
        "own": TWO,
        "peer_public": ONE.public,
        "setup": SETUP,
        "sender": 1,
        "receiver": 2,
    }
    return open_box(**(arguments | {"box": box} | changes))


def test_the_receiver_opens_what_the_sender_sealed() -> None:
    """Nonce, ciphertext and tag; a second box of the same content differs."""
    box = _box()
    assert _open(box) == b"share"
    assert len(box) == 12 + 5 + 16
    assert _box() != box


@pytest.mark.parametrize(
    "changes",
    [
        {"setup": b"\1" * 32},
        {"sender": 3},
        {"receiver": 3},
        {"sender": 2, "receiver": 1},
        {"own": ONE},
        {"peer_public": AgreementKey.from_secret(b"\3" * 32).public},
    ],
)
def test_a_box_opens_for_its_pair_direction_and_setup_only(changes: dict[str, Any]) -> None:
    """Anything else is a bad share, and the sender is named."""
    with pytest.raises(BadShareError) as caught:
        _open(_box(), **changes)
    assert caught.value.silo == changes.get("sender", 1)


def test_a_box_is_made_as_the_specification_says() -> None:
    """SA1 spec 3.3: the ordered pair is in the key and, with the setup, in the associated data."""
    box = _box()
    info = encode("box", u32(1), u32(2))
    key = hkdf(ONE.exchange(TWO.public), salt=SETUP, info=info, length=32)
    aad = encode("box-aad", SETUP, u32(1), u32(2))
    assert AESGCM(key).decrypt(box[:12], box[12:], aad) == b"share"


def test_a_reflected_box_does_not_open() -> None:
    """The server hands seat 1 its own box back as seat 2's."""
    with pytest.raises(BadShareError):
        _open(_box(), own=ONE, peer_public=TWO.public, sender=2, receiver=1)


@pytest.mark.parametrize("place", [0, 12, 16, 17, 32])
def test_every_part_of_a_box_is_authentic(place: int) -> None:
    """Nonce, ciphertext and tag."""
    box = bytearray(_box())
    box[place] ^= 1
    with pytest.raises(BadShareError):
        _open(bytes(box))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 12, 27, 28])
def test_short_boxes_are_refused(size: int) -> None:
    """Down to nothing at all."""
    with pytest.raises(BadShareError):
        _open(_box()[:size])


def test_a_bad_key_is_no_bad_share() -> None:
    """The key was accepted earlier, so its error is another one."""
    with pytest.raises(BadKeyError):
        _box(peer_public=bytes(32))
    with pytest.raises(BadKeyError):
        _open(_box(), peer_public=bytes(31))


def test_a_payload_is_98_bytes_in_order() -> None:
    """share_a, share_b, k_u."""
    payload = SharePayload(
        share_a=Secret(b"a" * 33), share_b=Secret(b"b" * 33), verification_key=Secret(b"k" * 32)
    )
    data = payload.encode()
    assert data == b"a" * 33 + b"b" * 33 + b"k" * 32
    assert len(data) == PAYLOAD_BYTES == 98
    assert len(_box(plaintext=data)) == BOX_BYTES
    assert SharePayload.decode(data) == payload
    assert "aaa" not in repr(payload)


@pytest.mark.parametrize("size", [0, 97, 99])
def test_other_payloads_are_refused(size: int) -> None:
    """From a peer it is a bad share, from ourselves a parameter."""
    with pytest.raises(BadShareError, match="98 bytes"):
        SharePayload.decode(bytes(size))
    with pytest.raises(ParameterError, match="33, 33 and 32"):
        SharePayload(
            share_a=Secret(bytes(size + 1)),
            share_b=Secret(bytes(33)),
            verification_key=Secret(bytes(32)),
        )


def test_commitments_are_the_hashes_of_the_specification() -> None:
    """SA1 spec 3.3; seats are u32, kinds their letter."""
    secret = Secret(b"s" * 32)
    assert commit_secret("com-b", SETUP, 7, secret) == digest("com-b", SETUP, u32(7), b"s" * 32)
    assert commit_secret("com-k", SETUP, 7, secret) == digest("com-k", SETUP, u32(7), b"s" * 32)
    expected = digest("shr", SETUP, u32(7), u32(9), b"a", b"s" * 32)
    assert commit_share(SETUP, 7, 9, "a", secret) == expected
    assert commit_share(SETUP, 7, 9, "b", secret) != expected
    assert commit_share(SETUP, 9, 7, "a", secret) != expected


def test_the_ciphertext_is_bound_beside_its_secret() -> None:
    """In the hybrid suite: another ciphertext for the same secret opens nothing."""
    kem = Encapsulated(secret=Secret(b"s" * 32), ciphertext=b"c" * CIPHERTEXT_BYTES)
    box = _box(kem=kem)
    assert _open(box, kem=kem) == b"share"
    with pytest.raises(BadShareError):
        _open(box, kem=replace(kem, ciphertext=b"d" * CIPHERTEXT_BYTES))

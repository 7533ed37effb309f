"""Every key, coin and label that is derived, computed once more from the document's own words.

SHA-256, HKDF and AES come from the library; what goes into them is written out here. Silos of one
program agree on anything, a wrong label too: another implementation would not.
"""

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secagg import hybrid
from secagg.graph import regular
from secagg.hybrid import Encapsulated, KemKey
from secagg.ids import RunId
from secagg.keys import AgreementKey, mask_key_from_seed
from secagg.masking import pairwise_seeds, self_seed
from secagg.messages import KemBox, KemPair, Share, ShareBox
from secagg.prg import MaskStream, rounding_coins
from secagg.recompute import assigned_chunks
from secagg.ring import U32, U64
from secagg.sealing import seal
from secagg.secretbytes import Secret
from secagg.suites import suite_of
from secagg.testing import SeededRng
from secagg.verification import segment_tags, tag_blinds, verification_key

SETUP, BINDING = bytes(range(32)), bytes(range(32, 64))
SECRET, OTHER = bytes(range(64, 96)), bytes(range(96, 128))
LOW, HIGH = 2, 5


def enc(label: str, *fields: bytes) -> bytes:
    """A count, then each field behind its length; the label is the first."""
    items = [f"SA1/{label}".encode(), *fields]
    return n(len(items)) + b"".join(n(len(item)) + item for item in items)


def n(number: int, width: int = 4) -> bytes:
    """A number of fixed width."""
    return number.to_bytes(width, "big")


def h(label: str, *fields: bytes) -> bytes:
    """H of the document."""
    return hashlib.sha256(enc(label, *fields)).digest()


def derive(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """HKDF of the document."""
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(secret)


def words(seed: bytes, dtype: type[np.uint32] | type[np.uint64], count: int) -> list[int]:
    """The first words of a mask's stream."""
    acc = np.zeros(count, U32 if dtype is np.uint32 else U64)
    MaskStream(seed, acc.dtype).add_to(acc, 0)
    return [int(word) for word in acc]


def test_the_mask_keys_follow_from_a() -> None:
    """X25519 and, in the hybrid suite, ML-KEM."""
    seed = derive(SECRET, b"", b"SA1/mask-sk", 32)
    public = X25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    assert mask_key_from_seed(SECRET).public == public
    seed = derive(SECRET, b"", b"SA1/kem-mask", 64)
    public = MLKEM768PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()
    assert KemKey.for_masks(SECRET).public == public


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_seeds_of_masks(number: int) -> None:
    """Pairwise and own, one for each segment; in suite 2 with a shorter key."""
    generator = suite_of(number).generator
    size = {1: 48, 2: 32, 3: 44}[number]
    private = X25519PrivateKey.from_private_bytes(OTHER)
    peer = X25519PrivateKey.from_private_bytes(SECRET).public_key().public_bytes_raw()
    shared = private.exchange(X25519PublicKey.from_public_bytes(peer))
    for own_seat, peer_seat in ((LOW, HIGH), (HIGH, LOW)):
        found = pairwise_seeds(
            AgreementKey.from_secret(OTHER),
            peer,
            binding=BINDING,
            own_seat=own_seat,
            peer_seat=peer_seat,
            segments=("update", "count"),
            generator=generator,
        )
        assert found == {
            name: derive(shared, BINDING, enc("mask", n(LOW), n(HIGH), name.encode()), size)
            for name in ("update", "count")
        }
    own = self_seed(SECRET, binding=BINDING, seat=HIGH, segment="update", generator=generator)
    assert own == derive(SECRET, BINDING, enc("self", n(HIGH), b"update"), size)


def test_the_share_root() -> None:
    """Over all that a dealer sends to each holder, in the hybrid suite too."""
    words = {name: bytes([place]) * 8 for place, name in enumerate(["box", "ct", "pair", "escrow"])}
    pair = enc("kem-pair", words["pair"], words["escrow"], BINDING)
    kem = enc("kem-box", words["ct"], pair)
    leaf = h("leaf", n(0), enc("share-box", n(HIGH), words["box"], SECRET, OTHER, kem))
    made = Share(
        setup=SETUP,
        seat=LOW,
        commitment_b=OTHER,
        commitment_k=SECRET,
        boxes=(
            ShareBox(
                holder=HIGH,
                box=words["box"],
                commitment_a=SECRET,
                commitment_b=OTHER,
                kem=KemBox(
                    ciphertext=words["ct"],
                    pair=KemPair(
                        ciphertext=words["pair"], escrow=words["escrow"], commitment=BINDING
                    ),
                ),
            ),
        ),
    )
    assert made.root == h("share-root", OTHER, SECRET, h("root", n(1), leaf))


@pytest.mark.parametrize("is_hybrid", [False, True])
def test_the_key_of_a_box(is_hybrid: bool) -> None:
    """From both secrets in the hybrid suite, whose ciphertext the associated data pin."""
    kem = Encapsulated(secret=Secret(BINDING), ciphertext=b"ciphertext") if is_hybrid else None
    private = X25519PrivateKey.from_private_bytes(OTHER)
    peer = X25519PrivateKey.from_private_bytes(SECRET).public_key().public_bytes_raw()
    shared = private.exchange(X25519PublicKey.from_public_bytes(peer))
    key = derive(shared + (BINDING if kem else b""), SETUP, enc("box", n(HIGH), n(LOW)), 32)
    data = enc("box-aad", SETUP, n(HIGH), n(LOW), *([b"ciphertext"] if kem else []))
    box = seal(
        own=AgreementKey.from_secret(OTHER),
        peer_public=peer,
        setup=SETUP,
        sender=HIGH,
        receiver=LOW,
        plaintext=b"shares",
        rng=SeededRng("a nonce"),
        kem=kem,
    )
    assert AESGCM(key).decrypt(box[:12], box[12:], data) == b"shares"


def test_the_seeds_of_masks_in_the_hybrid_suite() -> None:
    """From both secrets, X25519's first."""
    private = X25519PrivateKey.from_private_bytes(OTHER)
    peer = X25519PrivateKey.from_private_bytes(SECRET).public_key().public_bytes_raw()
    shared = private.exchange(X25519PublicKey.from_public_bytes(peer)) + SETUP
    found = pairwise_seeds(
        AgreementKey.from_secret(OTHER),
        peer,
        binding=BINDING,
        own_seat=LOW,
        peer_seat=HIGH,
        segments=("update",),
        kem_secret=Secret(SETUP),
    )
    assert found["update"] == derive(shared, BINDING, enc("mask", n(LOW), n(HIGH), b"update"), 48)


def test_a_pairs_commitment_and_escrow() -> None:
    """Under the lower seat's a_u; the key serves one message."""
    assert hybrid.commit_pair(SETUP, LOW, HIGH, Secret(OTHER)) == h(
        "com-ss", SETUP, n(LOW), n(HIGH), OTHER
    )
    key = derive(SECRET, SETUP, enc("escrow", n(LOW), n(HIGH)), 32)
    data = enc("escrow-aad", SETUP, n(LOW), n(HIGH))
    sealed = AESGCM(key).encrypt(bytes(12), OTHER, data)
    assert hybrid.seal_escrow(SECRET, SETUP, LOW, HIGH, Secret(OTHER)) == sealed
    assert hybrid.open_escrow(SECRET, SETUP, LOW, HIGH, sealed).reveal() == OTHER


def test_the_tags() -> None:
    """K from all parts by seat; r for all, f for each seat, both for each tag of a segment."""
    key = h("ver", SETUP, n(LOW), SECRET, n(HIGH), OTHER)
    parts = [(HIGH, Secret(OTHER)), (LOW, Secret(SECRET))]
    assert verification_key(SETUP, parts).reveal() == key
    values = np.array([3, -1, 2**40], np.int64)
    found = segment_tags(values, key=Secret(key), binding=BINDING, segment="update", count=2)
    for tag in range(2):
        seed = derive(key, BINDING, enc("mac-r", b"update", n(tag)), 48)
        total = sum(map(int.__mul__, words(seed, np.uint64, 3), values.tolist()))
        assert int(found[tag]) == total % 2**64
    blinds = tag_blinds(key=Secret(key), binding=BINDING, segment="update", seat=HIGH, count=2)
    assert blinds.tolist() == [
        int.from_bytes(derive(key, BINDING, enc("mac-f", b"update", n(HIGH), n(tag)), 8), "little")
        for tag in range(2)
    ]


def test_the_coins_of_rounding() -> None:
    """From the silo's secret for the run, the round and the segment; not from the attempt."""
    run = RunId(b"run-for-testing!")
    seed = derive(SECRET, run.value, enc("coins", n(7, 8), b"update"), 48)
    acc = np.zeros(5, U32)
    rounding_coins(SECRET, run, 7, "update").add_to(acc, 0)
    assert acc.tolist() == words(seed, np.uint32, 5)


def test_the_ring_of_a_regular_graph() -> None:
    """Sorted by labels that follow from all nonces through setup."""
    seats = tuple(range(1, 161))
    found = regular(seats, setup=SETUP, colluding=3, dropout_percent=5)
    assert found.ring == tuple(sorted(seats, key=lambda seat: h("label", SETUP, n(seat))))


def test_who_recomputes_which_chunk() -> None:
    """Those that rank first for it under a seed of the sum's root and all nonces."""
    nonces = {HIGH: SECRET, LOW: OTHER, 7: SETUP}
    seed = h("recompute-seed", BINDING, n(LOW), OTHER, n(HIGH), SECRET, n(7), SETUP)

    def ranked(number: int) -> list[int]:
        place: Callable[[int], bytes] = lambda seat: h(  # noqa: E731  # one line of the document
            "recompute-rank", seed, n(number), n(seat)
        )
        return sorted(nonces, key=place)

    for seat in nonces:
        found = assigned_chunks(root=BINDING, nonces=nonces, seat=seat, redundancy=2, chunks=40)
        assert found == tuple(number for number in range(40) if seat in ranked(number)[:2])

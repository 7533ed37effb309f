"""Tests of secagg.keys; the RFCs' vectors are in tests/vectors."""

import pytest

from secagg.errors import BadKeyError, BadSignatureError, ParameterError
from secagg.keys import (
    AgreementKey,
    IdentityKey,
    check_encoding,
    hkdf,
    mask_key_from_seed,
    verify,
)
from secagg.rng import SystemRng
from secagg.secretbytes import Secret


def test_a_signature_verifies_under_its_key_and_data_only() -> None:
    """Another key, other data, a flipped bit and other lengths are all refused."""
    key, other = IdentityKey.generate(SystemRng()), IdentityKey.from_bytes(bytes(32))
    signature = key.sign(b"data")
    verify(key.public, signature, b"data")
    flipped = bytes([signature[0] ^ 1]) + signature[1:]
    for public, proof, data in (
        (other.public, signature, b"data"),
        (key.public, signature, b"date"),
        (key.public, flipped, b"data"),
        (key.public, signature[:-1], b"data"),
        (key.public[:-1], signature, b"data"),
    ):
        with pytest.raises(BadSignatureError):
            verify(public, proof, data)


def test_generated_identities_differ() -> None:
    """They come from the injected source."""
    assert IdentityKey.generate(SystemRng()).public != IdentityKey.generate(SystemRng()).public


def test_both_ends_agree() -> None:
    """Each with its own private and the other's public key."""
    one, two = AgreementKey.from_secret(bytes(32)), AgreementKey.from_secret(Secret(b"\1" * 32))
    assert one.exchange(two.public) == two.exchange(one.public)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_keys_have_32_bytes(size: int) -> None:
    """Our own keys and the peer's."""
    for build in (IdentityKey.from_bytes, AgreementKey.from_secret):
        with pytest.raises(ParameterError, match="32 bytes"):
            build(bytes(size))
    with pytest.raises(BadKeyError):
        AgreementKey.from_secret(bytes(32)).exchange(bytes(size))


def test_the_mask_key_is_a_function_of_its_seed() -> None:
    """Whoever rebuilds the seed rebuilds the key; its derivation is HKDF with the bare label."""
    seed = Secret(b"\7" * 32)
    expected = AgreementKey.from_secret(hkdf(seed, salt=b"", info=b"SA1/mask-sk", length=32))
    assert mask_key_from_seed(seed).public == expected.public
    assert mask_key_from_seed(b"\7" * 32).public == expected.public
    assert mask_key_from_seed(b"\6" * 32).public != expected.public


def test_derived_keys_depend_on_every_argument() -> None:
    """Secret, salt and info each separate; a longer output extends a shorter one."""
    base = hkdf(b"s", salt=b"t", info=b"i", length=48)
    assert len({base, hkdf(b"S", salt=b"t", info=b"i", length=48),
                hkdf(b"s", salt=b"T", info=b"i", length=48),
                hkdf(b"s", salt=b"t", info=b"I", length=48)}) == 4  # fmt: skip
    assert hkdf(Secret(b"s"), salt=b"t", info=b"i", length=16) == base[:16]


@pytest.mark.parametrize("key", [bytes(31), bytes(33), b"", b"\xff" * 32], ids=len)
def test_a_key_has_one_encoding(key: bytes) -> None:
    """32 bytes below the prime."""
    with pytest.raises(BadKeyError, match="canonical encoding"):
        check_encoding(key, silo=3)

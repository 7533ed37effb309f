"""Published known answers for the primitives that we build on, and our own frozen ones.

The published files are those of the package cryptography-vectors, unless a test names its source.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cryptography_vectors
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from secagg import shamir
from secagg.errors import BadKeyError
from secagg.hybrid import KemKey, read_public_key
from secagg.keys import (
    AgreementKey,
    IdentityKey,
    check_agreement_key,
    check_encoding,
    hkdf,
    mask_key_from_seed,
    verify,
)
from secagg.masking import pairwise_seed, self_seed
from secagg.prg import (
    AES_128_CTR,
    AES_256_CTR,
    CHACHA20,
    CHUNK_WORDS,
    Generator,
    MaskStream,
    expand,
)
from secagg.ring import U32, U64
from secagg.secretbytes import Secret

FROZEN: dict[str, Any] = json.loads((Path(__file__).parent / "v1/prg.json").read_text("utf-8"))

ED25519_ORDER = 2**252 + 27742317777372353535851937790883648493


def _lines(name: str) -> list[str]:
    with cryptography_vectors.open_vector_file(name, "r") as file:
        return [str(line).strip() for line in file]


def _records(name: str) -> Iterator[dict[str, str]]:
    """Yield the records of a vector file of NIST's form; a record starts at its COUNT."""
    record: dict[str, str] = {}
    for line in _lines(name):
        key, equals, value = (part.strip() for part in line.partition("="))
        if line.startswith(("#", "[")) or not line:
            continue
        if key.lower() == "count":
            if record:
                yield record
            record = {}
        record[key.lower()] = value if equals else "yes"
    yield record


def test_x25519_of_rfc_7748_section_5_2() -> None:
    """Single products."""
    records = list(_records("asymmetric/X25519/rfc7748.txt"))
    assert len(records) == 3
    for record in records:
        scalar, point, product = (
            bytes.fromhex(record[key]) for key in ("input_scalar", "input_u", "output_u")
        )
        assert AgreementKey.from_secret(scalar).exchange(point).reveal() == product


def test_one_encoding_for_each_public_key() -> None:
    """Section 5's second point has its top bit set: it is multiplied, but nobody may advertise it.

    A key's bytes are compared with others' (check A3), so all but its canonical form are refused.
    """
    points = [bytes.fromhex(r["input_u"]) for r in _records("asymmetric/X25519/rfc7748.txt")]
    canonical = [point for point in points if point[31] < 0x80]
    assert len(canonical) == 2
    for point in points:
        if point in canonical:
            check_agreement_key(point)
            continue
        with pytest.raises(BadKeyError, match="canonical"):
            check_agreement_key(point)
        check_agreement_key(point[:31] + bytes([point[31] & 0x7F]))
    key = AgreementKey.from_secret(b"\x77" * 32)
    for value in range(2, 19):  # below 2**255, so no top bit shows; 0 and 1 are of low order
        one, other = ((value + add).to_bytes(32, "little") for add in (0, 2**255 - 19))
        assert key.exchange(one) == key.exchange(other)
        check_encoding(one)
        with pytest.raises(BadKeyError, match="canonical"):
            check_encoding(other)


def test_x25519_of_rfc_7748_section_5_2_iterated() -> None:
    """A thousand products in a row; the result is printed in the RFC."""
    scalar = point = b"\x09" + bytes(31)
    for _ in range(1000):
        scalar, point = AgreementKey.from_secret(scalar).exchange(point).reveal(), scalar
    assert scalar.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


def test_x25519_of_rfc_7748_section_6_1() -> None:
    """Both public keys and the shared secret, as printed in the RFC."""
    alice, bob = (
        AgreementKey.from_secret(bytes.fromhex(private))
        for private in (
            "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
            "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        )
    )
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert alice.exchange(bob.public).reveal().hex() == shared
    assert bob.exchange(alice.public).reveal().hex() == shared


@pytest.mark.parametrize(
    "point",
    [
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    ],
)
@pytest.mark.parametrize("top_bit", [0, 0x80])
def test_points_of_low_order_are_bad_keys(point: str, top_bit: int) -> None:
    """The seven of Bernstein's list (cr.yp.to/ecdh.html), also with the ignored top bit set."""
    encoded = bytearray.fromhex(point)
    encoded[31] |= top_bit
    with pytest.raises(BadKeyError):
        AgreementKey.from_secret(b"\x77" * 32).exchange(bytes(encoded))


def test_ed25519_of_rfc_8032() -> None:
    """Public keys and signatures of the 1024 vectors that section 7.1 is drawn from."""
    lines = _lines("asymmetric/Ed25519/sign.input")
    assert len(lines) == 1024
    for line in lines:
        private, public, message, signed, _ = line.split(":")
        key = IdentityKey.from_bytes(bytes.fromhex(private)[:32])
        data = bytes.fromhex(message)
        assert key.public.hex() == public
        assert key.sign(data).hex() + message == signed
        verify(key.public, bytes.fromhex(signed)[:64], data)


def test_hkdf_of_rfc_5869() -> None:
    """Appendices A.1 to A.3; the third has neither salt nor info."""
    records = list(_records("KDF/rfc-5869-HKDF-SHA256.txt"))
    assert len(records) == 3
    for record in records:
        ikm, salt, info = (bytes.fromhex(record[key]) for key in ("ikm", "salt", "info"))
        derived = hkdf(ikm, salt=salt, info=info, length=int(record["l"]))
        assert derived.hex() == record["okm"]


def test_the_stream_is_ctr_aes256_of_sp_800_38a() -> None:
    """F.5.5, four blocks: our words are ciphertext xor plaintext."""
    seed = bytes.fromhex(
        "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"
        "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
    )
    plaintext = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    ciphertext = bytes.fromhex(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    for dtype in (U32, U64):
        stream = expand(seed, 64 // dtype.itemsize, dtype).tobytes()
        assert bytes(a ^ b for a, b in zip(stream, plaintext, strict=True)) == ciphertext


def _stream(seed: bytes, nbytes: int, generator: Generator) -> bytes:
    """At least so many bytes of a seed's stream."""
    pieces = MaskStream(seed, U32, generator=generator).slices(0, -(-nbytes // 4))
    return b"".join(words.tobytes() for _, words in pieces)


@pytest.mark.parametrize("generator", [AES_256_CTR, AES_128_CTR])
def test_the_stream_is_the_counter_mode_of_rfc_3686(generator: Generator) -> None:
    """The three vectors with keys of this size; the last ends inside a block."""
    records = list(_records(f"ciphers/AES/CTR/aes-{8 * generator.key_bytes}-ctr.txt"))
    assert len(records) == 3
    for record in records:
        plaintext = bytes.fromhex(record["plaintext"])
        seed = bytes.fromhex(record["key"] + record["iv"])
        stream = _stream(seed, len(plaintext), generator)
        ciphertext = bytes(a ^ b for a, b in zip(plaintext, stream, strict=False))
        assert ciphertext.hex() == record["ciphertext"].lower()


def test_the_stream_is_chacha20_of_rfc_8439() -> None:
    """Appendix A.2; our streams start at block 0, so the others are read from their block on."""
    records = list(_records("ciphers/ChaCha20/rfc7539.txt"))
    assert len(records) == 3
    for record in records:
        plaintext = bytes.fromhex(record["plaintext"])
        seed = bytes.fromhex(record["key"] + record["nonce"])
        first = int(record["initial_block_counter"]) * CHACHA20.block_bytes
        stream = _stream(seed, first + len(plaintext), CHACHA20)[first:]
        ciphertext = bytes(a ^ b for a, b in zip(plaintext, stream, strict=False))
        assert ciphertext.hex() == record["ciphertext"].lower()


def test_chacha20_poly1305_of_rfc_8439() -> None:
    """OpenSSL's vectors of our form: both directions, and tags with one bit flipped."""
    tried = 0
    for record in _records("ciphers/ChaCha20Poly1305/openssl.txt"):
        key, nonce, aad, tag, plaintext, text = (
            bytes.fromhex(record[part])
            for part in ("key", "iv", "aad", "tag", "plaintext", "ciphertext")
        )
        if len(nonce) != 12 or len(tag) != 16:
            continue
        tried += 1
        cipher = ChaCha20Poly1305(key)
        if "result" in record:
            with pytest.raises(InvalidTag):
                cipher.decrypt(nonce, text + tag, aad)
            continue
        assert cipher.encrypt(nonce, plaintext, aad) == text + tag
        assert cipher.decrypt(nonce, text + tag, aad) == plaintext
        with pytest.raises(InvalidTag):
            cipher.decrypt(nonce, text + tag[:-1] + bytes([tag[-1] ^ 1]), aad)
    assert tried >= 3


def test_ml_kem_768_of_fips_203() -> None:
    """Key from seed, the secret in a ciphertext, and the other one that a foreign one gives."""
    records = list(_records("asymmetric/MLKEM/kat_MLKEM_768.rsp"))[:100]
    assert len(records) >= 10
    for record in records:
        key = KemKey.from_seed(bytes.fromhex(record["d"] + record["z"]))
        assert key.public.hex() == record["pk"].lower()
        for text, secret in (("ct", "ss"), ("ct_n", "ss_n")):
            opened = key.decapsulate(bytes.fromhex(record[text]))
            assert opened.secret.reveal().hex() == record[secret].lower()
        read_public_key(key.public)


@pytest.mark.parametrize("name", ["gcmEncryptExtIV256", "gcmDecrypt256"])
def test_gcm_of_sp_800_38d(name: str) -> None:
    """Every vector of the form that our boxes have: 96-bit nonces, 128-bit tags."""
    tried = 0
    for record in _records(f"ciphers/AES/GCM/{name}.rsp"):
        key, nonce, text, aad, tag = (
            bytes.fromhex(record[part]) for part in ("key", "iv", "ct", "aad", "tag")
        )
        if len(nonce) != 12 or len(tag) != 16:
            continue
        tried += 1
        if "fail" in record:
            with pytest.raises(InvalidTag):
                AESGCM(key).decrypt(nonce, text + tag, aad)
        else:
            plaintext = bytes.fromhex(record["pt"])
            assert AESGCM(key).decrypt(nonce, text + tag, aad) == plaintext
            assert AESGCM(key).encrypt(nonce, plaintext, aad) == text + tag
    assert tried > 300


def _little_endian(hexadecimal: str) -> int:
    return int.from_bytes(bytes.fromhex(hexadecimal), "little")


def test_shamir_of_rfc_9591() -> None:
    """Appendix E.1: FROST(Ed25519, SHA-512), secret, coefficient and all three shares."""
    secret = _little_endian("7b1c33d3f5291d85de664833beb1ad469f7fb6025a0ec78b3a790c6e13a98304")
    coefficient = _little_endian("178199860edd8c62f5212ee91eff1295d0d670ab4ed4506866bae57e7030b204")
    shares = {
        1: _little_endian("929dcc590407aae7d388761cddb0c0db6f5627aea8e217f4a033f2ec83d93509"),
        2: _little_endian("a91e66e012e4364ac9aaa405fcafd370402d9859f7b6685c07eed76bf409e80d"),
        3: _little_endian("d3cb090a075eb154e82fdb4b3cb507f110040905468bb9c46da8bdea643a9a02"),
    }
    dealt = shamir.split_integer(secret, [coefficient], [1, 2, 3], prime=ED25519_ORDER)
    assert dealt == shares
    for pair in ((1, 2), (1, 3), (2, 3)):
        chosen = {x: shares[x] for x in pair}
        assert shamir.interpolate_integer(chosen, prime=ED25519_ORDER) == secret


def test_the_field_is_that_of_the_smallest_prime_above_2_to_the_256() -> None:
    """No smaller candidate passes Fermat's test to base 3, ours passes to several bases.

    Base 2 would not do: 2**256 + 1 is a Fermat number and passes it.
    """
    prime = shamir.FIELD_PRIME
    assert all(pow(base, prime - 1, prime) == 1 for base in (2, 3, 5, 7, 11, 13))
    assert not any(pow(3, n - 1, n) == 1 for n in range(2**256 + 1, prime, 2))


@pytest.mark.parametrize("case", FROZEN["shamir"])
def test_frozen_shares(case: dict[str, Any]) -> None:
    """Our own vectors over our own field."""
    coefficients = [int(value, 16) for value in case["coefficients"]]
    points = shamir.split_integer(int(case["secret"], 16), coefficients, case["holders"])
    assert [f"{points[x]:066x}" for x in case["holders"]] == case["shares"]
    threshold = len(coefficients) + 1
    shares = {
        x: Secret(bytes.fromhex(share))
        for x, share in zip(case["holders"], case["shares"], strict=True)
    }
    last = {x: shares[x] for x in case["holders"][-threshold:]}
    assert shamir.combine(last, threshold).hex() == case["secret"]


@pytest.mark.parametrize("case", FROZEN["streams"])
def test_frozen_mask_words(case: dict[str, Any]) -> None:
    """The first words of the first and of the third chunk, in both widths."""
    seed = bytes.fromhex(case["seed"])
    for name, dtype in (("u32", U32), ("u64", U64)):
        assert expand(seed, 8, dtype).tolist() == case[name]
        third = expand(seed, 8, dtype, first_word=2 * CHUNK_WORDS)
        assert third.tolist() == case[f"third_chunk_{name}"]


@pytest.mark.parametrize("case", FROZEN["seeds"])
def test_frozen_seeds(case: dict[str, Any]) -> None:
    """From the secrets that are shared to the seeds of the masks."""
    binding, segment = bytes.fromhex(case["binding"]), case["segment"]
    secrets = [bytes.fromhex(secret) for secret in case["secrets"]]
    low, high = case["seats"]
    keys = [mask_key_from_seed(secret) for secret in secrets]
    assert [key.public.hex() for key in keys] == case["mask_keys"]
    for own, peer, own_seat, peer_seat in ((*keys, low, high), (*keys[::-1], high, low)):
        seed = pairwise_seed(
            own,
            peer.public,
            binding=binding,
            own_seat=own_seat,
            peer_seat=peer_seat,
            segment=segment,
        )
        assert seed.hex() == case["pairwise_seed"]
    own_mask = self_seed(secrets[0], binding=binding, seat=low, segment=segment)
    assert own_mask.hex() == case["self_seed"]

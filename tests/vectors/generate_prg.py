"""Print v1/prg.json: seeds, mask words and shares from a second, plain implementation.

Nothing of `secagg` is imported: HKDF is two lines of HMAC, the stream is one AES block at a time,
the encoding and the polynomial are spelled out. Run it with the environment's Python and compare;
a difference means that the bytes on the wire have changed.
"""

import hashlib
import hmac
import json
import sys

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

WORDS = 8
PRIME = 2**256 + 297


def enc(label: str, *fields: bytes) -> bytes:
    """SA1 spec 3.1."""
    items = [f"SA1/{label}".encode(), *fields]
    lengths = [len(items), *map(len, items)]
    head, *rest = (length.to_bytes(4, "big") for length in lengths)
    return head + b"".join(length + item for length, item in zip(rest, items, strict=True))


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869, section 2, with SHA-256."""
    prk = hmac.digest(salt or bytes(32), secret, hashlib.sha256)
    block, output, counter = b"", b"", 1
    while len(output) < length:
        block = hmac.digest(prk, block + info + bytes([counter]), hashlib.sha256)
        output, counter = output + block, counter + 1
    return output[:length]


def words(seed: bytes, first: int, width: int) -> list[int]:
    """Words `first` to `first` + 7 of the stream, `width` bytes each."""
    encrypt = Cipher(AES256(seed[:32]), ECB()).encryptor()  # noqa: S305  # counter mode by hand
    counter = int.from_bytes(seed[32:], "big")
    start, stop = first * width, (first + WORDS) * width
    blocks = [
        encrypt.update(((counter + block) % 2**128).to_bytes(16, "big"))
        for block in range(start // 16, -(-stop // 16))
    ]
    stream = b"".join(blocks)[start % 16 :]
    return [
        int.from_bytes(stream[at : at + width], "little") for at in range(0, WORDS * width, width)
    ]


def stream_case(seed: bytes) -> dict[str, object]:
    """The first words of a seed in both widths, and words in the third chunk."""
    third = 2 * 65536
    return {
        "seed": seed.hex(),
        "u32": words(seed, 0, 4),
        "u64": words(seed, 0, 8),
        "third_chunk_u32": words(seed, third, 4),
        "third_chunk_u64": words(seed, third, 8),
    }


def u32(value: int) -> bytes:
    """Seats, as hashed."""
    return value.to_bytes(4, "big")


def seed_case(low: int, high: int, segment: str) -> dict[str, object]:
    """The pairwise seed of two seats and the self seed of the lower one."""
    binding = hashlib.sha256(b"binding").digest()
    secrets = [hashlib.sha256(f"seat {seat}".encode()).digest() for seat in (low, high)]
    one, two = (
        X25519PrivateKey.from_private_bytes(hkdf(secret, b"", b"SA1/mask-sk", 32))
        for secret in secrets
    )
    shared = one.exchange(two.public_key())
    pair_info = enc("mask", u32(low), u32(high), segment.encode())
    self_info = enc("self", u32(low), segment.encode())
    return {
        "binding": binding.hex(),
        "seats": [low, high],
        "segment": segment,
        "secrets": [secret.hex() for secret in secrets],
        "mask_keys": [key.public_key().public_bytes_raw().hex() for key in (one, two)],
        "pairwise_seed": hkdf(shared, binding, pair_info, 48).hex(),
        "self_seed": hkdf(secrets[0], binding, self_info, 48).hex(),
    }


def shamir_case(threshold: int, holders: list[int]) -> dict[str, object]:
    """Shares of a polynomial whose coefficients are hashes."""
    values = [
        int.from_bytes(hashlib.sha256(f"coefficient {n}".encode()).digest(), "big")
        for n in range(threshold)
    ]
    shares = [sum(c * x**n for n, c in enumerate(values)) % PRIME for x in holders]
    return {
        "secret": f"{values[0]:064x}",
        "coefficients": [f"{value:064x}" for value in values[1:]],
        "holders": holders,
        "shares": [f"{share:066x}" for share in shares],
    }


json.dump(
    {
        "source": "tests/vectors/generate_prg.py, which shares no code with secagg",
        "streams": [
            stream_case(bytes(48)),
            stream_case(bytes(range(48))),
            stream_case(bytes(range(32)) + b"\xff" * 16),
        ],
        "seeds": [seed_case(1, 2, "update"), seed_case(3, 200, "tags")],
        "shamir": [shamir_case(2, [1, 2, 3]), shamir_case(4, [1, 3, 5, 7, 200])],
    },
    sys.stdout,
    indent=1,
)
sys.stdout.write("\n")

"""Boxes that carry shares through the server, and the commitments that make liars named.

A box from u to v is sealed under a key of the ordered pair: each direction has its own, or
the server could reflect u's box back to it as v's (SA1 spec 3.3). Commitments are hashes: fewer
than `threshold` shares leave every other share a function of 256 unknown uniform bits.
"""

from dataclasses import dataclass
from typing import Final, Literal, Self

from cryptography.exceptions import InvalidTag

from secagg.canonical import digest, encode, u32
from secagg.errors import BadShareError, ParameterError
from secagg.hybrid import Encapsulated
from secagg.keys import AgreementKey, hkdf
from secagg.rng import Rng
from secagg.secretbytes import Secret, reveal
from secagg.shamir import SECRET_BYTES, SHARE_BYTES
from secagg.suites import DEFAULT, Suite

NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
PAYLOAD_BYTES: Final = 2 * SHARE_BYTES + SECRET_BYTES
BOX_BYTES: Final = NONCE_BYTES + PAYLOAD_BYTES + TAG_BYTES
_BOX_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePayload:
    """What a box holds.

    Attributes:
        share_a: 33 bytes, the receiver's share of the sender's mask key seed.
        share_b: 33 bytes, the receiver's share of the sender's self seed.
        verification_key: 32 bytes, the sender's part k_u of the key of the tags.
    """

    share_a: Secret
    share_b: Secret
    verification_key: Secret

    def __post_init__(self) -> None:
        lengths = (len(self.share_a), len(self.share_b), len(self.verification_key))
        if lengths != (SHARE_BYTES, SHARE_BYTES, SECRET_BYTES):
            raise ParameterError(
                f"expected {SHARE_BYTES}, {SHARE_BYTES} and {SECRET_BYTES} bytes, got {lengths}"
            )

    def encode(self) -> bytes:
        """Return the 98 bytes to be sealed."""
        return self.share_a.reveal() + self.share_b.reveal() + self.verification_key.reveal()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            BadShareError: another length.
        """
        if len(data) != PAYLOAD_BYTES:
            raise BadShareError(f"expected a box of {PAYLOAD_BYTES} bytes, got {len(data)}")
        return cls(
            share_a=Secret(data[:SHARE_BYTES]),
            share_b=Secret(data[SHARE_BYTES : 2 * SHARE_BYTES]),
            verification_key=Secret(data[2 * SHARE_BYTES :]),
        )


def seal(
    *,
    own: AgreementKey,
    peer_public: bytes,
    setup: bytes,
    sender: int,
    receiver: int,
    plaintext: bytes,
    rng: Rng,
    suite: Suite = DEFAULT,
    kem: Encapsulated | None = None,
) -> bytes:
    """Return nonce ‖ ciphertext ‖ tag for the seat `receiver`.

    Args:
        own: this end's key for boxes.
        peer_public: the receiver's, 32 bytes.
        setup: of the attempt.
        sender: this seat.
        receiver: the other seat.
        plaintext: what to seal.
        rng: source of the nonce.
        suite: names the AEAD.
        kem: in the hybrid suite, what was encapsulated to the receiver.

    Raises:
        BadKeyError: `peer_public` is no usable key.
    """
    nonce = rng.bytes(NONCE_BYTES)
    key = _box_key(own, peer_public, setup, sender, receiver, kem)
    data = _associated_data(setup, sender, receiver, kem)
    return nonce + suite.aead(key).encrypt(nonce, plaintext, data)


def open_box(
    *,
    own: AgreementKey,
    peer_public: bytes,
    setup: bytes,
    sender: int,
    receiver: int,
    box: bytes,
    suite: Suite = DEFAULT,
    kem: Encapsulated | None = None,
) -> bytes:
    """Return the plaintext of a box from the seat `sender`; the arguments mirror `seal`'s.

    Raises:
        BadKeyError: `peer_public` is no usable key.
        BadShareError: the box is not the sender's for this receiver and setup; names the sender.
    """
    key = _box_key(own, peer_public, setup, sender, receiver, kem)
    data = _associated_data(setup, sender, receiver, kem)
    try:
        return suite.aead(key).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], data)
    except (InvalidTag, ValueError) as error:  # ValueError: a nonce cut too short to be one.
        raise BadShareError(
            f"expected a box from seat {sender} to seat {receiver}, got one that does not open",
            silo=sender,
        ) from error


def commit_secret(
    label: Literal["com-b", "com-k"], setup: bytes, seat: int, secret: Secret | bytes
) -> bytes:
    """Return the commitment of `seat` to its self seed (com-b) or its k_u (com-k)."""
    return digest(label, setup, u32(seat), reveal(secret))


def commit_share(
    setup: bytes, dealer: int, holder: int, kind: Literal["a", "b"], share: Secret | bytes
) -> bytes:
    """Return the dealer's commitment to the share that it deals to `holder`."""
    return digest("shr", setup, u32(dealer), u32(holder), kind.encode("ascii"), reveal(share))


def _box_key(  # noqa: PLR0917  # the fields of the key's derivation, in the spec's order
    own: AgreementKey,
    peer_public: bytes,
    setup: bytes,
    sender: int,
    receiver: int,
    kem: Encapsulated | None,
) -> bytes:
    info = encode("box", u32(sender), u32(receiver))
    shared = own.exchange(peer_public).join(kem.secret if kem else None)
    return hkdf(shared, salt=setup, info=info, length=_BOX_KEY_BYTES)


def _associated_data(setup: bytes, sender: int, receiver: int, kem: Encapsulated | None) -> bytes:
    bound = [kem.ciphertext] if kem else []
    return encode("box-aad", setup, u32(sender), u32(receiver), *bound)

"""ML-KEM beside X25519: what each end derives, and what is refused."""

from dataclasses import replace

import pytest

from secagg import hybrid, messages
from secagg.errors import BadKeyError, BadShareError
from secagg.hybrid import KemKey
from secagg.messages import KemBox, KemKeys, KemPair, Message
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.secretbytes import Secret
from secagg.suites import SUITES
from secagg.testing import RoundHarness, make_federation, make_parameters
from tests.adversary.stage import random_inputs, small_spec

SETUP = bytes(range(32))
A = bytes(range(1, 33))


def test_both_ends_get_the_same_secret() -> None:
    """What is encapsulated to a key comes out of it; the key follows from a_u alone."""
    key = KemKey.for_masks(A)
    assert key.public == KemKey.for_masks(Secret(A)).public
    assert len(key.public) == hybrid.PUBLIC_BYTES
    made = hybrid.encapsulate(key.public)
    assert len(made.ciphertext) == hybrid.CIPHERTEXT_BYTES
    assert key.decapsulate(made.ciphertext).secret == made.secret
    assert hybrid.encapsulate(key.public).secret != made.secret


def test_a_foreign_ciphertext_gives_another_secret() -> None:
    """FIPS 203 rejects implicitly, so the commitment has to say it."""
    made = hybrid.encapsulate(KemKey.for_masks(A).public)
    other = KemKey.for_masks(bytes(32)).decapsulate(made.ciphertext).secret
    assert other != made.secret
    ends = (SETUP, 1, 2)
    assert hybrid.commit_pair(*ends, other) != hybrid.commit_pair(*ends, made.secret)


def test_commitments_name_the_pair_and_the_attempt() -> None:
    """Nothing of one pair serves another one."""
    secret = Secret(A)
    made = {
        hybrid.commit_pair(setup, low, high, secret)
        for setup, low, high in [(SETUP, 1, 2), (SETUP, 1, 3), (SETUP, 2, 1), (bytes(32), 1, 2)]
    }
    assert len(made) == 4


@pytest.mark.parametrize("length", [0, hybrid.CIPHERTEXT_BYTES - 1, hybrid.CIPHERTEXT_BYTES + 1])
def test_a_ciphertext_of_another_length(length: int) -> None:
    """Refused by name."""
    with pytest.raises(BadKeyError, match="1088 bytes"):
        KemKey.for_masks(A).decapsulate(bytes(length))


@pytest.mark.parametrize("key", [b"", bytes(1183), bytes(1185), b"\xff" * 1184])
def test_a_public_key_that_is_none(key: bytes) -> None:
    """Another length, or coefficients beyond the modulus."""
    with pytest.raises(BadKeyError, match="1184 bytes"):
        hybrid.encapsulate(key)


def test_an_escrow_opens_for_its_pair_and_attempt_alone() -> None:
    """a_u, setup and both seats are in its key."""
    secret = Secret(bytes(reversed(range(32))))
    escrow = hybrid.seal_escrow(A, SETUP, 1, 2, secret)
    assert len(escrow) == hybrid.ESCROW_BYTES
    assert hybrid.open_escrow(Secret(A), SETUP, 1, 2, escrow) == secret
    for wrong in [
        (bytes(32), SETUP, 1, 2, escrow),
        (A, bytes(32), 1, 2, escrow),
        (A, SETUP, 1, 3, escrow),
        (A, SETUP, 2, 1, escrow),
        (A, SETUP, 1, 2, bytes(48)),
    ]:
        with pytest.raises(BadShareError, match="escrow") as caught:
            hybrid.open_escrow(*wrong)
        assert caught.value.silo == wrong[2]


FEDERATION = make_federation(5)
SPEC = small_spec(5)
INPUTS = random_inputs(range(1, 6), SPEC, 5)
POLICY = SiloPolicy(suites=frozenset(SUITES))


def _strip(message: Message, part: str) -> Message:
    """The message of seat 5 or 1 without a part that suite 4 needs, or with one too many."""
    if isinstance(message, messages.Advertise) and part == "keys":
        return replace(message, kem=None)
    if isinstance(message, messages.Advertise) and part == "bad key":
        return replace(message, kem=KemKeys(box_key=b"\xff" * 1184, mask_key=bytes(1184)))
    if isinstance(message, messages.Share) and part in {"box", "pair", "extra pair"}:
        changes: dict[str, KemBox | None] = {"box": None}
        place, box = next(
            (n, box)
            for n, box in enumerate(message.boxes)
            if box.kem and (box.kem.pair is None) == (part == "extra pair")
        )
        assert box.kem is not None
        extra = KemPair(ciphertext=bytes(1088), escrow=bytes(48), commitment=bytes(32))
        changes |= {
            "pair": replace(box.kem, pair=None),
            "extra pair": replace(box.kem, pair=extra),
        }
        boxes = list(message.boxes)
        boxes[place] = replace(box, kem=changes[part])
        return replace(message, boxes=tuple(boxes))
    return message


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ("keys", "A3_BAD_KEY"),
        ("bad key", "A3_BAD_KEY"),
        ("box", "MALFORMED"),
        ("pair", "MALFORMED"),
        ("extra pair", "MALFORMED"),
    ],
)
def test_a_silo_that_leaves_the_hybrid_part_out(part: str, code: str) -> None:
    """The server refuses it, and the others go on with every part in place."""
    liar = 5 if part == "extra pair" else 1

    def lie(seat: int, message: Message) -> Message:
        changed = _strip(message, part) if seat == liar else message
        if changed == message:
            return message
        assert isinstance(changed, messages.SignedMessage)
        return messages.signed(changed, FEDERATION.identities[liar])

    outcome = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC, suite=4),
        state=b"state",
        train=lambda seat, _parameters, _state: INPUTS[seat],
        policies=dict.fromkeys(range(1, 6), POLICY),
        to_server=lie,
    ).run()
    assert [(error.code) for error in outcome.server_errors] == [code]
    assert outcome.aggregate is not None
    assert outcome.aggregate.survivors == tuple(s for s in range(1, 6) if s != liar)


@pytest.mark.parametrize("dealer", [1, 5])
def test_a_server_that_strips_the_hybrid_part_from_a_box(dealer: int) -> None:
    """The dealer has signed every part, so the box is not the one that it dealt."""

    def lie(seat: int, message: Message) -> Message:
        if seat != 3 or not isinstance(message, messages.Boxes):
            return message
        return replace(
            message,
            deliveries=tuple(
                replace(item, box=replace(item.box, kem=None)) if item.dealer == dealer else item
                for item in message.deliveries
            ),
        )

    outcome = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC, suite=4),
        state=b"state",
        train=lambda seat, _parameters, _state: INPUTS[seat],
        policies=dict.fromkeys(range(1, 6), POLICY),
        to_silo=lie,
        drop={5: Phase.UNMASK},
    ).run()
    assert outcome.silo_errors[3].code == "A4_COHORT_REFUSED"

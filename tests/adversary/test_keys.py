"""A server, or a silo, that puts bad keys into U1."""

from dataclasses import replace

import pytest

from secagg import messages
from secagg.errors import BadKeyError, BadSignatureError, RosterError
from secagg.messages import Advertise, Keys
from secagg.testing import RoundHarness, make_federation, make_parameters
from tests.adversary.stage import Stage, agreement_key, random_inputs, small_spec

pytestmark = pytest.mark.adversary

# X25519 points of low order (RFC 7748, section 6.1 and 7): every shared secret with them is zero.
P = 2**255 - 19
LOW_ORDER = [
    value.to_bytes(32, "little")
    for value in (
        0,
        1,
        P - 1,
        P,
        P + 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    )
]


def _advertised(stage: Stage, seat: int, **changes: bytes) -> Keys:
    """The honest keys with a change that the silo itself has signed."""
    honest = stage.keys().advertises
    identity = stage.federation.identities[seat]
    return Keys(
        advertises=tuple(
            messages.signed(replace(item, **changes), identity) if item.seat == seat else item  # type: ignore[arg-type]  # fields by name
            for item in honest
        )
    )


@pytest.mark.parametrize("name", ["enc_key", "mask_key"])
@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_key_of_low_order(name: str, point: bytes) -> None:
    """Its owner would have a secret in common with everybody that everybody knows."""
    stage = Stage(4, corrupted=(4,))
    stage.advertise()
    keys = _advertised(stage, 4, **{name: point})
    for seat in (1, 2, 3):
        match = "canonical" if int.from_bytes(point, "little") >= P else "high order"
        stage.refuses(seat, keys, BadKeyError, match)
    stage.assert_hidden()


def _second_encoding(key: bytes) -> bytes:
    """The same point: RFC 7748 ignores the top bit."""
    assert agreement_key("anybody").exchange(key) == agreement_key("anybody").exchange(
        key[:31] + bytes([key[31] | 0x80])
    )
    return key[:31] + bytes([key[31] | 0x80])


@pytest.mark.parametrize(("name", "of"), [("enc_key", "enc_key"), ("mask_key", "enc_key")])
def test_a_key_in_a_second_encoding(name: str, of: str) -> None:
    """Silo 4 repeats a key of silo 1 in other bytes: the same key, and not the same to compare."""
    stage = Stage(4, corrupted=(4,))
    stage.advertise()
    keys = _advertised(stage, 4, **{name: _second_encoding(getattr(stage.advertises[1], of))})
    for seat in (1, 2, 3):
        assert stage.refuses(seat, keys, BadKeyError, "canonical").silo == 4
    stage.assert_hidden()


@pytest.mark.parametrize(("name", "of"), [("enc_key", "enc_key"), ("mask_key", "enc_key")])
def test_a_key_advertised_twice(name: str, of: str) -> None:
    """Silo 4 repeats a key of silo 1, as the same and as the other kind."""
    stage = Stage(4, corrupted=(4,))
    stage.advertise()
    keys = _advertised(stage, 4, **{name: getattr(stage.advertises[1], of)})
    for seat in (1, 2, 3):
        error = stage.refuses(seat, keys, BadKeyError, "each another one")
        assert error.silo == 4
    stage.assert_hidden()


def test_one_key_for_boxes_and_masks() -> None:
    """No key has two uses."""
    stage = Stage(4, corrupted=(4,))
    stage.advertise()
    keys = _advertised(stage, 4, enc_key=stage.advertises[4].mask_key)
    stage.refuses(1, keys, BadKeyError)
    stage.assert_hidden()


@pytest.mark.parametrize("name", ["mask_key", "enc_key", "nonce"])
def test_a_substituted_key(name: str) -> None:
    """The server puts its own key into silo 2's Advertise: silo 2's signature is over another."""
    stage = Stage(4)
    stage.advertise()
    key = agreement_key("in the middle")
    stage.view.see_key(key)
    honest = stage.keys().advertises
    forged = replace(honest[1], **{name: key.public})  # type: ignore[arg-type]  # a field by name
    keys = Keys(advertises=(honest[0], forged, *honest[2:]))
    for seat in (1, 3, 4):
        stage.refuses(seat, keys, BadSignatureError)
    stage.refuses(2, keys, RosterError, "own keys")
    stage.assert_hidden()


def test_keys_signed_by_the_server() -> None:
    """Nor does it help to sign them with another key of the roster."""
    stage = Stage(4)
    stage.advertise()
    honest = stage.keys().advertises
    for signer in (stage.federation.coordinator, stage.federation.identities[3]):
        stage_ = Stage(4)
        stage_.advertise()
        forged = messages.signed(replace(honest[1], mask_key=agreement_key("x").public), signer)
        keys = Keys(advertises=(honest[0], forged, *honest[2:]))
        stage_.refuses(1, keys, BadSignatureError)


def test_a_sybil() -> None:
    """A silo of the server's own making has no seat; a stolen seat has another identity."""
    stage = Stage(4)
    stage.advertise()
    honest = stage.keys().advertises
    sybil = make_federation(6, seed="sybils").identities
    for seat, made_up in ((5, 5), (4, 6)):
        unsigned = replace(honest[3], seat=seat, mask_key=agreement_key("sybil").public)
        forged = messages.signed(unsigned, sybil[made_up])
        error = RosterError if seat == 5 else BadSignatureError
        stage.refuses(seat - 3, Keys(advertises=(*honest[:3], forged)), error)
    stage.assert_hidden()


def test_a_silo_twice_in_u1_and_out_of_order() -> None:
    """U1 names every silo once, sorted."""
    stage = Stage(4)
    stage.advertise()
    honest = stage.keys().advertises
    stage.refuses(1, Keys(advertises=(*honest, honest[3])), RosterError, "once")
    stage.refuses(2, Keys(advertises=honest[::-1]), RosterError, "sorted")
    stage.refuses(3, Keys(advertises=()), RosterError, "own keys")
    stage.refuses(4, Keys(advertises=honest[:3]), RosterError, "own keys")
    stage.assert_hidden()


@pytest.mark.parametrize("point", [*LOW_ORDER[:2], (P + 2).to_bytes(32, "little")])
def test_the_round_goes_on_without_a_repeater_or_a_key_of_low_order(point: bytes) -> None:
    """An honest server refuses both kinds itself, and the others go on."""
    federation = make_federation(5)
    spec = small_spec(5)
    inputs = random_inputs(range(1, 6), spec, 0)
    seen: dict[int, Advertise] = {}

    def repeat(seat: int, message: messages.Message) -> messages.Message:
        if not isinstance(message, Advertise):
            return message
        seen[seat] = message
        if seat != 5:
            return message
        changed = replace(message, enc_key=seen[1].mask_key)
        return messages.signed(changed, federation.identities[5])

    def low(seat: int, message: messages.Message) -> messages.Message:
        if seat != 5 or not isinstance(message, Advertise):
            return message
        return messages.signed(replace(message, mask_key=point), federation.identities[5])

    for tamper in (repeat, low):
        outcome = RoundHarness(
            federation=federation,
            parameters=make_parameters(federation.roster, spec),
            state=b"state",
            train=lambda seat, _parameters, _state: inputs[seat],
            to_server=tamper,
        ).run()
        assert outcome.aggregate is not None
        assert outcome.aggregate.survivors == (1, 2, 3, 4)
        (error,) = outcome.server_errors
        assert isinstance(error, BadKeyError)
        assert error.silo == 5

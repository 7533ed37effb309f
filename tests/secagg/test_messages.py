"""Tests of secagg.messages: what is signed, what travels beside, what is refused."""

from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import canonical, messages
from secagg.codec import MAX_RECORD_BYTES, Record
from secagg.errors import (
    BadSignatureError,
    MalformedMessageError,
    OversizeError,
    ParameterError,
    RemoteProtocolError,
)
from secagg.keys import verify
from secagg.messages import (
    MASKED,
    STATE,
    STATE_CHUNK_BYTES,
    SUM,
    MaskedInput,
    Message,
    Result,
    ShareBox,
    SignedMessage,
    StateNotice,
    decode_message,
)
from secagg.sealing import BOX_BYTES
from secagg.testing import make_federation
from tests.secagg.examples import example

MESSAGES: tuple[type[Record], ...] = get_args(messages.Message)
SIGNED = tuple(k for k in MESSAGES if issubclass(k, SignedMessage))
IDENTITY = make_federation(1).identities[1]
# Fields that a signature does not cover, and what covers them instead.
UNCOVERED = {
    ("RoundOpen", "plan"): "ctx names its digest",
    ("RoundOpen", "abandons"): "each is signed by its silo",
    ("StateNotice", "nbytes"): "checked against the state under the model hash",
    ("StateNotice", "succession"): "its statements are each signed by their silo",
    ("MaskedInput", "chunks"): "follows from ctx and is checked",
    ("MaskedInput", "nbytes"): "follows from ctx and is checked",
    ("Survivors", "seat"): "all who agree sign the same; the key says who",
    ("Result", "chunks"): "follows from ctx and is checked",
    ("Result", "nbytes"): "follows from ctx and is checked",
    ("Result", "endorsements"): "each is a signature",
    ("Result", "transcript"): "follows from the other fields and is checked",
}


def _other(value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:] if value else b"x"
        case int():
            return value + 1
        case str():
            return value + "x"
        case tuple():
            return value[1:] if value else (1,)
        case None:
            return example(messages.KemKeys)
        case _:
            return _changed_record(value)


def _changed_record(value: Any) -> Any:
    name = fields(value)[-1].name
    return replace(value, **{name: _other(getattr(value, name))})


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.LABEL)
def test_every_message_comes_back_from_the_wire(kind: type[Record]) -> None:
    """By its label alone."""
    message = example(kind)
    assert decode_message(message.encode()) == message


@pytest.mark.parametrize("kind", SIGNED, ids=lambda kind: kind.LABEL)
def test_a_signature_covers_every_field(kind: type[SignedMessage]) -> None:
    """A change breaks it, but for the fields above, which something else binds."""
    message = messages.signed(example(kind), IDENTITY)
    verify(IDENTITY.public, message.signature, message.signed_bytes())
    with pytest.raises(BadSignatureError):
        verify(IDENTITY.public, _other(message.signature), message.signed_bytes())
    for item in fields(kind):
        if item.name == "signature":
            continue
        changed = replace(message, **{item.name: _other(getattr(message, item.name))})
        if (kind.__name__, item.name) in UNCOVERED:
            verify(IDENTITY.public, message.signature, changed.signed_bytes())
            continue
        with pytest.raises(BadSignatureError):
            verify(IDENTITY.public, message.signature, changed.signed_bytes())


def test_signed_bytes_of_different_messages_differ() -> None:
    """Each kind signs under a label of its own."""
    labels = [canonical.peek_label(example(kind).signed_bytes()) for kind in SIGNED]
    assert len(set(labels)) == len(SIGNED)


def test_what_is_no_message() -> None:
    """Too long, of another label, a record that is no message, a value out of range."""
    with pytest.raises(OversizeError):
        decode_message(bytes(MAX_RECORD_BYTES + 1))
    for data in (b"", b"\x00" * 8, canonical.encode("poem"), example(ShareBox).encode()):
        with pytest.raises(MalformedMessageError):
            decode_message(data)
    opening = example(messages.RoundOpen)
    run = opening.parameters.run.value
    longer = canonical.encode_list([run]).replace(canonical.u32(1), b"", 1)
    shorter = canonical.u32(15) + run[:15]
    data = opening.encode()
    assert longer in data
    with pytest.raises(MalformedMessageError):
        decode_message(data.replace(longer, shorter))


@given(kind=st.sampled_from(MESSAGES), place=st.integers(0, 10**6), value=st.integers(0, 255))
def test_a_changed_byte_gives_a_typed_error_or_another_message(
    kind: type[Record], place: int, value: int
) -> None:
    """Nothing else; what a peer sends never raises ParameterError."""
    data = bytearray(example(kind).encode())
    data[place % len(data)] = value
    try:
        message = decode_message(bytes(data))
    except RemoteProtocolError:
        return
    assert message.encode() == bytes(data)


def test_attachments_by_kind() -> None:
    """Three kinds have a vector beside them."""
    expected = {StateNotice: STATE, MaskedInput: MASKED, Result: SUM}
    for kind in MESSAGES:
        message = example(kind)
        assert isinstance(message, Message)
        names = tuple(item.name for item in messages.attachments(message))
        assert names == ((expected[kind],) if kind in expected else ())


@pytest.mark.parametrize(
    ("nbytes", "chunks"),
    [(0, 0), (1, 1), (STATE_CHUNK_BYTES, 1), (STATE_CHUNK_BYTES + 1, 2), (10**7, 10)],
)
def test_states_are_cut_into_chunks_of_a_mebibyte(nbytes: int, chunks: int) -> None:
    """The last one has the rest."""
    assert messages.state_chunks(nbytes) == chunks
    notice = StateNotice(setup=bytes(32), model_hash=bytes(32), nbytes=nbytes)
    (attachment,) = notice.attachments
    assert (attachment.chunks, attachment.nbytes) == (chunks, nbytes)


def test_a_state_that_no_length_field_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused where it is hashed."""
    monkeypatch.setattr("secagg.messages.rounds.MAX_STATE_BYTES", 10)
    assert len(messages.model_hash("training", bytes(10))) == 32
    with pytest.raises(ParameterError, match="at most 10 bytes, got 11"):
        messages.model_hash("training", bytes(11))


def test_model_and_plan_hashes_are_the_specifications() -> None:
    """Kind and state; the plan's document."""
    expected = canonical.digest("model", b"training", b"state")
    assert messages.model_hash("training", b"state") == expected
    assert messages.model_hash("statistics", b"state") != expected
    assert messages.plan_hash(b"plan") == canonical.digest("plan", b"plan")


def test_survivors_are_hashed_without_their_signatures() -> None:
    """In the order given; a silo's second signature under the same words is no other survivor."""
    entry = example(messages.SurvivorEntry)
    again = replace(entry, signature=bytes(64))
    other = replace(entry, seat=9)
    assert messages.survivors_hash((entry,)) == messages.survivors_hash((again,))
    hashes = {messages.survivors_hash(e) for e in ((), (entry,), (entry, other), (other, entry))}
    assert len(hashes) == 4


@pytest.mark.parametrize("hybrid_suite", [False, True])
def test_the_shape_of_a_box(hybrid_suite: bool) -> None:
    """Empty for oneself, whole for others, the pair's secret from the lower seat in suite 4."""
    kem = example(messages.KemBox)
    assert kem.pair is not None
    box = ShareBox(holder=3, box=bytes(BOX_BYTES), commitment_a=bytes(32), commitment_b=bytes(32))
    no_pair = replace(kem, pair=None)
    for dealer, part in ((2, kem), (4, no_pair)):
        full = replace(box, kem=part if hybrid_suite else None)
        assert full.is_shaped(dealer, hybrid_suite=hybrid_suite)
        assert not full.is_shaped(dealer, hybrid_suite=not hybrid_suite)
        assert not replace(full, box=bytes(BOX_BYTES - 1)).is_shaped(
            dealer, hybrid_suite=hybrid_suite
        )
        assert not full.is_shaped(3, hybrid_suite=hybrid_suite)
    assert not replace(box, kem=kem).is_shaped(4, hybrid_suite=True)
    assert not replace(box, kem=no_pair).is_shaped(2, hybrid_suite=True)
    own = replace(box, box=b"")
    assert own.is_shaped(3, hybrid_suite=hybrid_suite)
    assert not replace(own, kem=kem).is_shaped(3, hybrid_suite=hybrid_suite)


def test_advertised_keys() -> None:
    """Two, or four in the hybrid suite."""
    advertise = example(messages.Advertise)
    assert advertise.kem is not None
    assert len(advertise.public_keys) == 4
    assert replace(advertise, kem=None).public_keys == {advertise.enc_key, advertise.mask_key}

"""Tests of secagg.secretbytes."""

import copy

import pytest

from secagg.errors import LocalProtocolError
from secagg.secretbytes import Secret, reveal


def test_a_secret_gives_its_bytes_to_reveal_only() -> None:
    """No repr, no bytes(), no hash, no serialization."""
    secret = Secret(b"hunter2-hunter2")
    assert secret.reveal() == b"hunter2-hunter2"
    assert "hunter2" not in f"{secret!r} {secret}"
    assert repr(secret) == "Secret(<15 bytes>)"
    with pytest.raises(TypeError):
        bytes(secret)  # type: ignore[call-overload]  # what the test is about
    with pytest.raises(TypeError):
        hash(secret)
    with pytest.raises(TypeError, match="serialization"):
        copy.copy(secret)


def test_secrets_compare_by_content_and_with_secrets_only() -> None:
    """Equal bytes are equal secrets; bytes are not a secret."""
    assert Secret(b"a") == Secret(b"a")
    assert Secret(b"a") != Secret(b"b")
    assert Secret(b"a") != Secret(b"aa")
    assert Secret(b"a") != b"a"


def test_a_wiped_secret_is_overwritten_and_dead() -> None:
    """The buffer itself turns to zeros, and reading raises."""
    secret = Secret(b"abc")
    buffer = secret._content
    assert buffer is not None
    secret.wipe()
    secret.wipe()
    assert buffer == bytes(3)
    assert len(secret) == 0
    with pytest.raises(LocalProtocolError, match="wiped"):
        secret.reveal()


def test_an_empty_secret_is_not_a_wiped_one() -> None:
    """A peer may send nothing; that is for the reader of the share to refuse."""
    assert Secret(b"").reveal() == b""


def test_a_secret_does_not_follow_its_source() -> None:
    """Construction copies, so wiping does not reach into someone else's bytes."""
    source = b"abc"
    Secret(source).wipe()
    assert source == b"abc"


def test_reveal_takes_secrets_and_bytes() -> None:
    """Functions that accept both read them alike."""
    assert reveal(Secret(b"x")) == reveal(b"x") == b"x"

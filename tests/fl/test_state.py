"""State bytes: canonical, strict, and stable."""

import hashlib

import numpy as np
import pytest

from fl.errors import SpecMismatchError
from fl.state import (
    LAST_ROUND,
    SEATS,
    State,
    decode_state,
    encode_state,
    last_round_of,
    model_of,
    preprocess_of,
    ranges_of,
)
from secagg.canonical import encode, text, u64

LIMIT = 10_000


def example() -> State:
    """A state with every kind of tensor."""
    return {
        "model/w": np.array([[1.5, -2.0]], np.float32),
        "model/steps": np.array(7),
        "range/update": np.array(0.5),
        "preprocess/mean": np.array([1.0, 2.0]),
        SEATS: np.array([2, 5]),
        LAST_ROUND: np.array([0, 3]),
    }


def test_round_trip() -> None:
    """Names, shapes, dtypes and values come back, as writable arrays (ENC-17)."""
    state = example()
    back = decode_state(encode_state(state), LIMIT)
    assert sorted(back) == sorted(state)
    for name, tensor in state.items():
        assert back[name].dtype == tensor.dtype
        np.testing.assert_array_equal(back[name], tensor)
        assert back[name].flags.writeable


def test_bytes_do_not_depend_on_order_layout_or_byte_order() -> None:
    """Equal states are equal bytes, however they lie in memory."""
    state = example()
    other = dict(reversed(state.items()))
    other["model/w"] = np.asfortranarray(state["model/w"]).astype(">f4")
    assert encode_state(other) == encode_state(state)


def test_bytes_are_frozen() -> None:
    """The bytes of one state never change by accident: every model hash hangs on them."""
    assert hashlib.sha256(encode_state(example())).hexdigest() == (
        "23a2e2701fac838f316cd4de2736827d762e53e9c28e3d6ae69bc595cd709bfe"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        encode("state", b"only a name"),
        encode("state", text("w"), text("<f8"), u64(2), b"\0" * 8),
        encode("state", text("w"), text(">f8"), u64(1), b"\0" * 8),
        encode("state", text("w"), text("|O"), u64(1), b"\0" * 8),
        encode("state", text("w"), text("<f8"), b"\0", b"\0" * 8),
        encode("other", text("w"), text("<f8"), u64(1), b"\0" * 8),
        encode("state", *[text("w"), text("<f8"), u64(1), b"\0" * 8] * 2),
        encode_state({"w": np.zeros(2)}) + b"\0",
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    """Malformed or not canonical: one typed error."""
    with pytest.raises(SpecMismatchError):
        decode_state(data, LIMIT)


def test_unsorted_names_are_refused() -> None:
    """A second encoding of one state would have a second hash."""
    one = [text("b"), text("<f8"), b"", b"\0" * 8]
    two = [text("a"), text("<f8"), b"", b"\0" * 8]
    with pytest.raises(SpecMismatchError, match="canonical"):
        decode_state(encode("state", *one, *two), LIMIT)


def test_oversized_states_are_refused() -> None:
    """The limit is checked before the content."""
    with pytest.raises(SpecMismatchError):
        decode_state(encode_state({"w": np.zeros(LIMIT)}), LIMIT)


def test_unknown_dtype_is_named() -> None:
    """complex128 has no place in a state."""
    with pytest.raises(SpecMismatchError, match="'w' is complex128"):
        encode_state({"w": np.zeros(1, np.complex128)})


def test_namespaces() -> None:
    """Helpers find their part and nothing else."""
    state = example()
    assert sorted(model_of(state)) == ["steps", "w"]
    assert preprocess_of(state)["mean"].tolist() == [1.0, 2.0]
    assert ranges_of(state) == {"update": 0.5}
    assert last_round_of(state, 5) == 3
    assert last_round_of(state, 3) is None

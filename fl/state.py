"""The run's state: every tensor that the server step or the next round reads, as canonical bytes.

Its hash binds a round (protocol.md 3.2), so equal states must be equal bytes on every machine:
sorted names, little-endian data, nothing optional. Names are namespaced:

    model/<parameter>       the model, in its own dtypes
    personal/<parameter>    what stays at the silos, as it was at the start; never moved
    server_variate          SCAFFOLD's c, flat float64
    preprocess/mean, /scale the released feature statistics
    range/<segment>         the clip range of a bulk segment, float64, shape ()
    server/<name>           what the algorithm's server step keeps
    run/seats               the seats whose variates the run has met, int64, sorted
    run/last_round          for each of them the last training round it survived, 0 for none
    run/enrolled            N, int64, shape (): the silos over which c is the mean
    run/trained             training rounds done, int64, shape ()
    run/renewed             with control variates: run/trained at the last refresh, −1 for none
"""

from collections.abc import Mapping
from math import prod
from typing import Final

import numpy as np

from fl.errors import SpecMismatchError
from fl.ports import FloatVector, NamedTensors, Tensor
from secagg.canonical import decode, encode, read_u64, text, u64
from secagg.canonical import read_text as read_name
from secagg.errors import MalformedMessageError, OversizeError

MODEL: Final = "model/"
PERSONAL: Final = "personal/"
PREPROCESS: Final = "preprocess/"
RANGE: Final = "range/"
SEATS: Final = "run/seats"
LAST_ROUND: Final = "run/last_round"
ENROLLED: Final = "run/enrolled"
TRAINED: Final = "run/trained"
RENEWED: Final = "run/renewed"

_LABEL: Final = "state"
_FIELDS: Final = 4  # name, dtype, shape, data
_CODES: Final[Mapping[str, str]] = {
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "int32": "<i4",
    "int64": "<i8",
    "uint8": "|u1",
    "bool": "|b1",
}
_NAMES: Final = {code: name for name, code in _CODES.items()}

State = dict[str, Tensor]


def encode_state(tensors: NamedTensors) -> bytes:
    """Return the canonical bytes of `tensors`.

    Raises:
        SpecMismatchError: a dtype that the format does not know; named.
    """
    fields: list[bytes] = []
    for name in sorted(tensors):
        tensor = tensors[name]
        code = _CODES.get(tensor.dtype.name)
        if code is None:
            raise SpecMismatchError(
                f"tensor {name!r} is {tensor.dtype.name}; a state holds {', '.join(_CODES)}"
            )
        shape = b"".join(u64(n) for n in tensor.shape)
        data = np.ascontiguousarray(tensor, dtype=code).tobytes()
        fields += [text(name), text(code), shape, data]
    return encode(_LABEL, *fields)


def decode_state(data: bytes, max_bytes: int) -> State:
    """Return the tensors of canonical bytes as fresh, writable arrays.

    Raises:
        SpecMismatchError: the bytes are not what `encode_state` makes.
    """
    try:
        state = _tensors(decode(data, _LABEL, max_bytes=max_bytes))
    except (MalformedMessageError, OversizeError, ValueError, KeyError) as error:
        raise SpecMismatchError(
            "the state is malformed or too large; expected the canonical bytes of encode_state"
        ) from error
    # Sorted, distinct names and minimal shapes: one state has one encoding.
    if encode_state(state) != data:
        raise SpecMismatchError(
            "the state is not in canonical form: names must be sorted and distinct"
        )
    return state


def model_of(state: NamedTensors) -> dict[str, Tensor]:
    """Return the model's tensors under their own names."""
    return _namespace(state, MODEL)


def personal_of(state: NamedTensors) -> dict[str, Tensor]:
    """Return the initial values of the parameters that stay at the silos."""
    return _namespace(state, PERSONAL)


def trained_of(state: NamedTensors) -> int:
    """Return how many training rounds are done."""
    return int(state[TRAINED][()])


def is_renewed(state: NamedTensors) -> bool:
    """Return whether control variates were renewed at this very model."""
    return RENEWED in state and int(state[RENEWED][()]) == trained_of(state)


def enrolled_of(state: NamedTensors) -> int:
    """Return N, over which c is the mean of the c_k."""
    return int(state[ENROLLED][()])


def preprocess_of(state: NamedTensors) -> dict[str, FloatVector]:
    """Return the released feature statistics: "mean" and "scale", or nothing yet."""
    return {
        name: tensor.astype(np.float64) for name, tensor in _namespace(state, PREPROCESS).items()
    }


def ranges_of(state: NamedTensors) -> dict[str, float]:
    """Return the clip range of each bulk segment."""
    return {name: float(tensor[()]) for name, tensor in _namespace(state, RANGE).items()}


def seats_of(state: NamedTensors) -> tuple[int, ...]:
    """Return the seats that the run has met, sorted."""
    return tuple(int(seat) for seat in state[SEATS])


def last_round_of(state: NamedTensors, seat: int) -> int | None:
    """Return the last training round that `seat` survived, 0 for none; None if it is not met."""
    seats = seats_of(state)
    return int(state[LAST_ROUND][seats.index(seat)]) if seat in seats else None


def _namespace(state: NamedTensors, prefix: str) -> dict[str, Tensor]:
    """Return the tensors below `prefix`, the prefix removed."""
    return {
        name.removeprefix(prefix): state[name] for name in sorted(state) if name.startswith(prefix)
    }


def _tensors(fields: tuple[bytes, ...]) -> State:
    """Return the tensors of a state's fields; ValueError or KeyError if they are none."""
    state: State = {}
    for start in range(0, len(fields), _FIELDS):
        name, code, shape, content = fields[start : start + _FIELDS]
        state[read_name(name)] = _tensor(read_name(code), shape, content)
    return state


def _tensor(code: str, shape: bytes, content: bytes) -> Tensor:
    """Return one tensor; ValueError or KeyError if its parts contradict each other."""
    width = 8
    dims = tuple(read_u64(shape[start : start + width]) for start in range(0, len(shape), width))
    dtype = np.dtype(_NAMES[code])
    if prod(dims) * dtype.itemsize != len(content):
        raise ValueError("shape and data differ")
    # A copy: arrays over received bytes would be read-only (ENC-17).
    return np.frombuffer(content, dtype=np.dtype(code)).astype(dtype).reshape(dims)

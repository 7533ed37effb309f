"""Named tensors as one flat vector, and back: flatten, add, unflatten equals add.

Everything rests on this law, because silos are only ever summed as flat vectors. The order is the
sorted names', so that two silos whose dictionaries were filled differently still agree. Only
floating tensors have a place in the vector. Integer tensors (BatchNorm's counter) are no averages
of anything: they stay as they are in the global model (ENC-01).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fl.errors import NonFiniteUpdateError, SpecMismatchError
from fl.ports import FloatVector, NamedTensors, Tensor
from secagg.canonical import digest, encode_list, text, u64

_DTYPES: Final = ("float16", "float32", "float64")
_SLICE: Final = 2**16  # coordinates that are worked on at a time


Signature = Mapping[str, tuple[tuple[int, ...], str]]


def signature(tensors: NamedTensors) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return name to (shape, dtype name)."""
    return {name: (tensor.shape, tensor.dtype.name) for name, tensor in tensors.items()}


def check_signature(expected: Signature, got: Signature) -> None:
    """Refuse tensors that are not the expected ones, naming every one that differs (AGG-10).

    Raises:
        SpecMismatchError: lists missing, unexpected and differing tensors.
    """
    faults = [f"missing {name!r}" for name in sorted(expected.keys() - got.keys())]
    faults += [f"unexpected {name!r}" for name in sorted(got.keys() - expected.keys())]
    faults += [
        f"{name!r} is {got[name]}, expected {expected[name]}"
        for name in sorted(expected.keys() & got.keys())
        if expected[name] != got[name]
    ]
    if faults:
        raise SpecMismatchError(f"the tensors do not fit: {'; '.join(faults)}")


def summed(tensors: NamedTensors) -> dict[str, Tensor]:
    """Return the floating tensors, the ones that are summed over silos."""
    return {name: t for name, t in tensors.items() if np.issubdtype(t.dtype, np.floating)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """Names, shapes and dtypes of floating tensors, sorted by name.

    Attributes:
        tensors: (name, shape, dtype name) of each.
    """

    tensors: tuple[tuple[str, tuple[int, ...], str], ...]

    def __post_init__(self) -> None:
        """Refuse what has no place in a sum of reals."""
        names = [name for name, _, _ in self.tensors]
        if names != sorted(set(names)):
            raise SpecMismatchError("layout: names must be distinct and sorted")
        for name, _, dtype in self.tensors:
            if dtype not in _DTYPES:
                raise SpecMismatchError(
                    f"tensor {name!r} is {dtype}; only {', '.join(_DTYPES)} can be summed"
                )

    @classmethod
    def of(cls, tensors: NamedTensors) -> "TensorLayout":
        """Return the layout of `tensors`, all floating.

        Raises:
            SpecMismatchError: a tensor is not float16, float32 or float64.
        """
        return cls(
            tensors=tuple(
                (name, tensors[name].shape, tensors[name].dtype.name) for name in sorted(tensors)
            )
        )

    @property
    def size(self) -> int:
        """Return d, the flat vector's length."""
        return sum(_count(shape) for _, shape, _ in self.tensors)

    @property
    def digest(self) -> bytes:
        """Return 32 bytes that two layouts share only if they are the same."""
        return digest(
            "layout",
            *(
                encode_list([text(name), text(dtype), *(u64(n) for n in shape)])
                for name, shape, dtype in self.tensors
            ),
        )

    def check(self, other: "TensorLayout") -> None:
        """Refuse another layout, naming every tensor that differs (AGG-10).

        Raises:
            SpecMismatchError: lists missing, unexpected and differing tensors of `other`.
        """
        check_signature(
            {name: (shape, dtype) for name, shape, dtype in self.tensors},
            {name: (shape, dtype) for name, shape, dtype in other.tensors},
        )

    def flatten(self, tensors: NamedTensors) -> FloatVector:
        """Return the tensors one after the other, shape (d,), float64.

        Raises:
            SpecMismatchError: `tensors` has another layout.
            NonFiniteUpdateError: a tensor holds NaN or infinity; named, with how many (ENC-08).
        """
        self.check(TensorLayout.of(tensors))
        flat = np.empty(self.size, dtype=np.float64)
        for name, piece in self._pieces(flat):
            piece[...] = tensors[name].reshape(-1)
        self.check_finite(flat)
        return flat

    def unflatten(self, flat: FloatVector) -> dict[str, Tensor]:
        """Return the tensors of a flat vector with their shapes and dtypes, as fresh arrays.

        Args:
            flat: shape (d,), float64; rounded once, here, to each tensor's dtype (ENC-11).

        Raises:
            SpecMismatchError: another length.
        """
        self._check_length(flat)
        pieces = dict(self._pieces(flat))
        with np.errstate(over="ignore"):  # too large for the dtype is infinite, and found as such
            return {
                name: pieces[name].reshape(shape).astype(dtype)
                for name, shape, dtype in self.tensors
            }

    def add(self, tensors: NamedTensors, step: FloatVector, rate: float) -> dict[str, Tensor]:
        """Return `unflatten(flatten(tensors) + rate * step)`, without a flat copy of either.

        Raises:
            SpecMismatchError: `tensors` has another layout, or `step` another length.
            NonFiniteUpdateError: what would be returned holds NaN or infinity.
        """
        self.check(TensorLayout.of(tensors))
        self._check_length(step)
        moved = {name: np.empty(shape, dtype) for name, shape, dtype in self.tensors}
        with np.errstate(over="ignore"):  # as in `unflatten`
            for name, piece in self._pieces(step):
                before, after = tensors[name].reshape(-1), moved[name].reshape(-1)
                for start in range(0, len(piece), _SLICE):
                    part = slice(start, start + _SLICE)
                    after[part] = before[part].astype(np.float64) + rate * piece[part]
        _refuse_non_finite(moved.items())
        return moved

    def subtract_from(self, flat: FloatVector, tensors: NamedTensors) -> None:
        """Make `flat - flatten(tensors)` of `flat`, in place.

        Raises:
            SpecMismatchError: `tensors` has another layout, or `flat` another length.
        """
        self.check(TensorLayout.of(tensors))
        self._check_length(flat)
        for name, piece in self._pieces(flat):
            np.subtract(piece, tensors[name].reshape(-1), out=piece)

    def check_finite(self, flat: FloatVector) -> None:
        """Refuse NaN and infinity, naming the tensors and counting, never showing values.

        Raises:
            NonFiniteUpdateError: some value is not finite.
        """
        _refuse_non_finite(self._pieces(flat))

    def _check_length(self, flat: FloatVector) -> None:
        if flat.shape != (self.size,):
            raise SpecMismatchError(
                f"expected a flat vector of length {self.size}, got shape {flat.shape}"
            )

    def _pieces(self, flat: FloatVector) -> list[tuple[str, FloatVector]]:
        """Return each tensor's view of `flat`."""
        pieces = []
        start = 0
        for name, shape, _ in self.tensors:
            stop = start + _count(shape)
            pieces.append((name, flat[start:stop]))
            start = stop
        return pieces


def _refuse_non_finite(tensors: Iterable[tuple[str, Tensor]]) -> None:
    counts = {name: int(np.count_nonzero(~np.isfinite(tensor))) for name, tensor in tensors}
    if any(counts.values()):
        listed = ", ".join(f"{count} in {name!r}" for name, count in counts.items() if count)
        raise NonFiniteUpdateError(
            f"values that are NaN or infinite: {listed}; the update cannot be used"
        )


def _count(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a shape; 1 for ()."""
    return int(np.prod(shape, dtype=np.int64))

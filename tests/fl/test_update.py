"""Layouts: order, dtypes, shapes, and what is refused by name."""

import numpy as np
import pytest

from fl.errors import NonFiniteUpdateError, SpecMismatchError
from fl.ports import Tensor
from fl.update import TensorLayout, summed


def test_order_is_that_of_the_names() -> None:
    """Two dictionaries filled in another order give the same vector and digest."""
    one = {"b": np.array([1.0, 2.0]), "a": np.array([[3.0]])}
    two = {"a": np.array([[3.0]]), "b": np.array([1.0, 2.0])}
    layout = TensorLayout.of(one)
    assert layout == TensorLayout.of(two)
    assert layout.digest == TensorLayout.of(two).digest
    assert layout.flatten(two).tolist() == [3.0, 1.0, 2.0]


def test_digest_tells_shapes_and_dtypes_apart() -> None:
    """(2, 3) and (3, 2), float32 and float64 are different layouts."""
    arrays: list[Tensor] = [np.zeros((2, 3)), np.zeros((3, 2)), np.zeros(6)]
    arrays.append(np.zeros((2, 3), np.float32))
    assert len({TensorLayout.of({"w": array}).digest for array in arrays}) == len(arrays)


def test_half_precision_comes_back_rounded_once() -> None:
    """Ten silos at 60000 sum beyond float16's range, their mean does not (ENC-11)."""
    layout = TensorLayout.of({"w": np.zeros(3, np.float16)})
    total = sum(layout.flatten({"w": np.full(3, 60000, np.float16)}) for _ in range(10))
    mean = layout.unflatten(np.asarray(total) / 10)["w"]
    assert mean.dtype == np.float16
    assert mean.tolist() == [60000.0] * 3


def test_scalars_and_empty_tensors_keep_their_shape() -> None:
    """() and (0, 4) survive the way there and back."""
    tensors = {"s": np.array(2.5), "e": np.zeros((0, 4), np.float32)}
    layout = TensorLayout.of(tensors)
    back = layout.unflatten(layout.flatten(tensors))
    assert {name: (t.shape, t.dtype) for name, t in back.items()} == {
        name: (t.shape, t.dtype) for name, t in tensors.items()
    }


def test_integer_tensors_are_not_summed() -> None:
    """BatchNorm's counter is left out, and refused where only sums belong (ENC-01, SCA-07)."""
    tensors = {"w": np.zeros(2, np.float32), "num_batches_tracked": np.array(3)}
    assert list(summed(tensors)) == ["w"]
    with pytest.raises(SpecMismatchError, match="num_batches_tracked"):
        TensorLayout.of(tensors)


def test_another_layout_is_refused_by_names() -> None:
    """Missing, unexpected and reshaped tensors are all named (AGG-10)."""
    layout = TensorLayout.of({"fc.bias": np.zeros(2), "fc.weight": np.zeros((2, 2))})
    with pytest.raises(SpecMismatchError) as caught:
        layout.flatten({"extra": np.zeros(1), "fc.weight": np.zeros(4)})
    for word in ("missing 'fc.bias'", "unexpected 'extra'", "'fc.weight' is ((4,)"):
        assert word in str(caught.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_counted_by_tensor(bad: float) -> None:
    """The tensor and the count are named, the values are not (ENC-08)."""
    layout = TensorLayout.of({"a": np.zeros(2), "b": np.zeros(3)})
    with pytest.raises(NonFiniteUpdateError, match="2 in 'b'") as caught:
        layout.flatten({"a": np.ones(2), "b": np.array([bad, 7.25, bad])})
    assert "7.25" not in str(caught.value)
    assert "'a'" not in str(caught.value)


def test_wrong_length_is_refused() -> None:
    """A flat vector of another length is no model."""
    with pytest.raises(SpecMismatchError, match="length 2"):
        TensorLayout.of({"a": np.zeros(2)}).unflatten(np.zeros(3))


def test_unsorted_layouts_do_not_exist() -> None:
    """A layout's names are sorted and distinct."""
    with pytest.raises(SpecMismatchError, match="sorted"):
        TensorLayout(tensors=(("b", (), "float64"), ("a", (), "float64")))


def test_a_step_is_added_without_flat_copies_and_to_the_same_bits() -> None:
    """`add` is `unflatten(flatten + rate * step)`, and `subtract_from` is `flat - flatten`."""
    rng = np.random.default_rng(7)
    tensors: dict[str, Tensor] = {
        "a": rng.normal(size=(300, 251)).astype(np.float32),  # more than one slice
        "b": rng.normal(size=()).astype(np.float64),
        "c": rng.normal(size=17).astype(np.float16),
    }
    layout = TensorLayout.of(tensors)
    step = rng.normal(size=layout.size)
    added = layout.add(tensors, step, 0.3)
    expected = layout.unflatten(layout.flatten(tensors) + 0.3 * step)
    assert {name: (t.dtype, t.shape, t.tobytes()) for name, t in added.items()} == {
        name: (t.dtype, t.shape, t.tobytes()) for name, t in expected.items()
    }
    flat = layout.flatten(added)
    layout.subtract_from(flat, tensors)
    change = np.subtract(layout.flatten(added), layout.flatten(tensors))
    assert flat.tobytes() == change.tobytes()
    with pytest.raises(SpecMismatchError, match="length"):
        layout.add(tensors, step[1:], 0.3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
def test_what_a_step_makes_infinite_is_refused_by_name(bad: float) -> None:
    """Also what only the tensor's own dtype cannot hold (ENC-08)."""
    tensors = {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)}
    with pytest.raises(NonFiniteUpdateError, match="1 in 'b'"):
        TensorLayout.of(tensors).add(tensors, np.array([1, 1, bad, 1, 1]), 1.0)

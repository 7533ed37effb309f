"""Flatten, add, unflatten equals add."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fl.ports import Tensor
from fl.update import TensorLayout

_NAMES = st.text("abcxyz.", min_size=1, max_size=6)


@st.composite
def model_pairs(draw: st.DrawFn) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Two models of one layout."""
    pair: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    for name in draw(st.lists(_NAMES, min_size=1, max_size=4, unique=True)):
        dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
        for model in pair:
            model[name] = draw(
                hnp.arrays(dtype, shape, elements=st.integers(-1000, 1000).map(float))
            )
    return pair


@given(model_pairs())
@settings(max_examples=50, deadline=None)
def test_flatten_add_unflatten_is_add(
    pair: tuple[dict[str, Tensor], dict[str, Tensor]],
) -> None:
    """unflatten(flatten(a) + flatten(b)) == a + b, dtypes and shapes as they were."""
    one, two = pair
    layout = TensorLayout.of(one)
    added = layout.unflatten(layout.flatten(one) + layout.flatten(two))
    assert list(added) == sorted(one)
    for name, tensor in added.items():
        # Sums of whole numbers up to 2000 are exact in float16, too.
        assert tensor.dtype == one[name].dtype
        np.testing.assert_array_equal(
            tensor.astype(np.float64), one[name].astype(np.float64) + two[name].astype(np.float64)
        )

"""Tests of secagg.quantizer."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from secagg import quantizer
from secagg.errors import NonFiniteError, ParameterError
from secagg.ids import RunId
from secagg.prg import rounding_coins
from secagg.quantizer import FloatVector, Quantizer

RUN = RunId(bytes(16))
ZEROS, ONES = b"\x00" * 4, b"\xff" * 4


def _encode(
    bits: int, clip: float, values: FloatVector, seed: int = 0
) -> tuple[NDArray[np.int64], int]:
    coins = rounding_coins(bytes([seed] * 32), RUN, 1, "w")
    encoded = Quantizer(value_bits=bits, clip_range=clip).encode(values, rand=coins)
    return encoded.values, encoded.saturated


@pytest.mark.parametrize("bits", [3, 33])
def test_value_bits_are_limited(bits: int) -> None:
    """Below 4 nothing is left to learn, above 32 a float64 rounds too coarsely."""
    with pytest.raises(ParameterError, match="value_bits of 4 to 32"):
        Quantizer(value_bits=bits, clip_range=1.0)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf, 5e-324, 1e-307])
def test_the_range_is_a_usable_number(clip: float) -> None:
    """Also not so small that its step has no inverse."""
    with pytest.raises(ParameterError, match="clip_range"):
        Quantizer(value_bits=16, clip_range=clip)


@given(bits=st.integers(4, 32), clip=st.floats(1e-12, 1e12), seed=st.integers(0, 255))
def test_rounding_stays_within_a_step_and_the_levels(bits: int, clip: float, seed: int) -> None:
    """|decoded - clipped| < step, |q| ≤ Q, whatever comes in, the ends of the range included."""
    inner = np.random.default_rng(seed).uniform(-clip, clip, 100)
    values = np.concatenate([inner, [clip, -clip, 0.0, 10 * clip, -1e3 * clip]])
    codec = Quantizer(value_bits=bits, clip_range=clip)
    encoded, saturated = _encode(bits, clip, values, seed)
    assert saturated == 2
    assert np.abs(encoded).max() == codec.levels
    assert list(encoded[-5:]) == [codec.levels, -codec.levels, 0, codec.levels, -codec.levels]
    error = np.abs(codec.decode(encoded) - np.clip(values, -clip, clip))
    # Beyond one step only what float64 itself loses: a few units in the last place of C.
    assert error.max() <= codec.error_bound(1) + 4 * np.spacing(clip)


@given(silos=st.integers(1, 12), bits=st.integers(4, 24), seed=st.integers(0, 100))
def test_a_sum_decodes_within_the_bound(silos: int, bits: int, seed: int) -> None:
    """The law that everything rests on: encode, add, decode is add, within silos · step."""
    inputs = np.random.default_rng(seed).uniform(-1, 1, (silos, 50))
    codec = Quantizer(value_bits=bits, clip_range=1.0)
    total = np.zeros(50, np.int64)
    for silo, values in enumerate(inputs):
        total += _encode(bits, 1.0, values, silo)[0]
    bound = codec.error_bound(silos)
    assert np.abs(codec.decode(total) - inputs.sum(axis=0)).max() <= bound * (1 + 1e-9)


@pytest.mark.parametrize("fraction", [0.0, 2.0**-10, 0.25, 0.5, 0.9])
def test_rounding_is_unbiased(fraction: float) -> None:
    """The share rounded up is the fraction, within 5 standard errors of fixed coins."""
    count = 200_000
    codec = Quantizer(value_bits=8, clip_range=127.0)
    for base in (-5.0, 0.0, 3.0):
        values = np.full(count, base + fraction)
        encoded, _ = _encode(8, 127.0, values)
        assert set(np.unique(encoded)) <= {int(base), int(base) + 1}
        error = abs(float(codec.decode(encoded).mean()) - (base + fraction))
        assert error <= 5 * math.sqrt(fraction * (1 - fraction) / count)


def test_the_coin_decides_and_nothing_else() -> None:
    """The lowest coin rounds down, the highest up, and integers stay whatever the coin."""
    codec = Quantizer(value_bits=8, clip_range=127.0)
    values = np.array([0.5, -0.5, 1e-6, -1e-6, 7.0, -7.0], np.float32)
    down = codec.encode(values, rand=ZEROS * 6).values
    up = codec.encode(values, rand=ONES * 6).values
    assert down.tolist() == [0, -1, 0, -1, 7, -7]
    assert up.tolist() == [1, 0, 1, 0, 7, -7]
    # A fraction below half a coin is none, on either side of an integer.
    assert codec.encode(np.array([-1e-11]), rand=ZEROS).values == 0
    assert codec.encode(np.array([1e-11]), rand=ONES).values == 0


def test_same_coins_same_integers() -> None:
    """A retry encodes what the first attempt did; other coins do not."""
    values = np.random.default_rng(0).uniform(-1, 1, 1000)
    first, again, other = (_encode(16, 1.0, values, seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_vectors_are_rounded_slice_by_slice_alike(dtype: type[np.float32]) -> None:
    """Neither slices nor the source of the coins show in the result, nor a stride in the input."""
    count = 100_003
    values = np.random.default_rng(0).uniform(-2, 2, 2 * count).astype(dtype)[::2]
    coins = rounding_coins(bytes(32), RUN, 1, "w")
    data = np.concatenate([coins.words(0, 65536), coins.words(1, count - 65536)]).tobytes()
    codec = Quantizer(value_bits=16, clip_range=1.0)
    from_stream = codec.encode(values, rand=coins)
    from_bytes = codec.encode(values, rand=data)
    np.testing.assert_array_equal(from_stream.values, from_bytes.values)
    assert from_stream.saturated == from_bytes.saturated == np.count_nonzero(np.abs(values) > 1)


def test_an_empty_vector_is_encoded() -> None:
    """It has no coordinates and clips none."""
    encoded = Quantizer(value_bits=8, clip_range=1.0).encode(np.empty(0), rand=b"")
    assert (len(encoded.values), encoded.saturated) == (0, 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_non_finite_values_are_refused_and_counted(bad: float, dtype: type[np.float32]) -> None:
    """All of them in the vector are counted, not those of the first slice alone."""
    values = np.zeros(100_000, dtype)
    values[[5, 40_000, 99_999]] = bad
    values[7] = 1e6
    with pytest.raises(NonFiniteError, match="got 3 of 100000"):
        _encode(16, 1.0, values)


def test_huge_values_are_clipped_without_a_warning() -> None:
    """The largest floats times the scale would overflow."""
    values = np.array([1.7e308, -1.7e308])
    encoded, saturated = _encode(16, 1e-3, values)
    assert (encoded.tolist(), saturated) == ([32767, -32767], 2)


def test_inputs_have_one_dimension_a_float_type_and_coins() -> None:
    """Anything else is refused before any work."""
    codec = Quantizer(value_bits=8, clip_range=1.0)
    for wrong in (np.zeros((2, 2)), np.zeros(4, np.float16), np.zeros(4, np.int64)):
        with pytest.raises(ParameterError, match="1-D vector of float32 or float64"):
            codec.encode(wrong, rand=bytes(16))  # type: ignore[arg-type]  # what the test is about
    with pytest.raises(ParameterError, match="16 bytes of coins"):
        codec.encode(np.zeros(4), rand=bytes(15))


@given(bits=st.integers(4, 32), n_max=st.integers(1, 2000))
def test_the_ring_is_the_smallest_that_never_wraps(bits: int, n_max: int) -> None:
    """n·Q < 2**(b-1) holds at b, and no fewer bits would do for n the next power of two."""
    levels = Quantizer(value_bits=bits, clip_range=1.0).levels
    needed = quantizer.required_ring_bits(bits, n_max)
    assert n_max * levels < 1 << (needed - 1)
    assert needed == bits + math.ceil(math.log2(n_max))
    quantizer.check_no_wrap(bits, needed, n_max)
    with pytest.raises(ParameterError, match=f"set ring_bits={needed}"):
        quantizer.check_no_wrap(bits, needed - 1, n_max)


def test_a_ring_beyond_64_bits_does_not_exist() -> None:
    """Even where the sum would need it."""
    with pytest.raises(ParameterError, match="of 20 to 64"):
        quantizer.check_no_wrap(16, 65, 10)
    with pytest.raises(ParameterError, match="n_max of at least 1"):
        quantizer.required_ring_bits(16, 0)

"""Rotation and random blocks are linear, and their error is known before a run."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl.compression import (
    CompressionPlan,
    Compressor,
    hadamard,
    stated_error,
    value_bits_for,
)
from fl.errors import PlanError, RunStateError
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.rounds import RunStatus
from fl.simulation import SimulationResult, simulate
from fl.state import decode_state
from fl.testing import LeastSquaresTask
from secagg.quantizer import Quantizer

COINS = bytes(range(32))
PLANS = {
    "none": CompressionPlan(),
    "rotate": CompressionPlan(rotate=True),
    "blocks": CompressionPlan(block=4, kept=0.3),
    "both": CompressionPlan(rotate=True, block=4, kept=0.3),
}


@pytest.mark.parametrize("name", list(PLANS))
@given(length=st.integers(1, 200), seed=st.integers(0, 2**31))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_maps_are_linear_and_have_the_stated_size(name: str, length: int, seed: int) -> None:
    """The sum of what is sent is what is sent of the sum, for everybody with the same coins."""
    plan = PLANS[name]
    draws = np.random.default_rng(seed)
    one, two = draws.normal(size=length), draws.normal(size=length)
    mine, other = (Compressor(plan, length, COINS, "update") for _ in range(2))
    sent = mine.forward(one) + other.forward(two)
    assert sent.shape == (plan.size(length),)
    np.testing.assert_allclose(sent, mine.forward(one + two), atol=1e-12)
    back = mine.backward(sent)
    kept = np.flatnonzero(back)
    np.testing.assert_allclose(back[kept], (one + two)[kept], atol=1e-12)
    assert len(kept) == (length if not plan.block else min(length, plan.blocks_kept(length) * 4))


def test_the_transform_is_orthonormal_and_its_own_inverse() -> None:
    """Norms stay, so a clip bound means the same after it."""
    values = np.random.default_rng(1).normal(size=64)
    assert np.linalg.norm(hadamard(values)) == pytest.approx(np.linalg.norm(values))
    np.testing.assert_allclose(hadamard(hadamard(values)), values, atol=1e-12)


def test_rotation_flattens() -> None:
    """One large coordinate becomes many of one size: a small range fits all of them."""
    spike = np.zeros(1024)
    spike[7] = 32.0
    flat = Compressor(PLANS["rotate"], 1024, COINS, "update").forward(spike)
    np.testing.assert_allclose(np.abs(flat), 1.0)


def test_rotation_makes_few_bits_precise() -> None:
    """At 8 bits and one range for all, a skewed vector keeps far more after rotation."""
    draws = np.random.default_rng(2)
    values = draws.normal(size=4096)
    values[:4] *= 200.0
    errors = {}
    for name in ("none", "rotate"):
        maps = Compressor(PLANS[name], 4096, COINS, "update")
        sent = maps.forward(values)
        quantizer = Quantizer(value_bits=8, clip_range=float(np.abs(sent).max()))
        back = quantizer.decode(quantizer.encode(sent, rand=draws.bytes(4 * 4096)).values)
        errors[name] = float(np.linalg.norm(maps.backward(back) - values))
    assert errors["rotate"] < errors["none"] / 5


def test_other_coins_and_segments_choose_other_blocks() -> None:
    """Every round sends others, and two segments of one round do, too."""
    ones, plan = np.ones(400), CompressionPlan(block=4, kept=0.1)
    sent = {
        tuple(np.flatnonzero((m := Compressor(plan, 400, coins, label)).backward(m.forward(ones))))
        for coins in (COINS, bytes(32))
        for label in ("update", "variate_delta")
    }
    assert len(sent) == 4


def test_every_coordinate_has_the_same_chance() -> None:
    """Also in a short last block: each is sent in its share of the rounds."""
    plan, counts = CompressionPlan(block=4, kept=0.5), np.zeros(10)
    for number in range(2000):
        maps = Compressor(plan, 10, number.to_bytes(8, "big") + bytes(24), "update")
        counts += maps.backward(maps.forward(np.ones(10)))
    share = min(plan.blocks_kept(10) * 4, 10) / 10
    assert np.abs(counts / 2000 - share).max() < 5 * (share * (1 - share) / 2000) ** 0.5


def test_without_coins_nothing_is_compressed() -> None:
    """A seed that one party chose is not taken instead."""
    with pytest.raises(RunStateError, match="public coins"):
        Compressor(PLANS["rotate"], 10, b"", "update")


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("silos", [2, 10])
def test_the_stated_error_holds(bits: int, silos: int) -> None:
    """Typical and worst error of a mean of clipped values, and the bytes on the wire."""
    draws = np.random.default_rng(bits)
    stated = stated_error(CompressionPlan(), length=5000, silos=silos, n_max=silos, value_bits=bits)
    values = draws.uniform(-1, 1, (silos, 5000))
    quantizer = Quantizer(value_bits=bits, clip_range=1.0)
    decoded = [
        quantizer.decode(quantizer.encode(v, rand=draws.bytes(20000)).values) for v in values
    ]
    error = np.mean(decoded, axis=0) - values.mean(axis=0)
    assert np.abs(error).max() <= stated.worst * (1 + 1e-9)
    assert 0.5 * stated.typical < error.std() <= stated.typical
    assert stated.ratio == pytest.approx(32 / stated.ring_bits)


def test_value_bits_from_an_error() -> None:
    """More silos average more rounding away; the answer is the fewest bits that do."""
    for silos in (3, 100):
        for error in (0.05, 1e-3, 1e-5):
            bits = value_bits_for(error, silos)
            state = [
                stated_error(CompressionPlan(), length=1, silos=silos, n_max=200, value_bits=b)
                for b in (bits, max(bits - 1, 4))
            ]
            assert state[0].typical <= error
            assert bits == 4 or state[1].typical > error
    assert value_bits_for(1e-3, 100) < value_bits_for(1e-3, 3)
    with pytest.raises(PlanError, match="24 value bits"):
        value_bits_for(1e-12, 3)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"rotate": 1}, "compression.rotate"),
        ({"block": -1}, "compression.block"),
        ({"block": 8}, "compression.kept"),
        ({"kept": 0.5}, "compression.kept"),
        ({"block": 8, "kept": 0}, "compression.kept"),
    ],
)
def test_other_plans_are_refused(values: dict[str, Any], word: str) -> None:
    """The field is named."""
    with pytest.raises(PlanError, match=word):
        CompressionPlan(**values)


def tasks(silos: int = 4, features: int = 24) -> dict[str, LeastSquaresTask]:
    """Silos with a common solution of several parameters."""
    draws = np.random.default_rng(7)
    truth = draws.normal(size=features)
    made = {}
    for number in range(silos):
        inputs = draws.normal(size=(60, features))
        made[f"silo-{number}"] = LeastSquaresTask(inputs, inputs @ truth)
    return made


def run(
    compression: CompressionPlan,
    algorithm: str = "fedavg",
    rate: float = 0.05,
    **changes: Any,
) -> SimulationResult:
    """A secure run of 30 rounds."""
    plan = TrainingPlan(
        task=TaskPlan(name="fl.testing:toy_task"),
        local=LocalPlan(local_steps=3, learning_rate=rate),
        rounds=20,
        max_silos=4,
        algorithm=algorithm,
        compression=compression,
        **changes,
    )
    result = simulate(plan, tasks())
    assert result.status is RunStatus.COMPLETED, result.reason
    return result


def test_a_rotated_run_ends_where_the_other_does() -> None:
    """Rotation is no other algorithm: the same model to the quantizer's error."""
    rotated, plain = run(CompressionPlan(rotate=True)), run(CompressionPlan())
    ours, theirs = (one.model()["weights"].astype(np.float64) for one in (rotated, plain))
    assert np.abs(ours - theirs).max() < 2e-3


def test_error_feedback_brings_late_what_blocks_left_out() -> None:
    """A third of the coordinates a round converge, with a memory almost as fast as all of them."""
    losses = []
    for one in (
        CompressionPlan(),
        CompressionPlan(block=2, kept=0.34),
        CompressionPlan(block=2, kept=0.34, feedback=False),
    ):
        loss = run(one, rate=0.01).reports[-1].loss
        assert loss is not None
        losses.append(loss)
    everything, with_memory, without = losses
    assert with_memory < 0.6 * without
    assert with_memory < 2 * everything


def test_scaffold_s_variates_may_be_sparse() -> None:
    """Option I: c stays the mean of the c_k, since each moves by what was sent."""
    result = run(CompressionPlan(block=2, kept=0.5), "scaffold", algorithm_settings={"option": "I"})
    server = decode_state(result.state, 10**6)["server_variate"].astype(np.float64)
    mean = np.mean([v for v in result.variates.values() if v is not None], axis=0)
    np.testing.assert_allclose(server, mean, atol=1e-9)
    with pytest.raises(PlanError, match="option II"):
        run(CompressionPlan(block=2, kept=0.5), "scaffold")

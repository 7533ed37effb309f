"""Public bug cases that concern the core alone, by their id.

PRO-01, PRO-11 and PRO-12 are attacks: see tests/adversary. PRO-03: test_vectors. ENC-02:
test_parameters. PRO-09: test_parameters and test_silo. ENC-10: test_silo.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import NonFiniteError, ParameterError
from secagg.ids import RunId
from secagg.journal import SiloHistory
from secagg.parameters import VectorSpec, bulk, meta
from secagg.prg import rounding_coins
from secagg.quantizer import Quantizer
from secagg.ring import IntVector, add_into, from_ring, pack, to_ring, unpack
from secagg.roster import Roster
from secagg.shamir import combine, interpolate_integer, split
from secagg.testing import (
    Federation,
    Outcome,
    RoundHarness,
    SeededRng,
    make_federation,
    make_parameters,
    make_succession,
)

COIN = b"c" * 32
RUN = RunId(bytes(16))


def play(
    federation: Federation,
    spec: VectorSpec,
    inputs: Mapping[int, Mapping[str, IntVector]],
    number: int = 1,
    histories: dict[int, SiloHistory] | None = None,
) -> Outcome:
    """One round over these integers."""
    parameters = make_parameters(federation.roster, spec, round=number)
    state = number.to_bytes(8, "big")
    harness = RoundHarness(
        federation=federation,
        parameters=parameters,
        state=state,
        succession=make_succession(federation, parameters, state) if number > 1 else None,
        train=lambda seat, _parameters, _state: inputs[seat],
        histories=histories,
    )
    return harness.run()


def encode(quantizer: Quantizer, values: list[float], seat: int) -> IntVector:
    """A silo's integers."""
    coins = rounding_coins(COIN + bytes([seat]), RUN, 1, "w")
    return quantizer.encode(np.array(values), rand=coins).values


def test_enc_08_a_value_that_is_not_finite_never_becomes_an_integer() -> None:
    """NaN and both infinities: the silo refuses, naming how many, not which values."""
    quantizer = Quantizer(value_bits=16, clip_range=8.0)
    for bad in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(NonFiniteError) as caught:
            encode(quantizer, [1.25, bad, 2.5], 1)
        assert "1" in str(caught.value)
        assert "1.25" not in str(caught.value)


def test_enc_10_negative_values_and_zero_sums() -> None:
    """All −1; then around zero; then a sum of exactly 0."""
    federation = make_federation(3)
    quantizer = Quantizer(value_bits=20, clip_range=2.0)
    spec = VectorSpec(segments=(bulk("w", 3, value_bits=20, n_max=3),))
    cases = [
        ([-1.0] * 3, [-1.0] * 3, [-1.0] * 3),
        ([-1e-6, -0.0, 1e-6], [-1e-6, -0.0, 1e-6], [-1e-6, -0.0, 1e-6]),
        ([1.0, -2.0, 0.5], [-2.0, 1.0, -1.0], [1.0, 1.0, 0.5]),
    ]
    for number, case in enumerate(cases):
        inputs = {seat: {"w": encode(quantizer, case[seat - 1], seat)} for seat in (1, 2, 3)}
        aggregate = play(federation, spec, inputs, number).aggregate
        assert aggregate is not None
        decoded = quantizer.decode(aggregate.values["w"])
        np.testing.assert_allclose(
            decoded, np.sum(case, axis=0), rtol=0, atol=quantizer.error_bound(3)
        )


def test_enc_16_large_integers_keep_their_low_bits() -> None:
    """2^24 + 1, and values of more than 40 bits, which no float32 holds."""
    federation = make_federation(3)
    spec = VectorSpec(segments=(meta("examples", 2, bound=2**44),))
    inputs = {
        1: {"examples": np.array([16_777_216, 2**43 + 1])},
        2: {"examples": np.array([1, 2**42 + 3])},
        3: {"examples": np.array([0, -5])},
    }
    aggregate = play(federation, spec, inputs).aggregate
    assert aggregate is not None
    assert aggregate.values["examples"].tolist() == [16_777_217, 2**43 + 2**42 - 1]


def test_enc_17_received_words_can_be_written_and_the_message_is_untouched() -> None:
    """What is unpacked from bytes is a copy."""
    for bits in (20, 32, 64):
        data = pack(to_ring(np.arange(40), bits), bits)
        before = bytes(data)
        words = unpack(data, bits, 40)
        add_into(words, words.copy())
        assert from_ring(words, bits).tolist() == [2 * value for value in range(40)]
        assert data == before


def test_pro_04_weights_go_in_before_the_masks() -> None:
    """Values 0 and 4 with weights 1 and 3: Σwx/Σw = 3, with and without a silo of weight 0."""
    federation = make_federation(3)
    spec = VectorSpec(segments=(meta("weighted", 1, bound=1000), meta("weight", 1, bound=1000)))
    values, weights = {1: 0, 2: 4, 3: 7}, {1: 1, 2: 3, 3: 0}
    inputs = {
        seat: {
            "weighted": np.array([weights[seat] * values[seat]]),
            "weight": np.array([weights[seat]]),
        }
        for seat in values
    }
    aggregate = play(federation, spec, inputs).aggregate
    assert aggregate is not None
    weighted, weight = (int(aggregate.values[name][0]) for name in ("weighted", "weight"))
    assert weighted / weight == 3.0


def test_pro_05_the_threshold_is_exact() -> None:
    """n=5, t=3: every three shares rebuild, no two do, no share is the secret."""
    secret = SeededRng("pro-05").bytes(32)
    shares = split(secret, threshold=3, holders=(1, 2, 3, 4, 5), rng=SeededRng(5))
    for three in combinations(shares, 3):
        assert combine({x: shares[x] for x in three}, 3) == secret
    for two in combinations(shares, 2):
        some = {x: shares[x] for x in two}
        with pytest.raises(ParameterError, match="at least 3 shares"):
            combine(some, 3)
        # Nor do two rebuild it under another threshold: the line through them ends elsewhere.
        points = {x: int.from_bytes(share.reveal(), "big") for x, share in some.items()}
        assert interpolate_integer(points) != int.from_bytes(secret, "big")
    pair = split(secret, threshold=2, holders=(1, 2, 3), rng=SeededRng(6))
    for share in (*shares.values(), *pair.values()):
        assert share.reveal()[1:] != secret
    for threshold in (0, 1, 4):
        with pytest.raises(ParameterError, match="threshold"):
            split(secret, threshold=threshold, holders=(1, 2, 3), rng=SeededRng(7))


# Seats whose order differs as numbers and as text, and gaps between them.
SEATS = (1, 2, 9, 10, 11, 99, 100, 101, 1000, 10_000)


def _thinned(silos: int) -> Federation:
    """A federation whose seats are numbered as above, or from 1 if there are more."""
    federation = make_federation(silos)
    if silos > len(SEATS):
        return federation
    renamed = dict(zip(federation.roster.indices, SEATS, strict=False))
    seats = tuple(replace(seat, index=renamed[seat.index]) for seat in federation.roster.seats)
    roster: Roster = replace(federation.roster, seats=seats)
    identities = {renamed[index]: key for index, key in federation.identities.items()}
    return Federation(roster=roster, coordinator=federation.coordinator, identities=identities)


@given(
    silos=st.sampled_from([3, 4, 5, 8, 16]), length=st.integers(1, 3000), seed=st.integers(0, 2**32)
)
@settings(max_examples=20)
def test_pro_08_any_number_of_silos_and_coordinates(silos: int, length: int, seed: int) -> None:
    """The sign of a pair follows from one order of numbers that both sides share."""
    _assert_exact(silos, length, seed)


def test_pro_08_thirty_three_silos() -> None:
    """The largest of the case's cohorts."""
    _assert_exact(33, 257, 1)


def _assert_exact(silos: int, length: int, seed: int) -> None:
    federation = _thinned(silos)
    rng = np.random.default_rng(seed)
    spec = VectorSpec(segments=(bulk("w", length, value_bits=16, n_max=silos),))
    bound = spec.segments[0].bound
    inputs = {
        seat: {"w": rng.integers(-bound, bound + 1, length)} for seat in federation.roster.indices
    }
    outcome = play(federation, spec, inputs)
    assert outcome.aggregate is not None
    assert outcome.aggregate.survivors == federation.roster.indices
    expected = np.sum([columns["w"] for columns in inputs.values()], axis=0)
    np.testing.assert_array_equal(outcome.aggregate.values["w"], expected)
    assert outcome.silo_errors == {}


def test_pro_14_150_rounds_with_values_that_outgrow_their_range() -> None:
    """All sums are exact; from round 70 on saturation is counted, before anything fails."""
    federation = make_federation(3)
    quantizer = Quantizer(value_bits=16, clip_range=1.0)
    spec = VectorSpec(segments=(bulk("w", 100, value_bits=16, n_max=3),))
    histories: dict[int, SiloHistory] = {}
    direction = np.linspace(-1, 1, 100)
    saturated = []
    for number in range(150):
        size = number / 69.5
        inputs: dict[int, Mapping[str, IntVector]] = {}
        counted = 0
        for seat in (1, 2, 3):
            coins = rounding_coins(COIN, RUN, number, f"w{seat}")
            encoded = quantizer.encode(size * direction, rand=coins)
            inputs[seat] = {"w": encoded.values}
            counted += encoded.saturated
        saturated.append(counted)

        outcome = play(federation, spec, inputs, number, histories)
        assert outcome.aggregate is not None
        expected = np.sum([inputs[seat]["w"] for seat in (1, 2, 3)], axis=0)
        np.testing.assert_array_equal(outcome.aggregate.values["w"], expected)
    assert saturated[:70] == [0] * 70
    assert saturated[70] > 0
    assert saturated == sorted(saturated)

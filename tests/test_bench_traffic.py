"""The formula for a round's bytes is what its messages come to; the paper's is the paper's."""

from collections import defaultdict

import numpy as np
import pytest

from bench.traffic import PAPER, expansion, paper_expansion, traffic
from secagg import messages
from secagg.parameters import VectorSpec, bulk
from secagg.testing import (
    PLAN,
    RoundHarness,
    make_federation,
    make_parameters,
    make_succession,
)

UP = {
    messages.Advertise: "advertise",
    messages.Share: "share",
    messages.MaskedInput: "mask",
    messages.Survivors: "survivors",
    messages.Unmask: "unmask",
}
DOWN = {
    messages.RoundOpen: "advertise",
    messages.Keys: "share",
    messages.Boxes: "mask",
    messages.StateNotice: "mask",
    messages.SurvivorsRequest: "survivors",
    messages.Certificate: "unmask",
    messages.Result: "result",
}


@pytest.mark.parametrize("silos", [3, 4, 5, 8, 11])
@pytest.mark.parametrize(("dim", "value_bits"), [(1, 4), (13, 8), (70_001, 16), (200, 24)])
@pytest.mark.parametrize("number", [1, 2])
def test_the_formula_is_what_travels(silos: int, dim: int, value_bits: int, number: int) -> None:
    """For every silo, phase and direction, to the byte; later states come with silos' word."""
    federation = make_federation(silos)
    segment = bulk("update", dim, value_bits=value_bits, n_max=silos)
    spec = VectorSpec(segments=(segment,))
    parameters = make_parameters(federation.roster, spec, round=number)
    vouched = make_succession(federation, parameters, b"state") if number > 1 else None
    sent: dict[tuple[int, str, str], int] = defaultdict(int)
    vectors: dict[int, int] = {}

    def to_silo(seat: int, message: messages.Message) -> messages.Message:
        sent[seat, "down", DOWN[type(message)]] += len(message.encode())
        return message

    def to_server(seat: int, message: messages.Message) -> messages.Message:
        sent[seat, "up", UP[type(message)]] += len(message.encode())
        if isinstance(message, messages.MaskedInput):
            vectors[seat] = message.nbytes
        return message

    outcome = RoundHarness(
        federation=federation,
        parameters=parameters,
        state=b"state",
        succession=vouched,
        train=lambda seat, _parameters, _state: {"update": np.full(dim, seat % 7, np.int64)},
        to_silo=to_silo,
        to_server=to_server,
    ).run()
    assert outcome.aggregate is not None
    for place, seat in enumerate(federation.roster.indices):
        found = traffic(
            silos=silos,
            threshold=parameters.threshold(silos),
            dim=dim,
            ring_bits=segment.ring_bits,
            place=place,
            parameters=len(parameters.encode()),
            plan=len(PLAN),
            vouchers=parameters.n_c + 1 if number > 1 else 0,
        )
        for direction, phases in (("up", found.up), ("down", found.down)):
            for phase, nbytes in phases.items():
                assert sent.pop((seat, direction, phase)) == nbytes, (direction, phase)
        assert vectors[seat] == found.vector_up
    assert sent == {}


@pytest.mark.parametrize(("silos", "dim", "printed"), PAPER)
def test_the_papers_expansion(silos: int, dim: int, printed: float) -> None:
    """Bonawitz et al. 2017, table 1 of the long version: 1.73, 3.62 and 1.98."""
    assert paper_expansion(silos, dim) == pytest.approx(printed, abs=5e-4)


@pytest.mark.parametrize("silos", [5, 10, 20, 50])
@pytest.mark.parametrize("value_bits", [8, 16, 24])
def test_cohorts_of_hospitals_pay_for_the_rings_bits(silos: int, value_bits: int) -> None:
    """At d = 10⁶ keys, shares, signatures and lists of up to 50 silos are below one bit a value."""
    ring_bits = value_bits + (silos - 1).bit_length()
    assert ring_bits <= expansion(silos, 10**6, value_bits=value_bits) * value_bits <= ring_bits + 1

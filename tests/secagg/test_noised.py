"""Vectors that the server noises: the exact sum is never stored, told, tagged or recomputed."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from secagg.errors import LocalProtocolError, ParameterError
from secagg.intake import masked_name
from secagg.messages import MASKED, SUM
from secagg.parameters import RoundParameters, SegmentKind, VectorSpec, bulk, meta
from secagg.ring import IntVector
from secagg.testing import MemoryStore, RoundHarness, make_federation, make_parameters
from secagg.vectors import Unkept, read_sum, root_of

FEDERATION = make_federation(4)
NOISED = bulk("update", 6, value_bits=16, n_max=4, kind=SegmentKind.NOISED)
SPEC = VectorSpec(segments=(NOISED,))
SUM_OF_ALL = 10 * np.arange(6)


def add_seven(values: Mapping[str, IntVector]) -> dict[str, IntVector]:
    """Noise that one recognizes."""
    return {name: column + 7 for name, column in values.items()}


def harness(**changes: object) -> RoundHarness:
    """A round in which silo k contributes k·(0, 1, …, 5)."""
    return RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC),
        state=b"state",
        train=lambda seat, _parameters, _state: {"update": seat * np.arange(6)},
        **changes,  # type: ignore[arg-type]  # fields by name
    )


def test_what_is_stored_and_told_is_noised() -> None:
    """Silos check root and range; there are no tags that would hold the exact sum to them."""
    outcome = harness(noise=add_seven).run()
    assert outcome.aggregate is not None
    expected = (SUM_OF_ALL + 7).tolist()
    for told in (outcome.aggregate, *outcome.silo_aggregates.values()):
        assert told.values["update"].tolist() == expected
    assert sorted(outcome.silo_aggregates) == [1, 2, 3, 4]
    assert not outcome.aggregate.parameters.has_tags
    assert outcome.aggregate.parameters.wire_spec == SPEC


def test_a_second_opening_tells_the_same_noise() -> None:
    """A server that dies between storing and telling opens again: no second draw is released."""
    first = harness(noise=add_seven)
    first.run()
    store = first.outcome.server_store
    draws = []

    def another(values: Mapping[str, IntVector]) -> dict[str, IntVector]:
        draws.append(values)
        return {name: column - 3 for name, column in values.items()}

    second = harness(noise=another)
    for chunk in range(store.chunks(SUM)):
        second.outcome.server_store.write(SUM, chunk, store.read(SUM, chunk))
    outcome = second.run()
    assert outcome.aggregate is not None
    assert outcome.aggregate.values["update"].tolist() == (SUM_OF_ALL + 7).tolist()
    assert draws == []


def test_noise_is_for_noised_vectors_and_for_all_of_them() -> None:
    """Else the exact sum would be told, or an exact vector spoiled."""
    with pytest.raises(LocalProtocolError, match="noise is for vectors that are noised"):
        harness().run()
    exact = VectorSpec(segments=(bulk("update", 6, value_bits=16, n_max=4),))
    with pytest.raises(LocalProtocolError, match="noise is for vectors that are noised"):
        RoundHarness(
            federation=FEDERATION,
            parameters=make_parameters(FEDERATION.roster, exact),
            state=b"state",
            train=lambda seat, _parameters, _state: {"update": seat * np.arange(6)},
            noise=add_seven,
        ).run()


def test_parameters_that_would_tell_the_exact_sum() -> None:
    """An exact segment beside a noised one, and silos that recompute."""
    parameters: RoundParameters = make_parameters(FEDERATION.roster, SPEC)
    assert parameters.is_noised
    with pytest.raises(ParameterError, match="silos would see the exact one"):
        replace(parameters, redundancy=1)
    mixed = VectorSpec(segments=(NOISED, meta("count", 1, bound=9)))
    with pytest.raises(ParameterError, match="an exact segment would tell"):
        make_parameters(FEDERATION.roster, mixed)


def test_a_store_that_keeps_nothing() -> None:
    """It reads what is there and writes nowhere."""
    inner = MemoryStore()
    inner.write(MASKED, 0, b"upload")
    unkept = Unkept(inner)
    unkept.write(SUM, 0, b"the exact sum")
    unkept.discard(MASKED)
    assert (unkept.chunks(MASKED), unkept.read(MASKED, 0), inner.chunks(SUM)) == (1, b"upload", 0)


def test_the_exact_sum_is_not_in_the_servers_store() -> None:
    """Neither under its name nor under another one; nor was it before the noise was there."""

    def look(values: Mapping[str, IntVector]) -> dict[str, IntVector]:
        assert SUM not in outcome.server_store.vectors
        return add_seven(values)

    run = harness(noise=look)
    outcome = run.outcome
    run.run()
    names = set(outcome.server_store.vectors)
    assert names == {"state", SUM, *(masked_name(seat) for seat in (1, 2, 3, 4))}
    stored = read_sum(outcome.server_store, SUM, SPEC, root_of(outcome.server_store, SUM, SPEC))
    assert stored.values["update"].tolist() == (SUM_OF_ALL + 7).tolist()

"""A server that announces a sum which is not the sum of the survivors' vectors."""

from dataclasses import replace

import numpy as np
import pytest

from secagg import messages
from secagg.errors import (
    BadSignatureError,
    ForgedSumError,
    LocalProtocolError,
    SurvivorsUncertifiedError,
)
from secagg.messages import SUM
from secagg.ring import IntVector
from tests.adversary.stage import Stage

pytestmark = pytest.mark.adversary


@pytest.fixture
def stage() -> Stage:
    """Five silos; four have uploaded, and all shares are opened."""
    stage = Stage(5)
    stage.open_shares(1, 2, 3, 4)
    return stage


def _refused(
    stage: Stage, values: dict[str, IntVector], *u3: int, match: str = "match its tags"
) -> None:
    """All silos refuse, the helper as well, and keep their submission open."""
    result = stage.result(values, *(u3 or (1, 2, 3, 4)))
    for seat in stage.cohort:
        stage.refuses(seat, result, ForgedSumError, match)
    assert stage.finished == {}
    run = stage.parameters.run
    assert stage.histories[1].open_submissions(run) == (stage.parameters.attempt_id,)
    stage.assert_hidden()


@pytest.mark.parametrize("segment", ["update", "variate", "count"])
@pytest.mark.parametrize("by", [1, -1, 64])
def test_changed_by_one(stage: Stage, segment: str, by: int) -> None:
    """One unit in one coordinate of each segment."""
    values = stage.sum_of(1, 2, 3, 4)
    values[segment][-1] -= by * np.sign(values[segment][-1])
    _refused(stage, values)


def test_scaled_with_its_tags(stage: Stage) -> None:
    """Twice the sum with twice the tags: the blinds f bind the set of silos."""
    quarter = {name: column // 4 for name, column in stage.sum_of(1, 2, 3, 4).items()}
    doubled = {name: 2 * column for name, column in quarter.items()}
    _refused(stage, doubled)


@pytest.mark.parametrize("left", [1, 2, 3, 4])
def test_one_client_removed(stage: Stage, left: int) -> None:
    """The true sum over three of them, with the true tags of three, announced for four."""
    seats = [seat for seat in (1, 2, 3, 4) if seat != left]
    _refused(stage, stage.sum_of(*seats))


def test_one_client_counted_twice(stage: Stage) -> None:
    """The sum over four where one stands in for another."""
    values = stage.sum_of(1, 2, 3)
    again = stage.sum_of(3)
    _refused(stage, {name: values[name] + again[name] for name in values}, match="tags|range")


@pytest.mark.parametrize("segment", ["count"])
def test_moved_by_two_to_the_63(stage: Stage, segment: str) -> None:
    """Without its range, a 64-bit value moved by 2^63 would pass two tags one time in four."""
    values = stage.sum_of(1, 2, 3, 4)
    values[segment][0] += np.int64(-(2**63))
    _refused(stage, values, match="lies outside the range")


def test_beyond_the_range_of_the_silos(stage: Stage) -> None:
    """A value that four silos cannot reach, in the ring's spare bits."""
    values = stage.sum_of(1, 2, 3, 4)
    values["update"][3] = 4 * (2**15 - 1) + 1
    _refused(stage, values, match="'update' of the sum lies outside the range that 4 silos")


def test_changed_tags(stage: Stage) -> None:
    """The right sum with a tag that is not its tag."""
    for place in range(len(stage.sum_of(1)["tags"])):
        values = stage.sum_of(1, 2, 3, 4)
        values["tags"][place] ^= 1
        result = stage.result(values, 1, 2, 3, 4)
        other = Stage(5)
        other.open_shares(1, 2, 3, 4)
        for number in range(len(stage.wire.chunks)):
            other.stores[1].write(SUM, number, stage.stores[1].read(SUM, number))
        other.refuses(1, result, ForgedSumError, "match its tags")


def test_another_set_of_survivors(stage: Stage) -> None:
    """The right sum, announced for a set that nobody signed."""
    result = stage.result(stage.sum_of(1, 2, 3, 4), 1, 2, 3)
    for seat in stage.cohort:
        stage.refuses(seat, result, SurvivorsUncertifiedError, "0 silos")
    stage.assert_hidden()


def test_chunks_that_are_not_under_the_root(stage: Stage) -> None:
    """Other bytes, too few, too long, with dirty padding."""
    result = stage.result(stage.sum_of(1, 2, 3, 4), 1, 2, 3, 4)
    honest = stage.stores[1].read(SUM, 0)
    dirty = honest[:-1] + bytes([honest[-1] | 0x80])
    for seat, data in ((1, bytes(len(honest))), (2, honest + b"\x00"), (3, b""), (4, dirty)):
        stage.stores[seat].write(SUM, 0, data)
        stage.refuses(seat, result, ForgedSumError, "chunks")
    stage.stores[5].discard(SUM)
    stage.refuses(5, result, ForgedSumError, "do not fit")
    stage.assert_hidden()


def test_a_result_of_another_view_or_signer(stage: Stage) -> None:
    """Another binding, an unsorted list, a wrong transcript, a silo's signature."""
    result = stage.result(stage.sum_of(1, 2, 3, 4), 1, 2, 3, 4)
    sign = stage.sign_result
    stage.refuses(1, sign(replace(result, binding=bytes(32))), ForgedSumError, "another view")
    unsorted_ = replace(result, entries=result.entries[::-1])
    stage.refuses(2, sign(unsorted_), ForgedSumError, "another view")
    transcript = replace(result, transcript=bytes(32))
    stage.refuses(3, transcript, ForgedSumError, "transcript")
    stolen = messages.signed(result, stage.federation.identities[1])
    stage.refuses(4, stolen, BadSignatureError)
    fewer = sign(replace(result, endorsements=result.endorsements[:3]))
    stage.refuses(5, fewer, SurvivorsUncertifiedError, "3 silos")
    stage.assert_hidden()


def test_sizes_that_are_not_the_vectors(stage: Stage) -> None:
    """The announced sizes follow from ctx."""
    result = stage.result(stage.sum_of(1, 2, 3, 4), 1, 2, 3, 4)
    longer = replace(result, nbytes=result.nbytes + 1)
    stage.refuses(1, longer, ForgedSumError, "size")
    more = replace(result, chunks=result.chunks + 1)
    with pytest.raises(ForgedSumError):
        stage.silos[2].receive(more)


def test_a_second_result_after_a_refused_one(stage: Stage) -> None:
    """The first result is final: a server that may guess again would guess for ever."""
    values = stage.sum_of(1, 2, 3, 4)
    wrong = dict(values) | {"count": values["count"] - np.sign(values["count"])}
    stage.refuses(1, stage.result(wrong, 1, 2, 3, 4), ForgedSumError)
    honest = stage.result(values, 1, 2, 3, 4)
    with pytest.raises(LocalProtocolError, match="aborted"):
        stage.tell(1, honest)
    assert 1 not in stage.finished
    stage.assert_hidden()


@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_a_second_result_to_a_restarted_silo(stage: Stage, restarts: int) -> None:
    """The refusal is in the journal: no restart buys the server a second try to forge."""
    values = stage.sum_of(1, 2, 3, 4)
    wrong = dict(values) | {"count": values["count"] - np.sign(values["count"])}
    stage.refuses(1, stage.result(wrong, 1, 2, 3, 4), ForgedSumError)
    for _ in range(restarts):
        recalled = stage.restarted(1)
        with pytest.raises(LocalProtocolError, match="refused"):
            recalled.receive(stage.result(values, 1, 2, 3, 4))
    assert stage.histories[1].open_submissions(stage.parameters.run)


def test_a_second_result_to_a_silo_restarted_before_the_first(stage: Stage) -> None:
    """A silo that knows the attempt from its journal alone writes its refusal down as well."""
    values = stage.sum_of(1, 2, 3, 4)
    wrong = dict(values) | {"count": values["count"] - np.sign(values["count"])}
    recalled = stage.restarted(1)
    with pytest.raises(ForgedSumError):
        recalled.receive(stage.result(wrong, 1, 2, 3, 4))
    stage.carry_out(1, recalled.parting)
    for again in (recalled, stage.restarted(1)):
        with pytest.raises(LocalProtocolError, match="refused"):
            again.receive(stage.result(values, 1, 2, 3, 4))


def test_two_results_that_differ(stage: Stage) -> None:
    """Silo 1 gets the true sum, silo 2 another one: only the true one passes."""
    values = stage.sum_of(1, 2, 3, 4)
    stage.tell(1, stage.result(values, 1, 2, 3, 4))
    wrong = dict(values) | {"update": values["update"] - np.sign(values["update"])}
    stage.refuses(2, stage.result(wrong, 1, 2, 3, 4), ForgedSumError)
    assert list(stage.finished) == [1]
    stage.assert_hidden()


def test_the_true_sum_passes(stage: Stage) -> None:
    """The control of all of the above."""
    values = stage.sum_of(1, 2, 3, 4)
    stage.tell_all(stage.result(values, 1, 2, 3, 4))
    assert sorted(stage.finished) == [1, 2, 3, 4, 5]
    stage.view.see_sum(stage.setup, "the sum", values)
    stage.assert_hidden()

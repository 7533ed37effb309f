"""The silo's driver of an attempt: what it does with a message whose vectors do not come."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from secagg.errors import LocalProtocolError, RosterError
from secagg.journal import JournalEvent, JournalRecord, SiloHistory
from secagg.messages import Keys, RoundOpen, decode_message, plan_hash, signed
from secagg.parameters import VectorSpec, bulk
from secagg.policy import SiloPolicy
from secagg.ports import VectorStore
from secagg.recall import RecalledRound
from secagg.silo import SiloRound
from secagg.testing import SeededRng, make_federation, make_parameters
from services.errors import InvalidRequestError
from services.observe.logs import get_logger
from services.silo.attempt import AttemptDriver
from services.silo.link import Link
from services.storage.blobs import FileVectorStore
from services.wire.calls import SubmitCall, VectorId, VectorReference

FEDERATION = make_federation(3)
PLAN = b"{}"
PARAMETERS = make_parameters(
    FEDERATION.roster,
    VectorSpec(segments=(bulk("update", 4, value_bits=16, n_max=3),)),
    training_plan=plan_hash(PLAN),
)
VECTOR = VectorId(
    run=PARAMETERS.run, round=PARAMETERS.round, attempt=PARAMETERS.attempt, name="state"
)


class Line(Link):
    """A line whose other end refuses vectors as often as it is told to."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.submitted: list[bytes] = []

    async def download(self, reference: VectorReference, store: VectorStore) -> None:
        del store  # the message does not need it
        if self.refusals > 0:
            self.refusals -= 1
            raise InvalidRequestError(f"there is no {reference.vector} yet")

    async def submit(self, call: SubmitCall) -> None:
        self.submitted.append(call.message)


def make_driver(folder: Path, line: Line) -> AttemptDriver:
    """A silo's attempt that has not begun."""
    store = FileVectorStore(folder)
    history = SiloHistory()
    protocol = SiloRound(
        seat=1,
        identity=FEDERATION.identities[1],
        roster=FEDERATION.roster,
        policy=SiloPolicy(),
        history=history,
        store=store,
        rng=SeededRng("1"),
    )

    journal: list[bytes] = []

    async def settle(driver: AttemptDriver, aggregate: object) -> None:
        raise AssertionError((driver, aggregate))

    return AttemptDriver(
        attempt=PARAMETERS.attempt_id,
        round=protocol,
        store=store,
        link=line,
        append=journal.append,
        settle=settle,
        recall=lambda: RecalledRound(
            PARAMETERS.attempt_id,
            seat=1,
            identity=FEDERATION.identities[1],
            roster=FEDERATION.roster,
            history=history,
            store=store,
        ),
        log=get_logger("test"),
    )


def test_a_message_whose_vector_was_refused_is_handled_when_it_is_told_again(
    tmp_path: Path,
) -> None:
    """Else a restarted coordinator that tells it again would be heard no more."""
    opening = signed(
        RoundOpen(parameters=PARAMETERS, plan=PLAN, abandons=()), FEDERATION.coordinator
    )
    vectors: Sequence[VectorReference] = (VectorReference(vector=VECTOR, chunks=1, nbytes=1),)
    line = Line(refusals=1)
    driver = make_driver(tmp_path, line)

    async def go() -> None:
        assert not driver.has_handled(opening.encode())
        with pytest.raises(InvalidRequestError):
            await driver.receive(opening, vectors)
        assert not driver.has_handled(opening.encode())
        await driver.receive(opening, vectors)
        assert driver.has_handled(opening.encode())

    asyncio.run(go())
    assert len(line.submitted) == 1


def test_a_refusal_is_in_the_journal_before_it_is_told(tmp_path: Path) -> None:
    """Killed before it can tell, the silo still gives the attempt no second try."""
    opening = signed(RoundOpen(parameters=PARAMETERS, plan=PLAN), FEDERATION.coordinator)
    line = Line(refusals=0)
    driver = make_driver(tmp_path, line)
    said: list[JournalRecord | str] = []
    driver.append = lambda data: said.append(JournalRecord.decode(data))

    async def submit(call: SubmitCall) -> None:
        said.append(decode_message(call.message).LABEL)

    line.submit = submit  # type: ignore[method-assign]  # one list for both, to see the order

    async def go() -> None:
        await driver.receive(opening, ())
        with pytest.raises(RosterError):
            await driver.receive(Keys(advertises=()), ())
        with pytest.raises(LocalProtocolError):
            await driver.receive(Keys(advertises=()), ())

    asyncio.run(go())
    events = [item if isinstance(item, str) else item.event for item in said]
    assert events == [
        JournalEvent.OPENED,
        "advertise-message",
        JournalEvent.REFUSED,
        "refusal-message",
    ]

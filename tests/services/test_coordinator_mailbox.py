"""Mailbox: numbered envelopes, acknowledged by the next question."""

import asyncio

from secagg.ids import RunId
from services.coordinator.mailbox import Mailbox
from services.wire.calls import ProtocolEnvelope

RUN = RunId(bytes(16))


def envelope(number: int) -> ProtocolEnvelope:
    """An envelope of round `number`."""
    return ProtocolEnvelope(run=RUN, round=number, attempt=0, message=b"m")


def test_the_same_question_gives_the_same_answer() -> None:
    """A lost reply is asked for again."""

    async def ask() -> None:
        box = Mailbox()
        box.post(envelope(1))
        box.post(envelope(2))
        assert await box.wait_after(0, 0) == (1, envelope(1))
        assert await box.wait_after(0, 0) == (1, envelope(1))
        assert await box.wait_after(1, 0) == (2, envelope(2))
        assert await box.wait_after(2, 0) is None

    asyncio.run(ask())


def test_what_is_acknowledged_is_forgotten() -> None:
    """A restarted silo, which asks after 0, gets only what was never handled."""

    async def ask() -> None:
        box = Mailbox()
        box.post(envelope(1))
        box.post(envelope(2))
        await box.wait_after(1, 0)
        assert await box.wait_after(0, 0) == (2, envelope(2))

    asyncio.run(ask())


def test_a_waiting_silo_is_woken_by_the_post() -> None:
    """The long poll returns with the envelope that comes meanwhile."""

    async def ask() -> None:
        box = Mailbox()
        waiting = asyncio.create_task(box.wait_after(0, 30))
        await asyncio.sleep(0)
        number = box.post(envelope(7))
        assert await waiting == (number, envelope(7))

    asyncio.run(ask())


def test_numbers_grow_after_a_drop() -> None:
    """A dropped envelope's number is never given again."""

    async def ask() -> None:
        box = Mailbox()
        box.post(envelope(1))
        box.drop(lambda _envelope: True)
        assert await box.wait_after(0, 0) is None
        assert box.post(envelope(2)) == 2

    asyncio.run(ask())


def test_a_number_that_was_never_given_acknowledges_nothing() -> None:
    """A silo that knew a process with higher numbers, before a backup was restored."""

    async def ask() -> None:
        box = Mailbox()
        box.post(envelope(1))
        assert await box.wait_after(5 << 40, 0) == (1, envelope(1))

    asyncio.run(ask())

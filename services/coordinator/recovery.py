"""After the coordinator's own restart: ask the silos to abandon what it can no longer finish.

The attempt's shares were in the memory of a process that is gone. Silos that sent a masked vector
join another attempt only with a threshold's promises that nothing was and will be opened in this
one (SA1 spec 2.5 ii). Whoever has opened shares in it promises nothing; then there is no other
attempt, and the run ends with the model it has.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from secagg.ids import AttemptId
from secagg.keys import verify
from secagg.messages import Abandon, AbandonRequest, decode_message
from secagg.roster import Roster
from services.coordinator.mailbox import Mailbox
from services.errors import NotAllowedError, NotNowError
from services.wire.calls import ProtocolEnvelope


@dataclass(slots=True, kw_only=True)
class Recovery:
    """The statements about one attempt that an earlier process opened."""

    attempt: AttemptId
    roster: Roster
    cohort: Mapping[int, Mailbox]
    abandons: dict[int, Abandon] = field(default_factory=dict)
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self) -> None:
        """Ask every silo that may have taken part."""
        where = self.attempt
        request = AbandonRequest(run=where.run, round=where.round, attempt=where.attempt)
        envelope = ProtocolEnvelope(
            run=where.run, round=where.round, attempt=where.attempt, message=request.encode()
        )
        for mailbox in self.cohort.values():
            mailbox.post(envelope)

    def submit(self, seat: int, data: bytes) -> None:
        """Take a silo's promise.

        Raises:
            NotNowError: any other message comes too late for this attempt.
            NotAllowedError: it speaks for another seat.
            RemoteProtocolError: it is no canonical message, or not signed by the silo.
        """
        message = decode_message(data)
        where = self.attempt
        if not isinstance(message, Abandon):
            raise NotNowError(
                f"{where} ended with an earlier process of the coordinator", remote_code="STALE"
            )
        if message.seat != seat:
            raise NotAllowedError(f"seat {seat} sent a promise in the name of seat {message.seat}")
        if (message.run, message.round, message.attempt) != (where.run, where.round, where.attempt):
            raise NotAllowedError(f"seat {seat} abandons another attempt than it says")
        key = self.roster.seat(seat).identity_key
        verify(key, message.signature, message.signed_bytes())
        self.abandons[seat] = message
        self._came.set()

    async def wait(self, wait_s: float) -> None:
        """Wait until all have promised, at most `wait_s` seconds; not everybody has a promise."""
        try:
            async with asyncio.timeout(wait_s):
                while len(self.abandons) < len(self.cohort):
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            return

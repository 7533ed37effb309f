"""What silos have signed of where the run stands, for those that were away (SA1 spec 2.5 v).

A silo takes a state that it cannot compute itself only with the word of n_c + 1 others. Of each
silo the newest word is kept in memory, and as many as went with the newest state in the store. What
is not there silos say again, when they greet another process of the coordinator.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from secagg.errors import ReplayError
from secagg.ids import RunId
from secagg.keys import verify
from secagg.messages import Settled, Succession
from services.clock import monotonic
from services.coordinator.hub import Hub
from services.errors import NotAllowedError
from services.observe.logs import Logger
from services.storage.coordinator import CoordinatorStore

# Silos settle a round as soon as they are told its result; the next one waits no longer.
PATIENCE_S: Final = 5.0


@dataclass(slots=True, kw_only=True)
class Settlements:
    """One run's.

    Attributes:
        patience_s: how long a round waits for enough of them.
    """

    run: RunId
    hub: Hub
    store: CoordinatorStore
    log: Logger
    patience_s: float = PATIENCE_S
    _newest: dict[int, Settled] = field(default_factory=dict)
    _contrary: set[tuple[int, int]] = field(default_factory=set)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def restore(self) -> None:
        """Find what an earlier process has kept."""
        found = [Settled.decode(data) for data in self.store.settled(self.run)]
        self._newest = {item.seat: item for item in found}

    def take(self, seat: int, message: Settled) -> None:
        """Keep a silo's word, if it is newer than its last.

        Raises:
            NotAllowedError: it speaks for another seat.
            ReplayError: it speaks of another federation or run.
            BadSignatureError, RosterError: it is not the silo's.
        """
        if message.seat != seat:
            raise NotAllowedError(f"seat {seat} sent a word in the name of seat {message.seat}")
        roster = self.hub.roster
        if (message.federation, message.run) != (roster.federation, self.run):
            raise ReplayError("a word on where a run stands speaks of another run")
        verify(roster.seat(seat).identity_key, message.signature, message.signed_bytes())
        known = self._newest.get(seat)
        if known is not None and known.round >= message.round:
            return
        self._newest[seat] = message
        self._arrived.set()

    async def succession(
        self, after: int, state_hash: bytes, *, needed: int, cohort: Collection[int]
    ) -> Succession | None:
        """The word of as many silos as are needed that this state follows round `after`.

        Waits for it with a bound; not at all if the cohort itself has said so, for then nobody
        needs it, and before the first round there is none.
        """
        give_up = monotonic() + self.patience_s
        while after > 0:
            self._arrived.clear()
            said = self._said(after, state_hash)
            if len(said) >= needed:
                kept = {item.seat: item.encode() for item in said[:needed]}
                await asyncio.to_thread(self.store.keep_settled, self.run, kept)
                return Succession.of(*said[:needed])
            left = give_up - monotonic()
            if left <= 0:
                self.log.warning("unvouched", round=after, silos=len(said), needed=needed)
                break
            if {item.seat for item in said} >= set(cohort):
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._arrived.wait()
        return None

    def _said(self, after: int, state_hash: bytes) -> list[Settled]:
        """The statements by silos of the roster in force that agree with this coordinator."""
        roster, found = self.hub.roster, []
        for seat, item in sorted(self._newest.items()):
            if item.round != after or seat not in roster.indices:
                continue
            if item.model_hash == state_hash:
                found.append(item)
            elif (seat, after) not in self._contrary:
                self._contrary.add((seat, after))
                self.log.error(
                    "violation", seat=seat, what=f"another state follows round {after} there"
                )
        return found

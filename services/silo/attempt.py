"""The silo's driver of one attempt: it carries out the round's effects, in order.

A `Persist` is on disk (fsync) before the `Send` after it leaves the process. Vectors are moved
before the messages that speak of them. What the effects mean is the round's affair.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from secagg.effects import Aborted, Aggregate, Finished, Persist, Send, SiloEffect, TrainingWanted
from secagg.ids import AttemptId
from secagg.journal import JournalRecord
from secagg.messages import (
    MASKED,
    STATE,
    Advertise,
    MaskedInput,
    Result,
    ServerMessage,
    Share,
    SiloMessage,
    Unmask,
    attachments,
)
from secagg.phases import Phase
from secagg.recall import RecalledRound
from secagg.silo import SiloRound
from services import faults
from services.errors import RemoteError
from services.observe.logs import Logger
from services.silo.link import Link
from services.storage.blobs import FileVectorStore
from services.wire.calls import SubmitCall, VectorId, VectorReference

Outcome = TrainingWanted | Aborted
_BEFORE = {
    Advertise: "silo.before-advertise",
    Share: "silo.before-share",
    MaskedInput: "silo.before-upload",
    Unmask: "silo.before-unmask",
}


@dataclass(slots=True, kw_only=True)
class AttemptDriver:
    """One attempt at this silo.

    Attributes:
        round: the protocol's object: live, or recalled from the journal after a restart.
        store: the attempt's vectors.
        append: writes a journal record; it is on disk when this returns.
        settle: takes the server's step on a checked sum.
        recall: gives the round as the journal remembers it.
    """

    attempt: AttemptId
    round: SiloRound | RecalledRound
    store: FileVectorStore
    link: Link
    append: Callable[[bytes], None]
    settle: "Callable[[AttemptDriver, Aggregate], Awaitable[None]]"
    recall: Callable[[], RecalledRound]
    log: Logger
    _handled: set[bytes] = field(default_factory=set)

    def has_handled(self, message: bytes) -> bool:
        """Whether this message came before; from now on it has.

        A restarted coordinator tells an attempt again from its beginning.
        """
        digest = _digest(message)
        is_known = digest in self._handled
        self._handled.add(digest)
        return is_known

    @property
    def is_live(self) -> bool:
        """Whether this process opened the attempt."""
        return isinstance(self.round, SiloRound)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come in this attempt."""
        closed = {Phase.CLOSED, Phase.ABORTED}
        return not isinstance(self.round, SiloRound) or self.round.phase in closed

    @property
    def has_submitted(self) -> bool:
        """Whether a masked vector of this attempt may have left, or may no longer be made."""
        before = {Phase.ADVERTISE, Phase.SHARE, Phase.MASK}
        return not isinstance(self.round, SiloRound) or self.round.phase not in before

    @property
    def is_recomputing(self) -> bool:
        """Whether this silo still waits to see parts of the sum."""
        auditor = self.round.auditor if isinstance(self.round, SiloRound) else None
        return auditor is not None and not auditor.is_done

    def state(self) -> bytes:
        """The round's state as it was received."""
        return b"".join(self.store.read(STATE, i) for i in range(self.store.chunks(STATE)))

    async def receive(
        self, message: ServerMessage, vectors: Sequence[VectorReference]
    ) -> Outcome | None:
        """Fetch the message's vectors, hand it to the round, carry out what follows.

        Raises:
            RemoteProtocolError: a check failed; the silo's farewell has been sent.
        """
        for reference in vectors:
            try:
                await self.link.download(reference, self.store)
            except RemoteError:
                # A sum of long ago may be gone at the coordinator. Where this silo is not in it,
                # the certificate alone settles what it has submitted, as after a restart.
                recalled = self.recall() if isinstance(self.round, SiloRound) else self.round
                if recalled.can_do_without(message):
                    self.round = recalled
                else:
                    self._handled.discard(_digest(message.encode()))  # told again, it may succeed
                    raise
        try:
            effects = await asyncio.to_thread(self.round.receive, message)
        except Exception:
            await self.carry_out(self.round.parting)  # the mark in the journal, then the farewell
            await self._recompute(message)
            raise
        outcome = await self.carry_out(effects)
        await self._recompute(message)
        return outcome

    async def carry_out(self, effects: Sequence[SiloEffect]) -> Outcome | None:
        """Do what the round asks; returns what is left for the caller to do."""
        outcome: Outcome | None = None
        for effect in effects:
            match effect:
                case Persist():
                    await asyncio.to_thread(self._persist, effect.record)
                case Send():
                    await self._send(effect.message)
                case Finished():
                    # Before the record that closes the submission: a crash between the two would
                    # leave a silo that stands where it stood, and is not told again (SA1 2.5 v).
                    await self.settle(self, effect.aggregate)
                case TrainingWanted() | Aborted():
                    outcome = effect
                case _:
                    assert_never(effect)
        return outcome

    def _persist(self, record: JournalRecord) -> None:
        self.store.sync()  # the record may speak of vectors: they are on disk before it
        event = record.event.value.replace(" ", "-")
        faults.hit(f"silo.before-journal-{event}", self.attempt.round)
        self.append(record.encode())
        faults.hit(f"silo.after-journal-{event}", self.attempt.round)

    async def _send(self, message: SiloMessage) -> None:
        point = _BEFORE.get(type(message))
        if point is not None and self.is_live:
            faults.hit(point, self.attempt.round)
        for item in attachments(message):
            vector = self._vector(item.name)
            await self.link.upload(vector, item.chunks, lambda i: self.store.read(MASKED, i))
        await self.link.submit(
            SubmitCall(
                run=self.attempt.run,
                round=self.attempt.round,
                attempt=self.attempt.attempt,
                message=message.encode(),
            )
        )
        if isinstance(message, MaskedInput) and self.is_live:
            faults.hit("silo.after-upload", self.attempt.round)
        self.log.info("sent", message=message.LABEL)

    async def _recompute(self, message: ServerMessage) -> None:
        """Ask to see an announced sum where ctx says so; a refused one most of all."""
        if isinstance(self.round, SiloRound) and (auditor := self.round.auditor) is not None:
            if isinstance(message, Result):
                await self.carry_out(self.round.recompute())
            elif auditor.is_done and auditor.evidence is None:
                self.log.info("recomputed", chunks=len(auditor.verified))

    def _vector(self, name: str) -> VectorId:
        where = self.attempt
        return VectorId(run=where.run, round=where.round, attempt=where.attempt, name=name)


def _digest(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()

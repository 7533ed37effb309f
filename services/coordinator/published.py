"""A sum that an earlier process published, for silos that have yet to check it.

A survivor that has not seen the result keeps its submission open and insists on the same survivors
in the next round (SA1 spec 2.5 v), so the result outlives the process that made it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from secagg.ids import AttemptId
from secagg.intake import masked_name
from secagg.messages import Result
from services.coordinator.attempt import envelope_of, read_public
from services.coordinator.mailbox import Mailbox
from services.storage.blobs import FileVectorStore
from services.wire.calls import Chunk, VectorId


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSum:
    """One attempt's result, and its sum on disk."""

    attempt: AttemptId
    result: Result
    cohort: Mapping[int, Mailbox]
    store: FileVectorStore

    def post(self) -> None:
        """Tell everybody again; who has handled it knows."""
        envelope = envelope_of(self.attempt, self.result)
        for seat, mailbox in self.cohort.items():
            self.store.discard(masked_name(seat))
            mailbox.post(envelope)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody has yet to handle the result."""
        told = envelope_of(self.attempt, self.result)
        return any(mailbox.holds(lambda item: item == told) for mailbox in self.cohort.values())

    async def get_chunk(self, vector: VectorId, index: int) -> Chunk:
        """Read a piece of the attempt's state or sum."""
        return await read_public(self.store, vector, index)

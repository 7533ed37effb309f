"""The silos' calls: identity and position are checked, then the hub or the open attempt answers."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from secagg.canonical import peek_label
from secagg.errors import MalformedMessageError
from secagg.ids import SiloId
from secagg.messages import Settled
from services.coordinator.attempt import AttemptDriver
from services.coordinator.desk import RunDesk
from services.coordinator.hub import Hub
from services.coordinator.rosters import Rosters
from services.enrollment.renewal import renewed_certificate
from services.errors import (
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    NotNowError,
    VersionError,
)
from services.ledger.messages import LedgerAnswer, is_ledger
from services.observe.logs import Logger
from services.security.identity import Peer, Role
from services.wire.calls import (
    PROTOCOL_VERSION,
    Chunk,
    Hello,
    NextCall,
    NextReply,
    SubmitCall,
    VectorId,
)


@dataclass(slots=True, kw_only=True)
class Aggregation:
    """What the coordinator does for silos (`services.wire.servicers.AggregationHandler`).

    Attributes:
        incarnation: 16 random bytes of this process.
        rosters: the one in force, and those that lead to it.
        issued: folder of certificates that the authority has renewed, for silos to fetch.
    """

    hub: Hub
    desk: RunDesk
    incarnation: bytes
    software: str
    rosters: Rosters
    issued: Path
    log: Logger

    async def hello(self, peer: Peer, hello: Hello, /) -> Hello:
        """Compare versions and let the silo's process speak for it, unless it only looks."""
        if hello.protocol_version != PROTOCOL_VERSION:
            raise VersionError(
                f"this coordinator speaks {PROTOCOL_VERSION}, silo {peer.name} speaks "
                f"{hello.protocol_version}; both need the same version of the protocol"
            )
        roster = self.hub.roster
        if hello.roster_version > roster.version:
            raise VersionError(
                f"silo {peer.name} has roster version {hello.roster_version}, the coordinator "
                f"{roster.version}; give the coordinator the newer roster file"
            )
        if hello.roster_version == roster.version and hello.roster_digest != roster.digest():
            raise VersionError(
                f"silo {peer.name} has another roster of version {roster.version}; take the file "
                "that the authority issued last"
            )
        if hello.incarnation and self.hub.presence.hello(
            SiloId(peer.name), hello.incarnation, hello.predecessors
        ):
            await self.desk.welcome(_seat(peer), hello.incarnation)
            self.log.info("hello", silo=peer.name, software=hello.software_version)
        return Hello(
            protocol_version=PROTOCOL_VERSION,
            software_version=self.software,
            roster_version=roster.version,
            roster_digest=roster.digest(),
            incarnation=self.incarnation,
            signed_roster=self.rosters.after(hello.roster_version),
        )

    async def next(self, peer: Peer, call: NextCall, /) -> NextReply:
        """Hand out the silo's next envelope, waiting for one."""
        silo, seat = SiloId(peer.name), _seat(peer)
        self.hub.presence.check(silo, call.incarnation)
        with self.hub.presence.polling(silo):
            found = await self.hub.mailbox(seat).wait_after(call.after_sequence, call.wait_s)
        self.hub.presence.check(silo, call.incarnation)
        if found is None:
            return NextReply(sequence=0, incarnation=self.incarnation)
        sequence, envelope = found
        return NextReply(sequence=sequence, incarnation=self.incarnation, envelope=envelope)

    def fence(self, peer: Peer, incarnation: bytes, /) -> None:
        """Refuse what comes from a process that was replaced (bug case DRP-08)."""
        if peer.role is not Role.SILO:
            return
        if len(incarnation) != 16:
            raise InvalidRequestError(
                f"expected an incarnation of 16 bytes, got {len(incarnation)}"
            )
        self.hub.presence.touch(SiloId(peer.name), incarnation)

    async def renew(self, peer: Peer, not_after: datetime, /) -> bytes:
        """Hand out the silo's renewed certificate, if the authority has issued one."""
        seat = self.hub.roster.seat(_seat(peer))
        found = await asyncio.to_thread(
            renewed_certificate, self.issued, peer.name, seat.certificate_key, not_after
        )
        self.log.info("renewal", silo=peer.name, found=bool(found))
        return found

    async def submit(self, peer: Peer, call: SubmitCall, /) -> None:
        """Give a protocol message to the attempt that it belongs to."""
        if is_ledger(call.message):
            self.desk.ledger_answer(_seat(peer), LedgerAnswer.decode(call.message))
            return
        if _is_settled(call.message):
            self.desk.take_settled(_seat(peer), Settled.decode(call.message))
            return
        recovery = self.desk.find_recovery(call.run, call.round, call.attempt)
        if recovery is not None:
            recovery.submit(_seat(peer), call.message)
            return
        await self._attempt(call, peer).submit(_seat(peer), call.message)

    async def put_chunk(self, peer: Peer, chunk: Chunk, /) -> int:
        """Store a piece of a silo's masked vector, or of an operator's initial model."""
        if peer.role is Role.OPERATOR:
            return await self.desk.put_initial(chunk)
        return await self._attempt(chunk.vector, peer).put_chunk(_seat(peer), chunk)

    async def get_chunk(self, peer: Peer, vector: VectorId, index: int, /) -> Chunk:
        """Read a piece of a state or sum; round 0 stands for a run's newest state."""
        if vector.round == 0:
            return await self.desk.newest_state(vector, index)
        where = vector.run, vector.round, vector.attempt
        attempt = self.desk.find_attempt(*where) or self.desk.find_sum(*where)
        if attempt is None or _seat(peer) not in attempt.cohort:
            raise NotFoundError(f"there is no vector {vector} for silo {peer.name}")
        return await attempt.get_chunk(vector, index)

    def _attempt(self, position: SubmitCall | VectorId, peer: Peer) -> AttemptDriver:
        """The attempt that a silo's message is for.

        Raises:
            NotNowError: the attempt is over or unknown; names both positions (bug case DRP-04).
            NotAllowedError: the silo is not in its cohort (bug case SEC-07).
        """
        attempt = self.desk.find_attempt(position.run, position.round, position.attempt)
        if attempt is None:
            raise NotNowError(
                f"round {position.round}, attempt {position.attempt} is not open; "
                f"{self.desk.position()}",
                remote_code="STALE",
            )
        if _seat(peer) not in attempt.cohort:
            self.log.warning("violation", silo=peer.name, what="not in the round's cohort")
            raise NotAllowedError(
                f"silo {peer.name} is not invited to round {position.round}, attempt "
                f"{position.attempt}"
            )
        return attempt


def _is_settled(message: bytes) -> bool:
    """Whether these bytes are a silo's word on where a run stands, which belongs to no attempt."""
    try:
        return peek_label(message) == Settled.LABEL
    except MalformedMessageError:
        return False


def _seat(peer: Peer) -> int:
    assert peer.seat is not None  # the servicer lets only silos through, and they have seats
    return peer.seat

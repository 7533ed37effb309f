"""A silo's Hello: both sides compare versions and rosters before anything else is said."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from secagg.roster import Roster
from services.clock import monotonic
from services.enrollment.roster_file import (
    HISTORY,
    Trust,
    accept_newer,
    save_signed,
    version_file,
)
from services.errors import ConflictError, RemoteError, VersionError
from services.files import make_private_dir
from services.observe.logs import Logger
from services.silo.link import Link
from services.wire.calls import PROTOCOL_VERSION, Hello

# A crashed process with another storage folder counts as connected for six seconds more.
PATIENCE_S: Final = 9.0
_PAUSE_S: Final = 1.0
_HEARTBEAT_S: Final = 2.0


@dataclass(slots=True, kw_only=True)
class Greeting:
    """What this process says of itself, and what the coordinator answered.

    Attributes:
        incarnation: 16 random bytes of this process.
        predecessors: those of the processes that held this silo's storage before.
        former: older rosters, oldest first: ledgers hold what their keys signed.
        coordinator: the incarnation of the coordinator's process; empty before the first answer.
    """

    incarnation: bytes
    predecessors: tuple[bytes, ...]
    software: str
    roster: Roster
    trust: Trust
    roster_file: Path
    log: Logger
    former: list[Roster] = field(default_factory=list)
    coordinator: bytes = b""

    async def say(self, link: Link) -> bool:
        """Say Hello; returns whether this coordinator process is a new one.

        Raises:
            VersionError: the two cannot work together; names both versions.
            ConflictError: another process of this silo is connected and stays so.
            CredentialError: the coordinator offers a roster that our roots did not sign, or that
                does not continue the one we know.
        """
        answer = await self._answer(link)
        while answer.signed_roster:
            newer = accept_newer(self.roster, answer.signed_roster, self.trust)
            history = make_private_dir(self.roster_file.parent / HISTORY)
            kept = version_file(history, newer.roster.version)
            for path in (kept, self.roster_file):
                await asyncio.to_thread(save_signed, path, newer)
            self.former.append(self.roster)
            self.roster = newer.roster
            self.log.info("roster", version=self.roster.version)
            answer = await self._answer(link)
        is_new = answer.incarnation != self.coordinator
        self.coordinator = answer.incarnation
        self.log.info("connected", software=answer.software_version, roster=self.roster.version)
        return is_new

    async def keep_alive(self, link: Link) -> None:
        """Call regularly, until cancelled, while a long piece of work leaves no poll open."""
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            with suppress(RemoteError):  # whoever polls or submits next hears of it
                await link.client.hello(self._hello())

    def _hello(self) -> Hello:
        return Hello(
            protocol_version=PROTOCOL_VERSION,
            software_version=self.software,
            roster_version=self.roster.version,
            roster_digest=self.roster.digest(),
            incarnation=self.incarnation,
            predecessors=self.predecessors,
        )

    async def _answer(self, link: Link) -> Hello:
        give_up = monotonic() + PATIENCE_S
        while True:
            try:
                return _checked(await link.hello(self._hello()))
            except ConflictError as error:
                if monotonic() > give_up:
                    raise
                self.log.warning("waiting", reason=str(error))
                await asyncio.sleep(_PAUSE_S)


def _checked(answer: Hello) -> Hello:
    if answer.protocol_version != PROTOCOL_VERSION:
        raise VersionError(
            f"this silo speaks {PROTOCOL_VERSION}, the coordinator {answer.protocol_version}; "
            "both need the same version of the protocol"
        )
    return answer

"""The roster in force: taken from its file at the start and whenever that file brings the next one.

A coordinator need not be restarted for a silo that joins or is revoked. The file is looked at every
second, and at once on SIGHUP. A newer roster counts only if the versions beside it lead from the
one in force to it, each signed by the roots; anything else leaves the one in force and is logged.
Silos that missed versions get them one by one from the same folder.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from secagg.roster import SignedRoster
from services.coordinator.hub import Hub
from services.enrollment.roster_file import (
    HISTORY,
    TRUST,
    Trust,
    check_follows,
    load_signed,
    load_trust,
    verified,
    version_file,
)
from services.errors import CredentialError, VersionError
from services.observe.logs import Logger
from services.security.credentials import file_stamp

_GLANCE_S: Final = 1.0
_INSTALL: Final = "install the bundle that was issued for the coordinator's own request"


@dataclass(slots=True, kw_only=True)
class Rosters:
    """The signed roster in force and the way to newer ones.

    Attributes:
        file: the newest version; all versions lie in HISTORY beside it.
        coordinator_key: this coordinator's own public key, which every version must name.
    """

    file: Path
    trust: Trust
    coordinator_key: bytes
    in_force: SignedRoster
    _seen: tuple[int, int] | None = None
    _asked: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def load(cls, file: Path, directory: Path, coordinator_key: bytes) -> Self:
        """Read the roster that this process begins with.

        Raises:
            CredentialError: it is missing, not signed by the roots, or names another coordinator.
        """
        trust, seen = load_trust(directory / TRUST), file_stamp(file)
        signed = load_signed(file)
        verified(signed, trust, str(file))
        if signed.roster.coordinator_key != coordinator_key:
            raise CredentialError(
                f"{file} names another coordinator key than {directory} holds", hint=_INSTALL
            )
        return cls(
            file=file,
            trust=trust,
            coordinator_key=coordinator_key,
            in_force=signed,
            _seen=seen,
        )

    def after(self, version: int) -> bytes:
        """The signed roster that follows a silo's version, in canonical bytes; empty if none does.

        Raises:
            VersionError: this coordinator has no such version to hand out.
        """
        newest = self.in_force.roster.version
        if version >= newest:
            return b""
        if version + 1 == newest:
            return self.in_force.encode()
        try:
            return load_signed(self._version_file(version + 1)).encode()
        except CredentialError as error:
            raise VersionError(
                f"this silo has roster version {version}, the coordinator {newest} and no version "
                f"{version + 1} to lead to it",
                hint="install the newest bundle at the silo, or the coordinator's own bundle with "
                "all versions at the coordinator",
            ) from error

    def look_now(self) -> None:
        """Look at the file at once."""
        self._seen = None
        self._asked.set()

    async def watch(self, hub: Hub, log: Logger) -> None:
        """Adopt newer rosters until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_GLANCE_S):
                    await self._asked.wait()
            self._asked.clear()
            try:
                newer = await asyncio.to_thread(self._newer)
            except CredentialError as error:
                log.error(  # noqa: TRY400 - the message says it all
                    "roster-refused", version=self.in_force.roster.version, reason=str(error)
                )
                continue
            if newer is not None:
                gone = set(self.in_force.roster.indices) - set(newer.roster.indices)
                self.in_force = newer
                hub.adopt(newer.roster)
                log.info("roster", version=newer.roster.version, gone=sorted(gone))

    def _newer(self) -> SignedRoster | None:
        """The file's roster, if it has changed and leads on from the one in force.

        Raises:
            CredentialError: it does not.
        """
        stamp = file_stamp(self.file)
        if stamp is None or stamp == self._seen:
            return None
        self._seen = stamp
        signed = load_signed(self.file)
        newest = verified(signed, self.trust, str(self.file))
        current = self.in_force.roster
        if newest.digest() == current.digest():
            return None
        if newest.coordinator_key != self.coordinator_key:
            raise CredentialError(
                f"{self.file} names another coordinator key than this process has",
                hint="start the coordinator with the new keys' folder, and stop this one",
            )
        for version in range(current.version + 1, newest.version):
            path = self._version_file(version)
            link = verified(load_signed(path), self.trust, str(path))
            check_follows(current, link, str(path))
            current = link
        check_follows(current, newest, str(self.file))
        return signed

    def _version_file(self, version: int) -> Path:
        return version_file(self.file.parent / HISTORY, version)

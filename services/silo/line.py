"""The silo's open channel, and its own certificate over time.

A channel shows the certificate that it was opened with. When another one lies on the disk, put
there by a person or fetched from the coordinator, the next call opens a new channel; calls that are
open on the old one end there. So a renewal costs no restart and no round.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

import grpc.aio

from services.clock import utc_now
from services.enrollment.renewal import take_renewal
from services.errors import CredentialError, RemoteError
from services.observe.logs import Logger
from services.security.credentials import (
    CERTIFICATE,
    WARN_DAYS,
    Credentials,
    file_stamp,
    load_credentials,
    open_channel,
)
from services.wire.calls import WAIT_S
from services.wire.clients import AggregationClient

# How often a silo looks how long its certificate still lasts.
_LOOK_S: Final = 3600.0
# The longest that a call may still be open on a channel that is replaced.
_GRACE_S: Final = 2 * WAIT_S


@dataclass(slots=True, kw_only=True)
class Line:
    """One process's line to its coordinator.

    Attributes:
        incarnation: 16 random bytes of this process.
    """

    target: str
    credentials: Credentials
    proxy: bool
    incarnation: bytes
    log: Logger
    client: AggregationClient = field(init=False)
    _channel: grpc.aio.Channel = field(init=False)
    _seen: tuple[int, int] | None = field(init=False)
    _closing: set["asyncio.Task[None]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Open the first channel."""
        self._seen = file_stamp(self.credentials.certificate_file)
        self._open()

    def refresh(self) -> None:
        """Open a new channel if another certificate lies on the disk; keep the old one if unfit."""
        stamp = file_stamp(self.credentials.certificate_file)
        if stamp is None or stamp == self._seen:
            return
        self._seen = stamp
        role = self.credentials.identity.role
        try:
            found = load_credentials(self.credentials.directory, role=role, now=utc_now())
        except CredentialError as error:
            self._seen = None  # a bundle is installed file by file: look again at the next call
            self.log.warning("certificate-unfit", reason=str(error))
            return
        self.credentials, old = found, self._channel
        self._open()
        closing = asyncio.create_task(old.close(_GRACE_S))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self.log.info("certificate", file=CERTIFICATE, days_left=found.days_left(utc_now()))

    async def keep_renewed(self) -> None:
        """Warn of the certificate's end and fetch the next one in time, until cancelled."""
        while True:
            days_left = self.credentials.days_left(utc_now())
            if days_left < WARN_DAYS:
                self.log.warning("certificate-ends", days_left=days_left)
                await self.renew()
            await asyncio.sleep(_LOOK_S)

    async def renew(self) -> None:
        """Ask the coordinator for a certificate that ends later, and take it."""
        try:
            pem = await self.client.renew(self.credentials.not_after)
            if pem:
                await asyncio.to_thread(take_renewal, self.credentials, pem, now=utc_now())
        except (CredentialError, RemoteError) as error:
            self.log.warning("not-renewed", code=error.code, reason=str(error))
            return
        self.refresh()

    async def close(self) -> None:
        """End every call."""
        for closing in tuple(self._closing):
            closing.cancel()
        await self._channel.close()

    def _open(self) -> None:
        self._channel = open_channel(self.target, self.credentials, proxy=self.proxy)
        self.client = AggregationClient(
            self._channel, target=self.target, incarnation=self.incarnation
        )

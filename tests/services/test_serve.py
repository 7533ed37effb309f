"""The coordinator's process on a port: how it stops."""

import asyncio
import os
import signal
import socket
from pathlib import Path

from services.clock import utc_now
from services.config import CoordinatorConfig
from services.coordinator.serve import serve
from services.errors import UnavailableError
from services.security.credentials import open_channel
from services.security.identity import Role
from services.settings import parse_config
from services.testing import LocalFederation, make_federation
from services.wire.calls import PROTOCOL_VERSION, Hello, NextCall, NextReply
from services.wire.clients import AggregationClient


def _free_address() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


async def _greet(silo: AggregationClient, federation: LocalFederation) -> None:
    """Say Hello as soon as somebody listens."""
    roster = federation.roster()
    hello = Hello(
        protocol_version=PROTOCOL_VERSION,
        software_version="test",
        roster_version=roster.version,
        roster_digest=roster.digest(),
        incarnation=bytes(16),
    )
    async with asyncio.timeout(30):
        while True:
            try:
                await silo.hello(hello)
            except UnavailableError:
                await asyncio.sleep(0.1)
            else:
                return


async def _stop_beside_a_poll(federation: LocalFederation, address: str) -> NextReply:
    """What a silo's open poll is answered when the coordinator is told to stop."""
    text = f'listen = "{address}"\ndirectory = "coordinator"\nstorage = "storage"\n'
    config = parse_config(text.encode(), CoordinatorConfig, source="hub", base=federation.root)
    serving = asyncio.create_task(serve(config))
    credentials = federation.credentials("silo-1", Role.SILO)
    async with open_channel(address, credentials) as channel:
        silo = AggregationClient(channel, target=address)
        await _greet(silo, federation)
        call = NextCall(incarnation=bytes(16), after_sequence=0, wait_s=30)
        poll = asyncio.create_task(silo.next(call))
        done, _ = await asyncio.wait({poll}, timeout=1)
        assert not done, "it waits"
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
        return await poll


def test_open_polls_are_answered_when_the_coordinator_stops(tmp_path: Path) -> None:
    """None is canceled in the middle, which would look like a fault in the log."""
    names = ("silo-1", "silo-2", "silo-3")
    federation = make_federation(tmp_path, silos=names, now=utc_now())
    reply = asyncio.run(_stop_beside_a_poll(federation, _free_address()))
    assert (reply.sequence, reply.envelope) == (0, None)

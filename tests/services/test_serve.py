"""The coordinator's process on a port: how it stops."""

import asyncio
import os
import signal
import socket
from pathlib import Path

from secagg.ids import RunId
from services.clock import utc_now
from services.config import CoordinatorConfig
from services.coordinator.serve import serve
from services.errors import UnavailableError
from services.security.credentials import open_channel
from services.security.identity import Role
from services.settings import parse_config
from services.testing import OPERATOR, LocalFederation, make_federation
from services.wire.calls import (
    PROTOCOL_VERSION,
    Hello,
    NextCall,
    NextReply,
    StartCall,
    WatchReply,
)
from services.wire.clients import AggregationClient, RunClient

RUN = RunId(bytes(range(16)))
QUERY = b'[[categorical]]\nname = "sex"\ncategories = ["f", "m"]\n[run]\nname = "look"\n'


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


async def _stop_beside_polls(
    federation: LocalFederation, address: str
) -> tuple[NextReply, WatchReply]:
    """What a silo's open poll and an operator's are answered when the coordinator must stop."""
    text = f'listen = "{address}"\ndirectory = "coordinator"\nstorage = "storage"\n'
    config = parse_config(text.encode(), CoordinatorConfig, source="hub", base=federation.root)
    serving = asyncio.create_task(serve(config))
    async with (
        open_channel(address, federation.credentials("silo-1", Role.SILO)) as silos_channel,
        open_channel(address, federation.credentials(OPERATOR, Role.OPERATOR)) as channel,
    ):
        silo = AggregationClient(silos_channel, target=address)
        operator = RunClient(channel, target=address)
        await _greet(silo, federation)
        poll = asyncio.create_task(
            silo.next(NextCall(incarnation=bytes(16), after_sequence=0, wait_s=30))
        )
        await operator.start_run(StartCall(run=RUN, config=QUERY))
        await asyncio.wait({poll}, timeout=1)
        seen = await operator.watch_run(RUN, after_revision=0, after_round=0)
        watch = asyncio.create_task(
            operator.watch_run(RUN, after_revision=seen.revision, after_round=0)
        )
        done, _ = await asyncio.wait({poll, watch}, timeout=1)
        assert not done, "they wait, for the other silos"
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
        return await poll, await watch


def test_open_polls_are_answered_when_the_coordinator_stops(tmp_path: Path) -> None:
    """None is canceled in the middle, which would look like a fault in the log."""
    names = ("silo-1", "silo-2", "silo-3")
    federation = make_federation(tmp_path, silos=names, now=utc_now())
    told, seen = asyncio.run(_stop_beside_polls(federation, _free_address()))
    assert (told.sequence, told.envelope) == (0, None)
    assert not seen.status.summary.state.is_final, "it goes on with the next process"

"""A coordinator that answers every call and remembers who made it, over real mTLS."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import grpc.aio

from secagg.ids import RunId
from secagg.roster import Roster
from services.clock import utc_now
from services.errors import (
    NotAllowedError,
)
from services.security.credentials import (
    SERVER_OPTIONS,
    bind,
    open_channel,
    server_credentials,
    split_address,
)
from services.security.identity import Peer, Role
from services.testing import COORDINATOR, OPERATOR, LocalFederation, make_federation
from services.wire.calls import (
    PROTOCOL_VERSION,
    Chunk,
    Hello,
    MemberChange,
    NextCall,
    NextReply,
    ProtocolEnvelope,
    RunState,
    RunStatus,
    RunSummary,
    ShowReply,
    StartCall,
    SubmitCall,
    VectorId,
    WatchReply,
)
from services.wire.clients import AggregationClient, RunClient
from services.wire.servicers import add_services

NOW = utc_now()
RUN = RunId(bytes(range(16)))
INCARNATION = b"incarnation-of-1"
VECTOR = VectorId(run=RUN, round=3, attempt=1, name="masked")
HELLO = Hello(
    protocol_version=PROTOCOL_VERSION,
    software_version="0.1.0",
    roster_version=4,
    roster_digest=bytes(32),
    incarnation=bytes(16),
)
SUMMARY = RunSummary(
    run=RUN,
    name="first",
    algorithm="fedavg",
    state=RunState.RUNNING,
    reason="",
    rounds_done=1,
    rounds_total=3,
    created_unix_s=1_800_000_000.5,
)


@dataclass
class Recorder:
    """Answers every call and remembers who made it; `error` is raised instead if set."""

    error: Exception | None = None
    is_replaced: bool = False
    seen: list[tuple[str, Peer]] = field(default_factory=list)
    chunks: dict[int, bytes] = field(default_factory=dict)
    one_waits: asyncio.Event = field(default_factory=asyncio.Event)
    all_wait: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    submit_waits: asyncio.Event = field(default_factory=asyncio.Event)
    poll_ended: asyncio.Event = field(default_factory=asyncio.Event)
    submit_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def _note(self, call: str, peer: Peer) -> None:
        self.seen.append((call, peer))
        if self.error is not None:
            raise self.error

    async def hello(self, peer: Peer, hello: Hello, /) -> Hello:
        self._note("hello", peer)
        return replace(hello, signed_roster=b"roster")

    async def next(self, peer: Peer, call: NextCall, /) -> NextReply:
        self._note("next", peer)
        if call.wait_s:
            self.one_waits.set()
            if len(self.seen) == 60:
                self.all_wait.set()
            try:
                await self.release.wait()
            finally:
                self.poll_ended.set()
        envelope = ProtocolEnvelope(run=RUN, round=1, attempt=0, message=b"m")
        return NextReply(sequence=1, incarnation=bytes(16), envelope=envelope)

    def fence(self, peer: Peer, incarnation: bytes, /) -> None:
        assert incarnation == (INCARNATION if peer.role is Role.SILO else b"")
        if self.is_replaced:
            raise NotAllowedError("replaced", remote_code="FENCED")

    async def renew(self, peer: Peer, not_after: datetime, /) -> bytes:
        self._note("renew", peer)
        return f"{peer.name} until {not_after:%Y-%m-%d}".encode()

    async def submit(self, peer: Peer, call: SubmitCall, /) -> None:
        self._note("submit", peer)
        assert call.message in {b"message", b"slow"}
        if call.message == b"slow":
            self.submit_waits.set()
            try:
                await self.release.wait()
                self._note("submitted", peer)
            finally:
                self.submit_ended.set()

    async def put_chunk(self, peer: Peer, chunk: Chunk, /) -> int:
        self._note("put", peer)
        self.chunks[chunk.index] = chunk.data
        return len(self.chunks)

    async def get_chunk(self, peer: Peer, vector: VectorId, index: int, /) -> Chunk:
        self._note("get", peer)
        return Chunk(vector=vector, index=index, count=2, data=self.chunks[index])

    async def start_run(self, peer: Peer, call: StartCall, /) -> RunSummary:
        self._note("start", peer)
        return replace(SUMMARY, run=call.run)

    async def watch_run(
        self, peer: Peer, run: RunId, after_revision: int, wait_s: float, after_round: int, /
    ) -> WatchReply:
        self._note("watch", peer)
        assert (run, after_round) == (RUN, 2)
        return WatchReply(revision=after_revision + int(wait_s), status=RunStatus(summary=SUMMARY))

    async def list_runs(self, peer: Peer, /) -> tuple[RunSummary, ...]:
        self._note("list", peer)
        return (SUMMARY, SUMMARY)

    async def show_run(self, peer: Peer, run: RunId, /) -> ShowReply:
        self._note("show", peer)
        return ShowReply(status=RunStatus(summary=replace(SUMMARY, run=run)), config=b"[run]")

    async def stop_run(self, peer: Peer, run: RunId, reason: str, /) -> RunSummary:
        self._note("stop", peer)
        return replace(SUMMARY, run=run, state=RunState.STOPPED, reason=reason)

    async def change_member(
        self, peer: Peer, run: RunId, silo: str, change: MemberChange, /
    ) -> RunSummary:
        self._note("change", peer)
        return replace(SUMMARY, run=run, reason=f"{change} {silo}")

    async def fetch_model(self, peer: Peer, run: RunId, index: int, /) -> Chunk:
        self._note("fetch", peer)
        vector = VectorId(run=run, round=1, attempt=0, name="model")
        return Chunk(vector=vector, index=index, count=9, data=b"model")


@dataclass
class Coordinator:
    """A served recorder."""

    federation: LocalFederation
    recorder: Recorder
    roster: Roster
    address: str = ""
    now: datetime = NOW
    unexpected: list[tuple[Exception, str]] = field(default_factory=list)
    answered: list[tuple[str, str]] = field(default_factory=list)

    @property
    def port(self) -> int:
        return split_address(self.address)[1]

    @asynccontextmanager
    async def channel(
        self, name: str, role: Role, *, host: str = "localhost", proxy: bool = False
    ) -> AsyncIterator[grpc.aio.Channel]:
        credentials = self.federation.credentials(name, role)
        channel = open_channel(f"{host}:{self.port}", credentials, proxy=proxy)
        try:
            yield channel
        finally:
            await channel.close()

    @asynccontextmanager
    async def silo(self, name: str = "a") -> AsyncIterator[AggregationClient]:
        async with self.channel(name, Role.SILO) as channel:
            yield AggregationClient(channel, target=self.address, incarnation=INCARNATION)

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[RunClient]:
        async with self.channel(OPERATOR, Role.OPERATOR) as channel:
            yield RunClient(channel, target=self.address)


Session = Callable[[Coordinator], Awaitable[None]]


def two_silos(home: Path) -> LocalFederation:
    """A federation of the silos a and b."""
    return make_federation(home, silos=["a", "b"], now=NOW)


def serve(
    federation: LocalFederation,
    session: Session,
    *,
    listen: str = "127.0.0.1:0",
    error: Exception | None = None,
) -> Coordinator:
    """Run a session against a served recorder, and return it."""

    async def run() -> Coordinator:
        coordinator = Coordinator(federation, Recorder(error=error), federation.roster())
        server = grpc.aio.server(options=SERVER_OPTIONS)
        add_services(
            server,
            aggregation=coordinator.recorder,
            runs=coordinator.recorder,
            roster=lambda: coordinator.roster,
            unexpected=lambda fault, call: coordinator.unexpected.append((fault, call)),
            answered=lambda call, code: coordinator.answered.append((call, code)),
            now=lambda: coordinator.now,
        )
        credentials = server_credentials(federation.folder(COORDINATOR))
        coordinator.address = bind(server, listen, credentials)
        await server.start()
        try:
            await session(coordinator)
        finally:
            await server.stop(0)
        return coordinator

    return asyncio.run(run())

"""The server side of the calls: who calls, what it says, and the answer or the error's status.

There are no decisions here. Each call is authenticated against the roster in force, decoded,
handed to the handler, and its answer encoded; whatever goes wrong ends in one status.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn, Protocol, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from secagg.ids import RunId
from secagg.roster import Roster
from services.clock import utc_now
from services.errors import InvalidRequestError, UnavailableError
from services.security.identity import Peer, Role, identify, require_role
from services.wire import convert
from services.wire.calls import (
    WAIT_S,
    Chunk,
    Hello,
    MemberChange,
    NextCall,
    NextReply,
    RunSummary,
    ShowReply,
    StartCall,
    SubmitCall,
    VectorId,
    WatchReply,
)
from services.wire.status import OK, abort
from services.wire.v1 import aggregation_service_pb2 as agg
from services.wire.v1 import aggregation_service_pb2_grpc as agg_grpc
from services.wire.v1 import run_service_pb2 as runs
from services.wire.v1 import run_service_pb2_grpc as runs_grpc

SERVICE_NAMES: Final = (
    agg.DESCRIPTOR.services_by_name["AggregationService"].full_name,
    runs.DESCRIPTOR.services_by_name["RunService"].full_name,
)

# A silo polls, calls and moves a chunk; more at once from one holder is a fault or an attack.
CALLS_AT_ONCE: Final = 64

Answer = TypeVar("Answer")
Context = grpc.aio.ServicerContext
Unexpected = Callable[[Exception, str], None]
Answered = Callable[[str, str], None]


class AggregationHandler(Protocol):
    """What the coordinator does for silos; `peer` is verified, ids are well-formed."""

    async def hello(self, peer: Peer, hello: Hello, /) -> Hello:
        """Compare versions and roster; VersionError if they cannot work together."""
        ...

    async def next(self, peer: Peer, call: NextCall, /) -> NextReply:
        """Wait for the silo's next envelope."""
        ...

    def fence(self, peer: Peer, incarnation: bytes, /) -> None:
        """Refuse a silo's process that was replaced; asked before the three calls below."""
        ...

    async def renew(self, peer: Peer, not_after: datetime, /) -> bytes:
        """Give the silo's certificate that ends later than this; empty if there is none."""
        ...

    async def submit(self, peer: Peer, call: SubmitCall, /) -> None:
        """Take a silo's message."""
        ...

    async def put_chunk(self, peer: Peer, chunk: Chunk, /) -> int:
        """Store a chunk of a silo's or an operator's vector; return the first missing index."""
        ...

    async def get_chunk(self, peer: Peer, vector: VectorId, index: int, /) -> Chunk:
        """Read a chunk that this silo may see."""
        ...


class RunHandler(Protocol):
    """What the coordinator does for operators."""

    async def start_run(self, peer: Peer, call: StartCall, /) -> RunSummary:
        """Accept a run."""
        ...

    async def watch_run(
        self, peer: Peer, run: RunId, after_revision: int, wait_s: float, after_round: int, /
    ) -> WatchReply:
        """Wait for something new about a run."""
        ...

    async def list_runs(self, peer: Peer, /) -> tuple[RunSummary, ...]:
        """List runs, the newest first."""
        ...

    async def show_run(self, peer: Peer, run: RunId, /) -> ShowReply:
        """Show a run with all its rounds."""
        ...

    async def stop_run(self, peer: Peer, run: RunId, reason: str, /) -> RunSummary:
        """End a run."""
        ...

    async def change_member(
        self, peer: Peer, run: RunId, silo: str, change: MemberChange, /
    ) -> RunSummary:
        """Let a silo join a run that goes on, or invite it no more."""
        ...

    async def fetch_model(self, peer: Peer, run: RunId, index: int, /) -> Chunk:
        """Read a chunk of the newest released model."""
        ...


def add_services(
    server: grpc.aio.Server,
    *,
    aggregation: AggregationHandler,
    runs: RunHandler,
    roster: Callable[[], Roster],
    unexpected: Unexpected,
    answered: Answered = lambda _call, _code: None,
    now: Callable[[], datetime] = utc_now,
) -> None:
    """Serve both services.

    Args:
        server: not yet started.
        aggregation: answers silos.
        runs: answers operators.
        roster: gives the roster in force; asked at every call.
        unexpected: told of each error that is not the caller's fault, with the call's name.
        answered: told of each answer: the call's name, and "OK" or the refusal's stable name.
        now: the clock by which certificates end.
    """
    gate = _Gate(roster=roster, unexpected=unexpected, answered=answered, now=now)
    registry = cast(grpc.aio.Server, _Registry(server, gate))
    agg_grpc.add_AggregationServiceServicer_to_server(_Aggregation(aggregation, gate), registry)
    runs_grpc.add_RunServiceServicer_to_server(_Runs(runs, gate), registry)


class _Registry:
    """What generated code registers its methods with: here requests are parsed late.

    gRPC would parse a request before anybody has asked who sends it. So the methods get bytes, and
    a stranger's bytes stay bytes.
    """

    def __init__(self, server: grpc.aio.Server, gate: "_Gate") -> None:
        self._server = server
        self._gate = gate

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Ignore the same methods in the form that would parse at once."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]
    ) -> None:
        """Serve a service's methods."""
        late = {name: self._late(name, handler) for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, late),)
        )

    def _late(
        self, name: str, handler: "grpc.RpcMethodHandler[Any, Any]"
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        # Every call is unary and generated; grpc.aio's contexts are another class than grpc's.
        behavior = cast(Callable[[object, object], Awaitable[object]], handler.unary_unary)
        parse = cast(Callable[[bytes], object], handler.request_deserializer)

        async def call(
            data: bytes,
            context: Context,  # type: ignore[type-arg] # any call's
        ) -> object:
            request = await self._gate.parsed(context, name, lambda: parse(data))
            return await behavior(request, context)

        return grpc.unary_unary_rpc_method_handler(
            call,
            response_serializer=handler.response_serializer,
        )


class _Gate:
    """Authenticates a call, runs it, and turns errors into statuses.

    A connection outlives what its certificate is worth, so who calls is looked up at every call,
    and once more before the answer if the roster has changed meanwhile. A call outlives its caller:
    what it has begun it ends, for others count on what follows from it.
    """

    def __init__(
        self,
        *,
        roster: Callable[[], Roster],
        unexpected: Unexpected,
        answered: Answered,
        now: Callable[[], datetime],
    ) -> None:
        self._roster = roster
        self._unexpected = unexpected
        self._answered = answered
        self._now = now
        self._open: Counter[str] = Counter()
        self._begun: set[asyncio.Task[object]] = set()

    async def run(
        self,
        context: Context,  # type: ignore[type-arg] # any call's: only its peer and abort are used
        call: str,
        action: Callable[[Peer], Awaitable[Answer]],
        *roles: Role,
        is_poll: bool = False,
    ) -> Answer:
        """Answer a call; a poll, which only waits, ends with its caller."""
        try:
            roster = self._roster()
            peer = identify(context.auth_context(), roster, self._now())
            require_role(peer, *roles)
            work = self._limited(peer, action)
            answer = await (work if is_poll else self._carry_out(work))
            if self._roster() is not roster:
                identify(context.auth_context(), self._roster(), self._now())
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: whatever happened becomes a status
            await self._refuse(context, call, error)
        self._answered(call, OK)
        return answer

    async def _refuse(
        self,
        context: Context,  # type: ignore[type-arg] # as above
        call: str,
        error: Exception,
    ) -> NoReturn:
        await abort(
            context,
            error,
            lambda fault: self._unexpected(fault, call),
            lambda code: self._answered(call, code),
        )

    async def parsed(
        self,
        context: Context,  # type: ignore[type-arg] # as above
        call: str,
        parse: Callable[[], object],
    ) -> object:
        """Parse a request, of a holder that the roster lists."""
        try:
            identify(context.auth_context(), self._roster(), self._now())
            return parse()
        except Exception as error:  # noqa: BLE001 - the boundary, as in `run`
            if isinstance(error, DecodeError):
                error = InvalidRequestError("the request is not of this call's form")
            await self._refuse(context, call, error)

    async def _carry_out(self, work: Coroutine[object, object, Answer]) -> Answer:
        """Do a call's work to its end, also if its caller dies meanwhile.

        gRPC then cancels the call wherever it stands. Between a round's move in a thread and what
        follows from it, that would leave a round that has moved and tells nobody.
        """
        task = asyncio.create_task(work)
        self._begun.add(task)  # the loop itself would let go of it
        task.add_done_callback(self._begun.discard)
        return await asyncio.shield(task)

    async def _limited(self, peer: Peer, action: Callable[[Peer], Awaitable[Answer]]) -> Answer:
        """Run the call unless its holder has too many open."""
        if self._open[peer.name] >= CALLS_AT_ONCE:
            raise UnavailableError(
                f"{peer.name} has {CALLS_AT_ONCE} calls open; wait for their answers",
                remote_code="BUSY",
            )
        self._open[peer.name] += 1
        try:
            return await action(peer)
        finally:
            self._open[peer.name] -= 1
            if not self._open[peer.name]:
                del self._open[peer.name]


class _Aggregation(agg_grpc.AggregationServiceServicer):
    def __init__(self, handler: AggregationHandler, gate: _Gate) -> None:
        self._handler = handler
        self._gate = gate

    async def Hello(  # noqa: N802 - named by the proto
        self,
        request: agg.HelloRequest,
        context: Context[agg.HelloRequest, agg.HelloResponse],
    ) -> agg.HelloResponse:
        async def act(peer: Peer) -> agg.HelloResponse:
            answer = await self._handler.hello(peer, convert.hello_from_wire(request))
            return convert.welcome_to_wire(answer)

        return await self._gate.run(context, "Hello", act, Role.SILO)

    async def Next(  # noqa: N802 - named by the proto
        self,
        request: agg.NextRequest,
        context: Context[agg.NextRequest, agg.NextResponse],
    ) -> agg.NextResponse:
        async def act(peer: Peer) -> agg.NextResponse:
            answer = await self._handler.next(peer, convert.next_from_wire(request))
            return convert.reply_to_wire(answer)

        return await self._gate.run(context, "Next", act, Role.SILO, is_poll=True)

    async def Submit(  # noqa: N802 - named by the proto
        self,
        request: agg.SubmitRequest,
        context: Context[agg.SubmitRequest, agg.SubmitResponse],
    ) -> agg.SubmitResponse:
        async def act(peer: Peer) -> agg.SubmitResponse:
            self._handler.fence(peer, request.incarnation)
            await self._handler.submit(peer, convert.submit_from_wire(request))
            return agg.SubmitResponse()

        return await self._gate.run(context, "Submit", act, Role.SILO)

    async def PutChunk(  # noqa: N802 - named by the proto
        self,
        request: agg.PutChunkRequest,
        context: Context[agg.PutChunkRequest, agg.PutChunkResponse],
    ) -> agg.PutChunkResponse:
        async def act(peer: Peer) -> agg.PutChunkResponse:
            self._handler.fence(peer, request.incarnation)
            missing = await self._handler.put_chunk(peer, convert.chunk_from_wire(request.chunk))
            return agg.PutChunkResponse(next_missing=missing)

        return await self._gate.run(context, "PutChunk", act, Role.SILO, Role.OPERATOR)

    async def GetChunk(  # noqa: N802 - named by the proto
        self,
        request: agg.GetChunkRequest,
        context: Context[agg.GetChunkRequest, agg.GetChunkResponse],
    ) -> agg.GetChunkResponse:
        async def act(peer: Peer) -> agg.GetChunkResponse:
            self._handler.fence(peer, request.incarnation)
            vector = convert.vector_from_wire(request.vector)
            chunk = await self._handler.get_chunk(peer, vector, request.index)
            return agg.GetChunkResponse(chunk=convert.chunk_to_wire(chunk))

        return await self._gate.run(context, "GetChunk", act, Role.SILO)

    async def Renew(  # noqa: N802 - named by the proto
        self,
        request: agg.RenewRequest,
        context: Context[agg.RenewRequest, agg.RenewResponse],
    ) -> agg.RenewResponse:
        async def act(peer: Peer) -> agg.RenewResponse:
            not_after = convert.time_from_wire(request.not_after_unix_s)
            return agg.RenewResponse(certificate=await self._handler.renew(peer, not_after))

        return await self._gate.run(context, "Renew", act, Role.SILO)


class _Runs(runs_grpc.RunServiceServicer):
    def __init__(self, handler: RunHandler, gate: _Gate) -> None:
        self._handler = handler
        self._gate = gate

    async def StartRun(  # noqa: N802 - named by the proto
        self,
        request: runs.StartRunRequest,
        context: Context[runs.StartRunRequest, runs.StartRunResponse],
    ) -> runs.StartRunResponse:
        async def act(peer: Peer) -> runs.StartRunResponse:
            summary = await self._handler.start_run(peer, convert.start_from_wire(request))
            return runs.StartRunResponse(summary=convert.summary_to_wire(summary))

        return await self._gate.run(context, "StartRun", act, Role.OPERATOR)

    async def WatchRun(  # noqa: N802 - named by the proto
        self,
        request: runs.WatchRunRequest,
        context: Context[runs.WatchRunRequest, runs.WatchRunResponse],
    ) -> runs.WatchRunResponse:
        async def act(peer: Peer) -> runs.WatchRunResponse:
            wait_s = request.wait_ms / 1000
            if wait_s > WAIT_S:
                raise InvalidRequestError(
                    f"expected a wait of at most {WAIT_S:g} s, got {wait_s:g}"
                )
            reply = await self._handler.watch_run(
                peer,
                convert.run_from_wire(request.run_id),
                request.after_revision,
                wait_s,
                request.after_round,
            )
            return runs.WatchRunResponse(
                revision=reply.revision, status=convert.status_to_wire(reply.status)
            )

        return await self._gate.run(context, "WatchRun", act, Role.OPERATOR, is_poll=True)

    async def ListRuns(  # noqa: N802 - named by the proto
        self,
        request: runs.ListRunsRequest,  # noqa: ARG002 - has no fields
        context: Context[runs.ListRunsRequest, runs.ListRunsResponse],
    ) -> runs.ListRunsResponse:
        async def act(peer: Peer) -> runs.ListRunsResponse:
            summaries = await self._handler.list_runs(peer)
            return runs.ListRunsResponse(runs=[convert.summary_to_wire(run) for run in summaries])

        return await self._gate.run(context, "ListRuns", act, Role.OPERATOR)

    async def ShowRun(  # noqa: N802 - named by the proto
        self,
        request: runs.ShowRunRequest,
        context: Context[runs.ShowRunRequest, runs.ShowRunResponse],
    ) -> runs.ShowRunResponse:
        async def act(peer: Peer) -> runs.ShowRunResponse:
            reply = await self._handler.show_run(peer, convert.run_from_wire(request.run_id))
            return runs.ShowRunResponse(
                status=convert.status_to_wire(reply.status), config=reply.config
            )

        return await self._gate.run(context, "ShowRun", act, Role.OPERATOR)

    async def StopRun(  # noqa: N802 - named by the proto
        self,
        request: runs.StopRunRequest,
        context: Context[runs.StopRunRequest, runs.StopRunResponse],
    ) -> runs.StopRunResponse:
        async def act(peer: Peer) -> runs.StopRunResponse:
            run = convert.run_from_wire(request.run_id)
            summary = await self._handler.stop_run(peer, run, request.reason[:1024])
            return runs.StopRunResponse(summary=convert.summary_to_wire(summary))

        return await self._gate.run(context, "StopRun", act, Role.OPERATOR)

    async def ChangeMember(  # noqa: N802 - named by the proto
        self,
        request: runs.ChangeMemberRequest,
        context: Context[runs.ChangeMemberRequest, runs.ChangeMemberResponse],
    ) -> runs.ChangeMemberResponse:
        async def act(peer: Peer) -> runs.ChangeMemberResponse:
            run = convert.run_from_wire(request.run_id)
            change = convert.change_from_wire(request.change)
            summary = await self._handler.change_member(peer, run, request.silo[:63], change)
            return runs.ChangeMemberResponse(summary=convert.summary_to_wire(summary))

        return await self._gate.run(context, "ChangeMember", act, Role.OPERATOR)

    async def FetchModel(  # noqa: N802 - named by the proto
        self,
        request: runs.FetchModelRequest,
        context: Context[runs.FetchModelRequest, runs.FetchModelResponse],
    ) -> runs.FetchModelResponse:
        async def act(peer: Peer) -> runs.FetchModelResponse:
            run = convert.run_from_wire(request.run_id)
            chunk = await self._handler.fetch_model(peer, run, request.index)
            return runs.FetchModelResponse(chunk=convert.chunk_to_wire(chunk))

        return await self._gate.run(context, "FetchModel", act, Role.OPERATOR)

"""The caller's side of the calls: frozen values in and out, statuses as typed errors.

No retries here: every call is idempotent, and whoever calls knows how long it is worth trying.
"""

from datetime import datetime
from typing import Final

import grpc.aio

from secagg.ids import RunId
from services.wire import convert
from services.wire.calls import (
    CHUNK_BYTES,
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
    VectorReference,
    WatchReply,
)
from services.wire.status import remote_errors
from services.wire.v1 import aggregation_service_pb2 as agg
from services.wire.v1 import aggregation_service_pb2_grpc as agg_grpc
from services.wire.v1 import run_service_pb2 as runs
from services.wire.v1 import run_service_pb2_grpc as runs_grpc

# Long enough for 1 MiB on a slow line; a long poll adds its own wait.
_CALL_S: Final = 60.0


class AggregationClient:
    """What a silo calls; every method raises a child of RemoteError for a refusal.

    Args:
        target: the coordinator's address, for messages.
        incarnation: 16 random bytes of this silo's process; an operator has none.
    """

    def __init__(self, channel: grpc.aio.Channel, *, target: str, incarnation: bytes = b"") -> None:
        """Use an open channel; the caller closes it."""
        self._stub = agg_grpc.AggregationServiceStub(channel)
        self._target = target
        self._incarnation = incarnation

    async def hello(self, hello: Hello) -> Hello:
        """Introduce this process."""
        with remote_errors(self._target):
            answer = await self._stub.Hello(convert.hello_to_wire(hello), timeout=_CALL_S)
        return convert.welcome_from_wire(answer)

    async def next(self, call: NextCall) -> NextReply:
        """Wait for the next envelope."""
        with remote_errors(self._target):
            answer = await self._stub.Next(
                convert.next_to_wire(call), timeout=call.wait_s + _CALL_S
            )
        return convert.reply_from_wire(answer)

    async def submit(self, call: SubmitCall) -> None:
        """Deliver a protocol message."""
        with remote_errors(self._target):
            request = convert.submit_to_wire(call, self._incarnation)
            await self._stub.Submit(request, timeout=_CALL_S)

    async def put_chunk(self, chunk: Chunk) -> int:
        """Store a chunk; return the first index that is still missing."""
        request = agg.PutChunkRequest(
            chunk=convert.chunk_to_wire(chunk), incarnation=self._incarnation
        )
        with remote_errors(self._target):
            answer = await self._stub.PutChunk(request, timeout=_CALL_S)
        return answer.next_missing

    async def get_chunk(self, vector: VectorId, index: int) -> Chunk:
        """Read a chunk."""
        request = agg.GetChunkRequest(
            vector=convert.vector_to_wire(vector), index=index, incarnation=self._incarnation
        )
        with remote_errors(self._target):
            answer = await self._stub.GetChunk(request, timeout=_CALL_S)
        return convert.chunk_from_wire(answer.chunk)

    async def renew(self, not_after: datetime) -> bytes:
        """Ask for a certificate that ends later; PEM, empty if there is none."""
        request = agg.RenewRequest(not_after_unix_s=convert.time_to_wire(not_after))
        with remote_errors(self._target):
            answer = await self._stub.Renew(request, timeout=_CALL_S)
        return answer.certificate


class RunClient:
    """What an operator calls; every method raises a child of RemoteError for a refusal.

    Args:
        target: the coordinator's address, for messages.
    """

    def __init__(self, channel: grpc.aio.Channel, *, target: str) -> None:
        """Use an open channel; the caller closes it."""
        self._stub = runs_grpc.RunServiceStub(channel)
        self._vectors = AggregationClient(channel, target=target)
        self._target = target

    async def put_initial_state(
        self, run: RunId, data: bytes, *, chunk_bytes: int = CHUNK_BYTES
    ) -> VectorReference:
        """Store the model that a run shall start from, before `start_run` names it."""
        vector = VectorId(run=run, round=0, attempt=0, name="initial")
        count = -(-len(data) // chunk_bytes)
        for index in range(count):
            piece = data[index * chunk_bytes : (index + 1) * chunk_bytes]
            await self._vectors.put_chunk(
                Chunk(vector=vector, index=index, count=count, data=piece)
            )
        return VectorReference(vector=vector, chunks=count, nbytes=len(data))

    async def start_run(self, call: StartCall) -> RunSummary:
        """Start a run."""
        with remote_errors(self._target):
            answer = await self._stub.StartRun(convert.start_to_wire(call), timeout=_CALL_S)
        return convert.summary_from_wire(answer.summary)

    async def watch_run(
        self, run: RunId, *, after_revision: int = 0, wait_s: float = WAIT_S, after_round: int = 0
    ) -> WatchReply:
        """Wait for news of a run."""
        request = runs.WatchRunRequest(
            run_id=run.value,
            after_revision=after_revision,
            wait_ms=convert.to_ms(wait_s),
            after_round=after_round,
        )
        with remote_errors(self._target):
            answer = await self._stub.WatchRun(request, timeout=wait_s + _CALL_S)
        return WatchReply(revision=answer.revision, status=convert.status_from_wire(answer.status))

    async def list_runs(self) -> tuple[RunSummary, ...]:
        """List all runs, the newest first."""
        with remote_errors(self._target):
            answer = await self._stub.ListRuns(runs.ListRunsRequest(), timeout=_CALL_S)
        return tuple(convert.summary_from_wire(run) for run in answer.runs)

    async def show_run(self, run: RunId) -> ShowReply:
        """Show a run with all its rounds."""
        with remote_errors(self._target):
            answer = await self._stub.ShowRun(
                runs.ShowRunRequest(run_id=run.value), timeout=_CALL_S
            )
        return ShowReply(status=convert.status_from_wire(answer.status), config=answer.config)

    async def stop_run(self, run: RunId, reason: str) -> RunSummary:
        """End a run."""
        request = runs.StopRunRequest(run_id=run.value, reason=reason)
        with remote_errors(self._target):
            answer = await self._stub.StopRun(request, timeout=_CALL_S)
        return convert.summary_from_wire(answer.summary)

    async def change_member(self, run: RunId, silo: str, change: MemberChange) -> RunSummary:
        """Let a silo join a run that goes on, or invite it no more."""
        request = runs.ChangeMemberRequest(
            run_id=run.value, silo=silo, change=convert.change_to_wire(change)
        )
        with remote_errors(self._target):
            answer = await self._stub.ChangeMember(request, timeout=_CALL_S)
        return convert.summary_from_wire(answer.summary)

    async def fetch_model(self, run: RunId, index: int) -> Chunk:
        """Read a chunk of the newest released model."""
        request = runs.FetchModelRequest(run_id=run.value, index=index)
        with remote_errors(self._target):
            answer = await self._stub.FetchModel(request, timeout=_CALL_S)
        return convert.chunk_from_wire(answer.chunk)

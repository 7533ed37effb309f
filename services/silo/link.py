"""The silo's calls to the coordinator, tried again until they get through or cannot.

Every call is idempotent, so a lost reply costs a repetition and nothing else. A time-out grows
with each failure and is drawn at random below its bound, so that silos do not come back in step.
A TLS failure looks like a server that is down (gRPC says UNAVAILABLE for both); therefore the
handshake is probed, and what no repetition can cure ends the process with its cause.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from secagg.ports import VectorStore
from secagg.rng import Rng
from services.clock import monotonic, utc_now
from services.errors import (
    InvalidRequestError,
    TlsCause,
    TlsError,
    UnavailableError,
    UnreachableError,
)
from services.observe.logs import Logger
from services.security.probe import probe
from services.silo.line import Line
from services.silo.metrics import SiloMetrics
from services.wire.calls import (
    CHUNK_BYTES,
    Chunk,
    Hello,
    NextCall,
    NextReply,
    SubmitCall,
    VectorId,
    VectorReference,
)
from services.wire.clients import AggregationClient

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
# So often in a row the handshake must fail: a coordinator that is killed in its midst looks the
# same, once.
_SURE: Final = 3

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class Link:
    """A silo's line to its coordinator.

    Attributes:
        give_up_s: how long in a row the coordinator may be out of reach before the process ends.
    """

    line: Line
    rng: Rng
    log: Logger
    give_up_s: float
    metrics: SiloMetrics

    @property
    def client(self) -> AggregationClient:
        """Calls once, over the channel with the newest certificate."""
        self.line.refresh()
        return self.line.client

    async def hello(self, hello: Hello) -> Hello:
        """Say who we are and which versions we know."""
        return await self._persist("Hello", lambda: self.client.hello(hello))

    async def next(self, call: NextCall) -> NextReply:
        """Ask for the next message."""
        return await self._persist("Next", lambda: self.client.next(call))

    async def submit(self, call: SubmitCall) -> None:
        """Deliver one message."""
        await self._persist("Submit", lambda: self.client.submit(call))

    async def upload(self, vector: VectorId, count: int, read: Callable[[int], bytes]) -> None:
        """Put a vector chunk by chunk; starts at the first chunk that is missing there."""
        index = 0
        while index < count:
            data = await asyncio.to_thread(read, index)
            chunk = Chunk(vector=vector, index=index, count=count, data=data)
            following = await self._persist("PutChunk", _bind(self._put_chunk, chunk))
            if following == index:
                raise InvalidRequestError(
                    f"the coordinator did not take chunk {index} of {count} of {vector}"
                )
            self.metrics.moved.labels("sent").inc(len(data))
            index = following

    async def download(self, reference: VectorReference, store: VectorStore) -> None:
        """Get a vector into the store; chunks that are there already are not fetched again."""
        vector, total = reference.vector, 0
        for index in range(reference.chunks):
            if index < store.chunks(vector.name):
                total += len(await asyncio.to_thread(store.read, vector.name, index))
                continue
            chunk = await self.get_chunk(vector, index)
            total += len(chunk.data)
            if chunk.count != reference.chunks or total > reference.nbytes:
                raise InvalidRequestError(
                    f"{vector}: expected {reference.nbytes} bytes in {reference.chunks} chunks, "
                    f"got {chunk.count} chunks or more bytes"
                )
            await asyncio.to_thread(store.write, vector.name, index, chunk.data)
        if total != reference.nbytes:
            raise InvalidRequestError(f"{vector}: expected {reference.nbytes} bytes, got {total}")

    async def fetch(self, vector: VectorId, *, max_bytes: int) -> bytes:
        """Get a whole vector of unknown size."""
        first = await self.get_chunk(vector, 0)
        if (first.count - 1) * CHUNK_BYTES > max_bytes:
            raise InvalidRequestError(f"{vector}: at most {max_bytes} bytes are accepted")
        rest = [await self.get_chunk(vector, index) for index in range(1, first.count)]
        return b"".join(piece.data for piece in (first, *rest))

    async def _put_chunk(self, chunk: Chunk) -> int:
        return await self.client.put_chunk(chunk)

    async def get_chunk(self, vector: VectorId, index: int) -> Chunk:
        """Get one piece."""
        chunk = await self._persist("GetChunk", lambda: self.client.get_chunk(vector, index))
        self.metrics.moved.labels("received").inc(len(chunk.data))
        return chunk

    async def _persist(self, name: str, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a call while the coordinator is out of reach, at most `give_up_s` seconds.

        Raises:
            TlsError: no repetition helps.
            UnreachableError: out of reach for too long.
            RemoteError: the coordinator refuses.
        """
        since, bound, refusals = monotonic(), FIRST_PAUSE_S, 0
        while True:
            try:
                answer = await call()
            except UnavailableError as error:
                self.metrics.connected.set(0)
                self.metrics.retries.labels(name).inc()
                refusal = await self._explain(error)
                refusals = refusals + 1 if refusal is not None else 0
                if refusal is not None and refusals >= _SURE:
                    raise refusal from error
                if monotonic() - since > self.give_up_s:
                    raise UnreachableError(
                        f"{self.line.target} was out of reach for {self.give_up_s:g} s: {error}"
                    ) from error
                pause = bound * (0.5 + self._draw() / 2)
                self.log.warning("retry", call=name, pause_s=round(pause, 2), reason=str(error))
                await asyncio.sleep(pause)
                bound = min(2 * bound, LONGEST_PAUSE_S)
            else:
                self.metrics.connected.set(1)
                return answer

    async def _explain(self, error: UnavailableError) -> TlsError | None:
        """What fails in the handshake, if it is that, for a reason that may stay.

        A coordinator that goes down resets a handshake, too: that is no reason to end.
        """
        try:
            line = self.line
            await asyncio.to_thread(probe, line.target, line.credentials, now=utc_now())
        except UnreachableError as reason:
            self.log.debug("unreachable", reason=str(reason), status=str(error))
        except TlsError as reason:
            self.log.warning("unreachable", reason=str(reason), status=str(error))
            return None if reason.cause is TlsCause.OTHER else reason
        return None

    def _draw(self) -> float:
        return int.from_bytes(self.rng.bytes(4)) / 2**32


def _bind(call: Callable[[Chunk], Awaitable[int]], chunk: Chunk) -> Callable[[], Awaitable[int]]:
    return lambda: call(chunk)

"""The calls over real mTLS: who may call what, what crosses the wire, and how errors come back."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import grpc.aio
import pytest

from fl.errors import DataError
from secagg.errors import ForgedSumError, NonFiniteError
from services.errors import (
    ConfigError,
    ConflictError,
    InternalError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    NotNowError,
    RemoteError,
    StorageError,
    TooLargeError,
    UnauthenticatedError,
    UnavailableError,
    VersionError,
)
from services.security.identity import Peer, Role
from services.testing import OPERATOR, LocalFederation
from services.wire.calls import (
    CHUNK_BYTES,
    Chunk,
    MemberChange,
    NextCall,
    NextReply,
    ProtocolEnvelope,
    RunState,
    RunStatus,
    StartCall,
    SubmitCall,
    WatchReply,
)
from services.wire.clients import AggregationClient, RunClient
from services.wire.servicers import CALLS_AT_ONCE
from services.wire.status import error_of
from services.wire.v1 import aggregation_service_pb2 as agg
from services.wire.v1 import aggregation_service_pb2_grpc as agg_grpc
from services.wire.v1 import vector_pb2
from tests.services.recorder import (
    HELLO,
    INCARNATION,
    NOW,
    RUN,
    SUMMARY,
    VECTOR,
    Coordinator,
    serve,
    two_silos,
)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> LocalFederation:
    """Of two silos."""
    return two_silos(tmp_path_factory.mktemp("federation"))


def test_a_silo_is_known_by_its_certificate(federation: LocalFederation) -> None:
    """Name, role and seat come from certificate and roster; every call brings its answer."""

    async def session(coordinator: Coordinator) -> None:
        async with coordinator.silo("b") as silo:
            answer = await silo.hello(HELLO)
            assert answer == replace(HELLO, signed_roster=b"roster")
            reply = await silo.next(NextCall(incarnation=bytes(16), after_sequence=0, wait_s=0))
            assert isinstance(reply.envelope, ProtocolEnvelope)
            await silo.submit(SubmitCall(run=RUN, round=1, attempt=0, message=b"message"))

    served = serve(federation, session)
    peer = Peer(name="b", role=Role.SILO, seat=2)
    assert served.recorder.seen == [("hello", peer), ("next", peer), ("submit", peer)]
    assert served.unexpected == []


def test_an_operator_starts_and_follows_runs(federation: LocalFederation) -> None:
    """Every call of RunService brings its answer."""

    async def session(coordinator: Coordinator) -> None:
        async with coordinator.operator() as operator:
            reference = await operator.put_initial_state(RUN, b"x" * 10, chunk_bytes=4)
            assert (reference.chunks, reference.nbytes, reference.vector.name) == (3, 10, "initial")
            call = StartCall(run=RUN, config=b"[run]", initial_state=reference)
            assert await operator.start_run(call) == SUMMARY
            watched = await operator.watch_run(RUN, after_revision=3, wait_s=2, after_round=2)
            assert watched == WatchReply(revision=5, status=RunStatus(summary=SUMMARY))
            assert await operator.list_runs() == (SUMMARY, SUMMARY)
            assert (await operator.show_run(RUN)).config == b"[run]"
            stopped = await operator.stop_run(RUN, "enough")
            assert (stopped.state, stopped.reason) == (RunState.STOPPED, "enough")
            for change in MemberChange:
                answer = await operator.change_member(RUN, "silo-1", change)
                assert answer.reason == f"{change} silo-1"
            assert (await operator.fetch_model(RUN, 8)).data == b"model"

    served = serve(federation, session)
    assert served.recorder.chunks == {0: b"xxxx", 1: b"xxxx", 2: b"xx"}
    assert {peer for _, peer in served.recorder.seen} == {Peer(name=OPERATOR, role=Role.OPERATOR)}


def test_each_role_has_its_calls(federation: LocalFederation) -> None:
    """An operator takes no part in a round, and a silo starts no run."""

    async def session(coordinator: Coordinator) -> None:
        async with coordinator.silo() as silo, coordinator.operator() as operator:
            async with coordinator.channel(OPERATOR, Role.OPERATOR) as channel:
                with pytest.raises(
                    NotAllowedError, match=r"expected .* role silo, got the operator"
                ):
                    await AggregationClient(channel, target="c").hello(HELLO)
                with pytest.raises(NotAllowedError, match="role silo"):
                    await AggregationClient(channel, target="c").get_chunk(VECTOR, 0)
            async with coordinator.channel("a", Role.SILO) as channel:
                with pytest.raises(
                    NotAllowedError, match=r"expected .* role operator, got the silo"
                ):
                    await RunClient(channel, target="c").list_runs()
            await silo.hello(HELLO)
            await operator.list_runs()

    served = serve(federation, session)
    assert [call for call, _ in served.recorder.seen] == ["hello", "list"]


def test_the_roster_is_asked_at_every_call(federation: LocalFederation) -> None:
    """A silo that leaves the roster is refused on a connection that is still open."""

    async def session(coordinator: Coordinator) -> None:
        async with coordinator.silo("b") as silo:
            await silo.hello(HELLO)
            full = coordinator.roster
            coordinator.roster = replace(full, seats=full.seats[:1])
            with pytest.raises(UnauthenticatedError, match="lists no such silo") as caught:
                await silo.hello(HELLO)
            assert caught.value.remote_code == "NOT_IN_ROSTER"
            other_key = replace(full.seats[1], certificate_key=bytes(32))
            coordinator.roster = replace(full, seats=(full.seats[0], other_key))
            with pytest.raises(UnauthenticatedError, match="another certificate key"):
                await silo.hello(HELLO)

    assert len(serve(federation, session).recorder.seen) == 1


def test_an_answer_is_kept_back_if_its_receiver_is_revoked_meanwhile(
    federation: LocalFederation,
) -> None:
    """A long poll that began before the new roster brings nothing after it (bug case SEC-07)."""

    async def session(coordinator: Coordinator) -> None:
        async with coordinator.silo("b") as silo:
            call = NextCall(incarnation=bytes(16), after_sequence=0, wait_s=30)
            poll = asyncio.create_task(silo.next(call))
            await coordinator.recorder.one_waits.wait()
            full = coordinator.roster
            coordinator.roster = replace(full, seats=full.seats[:1])
            coordinator.recorder.release.set()
            with pytest.raises(UnauthenticatedError, match="lists no such silo"):
                await poll

    assert serve(federation, session).answered == [("Next", "NOT_IN_ROSTER")]


def test_a_certificate_that_has_ended_is_refused_on_an_open_connection(
    federation: LocalFederation,
) -> None:
    """TLS looks at dates in the handshake only (bug case TLS-03)."""

    async def session(coordinator: Coordinator) -> None:
        async with coordinator.silo("b") as silo:
            await silo.hello(HELLO)
            coordinator.now = NOW + timedelta(days=366)
            with pytest.raises(UnauthenticatedError, match=r"silo/b ended on .* UTC") as caught:
                await silo.hello(HELLO)
            assert caught.value.remote_code == "CERTIFICATE_ENDED"

    assert len(serve(federation, session).recorder.seen) == 1


def test_a_replaced_process_is_refused_before_its_message_is_read(
    federation: LocalFederation,
) -> None:
    """Submit, PutChunk and GetChunk name the process (bug case DRP-08)."""

    async def session(coordinator: Coordinator) -> None:
        coordinator.recorder.is_replaced = True
        async with coordinator.silo() as silo:
            for call in (
                silo.submit(SubmitCall(run=RUN, round=1, attempt=0, message=b"message")),
                silo.put_chunk(Chunk(vector=VECTOR, index=0, count=1, data=b"x")),
                silo.get_chunk(VECTOR, 0),
            ):
                with pytest.raises(NotAllowedError) as caught:
                    await call
                assert caught.value.remote_code == "FENCED"

    served = serve(federation, session)
    assert served.recorder.seen == []
    assert served.answered == [(call, "FENCED") for call in ("Submit", "PutChunk", "GetChunk")]


def test_a_holder_has_a_bounded_number_of_calls_open(federation: LocalFederation) -> None:
    """One silo's flood is answered with BUSY, the others' calls go through (bug case NET-08)."""

    async def session(coordinator: Coordinator) -> None:
        call = NextCall(incarnation=bytes(16), after_sequence=0, wait_s=30)
        async with coordinator.silo("a") as flood, coordinator.silo("b") as other:
            polls = [asyncio.create_task(flood.next(call)) for _ in range(CALLS_AT_ONCE + 20)]
            for _, first in zip(range(20), asyncio.as_completed(polls), strict=False):
                with pytest.raises(UnavailableError, match="64 calls open") as caught:
                    await first
                assert caught.value.remote_code == "BUSY"
            await other.hello(HELLO)
            coordinator.recorder.release.set()
            results = await asyncio.gather(*polls, return_exceptions=True)
            assert sum(isinstance(one, NextReply) for one in results) == CALLS_AT_ONCE
            await flood.hello(HELLO)

    serve(federation, session)


def test_a_renewed_certificate_is_asked_for_with_the_end_of_the_old_one(
    federation: LocalFederation,
) -> None:
    """The caller is who its certificate says; a silo renews no other's."""

    async def session(coordinator: Coordinator) -> None:
        async with coordinator.silo("b") as silo:
            assert await silo.renew(datetime(2027, 1, 2, tzinfo=UTC)) == b"b until 2027-01-02"
        async with coordinator.channel("a", Role.SILO) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="expected seconds since 1970"):
                await agg_grpc.AggregationServiceStub(channel).Renew(
                    agg.RenewRequest(not_after_unix_s=2**63)
                )

    serve(federation, session)


def test_nobody_calls_without_a_certificate(federation: LocalFederation) -> None:
    """TLS itself refuses."""

    async def session(coordinator: Coordinator) -> None:
        root = (federation.folder("a") / "ca.pem").read_bytes()
        tls = grpc.ssl_channel_credentials(root_certificates=root)
        async with grpc.aio.secure_channel(f"localhost:{coordinator.port}", tls) as channel:
            with pytest.raises(UnavailableError):
                await AggregationClient(channel, target="c").hello(HELLO)

    assert serve(federation, session).recorder.seen == []


def test_a_whole_chunk_passes_both_ways(federation: LocalFederation) -> None:
    """1 MiB with its envelope stays below gRPC's default limit in both directions."""
    data = bytes(range(256)) * (CHUNK_BYTES // 256)

    async def session(coordinator: Coordinator) -> None:
        async with coordinator.silo() as silo:
            assert await silo.put_chunk(Chunk(vector=VECTOR, index=0, count=2, data=data)) == 1
            assert (await silo.get_chunk(VECTOR, 0)).data == data

    serve(federation, session)


def test_a_model_beyond_grpcs_limit_passes_both_ways_in_chunks(federation: LocalFederation) -> None:
    """4.4 MB up and down; where a whole message is too large, both numbers are named (NET-01)."""
    model = bytes(range(250)) * 17_600

    async def session(coordinator: Coordinator) -> None:
        async with coordinator.operator() as operator:
            reference = await operator.put_initial_state(RUN, model)
            assert (reference.chunks, reference.nbytes) == (5, len(model))
        async with coordinator.silo() as silo:
            pieces = [(await silo.get_chunk(VECTOR, index)).data for index in range(2)]
            assert b"".join(pieces) == model[: 2 * CHUNK_BYTES]
        async with coordinator.channel("a", Role.SILO) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            call = channel.unary_unary("/secagg.v1.AggregationService/Submit")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(model)
            named = error_of(caught.value, "hub")
            assert isinstance(named, TooLargeError)
            assert "4400000 vs. 4194304" in str(named)

    serve(federation, session)


def test_damaged_and_malformed_requests_do_not_reach_the_handler(
    federation: LocalFederation,
) -> None:
    """Raw messages that our own client would not send."""
    good = vector_pb2.VectorId(run_id=RUN.value, round=1, attempt=0, name="masked")
    path = vector_pb2.VectorId(run_id=RUN.value, round=1, attempt=0, name="../../etc/passwd")
    short = vector_pb2.VectorId(run_id=b"x", round=1, attempt=0, name="masked")

    def chunk(
        vector: vector_pb2.VectorId, index: int = 0, count: int = 1, data: bytes = b"x"
    ) -> agg.PutChunkRequest:
        digest = bytes(32)
        return agg.PutChunkRequest(
            chunk=vector_pb2.Chunk(
                vector=vector, index=index, count=count, digest=digest, data=data
            ),
            incarnation=INCARNATION,
        )

    async def session(coordinator: Coordinator) -> None:
        async with coordinator.channel("a", Role.SILO) as channel:
            stub = agg_grpc.AggregationServiceStub(channel)
            for request, code, words in (
                (chunk(good), "INVALID_ARGUMENT", "do not match their digest"),
                (chunk(path), "INVALID_ARGUMENT", "expected a vector name"),
                (chunk(short), "INVALID_ARGUMENT", "run id of 16 bytes"),
                (chunk(good, index=1), "INVALID_ARGUMENT", "chunk index from 0 to 0, got 1"),
                (chunk(good, data=b""), "INVALID_ARGUMENT", "got an empty one"),
                (chunk(good, data=bytes(CHUNK_BYTES + 1)), "RESOURCE_EXHAUSTED", "1048577"),
            ):
                with pytest.raises(grpc.aio.AioRpcError, match=words) as caught:
                    await stub.PutChunk(request)
                assert caught.value.code().name == code
            with pytest.raises(grpc.aio.AioRpcError, match="wait from 0 to 30 seconds, got 31"):
                await stub.Next(agg.NextRequest(incarnation=bytes(16), wait_ms=31_000))
            with pytest.raises(grpc.aio.AioRpcError, match="16 bytes, got 0"):
                await stub.Next(agg.NextRequest())

    assert serve(federation, session).recorder.seen == []


@pytest.mark.parametrize(
    ("raised", "expected", "code"),
    [
        (InvalidRequestError("w"), InvalidRequestError, "INVALID_REQUEST"),
        (NotAllowedError("w"), NotAllowedError, "NOT_ALLOWED"),
        (NotFoundError("w"), NotFoundError, "NOT_FOUND"),
        (ConflictError("w", remote_code="TWICE"), ConflictError, "TWICE"),
        (NotNowError("w"), NotNowError, "NOT_NOW"),
        (VersionError("w"), VersionError, "VERSION"),
        (TooLargeError("w"), TooLargeError, "TOO_LARGE"),
        (UnavailableError("w"), UnavailableError, "UNAVAILABLE"),
        (ConfigError("w"), InvalidRequestError, "CONFIG"),
        (ForgedSumError("w"), InvalidRequestError, "A9_FORGED_SUM"),
        (DataError("w"), InvalidRequestError, "DataError"),
    ],
)
def test_an_error_arrives_as_the_same_error(
    federation: LocalFederation, raised: Exception, expected: type[RemoteError], code: str
) -> None:
    """With its stable name and its words, also where they are not ASCII."""
    raised.args = ("wörds ★",)
    if isinstance(raised, RemoteError | ConfigError):
        raised.message = "wörds ★"

    async def session(coordinator: Coordinator) -> None:
        async with coordinator.silo() as silo:
            with pytest.raises(expected, match="wörds ★") as caught:
                await silo.hello(HELLO)
            assert type(caught.value) is expected
            assert caught.value.remote_code == code

    assert serve(federation, session, error=raised).unexpected == []


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (RuntimeError("secret"), "INTERNAL"),
        (StorageError("secret"), "STORAGE"),
        (NonFiniteError("secret"), "NON_FINITE"),
    ],
)
def test_our_own_fault_stays_at_home(
    federation: LocalFederation, raised: Exception, code: str
) -> None:
    """The caller learns that something is wrong here, and the log learns what."""

    async def session(coordinator: Coordinator) -> None:
        async with coordinator.silo() as silo:
            with pytest.raises(InternalError) as caught:
                await silo.hello(HELLO)
            assert "secret" not in str(caught.value)
            assert caught.value.remote_code == code

    assert serve(federation, session, error=raised).unexpected == [(raised, "Hello")]


def test_long_polls_do_not_hold_up_other_calls(federation: LocalFederation) -> None:
    """Sixty wait; another silo's call is answered while all of them do (bug case NET-08)."""

    async def session(coordinator: Coordinator) -> None:
        call = NextCall(incarnation=bytes(16), after_sequence=0, wait_s=30)
        async with coordinator.silo("a") as waiting, coordinator.silo("b") as other:
            polls = [asyncio.create_task(waiting.next(call)) for _ in range(60)]
            await coordinator.recorder.all_wait.wait()
            await other.hello(HELLO)
            assert not any(poll.done() for poll in polls)
            coordinator.recorder.release.set()
            assert {reply.sequence for reply in await asyncio.gather(*polls)} == {1}

    serve(federation, session)


def test_a_call_is_carried_out_though_its_caller_is_killed(federation: LocalFederation) -> None:
    """Else a round has moved and tells nobody; a poll ends with its caller."""

    async def session(coordinator: Coordinator) -> None:
        recorder = coordinator.recorder
        async with coordinator.silo() as silo:
            slow = SubmitCall(run=RUN, round=1, attempt=0, message=b"slow")
            call = NextCall(incarnation=bytes(16), after_sequence=0, wait_s=30)
            submitting = asyncio.create_task(silo.submit(slow))
            await recorder.submit_waits.wait()
            polling = asyncio.create_task(silo.next(call))
            await recorder.one_waits.wait()
            submitting.cancel()
            await asyncio.wait([submitting])
            polling.cancel()  # the later word: once it is heard, so is the first
        await recorder.poll_ended.wait()
        assert not recorder.submit_ended.is_set()
        recorder.release.set()
        await recorder.submit_ended.wait()

    served = serve(federation, session)
    assert [call for call, _ in served.recorder.seen] == ["submit", "next", "submitted"]
    assert served.answered == []

"""What crosses the wire comes back equal, and rubbish comes back as a typed error."""

import contextlib
import math
from collections.abc import Callable
from typing import TypeVar

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from secagg.ids import RunId
from services.errors import InvalidRequestError, RemoteError, TooLargeError
from services.wire import convert
from services.wire.calls import (
    CHUNK_BYTES,
    MESSAGE_BYTES,
    Chunk,
    ClosedEnvelope,
    Hello,
    NextCall,
    NextReply,
    Phase,
    PhaseCost,
    ProtocolEnvelope,
    RoundReport,
    RunPosition,
    RunState,
    RunStatus,
    RunSummary,
    SeatStatus,
    StartCall,
    SubmitCall,
    VectorId,
    VectorReference,
)
from services.wire.v1 import aggregation_service_pb2 as agg
from services.wire.v1 import run_pb2

RUN = RunId(bytes(range(16)))

runs = st.binary(min_size=16, max_size=16).map(RunId)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
digests = st.binary(min_size=32, max_size=32)
incarnations = st.binary(min_size=16, max_size=16)
messages = st.binary(min_size=1, max_size=100)
# Whole milliseconds survive the wire exactly.
seconds = st.integers(0, 2**40).map(lambda ms: ms / 1000)
vectors = st.builds(
    VectorId,
    run=runs,
    round=u64,
    attempt=u32,
    name=st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True),
)
references = st.integers(1, 2**32 - 1).flatmap(
    lambda chunks: st.builds(
        VectorReference,
        vector=vectors,
        chunks=st.just(chunks),
        nbytes=st.integers(chunks, min(chunks * CHUNK_BYTES, 2**63)),
    )
)
chunks = st.integers(1, 2**32 - 1).flatmap(
    lambda count: st.builds(
        Chunk, vector=vectors, index=st.integers(0, count - 1), count=st.just(count), data=messages
    )
)
envelopes = st.one_of(
    st.builds(
        ProtocolEnvelope,
        run=runs,
        round=u64,
        attempt=u32,
        message=messages,
        vectors=st.lists(references, max_size=3).map(tuple),
    ),
    st.builds(
        ClosedEnvelope,
        run=runs,
        state=st.sampled_from([state for state in RunState if state.is_final]),
        reason=st.text(max_size=50),
        round=u64,
        name=st.text(max_size=30),
    ),
)
replies = st.one_of(
    st.builds(NextReply, sequence=st.just(0), incarnation=incarnations),
    st.builds(
        NextReply,
        sequence=st.integers(1, 2**64 - 1),
        incarnation=incarnations,
        envelope=envelopes,
    ),
)
hellos = st.builds(
    Hello,
    protocol_version=st.just("SA1"),
    software_version=st.text(max_size=16),
    roster_version=st.integers(1, 2**64 - 1),
    roster_digest=digests,
    incarnation=incarnations,
    positions=st.lists(
        st.builds(RunPosition, run=runs, round=u64, state_digest=digests), max_size=3
    ).map(tuple),
    predecessors=st.lists(incarnations, max_size=3).map(tuple),
)
seats = st.lists(u32, max_size=5).map(tuple)
reports = st.builds(
    RoundReport,
    round=u64,
    attempts=u32,
    kind=st.sampled_from(["training", "statistics"]),
    survivors=seats,
    dropouts=seats,
    absent=seats,
    metrics=st.dictionaries(st.text(max_size=10), st.floats(allow_nan=False), max_size=3),
    costs=st.lists(
        st.builds(
            PhaseCost,
            phase=st.sampled_from(Phase),
            duration_s=seconds,
            received_bytes=u64,
            sent_bytes=u64,
        ),
        max_size=3,
    ).map(tuple),
    committed_unix_s=seconds,
    reasons=st.dictionaries(u32, st.text(max_size=10), max_size=3),
)
summaries = st.builds(
    RunSummary,
    run=runs,
    name=st.text(max_size=20),
    algorithm=st.text(max_size=20),
    state=st.sampled_from(RunState),
    reason=st.text(max_size=20),
    rounds_done=u32,
    rounds_total=u32,
    created_unix_s=seconds,
)
statuses = st.builds(
    RunStatus,
    summary=summaries,
    round=u64,
    attempt=u32,
    phase=st.none() | st.sampled_from(Phase),
    deadline_s=seconds,
    seats=st.lists(
        st.builds(
            SeatStatus,
            seat=u32,
            silo=st.text(max_size=20),
            organization=st.text(max_size=20),
            connected=st.booleans(),
            completed=st.none() | st.sampled_from(Phase),
            refusal=st.text(max_size=20),
        ),
        max_size=3,
    ).map(tuple),
    rounds=st.lists(reports, max_size=2).map(tuple),
)


Wire = TypeVar("Wire", bound=Message)


def through_bytes(message: Wire) -> Wire:
    """Serialize a message and parse it again."""
    return type(message).FromString(message.SerializeToString())


@given(chunks, references, hellos, replies, statuses)
def test_everything_comes_back_equal(
    chunk: Chunk, reference: VectorReference, hello: Hello, reply: NextReply, status: RunStatus
) -> None:
    """Through the bytes and back."""
    assert convert.chunk_from_wire(through_bytes(convert.chunk_to_wire(chunk))) == chunk
    wire = through_bytes(convert.reference_to_wire(reference))
    assert convert.reference_from_wire(wire) == reference
    assert convert.hello_from_wire(through_bytes(convert.hello_to_wire(hello))) == hello
    assert convert.reply_from_wire(through_bytes(convert.reply_to_wire(reply))) == reply
    assert convert.status_from_wire(through_bytes(convert.status_to_wire(status))) == status


submits = st.builds(SubmitCall, run=runs, round=u64, attempt=u32, message=messages)
starts = st.builds(StartCall, run=runs, config=messages, initial_state=st.none() | references)
nexts = st.builds(
    NextCall,
    incarnation=incarnations,
    after_sequence=u64,
    wait_s=st.integers(0, 30_000).map(lambda ms: ms / 1000),
)


@given(submits, starts, nexts)
def test_every_call_comes_back_equal(submit: SubmitCall, start: StartCall, call: NextCall) -> None:
    """The requests."""
    sent = through_bytes(convert.submit_to_wire(submit, b"process"))
    assert convert.submit_from_wire(sent) == submit
    assert sent.incarnation == b"process"
    assert convert.start_from_wire(through_bytes(convert.start_to_wire(start))) == start
    assert convert.next_from_wire(through_bytes(convert.next_to_wire(call))) == call


@given(st.binary(max_size=200))
def test_rubbish_is_a_typed_error(data: bytes) -> None:
    """Any bytes that protobuf accepts are a value or a RemoteError, never something else."""
    readers: tuple[Callable[[], object], ...] = (
        lambda: convert.hello_from_wire(agg.HelloRequest.FromString(data)),
        lambda: convert.next_from_wire(agg.NextRequest.FromString(data)),
        lambda: convert.reply_from_wire(agg.NextResponse.FromString(data)),
        lambda: convert.submit_from_wire(agg.SubmitRequest.FromString(data)),
    )
    for read in readers:
        with contextlib.suppress(DecodeError, RemoteError):
            read()


def test_a_flipped_bit_in_a_chunk_is_found() -> None:
    """The digest is the sender's; the error says to send again."""
    vector = VectorId(run=RUN, round=1, attempt=0, name="state")
    wire = convert.chunk_to_wire(Chunk(vector=vector, index=0, count=1, data=b"abc"))
    wire.data = b"abb"
    with pytest.raises(InvalidRequestError, match="send the chunk again") as caught:
        convert.chunk_from_wire(wire)
    assert caught.value.remote_code == "DIGEST_MISMATCH"


def test_what_a_newer_side_says_is_an_error_not_a_guess() -> None:
    """An unknown state and an unknown kind of envelope."""
    summary = run_pb2.RunSummary(run_id=RUN.value, state=99)  # type: ignore[arg-type] # a newer peer's
    with pytest.raises(InvalidRequestError, match="known run state, got number 99"):
        convert.summary_from_wire(summary)
    reply = agg.NextResponse(
        sequence=1, incarnation=bytes(16), envelope=agg.Envelope(run_id=RUN.value)
    )
    with pytest.raises(InvalidRequestError, match="envelope of a known kind"):
        convert.reply_from_wire(reply)


VECTOR = VectorId(run=RUN, round=1, attempt=0, name="state")


def vector(*, round_number: int = 0, attempt: int = 0, name: str = "x") -> VectorId:
    """Make a vector's name."""
    return VectorId(run=RUN, round=round_number, attempt=attempt, name=name)


def closed(state: RunState, reason: str = "", name: str = "") -> ClosedEnvelope:
    """Make a run's end."""
    return ClosedEnvelope(run=RUN, state=state, reason=reason, round=0, name=name)


def test_an_impossible_value_cannot_be_made() -> None:
    """On either side of the wire."""
    invalid: tuple[Callable[[], object], ...] = (
        lambda: vector(round_number=-1),
        lambda: vector(attempt=2**32),
        lambda: vector(name="a/b"),
        lambda: VectorReference(vector=VECTOR, chunks=0, nbytes=0),
        lambda: VectorReference(vector=VECTOR, chunks=2, nbytes=1),
        lambda: VectorReference(vector=VECTOR, chunks=1, nbytes=CHUNK_BYTES + 1),
        lambda: StartCall(run=RUN, config=b""),
        lambda: NextCall(incarnation=bytes(16), after_sequence=0, wait_s=math.nan),
        lambda: NextReply(sequence=1, incarnation=bytes(16)),
        lambda: closed(RunState.RUNNING),
    )
    for make in invalid:
        with pytest.raises(InvalidRequestError):
            make()
    with pytest.raises(TooLargeError, match=f"at most {MESSAGE_BYTES} bytes"):
        SubmitCall(run=RUN, round=1, attempt=0, message=bytes(MESSAGE_BYTES + 1))
    with pytest.raises(TooLargeError, match="at most 4096 bytes, got 4098"):
        closed(RunState.FAILED, "é" * 2049)
    with pytest.raises(TooLargeError, match="name"):
        closed(RunState.FAILED, name="é" * 257)
    assert closed(RunState.FAILED, name="😀" * 128).name  # what run.toml allows


def test_bulk_data_is_not_in_a_repr() -> None:
    """Logs show which chunk, not what is in it."""
    chunk = Chunk(vector=VECTOR, index=0, count=1, data=b"planted")
    submit = SubmitCall(run=RUN, round=1, attempt=0, message=b"planted")
    assert "planted" not in repr(chunk) + repr(submit)

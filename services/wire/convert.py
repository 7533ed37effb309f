"""Maps the wire's messages to the calls' vocabulary and back, checking every size on the way.

The core signs its own canonical bytes and never these messages, so nothing here is hashed except a
chunk's data, whose digest is made and checked here. Decoders raise InvalidRequestError or
TooLargeError and keep no reference to the message.
"""

import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeVar

from secagg.errors import ParameterError
from secagg.ids import RunId
from services.errors import InvalidRequestError
from services.wire.calls import (
    Chunk,
    ClosedEnvelope,
    Envelope,
    Hello,
    MemberChange,
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
from services.wire.v1 import (
    aggregation_service_pb2 as agg,
)
from services.wire.v1 import (
    run_pb2,
    run_service_pb2,
    vector_pb2,
)

_PHASES: Final = {
    Phase.ADVERTISE: run_pb2.PHASE_ADVERTISE,
    Phase.SHARE: run_pb2.PHASE_SHARE,
    Phase.MASK: run_pb2.PHASE_MASK,
    Phase.SURVIVORS: run_pb2.PHASE_SURVIVORS,
    Phase.UNMASK: run_pb2.PHASE_UNMASK,
    Phase.CLOSED: run_pb2.PHASE_CLOSED,
    Phase.ABORTED: run_pb2.PHASE_ABORTED,
}
_PHASES_BACK: Final = {number: phase for phase, number in _PHASES.items()}
_STATES: Final = {
    RunState.WAITING: run_pb2.RUN_STATE_WAITING,
    RunState.RUNNING: run_pb2.RUN_STATE_RUNNING,
    RunState.FINISHED: run_pb2.RUN_STATE_FINISHED,
    RunState.STOPPED: run_pb2.RUN_STATE_STOPPED,
    RunState.FAILED: run_pb2.RUN_STATE_FAILED,
    RunState.BUDGET_EXHAUSTED: run_pb2.RUN_STATE_BUDGET_EXHAUSTED,
}
_CHANGES: Final = {
    MemberChange.ADMIT: run_service_pb2.MEMBER_CHANGE_ADMIT,
    MemberChange.DISMISS: run_service_pb2.MEMBER_CHANGE_DISMISS,
    MemberChange.LOST: run_service_pb2.MEMBER_CHANGE_LOST,
}
_CHANGES_BACK: Final = {number: change for change, number in _CHANGES.items()}
_STATES_BACK: Final = {number: state for state, number in _STATES.items()}

Wire = TypeVar("Wire")
Value = TypeVar("Value")


def run_from_wire(data: bytes) -> RunId:
    """Read a run id of 16 bytes."""
    try:
        return RunId(data)
    except ParameterError as error:
        raise InvalidRequestError(str(error)) from error


def vector_to_wire(vector: VectorId) -> vector_pb2.VectorId:
    """Write a vector's name."""
    return vector_pb2.VectorId(
        run_id=vector.run.value, round=vector.round, attempt=vector.attempt, name=vector.name
    )


def vector_from_wire(message: vector_pb2.VectorId) -> VectorId:
    """Read a vector's name."""
    return VectorId(
        run=run_from_wire(message.run_id),
        round=message.round,
        attempt=message.attempt,
        name=message.name,
    )


def reference_to_wire(reference: VectorReference) -> vector_pb2.VectorReference:
    """Write an announcement."""
    return vector_pb2.VectorReference(
        vector=vector_to_wire(reference.vector), chunks=reference.chunks, nbytes=reference.nbytes
    )


def reference_from_wire(message: vector_pb2.VectorReference) -> VectorReference:
    """Read an announcement."""
    return VectorReference(
        vector=vector_from_wire(message.vector), chunks=message.chunks, nbytes=message.nbytes
    )


def chunk_to_wire(chunk: Chunk) -> vector_pb2.Chunk:
    """Write a chunk with its digest."""
    return vector_pb2.Chunk(
        vector=vector_to_wire(chunk.vector),
        index=chunk.index,
        count=chunk.count,
        digest=hashlib.sha256(chunk.data).digest(),
        data=chunk.data,
    )


def chunk_from_wire(message: vector_pb2.Chunk) -> Chunk:
    """Read a chunk and check its digest.

    Raises:
        InvalidRequestError: the data are not those that were sent; sending again helps.
    """
    chunk = Chunk(
        vector=vector_from_wire(message.vector),
        index=message.index,
        count=message.count,
        data=message.data,
    )
    if not hmac.compare_digest(hashlib.sha256(chunk.data).digest(), message.digest):
        raise InvalidRequestError(
            f"chunk {chunk.index} of vector {chunk.vector}: the data do not match their digest",
            hint="send the chunk again",
            remote_code="DIGEST_MISMATCH",
        )
    return chunk


def hello_to_wire(hello: Hello) -> agg.HelloRequest:
    """Write a silo's first words."""
    return agg.HelloRequest(
        protocol_version=hello.protocol_version,
        software_version=hello.software_version,
        roster_version=hello.roster_version,
        roster_digest=hello.roster_digest,
        incarnation=hello.incarnation,
        positions=[
            agg.RunPosition(
                run_id=position.run.value,
                round=position.round,
                state_digest=position.state_digest,
            )
            for position in hello.positions
        ],
        predecessors=hello.predecessors,
    )


def hello_from_wire(message: agg.HelloRequest) -> Hello:
    """Read a silo's first words."""
    return Hello(
        protocol_version=message.protocol_version,
        software_version=message.software_version,
        roster_version=message.roster_version,
        roster_digest=message.roster_digest,
        incarnation=message.incarnation,
        positions=tuple(
            RunPosition(
                run=run_from_wire(position.run_id),
                round=position.round,
                state_digest=position.state_digest,
            )
            for position in message.positions
        ),
        predecessors=tuple(message.predecessors),
    )


def welcome_to_wire(hello: Hello) -> agg.HelloResponse:
    """Write the coordinator's answer."""
    return agg.HelloResponse(
        protocol_version=hello.protocol_version,
        software_version=hello.software_version,
        roster_version=hello.roster_version,
        roster_digest=hello.roster_digest,
        incarnation=hello.incarnation,
        signed_roster=hello.signed_roster,
    )


def welcome_from_wire(message: agg.HelloResponse) -> Hello:
    """Read the coordinator's answer."""
    return Hello(
        protocol_version=message.protocol_version,
        software_version=message.software_version,
        roster_version=message.roster_version,
        roster_digest=message.roster_digest,
        incarnation=message.incarnation,
        signed_roster=message.signed_roster,
    )


def next_to_wire(call: NextCall) -> agg.NextRequest:
    """Write a question for the next envelope."""
    return agg.NextRequest(
        incarnation=call.incarnation,
        after_sequence=call.after_sequence,
        wait_ms=to_ms(call.wait_s),
    )


def next_from_wire(message: agg.NextRequest) -> NextCall:
    """Read a question for the next envelope."""
    return NextCall(
        incarnation=message.incarnation,
        after_sequence=message.after_sequence,
        wait_s=message.wait_ms / 1000,
    )


def reply_to_wire(reply: NextReply) -> agg.NextResponse:
    """Write an envelope or nothing yet."""
    return agg.NextResponse(
        sequence=reply.sequence,
        incarnation=reply.incarnation,
        envelope=None if reply.envelope is None else _envelope_to_wire(reply.envelope),
    )


def reply_from_wire(message: agg.NextResponse) -> NextReply:
    """Read an envelope or nothing yet."""
    has_envelope = message.HasField("envelope")
    return NextReply(
        sequence=message.sequence,
        incarnation=message.incarnation,
        envelope=_envelope_from_wire(message.envelope) if has_envelope else None,
    )


def _envelope_to_wire(envelope: Envelope) -> agg.Envelope:
    match envelope:
        case ProtocolEnvelope():
            protocol = agg.ProtocolMessage(
                round=envelope.round,
                attempt=envelope.attempt,
                message=envelope.message,
                vectors=[reference_to_wire(reference) for reference in envelope.vectors],
            )
            return agg.Envelope(run_id=envelope.run.value, protocol=protocol)
        case ClosedEnvelope():
            closed = agg.RunClosed(
                state=_STATES[envelope.state],
                reason=envelope.reason,
                round=envelope.round,
                name=envelope.name,
            )
            return agg.Envelope(run_id=envelope.run.value, closed=closed)


def _envelope_from_wire(message: agg.Envelope) -> Envelope:
    run = run_from_wire(message.run_id)
    match message.WhichOneof("body"):
        case "protocol":
            protocol = message.protocol
            return ProtocolEnvelope(
                run=run,
                round=protocol.round,
                attempt=protocol.attempt,
                message=protocol.message,
                vectors=tuple(reference_from_wire(vector) for vector in protocol.vectors),
            )
        case "closed":
            closed = message.closed
            return ClosedEnvelope(
                run=run,
                state=_state_from_wire(closed.state),
                reason=closed.reason,
                round=closed.round,
                name=closed.name,
            )
        case None:
            raise InvalidRequestError("expected an envelope of a known kind, got another")


def submit_to_wire(call: SubmitCall, incarnation: bytes) -> agg.SubmitRequest:
    """Write a delivery by a process."""
    return agg.SubmitRequest(
        run_id=call.run.value,
        round=call.round,
        attempt=call.attempt,
        message=call.message,
        incarnation=incarnation,
    )


def submit_from_wire(message: agg.SubmitRequest) -> SubmitCall:
    """Read a delivery."""
    return SubmitCall(
        run=run_from_wire(message.run_id),
        round=message.round,
        attempt=message.attempt,
        message=message.message,
    )


def time_to_wire(moment: datetime) -> int:
    """Write a moment in whole seconds."""
    return int(moment.timestamp())


def time_from_wire(seconds: int) -> datetime:
    """Read a moment."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise InvalidRequestError(f"expected seconds since 1970, got {seconds}") from error


def start_to_wire(call: StartCall) -> run_service_pb2.StartRunRequest:
    """Write a request to start a run."""
    return run_service_pb2.StartRunRequest(
        run_id=call.run.value,
        config=call.config,
        initial_state=_optional(reference_to_wire, call.initial_state),
    )


def start_from_wire(message: run_service_pb2.StartRunRequest) -> StartCall:
    """Read a request to start a run."""
    named = message.HasField("initial_state")
    return StartCall(
        run=run_from_wire(message.run_id),
        config=message.config,
        initial_state=reference_from_wire(message.initial_state) if named else None,
    )


def summary_to_wire(summary: RunSummary) -> run_pb2.RunSummary:
    """Write a run's line."""
    return run_pb2.RunSummary(
        run_id=summary.run.value,
        name=summary.name,
        algorithm=summary.algorithm,
        state=_STATES[summary.state],
        reason=summary.reason,
        rounds_done=summary.rounds_done,
        rounds_total=summary.rounds_total,
        created_unix_ms=to_ms(summary.created_unix_s),
    )


def summary_from_wire(message: run_pb2.RunSummary) -> RunSummary:
    """Read a run's line."""
    return RunSummary(
        run=run_from_wire(message.run_id),
        name=message.name,
        algorithm=message.algorithm,
        state=_state_from_wire(message.state),
        reason=message.reason,
        rounds_done=message.rounds_done,
        rounds_total=message.rounds_total,
        created_unix_s=message.created_unix_ms / 1000,
    )


def status_to_wire(status: RunStatus) -> run_pb2.RunStatus:
    """Write a run's status."""
    return run_pb2.RunStatus(
        summary=summary_to_wire(status.summary),
        round=status.round,
        attempt=status.attempt,
        phase=_phase_to_wire(status.phase),
        deadline_ms=to_ms(status.deadline_s),
        seats=[
            run_pb2.SeatStatus(
                seat=seat.seat,
                silo=seat.silo,
                organization=seat.organization,
                connected=seat.connected,
                completed=_phase_to_wire(seat.completed),
                refusal=seat.refusal,
            )
            for seat in status.seats
        ],
        rounds=[report_to_wire(report) for report in status.rounds],
    )


def status_from_wire(message: run_pb2.RunStatus) -> RunStatus:
    """Read a run's status."""
    return RunStatus(
        summary=summary_from_wire(message.summary),
        round=message.round,
        attempt=message.attempt,
        phase=_PHASES_BACK.get(message.phase),
        deadline_s=message.deadline_ms / 1000,
        seats=tuple(
            SeatStatus(
                seat=seat.seat,
                silo=seat.silo,
                organization=seat.organization,
                connected=seat.connected,
                completed=_PHASES_BACK.get(seat.completed),
                refusal=seat.refusal,
            )
            for seat in message.seats
        ),
        rounds=tuple(report_from_wire(report) for report in message.rounds),
    )


def report_to_wire(report: RoundReport) -> run_pb2.RoundReport:
    """Write a round's report."""
    return run_pb2.RoundReport(
        round=report.round,
        attempts=report.attempts,
        kind=report.kind,
        survivors=report.survivors,
        dropouts=report.dropouts,
        absent=report.absent,
        metrics=[
            run_pb2.Metric(name=name, value=value) for name, value in sorted(report.metrics.items())
        ],
        costs=[
            run_pb2.PhaseCost(
                phase=_PHASES[cost.phase],
                duration_ms=to_ms(cost.duration_s),
                received_bytes=cost.received_bytes,
                sent_bytes=cost.sent_bytes,
            )
            for cost in report.costs
        ],
        committed_unix_ms=to_ms(report.committed_unix_s),
        reasons=report.reasons,
    )


def report_from_wire(message: run_pb2.RoundReport) -> RoundReport:
    """Read a round's report; costs of phases that this side does not know are left out."""
    return RoundReport(
        round=message.round,
        attempts=message.attempts,
        kind=message.kind,
        survivors=tuple(message.survivors),
        dropouts=tuple(message.dropouts),
        absent=tuple(message.absent),
        metrics={metric.name: metric.value for metric in message.metrics},
        costs=tuple(
            PhaseCost(
                phase=_PHASES_BACK[cost.phase],
                duration_s=cost.duration_ms / 1000,
                received_bytes=cost.received_bytes,
                sent_bytes=cost.sent_bytes,
            )
            for cost in message.costs
            if cost.phase in _PHASES_BACK
        ),
        committed_unix_s=message.committed_unix_ms / 1000,
        reasons=dict(message.reasons),
    )


def change_to_wire(change: MemberChange) -> "run_service_pb2.MemberChange.ValueType":
    """Write what becomes of a silo in a run."""
    return _CHANGES[change]


def change_from_wire(number: "run_service_pb2.MemberChange.ValueType") -> MemberChange:
    """Read what becomes of a silo in a run."""
    if number not in _CHANGES_BACK:
        raise InvalidRequestError(
            f"expected a known change of a run's members, got number {number}",
            hint="compare the software versions of both sides",
        )
    return _CHANGES_BACK[number]


def to_ms(seconds: float) -> int:
    """Return whole milliseconds, never negative."""
    return max(0, round(seconds * 1000))


def _phase_to_wire(phase: Phase | None) -> "run_pb2.Phase.ValueType":
    return run_pb2.PHASE_UNSPECIFIED if phase is None else _PHASES[phase]


def _state_from_wire(number: "run_pb2.RunState.ValueType") -> RunState:
    if number not in _STATES_BACK:
        raise InvalidRequestError(
            f"expected a known run state, got number {number}",
            hint="compare the software versions of both sides",
        )
    return _STATES_BACK[number]


def _optional(convert: Callable[[Value], Wire], value: Value | None) -> Wire | None:
    return None if value is None else convert(value)

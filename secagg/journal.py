"""What a silo has said and promised, as records, and what follows from them.

The journal makes two promises survive a crash: nothing is signed or opened twice in different
words, and no input is submitted to a second sum that a coordinator could subtract from the first
(SA1 spec 2.5). It holds outgoing bytes, marks, and the verification key until the result is
checked. Secrets that mask an input are never in it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from secagg.canonical import peek_label
from secagg.codec import (
    ATTEMPT,
    DIGEST,
    MAX_RECORD_BYTES,
    SEATS,
    SECRET,
    U32,
    Record,
    blob,
    choice,
    listed,
    nested,
    optional,
)
from secagg.errors import ReplayError
from secagg.ids import AttemptId, RunId
from secagg.messages import Abandon
from secagg.parameters import MODE_MALICIOUS, RoundParameters
from secagg.secretbytes import Secret


class JournalEvent(StrEnum):
    """What happened in an attempt."""

    OPENED = "opened"
    SUBMITTED = "submitted"
    LATE = "late"
    SIGNED = "signed"
    UNMASKED = "unmasked"
    ABANDONED = "abandoned"
    DEAD = "dead"  # t silos of its U1 have abandoned it
    LEFT_OUT = "left out"  # a certificate names survivors without this silo
    CLOSED = "closed"  # the result passed A9
    REFUSED = "refused"  # a check failed: nothing is said or looked at any more, but Abandon
    LIFTED = "lifted"  # proven bad dealers were left out of earlier survivors


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission(Record):
    """What must be kept of a masked vector until its fate is known.

    Attributes:
        signers: members of U2 whose signature counts for this silo: its closed neighborhood.
        threshold: how many of them certify survivors.
        key: the verification key K; every silo of U2 has it, the server must not.
    """

    LABEL: ClassVar[str] = "submission"

    parameters: Annotated[RoundParameters, nested(RoundParameters)]
    model_hash: Annotated[bytes, DIGEST]
    binding: Annotated[bytes, DIGEST]
    u1: Annotated[tuple[int, ...], SEATS]
    signers: Annotated[tuple[int, ...], SEATS]
    threshold: Annotated[int, U32]
    key: Annotated[Secret, SECRET]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRecord(Record):
    """One line of the journal.

    Attributes:
        message: the bytes that are sent after this record is on disk, if any. For LIFTED the model
            hash of the state whose sum the liars spoiled.
        survivors: U3 for SIGNED, UNMASKED and CLOSED. The proven liars for LIFTED.
        submission: for SUBMITTED.
    """

    LABEL: ClassVar[str] = "journal"

    event: Annotated[JournalEvent, choice(JournalEvent)]
    attempt: Annotated[AttemptId, ATTEMPT]
    message: Annotated[bytes, blob(MAX_RECORD_BYTES, "a message")] = b""
    survivors: Annotated[tuple[int, ...], SEATS] = ()
    submission: Annotated[Submission | None, optional(Submission)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSummary(Record):
    """All that is kept for good of an attempt of which nothing will be sent again.

    Attributes:
        events: what happened in it, sorted.
        model_hash: of the state that a vector was submitted for; empty if none was.
        survivors: certified ones.
    """

    LABEL: ClassVar[str] = "journal-summary"

    attempt: Annotated[AttemptId, ATTEMPT]
    events: Annotated[tuple[JournalEvent, ...], listed(choice(JournalEvent))]
    model_hash: Annotated[bytes, blob(32, "a digest")] = b""
    survivors: Annotated[tuple[int, ...], SEATS] = ()


JournalLine = JournalRecord | AttemptSummary
# A coordinator opens a round when the one two before it is complete at the latest, and asks again
# for nothing of a complete one. One more, for good measure.
SUMMARIZED_AFTER: Final = 3


def decode_line(data: bytes) -> JournalLine:
    """Read a line of the journal; MalformedMessageError if it is none."""
    if peek_label(data) == AttemptSummary.LABEL:
        return AttemptSummary.decode(data)
    return JournalRecord.decode(data)


@dataclass(slots=True)
class _Trace:
    """All that the journal says about one attempt."""

    events: set[JournalEvent] = field(default_factory=set)
    messages: dict[JournalEvent, bytes] = field(default_factory=dict)
    submission: Submission | None = None
    model_hash: bytes = b""
    survivors: tuple[int, ...] | None = None  # certified ones only

    @property
    def is_open(self) -> bool:
        """Whether a submission's fate is still unknown (SA1 spec 2.5 v)."""
        settled = {JournalEvent.DEAD, JournalEvent.LEFT_OUT, JournalEvent.CLOSED}
        return self.submission is not None and not self.events & settled

    @property
    def counts_as_submitted(self) -> bool:
        """Whether the silo's input may be in a sum that somebody holds."""
        gone = {JournalEvent.DEAD, JournalEvent.LEFT_OUT}
        return bool(self.model_hash) and not self.events & gone

    def summary(self, attempt: AttemptId) -> AttemptSummary:
        """What is kept for good."""
        return AttemptSummary(
            attempt=attempt,
            events=tuple(sorted(self.events)),
            model_hash=self.model_hash,
            survivors=self.survivors or (),
        )


def _is_lifted(line: JournalLine) -> bool:
    return isinstance(line, JournalRecord) and line.event is JournalEvent.LIFTED


class SiloHistory:
    """A silo's journal, replayed; answers what may still be said."""

    def __init__(self, lines: Iterable[JournalLine] = ()) -> None:
        """Replay the lines in the order they were written."""
        self._traces: dict[AttemptId, _Trace] = {}
        # By the run and the state whose sum they spoiled.
        self._liars: dict[tuple[RunId, bytes], set[int]] = {}
        for line in lines:
            if isinstance(line, AttemptSummary):
                self._traces[line.attempt] = _Trace(
                    events=set(line.events),
                    model_hash=line.model_hash,
                    survivors=line.survivors or None,
                )
            else:
                self.apply(line)

    def summarize(self, lines: Sequence[JournalLine]) -> tuple[JournalLine, ...]:
        """Let go of what will not be sent again; returns what remains of the journal's lines.

        An attempt is reduced to its summary when the fate of its submission is known and its run
        has opened a round `SUMMARIZED_AFTER` or more later, or another run has been opened after
        it. Everything that 2.5 asks stays: which rounds were opened, promised or released, which
        states were submitted to, and which survivors were certified.

        Args:
            lines: the whole journal, in order.
        """
        newest: dict[RunId, int] = {}
        for attempt in self._traces:
            newest[attempt.run] = max(attempt.round, newest.pop(attempt.run, 0))
        last, high = next(reversed(newest.items()), (None, 0))
        done = {
            attempt
            for attempt, trace in self._traces.items()
            if not trace.is_open
            and (attempt.run != last or high - attempt.round >= SUMMARIZED_AFTER)
        }
        kept = {attempt: self._traces[attempt].summary(attempt) for attempt in done}
        short: list[JournalLine] = []
        for line in lines:
            if line.attempt not in done or _is_lifted(line):
                short.append(line)
            elif line.attempt in kept:
                short.append(kept.pop(line.attempt))
        self._traces = SiloHistory(short)._traces  # noqa: SLF001 - our own class
        return tuple(short)

    def apply(self, record: JournalRecord) -> None:
        """Take one more record into account."""
        if record.event is JournalEvent.LIFTED:
            spoiled = (record.attempt.run, record.message)
            self._liars.setdefault(spoiled, set()).update(record.survivors)
            return
        trace = self._traces.setdefault(record.attempt, _Trace())
        trace.events.add(record.event)
        if record.message:
            trace.messages[record.event] = record.message
        if record.submission is not None:
            trace.submission = record.submission
            trace.model_hash = record.submission.model_hash
        if record.event in {JournalEvent.UNMASKED, JournalEvent.CLOSED} and record.survivors:
            trace.survivors = record.survivors
        if record.event is JournalEvent.CLOSED:
            self._close_repeats(record.attempt.run, trace)

    def _close_repeats(self, run: RunId, told: _Trace) -> None:
        """The result of a sum is that of every attempt to make this very sum before.

        An attempt that was lost after its first Unmask has no result of its own. Once the same
        silos have summed the same state again, its fate is as good as known: what follows from
        that state is.
        """
        known = self._honest(run, told)
        for attempt, trace in self._traces.items():
            is_same = attempt.run == run and trace.model_hash == told.model_hash
            if is_same and trace.is_open and self._honest(run, trace) == known is not None:
                trace.events.add(JournalEvent.CLOSED)

    def _honest(self, run: RunId, trace: _Trace) -> tuple[int, ...] | None:
        """The certified survivors but those proven to have spoiled a sum of this run and state.

        Their inputs to it are nobody's secret; what they contribute elsewhere may be, once their
        machines are repaired.
        """
        if trace.survivors is None:
            return None
        liars = self._liars.get((run, trace.model_hash), ())
        return tuple(seat for seat in trace.survivors if seat not in liars)

    @property
    def liars(self) -> frozenset[int]:
        """All that were ever proven to this silo to have dealt badly."""
        return frozenset().union(*self._liars.values())

    def has(self, attempt: AttemptId, event: JournalEvent) -> bool:
        """Whether this happened in this attempt."""
        trace = self._traces.get(attempt)
        return trace is not None and event in trace.events

    def message(self, attempt: AttemptId, event: JournalEvent) -> bytes | None:
        """The bytes that were sent then, for sending them again."""
        trace = self._traces.get(attempt)
        return None if trace is None else trace.messages.get(event)

    def submission(self, attempt: AttemptId) -> Submission | None:
        """What was submitted in this attempt, if anything."""
        trace = self._traces.get(attempt)
        return None if trace is None else trace.submission

    def has_submitted(self, run: RunId, model: bytes) -> bool:
        """Whether this silo has submitted a vector to this state in this run."""
        return any(
            attempt.run == run and trace.model_hash == model
            for attempt, trace in self._traces.items()
        )

    def unmasked_in(self, run: RunId, round_number: int) -> AttemptId | None:
        """The attempt of this round in which shares were opened, if one was."""
        for attempt, trace in self._traces.items():
            if (attempt.run, attempt.round) == (
                run,
                round_number,
            ) and JournalEvent.UNMASKED in trace.events:
                return attempt
        return None

    def open_submissions(self, run: RunId) -> tuple[AttemptId, ...]:
        """Attempts of this run whose submission has an unknown fate, sorted."""
        return tuple(
            sorted(
                attempt
                for attempt, trace in self._traces.items()
                if attempt.run == run and trace.is_open
            )
        )

    def newly_dead(self, run: RunId, statements: Iterable[Abandon]) -> tuple[AttemptId, ...]:
        """Open submissions that these (verified) statements prove dead.

        Only statements by distinct members of the attempt's own U1 count: others hold no shares
        (SA1 spec 2.5 ii).
        """
        spoken: dict[AttemptId, set[int]] = {}
        for item in statements:
            spoken.setdefault(item.attempt_id, set()).add(item.seat)
        dead = []
        for attempt in self.open_submissions(run):
            submission = self._traces[attempt].submission
            assert submission is not None  # it is open
            members = spoken.get(attempt, set()) & set(submission.u1)
            # Proven for the complete graph only: elsewhere no attempt is provably dead.
            provable = submission.parameters.mode == MODE_MALICIOUS
            if provable and len(members) >= submission.threshold:
                dead.append(attempt)
        return tuple(dead)

    def check_open(self, parameters: RoundParameters) -> None:
        """Raise ReplayError unless this attempt may be joined (check A2)."""
        wanted = parameters.attempt_id
        for attempt, trace in self._traces.items():
            if attempt.run != wanted.run:
                continue
            if attempt.round < wanted.round:
                continue
            is_same = attempt.round == wanted.round
            if is_same and attempt.attempt >= wanted.attempt:
                raise ReplayError(f"{wanted} or a later attempt was opened before")
            # A silo that has only opened its shares may still help in its round (2.5 i).
            if JournalEvent.CLOSED in trace.events or (
                JournalEvent.UNMASKED in trace.events and not is_same
            ):
                raise ReplayError(
                    f"{wanted} was opened after round {attempt.round} had been released"
                )
            if not is_same:
                continue
            if trace.is_open and JournalEvent.UNMASKED not in trace.events:
                raise ReplayError(
                    f"this silo submitted in {attempt} and holds no abandon certificate for it"
                )

    def certified(self) -> list[frozenset[int]]:
        """The participation ledger: certified survivors of the sums so far, in order.

        They are on disk before this silo's shares leave, for a server can withhold its result
        (SA1 spec 2.4).
        """
        survivors = [self._honest(attempt.run, trace) for attempt, trace in self._traces.items()]
        return [frozenset(seats) for seats in survivors if seats is not None]

    def prior(self, kind: str, model: bytes, run: RunId) -> tuple[tuple[int, ...] | None, ...]:
        """The survivors of every earlier submission that a new one would repeat (2.5 v).

        None stands for survivors that this silo does not know, and bad dealers that were proven to
        it are left out (SA1 spec 3.4). Empty: no repeat.
        """
        found: list[tuple[int, ...] | None] = []
        for attempt, trace in self._traces.items():
            if not trace.counts_as_submitted:
                continue
            same_state = trace.model_hash == model
            still_open = (
                trace.is_open
                and attempt.run == run
                and trace.submission is not None
                and trace.submission.parameters.kind == kind
            )
            if (same_state or still_open) and (
                known := self._honest(attempt.run, trace)
            ) not in found:
                found.append(known)
        return tuple(found)

"""What a silo has said and promised, as records, and what follows from them.

The journal makes two promises survive a crash: nothing is signed or opened twice in different
words, and no input is submitted to a second sum that a coordinator could subtract from the first
(SA1 spec 2.5). It holds outgoing bytes, marks, and the verification key until the result is
checked. Secrets that mask an input are never in it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar

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
        message: the bytes that are sent after this record is on disk, if any.
        survivors: U3 for SIGNED and UNMASKED; for CLOSED where no UNMASKED names it.
        submission: for SUBMITTED.
    """

    LABEL: ClassVar[str] = "journal"

    event: Annotated[JournalEvent, choice(JournalEvent)]
    attempt: Annotated[AttemptId, ATTEMPT]
    message: Annotated[bytes, blob(MAX_RECORD_BYTES, "a message")] = b""
    survivors: Annotated[tuple[int, ...], SEATS] = ()
    submission: Annotated[Submission | None, optional(Submission)] = None


@dataclass(slots=True)
class _Trace:
    """All that the journal says about one attempt."""

    events: set[JournalEvent] = field(default_factory=set)
    messages: dict[JournalEvent, bytes] = field(default_factory=dict)
    submission: Submission | None = None
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
        return self.submission is not None and not self.events & gone


class SiloHistory:
    """A silo's journal, replayed; answers what may still be said."""

    def __init__(self, records: Iterable[JournalRecord] = ()) -> None:
        """Replay the records in the order they were written."""
        self._traces: dict[AttemptId, _Trace] = {}
        for record in records:
            self.apply(record)

    def apply(self, record: JournalRecord) -> None:
        """Take one more record into account."""
        trace = self._traces.setdefault(record.attempt, _Trace())
        trace.events.add(record.event)
        if record.message:
            trace.messages[record.event] = record.message
        if record.submission is not None:
            trace.submission = record.submission
        if record.event in {JournalEvent.UNMASKED, JournalEvent.CLOSED} and record.survivors:
            trace.survivors = record.survivors

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
        survivors = [trace.survivors for trace in self._traces.values()]
        return [frozenset(seats) for seats in survivors if seats is not None]

    def prior(self, kind: str, model: bytes, run: RunId) -> tuple[tuple[int, ...] | None, ...]:
        """The survivors of every earlier submission that a new one would repeat (2.5 v).

        None stands for survivors that this silo does not know. Empty: no repeat.
        """
        found: list[tuple[int, ...] | None] = []
        for attempt, trace in self._traces.items():
            submission = trace.submission
            if submission is None or not trace.counts_as_submitted:
                continue
            same_state = submission.model_hash == model
            still_open = trace.is_open and attempt.run == run and submission.parameters.kind == kind
            if (same_state or still_open) and trace.survivors not in found:
                found.append(trace.survivors)
        return tuple(found)

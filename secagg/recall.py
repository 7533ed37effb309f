"""What a silo may still do for an attempt that an earlier process of it opened.

A restarted silo has lost the attempt's secrets, so it signs and opens nothing new. It sends
again, byte for byte, what is in its journal; it may promise to have opened nothing; and it checks
the result of a sum that its vector is in (SA1 spec 3.5).
"""

from collections.abc import Iterable
from typing import assert_never

from secagg import messages
from secagg.effects import Finished, Persist, Send, SiloEffect
from secagg.errors import LocalProtocolError, RemoteProtocolError, ReplayError
from secagg.ids import AttemptId
from secagg.journal import JournalEvent, JournalRecord, SiloHistory, Submission
from secagg.keys import IdentityKey, verify
from secagg.parameters import RoundParameters
from secagg.ports import VectorStore
from secagg.result import check_result, check_survivors
from secagg.roster import Roster


def record(history: SiloHistory, line: JournalRecord) -> list[SiloEffect]:
    """Take a line into the history and have it written."""
    history.apply(line)
    return [Persist(record=line)]


def resend(history: SiloHistory, attempt: AttemptId, event: JournalEvent) -> Send:
    """Send again what was sent then; LocalProtocolError if the journal does not hold it."""
    data = history.message(attempt, event)
    if data is None:
        raise LocalProtocolError(f"the journal holds no message for {event} in {attempt}")
    message = messages.decode_message(data)
    if not isinstance(message, messages.SiloMessage):
        raise LocalProtocolError("the journal holds a message that no silo sends")
    return Send(message=message)


def absorb_abandons(
    statements: Iterable[messages.Abandon],
    *,
    history: SiloHistory,
    parameters: RoundParameters,
    roster: Roster,
) -> list[SiloEffect]:
    """Close own submissions that enough silos of their U1 have abandoned (SA1 spec 2.5 ii).

    Raises:
        ReplayError: a statement belongs to another federation or run.
        BadSignatureError, RosterError: its silo has not signed it, or is not on the roster.
    """
    valid = []
    for item in statements:
        if (item.federation, item.run) != (parameters.federation, parameters.run):
            raise ReplayError("an abandon statement belongs to another run")
        verify(roster.seat(item.seat).identity_key, item.signature, item.signed_bytes())
        valid.append(item)
    effects: list[SiloEffect] = []
    for attempt in history.newly_dead(parameters.run, valid):
        effects += record(history, JournalRecord(event=JournalEvent.DEAD, attempt=attempt))
    return effects


def abandon(
    attempt: AttemptId,
    *,
    history: SiloHistory,
    identity: IdentityKey,
    seat: int,
    roster: Roster,
) -> list[SiloEffect]:
    """Promise that nothing was and will be opened in this attempt; nothing once it was.

    The mark is on disk before the promise leaves, and no Unmask of this attempt follows it.
    """
    if history.unmasked_in(attempt.run, attempt.round) is not None:
        return []
    if history.message(attempt, JournalEvent.ABANDONED) is not None:
        return [resend(history, attempt, JournalEvent.ABANDONED)]
    unsigned = messages.Abandon(
        federation=roster.federation,
        run=attempt.run,
        round=attempt.round,
        attempt=attempt.attempt,
        seat=seat,
    )
    statement = messages.signed(unsigned, identity)
    line = JournalRecord(event=JournalEvent.ABANDONED, attempt=attempt, message=statement.encode())
    return [*record(history, line), Send(message=statement)]


class RecalledRound:
    """An attempt that this silo remembers only from its journal.

    One that was refused before the restart stays refused: there is one try to forge an attempt's
    sum, whatever happens to the silo's process (SA1 spec 3.4).

    Attributes:
        parting: what the driver carries out after `receive` has raised, as for `SiloRound`.
    """

    def __init__(
        self,
        attempt: AttemptId,
        *,
        seat: int,
        identity: IdentityKey,
        roster: Roster,
        history: SiloHistory,
        store: VectorStore,
    ) -> None:
        """Speak for `attempt` from what `history` says of it."""
        self.attempt = attempt
        self._seat = seat
        self._identity = identity
        self._roster = roster
        self._history = history
        self._store = store
        self.parting: list[SiloEffect] = []

    @property
    def _is_refused(self) -> bool:
        return self._history.has(self.attempt, JournalEvent.REFUSED)

    def receive(self, message: messages.ServerMessage) -> list[SiloEffect]:
        """Answer what can be answered without the attempt's secrets; ignore the rest.

        Raises:
            RemoteProtocolError: the announced sum fails a check.
            LocalProtocolError: this attempt was refused before; there is one try to forge.
        """
        self.parting = []
        match message:
            case messages.AbandonRequest():
                if message.attempt_id != self.attempt:
                    return []
                return abandon(
                    self.attempt,
                    history=self._history,
                    identity=self._identity,
                    seat=self._seat,
                    roster=self._roster,
                )
            case messages.Result():
                return self._on_result(message)
            case _ if self._is_refused:
                return []
            case messages.StateNotice():
                return self._repeat(JournalEvent.SUBMITTED)
            case messages.SurvivorsRequest():
                return self._repeat(JournalEvent.SIGNED)
            case messages.Certificate():
                return self._repeat(JournalEvent.UNMASKED)
            case messages.RoundOpen() | messages.Keys() | messages.Boxes():
                return []
            case messages.RoundFailed() | messages.Disclosure() | messages.ChunkAnswer():
                return []
            case _:
                assert_never(message)

    def can_do_without(self, message: messages.ServerMessage) -> bool:
        """Whether this message's vector is not there and not needed: a sum without this silo."""
        return isinstance(message, messages.Result) and self._is_settled_by(message)

    def _is_settled_by(self, message: messages.Result) -> bool:
        """Left out, and the sum is gone or no longer looked at: the certificate is enough."""
        has_sum = self._store.chunks(messages.SUM) > 0 and not self._is_refused
        return not has_sum and self._seat not in {entry.seat for entry in message.entries}

    def _repeat(self, event: JournalEvent) -> list[SiloEffect]:
        if self._history.message(self.attempt, event) is None:
            return []
        if event is JournalEvent.SUBMITTED and self._store.chunks(messages.MASKED) == 0:
            return []  # its fate is known, so the vector is gone; a restored server may ask
        return [resend(self._history, self.attempt, event)]

    def _on_result(self, message: messages.Result) -> list[SiloEffect]:
        submission = self._history.submission(self.attempt)
        if submission is None or self._history.has(self.attempt, JournalEvent.CLOSED):
            return []
        if self._is_refused and not self._is_settled_by(message):
            raise LocalProtocolError("this attempt was refused; there is no second result")
        try:
            return self._settle(message, submission)
        except RemoteProtocolError:
            if not self._is_refused:
                self.parting += self._mark(JournalEvent.REFUSED)
            raise

    def _settle(self, message: messages.Result, submission: Submission) -> list[SiloEffect]:
        if self._is_settled_by(message):
            check_survivors(message, submission=submission, roster=self._roster)
            return self._mark(JournalEvent.LEFT_OUT)
        aggregate = check_result(
            message, submission=submission, roster=self._roster, store=self._store
        )
        effects: list[SiloEffect] = [Finished(aggregate=aggregate)]
        if self._seat not in aggregate.survivors:
            effects += self._mark(JournalEvent.LEFT_OUT)
        return effects + self._mark(JournalEvent.CLOSED, survivors=aggregate.survivors)

    def _mark(self, event: JournalEvent, *, survivors: tuple[int, ...] = ()) -> list[SiloEffect]:
        line = JournalRecord(event=event, attempt=self.attempt, survivors=survivors)
        return record(self._history, line)

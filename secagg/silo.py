"""One silo's end of one attempt: sans-IO, one-shot, and suspicious.

Messages in, effects out; randomness, journal and storage are given at construction. Every check
of SA1 spec 3.4 stands in the method of the message it belongs to, with its name (A1 … A9). After
any exception the round is dead: its secrets are wiped and it answers nothing but a request to
abandon, and not even that once it has opened its shares.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import assert_never

from secagg import messages
from secagg.agreement import check_survivor_list, read_state_hash
from secagg.auditors import SiloAuditor
from secagg.chain import NONE_BEFORE, Standpoint, preceding_round
from secagg.dealing import Dealing, check_delivered
from secagg.effects import Aborted, AbortReason, Finished, Send, SiloEffect, TrainingWanted
from secagg.errors import (
    BadShareError,
    LocalProtocolError,
    ParameterError,
    PolicyRefusedError,
    RemoteProtocolError,
    ReplayError,
    SecondUnmaskError,
    SurvivorsMismatchError,
)
from secagg.evidence import Evidence
from secagg.holdings import Holdings
from secagg.ids import AttemptId
from secagg.journal import JournalEvent, JournalRecord, SiloHistory, Submission
from secagg.keys import IdentityKey, verify
from secagg.lifting import proven_liars
from secagg.parameters import RoundParameters
from secagg.phases import SILO_HEARS, Phase, Step, advance, require_heard
from secagg.policy import SiloPolicy
from secagg.ports import VectorStore
from secagg.recall import abandon, absorb_abandons, record, resend
from secagg.recompute import Claim
from secagg.result import check_certificate, check_result, check_survivors
from secagg.ring import IntVector
from secagg.rng import Rng
from secagg.roster import Roster
from secagg.transcript import public_coins
from secagg.vectors import check_values, mask_vector
from secagg.view import View
from secagg.witness import Witness


class SiloRound:
    """A silo in one attempt of a round.

    Args:
        seat: this silo's index in the roster.
        identity: its Ed25519 key, the one the roster names.
        roster: the newest roster it knows.
        policy: its own limits.
        history: its journal, replayed; the round keeps it up to date with what it persists.
        store: holds "state", "masked" and "sum" of this attempt.
        rng: the source of this attempt's secrets.
        standpoint: where the silo left the run; None if it has settled no round of it (SA1 spec
            2.5 v). It may be set anew whenever a result has been settled, as while an attempt that
            was opened ahead waits for its state.
        members: seats that U1 may hold, such as those that signed what the attempt is charged by;
            None means any of the roster.
    """

    def __init__(
        self,
        *,
        seat: int,
        identity: IdentityKey,
        roster: Roster,
        policy: SiloPolicy,
        history: SiloHistory,
        store: VectorStore,
        rng: Rng,
        standpoint: Standpoint | None = None,
        members: frozenset[int] | None = None,
    ) -> None:
        if roster.seat(seat).identity_key != identity.public:
            raise ParameterError(
                f"the roster names another identity key for seat {seat}; use the roster that "
                f"came with this silo's certificate"
            )
        self.phase = Phase.ADVERTISE
        self.seat = seat
        self.survivors: tuple[int, ...] = ()
        self.farewell: messages.Complaint | messages.Refusal | None = None
        self.parting: list[SiloEffect] = []
        self._witness = Witness(roster)
        self._identity = identity
        self._roster = roster
        self._policy = policy
        self._history = history
        self._store = store
        self._rng = rng
        self.standpoint = standpoint
        self._members = members
        self._after = NONE_BEFORE
        self._accepted: View | None = None
        self._holdings: Holdings | None = None
        self._own_root = b""
        self._entries: tuple[messages.SurvivorEntry, ...] = ()
        self._submitted: messages.MaskedInput | None = None
        self._auditor: SiloAuditor | None = None

    # --- what the driver calls ----------------------------------------------------------------

    @property
    def parameters(self) -> RoundParameters:
        """Of the attempt; LocalProtocolError before it is open."""
        return self._view.parameters

    @property
    def attempt(self) -> AttemptId:
        """Which attempt this is."""
        return self.parameters.attempt_id

    @property
    def evidence(self) -> list[Evidence]:
        """The cases against the coordinator that this attempt has given rise to."""
        return self._witness.evidence

    def receive(self, message: messages.ServerMessage) -> list[SiloEffect]:
        """Take one message of the server; its attachments are in the store.

        Raises:
            RemoteProtocolError: a check failed; the round is ABORTED and the driver carries out
                `parting`: the mark in the journal, then what the silo still tells the server.
            LocalProtocolError: the round is over.
        """
        with self._deadly():
            if not isinstance(message, messages.AbandonRequest | messages.RoundFailed):
                self._require_awaited(message)
            if isinstance(message, messages.AuditMessage):
                return self._on_audit(message)
            return self._dispatch(message)

    def _require_awaited(self, message: messages.ServerMessage) -> None:
        self._witness.see(message, None if self._accepted is None else self.parameters)
        is_over = self.phase in {Phase.CLOSED, Phase.ABORTED}
        if is_over and (self._auditor is None or not isinstance(message, messages.AuditMessage)):
            raise LocalProtocolError(f"this round is {self.phase}; a new attempt needs a new one")
        require_heard(SILO_HEARS, self.phase, message)

    def contribute(self, values: Mapping[str, IntVector]) -> list[SiloEffect]:
        """Mask and send this silo's vector.

        Args:
            values: per data segment the encoded integers, shape (length,), int64.

        Raises:
            ParameterError: a segment is missing or superfluous, has the wrong shape or dtype, or
                a value beyond its bound. Nothing has left the silo.
        """
        with self._deadly():
            self._require_masking()
            check_values(values, self.parameters.spec)
            return self.go_late() if self._only_helps else self._submit(values)

    def go_late(self) -> list[SiloEffect]:
        """Send no vector in this attempt and go on as a helper.

        Raises:
            LocalProtocolError: not between the state and the upload; a helper has to know the
                state too.
        """
        with self._deadly():
            self._require_masking()
            effects = self._persist(JournalEvent.LATE)
            effects.append(Send(message=messages.Late(setup=self._view.setup, seat=self.seat)))
            self.phase = advance(self.phase, Step.WENT_LATE)
            return effects

    # --- the messages, in the order of the protocol ------------------------------------------

    def _dispatch(self, message: messages.RoundMessage) -> list[SiloEffect]:
        match message:
            case messages.RoundOpen():
                return self._on_open(message)
            case messages.Keys():
                return self._on_keys(message)
            case messages.Boxes():
                return self._on_boxes(message)
            case messages.StateNotice():
                return self._on_state(message)
            case messages.SurvivorsRequest():
                return self._on_survivors(message)
            case messages.Certificate():
                return self._on_certificate(message)
            case messages.Result():
                return self._on_result(message)
            case messages.AbandonRequest():
                return self._on_abandon_request(message)
            case messages.RoundFailed():
                return self._on_failed(message)
            case _:
                assert_never(message)

    def _on_open(self, message: messages.RoundOpen) -> list[SiloEffect]:
        """A1, A2: accept the parameters, make fresh keys."""
        parameters = message.parameters
        view = View(seat=self.seat, parameters=parameters, roster=self._roster)
        self._accepted = view
        verify(self._roster.coordinator_key, message.signature, message.signed_bytes())
        self._policy.check(parameters, self._roster)
        if messages.plan_hash(message.plan) != parameters.training_plan:
            raise PolicyRefusedError(
                "policy rule training_plans: the document that came is not the one ctx names"
            )
        # What is dead is dead: on the disk too if this attempt is refused now.
        self.parting += absorb_abandons(
            message.abandons, history=self._history, parameters=parameters, roster=self._roster
        )
        self._history.check_open(parameters)
        effects, self.parting = self.parting, []
        own = Holdings(seat=self.seat, suite=parameters.cipher_suite, rng=self._rng)
        self._holdings = own
        advertise = messages.signed(own.advertise(parameters.ctx()), self._identity)
        view.advertises = {self.seat: advertise}
        effects += self._persist(JournalEvent.OPENED)
        effects.append(Send(message=advertise))
        self.phase = advance(self.phase, Step.ADVERTISED)
        return effects

    def _on_keys(self, message: messages.Keys) -> list[SiloEffect]:
        """A3: accept U1 and its keys, deal shares; only members of U1 can ever open these."""
        self._view.accept_keys(message)
        self._policy.check_cohort(self.parameters, self._view.u1)
        if self._members is not None and (others := set(self._view.u1) - self._members):
            raise PolicyRefusedError(
                f"U1: expected seats of {sorted(self._members)} only, it also holds "
                f"{sorted(others)}"
            )
        unsigned = self._own.deal(self._place, self._rng)
        share = messages.signed(unsigned, self._identity)
        self._own_root = share.root
        self.phase = advance(self.phase, Step.SHARED)
        return [Send(message=share)]

    def _on_boxes(self, message: messages.Boxes) -> list[SiloEffect]:
        """A4: accept U2 and the shares dealt to this silo."""
        self._view.accept_sharers(message, self._own_root)
        for item in message.deliveries:
            self._accept(item)
        self._view.tag_key = self._own.tag_key(self._view.setup)
        return []

    def _accept(self, item: messages.Delivery) -> None:
        verify(
            self._roster.seat(item.dealer).identity_key,
            item.signature,
            messages.share_signed_bytes(self._view.setup, item.dealer, item.root),
        )
        check_delivered(self._place, item)
        if item.dealer == self.seat:
            return
        try:
            self._own.take(self._place, item)
        except BadShareError as error:
            complaint = messages.Complaint(
                setup=self._view.setup, seat=self.seat, dealer=item.dealer, reason=error.code
            )
            self.farewell = messages.signed(complaint, self._identity)
            raise

    @property
    def public_coins(self) -> bytes:
        """32 bytes that all parties of the attempt share, for accuracy only; once training is due.

        Raises:
            LocalProtocolError: the state has not been accepted yet.
        """
        if self._accepted is None or not self._accepted.binding:
            raise LocalProtocolError("public coins follow from the accepted state")
        return public_coins(self._accepted.binding)

    def _on_state(self, message: messages.StateNotice) -> list[SiloEffect]:
        """A5: accept the model; from here on everything is bound to it."""
        self._view.check_announced(message)
        most = self._policy.max_state_bytes
        if message.nbytes > most:
            raise PolicyRefusedError(
                f"policy rule max_state_bytes: expected at most {most}, the coordinator announces "
                f"{message.nbytes}"
            )
        found = read_state_hash(message, self._store, kind=self.parameters.kind)
        self._after = preceding_round(
            message,
            standpoint=self.standpoint,
            is_taken=self._history.has_submitted(self.attempt.run, found),
            parameters=self.parameters,
            roster=self._roster,
        )
        is_own = self.standpoint is not None and self.standpoint.model_hash == found
        self._policy.check_state(found, is_successor=is_own)
        self._view.bind(found)
        if self._only_helps:
            return self.go_late()
        return [TrainingWanted(parameters=self.parameters, state_hash=message.model_hash)]

    @property
    def _only_helps(self) -> bool:
        """Whether this silo may submit nothing here.

        Asked when the state comes and again when the vector is there: in between, another
        attempt may have gone on.
        """
        if self._history.unmasked_in(self.attempt.run, self.attempt.round) is not None:
            return True  # 2.5 (i): after Unmask it only helps
        known = self.standpoint
        if known is not None and not known.follows(self._view.model_hash, self._after):
            return True  # 2.5 (v): a result has come since; this state is older than what follows
        prior = self._prior()
        return None in prior or len(prior) > 1  # 2.5 (v): it cannot name the earlier survivors

    def _prior(self) -> tuple[tuple[int, ...] | None, ...]:
        return self._history.prior(self.parameters.kind, self._view.model_hash, self.attempt.run)

    def _require_masking(self) -> None:
        if self.phase is not Phase.MASK or not self._view.binding:
            raise LocalProtocolError(
                f"a vector is due between state and survivors, not now in phase {self.phase}"
            )

    def _submit(self, values: Mapping[str, IntVector]) -> list[SiloEffect]:
        parameters = self.parameters
        wire = parameters.wire_spec
        root = mask_vector(
            values,
            spec=parameters.spec,
            tags=self._view.tags if parameters.has_tags else None,
            generator=parameters.cipher_suite.generator,
            seat=self.seat,
            seeds=self._mask_seeds(wire.names),
            store=self._store,
            name=messages.MASKED,
        )
        prior = self._prior()
        unsigned = messages.MaskedInput(
            binding=self._view.binding,
            seat=self.seat,
            root=root,
            lengths=tuple(segment.length for segment in wire.segments),
            chunks=len(wire.chunks),
            nbytes=wire.wire_bytes,
            prior=prior[0] if prior and prior[0] is not None else (),
        )
        masked = messages.signed(unsigned, self._identity)
        submission = self._view.submission
        effects = self._persist(
            JournalEvent.SUBMITTED, message=masked.encode(), submission=submission
        )
        effects.append(Send(message=masked))
        self._submitted = masked
        self.phase = advance(self.phase, Step.MASKED)
        return effects

    def _mask_seeds(self, segments: tuple[str, ...]) -> dict[str, list[tuple[int, bytes]]]:
        return self._own.mask_seeds(
            segments,
            binding=self._view.binding,
            peers=[peer for peer in self._view.near if peer != self.seat],
            advertises=self._view.advertises,
        )

    def _on_survivors(self, message: messages.SurvivorsRequest) -> list[SiloEffect]:
        """A6: sign the survivors, once."""
        if self.phase is Phase.UNMASK:
            return self._repeat_signature(message)
        if not self._view.binding:
            raise SurvivorsMismatchError("survivors were announced before the round's state")
        effects = [] if self.phase is Phase.SURVIVORS else self.go_late()
        liars = proven_liars(
            message,
            seat=self.seat,
            run=self.parameters.run,
            kind=self.parameters.kind,
            model_hash=self._view.model_hash,
            roster=self._roster,
        )
        if liars:  # proven is proven: on the disk too if these survivors are refused
            self.parting += self._persist(
                JournalEvent.LIFTED,
                message=self._view.model_hash,
                survivors=tuple(sorted(liars)),
            )
        seats = check_survivor_list(
            message.entries,
            None if self._submitted is None else self._submitted.entry,
            seat=self.seat,
            binding=self._view.binding,
            share_roots=self._view.share_roots,
            silos=len(self._view.advertises),
            parameters=self.parameters,
            roster=self._roster,
            liars=liars,
        )
        # With the liars, who may be honest again by now, and without them: behind a liar that comes
        # or goes, an honest silo could do so unseen.
        earlier = self._history.certified()
        for ignored in {frozenset[int](), self._history.liars}:
            sums = [members - ignored for members in earlier]
            self._policy.check_ledger(sums, frozenset(seats) - ignored)
        effects, self.parting = [*effects, *self.parting], []
        digest = messages.survivors_hash(message.entries)
        unsigned = messages.Survivors(binding=self._view.binding, seat=self.seat, survivors=digest)
        survivors = messages.signed(unsigned, self._identity)
        self._entries = message.entries
        self.survivors = seats
        effects += self._persist(JournalEvent.SIGNED, message=survivors.encode(), survivors=seats)
        effects.append(Send(message=survivors))
        self.phase = advance(self.phase, Step.SIGNED)
        return effects

    def _repeat_signature(self, message: messages.SurvivorsRequest) -> list[SiloEffect]:
        if message.entries != self._entries:
            raise SurvivorsMismatchError("this silo has signed other survivors in this attempt")
        return [self._resend(JournalEvent.SIGNED)]

    def _on_certificate(self, message: messages.Certificate) -> list[SiloEffect]:
        """A7, A8: enough silos have signed the same survivors; open the shares, once."""
        check_certificate(
            message.endorsements,
            survivors=messages.survivors_hash(self._entries),
            binding=self._view.binding,
            members=self._view.near,
            threshold=self._view.graph.threshold,
            roster=self._roster,
        )
        if self.phase is Phase.RESULT:
            return [self._resend(JournalEvent.UNMASKED)]
        if self._history.unmasked_in(self.attempt.run, self.attempt.round) is not None:
            raise SecondUnmaskError("this silo has opened its shares in an attempt of this round")
        if self._history.has(self.attempt, JournalEvent.ABANDONED):
            raise SecondUnmaskError("this silo has promised to open nothing in this attempt")
        openings = tuple(self._opening(dealer) for dealer in self._view.near)
        unsigned = messages.Unmask(binding=self._view.binding, seat=self.seat, openings=openings)
        unmask = messages.signed(unsigned, self._identity)
        effects: list[SiloEffect] = []
        if self._submitted is not None and self.seat not in self.survivors:
            effects += self._persist(JournalEvent.LEFT_OUT)
        effects += self._persist(
            JournalEvent.UNMASKED, message=unmask.encode(), survivors=self.survivors
        )
        effects.append(Send(message=unmask))
        self.phase = advance(self.phase, Step.OPENED)
        self._wipe()
        return effects

    def _opening(self, dealer: int) -> messages.Opening:
        return self._own.opening(dealer, survived=dealer in self.survivors)

    def _on_result(self, message: messages.Result) -> list[SiloEffect]:
        """A9: check the sum that the server announces."""
        if self.parameters.redundancy:
            self._auditor = self._make_auditor(message)
        aggregate = check_result(
            message,
            submission=self._view.submission,
            roster=self._roster,
            store=self._store,
        )
        # The sum is used before the submission is closed: a crash in between leaves it open, and
        # the result is checked once more. The other way round its successor would be unknown.
        effects: list[SiloEffect] = [Finished(aggregate=aggregate)]
        effects += self._persist(JournalEvent.CLOSED, survivors=aggregate.survivors)
        self._wipe()  # the others were enough: this silo opens nothing any more
        self.phase = advance(self.phase, Step.FINISHED)
        return effects

    def _make_auditor(self, message: messages.Result) -> SiloAuditor:
        """Be ready to recompute this sum, also if its tags are wrong: that tells who lies."""
        check_survivors(message, submission=self._view.submission, roster=self._roster)
        return SiloAuditor(
            Claim(
                parameters=self.parameters,
                advertises=self._view.advertises,
                share_roots=self._view.share_roots,
                model_hash=self._view.model_hash,
                result=message,
            ),
            seat=self.seat,
            identity=self._identity,
            roster=self._roster,
            rng=self._rng,
            own_chunks=self._policy.own_chunks,
        )

    def recompute(self) -> list[SiloEffect]:
        """Begin to recompute a part of the announced sum, where ctx asks for it (SA1 spec 5.2).

        Call it once after a Result, whether that was accepted or refused.

        Raises:
            LocalProtocolError: ctx does not ask for it, or no authentic result has come.
        """
        if self._auditor is None:
            raise LocalProtocolError("there is no announced sum to recompute")
        return [Send(message=self._auditor.nonce)]

    @property
    def auditor(self) -> SiloAuditor | None:
        """What this silo has recomputed, once an authentic result has come; else None."""
        return self._auditor

    def _on_audit(self, message: messages.AuditMessage) -> list[SiloEffect]:
        """Tier 2: compare what the server shows with what it has signed."""
        auditor = self._auditor
        assert auditor is not None  # required before the message is looked at
        try:
            return [Send(message=request) for request in auditor.receive(message)]
        finally:
            self._witness.add(auditor.evidence)

    def _on_abandon_request(self, message: messages.AbandonRequest) -> list[SiloEffect]:
        """Promise never to open anything in this attempt; refused once something was opened."""
        if self._accepted is None or message.attempt_id != self.attempt:
            raise ReplayError("asked to abandon another attempt than this one")
        effects = abandon(
            self.attempt,
            history=self._history,
            identity=self._identity,
            seat=self.seat,
            roster=self._roster,
        )
        if effects and self.phase not in {Phase.CLOSED, Phase.ABORTED}:
            self._wipe()
            self.phase = advance(self.phase, Step.FAILED)
        return effects

    def _on_failed(self, message: messages.RoundFailed) -> list[SiloEffect]:
        """The server gives the attempt up; that is a courtesy and proves nothing."""
        is_over = self.phase in {Phase.CLOSED, Phase.ABORTED}
        if is_over or (self._accepted is not None and message.attempt_id != self.attempt):
            return []
        self._wipe()
        self.phase = advance(self.phase, Step.FAILED)
        return [Aborted(reason=AbortReason.STOPPED, detail=message.reason)]

    # --- helpers ------------------------------------------------------------------------------

    @property
    def _view(self) -> View:
        if self._accepted is None:
            raise LocalProtocolError("the round is not open yet")
        return self._accepted

    @property
    def _own(self) -> Holdings:
        if self._holdings is None:
            raise LocalProtocolError("the round is not open yet")
        return self._holdings

    @property
    def _place(self) -> Dealing:
        return self._own.among(self._view.advertises, self._view.graph, self._view.setup)

    def _persist(
        self,
        event: JournalEvent,
        *,
        message: bytes = b"",
        survivors: tuple[int, ...] = (),
        submission: Submission | None = None,
    ) -> list[SiloEffect]:
        return record(
            self._history,
            JournalRecord(
                event=event,
                attempt=self.attempt,
                message=message,
                survivors=survivors,
                submission=submission,
            ),
        )

    def _resend(self, event: JournalEvent) -> Send:
        return resend(self._history, self.attempt, event)

    def _wipe(self) -> None:
        """Forget a, b, k, the private keys and all shares; K and the binding stay for A9."""
        if self._holdings is not None:
            self._holdings.wipe()

    @contextmanager
    def _deadly(self) -> Iterator[None]:
        """Whatever is raised inside ends the round."""
        self.parting = []
        try:
            yield
        except BaseException as error:
            self._die(error)
            raise

    def _die(self, error: BaseException) -> None:
        if self.phase in {Phase.CLOSED, Phase.ABORTED}:
            return
        if self._accepted is not None and isinstance(error, RemoteProtocolError):
            if self._history.has(self.attempt, JournalEvent.OPENED):
                self.parting += self._persist(JournalEvent.REFUSED)
            if self.farewell is None:
                refusal = messages.Refusal(
                    ctx=self.parameters.ctx(), seat=self.seat, code=error.code, reason=str(error)
                )
                self.farewell = messages.signed(refusal, self._identity)
            self.parting.append(Send(message=self.farewell))
        self._wipe()
        self.phase = advance(self.phase, Step.FAILED)

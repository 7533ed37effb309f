"""The server's end of one attempt: relays, counts, sums, and never sees an input.

Sans-IO and one-shot. A silo's bad message raises `RemoteProtocolError` and changes nothing: one
silo's rubbish stops nobody's round. Whatever a silo would check before it acts, the server checks
before it relays. Too few silos at a phase's end is an outcome (`Aborted`), not an error.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from secagg import messages
from secagg.auditors import ServerAudit
from secagg.blame import Suspect, suspects
from secagg.codec import MAX_RECORD_BYTES
from secagg.effects import (
    Aborted,
    AbortReason,
    Aggregate,
    Broadcast,
    DeadlineSet,
    Finished,
    ReleaseWanted,
    SendTo,
    ServerEffect,
)
from secagg.errors import (
    BadDealerError,
    ForgedSumError,
    LocalProtocolError,
    ParameterError,
    RosterError,
    WrongPhaseError,
)
from secagg.evidence import Evidence
from secagg.intake import Intake, masked_name
from secagg.keys import IdentityKey
from secagg.lifting import may_lift
from secagg.messages import STATE, SUM
from secagg.parameters import MODE_MALICIOUS, RoundParameters
from secagg.phases import SERVER_HEARS, Phase, Step, advance, require_heard
from secagg.ports import VectorStore
from secagg.recompute import THE_SUM, Claim
from secagg.repeats import agreeing
from secagg.ring import IntVector
from secagg.roster import Roster
from secagg.transcript import public_coins, transcript_digest
from secagg.unmasking import rebuild_secrets, residual_masks
from secagg.vectors import (
    OpenedSum,
    Unkept,
    check_ranges,
    put_sum,
    read_sum,
    root_of,
    sum_and_unmask,
)

# Makes of exact sums by segment the noised ones to release.
Noising: TypeAlias = Callable[[Mapping[str, IntVector]], Mapping[str, IntVector]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseDeadlines:
    """How long the server waits in each phase, seconds."""

    advertise_s: float = 60.0
    share_s: float = 60.0
    mask_s: float = 3600.0
    survivors_s: float = 60.0
    unmask_s: float = 60.0
    closed_s: float = 600.0  # for the nonces of silos that recompute, and for their requests

    def __post_init__(self) -> None:
        for phase in (*_TIMED_PHASES, Phase.CLOSED):
            if not self.of(phase) > 0:  # not a number either
                raise ParameterError(f"the deadline of phase {phase} must be above 0 seconds")

    def of(self, phase: Phase) -> float:
        """Seconds for this phase."""
        seconds: float = getattr(self, f"{phase.value}_s")
        return seconds


_TIMED_PHASES: Final = (
    Phase.ADVERTISE,
    Phase.SHARE,
    Phase.MASK,
    Phase.SURVIVORS,
    Phase.UNMASK,
)


class ServerRound:
    """The server in one attempt of a round.

    Args:
        parameters: of the attempt.
        plan: the training plan's document.
        roster: the current one; ctx names its digest.
        signing_key: the coordinator's Ed25519 key, the one the roster names.
        store: holds "state" (before `set_state`), the uploads and the sum.
        cohort: invited seats, sorted.
        deadlines: seconds a phase.
        abandons: statements that make earlier attempts of this run dead.
    """

    def __init__(
        self,
        *,
        parameters: RoundParameters,
        plan: bytes,
        roster: Roster,
        signing_key: IdentityKey,
        store: VectorStore,
        cohort: tuple[int, ...],
        deadlines: PhaseDeadlines,
        abandons: tuple[messages.Abandon, ...] = (),
    ) -> None:
        if signing_key.public != roster.coordinator_key:
            raise ParameterError("the roster names another coordinator key than this one")
        if parameters.roster_digest != roster.digest():
            raise ParameterError("the round's parameters name another roster than this one")
        if messages.plan_hash(plan) != parameters.training_plan:
            raise ParameterError("the round's parameters name another training plan")
        if list(cohort) != sorted(set(cohort)) or not set(cohort) <= set(roster.indices):
            raise ParameterError("a cohort is a sorted tuple of distinct seats of the roster")
        if len(cohort) > parameters.n_max:
            raise ParameterError(
                f"the rings are sized for n_max = {parameters.n_max} silos, got {len(cohort)}"
            )
        self.phase = Phase.ADVERTISE
        self.parameters = parameters
        self.cohort = cohort
        self.deadline: float | None = None
        self._plan = plan
        self._roster = roster
        self._signing_key = signing_key
        self._store = store
        self._deadlines = deadlines
        self._earlier_abandons = abandons
        self._suite = parameters.cipher_suite
        self._intake = Intake(parameters, roster=roster, cohort=cohort, store=store)
        self._lost: set[int] = set()
        self._asks_to_abandon = False
        self._state: messages.StateNotice | None = None
        self._certificate: tuple[messages.Endorsement, ...] = ()
        self._cases: list[Evidence] = []
        self._audit: ServerAudit | None = None

    # --- what the driver calls ----------------------------------------------------------------

    def start(self, now: float) -> list[ServerEffect]:
        """Open the attempt."""
        opening = messages.signed(
            messages.RoundOpen(
                parameters=self.parameters, plan=self._plan, abandons=self._earlier_abandons
            ),
            self._signing_key,
        )
        effects: list[ServerEffect] = [Broadcast(seats=self.cohort, message=opening)]
        return effects + self._set_deadline(now)

    def receive(self, seat: int, message: messages.SiloMessage, now: float) -> list[ServerEffect]:
        """Take one message of the silo on this seat; its attachments are in the store.

        The same message again is fine and has no effect.

        Raises:
            RemoteProtocolError: the message fails a check; nothing has changed.
        """
        if message.seat != seat:
            raise RosterError(
                f"seat {seat} sent a message in the name of seat {message.seat}", silo=seat
            )
        if isinstance(message, messages.AuditorMessage):
            return self._recompute(message, now)
        if self._intake.has(message):
            return []
        require_heard(SERVER_HEARS, self.phase, message)
        self._intake.take(message)
        return self._after(message, now)

    def _recompute(self, message: messages.AuditorMessage, now: float) -> list[ServerEffect]:
        """Serve the silos that recompute the sum, each phase of it for `closed_s` at most."""
        if self._audit is None:
            raise WrongPhaseError("this sum is not, or not any more, shown for recomputing")
        if isinstance(message, messages.ChunkRequest):
            return [SendTo(seat=message.seat, message=self._audit.answer(message))]
        is_first = not self._audit.nonces
        self._audit.take_nonce(message)
        effects = self._close_if_complete(now)
        return effects or (self._set_deadline(now) if is_first else [])

    def _disclose(self, now: float) -> list[ServerEffect]:
        audit = self._audit
        assert audit is not None  # else there is no deadline, and nothing that could be complete
        if audit.is_disclosed:
            self._audit = None  # the time for requests is over
            self.deadline = None
            return [DeadlineSet(at=None)]
        disclosure = audit.disclose()
        effects: list[ServerEffect] = [Broadcast(seats=tuple(audit.nonces), message=disclosure)]
        return effects + self._set_deadline(now)

    def _after(self, message: messages.Statement, now: float) -> list[ServerEffect]:
        """What a new statement sets off."""
        match message:
            case messages.Complaint():
                detail = f"seat {message.seat} about seat {message.dealer}: {message.reason}"
                return self._abort(AbortReason.COMPLAINT, detail, ())
            case messages.Refusal() if self.phase is Phase.CLOSED:
                return []  # of the sum: this silo wants to see how it came about all the more
            case messages.Refusal():
                return self.lost(message.seat, now)
            case messages.Abandon() if self.phase is Phase.UNMASK:
                enough = len(self._intake.abandons) >= self._intake.graph.threshold
                return self._close(now) if enough else []
            case _:
                return self._close_if_complete(now)

    def set_state(
        self, now: float, succession: messages.Succession | None = None
    ) -> list[ServerEffect]:
        """The round's state is in the store under "state": announce it when U2 is fixed.

        Args:
            now: the driver's time.
            succession: silos' word on which round the state follows; None for a first state, or
                where it is not there.
        """
        if self._state is not None:
            raise LocalProtocolError("the round's state was set before")
        pieces = range(self._store.chunks(STATE))
        state = b"".join(self._store.read(STATE, piece) for piece in pieces)
        self._state = messages.StateNotice(
            setup=b"",
            model_hash=messages.model_hash(self.parameters.kind, state),
            nbytes=len(state),
            succession=succession,
        )
        return self._announce_state(now) if self.phase is Phase.MASK else []

    def show(self, cases: Iterable[Evidence]) -> list[ServerEffect]:
        """Know of cases that the silos must see if the survivors lack who is accused in them.

        Which of them are about a dealer and this round's state is found out when it is needed; the
        others do no harm (SA1 spec 2.5 v, 3.4).
        """
        room = MAX_RECORD_BYTES // 2 - sum(len(case.encode()) for case in self._cases)
        for case in (one for one in cases if one not in self._cases):
            room -= len(case.encode())
            if room >= 0 and len(self._cases) < messages.MAX_CASES:
                self._cases.append(case)
        return []

    def lost(self, seat: int, now: float) -> list[ServerEffect]:
        """Stop waiting for this silo in this attempt: it was restarted or is gone."""
        self._lost.add(seat)
        return self._close_if_complete(now)

    def expire(self, now: float) -> list[ServerEffect]:
        """Close the phase if its deadline has passed."""
        if self.deadline is None or now < self.deadline:
            return []
        return self._close(now)

    def stop(self, detail: str) -> list[ServerEffect]:
        """Give the attempt up from outside."""
        return self._abort(AbortReason.STOPPED, detail, ())

    def _make_audit(self, result: messages.Result) -> ServerAudit:
        kept = self._intake
        return ServerAudit(
            Claim(
                parameters=self.parameters,
                advertises=kept.advertises,
                share_roots=kept.share_roots,
                model_hash=self._state_notice.model_hash,
                result=result,
            ),
            roster=self._roster,
            shares=kept.shares,
            secrets=rebuild_secrets(
                dealers=kept.u2, survivors=self.survivors, openings=kept.openings, graph=kept.graph
            ),
            store=self._store,
            names={seat: masked_name(seat) for seat in self.survivors} | {THE_SUM: SUM},
        )

    def open(
        self, executor: Executor | None = None, *, noise: Noising | None = None
    ) -> list[ServerEffect]:
        """Rebuild the masks that remain, take them off and publish the sum.

        Call it after `ReleaseWanted`, once the ledger is settled; it is the expensive step.

        Args:
            executor: spreads the chunks over threads.
            noise: of a vector that is noised: the exact sums by segment to the ones to release.

        Security: an exact sum that is to be noised stays in memory. The noised one is stored
        before it is sent, and a second call tells that one again: another draw would be another
        release.
        """
        if self.phase is not Phase.RESULT:
            raise LocalProtocolError(f"there is nothing to open in phase {self.phase}")
        if self.parameters.is_noised != (noise is not None):
            raise LocalProtocolError("noise is for vectors that are noised, and for all of them")
        wire = self.parameters.wire_spec
        if noise is not None and self._store.chunks(SUM) == len(wire.chunks):
            root = root_of(self._store, SUM, wire)
            return self._publish(read_sum(self._store, SUM, wire, root))
        try:
            removals = residual_masks(
                suite=self._suite,
                setup=self._intake.setup,
                binding=self._intake.binding,
                segments=wire.names,
                survivors=self.survivors,
                advertises=self._intake.advertises,
                shares=self._intake.shares,
                openings=self._intake.openings,
                graph=self._intake.graph,
            )
        except BadDealerError as error:
            self._intake.keep_bad_dealer(error)
            return self._abort(AbortReason.BAD_DEALER, str(error), ())
        opened = sum_and_unmask(
            spec=wire,
            store=self._store if noise is None else Unkept(self._store),
            uploads=[masked_name(seat) for seat in self.survivors],
            removals=removals,
            name=SUM,
            generator=self._suite.generator,
            executor=executor,
        )
        try:
            check_ranges(opened.values, self.parameters.spec, len(self.survivors))
        except ForgedSumError as error:  # a silo's vector was no sum of bounded integers and masks
            self._store.discard(SUM)
            return self._abort(AbortReason.OUT_OF_RANGE, str(error), ())
        if noise is not None:
            noised = noise(opened.values)
            opened = put_sum(noised, spec=wire, store=self._store, name=SUM)
        return self._publish(opened)

    def _publish(self, opened: OpenedSum) -> list[ServerEffect]:
        """Sign the sum and give it to the silos."""
        wire = self.parameters.wire_spec
        unsigned = messages.Result(
            binding=self._intake.binding,
            entries=self._intake.entries,
            endorsements=self._certificate,
            root=opened.root,
            chunks=len(wire.chunks),
            nbytes=wire.wire_bytes,
        )
        complete = replace(unsigned, transcript=transcript_digest(unsigned))
        result = messages.signed(complete, self._signing_key)
        self.phase = advance(self.phase, Step.FINISHED)
        if self.parameters.redundancy:
            self._audit = self._make_audit(result)
        aggregate = Aggregate(
            values=opened.values,
            survivors=self.survivors,
            cohort=self._intake.u1,
            parameters=self.parameters,
            state_hash=self._state_notice.model_hash,
            public_coins=public_coins(self._intake.binding),
        )
        return [
            Broadcast(seats=self._intake.u2, message=result),
            Finished(aggregate=aggregate),
        ]

    @property
    def survivors(self) -> tuple[int, ...]:
        """U3, once it is fixed."""
        return self._intake.survivors

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Cases against silos that came up in this attempt."""
        return tuple(self._intake.evidence)

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Whom the round's next attempt does without."""
        return suspects(self._intake.evidence, self._intake.complaints)

    @property
    def abandons(self) -> tuple[messages.Abandon, ...]:
        """Abandon statements of U1's silos for this attempt."""
        return tuple(self._intake.abandons[seat] for seat in sorted(self._intake.abandons))

    @property
    def is_shown(self) -> bool:
        """Whether silos may still recompute the sum."""
        return self._audit is not None

    @property
    def may_retry(self) -> bool:
        """Whether an aborted attempt may be followed by another one of the same round.

        Before the state was announced: freely, for nobody can have masked a vector. After: once
        t silos have abandoned it, which only the complete graph makes a proof (SA1 spec 2.5).
        """
        if self.phase is not Phase.ABORTED:
            return False
        if not self._intake.binding:
            return True
        provable = self.parameters.mode == MODE_MALICIOUS
        return provable and len(self._intake.abandons) >= self._intake.graph.threshold

    def awaited(self) -> tuple[int, ...]:
        """Seats whose message is still awaited in this phase."""
        kept = self._intake
        expected: Mapping[Phase, tuple[set[int], set[int]]] = {
            Phase.ADVERTISE: (set(self.cohort), set(kept.advertises)),
            Phase.SHARE: (set(kept.advertises), set(kept.shares)),
            Phase.MASK: (set(kept.shares), set(kept.masked) | kept.late),
            Phase.SURVIVORS: (set(kept.shares), set(kept.signed)),
            Phase.UNMASK: (set(kept.shares), set(kept.unmasks)),
        }
        if self._audit is not None and not self._audit.is_disclosed:
            expected = {Phase.CLOSED: (set(kept.shares), set(self._audit.nonces))}
        asked, answered = expected.get(self.phase, (set(), set()))
        return tuple(sorted(asked - answered - self._lost))

    # --- the ends of phases -------------------------------------------------------------------

    @property
    def _is_enough(self) -> bool:
        """Whether t of every neighborhood have signed, or have opened their shares."""
        kept = self._intake
        return kept.is_enough(set(kept.signed if self.phase is Phase.SURVIVORS else kept.unmasks))

    @property
    def _needed(self) -> str:
        return f"{self._intake.graph.threshold} of each neighborhood are needed"

    @property
    def _state_notice(self) -> messages.StateNotice:
        if self._state is None:
            raise LocalProtocolError("the round has no state yet")
        return self._state

    def _set_deadline(self, now: float) -> list[ServerEffect]:
        waits = self.phase in _TIMED_PHASES or self._audit is not None
        if self.phase is Phase.MASK and not self._intake.binding:
            waits = False  # opened ahead: the state comes when the last round has ended
        self.deadline = now + self._deadlines.of(self.phase) if waits else None
        return [DeadlineSet(at=self.deadline)]

    def _close_if_complete(self, now: float) -> list[ServerEffect]:
        """Close the phase early: when all have answered, or t of each neighborhood where t do."""
        if self.phase in {Phase.SURVIVORS, Phase.UNMASK}:
            complete = self._is_enough or not (self.awaited() or self._asks_to_abandon)
        elif self.phase is Phase.CLOSED:
            audit = self._audit
            waits = audit is None or audit.is_disclosed or not audit.nonces
            complete = not (waits or self.awaited())
        else:
            complete = self.phase in _TIMED_PHASES and not self.awaited()
            if self.phase is Phase.MASK and not self._intake.binding:
                complete = False  # a state that is still being made is no reason to close
        return self._close(now) if complete else []

    def _close(self, now: float) -> list[ServerEffect]:
        close = {
            Phase.ADVERTISE: self._close_advertise,
            Phase.SHARE: self._close_share,
            Phase.MASK: self._close_mask,
            Phase.SURVIVORS: self._close_survivors,
            Phase.UNMASK: self._close_unmask,
            Phase.CLOSED: self._disclose,
        }
        return close[self.phase](now)  # the other phases have no deadline and await nothing

    def _close_advertise(self, now: float) -> list[ServerEffect]:
        u1 = self._intake.u1
        short = self._too_few(u1, AbortReason.TOO_FEW_ADVERTISED, self.cohort)
        if short:
            return short
        try:
            self._intake.fix_keys()
        except ParameterError as error:  # a regular graph needs enough silos
            return self._abort(AbortReason.TOO_FEW_ADVERTISED, str(error), ())
        self.phase = advance(self.phase, Step.ADVERTISED)
        keys = messages.Keys(advertises=tuple(self._intake.advertises[seat] for seat in u1))
        return [Broadcast(seats=u1, message=keys), *self._set_deadline(now)]

    def _close_share(self, now: float) -> list[ServerEffect]:
        u2 = self._intake.u2
        short = self._too_few(u2, AbortReason.TOO_FEW_SHARED, tuple(self._intake.advertises))
        if short:
            return short
        self.phase = advance(self.phase, Step.SHARED)
        deliveries = {
            dealer: self._intake.shares[dealer].deliveries(self._intake.trees[dealer])
            for dealer in u2
        }
        roots = self._intake.share_roots
        effects: list[ServerEffect] = []
        for holder in u2:
            near = self._intake.near(holder)
            boxes = messages.Boxes(
                deliveries=tuple(deliveries[dealer][holder] for dealer in near),
                distant=tuple(
                    messages.DistantRoot(dealer=dealer, root=roots[dealer])
                    for dealer in u2
                    if dealer not in near
                ),
            )
            effects.append(SendTo(seat=holder, message=boxes))
        effects += self._set_deadline(now)
        return effects + (self._announce_state(now) if self._state else [])

    def _announce_state(self, now: float) -> list[ServerEffect]:
        """Sign the state for this setup; from here on silos train, so the wait starts anew."""
        unsigned = replace(self._state_notice, setup=self._intake.setup)
        notice = messages.signed(unsigned, self._signing_key)
        self._state = notice
        self._intake.fix_state(notice.model_hash)
        return [
            Broadcast(seats=self._intake.u2, message=notice),
            *self._set_deadline(now),
            *self._close_if_complete(now),  # all of U2 may have been lost while it was made
        ]

    def _close_mask(self, now: float) -> list[ServerEffect]:
        u3 = tuple(sorted(self._intake.masked))
        short = self._too_few(u3, AbortReason.TOO_FEW_MASKED, tuple(self._intake.shares))
        if short:
            return short
        liars = self._proven_liars()
        priors = {seat: self._intake.masked[seat].prior for seat in u3}
        agreed = agreeing(
            priors, n_c=self.parameters.n_c, liars=liars.keys(), may_sum=self._may_sum
        )
        if not agreed:
            stale = [seat for seat in u3 if priors[seat]]
            return self._abort(
                AbortReason.REPEAT,
                f"seats {stale} were in a sum over this state with other survivors; ask the same "
                "silos, or statistics with noise (--z), or train with standardize = false: the "
                "difference would show one silo's input",
                (),
            )
        self._intake.fix_survivors(tuple(self._intake.masked[seat].entry for seat in agreed))
        self.phase = advance(self.phase, Step.MASKED)
        lacking = {one for entry in self._intake.entries for one in entry.prior} - set(agreed)
        request = messages.SurvivorsRequest(
            entries=self._intake.entries,
            cases=tuple(liars[seat].encode() for seat in sorted(lacking)),
        )
        return [
            Broadcast(seats=self._intake.u2, message=request),
            *self._set_deadline(now),
        ]

    def _proven_liars(self) -> dict[int, Evidence]:
        """The cases that allow to leave a seat out of earlier survivors in this round."""
        run, kind = self.parameters.run, self.parameters.kind
        model_hash = self._state_notice.model_hash
        return {
            case.accused: case
            for case in self._cases
            if may_lift(case, run=run, kind=kind, model_hash=model_hash, roster=self._roster)
        }

    def _may_sum(self, seats: tuple[int, ...]) -> bool:
        """Whether they are enough, and of enough organizations."""
        enough = len(seats) >= self.parameters.floor(len(self._intake.advertises))
        return enough and self._roster.organizations(seats) >= self.parameters.n_orgs

    def _close_survivors(self, now: float) -> list[ServerEffect]:
        if not self._is_enough:
            return self._abort(
                AbortReason.TOO_FEW_SIGNED,
                f"{len(self._intake.signed)}; {self._needed}",
                self.awaited(),
            )
        self._certificate = tuple(
            messages.Endorsement(seat=seat, signature=signed.signature)
            for seat, signed in sorted(self._intake.signed.items())
        )
        self.phase = advance(self.phase, Step.SIGNED)
        certificate = messages.Certificate(endorsements=self._certificate)
        return [
            Broadcast(seats=self._intake.u2, message=certificate),
            *self._set_deadline(now),
        ]

    def _close_unmask(self, now: float) -> list[ServerEffect]:
        if not self._is_enough:
            own = self.parameters
            if not self._asks_to_abandon:
                # The shares may still come, or t promises that they never will (SA1 spec 3.6).
                self._asks_to_abandon = True
                request = messages.AbandonRequest(run=own.run, round=own.round, attempt=own.attempt)
                return [Broadcast(seats=self._intake.u1, message=request), *self._set_deadline(now)]
            return self._abort(
                AbortReason.TOO_FEW_OPENED,
                f"{len(self._intake.unmasks)}; {self._needed}; the round is lost unless they "
                f"abandon it",
                self.awaited(),
            )
        self.phase = advance(self.phase, Step.OPENED)
        return [*self._set_deadline(now), ReleaseWanted()]

    def _too_few(
        self, seats: tuple[int, ...], reason: AbortReason, asked: tuple[int, ...]
    ) -> list[ServerEffect]:
        silos = len(self._intake.advertises)
        floor = self.parameters.floor(silos)
        missing = tuple(sorted(set(asked) - set(seats)))
        if len(seats) < floor:
            return self._abort(reason, f"{len(seats)} of at least {floor}", missing)
        found = self._roster.organizations(seats)
        if found < self.parameters.n_orgs:
            detail = f"{found} of at least {self.parameters.n_orgs}"
            return self._abort(AbortReason.TOO_FEW_ORGANIZATIONS, detail, missing)
        return []

    def _abort(
        self, reason: AbortReason, detail: str, missing: tuple[int, ...]
    ) -> list[ServerEffect]:
        """End without a sum; once vectors may have been masked, ask for Abandon statements."""
        self.phase = advance(self.phase, Step.FAILED)
        self.deadline = None
        own = self.parameters
        effects: list[ServerEffect] = []
        if self._intake.binding:
            request = messages.AbandonRequest(run=own.run, round=own.round, attempt=own.attempt)
            effects.append(Broadcast(seats=self._intake.u1, message=request))
        failed = messages.RoundFailed(
            run=own.run, round=own.round, attempt=own.attempt, reason=f"{reason}: {detail}"
        )
        effects.append(Broadcast(seats=self.cohort, message=failed))
        effects.append(DeadlineSet(at=None))
        effects.append(
            Aborted(reason=reason, detail=detail, missing=missing, suspects=self.suspects)
        )
        return effects

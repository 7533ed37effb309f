"""The server's end of one attempt: relays, counts, sums, and never sees an input.

Sans-IO and one-shot. A silo's bad message raises `RemoteProtocolError` and changes nothing: one
silo's rubbish stops nobody's round. Whatever a silo would check before it acts, the server checks
before it relays. Too few silos at a phase's end is an outcome (`Aborted`), not an error.
"""

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final

from secagg import canonical, messages
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
    BadKeyError,
    BadShareError,
    ContradictionError,
    EvidenceError,
    LocalProtocolError,
    MalformedMessageError,
    ParameterError,
    ReplayError,
    RosterError,
)
from secagg.evidence import (
    Evidence,
    EvidenceKind,
    bad_dealer,
    bad_revealer,
    judge,
    two_statements,
)
from secagg.graph import Graph
from secagg.keys import IdentityKey, verify
from secagg.messages import MASKED, STATE, SUM, Opening, ShareKind
from secagg.parameters import MODE_MALICIOUS, RoundParameters
from secagg.phases import SERVER_HEARS, Phase, Step, advance, require_heard
from secagg.ports import VectorStore
from secagg.roster import Roster
from secagg.sealing import commit_share
from secagg.transcript import binding_digest, setup_digest, transcript_digest
from secagg.unmasking import residual_masks
from secagg.vectors import check_ranges, root_of, sum_and_unmask


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseDeadlines:
    """How long the server waits in each phase, seconds."""

    advertise_s: float = 60.0
    share_s: float = 60.0
    mask_s: float = 3600.0
    survivors_s: float = 60.0
    unmask_s: float = 60.0

    def __post_init__(self) -> None:
        for phase in _TIMED_PHASES:
            if self.of(phase) <= 0:
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


def masked_name(seat: int) -> str:
    """The name of a silo's masked vector in the server's store."""
    return f"{MASKED}.{seat}"


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
        self._ctx = parameters.ctx()
        self._suite = parameters.cipher_suite
        self.evidence: list[Evidence] = []
        self._seen: dict[tuple[int, str], messages.SiloMessage] = {}
        self._lost: set[int] = set()
        self._advertises: dict[int, messages.Advertise] = {}
        self._shares: dict[int, messages.Share] = {}
        self._masked: dict[int, messages.MaskedInput] = {}
        self._late: set[int] = set()
        self._signed: dict[int, bytes] = {}
        self._pool: dict[int, messages.Unmask] = {}
        self._abandons: dict[int, messages.Abandon] = {}
        self._graph: Graph | None = None
        self._setup = b""
        self._state: messages.StateNotice | None = None
        self._binding = b""
        self._entries: tuple[messages.SurvivorEntry, ...] = ()
        self._certificate: tuple[messages.Endorsement, ...] = ()

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
        key = (seat, message.LABEL)
        if key in self._seen:
            if self._seen[key] != message:
                self._keep_contradiction(self._seen[key], message)
                raise ContradictionError(
                    f"seat {seat} sent two different {message.LABEL} in one attempt", silo=seat
                )
            return []
        require_heard(SERVER_HEARS, self.phase, message)
        effects = self._dispatch(message, now)
        self._seen[key] = message
        return effects

    def _keep_contradiction(
        self, first: messages.SiloMessage, second: messages.SiloMessage
    ) -> None:
        """Keep the two messages as evidence if both are signed and a third party would agree."""
        case = two_statements(
            EvidenceKind.CONTRADICTION, first.seat, self.parameters, first, second
        )
        try:
            judge(case, self._roster)
        except EvidenceError:
            return
        self.evidence.append(case)

    def set_state(self, now: float) -> list[ServerEffect]:
        """The round's state is in the store under "state": announce it when U2 is fixed."""
        if self._state is not None:
            raise LocalProtocolError("the round's state was set before")
        pieces = range(self._store.chunks(STATE))
        state = b"".join(self._store.read(STATE, piece) for piece in pieces)
        self._state = messages.StateNotice(
            setup=b"",
            model_hash=messages.model_hash(self.parameters.kind, state),
            nbytes=len(state),
        )
        return self._announce_state(now) if self.phase is Phase.MASK else []

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

    def open(self, executor: Executor | None = None) -> list[ServerEffect]:
        """Rebuild the masks that remain, take them off and publish the sum.

        Call it after `ReleaseWanted`, once the ledger is settled; it is the expensive step.
        """
        if self.phase is not Phase.RESULT:
            raise LocalProtocolError(f"there is nothing to open in phase {self.phase}")
        wire = self.parameters.wire_spec
        try:
            removals = residual_masks(
                suite=self._suite,
                setup=self._setup,
                binding=self._binding,
                segments=wire.names,
                survivors=self.survivors,
                advertises=self._advertises,
                shares=self._shares,
                openings={
                    seat: {(item.dealer, item.kind): item.share for item in unmask.openings}
                    for seat, unmask in self._pool.items()
                },
                graph=self._own_graph,
            )
        except BadDealerError as error:
            self._keep_bad_dealer(error)
            return self._abort(AbortReason.BAD_DEALER, str(error), ())
        opened = sum_and_unmask(
            spec=wire,
            store=self._store,
            uploads=[masked_name(seat) for seat in self.survivors],
            removals=removals,
            name=SUM,
            generator=self._suite.generator,
            executor=executor,
        )
        check_ranges(opened.values, self.parameters.spec, len(self.survivors))
        unsigned = messages.Result(
            binding=self._binding,
            entries=self._entries,
            endorsements=self._certificate,
            root=opened.root,
            chunks=len(wire.chunks),
            nbytes=wire.wire_bytes,
        )
        complete = replace(unsigned, transcript=transcript_digest(unsigned))
        result = messages.signed(complete, self._signing_key)
        self.phase = advance(self.phase, Step.FINISHED)
        aggregate = Aggregate(
            values=opened.values,
            survivors=self.survivors,
            cohort=tuple(sorted(self._advertises)),
            parameters=self.parameters,
            state_hash=self._state_notice.model_hash,
        )
        return [
            Broadcast(seats=tuple(sorted(self._shares)), message=result),
            Finished(aggregate=aggregate),
        ]

    @property
    def survivors(self) -> tuple[int, ...]:
        """U3, once it is fixed."""
        return tuple(entry.seat for entry in self._entries)

    @property
    def abandons(self) -> tuple[messages.Abandon, ...]:
        """Abandon statements of U1's silos for this attempt."""
        return tuple(self._abandons[seat] for seat in sorted(self._abandons))

    @property
    def may_retry(self) -> bool:
        """Whether an aborted attempt may be followed by another one of the same round.

        Before any masked vector came: freely. After: once t silos have abandoned it.
        """
        if self.phase is not Phase.ABORTED:
            return False
        if not self._masked:
            return True
        provable = self.parameters.mode == MODE_MALICIOUS
        return provable and len(self._abandons) >= self._own_graph.threshold

    def awaited(self) -> tuple[int, ...]:
        """Seats whose message is still awaited in this phase."""
        expected: Mapping[Phase, tuple[set[int], set[int]]] = {
            Phase.ADVERTISE: (set(self.cohort), set(self._advertises)),
            Phase.SHARE: (set(self._advertises), set(self._shares)),
            Phase.MASK: (set(self._shares), set(self._masked) | self._late),
            Phase.SURVIVORS: (set(self._shares), set(self._signed)),
            Phase.UNMASK: (set(self._shares), set(self._pool)),
        }
        asked, answered = expected.get(self.phase, (set(), set()))
        return tuple(sorted(asked - answered - self._lost))

    # --- messages -----------------------------------------------------------------------------

    def _dispatch(self, message: messages.SiloMessage, now: float) -> list[ServerEffect]:
        match message:
            case messages.Advertise():
                return self._on_advertise(message, now)
            case messages.Share():
                return self._on_share(message, now)
            case messages.MaskedInput():
                return self._on_masked(message, now)
            case messages.Late():
                return self._on_late(message, now)
            case messages.Survivors():
                return self._on_survivors(message, now)
            case messages.Unmask():
                return self._on_unmask(message, now)
            case messages.Abandon():
                return self._on_abandon(message)
            case messages.Complaint():
                return self._on_complaint(message)
            case messages.Refusal():
                self._verify(message)
                return self.lost(message.seat, now)

    def _on_advertise(self, message: messages.Advertise, now: float) -> list[ServerEffect]:
        seat = message.seat
        if seat not in self.cohort:
            raise RosterError(f"seat {seat} is not invited to this round", silo=seat)
        if message.ctx != self._ctx:
            raise ReplayError("keys were advertised for another attempt", silo=seat)
        self._verify(message)
        taken = frozenset().union(*(item.public_keys for item in self._advertises.values()))
        expected = 4 if self._suite.is_hybrid else 2
        if len(message.public_keys) != expected or message.public_keys & taken:
            raise BadKeyError(
                f"{expected} keys are advertised in suite {self._suite.number}, each another one",
                silo=seat,
            )
        self._advertises[seat] = message
        return self._close_if_complete(now)

    def _on_share(self, message: messages.Share, now: float) -> list[ServerEffect]:
        seat = message.seat
        if seat not in self._advertises:
            raise RosterError(f"seat {seat} has not advertised keys in this attempt", silo=seat)
        if message.setup != self._setup:
            raise ReplayError("shares were dealt for another set of keys", silo=seat)
        if tuple(box.holder for box in message.boxes) != self._own_graph.holders(seat):
            raise MalformedMessageError("shares must be dealt to every neighbor, in order")
        hybrid_suite = self._suite.is_hybrid
        if not all(box.is_shaped(seat, hybrid_suite=hybrid_suite) for box in message.boxes):
            raise MalformedMessageError("a box lacks a part or has one too many", silo=seat)
        self._verify(message)
        self._shares[seat] = message
        return self._close_if_complete(now)

    def _on_masked(self, message: messages.MaskedInput, now: float) -> list[ServerEffect]:
        seat = message.seat
        if seat not in self._shares or seat in self._late:
            raise RosterError(f"no masked vector is awaited from seat {seat}", silo=seat)
        if not self._binding or message.binding != self._binding:
            raise ReplayError("a vector was masked for another view of the round", silo=seat)
        wire = self.parameters.wire_spec
        if message.lengths != tuple(segment.length for segment in wire.segments):
            raise MalformedMessageError("a masked vector has other segment lengths", silo=seat)
        self._verify(message)
        if root_of(self._store, masked_name(seat), wire) != message.root:
            raise MalformedMessageError(
                "the chunks of a masked vector are not those under its root", silo=seat
            )
        self._masked[seat] = message
        return self._close_if_complete(now)

    def _on_late(self, message: messages.Late, now: float) -> list[ServerEffect]:
        if message.seat not in self._shares or message.seat in self._masked:
            raise RosterError(f"seat {message.seat} cannot go late now", silo=message.seat)
        if message.setup != self._setup:
            raise ReplayError("a silo goes late in another attempt", silo=message.seat)
        self._late.add(message.seat)
        return self._close_if_complete(now)

    def _on_survivors(self, message: messages.Survivors, now: float) -> list[ServerEffect]:
        seat = message.seat
        if seat not in self._shares:
            raise RosterError(f"seat {seat} is not in U2", silo=seat)
        if (message.binding, message.survivors) != (
            self._binding,
            messages.survivors_hash(self._entries),
        ):
            raise ReplayError("a silo signed other survivors", silo=seat)
        self._verify(message)
        if self.phase is not Phase.SURVIVORS:
            return []  # the certificate is complete without it
        self._signed[seat] = message.signature
        return self._close_if_complete(now)

    def _on_unmask(self, message: messages.Unmask, now: float) -> list[ServerEffect]:
        seat = message.seat
        if seat not in self._shares:
            raise RosterError(f"seat {seat} is not in U2", silo=seat)
        if message.binding != self._binding:
            raise ReplayError("shares were opened for another view of the round", silo=seat)
        self._verify(message)
        survivors = set(self.survivors)
        expected = tuple(
            (dealer, ShareKind.SELF if dealer in survivors else ShareKind.KEY)
            for dealer in self._near(seat)
        )
        if tuple((item.dealer, item.kind) for item in message.openings) != expected:
            raise BadShareError(
                "one share is opened for each silo of U2: of its self mask if it survived, of "
                "its key if not",
                silo=seat,
            )
        for item in message.openings:
            self._check_opening(message, item)
        if self.phase is not Phase.UNMASK:
            return []  # enough shares are here
        self._pool[seat] = message
        return self._close_if_complete(now)

    def _check_opening(self, message: messages.Unmask, item: Opening) -> None:
        holder = message.seat
        share = self._shares[item.dealer]
        dealt = share.boxes[self._own_graph.holders(item.dealer).index(holder)]
        promised = dealt.commitment_a if item.kind is ShareKind.KEY else dealt.commitment_b
        found = commit_share(self._setup, item.dealer, holder, item.kind.value, item.share)
        if found != promised:
            self.evidence.append(
                bad_revealer(
                    parameters=self.parameters,
                    advertises=self._advertises,
                    share=share,
                    unmask=message,
                    model_hash=self._state_notice.model_hash,
                    share_roots=self._share_roots(),
                )
            )
            raise BadShareError(
                f"a share of seat {item.dealer} is not the one it was dealt", silo=holder
            )

    def _keep_bad_dealer(self, error: BadDealerError) -> None:
        dealer = error.silo
        assert dealer is not None  # a bad dealer is named
        near = self._own_graph.holders(dealer)
        self.evidence.append(
            bad_dealer(
                dealer=dealer,
                parameters=self.parameters,
                advertises=self._advertises,
                share=self._shares[dealer],
                unmasks={seat: item for seat, item in self._pool.items() if seat in near},
                model_hash=self._state_notice.model_hash,
                share_roots=self._share_roots(),
            )
        )

    def _share_roots(self) -> dict[int, bytes]:
        return {seat: share.root for seat, share in self._shares.items()}

    def _on_abandon(self, message: messages.Abandon) -> list[ServerEffect]:
        own = self.parameters
        if (message.federation, message.attempt_id) != (own.federation, own.attempt_id):
            raise ReplayError("a silo abandons another attempt", silo=message.seat)
        if message.seat not in self._advertises:
            raise RosterError("only silos of U1 can abandon an attempt", silo=message.seat)
        self._verify(message)
        self._abandons[message.seat] = message
        return []

    def _on_complaint(self, message: messages.Complaint) -> list[ServerEffect]:
        if message.setup != self._setup:
            raise ReplayError("a complaint is about another attempt", silo=message.seat)
        if message.seat not in self._shares or message.dealer not in self._shares:
            raise RosterError("a complaint names a silo outside U2", silo=message.seat)
        self._verify(message)
        return self._abort(
            AbortReason.COMPLAINT,
            f"seat {message.seat} about seat {message.dealer}: {message.reason}",
            (),
        )

    def _verify(self, message: messages.SignedSiloMessage) -> None:
        key = self._roster.seat(message.seat).identity_key
        verify(key, message.signature, message.signed_bytes())

    # --- the ends of phases -------------------------------------------------------------------

    @property
    def _own_graph(self) -> Graph:
        if self._graph is None:
            raise LocalProtocolError("the neighborhoods are not known yet")
        return self._graph

    def _near(self, seat: int) -> tuple[int, ...]:
        """The members of U2 in a silo's closed neighborhood; all of U2 in a complete graph."""
        return tuple(sorted(set(self._shares) & set(self._own_graph.holders(seat))))

    def _answered(self) -> set[int]:
        return set(self._signed) if self.phase is Phase.SURVIVORS else set(self._pool)

    def _is_enough(self, answered: set[int]) -> bool:
        """Whether t silos of every U2 member's neighborhood have answered."""
        graph = self._own_graph
        return all(len(answered & set(graph.holders(s))) >= graph.threshold for s in self._shares)

    @property
    def _state_notice(self) -> messages.StateNotice:
        if self._state is None:
            raise LocalProtocolError("the round has no state yet")
        return self._state

    def _set_deadline(self, now: float) -> list[ServerEffect]:
        waits = self.phase in _TIMED_PHASES
        self.deadline = now + self._deadlines.of(self.phase) if waits else None
        return [DeadlineSet(at=self.deadline)]

    def _close_if_complete(self, now: float) -> list[ServerEffect]:
        """Close the phase early: when all have answered, or t of each neighborhood where t do."""
        if self.phase in {Phase.SURVIVORS, Phase.UNMASK}:
            complete = self._is_enough(self._answered()) or not self.awaited()
        else:
            complete = self.phase in _TIMED_PHASES and not self.awaited()
            # A state that is still being made is no reason to close.
            complete = complete and not (self.phase is Phase.MASK and not self._binding)
        return self._close(now) if complete else []

    def _close(self, now: float) -> list[ServerEffect]:
        match self.phase:
            case Phase.ADVERTISE:
                return self._close_advertise(now)
            case Phase.SHARE:
                return self._close_share(now)
            case Phase.MASK:
                return self._close_mask(now)
            case Phase.SURVIVORS:
                return self._close_survivors(now)
            case Phase.UNMASK:
                return self._close_unmask(now)
            case Phase.RESULT | Phase.CLOSED | Phase.ABORTED:
                return []

    def _close_advertise(self, now: float) -> list[ServerEffect]:
        u1 = tuple(sorted(self._advertises))
        short = self._too_few(u1, AbortReason.TOO_FEW_ADVERTISED, self.cohort)
        if short:
            return short
        self._setup = setup_digest(self._ctx, self._advertises)
        try:
            self._graph = self.parameters.neighborhoods(u1, self._setup)
        except ParameterError as error:  # a regular graph needs enough silos
            return self._abort(AbortReason.TOO_FEW_ADVERTISED, str(error), ())
        self.phase = advance(self.phase, Step.ADVERTISED)
        keys = messages.Keys(advertises=tuple(self._advertises[seat] for seat in u1))
        return [Broadcast(seats=u1, message=keys), *self._set_deadline(now)]

    def _close_share(self, now: float) -> list[ServerEffect]:
        u2 = tuple(sorted(self._shares))
        short = self._too_few(u2, AbortReason.TOO_FEW_SHARED, tuple(self._advertises))
        if short:
            return short
        self.phase = advance(self.phase, Step.SHARED)
        deliveries = {dealer: _deliveries(self._shares[dealer]) for dealer in u2}
        roots = self._share_roots()
        effects: list[ServerEffect] = []
        for holder in u2:
            near = self._near(holder)
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
        unsigned = messages.StateNotice(
            setup=self._setup,
            model_hash=self._state_notice.model_hash,
            nbytes=self._state_notice.nbytes,
        )
        notice = messages.signed(unsigned, self._signing_key)
        self._state = notice
        self._binding = binding_digest(self._setup, notice.model_hash, self._share_roots())
        return [
            Broadcast(seats=tuple(sorted(self._shares)), message=notice),
            *self._set_deadline(now),
        ]

    def _close_mask(self, now: float) -> list[ServerEffect]:
        u3 = tuple(sorted(self._masked))
        short = self._too_few(u3, AbortReason.TOO_FEW_MASKED, tuple(self._shares))
        if short:
            return short
        entries = tuple(self._masked[seat].entry for seat in u3)
        stale = [entry.seat for entry in entries if entry.prior and entry.prior != u3]
        if stale:
            return self._abort(
                AbortReason.REPEAT,
                f"seats {stale} were in a sum over this state with other survivors",
                (),
            )
        self._entries = entries
        self.phase = advance(self.phase, Step.MASKED)
        request = messages.SurvivorsRequest(entries=entries)
        return [
            Broadcast(seats=tuple(sorted(self._shares)), message=request),
            *self._set_deadline(now),
        ]

    def _close_survivors(self, now: float) -> list[ServerEffect]:
        if not self._is_enough(self._answered()):
            return self._abort(
                AbortReason.TOO_FEW_SIGNED,
                f"{len(self._signed)}, {self._own_graph.threshold} of each neighborhood are needed",
                self.awaited(),
            )
        self._certificate = tuple(
            messages.Endorsement(seat=seat, signature=self._signed[seat])
            for seat in sorted(self._signed)
        )
        self.phase = advance(self.phase, Step.SIGNED)
        certificate = messages.Certificate(endorsements=self._certificate)
        return [
            Broadcast(seats=tuple(sorted(self._shares)), message=certificate),
            *self._set_deadline(now),
        ]

    def _close_unmask(self, now: float) -> list[ServerEffect]:
        if not self._is_enough(self._answered()):
            return self._abort(
                AbortReason.TOO_FEW_OPENED,
                f"{len(self._pool)}, {self._own_graph.threshold} of each neighborhood are needed; "
                f"the round is lost unless they abandon it",
                self.awaited(),
            )
        self.phase = advance(self.phase, Step.OPENED)
        return [*self._set_deadline(now), ReleaseWanted()]

    def _too_few(
        self, seats: tuple[int, ...], reason: AbortReason, asked: tuple[int, ...]
    ) -> list[ServerEffect]:
        silos = len(self._advertises)
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
        if self._masked:
            request = messages.AbandonRequest(run=own.run, round=own.round, attempt=own.attempt)
            effects.append(Broadcast(seats=tuple(sorted(self._advertises)), message=request))
        failed = messages.RoundFailed(
            run=own.run, round=own.round, attempt=own.attempt, reason=f"{reason}: {detail}"
        )
        effects.append(Broadcast(seats=self.cohort, message=failed))
        effects.append(DeadlineSet(at=None))
        effects.append(Aborted(reason=reason, detail=detail, missing=missing))
        return effects


def _deliveries(share: messages.Share) -> dict[int, messages.Delivery]:
    """What each holder gets of one dealer's shares, from one Merkle tree over its boxes."""
    boxes_root = share.boxes_root
    paths = canonical.merkle_paths([box.encode() for box in share.boxes])
    return {
        box.holder: messages.Delivery(
            dealer=share.seat,
            box=box,
            path=path,
            boxes_root=boxes_root,
            commitment_b=share.commitment_b,
            commitment_k=share.commitment_k,
            signature=share.signature,
        )
        for box, path in zip(share.boxes, paths, strict=True)
    }

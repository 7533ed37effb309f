"""The statements of an attempt at the server: each is checked before it is kept.

What a silo would check of another's statement before it acts, the server checks before it relays
(SA1 spec 3.4, server checks). A statement that fails changes nothing. Which statement is awaited
when is the affair of `server`; this file only knows what a good one is.
"""

from bisect import bisect_left
from typing import assert_never

from secagg import messages
from secagg.canonical import MerkleTree
from secagg.errors import (
    BadDealerError,
    BadKeyError,
    BadShareError,
    ContradictionError,
    EvidenceError,
    FalsePairError,
    LocalProtocolError,
    MalformedMessageError,
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
from secagg.hybrid import read_public_key
from secagg.keys import check_agreement_key, verify
from secagg.messages import MASKED, Opening, ShareKind
from secagg.parameters import RoundParameters
from secagg.ports import VectorStore
from secagg.roster import Roster
from secagg.sealing import commit_share
from secagg.transcript import binding_digest, setup_digest
from secagg.unmasking import Openings
from secagg.vectors import root_of


def masked_name(seat: int) -> str:
    """The name of a silo's masked vector in the server's store."""
    return f"{MASKED}.{seat}"


def _check_keys(message: messages.Advertise) -> None:
    """Every key is usable: one bad key that is relayed would make all silos leave."""
    try:
        check_agreement_key(message.enc_key)
        check_agreement_key(message.mask_key)
        if message.kem:
            read_public_key(message.kem.box_key)
            read_public_key(message.kem.mask_key)
    except BadKeyError as error:
        raise BadKeyError(f"an advertised key: {error}", silo=message.seat) from error


class Intake:
    """All that the silos of one attempt have said, and what follows from it.

    Attributes:
        evidence: cases against silos that came up while statements were checked.
        setup: fixed with U1; empty before.
        binding: fixed with the state; empty before.
        entries: the survivors, once they are fixed.
    """

    def __init__(
        self,
        parameters: RoundParameters,
        *,
        roster: Roster,
        cohort: tuple[int, ...],
        store: VectorStore,
    ) -> None:
        self.evidence: list[Evidence] = []
        self.advertises: dict[int, messages.Advertise] = {}
        self.shares: dict[int, messages.Share] = {}
        self.trees: dict[int, MerkleTree] = {}
        self.masked: dict[int, messages.MaskedInput] = {}
        self.late: set[int] = set()
        self.signed: dict[int, messages.Survivors] = {}
        self.unmasks: dict[int, messages.Unmask] = {}
        self.abandons: dict[int, messages.Abandon] = {}
        self.complaints: list[messages.Complaint] = []
        self.setup = b""
        self.binding = b""
        self.entries: tuple[messages.SurvivorEntry, ...] = ()
        self._survivors_hash = b""
        self._parameters = parameters
        self._roster = roster
        self._cohort = cohort
        self._store = store
        self._ctx = parameters.ctx()
        self._suite = parameters.cipher_suite
        self._graph: Graph | None = None
        self._model_hash = bytes(32)
        self._seen: dict[tuple[int, str], messages.Statement] = {}

    # --- what follows from the statements -----------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The neighborhoods of U1."""
        if self._graph is None:
            raise LocalProtocolError("the neighborhoods are not known yet")
        return self._graph

    @property
    def u1(self) -> tuple[int, ...]:
        """Silos that advertised keys."""
        return tuple(sorted(self.advertises))

    @property
    def u2(self) -> tuple[int, ...]:
        """Silos that dealt shares."""
        return tuple(sorted(self.shares))

    @property
    def survivors(self) -> tuple[int, ...]:
        """U3, once it is fixed."""
        return tuple(entry.seat for entry in self.entries)

    @property
    def share_roots(self) -> dict[int, bytes]:
        """Share roots of U2."""
        return {
            seat: messages.share_root(share.commitment_b, share.commitment_k, self.trees[seat].root)
            for seat, share in self.shares.items()
        }

    @property
    def openings(self) -> dict[int, Openings]:
        """Opened shares by holder."""
        return {
            seat: {(item.dealer, item.kind): item.share for item in unmask.openings}
            for seat, unmask in self.unmasks.items()
        }

    def near(self, seat: int) -> tuple[int, ...]:
        """The members of U2 in a silo's closed neighborhood; all of U2 in a complete graph."""
        return tuple(sorted(set(self.shares) & set(self.graph.holders(seat))))

    def is_enough(self, answered: set[int]) -> bool:
        """Whether t silos of every U2 member's neighborhood have answered."""
        graph = self.graph
        return all(len(answered & set(graph.holders(s))) >= graph.threshold for s in self.shares)

    def fix_keys(self) -> None:
        """U1 is complete: setup and neighborhoods follow.

        Raises:
            ParameterError: no regular graph can be had for so many silos.
        """
        self.setup = setup_digest(self._ctx, self.advertises)
        self._graph = self._parameters.neighborhoods(self.u1, self.setup)

    def fix_state(self, model_hash: bytes) -> None:
        """U2 is complete and the state is known: the binding follows."""
        self._model_hash = model_hash
        self.binding = binding_digest(self.setup, model_hash, self.share_roots)

    def fix_survivors(self, entries: tuple[messages.SurvivorEntry, ...]) -> None:
        """U3 is complete: what the silos are asked to sign follows."""
        self.entries = entries
        self._survivors_hash = messages.survivors_hash(entries)

    # --- the statements -----------------------------------------------------------------------

    def has(self, message: messages.Statement) -> bool:
        """Whether these very words were taken before.

        Raises:
            ContradictionError: the silo said something else of this kind before; the first
                stands.
        """
        first = self._seen.get((message.seat, message.LABEL))
        if first is not None and first != message:
            self._keep_contradiction(first, message)
            raise ContradictionError(
                f"seat {message.seat} sent two different {message.LABEL} in one attempt",
                silo=message.seat,
            )
        return first is not None

    def take(self, message: messages.Statement) -> None:
        """Check a statement and keep it.

        Raises:
            RemoteProtocolError: a check failed; nothing has changed but `evidence`.
        """
        match message:
            case messages.Advertise():
                self._take_advertise(message)
            case messages.Share():
                self._take_share(message)
            case messages.MaskedInput():
                self._take_masked(message)
            case messages.Late():
                self._take_late(message)
            case messages.Survivors():
                self._take_survivors(message)
            case messages.Unmask():
                self._take_unmask(message)
            case messages.Abandon():
                self._take_abandon(message)
            case messages.Complaint():
                self._take_complaint(message)
            case messages.Refusal():
                self._take_refusal(message)
            case _:
                assert_never(message)
        self._seen[message.seat, message.LABEL] = message

    def _take_advertise(self, message: messages.Advertise) -> None:
        seat = message.seat
        if seat not in self._cohort:
            raise RosterError(f"seat {seat} is not invited to this round", silo=seat)
        if message.ctx != self._ctx:
            raise ReplayError("keys were advertised for another attempt", silo=seat)
        self._verify(message)
        taken = frozenset().union(*(item.public_keys for item in self.advertises.values()))
        expected = 4 if self._suite.is_hybrid else 2
        if len(message.public_keys) != expected or message.public_keys & taken:
            raise BadKeyError(
                f"{expected} keys are advertised in suite {self._suite.number}, each another one",
                silo=seat,
            )
        _check_keys(message)
        self.advertises[seat] = message

    def _take_share(self, message: messages.Share) -> None:
        seat = message.seat
        if seat not in self.advertises:
            raise RosterError(f"seat {seat} has not advertised keys in this attempt", silo=seat)
        if message.setup != self.setup:
            raise ReplayError("shares were dealt for another set of keys", silo=seat)
        if tuple(box.holder for box in message.boxes) != self.graph.holders(seat):
            raise MalformedMessageError("shares must be dealt to every neighbor, in order")
        hybrid_suite = self._suite.is_hybrid
        if not all(box.is_shaped(seat, hybrid_suite=hybrid_suite) for box in message.boxes):
            raise MalformedMessageError("a box lacks a part or has one too many", silo=seat)
        tree = message.tree()  # `message.signed_bytes` would make another one
        root = messages.share_root(message.commitment_b, message.commitment_k, tree.root)
        signed_bytes = messages.share_signed_bytes(message.setup, seat, root)
        verify(self._roster.seat(seat).identity_key, message.signature, signed_bytes)
        self.shares[seat] = message
        self.trees[seat] = tree

    def _take_masked(self, message: messages.MaskedInput) -> None:
        seat = message.seat
        if seat not in self.shares or seat in self.late:
            raise RosterError(f"no masked vector is awaited from seat {seat}", silo=seat)
        if message.binding != self.binding:  # empty before the state is known, as no digest is
            raise ReplayError("a vector was masked for another view of the round", silo=seat)
        wire = self._parameters.wire_spec
        sizes = (tuple(item.length for item in wire.segments), len(wire.chunks), wire.wire_bytes)
        if (message.lengths, message.chunks, message.nbytes) != sizes:
            raise MalformedMessageError("a masked vector has another size", silo=seat)
        self._verify(message)
        if root_of(self._store, masked_name(seat), wire) != message.root:
            raise MalformedMessageError(
                "the chunks of a masked vector are not those under its root", silo=seat
            )
        self.masked[seat] = message

    def _take_late(self, message: messages.Late) -> None:
        if message.seat not in self.shares or message.seat in self.masked:
            raise RosterError(f"seat {message.seat} cannot go late now", silo=message.seat)
        if message.setup != self.setup:
            raise ReplayError("a silo goes late in another attempt", silo=message.seat)
        self.late.add(message.seat)

    def _take_survivors(self, message: messages.Survivors) -> None:
        seat = message.seat
        if seat not in self.shares:
            raise RosterError(f"seat {seat} is not in U2", silo=seat)
        if (message.binding, message.survivors) != (self.binding, self._survivors_hash):
            raise ReplayError("a silo signed other survivors", silo=seat)
        self._verify(message)
        self.signed[seat] = message

    def _take_unmask(self, message: messages.Unmask) -> None:
        seat = message.seat
        if seat not in self.shares:
            raise RosterError(f"seat {seat} is not in U2", silo=seat)
        if message.binding != self.binding:
            raise ReplayError("shares were opened for another view of the round", silo=seat)
        self._verify(message)
        survivors = set(self.survivors)
        expected = tuple(
            (dealer, ShareKind.SELF if dealer in survivors else ShareKind.KEY)
            for dealer in self.near(seat)
        )
        if tuple((item.dealer, item.kind) for item in message.openings) != expected:
            raise BadShareError(
                "one share is opened for each silo of U2: of its self mask if it survived, of "
                "its key if not",
                silo=seat,
            )
        for item in message.openings:
            self._check_opening(message, item)
        self.unmasks[seat] = message

    def _check_opening(self, message: messages.Unmask, item: Opening) -> None:
        holder = message.seat
        share = self.shares[item.dealer]
        dealt = share.boxes[bisect_left(self.graph.holders(item.dealer), holder)]
        promised = dealt.commitment_a if item.kind is ShareKind.KEY else dealt.commitment_b
        found = commit_share(self.setup, item.dealer, holder, item.kind.value, item.share)
        if found != promised:
            self._keep_evidence(
                bad_revealer(
                    parameters=self._parameters,
                    advertises=self.advertises,
                    share=share,
                    unmask=message,
                    model_hash=self._model_hash,
                    share_roots=self.share_roots,
                )
            )
            raise BadShareError(
                f"a share of seat {item.dealer} is not the one it was dealt", silo=holder
            )

    def _take_abandon(self, message: messages.Abandon) -> None:
        own = self._parameters
        if (message.federation, message.attempt_id) != (own.federation, own.attempt_id):
            raise ReplayError("a silo abandons another attempt", silo=message.seat)
        if message.seat not in self.advertises:
            raise RosterError("only silos of U1 can abandon an attempt", silo=message.seat)
        self._verify(message)
        self.abandons[message.seat] = message

    def _take_complaint(self, message: messages.Complaint) -> None:
        if message.setup != self.setup:
            raise ReplayError("a complaint is about another attempt", silo=message.seat)
        if message.seat not in self.shares or message.dealer not in self.shares:
            raise RosterError("a complaint names a silo outside U2", silo=message.seat)
        self._verify(message)
        self.complaints.append(message)

    def _take_refusal(self, message: messages.Refusal) -> None:
        if message.ctx != self._ctx:
            raise ReplayError("a silo refuses another attempt", silo=message.seat)
        if message.seat not in self._cohort:
            raise RosterError(
                f"seat {message.seat} is not invited to this round", silo=message.seat
            )
        self._verify(message)

    def _keep_evidence(self, case: Evidence) -> None:
        """Keep one case of a kind against a seat: a silo that lies on must not fill the memory."""
        if (case.kind, case.accused) not in {(item.kind, item.accused) for item in self.evidence}:
            self.evidence.append(case)

    def _keep_contradiction(self, first: messages.Statement, second: messages.Statement) -> None:
        """Keep the two messages as evidence if both are signed and a third party would agree."""
        case = two_statements(
            EvidenceKind.CONTRADICTION, first.seat, self._parameters, first, second
        )
        try:
            judge(case, self._roster)
        except EvidenceError:
            return
        self._keep_evidence(case)

    def keep_bad_dealer(self, error: BadDealerError) -> None:
        """Keep the case against a dealer whose shares rebuild another secret."""
        dealer = error.silo
        assert dealer is not None  # a bad dealer is named
        is_pair = isinstance(error, FalsePairError)  # then the shares are a dropout's
        near = sorted(self.unmasks)
        if not is_pair:  # as many as rebuilt it
            holders = set(self.graph.holders(dealer))
            near = [seat for seat in near if seat in holders][: self.graph.threshold]
        self._keep_evidence(
            bad_dealer(
                kind=EvidenceKind.FALSE_PAIR if is_pair else EvidenceKind.BAD_DEALER,
                dealer=dealer,
                parameters=self._parameters,
                advertises=self.advertises,
                share=self.shares[dealer],
                unmasks={seat: self.unmasks[seat] for seat in near},
                model_hash=self._model_hash,
                share_roots=self.share_roots,
            )
        )

    def _verify(self, message: messages.SignedSiloMessage) -> None:
        key = self._roster.seat(message.seat).identity_key
        verify(key, message.signature, message.signed_bytes())

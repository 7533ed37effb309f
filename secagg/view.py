"""One silo's view of an attempt: the cohorts and the state that it was shown and has accepted.

A server may show every silo another U1, U2 or state. What a silo masks, signs and opens follows
from its own view alone, and `binding` stands for all of it (SA1 spec 3.2).
"""

from secagg.agreement import check_keys, check_sharers
from secagg.errors import (
    CohortRefusedError,
    LocalProtocolError,
    ModelMismatchError,
    ParameterError,
    RosterError,
)
from secagg.graph import Graph
from secagg.journal import Submission
from secagg.keys import verify
from secagg.messages import Advertise, Boxes, Keys, StateNotice
from secagg.parameters import RoundParameters
from secagg.roster import Roster
from secagg.secretbytes import Secret
from secagg.transcript import binding_digest, setup_digest
from secagg.vectors import TagContext


class View:
    """What one silo has accepted so far; each part once, in the order of the protocol.

    Attributes:
        seat: the silo's.
        parameters: of the attempt.
        advertises: U1's keys by seat; its own before U1 is known.
        setup: the digest of ctx and U1; empty before U1 is known.
        share_roots: U2's share roots by seat.
        tag_key: K, once all boxes are open.
        model_hash: the state's; empty before it is known.
        binding: the digest of everything above; empty before the state is known.
    """

    def __init__(self, *, seat: int, parameters: RoundParameters, roster: Roster) -> None:
        self.seat = seat
        self.parameters = parameters
        self.advertises: dict[int, Advertise] = {}
        self.setup = b""
        self.share_roots: dict[int, bytes] = {}
        self.tag_key: Secret | None = None
        self.model_hash = b""
        self.binding = b""
        self._roster = roster
        self._graph: Graph | None = None

    def accept_keys(self, message: Keys) -> None:
        """A3: U1 and its keys."""
        own = self.advertises[self.seat]
        self.advertises = check_keys(message, own, parameters=self.parameters, roster=self._roster)
        self.setup = setup_digest(self.parameters.ctx(), self.advertises)
        try:
            self._graph = self.parameters.neighborhoods(self.u1, self.setup)
        except ParameterError as error:
            raise RosterError(f"no graph for this cohort: {error}") from error

    def accept_sharers(self, message: Boxes, own: bytes) -> None:
        """A4, the cohort: U2 and its share roots, the own one among them."""
        if self.share_roots:
            raise CohortRefusedError("U2 was announced before")
        self.share_roots = check_sharers(
            message,
            own,
            seat=self.seat,
            holders=self.graph.holders(self.seat),
            u1=self.u1,
            parameters=self.parameters,
            roster=self._roster,
        )

    def check_announced(self, message: StateNotice) -> None:
        """A5, the notice: a state is due, and the server has signed this one for this attempt."""
        if not self.share_roots or self.binding:
            raise ModelMismatchError("a state is accepted once, after U2")
        if message.setup != self.setup:
            raise ModelMismatchError("the state was announced for another attempt")
        verify(self._roster.coordinator_key, message.signature, message.signed_bytes())

    def bind(self, model_hash: bytes) -> None:
        """The state is accepted: from here on everything is bound to it."""
        self.model_hash = model_hash
        self.binding = binding_digest(self.setup, model_hash, self.share_roots)

    @property
    def u1(self) -> tuple[int, ...]:
        """The silos with keys."""
        return tuple(sorted(self.advertises))

    @property
    def graph(self) -> Graph:
        """Who shares masks with whom; LocalProtocolError before U1 is known."""
        if self._graph is None:
            raise LocalProtocolError("the neighborhoods are not known yet")
        return self._graph

    @property
    def near(self) -> tuple[int, ...]:
        """The members of U2 in this silo's closed neighborhood; all of U2 in a complete graph."""
        return tuple(sorted(set(self.share_roots) & set(self.graph.holders(self.seat))))

    @property
    def tags(self) -> TagContext:
        """What makes and checks this attempt's tags; LocalProtocolError before K is known."""
        if self.tag_key is None:
            raise LocalProtocolError("the verification key is not there yet")
        return TagContext(
            key=self.tag_key,
            binding=self.binding,
            generator=self.parameters.cipher_suite.generator,
        )

    @property
    def submission(self) -> Submission:
        """What must be kept of it until a masked vector's fate is known."""
        return Submission(
            parameters=self.parameters,
            model_hash=self.model_hash,
            binding=self.binding,
            u1=self.u1,
            signers=self.near,
            threshold=self.graph.threshold,
            key=self.tags.key,
        )

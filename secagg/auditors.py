"""Both ends of tier 2: silos that recompute chunks of the sum, and the server that shows them.

It begins after the result. Each silo sends a fresh nonce; the server discloses all nonces and the
opened secrets; each silo then asks for one piece after the other, the sum's chunk and those of the
uploads, and compares. Nothing here needs a secret of the silo, so it goes on after the round is
over, also when the round was refused for its tags: that is when one wants to know who lies.

What tier 2 means and what it costs in privacy stands in `recompute`.
"""

from collections.abc import Iterator, Mapping

from secagg import canonical, messages
from secagg.canonical import MerkleTree
from secagg.errors import BadDisclosureError, ForgedSumError, ReplayError, RosterError
from secagg.evidence import Evidence, wrong_sum
from secagg.keys import IdentityKey, verify
from secagg.messages import (
    ChunkAnswer,
    ChunkRequest,
    Disclosed,
    Disclosure,
    PairProof,
    RecomputeNonce,
    Share,
)
from secagg.ports import VectorStore
from secagg.recompute import (
    THE_SUM,
    Claim,
    assigned_chunks,
    check_answer,
    disclosed_masks,
    recompute_chunk,
)
from secagg.rng import Rng
from secagg.roster import Roster
from secagg.secretbytes import Secret
from secagg.vectors import Seeds


class SiloAuditor:
    """A silo that recomputes its part of one sum.

    Args:
        claim: the authentic result, from this silo's own view of the attempt.
        seat: this silo's.
        identity: signs the nonce.
        roster: names the others' keys.
        rng: draws the nonce and the chunks of its own choice.
        own_chunks: how many of those; None for as many as it would be assigned.

    Attributes:
        verified: chunks that were found to be right.
        evidence: the case against the coordinator, if one was wrong.
        is_done: whether nothing is awaited any more.
    """

    def __init__(
        self,
        claim: Claim,
        *,
        seat: int,
        identity: IdentityKey,
        roster: Roster,
        rng: Rng,
        own_chunks: int | None,
    ) -> None:
        self.verified: set[int] = set()
        self.evidence: Evidence | None = None
        self.is_done = False
        self._claim = claim
        self._seat = seat
        self._roster = roster
        self._wire = claim.parameters.wire_spec
        self._chunks = self._wire.chunks
        if own_chunks is None:
            assignments = claim.parameters.redundancy * len(self._chunks)
            own_chunks = -(-assignments // len(claim.share_roots))
        self._own = _choose(rng, own_chunks, len(self._chunks))
        unsigned = RecomputeNonce(
            binding=claim.result.binding, root=claim.result.root, seat=seat, nonce=rng.bytes(32)
        )
        self.nonce = messages.signed(unsigned, identity)
        self._disclosure: Disclosure | None = None
        self._masks: dict[str, Seeds] = {}
        self._todo: list[int] = []
        self._shown: dict[int, ChunkAnswer] = {}

    def receive(self, message: Disclosure | ChunkAnswer) -> list[ChunkRequest]:
        """Take what the server shows; ask for the next piece.

        Raises:
            ForgedSumError: a chunk of the sum is wrong; `evidence` proves it.
            BadDisclosureError: the server shows something else than what was signed or committed
                to. That proves nothing to others, and this silo stops.
        """
        before, self.is_done = self.is_done, True  # unless all goes well
        if before:
            raise BadDisclosureError("this silo has recomputed what it wanted to, or has stopped")
        if isinstance(message, Disclosure):
            self._on_disclosure(message)
        else:
            self._on_answer(message)
        self.is_done = not self._todo
        return [self._request()] if self._todo else []

    def _on_disclosure(self, message: Disclosure) -> None:
        if self._disclosure is not None:
            raise BadDisclosureError("secrets were disclosed before")
        check_nonces(message.nonces, self._claim, self._roster)
        if self.nonce not in message.nonces:
            raise BadDisclosureError("this silo's own nonce was left out or changed")
        self._masks = disclosed_masks(self._claim, message)
        self._disclosure = message
        assigned = assigned_chunks(
            root=self._claim.result.root,
            nonces={item.seat: item.nonce for item in message.nonces},
            seat=self._seat,
            redundancy=self._claim.parameters.redundancy,
            chunks=len(self._chunks),
        )
        self._todo = sorted({*assigned, *self._own})

    @property
    def _wanted(self) -> tuple[int, ...]:
        """The vectors of which a chunk is needed, the sum first."""
        return (THE_SUM, *self._claim.survivors)

    def _request(self) -> ChunkRequest:
        of = self._wanted[len(self._shown)]
        return ChunkRequest(
            binding=self._claim.result.binding, seat=self._seat, chunk=self._todo[0], of=of
        )

    def _on_answer(self, message: ChunkAnswer) -> None:
        if self._disclosure is None:
            raise BadDisclosureError("a chunk was shown before the secrets")
        request = self._request()
        if (message.chunk, message.of) != (request.chunk, request.of):
            raise BadDisclosureError("another chunk was shown than the one asked for")
        check_answer(self._claim, message, len(self._chunks))
        self._shown[message.of] = message
        if len(self._shown) == len(self._wanted):
            self._compare(self._disclosure)
            self.verified.add(self._todo.pop(0))
            self._shown = {}

    def _compare(self, disclosure: Disclosure) -> None:
        number = self._todo[0]
        uploads = [self._shown[seat].data for seat in self._claim.survivors]
        found = recompute_chunk(
            self._wire, self._chunks[number], uploads, self._masks, self._claim.parameters
        )
        if found == self._shown[THE_SUM].data:
            return
        self.evidence = wrong_sum(self._claim, disclosure, tuple(self._shown.values()))
        raise ForgedSumError(
            f"chunk {number} of the sum is not the sum of the uploads",
            hint="the coordinator has signed a wrong sum, and the evidence file proves it",
        )


def check_nonces(nonces: tuple[RecomputeNonce, ...], claim: Claim, roster: Roster) -> None:
    """Every nonce is signed by a silo of U2 for this very sum, one each.

    Raises:
        BadDisclosureError, BadSignatureError: one is not.
    """
    seats = [item.seat for item in nonces]
    if seats != sorted(set(seats)) or not set(seats) <= claim.share_roots.keys():
        raise BadDisclosureError("nonces must be sorted and come from silos of U2, one each")
    for item in nonces:
        if (item.binding, item.root) != (claim.result.binding, claim.result.root):
            raise BadDisclosureError("a nonce was sent for another sum")
        verify(roster.seat(item.seat).identity_key, item.signature, item.signed_bytes())


def _choose(rng: Rng, count: int, among: int) -> frozenset[int]:
    """So many distinct numbers below `among`; uniform up to 2^-64."""
    chosen: set[int] = set()
    while len(chosen) < min(count, among):
        chosen.add(int.from_bytes(rng.bytes(16), "big") % among)
    return frozenset(chosen)


class ServerAudit:
    """The server's end: collects nonces, discloses, and shows chunks.

    Args:
        claim: of the published result.
        roster: names the silos' keys.
        shares: of U2.
        secrets: of U2, as they were rebuilt.
        store: holds uploads and sum.
        names: of the uploads by survivor, and of the sum, in the store.
    """

    def __init__(
        self,
        claim: Claim,
        *,
        roster: Roster,
        shares: Mapping[int, Share],
        secrets: Mapping[int, bytes],
        store: VectorStore,
        names: Mapping[int, str],
    ) -> None:
        self.nonces: dict[int, RecomputeNonce] = {}
        self.is_disclosed = False
        self._claim = claim
        self._roster = roster
        self._shares = shares
        self._secrets = secrets
        self._store = store
        self._names = names
        self._trees: dict[int, MerkleTree] = {}
        self._chunks = len(claim.parameters.wire_spec.chunks)

    def take_nonce(self, message: RecomputeNonce) -> None:
        """Keep a silo's nonce; the first one stands.

        Raises:
            ReplayError: too late, or a second one.
            RemoteProtocolError: a check failed.
        """
        if self.is_disclosed or self.nonces.get(message.seat, message) != message:
            raise ReplayError("a nonce came too late or for a second time", silo=message.seat)
        check_nonces((message,), self._claim, self._roster)
        self.nonces[message.seat] = message

    def disclose(self) -> Disclosure:
        """All nonces and opened secrets; from here on chunks are shown."""
        self.is_disclosed = True
        alive = set(self._claim.survivors)
        return Disclosure(
            binding=self._claim.result.binding,
            nonces=tuple(self.nonces[seat] for seat in sorted(self.nonces)),
            opened=tuple(
                Disclosed(
                    seat=seat,
                    secret=Secret(self._secrets[seat]),
                    commitment_b=share.commitment_b,
                    commitment_k=share.commitment_k,
                    boxes_root=share.boxes_root,
                )
                for seat, share in sorted(self._shares.items())
            ),
            pairs=tuple(
                proof
                for seat, share in sorted(self._shares.items())
                for proof in _cut_pair_proofs(share, self._shares, alive, seat)
            ),
        )

    def answer(self, message: ChunkRequest) -> ChunkAnswer:
        """Show one chunk with its path.

        Raises:
            ReplayError: nothing is disclosed yet, or the silo sent no nonce for this sum.
            RosterError: there is no such chunk or vector.
        """
        is_auditor = message.seat in self.nonces and self.is_disclosed
        if not is_auditor or message.binding != self._claim.result.binding:
            raise ReplayError("chunks are shown after the nonces of this sum", silo=message.seat)
        if message.of not in self._names or message.chunk >= self._chunks:
            raise RosterError("there is no such chunk", silo=message.seat)
        name = self._names[message.of]
        return ChunkAnswer(
            binding=message.binding,
            chunk=message.chunk,
            of=message.of,
            data=self._store.read(name, message.chunk),
            path=self._tree(message.of).path(message.chunk),
        )

    def _tree(self, of: int) -> MerkleTree:
        """The tree of a stored vector, read once: 64 bytes for each chunk stay in memory."""
        if of not in self._trees:
            name = self._names[of]
            self._trees[of] = MerkleTree(
                [
                    canonical.leaf_hash(number, self._store.read(name, number))
                    for number in range(self._chunks)
                ]
            )
        return self._trees[of]


def _cut_pair_proofs(
    share: Share, shares: Mapping[int, Share], alive: set[int], seat: int
) -> Iterator[PairProof]:
    """In the hybrid suite, a dealer's boxes for pairs of a survivor and a dropout, with paths."""
    cut = [
        place
        for place, box in enumerate(share.boxes)
        if box.kem and box.kem.pair and box.holder in shares
        if (seat in alive) != (box.holder in alive)
    ]
    if cut:
        tree = share.tree()
        for place in cut:
            yield PairProof(dealer=seat, box=share.boxes[place], path=tree.path(place))

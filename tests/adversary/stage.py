"""A stage for liars: real silos, and a coordinator that says whatever the test lets it say.

`Stage` plays an attempt step by step. Each step has an honest default and can be told otherwise
for single silos; whatever the silos answer enters the adversary's `View`. The coordinator's key
is the stage's, because the liar in these tests is the coordinator itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from secagg import canonical, messages
from secagg.chain import Standpoint
from secagg.effects import Aborted, Finished, Persist, Send, SiloEffect, TrainingWanted
from secagg.errors import LocalProtocolError, RemoteProtocolError
from secagg.ids import RunId
from secagg.journal import JournalRecord, SiloHistory
from secagg.keys import AgreementKey
from secagg.messages import MASKED, SUM, ShareKind
from secagg.parameters import RoundParameters, VectorSpec, bulk, meta
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.prg import CHUNK_WORDS
from secagg.recall import RecalledRound
from secagg.ring import IntVector, pack, to_ring
from secagg.sealing import SharePayload, open_box
from secagg.silo import SiloRound
from secagg.testing import (
    PLAN,
    Federation,
    MemoryStore,
    SeededRng,
    make_federation,
    make_parameters,
    make_succession,
)
from secagg.transcript import setup_digest, transcript_digest
from tests.adversary.view import View

M = TypeVar("M", bound=messages.Message)
MODEL = b"the state of the round"
LENGTH = 8
RUN = RunId(b"run-for-testing!")


def small_spec(n_max: int) -> VectorSpec:
    """Two bulk segments in one ring, so that a shared keystream would show, and a meta one."""
    return VectorSpec(
        segments=(
            bulk("update", LENGTH, value_bits=16, n_max=n_max),
            bulk("variate", LENGTH, value_bits=16, n_max=n_max),
            meta("count", 2, bound=2**40),
        )
    )


def random_inputs(
    seats: Iterable[int], spec: VectorSpec, seed: int
) -> dict[int, dict[str, IntVector]]:
    """Integers over the whole range of each segment: none is met by chance."""
    rng = np.random.default_rng(seed)
    return {
        seat: {
            segment.name: rng.integers(-segment.bound, segment.bound + 1, segment.length)
            for segment in spec.segments
        }
        for seat in seats
    }


class Stage:
    """One attempt before an audience of corrupted silos.

    Args:
        silos: seats of the federation, from 1.
        federation: another one than the default of that size.
        cohort: who takes part; all by default.
        corrupted: silos whose secrets are the adversary's.
        histories: the silos' journals, kept from an earlier attempt.
        policies: the silos' policies.
        standpoints: where silos left the run.
        view: kept from an earlier attempt.
        inputs: the silos' integers; random ones by default.
        silo_class: real silos by default, or a mutant of theirs.
        secrets: label of the silos' randomness, if two attempts shall draw the same.
        seed: of the silos' secrets and inputs.
        changes: of the parameters.
    """

    def __init__(
        self,
        silos: int = 4,
        *,
        federation: Federation | None = None,
        cohort: tuple[int, ...] | None = None,
        corrupted: tuple[int, ...] = (),
        histories: dict[int, SiloHistory] | None = None,
        policies: Mapping[int, SiloPolicy] | None = None,
        standpoints: Mapping[int, Standpoint] | None = None,
        view: View | None = None,
        inputs: Mapping[int, Mapping[str, IntVector]] | None = None,
        silo_class: type[SiloRound] = SiloRound,
        secrets: str = "",
        seed: int = 0,
        **changes: object,
    ) -> None:
        self.federation = federation or make_federation(silos)
        self.roster = self.federation.roster
        self.cohort = cohort or self.roster.indices
        spec = small_spec(max(8, len(self.roster.seats)))
        self.parameters = make_parameters(self.roster, spec, **changes)
        self.spec = self.parameters.spec
        self.wire = self.parameters.wire_spec
        self.histories = {} if histories is None else histories
        self.inputs = dict(inputs or random_inputs(self.cohort, self.spec, seed))
        self.view = view or View(spec=self.wire)
        self.view.corrupted |= set(corrupted)
        self.corrupted = corrupted
        self.stores: dict[int, MemoryStore] = {}
        self.silos: dict[int, SiloRound] = {}
        self.journals: dict[int, list[JournalRecord]] = {seat: [] for seat in self.cohort}
        self.sent: dict[int, list[messages.SiloMessage]] = {seat: [] for seat in self.cohort}
        self.wants_training: set[int] = set()
        self.finished: dict[int, Finished] = {}
        self.payloads: dict[int, dict[int, SharePayload]] = {}
        for seat in self.cohort:
            self.stores[seat] = MemoryStore()
            self.silos[seat] = silo_class(
                seat=seat,
                identity=self.federation.identities[seat],
                roster=self.roster,
                policy=(policies or {}).get(seat, SiloPolicy()),
                history=self.histories.setdefault(seat, SiloHistory()),
                store=self.stores[seat],
                rng=SeededRng(f"stage/{seed}/{secrets or self.parameters.ctx().hex()}/{seat}"),
                standpoint=(standpoints or {}).get(seat),
            )

    # --- the link -----------------------------------------------------------------------------

    def tell(self, seat: int, message: messages.ServerMessage) -> list[SiloEffect]:
        """Deliver a message over the wire form; what the silo says goes into `sent`."""
        delivered = messages.decode_message(message.encode())
        assert isinstance(delivered, messages.ServerMessage)
        return self.carry_out(seat, self.silos[seat].receive(delivered))

    def tell_all(self, message: messages.ServerMessage, seats: Iterable[int] | None = None) -> None:
        """Deliver one message to several silos, the whole cohort by default."""
        for seat in self.cohort if seats is None else seats:
            self.tell(seat, message)

    def carry_out(self, seat: int, effects: list[SiloEffect]) -> list[SiloEffect]:
        """Do what a driver does."""
        for effect in effects:
            match effect:
                case Persist():
                    self.journals[seat].append(JournalRecord.decode(effect.record.encode()))
                case Send():
                    self._hear(seat, effect.message)
                case TrainingWanted():
                    self.wants_training.add(seat)
                case Finished():
                    self.finished[seat] = effect
                case Aborted():
                    pass
        return effects

    def _hear(self, seat: int, message: messages.SiloMessage) -> None:
        received = messages.decode_message(message.encode())
        assert isinstance(received, messages.SiloMessage)
        self.sent[seat].append(received)
        if isinstance(received, messages.MaskedInput):
            self.view.see_upload(self.setup, received.binding, seat, self.stores[seat], MASKED)
        if isinstance(received, messages.Unmask):
            self.view.see_openings(self.setup, received)

    def refuses(
        self,
        seat: int,
        message: messages.ServerMessage,
        error: type[RemoteProtocolError],
        match: str = ".",
    ) -> RemoteProtocolError:
        """The silo refuses by this very error, marks it, and is dead with its secrets wiped.

        The driver would then send the farewell; the stage leaves it in `silo.farewell`.
        """
        silo = self.silos[seat]
        before = len(self.sent[seat])
        with pytest.raises(error, match=match) as caught:
            self.tell(seat, message)
        assert caught.type is error
        assert len(self.sent[seat]) == before
        assert_dead(silo)
        marks = [effect for effect in silo.parting if isinstance(effect, Persist)]
        farewells = [] if silo.farewell is None else [Send(message=silo.farewell)]
        assert silo.parting in ([], marks + farewells)  # on disk before anything is said
        self.carry_out(seat, [*marks])
        if isinstance(silo.farewell, messages.Refusal):
            assert silo.farewell.code == error.code
        return caught.value

    def last(self, seat: int, kind: type[M]) -> M:
        """The newest message of this kind that the silo sent."""
        return [item for item in self.sent[seat] if isinstance(item, kind)][-1]

    def all_of(self, kind: type[M]) -> dict[int, M]:
        """The newest message of this kind of every silo that sent one."""
        return {
            seat: self.last(seat, kind)
            for seat in self.cohort
            if any(isinstance(item, kind) for item in self.sent[seat])
        }

    # --- what an honest coordinator would say ---------------------------------------------------

    def opening(self, parameters: RoundParameters | None = None) -> messages.RoundOpen:
        """RoundOpen, signed."""
        unsigned = messages.RoundOpen(parameters=parameters or self.parameters, plan=PLAN)
        return messages.signed(unsigned, self.federation.coordinator)

    def keys(self, *seats: int) -> messages.Keys:
        """Keys of these silos, of all that advertised by default."""
        known = self.all_of(messages.Advertise)
        return messages.Keys(advertises=tuple(known[seat] for seat in sorted(seats or known)))

    @property
    def advertises(self) -> dict[int, messages.Advertise]:
        """What every silo advertised."""
        return self.all_of(messages.Advertise)

    @property
    def setup(self) -> bytes:
        """Of an honest attempt."""
        return setup_digest(self.parameters.ctx(), self.advertises)

    @property
    def threshold(self) -> int:
        """T of an honest attempt."""
        return self.parameters.threshold(len(self.cohort))

    def delivery(self, dealer: int, holder: int) -> messages.Delivery:
        """One dealer's box for one holder, with its Merkle path."""
        share = self.last(dealer, messages.Share)
        leaves = [box.encode() for box in share.boxes]
        place = [box.holder for box in share.boxes].index(holder)
        return messages.Delivery(
            dealer=dealer,
            box=share.boxes[place],
            path=merkle_path(leaves, place),
            boxes_root=share.boxes_root,
            commitment_b=share.commitment_b,
            commitment_k=share.commitment_k,
            signature=share.signature,
        )

    def boxes(self, holder: int, *u2: int) -> messages.Boxes:
        """Boxes for one holder from these dealers, from all by default."""
        dealers = sorted(u2 or self.all_of(messages.Share))
        return messages.Boxes(deliveries=tuple(self.delivery(d, holder) for d in dealers))

    def notice(
        self,
        state: bytes = MODEL,
        *,
        setup: bytes = b"",
        succession: messages.Succession | None = None,
        vouched: bool = True,
    ) -> messages.StateNotice:
        """StateNotice, signed; after the first round, unless not `vouched`, with enough words."""
        if succession is None and vouched and self.parameters.round > 1:
            succession = make_succession(self.federation, self.parameters, state)
        unsigned = messages.StateNotice(
            setup=setup or self.setup,
            model_hash=messages.model_hash(self.parameters.kind, state),
            nbytes=len(state),
            succession=succession,
        )
        return messages.signed(unsigned, self.federation.coordinator)

    def request(self, *u3: int) -> messages.SurvivorsRequest:
        """SurvivorsRequest over these uploads, over all by default."""
        masked = self.all_of(messages.MaskedInput)
        return messages.SurvivorsRequest(
            entries=tuple(masked[seat].entry for seat in sorted(u3 or masked))
        )

    def certificate(self, *signers: int) -> messages.Certificate:
        """Certificate by these silos, by all that signed by default."""
        signed = self.all_of(messages.Survivors)
        return messages.Certificate(
            endorsements=tuple(
                messages.Endorsement(seat=seat, signature=signed[seat].signature)
                for seat in sorted(signers or signed)
            )
        )

    def sum_of(self, *seats: int) -> dict[str, IntVector]:
        """The true sum over these silos, its tags too."""
        columns = [self.truth_of(seat) for seat in seats]
        names = self.wire.names
        return {name: np.sum([c[name] for c in columns], axis=0, dtype=np.int64) for name in names}

    def result(
        self, values: Mapping[str, IntVector], *u3: int, signers: tuple[int, ...] = ()
    ) -> messages.Result:
        """Result with these integers as its sum, signed and consistent in itself."""
        pieces = []
        for chunk in self.wire.chunks:
            segment = self.wire.segments[chunk.segment]
            words = values[segment.name][chunk.start : chunk.start + chunk.count]
            pieces.append(pack(to_ring(words, segment.ring_bits), segment.ring_bits))
        request = self.request(*u3)
        binding = self.last(request.entries[0].seat, messages.MaskedInput).binding
        for store in self.stores.values():
            store.discard(SUM)
            for number, data in enumerate(pieces):
                store.write(SUM, number, data)
        unsigned = messages.Result(
            binding=binding,
            entries=request.entries,
            endorsements=self.certificate(*signers).endorsements,
            root=canonical.merkle_root(pieces),
            chunks=len(pieces),
            nbytes=self.wire.wire_bytes,
        )
        return self.sign_result(unsigned)

    def sign_result(self, unsigned: messages.Result) -> messages.Result:
        """The result with its transcript and the coordinator's signature."""
        complete = replace(unsigned, transcript=transcript_digest(unsigned))
        return messages.signed(complete, self.federation.coordinator)

    # --- honest steps -------------------------------------------------------------------------

    def advertise(self) -> None:
        """Open the attempt everywhere."""
        self.tell_all(self.opening())
        self.view.see_keys(self.setup, self.advertises, self.threshold)

    def share(self) -> None:
        """Announce U1 everywhere; the corrupted silos open what is meant for them."""
        self.advertise()
        self.tell_all(self.keys())
        self.corrupt()

    def corrupt(self) -> None:
        """What the corrupted silos have dealt and were dealt is the adversary's."""
        for seat in self.corrupted:
            for name, kind in (("a", ShareKind.KEY), ("b", ShareKind.SELF)):
                secret = getattr(self.silos[seat]._own, name).reveal()
                self.view.see_secret(self.setup, seat, kind, secret)
            for dealer, payload in self.opened_boxes(seat).items():
                self.view.see_share(self.setup, dealer, ShareKind.KEY, seat, payload.share_a)
                self.view.see_share(self.setup, dealer, ShareKind.SELF, seat, payload.share_b)

    def opened_boxes(self, seat: int) -> dict[int, SharePayload]:
        """What a corrupted silo finds in the boxes for it, whatever U2 it is shown."""
        if seat not in self.payloads:
            keys = self.silos[seat]._own.keys
            self.payloads[seat] = {
                dealer: SharePayload.decode(
                    open_box(
                        own=keys.enc,
                        peer_public=self.advertises[dealer].enc_key,
                        setup=self.setup,
                        sender=dealer,
                        receiver=seat,
                        box=self.delivery(dealer, seat).box.box,
                    )
                )
                for dealer in self.all_of(messages.Share)
                if dealer != seat
            }
        return self.payloads[seat]

    def deliver(self, views: Mapping[int, tuple[int, ...]] | None = None) -> None:
        """Announce U2 everywhere, another one to the silos in `views`."""
        self.share()
        for seat in self.cohort:
            self.tell(seat, self.boxes(seat, *(views or {}).get(seat, ())))

    def announce(
        self,
        states: Mapping[int, bytes] | None = None,
        *,
        views: Mapping[int, tuple[int, ...]] | None = None,
        state: bytes = MODEL,
    ) -> None:
        """Announce the state everywhere, another one to the silos in `states`."""
        self.deliver(views)
        for seat in self.cohort:
            shown = (states or {}).get(seat, state)
            self.stores[seat].put_state(shown)
            self.tell(seat, self.notice(shown))

    def submit(self, *seats: int) -> None:
        """Let these silos send their vectors; all that want to by default."""
        for seat in seats or sorted(self.wants_training):
            self.carry_out(seat, self.silos[seat].contribute(self.inputs[seat]))

    def mask(self, *seats: int, state: bytes = MODEL) -> None:
        """Everything up to the uploads of these silos."""
        self.announce(state=state)
        self.submit(*seats)

    def agree(self, *u3: int, state: bytes = MODEL) -> None:
        """Everything up to the signatures under U3; only U3 uploads."""
        self.mask(*u3, state=state)
        self.tell_all(self.request(*u3))

    def open_shares(self, *u3: int, state: bytes = MODEL) -> None:
        """Everything up to the openings."""
        self.agree(*u3, state=state)
        self.tell_all(self.certificate())

    def finish(self, *u3: int, state: bytes = MODEL) -> messages.Result:
        """A whole honest attempt."""
        self.open_shares(*u3, state=state)
        values = self.sum_of(*(u3 or self.cohort))
        result = self.result(values, *u3)
        self.tell_all(result)
        self.view.see_sum(self.setup, "the sum", values)
        return result

    def restarted(self, seat: int) -> RecalledRound:
        """The silo as another process of it finds the attempt: from the journal on disk."""
        self.histories[seat] = SiloHistory(self.journals[seat])
        return RecalledRound(
            self.parameters.attempt_id,
            seat=seat,
            identity=self.federation.identities[seat],
            roster=self.roster,
            history=self.histories[seat],
            store=self.stores[seat],
        )

    # --- the audience -------------------------------------------------------------------------

    def truth_of(self, seat: int) -> dict[str, IntVector]:
        """What a silo's vector holds: its integers, and its tags if it could make them."""
        silo, values = self.silos[seat], dict(self.inputs[seat])
        view = silo._accepted
        if view is None or view.tag_key is None or not view.binding:
            return values
        parts = []
        for segment in self.spec.segments:
            running = view.tags.start(segment)
            for start in range(0, segment.length, CHUNK_WORDS):
                running.add(values[segment.name][start : start + CHUNK_WORDS], first_word=start)
            parts.append(running.totals + view.tags.blinds(segment, seat))
        values["tags"] = np.concatenate(parts).view(np.int64)
        return values

    def truth(self) -> dict[tuple[bytes, int], Mapping[str, IntVector]]:
        """The honest inputs of this attempt, for `View.search`."""
        return {(self.setup, seat): self.truth_of(seat) for seat in self.cohort}

    def assert_hidden(self, *earlier: "Stage") -> None:
        """Nothing that the adversary holds leads to an honest input."""
        truth: dict[tuple[bytes, int], Mapping[str, IntVector]] = {}
        for stage in (*earlier, self):
            truth |= stage.truth()
        assert self.view.search(truth) == []


def assert_dead(silo: SiloRound) -> None:
    """The round is over and nothing that masks an input is left."""
    assert silo.phase is Phase.ABORTED
    own = silo._holdings
    if own is not None:  # made when the round is opened
        assert [len(secret) for secret in (own.a, own.b, own.k)] == [0, 0, 0]
        assert own.held == own.pairs == {}
        with pytest.raises(LocalProtocolError):
            _ = own.keys


def agreement_key(label: str) -> AgreementKey:
    """A key of the adversary's own."""
    return AgreementKey.from_secret(SeededRng(label).bytes(32))


def merkle_path(leaves: list[bytes], place: int) -> tuple[bytes, ...]:
    """The siblings of one leaf, bottom up, computed apart from the core."""
    row = [canonical.leaf_hash(number, data) for number, data in enumerate(leaves)]
    path = []
    while len(row) > 1:
        if place ^ 1 < len(row):
            path.append(row[place ^ 1])
        above = [canonical.digest("node", row[n], row[n + 1]) for n in range(0, len(row) - 1, 2)]
        row, place = above + row[len(above) * 2 :], place // 2
    return tuple(path)

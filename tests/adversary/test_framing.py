"""Whoever frames an honest party convinces no judge, however many silos help.

Each frame is made of an honest round's statements and of others that all silos but the victim
sign together, such that one check of the judge alone stands between the victim and a verdict.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

import pytest

from secagg import canonical, messages
from secagg.errors import EvidenceError
from secagg.evidence import Evidence, EvidenceKind, bad_dealer, bad_revealer, judge, wrong_sum
from secagg.messages import (
    ChunkAnswer,
    Disclosed,
    Disclosure,
    Message,
    Opening,
    Result,
    Share,
    ShareBox,
    ShareKind,
    SignedMessage,
    Unmask,
)
from secagg.parameters import RoundParameters, SegmentKind, VectorSpec, bulk
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.prg import CHUNK_WORDS
from secagg.recompute import THE_SUM, Claim
from secagg.ring import IntVector
from secagg.sealing import commit_secret
from secagg.secretbytes import Secret
from secagg.testing import RoundHarness, make_federation, make_parameters, make_succession
from secagg.transcript import binding_digest
from tests.adversary.stage import random_inputs, small_spec

pytestmark = pytest.mark.adversary

M = TypeVar("M", bound=SignedMessage)

SEATS = (1, 2, 3, 4, 5)
FEDERATION = make_federation(5)
ROSTER = FEDERATION.roster
VICTIM, LIAR, DROPOUT = 1, 2, 5
# t = 4 of five: the silos that open shares, and all silos but the victim.
OPENERS, OTHERS = (1, 2, 3, 4), (2, 3, 4, 5)
LONG = VectorSpec(segments=(bulk("update", 2 * CHUNK_WORDS, value_bits=8, n_max=5),))
SPECS = {
    "long": LONG,
    "noised": replace(LONG, segments=(replace(LONG.segments[0], kind=SegmentKind.NOISED),)),
    "small": small_spec(5),
}


@dataclass(slots=True, kw_only=True)
class Heard:
    """All that the silos and the server of one honest round know, put together."""

    parameters: RoundParameters
    setup: bytes = b""
    model_hash: bytes = b""
    advertises: dict[int, messages.Advertise] = field(default_factory=dict)
    shares: dict[int, Share] = field(default_factory=dict)
    roots: dict[int, bytes] = field(default_factory=dict)
    unmasks: dict[int, Unmask] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    # By dealer, kind and holder; by seat and kind; by owner, the sum's under THE_SUM.
    dealt: dict[tuple[int, ShareKind, int], Secret] = field(default_factory=dict)
    secrets: dict[tuple[int, ShareKind], Secret] = field(default_factory=dict)
    vectors: dict[int, list[bytes]] = field(default_factory=dict)


@lru_cache
def honest(spec: str = "long", suite: int = 1, number: int = 1) -> Heard:
    """A round of five silos in which the dropout deals shares and sends no upload."""
    parameters = make_parameters(ROSTER, SPECS[spec], suite=suite, round=number)
    succession = make_succession(FEDERATION, parameters, b"state") if number > 1 else None
    heard = Heard(parameters=parameters)
    inputs = random_inputs(SEATS, SPECS[spec], 3)

    def overhear(seat: int, message: Message) -> Message:
        store = harness.stores[seat]
        if isinstance(message, Result):
            heard.results.append(message)
            seat, store = THE_SUM, harness.outcome.server_store
        if isinstance(message, messages.MaskedInput | Result):
            (item,) = messages.attachments(message)
            heard.vectors[seat] = [store.read(item.name, chunk) for chunk in range(item.chunks)]
        if isinstance(message, messages.Survivors | messages.StateNotice):
            own = harness.silos[seat]._own
            for kind, secret in ((ShareKind.KEY, own.a), (ShareKind.SELF, own.b)):
                heard.secrets[seat, kind] = Secret(secret.reveal())
            for dealer, payload in own.held.items():
                heard.dealt[dealer, ShareKind.KEY, seat] = Secret(payload.share_a.reveal())
                heard.dealt[dealer, ShareKind.SELF, seat] = Secret(payload.share_b.reveal())
        return message

    def add_one(values: Mapping[str, IntVector]) -> dict[str, IntVector]:
        return {name: column + 1 for name, column in values.items()}

    harness = RoundHarness(
        federation=FEDERATION,
        parameters=parameters,
        state=b"state",
        succession=succession,
        train=lambda seat, _parameters, _state: inputs[seat],
        policies=dict.fromkeys(SEATS, SiloPolicy(suites=frozenset({suite}))),
        drop={DROPOUT: Phase.MASK},
        to_silo=overhear,
        to_server=overhear,
        noise=add_one if parameters.is_noised else None,
    )
    assert harness.run().aggregate is not None
    kept = harness.server._intake
    heard.setup, heard.model_hash, heard.roots = kept.setup, kept._model_hash, kept.share_roots
    heard.advertises, heard.shares, heard.unmasks = kept.advertises, kept.shares, kept.unmasks
    return heard


def sign(message: M, seat: int) -> M:
    """The message with this silo's signature."""
    return messages.signed(message, FEDERATION.identities[seat])


def opens(
    heard: Heard, holder: int, dealer: int, kind: ShareKind, share: Secret | None = None
) -> Unmask:
    """A holder's signed opening of one dealt share, or of another one."""
    found = share or heard.dealt[dealer, kind, holder]
    openings = (Opening(dealer=dealer, kind=kind, share=found),)
    binding = binding_digest(heard.setup, heard.model_hash, heard.roots)
    return sign(Unmask(binding=binding, seat=holder, openings=openings), holder)


def with_share(heard: Heard, share: Share, seat: int) -> Heard:
    """The round with another message of this dealer, in whose view all silos then sign."""
    return replace(
        heard,
        shares=heard.shares | {seat: share},
        roots=heard.roots | {seat: share.root},
    )


def against_dealer(
    heard: Heard,
    unmasks: list[Unmask],
    *,
    dealer: int = VICTIM,
    kind: EvidenceKind = EvidenceKind.BAD_DEALER,
) -> Evidence:
    """A case against the victim about the dealer's shares."""
    made = bad_dealer(
        dealer=VICTIM,
        parameters=heard.parameters,
        advertises=heard.advertises,
        share=heard.shares[dealer],
        unmasks={item.seat: item for item in unmasks},
        model_hash=heard.model_hash,
        share_roots=heard.roots,
        kind=kind,
    )
    return Evidence.decode(made.encode())


def against_revealer(heard: Heard, unmask: Unmask) -> Evidence:
    """A case against the victim that it opened another share of the liar's."""
    made = bad_revealer(
        parameters=heard.parameters,
        advertises=heard.advertises,
        share=heard.shares[LIAR],
        unmask=unmask,
        model_hash=heard.model_hash,
        share_roots=heard.roots,
    )
    return Evidence.decode(replace(made, accused=VICTIM).encode())


def acquitted(case: Evidence, why: str) -> None:
    """The judge refuses the case for this reason."""
    with pytest.raises(EvidenceError, match=why):
        judge(case, ROSTER)


# --- dealers --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(ShareKind))
def test_an_honest_dealers_own_shares(kind: ShareKind) -> None:
    """They rebuild what it committed to, be it opened as a survivor's or a dropout's."""
    heard = honest()
    unmasks = [opens(heard, holder, VICTIM, kind) for holder in OTHERS]
    acquitted(against_dealer(heard, unmasks), "rebuild what the dealer committed to")


def test_a_share_that_its_holder_made_up() -> None:
    """It would rebuild another secret; it does not fit the dealer's commitment."""
    heard = honest()
    unmasks = [opens(heard, holder, VICTIM, ShareKind.SELF) for holder in OTHERS[1:]]
    unmasks.append(opens(heard, LIAR, VICTIM, ShareKind.SELF, Secret(bytes(33))))
    acquitted(against_dealer(heard, unmasks), "its holder lies")


def test_true_shares_of_two_secrets() -> None:
    """Together they rebuild neither."""
    heard = honest()
    unmasks = [opens(heard, holder, VICTIM, ShareKind.SELF) for holder in OTHERS[1:]]
    unmasks.append(opens(heard, LIAR, VICTIM, ShareKind.KEY))
    acquitted(against_dealer(heard, unmasks), "of one kind")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_true_shares(count: int) -> None:
    """They rebuild nothing in particular."""
    heard = honest()
    unmasks = [opens(heard, holder, VICTIM, ShareKind.SELF) for holder in OTHERS[:count]]
    acquitted(against_dealer(heard, unmasks), "at least 4 shares" if count else "of one kind")


def test_shares_that_the_dealer_did_not_sign() -> None:
    """All others agree on what it dealt; only its signature says that it did not."""
    heard = honest()
    forged = sign(replace(heard.shares[VICTIM], commitment_b=bytes(32)), LIAR)
    heard = with_share(heard, forged, VICTIM)
    unmasks = [opens(heard, holder, VICTIM, ShareKind.SELF) for holder in OTHERS]
    acquitted(against_dealer(heard, unmasks), "do not hold")


def test_shares_of_a_lying_dealer_held_against_another() -> None:
    """They convict the liar, not the victim."""
    heard = honest()
    false = sign(replace(heard.shares[LIAR], commitment_b=bytes(32)), LIAR)
    heard = with_share(heard, false, LIAR)
    unmasks = [opens(heard, holder, LIAR, ShareKind.SELF) for holder in OTHERS]
    case = against_dealer(heard, unmasks, dealer=LIAR)
    assert judge(replace(case, accused=LIAR), ROSTER).accused == "silo-2"
    acquitted(case, "another dealer than the accused")


@pytest.mark.parametrize("kind", [EvidenceKind.BAD_DEALER, EvidenceKind.BAD_REVEALER])
def test_a_case_without_shares_or_with_two_dealers(kind: EvidenceKind) -> None:
    """Which of them would the openings be about?"""
    heard = honest()
    unmasks = [opens(heard, holder, VICTIM, ShareKind.SELF) for holder in OTHERS]
    case = replace(against_dealer(heard, unmasks), kind=kind)
    dealt = heard.shares[VICTIM].encode()
    none = tuple(item for item in case.statements if item != dealt)
    for statements in (none, (heard.shares[LIAR].encode(), *case.statements)):
        acquitted(replace(case, statements=statements), "expected one Share")


# --- holders --------------------------------------------------------------------------------


def test_an_honest_holders_opening() -> None:
    """It fits, and a case without it is none."""
    heard = honest()
    acquitted(against_revealer(heard, opens(heard, VICTIM, LIAR, ShareKind.SELF)), "fits")
    acquitted(against_revealer(heard, opens(heard, 3, LIAR, ShareKind.SELF)), "do not hold")


def test_an_opening_that_the_holder_did_not_sign() -> None:
    """Only its signature says that it opened something else."""
    heard = honest()
    forged = opens(heard, VICTIM, LIAR, ShareKind.SELF, Secret(bytes(33)))
    acquitted(against_revealer(heard, sign(forged, LIAR)), "do not hold")


def test_an_opening_of_another_round() -> None:
    """What the victim opened there never fits what it was dealt here."""
    heard, other = honest(), honest(number=2)
    acquitted(against_revealer(heard, other.unmasks[VICTIM]), "opened in another attempt")


def test_other_shares_signed_by_the_dealer_afterwards() -> None:
    """The victim's binding names the root under which its box was."""
    heard = honest()
    boxes = tuple(replace(box, commitment_b=bytes(32)) for box in heard.shares[LIAR].boxes)
    later = sign(replace(heard.shares[LIAR], boxes=boxes), LIAR)
    case = against_revealer(
        replace(heard, shares=heard.shares | {LIAR: later}), heard.unmasks[VICTIM]
    )
    acquitted(case, "dealt in another attempt")


def test_two_boxes_for_one_holder() -> None:
    """A silo sees its own box and a path; a colluding neighbor's leaf can name its seat, too."""
    heard = honest()
    first, second, third, *rest = heard.shares[LIAR].boxes
    other = ShareBox(holder=VICTIM, box=third.box, commitment_a=bytes(32), commitment_b=bytes(32))
    double = sign(replace(heard.shares[LIAR], boxes=(first, second, other, *rest)), LIAR)
    # What check A4 asks of the victim's box still holds.
    assert first.holder == VICTIM
    path = double.tree().path(0)
    canonical.merkle_verify(double.boxes_root, len(SEATS), 0, first.encode(), path)
    heard = with_share(heard, double, LIAR)
    opening = opens(heard, VICTIM, LIAR, ShareKind.SELF)
    acquitted(against_revealer(heard, opening), "two boxes for one holder")


# --- pairs of the hybrid suite ----------------------------------------------------------------


def _pair_case(heard: Heard, *, dealer: int = VICTIM, share: Secret | None = None) -> Evidence:
    unmasks = [opens(heard, holder, DROPOUT, ShareKind.KEY, share) for holder in OTHERS]
    return against_dealer(heard, unmasks, dealer=dealer, kind=EvidenceKind.FALSE_PAIR)


def test_honest_pairs() -> None:
    """Every one is what the victim committed to."""
    acquitted(_pair_case(honest("small", 4)), "every pair secret")


def test_a_dropouts_key_that_its_holders_made_up() -> None:
    """It opens no pair; nor is it the key that the dropout advertised."""
    case = _pair_case(honest("small", 4), share=Secret(bytes(32) + b"\x07"))
    acquitted(case, "every pair secret")


def test_pairs_of_another_round() -> None:
    """The victim signed them for other keys."""
    heard, other = honest("small", 4), honest("small", 4, 2)
    heard = with_share(heard, other.shares[VICTIM], VICTIM)
    acquitted(_pair_case(heard), "dealt in another attempt")


def test_pairs_of_a_lying_dealer_held_against_another() -> None:
    """They convict the liar, not the victim."""
    heard = honest("small", 4)
    boxes = []
    for box in heard.shares[LIAR].boxes:
        if box.kem and box.kem.pair:
            pair = replace(box.kem.pair, commitment=bytes(32))
            boxes.append(replace(box, kem=replace(box.kem, pair=pair)))
        else:
            boxes.append(box)
    false = sign(replace(heard.shares[LIAR], boxes=tuple(boxes)), LIAR)
    case = _pair_case(with_share(heard, false, LIAR), dealer=LIAR)
    assert judge(replace(case, accused=LIAR), ROSTER).accused == "silo-2"
    acquitted(case, "another dealer than the accused")


# --- the coordinator --------------------------------------------------------------------------


def _disclosure(heard: Heard) -> Disclosure:
    """The secrets that t silos' openings give, from the silos' own hands."""
    return Disclosure(
        binding=heard.results[0].binding,
        nonces=(),
        opened=tuple(
            Disclosed(
                seat=seat,
                secret=heard.secrets[seat, ShareKind.KEY if seat == DROPOUT else ShareKind.SELF],
                commitment_b=share.commitment_b,
                commitment_k=share.commitment_k,
                boxes_root=share.boxes_root,
            )
            for seat, share in sorted(heard.shares.items())
        ),
    )


def _answer(heard: Heard, of: int, chunk: int = 0) -> ChunkAnswer:
    pieces = heard.vectors[of]
    return ChunkAnswer(
        binding=heard.results[0].binding,
        chunk=chunk,
        of=of,
        data=pieces[chunk],
        path=canonical.MerkleTree.of(pieces).path(chunk),
    )


def _sum_case(
    heard: Heard,
    *,
    result: Result | None = None,
    disclosure: Disclosure | None = None,
    **answers: ChunkAnswer,
) -> Evidence:
    """A case against the coordinator; answers by the name of their vector, "of_1"."""
    claim = Claim(
        parameters=heard.parameters,
        advertises=heard.advertises,
        share_roots=heard.roots,
        model_hash=heard.model_hash,
        result=result or heard.results[0],
    )
    pieces = tuple(
        answers.get(f"of_{of}") or _answer(heard, of) for of in (THE_SUM, *claim.survivors)
    )
    made = wrong_sum(claim, disclosure or _disclosure(heard), pieces)
    return Evidence.decode(made.encode())


def test_a_true_sum() -> None:
    """Every chunk of it, and with a part of the case missing."""
    heard = honest()
    case = _sum_case(heard)
    acquitted(case, "is the sum of the uploads")
    parts = {
        _disclosure(heard).encode(): "one Result and one Disclosure",
        heard.results[0].encode(): "one Result and one Disclosure",
        _answer(heard, 3).encode(): "do not hold: 3",
        _answer(heard, THE_SUM).encode(): "do not hold: 0",
    }
    for part, why in parts.items():
        rest = tuple(item for item in case.statements if item != part)
        assert len(rest) == len(case.statements) - 1
        acquitted(replace(case, statements=rest), why)
    none = tuple(item for item in case.statements if b"chunk-answer" not in item[:40])
    assert len(none) == len(case.statements) - len(OPENERS) - 1
    acquitted(replace(case, statements=none), "same chunk")


def test_a_wrong_result_that_the_coordinator_did_not_sign() -> None:
    """All else in it is consistent."""
    heard = honest()
    pieces = [bytes(len(data)) for data in heard.vectors[THE_SUM]]
    root = canonical.merkle_root(pieces)
    forged = sign(replace(heard.results[0], root=root), LIAR)
    other = replace(heard, vectors=heard.vectors | {THE_SUM: pieces})
    acquitted(_sum_case(other, result=forged), "do not hold")


def test_another_secret_under_another_root() -> None:
    """The result's binding names the roots under which the silos committed."""
    heard = honest()
    share = heard.shares[LIAR]
    secret = Secret(bytes(32))
    false = replace(share, commitment_b=commit_secret("com-b", heard.setup, LIAR, secret))
    other = replace(
        with_share(heard, false, LIAR), secrets=heard.secrets | {(LIAR, ShareKind.SELF): secret}
    )
    acquitted(_sum_case(other), "that the result is bound to")


def test_chunks_of_two_places() -> None:
    """True pieces, each under its root; their sum is nobody's."""
    heard = honest()
    acquitted(_sum_case(heard, of_3=_answer(heard, 3, chunk=1)), "same chunk")


def test_a_chunk_that_was_never_uploaded() -> None:
    """It does not lie under the root that its silo signed."""
    heard = honest()
    false = replace(_answer(heard, 3), data=bytes(len(heard.vectors[3][0])))
    acquitted(_sum_case(heard, of_3=false), "under its signed root")


def test_a_noised_sum() -> None:
    """The coordinator added what it had to add; all silos together can show the exact sum."""
    acquitted(_sum_case(honest("noised")), "a noised sum")

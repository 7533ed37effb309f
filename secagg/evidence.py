"""Evidence of misbehavior that a third party can check with nothing but the roster.

Every case rests on signatures: of the silo or the coordinator that is accused, over statements
that no honest party makes. What cannot be decided so (a complaint, a failed tag check, silence)
is never called evidence. The statements are the messages themselves, in canonical bytes.

=====================  ============================================================
case                   what the statements show
=====================  ============================================================
bad dealer             t opened shares fit the dealer's commitments and rebuild
                       another secret than it committed to
false pair             in the hybrid suite, a dropout's rebuilt key gives another
                       pair secret than the accused committed to
bad revealer           a holder signed an opening that does not fit the dealer's
                       commitment
contradiction          one silo signed two different messages of one kind in one
                       attempt
wrong sum              a chunk of the sum that the coordinator signed is not the
                       sum of the uploads that it names, by recomputing it
equivocation           the coordinator signed two different openings of one attempt,
                       two states for one setup, or two results for one binding
=====================  ============================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, ClassVar, Final, assert_never

from secagg.codec import (
    DIGEST,
    MAX_RECORD_BYTES,
    U32,
    Record,
    blob,
    choice,
    listed,
    nested,
)
from secagg.errors import EvidenceError, FalsePairError, ParameterError, RemoteProtocolError
from secagg.hybrid import KemKey
from secagg.keys import mask_key_from_seed, verify
from secagg.messages import (
    Advertise,
    ChunkAnswer,
    Disclosure,
    MaskedInput,
    Message,
    Opening,
    Result,
    RoundOpen,
    Share,
    ShareKind,
    SignedMessage,
    StateNotice,
    Survivors,
    Unmask,
    decode_message,
)
from secagg.parameters import RoundParameters
from secagg.recompute import (
    THE_SUM,
    Claim,
    check_answer,
    disclosed_masks,
    recompute_chunk,
)
from secagg.roster import Roster
from secagg.sealing import commit_secret, commit_share
from secagg.shamir import combine
from secagg.transcript import binding_digest, setup_digest
from secagg.unmasking import pair_secret

# What an honest silo says once in an attempt. One whose machine was restored from an older copy
# may say it twice, which is why a restored silo sits the attempt out.
SAID_ONCE: Final = (Advertise, Share, MaskedInput, Survivors, Unmask)


class EvidenceKind(StrEnum):
    """What the accused did."""

    BAD_DEALER = "bad dealer"
    FALSE_PAIR = "false pair"
    BAD_REVEALER = "bad revealer"
    CONTRADICTION = "contradiction"
    WRONG_SUM = "wrong sum"
    EQUIVOCATION = "equivocation"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRoot(Record):
    """A member of U2 and its share root."""

    LABEL: ClassVar[str] = "evidence-root"

    seat: Annotated[int, U32]
    root: Annotated[bytes, DIGEST]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence(Record):
    """A case against one seat, or against the coordinator (seat 0).

    Attributes:
        statements: encoded messages; which ones depends on the kind.
        model_hash, share_roots: with setup they give the binding that an Unmask was signed for.
    """

    LABEL: ClassVar[str] = "evidence"
    # A wrong sum is proven by a chunk of every upload, half a MiB at most each.
    MAX_BYTES: ClassVar[int] = 16 * MAX_RECORD_BYTES

    kind: Annotated[EvidenceKind, choice(EvidenceKind)]
    accused: Annotated[int, U32]
    parameters: Annotated[RoundParameters, nested(RoundParameters)]
    statements: Annotated[tuple[bytes, ...], listed(blob(MAX_RECORD_BYTES, "a statement"))]
    model_hash: Annotated[bytes, DIGEST] = bytes(32)
    share_roots: Annotated[tuple[ShareRoot, ...], listed(nested(ShareRoot))] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What checked evidence proves, in words for people."""

    accused: str
    finding: str


def bad_dealer(
    *,
    dealer: int,
    parameters: RoundParameters,
    advertises: Mapping[int, Advertise],
    share: Share,
    unmasks: Mapping[int, Unmask],
    model_hash: bytes,
    share_roots: Mapping[int, bytes],
    kind: EvidenceKind = EvidenceKind.BAD_DEALER,
) -> Evidence:
    """The case against a dealer whose opened shares rebuild another secret.

    Or, with FALSE_PAIR, whose pair secret a dropout's opened shares show to be another one.
    """
    return Evidence(
        kind=kind,
        accused=dealer,
        parameters=parameters,
        statements=(
            *(advertises[seat].encode() for seat in sorted(advertises)),
            share.encode(),
            *(unmasks[seat].encode() for seat in sorted(unmasks)),
        ),
        model_hash=model_hash,
        share_roots=_roots(share_roots),
    )


def bad_revealer(
    *,
    parameters: RoundParameters,
    advertises: Mapping[int, Advertise],
    share: Share,
    unmask: Unmask,
    model_hash: bytes,
    share_roots: Mapping[int, bytes],
) -> Evidence:
    """The case against a holder that opened another share than it was dealt."""
    return Evidence(
        kind=EvidenceKind.BAD_REVEALER,
        accused=unmask.seat,
        parameters=parameters,
        statements=(
            *(advertises[seat].encode() for seat in sorted(advertises)),
            share.encode(),
            unmask.encode(),
        ),
        model_hash=model_hash,
        share_roots=_roots(share_roots),
    )


def two_statements(
    kind: EvidenceKind, accused: int, parameters: RoundParameters, first: Message, second: Message
) -> Evidence:
    """A contradiction of a silo, or an equivocation of the coordinator (accused 0)."""
    return Evidence(
        kind=kind,
        accused=accused,
        parameters=parameters,
        statements=(first.encode(), second.encode()),
    )


def wrong_sum(claim: Claim, disclosure: Disclosure, answers: tuple[ChunkAnswer, ...]) -> Evidence:
    """The case against a coordinator that signed a wrong chunk.

    Args:
        claim: its result.
        disclosure: the opened secrets; the nonces are left out, they prove nothing.
        answers: the chunk of the sum and of every upload.
    """
    keys = claim.advertises
    return Evidence(
        kind=EvidenceKind.WRONG_SUM,
        accused=0,
        parameters=claim.parameters,
        statements=(
            *(keys[seat].encode() for seat in sorted(keys)),
            claim.result.encode(),
            replace(disclosure, nonces=()).encode(),
            *(answer.encode() for answer in answers),
        ),
        model_hash=claim.model_hash,
        share_roots=_roots(claim.share_roots),
    )


def judge(evidence: Evidence, roster: Roster) -> Verdict:
    """Check a case offline.

    Args:
        evidence: the case.
        roster: the version that the round named; it gives every key.

    Raises:
        EvidenceError: the statements do not prove it.
    """
    if evidence.parameters.roster_digest != roster.digest():
        raise EvidenceError("the evidence is about a round under another roster version")
    is_silo = evidence.kind not in {EvidenceKind.EQUIVOCATION, EvidenceKind.WRONG_SUM}
    if is_silo != bool(evidence.accused):
        raise EvidenceError(
            "the accused must be a seat or, in these two cases, the coordinator (0)"
        )
    try:
        statements = [decode_message(data) for data in evidence.statements]
        finding = _find(evidence, statements, roster)
    except EvidenceError:
        raise
    except (RemoteProtocolError, ParameterError, KeyError) as error:
        raise EvidenceError(f"the statements do not hold: {error}") from error
    name = roster.seat(evidence.accused).silo.name if is_silo else "the coordinator"
    return Verdict(accused=name, finding=finding)


def _find(evidence: Evidence, statements: list[Message], roster: Roster) -> str:
    match evidence.kind:
        case EvidenceKind.BAD_DEALER:
            return _judge_dealer(evidence, statements, roster)
        case EvidenceKind.FALSE_PAIR:
            return _judge_pair(evidence, statements, roster)
        case EvidenceKind.BAD_REVEALER:
            return _judge_revealer(evidence, statements, roster)
        case EvidenceKind.CONTRADICTION:
            return _judge_contradiction(evidence, statements, roster)
        case EvidenceKind.WRONG_SUM:
            return _judge_sum(evidence, statements, roster)
        case EvidenceKind.EQUIVOCATION:
            return _judge_equivocation(statements, roster)
        case _:
            assert_never(evidence.kind)


def _roots(share_roots: Mapping[int, bytes]) -> tuple[ShareRoot, ...]:
    return tuple(ShareRoot(seat=seat, root=share_roots[seat]) for seat in sorted(share_roots))


def _verify_silo(message: SignedMessage, seat: int, roster: Roster) -> None:
    verify(roster.seat(seat).identity_key, message.signature, message.signed_bytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dealing:
    """Statements of a case about shares, their signatures checked."""

    setup: bytes
    threshold: int
    share: Share
    advertises: dict[int, Advertise]
    unmasks: dict[int, Unmask]


def _read_dealing(evidence: Evidence, statements: list[Message], roster: Roster) -> _Dealing:
    """Recompute setup and binding, so that every statement is about this one attempt."""
    advertises = {item.seat: item for item in statements if isinstance(item, Advertise)}
    shares = [item for item in statements if isinstance(item, Share)]
    unmasks = {item.seat: item for item in statements if isinstance(item, Unmask)}
    if len(shares) != 1:
        raise EvidenceError("expected one Share among the statements")
    # Keys need no check: the accused signed under setup, which no honest silo does unchecked.
    setup = setup_digest(evidence.parameters.ctx(), advertises)
    graph = evidence.parameters.neighborhoods(tuple(sorted(advertises)), setup)
    share = shares[0]
    roots = {item.seat: item.root for item in evidence.share_roots}
    if share.setup != setup or roots.get(share.seat) != share.root:
        raise EvidenceError("the shares were dealt in another attempt")
    _verify_silo(share, share.seat, roster)
    binding = binding_digest(setup, evidence.model_hash, roots)
    for unmask in unmasks.values():
        if unmask.binding != binding:
            raise EvidenceError("the shares were opened in another attempt")
        _verify_silo(unmask, unmask.seat, roster)
    return _Dealing(
        setup=setup,
        threshold=graph.threshold,
        share=share,
        advertises=advertises,
        unmasks=unmasks,
    )


def _opened(case: _Dealing, holder: int) -> tuple[Opening, bool]:
    """What a holder opened of the dealer, and whether it is what it was dealt."""
    dealer = case.share.seat
    openings = {item.dealer: item for item in case.unmasks[holder].openings}
    boxes = {item.holder: item for item in case.share.boxes}
    # A holder has seen its own box alone: another one under its seat would make a liar of it.
    if len(boxes) != len(case.share.boxes):
        raise EvidenceError("the dealer made two boxes for one holder")
    opening, box = openings[dealer], boxes[holder]
    promised = box.commitment_a if opening.kind is ShareKind.KEY else box.commitment_b
    found = commit_share(case.setup, dealer, holder, opening.kind.value, opening.share)
    return opening, found == promised


def _judge_dealer(evidence: Evidence, statements: list[Message], roster: Roster) -> str:
    case = _read_dealing(evidence, statements, roster)
    dealer = case.share.seat
    if dealer != evidence.accused:
        raise EvidenceError("the shares are those of another dealer than the accused")
    shares = {}
    kinds = set()
    for holder in case.unmasks:
        opening, fits = _opened(case, holder)
        if not fits:
            raise EvidenceError("an opened share does not fit its commitment: its holder lies")
        shares[holder] = opening.share
        kinds.add(opening.kind)
    if len(kinds) != 1:
        raise EvidenceError("expected opened shares of one kind")
    try:
        secret = combine(shares, case.threshold)
    except RemoteProtocolError:
        return "its opened shares rebuild no secret at all"
    if kinds == {ShareKind.SELF}:
        holds = commit_secret("com-b", case.setup, dealer, secret) == case.share.commitment_b
    else:
        holds = _is_key_of(secret, case.advertises[dealer])
    if holds:
        raise EvidenceError("the opened shares rebuild what the dealer committed to")
    return "its opened shares fit its commitments and rebuild another secret"


def _is_key_of(secret: bytes, advertise: Advertise) -> bool:
    """Whether every mask key that a silo advertised follows from this a_u."""
    kem = advertise.kem
    return mask_key_from_seed(secret).public == advertise.mask_key and (
        kem is None or KemKey.for_masks(secret).public == kem.mask_key
    )


def _judge_pair(evidence: Evidence, statements: list[Message], roster: Roster) -> str:
    case = _read_dealing(evidence, statements, roster)
    low = case.share.seat
    if low != evidence.accused:
        raise EvidenceError("the shares are those of another dealer than the accused")
    for dropout in sorted(case.advertises):
        shares = {
            holder: opening.share
            for holder, unmask in case.unmasks.items()
            for opening in unmask.openings
            if (opening.dealer, opening.kind) == (dropout, ShareKind.KEY)
        }
        secret = combine(shares, case.threshold) if len(shares) >= case.threshold else b""
        if not _is_key_of(secret, case.advertises[dropout]):
            continue
        for box in case.share.boxes:
            if box.kem and box.kem.pair and dropout in {low, box.holder}:
                try:
                    pair_secret(case.setup, (low, box.holder), dropout, secret, box.kem.pair)
                except FalsePairError:
                    peer = roster.seat(box.holder).silo.name
                    return f"its pair secret with {peer} is not the one it committed to"
    raise EvidenceError("every pair secret is the one that the accused committed to")


def _judge_revealer(evidence: Evidence, statements: list[Message], roster: Roster) -> str:
    case = _read_dealing(evidence, statements, roster)
    if _opened(case, evidence.accused)[1]:
        raise EvidenceError("the opened share fits its commitment")
    dealer = roster.seat(case.share.seat).silo.name
    return f"it opened another share of {dealer} than it was dealt"


def _judge_contradiction(evidence: Evidence, statements: list[Message], roster: Roster) -> str:
    first, second = _two(statements)
    if not isinstance(first, SAID_ONCE) or type(first) is not type(second):
        raise EvidenceError("expected two messages of one kind that a silo sends once")
    assert isinstance(second, SAID_ONCE)  # of the same type as the first
    for item in (first, second):
        if item.seat != evidence.accused:
            raise EvidenceError("a statement is not the accused's")
        _verify_silo(item, evidence.accused, roster)
    if _about(first) != _about(second):
        raise EvidenceError("the statements are about different attempts")
    if first.signed_bytes() == second.signed_bytes():
        raise EvidenceError("the two statements say the same")
    return f"it signed two different {type(first).__name__} messages in one attempt"


def _judge_sum(evidence: Evidence, statements: list[Message], roster: Roster) -> str:
    """Everything hangs on the coordinator's signature: binding, uploads' roots and sum."""
    if evidence.parameters.is_noised:
        raise EvidenceError("a noised sum is not that of the uploads, and need not be")
    results = [item for item in statements if isinstance(item, Result)]
    disclosures = [item for item in statements if isinstance(item, Disclosure)]
    answers = {item.of: item for item in statements if isinstance(item, ChunkAnswer)}
    if (len(results), len(disclosures)) != (1, 1):
        raise EvidenceError("expected one Result and one Disclosure among the statements")
    result = results[0]
    verify(roster.coordinator_key, result.signature, result.signed_bytes())
    claim = Claim(
        parameters=evidence.parameters,
        advertises={item.seat: item for item in statements if isinstance(item, Advertise)},
        share_roots={item.seat: item.root for item in evidence.share_roots},
        model_hash=evidence.model_hash,
        result=result,
    )
    claim.check_binding()
    numbers = {item.chunk for item in answers.values()}
    if len(numbers) != 1:
        raise EvidenceError("expected the same chunk of the sum and of every upload")
    wire = evidence.parameters.wire_spec
    chunks = wire.chunks
    for answer in answers.values():
        check_answer(claim, answer, len(chunks))
    (number,) = numbers
    masks = disclosed_masks(claim, disclosures[0])
    uploads = [answers[seat].data for seat in claim.survivors]
    found = recompute_chunk(wire, chunks[number], uploads, masks, evidence.parameters)
    if found == answers[THE_SUM].data:
        raise EvidenceError("the sum's chunk is the sum of the uploads")
    return f"chunk {number} of the sum that it signed is not the sum of the uploads that it names"


def _judge_equivocation(statements: list[Message], roster: Roster) -> str:
    first, second = _two(statements)
    kinds = (RoundOpen, StateNotice, Result)
    if not isinstance(first, kinds) or type(first) is not type(second):
        raise EvidenceError("expected two messages of one kind by the coordinator")
    assert isinstance(second, kinds)  # of the same type as the first
    for item in (first, second):
        verify(roster.coordinator_key, item.signature, item.signed_bytes())
    if _about(first) != _about(second):
        raise EvidenceError("the statements are about different attempts")
    if first.signed_bytes() == second.signed_bytes():
        raise EvidenceError("the two statements say the same")
    return f"it signed two different {type(first).__name__} messages for one attempt"


def _two(statements: list[Message]) -> tuple[Message, Message]:
    if len(statements) != 2:
        raise EvidenceError(f"expected two statements, got {len(statements)}")
    return statements[0], statements[1]


def _about(message: Message) -> object:
    """What identifies the attempt, or the view of it, that a message speaks of."""
    if isinstance(message, RoundOpen):
        return message.parameters.federation, message.parameters.attempt_id
    names = (name for name in ("binding", "setup", "ctx") if hasattr(message, name))
    return getattr(message, next(names))

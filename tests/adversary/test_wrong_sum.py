"""A coordinator that signs a wrong sum, and one that shows wrong pieces to those who recompute it.

With redundancy in ctx each silo recomputes its part of the sum from the uploads. What it finds
wrong it can prove to anybody; what the server refuses to show properly proves nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg import canonical, messages, server, vectors
from secagg.effects import Broadcast, SendTo
from secagg.errors import (
    BadDisclosureError,
    BadSignatureError,
    EvidenceError,
    ForgedSumError,
    LocalProtocolError,
    RemoteProtocolError,
    ReplayError,
    SurvivorsUncertifiedError,
    WrongPhaseError,
)
from secagg.evidence import Evidence, EvidenceKind, ShareRoot, judge
from secagg.intake import masked_name
from secagg.messages import ChunkAnswer, Disclosure, Message, RecomputeNonce, ShareKind
from secagg.parameters import VectorSpec, bulk, meta
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.prg import CHUNK_WORDS
from secagg.ring import IntVector
from secagg.sealing import commit_secret
from secagg.secretbytes import Secret
from secagg.testing import Outcome, RoundHarness, make_federation, make_parameters
from secagg.vectors import OpenedSum
from tests.adversary.stage import random_inputs, small_spec
from tests.adversary.view import View

pytestmark = pytest.mark.adversary

SEATS = (1, 2, 3, 4, 5)
FEDERATION = make_federation(5)
# Three chunks of the update, one of counts, one of tags.
SPEC = VectorSpec(
    segments=(
        bulk("update", 2 * CHUNK_WORDS + 10, value_bits=8, n_max=5),
        meta("count", 2, bound=2**40),
    )
)
INPUTS = random_inputs(SEATS, SPEC, 4)
CHUNKS = 5
AUDITING = SiloPolicy(suites=frozenset({1, 4}), max_redundancy=2, own_chunks=1)


def _harness(
    *, suite: int = 1, policies: Mapping[int, SiloPolicy] | None = None, **script: Any
) -> RoundHarness:
    return RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC, suite=suite, redundancy=2),
        state=b"state",
        train=lambda seat, _parameters, _state: INPUTS[seat],
        policies=policies or dict.fromkeys(SEATS, AUDITING),
        **script,
    )


def _round(**script: Any) -> tuple[RoundHarness, Outcome]:
    harness = _harness(**script)
    return harness, harness.run()


def _verified(harness: RoundHarness) -> dict[int, set[int]]:
    return {
        seat: silo.auditor.verified
        for seat, silo in harness.silos.items()
        if silo.auditor is not None
    }


@pytest.mark.parametrize("suite", [1, 4])
@pytest.mark.parametrize(
    "drop", [{}, {1: Phase.MASK}, {5: Phase.MASK}, {2: Phase.UNMASK}, {3: Phase.CLOSED}]
)
def test_an_honest_sum_is_found_right(drop: dict[int, Phase], suite: int) -> None:
    """Every chunk by two silos at least; a silo that sends no nonce stops nobody."""
    harness, outcome = _round(suite=suite, drop=drop)
    assert (outcome.silo_errors, outcome.server_errors) == ({}, [])
    assert outcome.aggregate is not None
    assert outcome.aggregate.survivors == tuple(s for s in SEATS if drop.get(s) is not Phase.MASK)
    found = _verified(harness)
    auditors = set(SEATS) - drop.keys()
    for chunk in range(CHUNKS):
        assert sum(chunk in found[seat] for seat in auditors) >= 2
    assert all(found[seat] for seat in auditors)  # its own choice at least
    assert all(silo.evidence == [] for silo in harness.silos.values())
    assert harness.server.deadline is None


def _wrong_sum(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """The server adds 1 to the first word of a chunk, and signs that."""
    honest = vectors.sum_and_unmask

    def sum_and_unmask(**arguments: Any) -> OpenedSum:
        opened = honest(**arguments)
        store, name = arguments["store"], arguments["name"]
        data = bytearray(store.read(name, chunk))
        data[0] ^= 1
        store.write(name, chunk, bytes(data))
        pieces = [store.read(name, number) for number in range(CHUNKS)]
        return replace(opened, root=canonical.merkle_root(pieces))

    monkeypatch.setattr(server, "sum_and_unmask", sum_and_unmask)


@pytest.mark.parametrize("suite", [1, 4])
@pytest.mark.parametrize("chunk", [0, 2, 3, 4])
def test_a_wrong_sum_convicts_the_coordinator(
    chunk: int, suite: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tags refuse it everywhere, and whoever recomputes the chunk can prove who lies."""
    _wrong_sum(monkeypatch, chunk)
    harness, outcome = _round(suite=suite, drop={2: Phase.MASK})
    assert {type(error) for error in outcome.silo_errors.values()} == {ForgedSumError}
    cases = [case for silo in harness.silos.values() for case in silo.evidence]
    assert len(cases) >= 2
    for case in cases:
        assert (case.kind, case.accused) == (EvidenceKind.WRONG_SUM, 0)
        verdict = judge(Evidence.decode(case.encode()), FEDERATION.roster)
        assert verdict.accused == "the coordinator"
        assert f"chunk {chunk} of the sum" in verdict.finding
    assert all(silo.phase is Phase.ABORTED for silo in harness.silos.values() if silo.seat != 2)
    assert all(chunk not in found for found in _verified(harness).values())


def test_a_lying_silo_is_told_from_a_lying_coordinator() -> None:
    """A silo with a false tag spoils the check for all; recomputing shows the sum to be true."""

    def train(seat: int, *_rest: object) -> Any:
        if seat == 3:
            silo = harness.silos[3]
            silo._view.tag_key = Secret(bytes(32))  # its tags are of another key
        return INPUTS[seat]

    harness = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC, redundancy=2),
        state=b"state",
        train=train,
        policies=dict.fromkeys(SEATS, AUDITING),
    )
    outcome = harness.run()
    assert {type(error) for error in outcome.silo_errors.values()} == {ForgedSumError}
    found = _verified(harness)
    assert set().union(*found.values()) == set(range(CHUNKS))
    assert all(silo.evidence == [] for silo in harness.silos.values())


def test_only_what_the_coordinator_signed_is_recomputed() -> None:
    """A result that is not authentic, or not of this silo's view, asks nobody for a nonce."""
    changes: dict[int, dict[str, Any]] = {
        1: {"signature": bytes(64)},
        2: {"binding": bytes(32)},
        3: {"endorsements": ()},
    }

    def to_silo(seat: int, message: Message) -> Message:
        if not isinstance(message, messages.Result) or seat not in changes:
            return message
        changed = replace(message, **changes[seat])
        return changed if seat == 1 else messages.signed(changed, FEDERATION.coordinator)

    harness, outcome = _round(to_silo=to_silo)
    errors = {seat: type(error) for seat, error in outcome.silo_errors.items()}
    expected = (BadSignatureError, ForgedSumError, SurvivorsUncertifiedError)
    assert errors == dict(zip(changes, expected, strict=True))
    for seat in changes:
        assert harness.silos[seat].auditor is None
        with pytest.raises(LocalProtocolError, match="no announced sum"):
            harness.silos[seat].recompute()


def test_what_convicts_no_honest_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a true case with one statement missing, doubled or exchanged prove nothing."""
    _wrong_sum(monkeypatch, 0)
    harness, _ = _round()
    case = next(case for silo in harness.silos.values() for case in silo.evidence)
    *advertises, result, disclosure, of_sum, one, two, three, four, five = case.statements
    uploads = (one, two, three, four, five)
    head = (*advertises, result, disclosure)
    decoded = messages.decode_message(of_sum)
    assert isinstance(decoded, ChunkAnswer)
    shifted = messages.decode_message(one)
    assert isinstance(shifted, ChunkAnswer)
    forged = messages.decode_message(result)
    assert isinstance(forged, messages.Result)
    forged = messages.signed(forged, FEDERATION.identities[1])
    opened = messages.decode_message(disclosure)
    assert isinstance(opened, Disclosure)
    for statements in (
        (),
        (*advertises, disclosure, of_sum, *uploads),
        (*advertises, result, of_sum, *uploads),
        (*head, disclosure, of_sum, *uploads),
        (*head, result, of_sum, *uploads),
        (*head, *uploads),
        (*head, of_sum, *uploads[1:]),
        (*head, of_sum),
        (*head, replace(decoded, data=b"other").encode(), *uploads),
        (*head, of_sum, replace(shifted, chunk=1).encode(), *uploads[1:]),
        (*head, of_sum, replace(shifted, of=9).encode(), *uploads[1:]),
        (*head, of_sum, replace(shifted, binding=bytes(32)).encode(), *uploads[1:]),
        (*advertises[1:], result, disclosure, of_sum, *uploads),
        (*advertises, forged.encode(), disclosure, of_sum, *uploads),
        (*advertises, result, replace(opened, opened=()).encode(), of_sum, *uploads),
    ):
        with pytest.raises(EvidenceError):
            judge(replace(case, statements=statements), FEDERATION.roster)
    for changed in (
        replace(case, model_hash=bytes(32)),
        replace(case, share_roots=case.share_roots[1:]),
        replace(case, parameters=replace(case.parameters, round=7)),
    ):
        with pytest.raises(EvidenceError):
            judge(changed, FEDERATION.roster)


def test_an_honest_coordinators_pieces_prove_nothing() -> None:
    """The very statements of a true sum, made into a case."""
    seen: dict[tuple[int, int], ChunkAnswer] = {}
    disclosures: list[Disclosure] = []
    results: list[messages.Result] = []

    def listen(_seat: int, message: Message) -> Message:
        if isinstance(message, ChunkAnswer):
            seen[message.chunk, message.of] = message
        if isinstance(message, Disclosure):
            disclosures.append(message)
        if isinstance(message, messages.Result):
            results.append(message)
        return message

    harness, _ = _round(to_silo=listen)
    kept = harness.server._intake
    case = Evidence(
        kind=EvidenceKind.WRONG_SUM,
        accused=0,
        parameters=harness.server.parameters,
        statements=(
            *(kept.advertises[seat].encode() for seat in SEATS),
            results[0].encode(),
            disclosures[0].encode(),
            *(seen[0, of].encode() for of in (0, *SEATS)),
        ),
        model_hash=kept._model_hash,
    )
    with pytest.raises(EvidenceError, match="not those that the result is bound to"):
        judge(case, FEDERATION.roster)
    roots = tuple(ShareRoot(seat=seat, root=kept.share_roots[seat]) for seat in SEATS)
    with pytest.raises(EvidenceError, match="chunk is the sum of the uploads"):
        judge(replace(case, share_roots=roots), FEDERATION.roster)


def _other_secret(message: Disclosure) -> Disclosure:
    first, *rest = message.opened
    return replace(message, opened=(replace(first, secret=Secret(bytes(32))), *rest))


def _other_commitment(message: Disclosure) -> Disclosure:
    first, *rest = message.opened
    return replace(message, opened=(replace(first, commitment_b=bytes(32)), *rest))


def _other_key(message: Disclosure) -> Disclosure:
    """A dropout's key: seat 2 has no upload in these rounds."""
    one, two, *rest = message.opened
    return replace(message, opened=(one, replace(two, secret=Secret(bytes(32))), *rest))


def _other_nonce(message: Disclosure) -> Disclosure:
    first, *rest = message.nonces
    changed = messages.signed(replace(first, nonce=bytes(32)), FEDERATION.coordinator)
    return replace(message, nonces=(changed, *rest))


def _old_nonce(message: Disclosure) -> Disclosure:
    first, *rest = message.nonces
    changed = messages.signed(replace(first, root=bytes(32)), FEDERATION.identities[1])
    return replace(message, nonces=(changed, *rest))


DISCLOSURES: dict[str, Callable[[Disclosure], Disclosure]] = {
    "another attempt's": lambda message: replace(message, binding=bytes(32)),
    "one secret less": lambda message: replace(message, opened=message.opened[1:]),
    "none": lambda message: replace(message, opened=()),
    "another secret": _other_secret,
    "another commitment": _other_commitment,
    "another key": _other_key,
    "own nonce left out": lambda message: replace(
        message, nonces=tuple(item for item in message.nonces if item.seat != 3)
    ),
    "no nonces": lambda message: replace(message, nonces=()),
    "nonces out of order": lambda message: replace(message, nonces=message.nonces[::-1]),
    "a nonce of the server's": _other_nonce,
    "an old nonce": _old_nonce,
}


@pytest.mark.parametrize("name", DISCLOSURES)
def test_a_false_disclosure(name: str) -> None:
    """The silo stops and says why; the others go on."""

    def lie(seat: int, message: Message) -> Message:
        if seat != 3 or not isinstance(message, Disclosure):
            return message
        return DISCLOSURES[name](message)

    harness, outcome = _round(to_silo=lie, drop={2: Phase.MASK})
    assert list(outcome.silo_errors) == [3]
    assert outcome.silo_errors[3].code in {"A9_BAD_DISCLOSURE", "BAD_SIGNATURE"}
    silo = harness.silos[3]
    assert silo.auditor is not None
    assert (silo.auditor.is_done, silo.auditor.verified, silo.evidence) == (True, set(), [])
    assert silo.phase is Phase.CLOSED  # its sum was right
    assert all(_verified(harness)[seat] for seat in (1, 4, 5))


def test_another_secret_with_a_commitment_to_it() -> None:
    """The commitment must be the one under the dealer's share root, which is in the binding."""

    def lie(seat: int, message: Message) -> Message:
        if seat != 3 or not isinstance(message, Disclosure):
            return message
        first, *rest = message.opened
        setup, secret = harness.server._intake.setup, Secret(bytes(32))
        commitment = commit_secret("com-b", setup, first.seat, secret)
        changed = replace(first, secret=secret, commitment_b=commitment)
        return replace(message, opened=(changed, *rest))

    harness = _harness(to_silo=lie)
    errors = harness.run().silo_errors
    assert list(errors) == [3]
    assert type(errors[3]) is BadDisclosureError
    assert "not the one it dealt" in str(errors[3])
    assert harness.silos[3].evidence == []


@pytest.mark.parametrize("flaw", ["missing", "another", "stripped", "another path"])
@pytest.mark.parametrize("lost", [1, 5])
def test_a_false_pair_in_a_disclosure(flaw: str, lost: int) -> None:
    """In the hybrid suite the pairs of survivors and dropouts are checked like the secrets."""

    def lie(seat: int, message: Message) -> Message:
        if seat != 3 or not isinstance(message, Disclosure):
            return message
        first, *rest = message.pairs
        assert first.box.kem is not None
        assert first.box.kem.pair is not None
        other = replace(first.box.kem.pair, commitment=bytes(32))
        changed = {
            "missing": (),
            "another": (
                replace(first, box=replace(first.box, kem=replace(first.box.kem, pair=other))),
            ),
            "stripped": (replace(first, box=replace(first.box, kem=None)),),
            "another path": (replace(first, path=first.path[1:]),),
        }[flaw]
        return replace(message, pairs=(*changed, *rest))

    harness, outcome = _round(suite=4, to_silo=lie, drop={lost: Phase.MASK})
    assert type(outcome.silo_errors[3]) is BadDisclosureError
    assert harness.silos[3].evidence == []


CHUNK_LIES: dict[str, Callable[[ChunkAnswer], ChunkAnswer]] = {
    "other bytes": lambda message: replace(message, data=bytes(len(message.data))),
    "cut bytes": lambda message: replace(message, data=message.data[:-1]),
    "another path": lambda message: replace(message, path=(*message.path, bytes(32))),
    "another chunk": lambda message: replace(message, chunk=(message.chunk + 1) % CHUNKS),
    "another vector": lambda message: replace(message, of=message.of + 1),
    "another attempt's": lambda message: replace(message, binding=bytes(32)),
}


@pytest.mark.parametrize("name", CHUNK_LIES)
def test_a_false_chunk(name: str) -> None:
    """A chunk must lie under the root that its owner has signed."""

    def lie(seat: int, message: Message) -> Message:
        return (
            CHUNK_LIES[name](message) if seat == 3 and isinstance(message, ChunkAnswer) else message
        )

    harness, outcome = _round(to_silo=lie)
    assert list(outcome.silo_errors) == [3]
    assert type(outcome.silo_errors[3]) is BadDisclosureError
    assert harness.silos[3].evidence == []


@pytest.mark.parametrize(("chunk", "of"), [(1, 0), (0, 1)])
def test_a_true_chunk_that_was_not_asked_for(chunk: int, of: int) -> None:
    """It lies under its owner's root, and would be compared with pieces of another place."""

    def lie(seat: int, message: Message) -> Message:
        if seat != 3 or not isinstance(message, ChunkAnswer):
            return message
        audit = harness.server._audit
        assert audit is not None
        other = messages.ChunkRequest(
            binding=message.binding,
            seat=seat,
            chunk=(message.chunk + chunk) % CHUNKS,
            of=(message.of + of) % (1 + len(SEATS)),
        )
        return audit.answer(other)

    harness = _harness(to_silo=lie)
    errors = harness.run().silo_errors
    assert list(errors) == [3]
    assert type(errors[3]) is BadDisclosureError
    assert "another chunk was shown" in str(errors[3])
    assert harness.silos[3].evidence == []


def test_a_nonce_from_outside_u2() -> None:
    """A silo that has dealt no shares has no say in who recomputes what."""
    held: list[RecomputeNonce] = []

    def hold(_seat: int, message: Message) -> Message | None:
        if isinstance(message, RecomputeNonce):
            held.append(message)
            return None
        return message

    harness, _ = _round(to_server=hold, drop={5: Phase.SHARE})
    assert [item.seat for item in held] == [1, 2, 3, 4]
    unsigned = replace(held[0], seat=5, signature=b"")
    foreign = messages.signed(unsigned, FEDERATION.identities[5])
    with pytest.raises(BadDisclosureError, match="silos of U2"):
        harness.server.receive(5, foreign, 0.0)


def test_chunks_before_secrets_and_secrets_twice() -> None:
    """The order is fixed, and a silo that has stopped hears nothing more."""
    kept: list[messages.ServerMessage] = []

    def keep(seat: int, message: Message) -> Message | None:
        if seat != 3 or not isinstance(message, messages.AuditMessage):
            return message
        kept.append(message)
        return message

    harness, _ = _round(to_silo=keep)
    silo = harness.silos[3]
    with pytest.raises(BadDisclosureError, match="has recomputed what it wanted"):
        silo.receive(kept[0])
    early, _ = _round(to_silo=lambda s, m: None if s == 3 and isinstance(m, Disclosure) else m)
    with pytest.raises(BadDisclosureError, match="before the secrets"):
        early.silos[3].receive(kept[1])
    twice, _ = _round(to_silo=lambda s, m: None if s == 3 and isinstance(m, ChunkAnswer) else m)
    with pytest.raises(BadDisclosureError, match="disclosed before"):
        twice.silos[3].receive(kept[0])


def test_a_silo_that_lies_to_the_auditors() -> None:
    """Nonces: forged, of another sum, a second one. Requests: of nobody's, before the time."""
    held: list[RecomputeNonce] = []

    def hold(seat: int, message: Message) -> Message | None:
        if seat == 5 and isinstance(message, RecomputeNonce):
            held.append(message)
            return None
        return message

    _, outcome = _round(to_server=hold)
    assert outcome.server_errors == []
    (nonce,) = held
    later, _ = _round(drop=dict.fromkeys((2, 3, 4, 5), Phase.CLOSED))
    assert _verified(later)[1]
    fresh, _ = _round(drop=dict.fromkeys(SEATS, Phase.CLOSED))
    serve = fresh.server
    identity = FEDERATION.identities[5]
    request = messages.ChunkRequest(binding=nonce.binding, seat=5, chunk=0, of=0)
    for wrong, code in (
        (request, "A2_REPLAY"),
        (messages.signed(nonce, FEDERATION.identities[1]), "BAD_SIGNATURE"),
        (messages.signed(replace(nonce, root=bytes(32)), identity), "A9_BAD_DISCLOSURE"),
        (messages.signed(replace(nonce, binding=bytes(32)), identity), "A9_BAD_DISCLOSURE"),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            serve.receive(5, wrong, 0.0)
        assert caught.value.code == code
    serve.receive(5, nonce, 0.0)
    assert [serve.deadline] == [600.0]
    assert serve.receive(5, nonce, 5.0) == []
    second = messages.signed(replace(nonce, nonce=bytes(32)), identity)
    with pytest.raises(ReplayError, match="second time"):
        serve.receive(5, second, 6.0)
    assert serve.expire(599.0) == []
    assert len(serve.expire(600.0)) == 2  # the disclosure and its deadline
    assert [serve.deadline] == [1200.0]
    for changes, code in (
        ({"chunk": CHUNKS}, "A3_ROSTER"),
        ({"of": 9}, "A3_ROSTER"),
        ({"seat": 4}, "A2_REPLAY"),
        ({"binding": bytes(32)}, "A2_REPLAY"),
    ):
        wrong_request: Any = replace(request, **changes)
        with pytest.raises(RemoteProtocolError) as caught:
            serve.receive(wrong_request.seat, wrong_request, 601.0)
        assert caught.value.code == code
    for chunk in range(CHUNKS):
        (answer,) = serve.receive(5, replace(request, chunk=chunk, of=1), 700.0)
        assert isinstance(answer, SendTo)
    serve.expire(1200.0)
    assert [serve.deadline] == [None]
    with pytest.raises(WrongPhaseError, match="not any more"):
        serve.receive(5, request, 1201.0)


def test_nonces_are_awaited_of_those_that_are_there() -> None:
    """A silo that refuses the sum wants to see it all the more; one that is gone stops nobody."""
    nonces: list[RecomputeNonce] = []

    def hold(_seat: int, message: Message) -> Message | None:
        if isinstance(message, RecomputeNonce):
            nonces.append(message)
            return None
        return message

    harness, _ = _round(to_server=hold)
    serve, ctx = harness.server, harness.server.parameters.ctx()
    assert (serve.is_shown, serve.awaited()) == (True, SEATS)
    assert serve.lost(4, 0.0) == []  # before anybody has asked to see it
    for message in nonces[:2]:
        serve.receive(message.seat, message, 0.0)
    refusal = messages.Refusal(ctx=ctx, seat=3, code="A9_FORGED_SUM", reason="tags")
    assert serve.receive(3, messages.signed(refusal, FEDERATION.identities[3]), 0.0) == []
    assert serve.awaited() == (3, 5)
    assert serve.receive(3, nonces[2], 0.0) == []
    disclosed, _ = serve.lost(5, 1.0)
    assert isinstance(disclosed, Broadcast)
    assert disclosed.seats == (1, 2, 3)
    with pytest.raises(ReplayError, match="too late"):
        serve.receive(4, nonces[3], 1.0)
    assert serve.lost(1, 2.0) == []
    serve.expire(700.0)
    assert (serve.is_shown, serve.awaited()) == (False, ())


def test_silent_silos_are_awaited_for_a_time() -> None:
    """Then the others are shown the sum; with nobody to show it to, nothing is said."""
    nonces: list[RecomputeNonce] = []

    def hold(_seat: int, message: Message) -> Message | None:
        if isinstance(message, RecomputeNonce):
            nonces.append(message)
            return None
        return message

    serve = _round(to_server=hold)[0].server
    for message in nonces[:2]:
        serve.receive(message.seat, message, 0.0)
    assert serve.deadline == 600.0
    disclosed, _ = serve.expire(600.0)
    assert isinstance(disclosed, Broadcast)
    assert disclosed.seats == (1, 2)
    assert (serve.is_shown, serve.awaited()) == (True, ())
    alone = _round(to_server=hold)[0].server
    for seat in SEATS:
        assert alone.lost(seat, 0.0) == []
    assert alone.is_shown


def test_recomputing_is_off_by_default() -> None:
    """No silo asks, no server answers."""
    harness = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC),
        state=b"state",
        train=lambda seat, _parameters, _state: INPUTS[seat],
    )
    outcome = harness.run()
    assert outcome.aggregate is not None
    assert harness.silos[1].auditor is None
    with pytest.raises(LocalProtocolError, match="no announced sum"):
        harness.silos[1].recompute()
    nonce = RecomputeNonce(binding=bytes(32), root=bytes(32), seat=1, nonce=bytes(32))
    with pytest.raises(WrongPhaseError, match="not, or not any more"):
        harness.server.receive(1, messages.signed(nonce, FEDERATION.identities[1]), 0.0)


@pytest.mark.parametrize("lost", [1, 2, 5])
def test_what_recomputing_shows_hides_every_input(lost: int) -> None:
    """The uploads, the disclosed secrets and one auditor's own: n_c = 1, and no input follows."""
    spec = small_spec(5)
    inputs = random_inputs(SEATS, spec, 6)
    disclosures: list[Disclosure] = []
    own: dict[ShareKind, bytes] = {}

    def train(seat: int, *_rest: object) -> dict[str, IntVector]:
        if seat == 3:
            secrets = harness.silos[3]._own
            own[ShareKind.KEY], own[ShareKind.SELF] = secrets.a.reveal(), secrets.b.reveal()
        return inputs[seat]

    def listen(_seat: int, message: Message) -> Message:
        if isinstance(message, Disclosure):
            disclosures.append(message)
        return message

    harness = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, spec, redundancy=2),
        state=b"state",
        train=train,
        policies=dict.fromkeys(SEATS, AUDITING),
        to_silo=listen,
        drop={lost: Phase.MASK},
    )
    outcome = harness.run()
    assert outcome.aggregate is not None
    kept, wire = harness.server._intake, harness.server.parameters.wire_spec
    view = View(spec=wire, corrupted={3})
    view.see_keys(kept.setup, kept.advertises, kept.graph.threshold)
    for item in disclosures[0].opened:
        kind = ShareKind.KEY if item.seat == lost else ShareKind.SELF
        view.see_secret(kept.setup, item.seat, kind, item.secret.reveal())
    for kind, secret in own.items():
        view.see_secret(kept.setup, 3, kind, secret)
    for seat in outcome.aggregate.survivors:
        store = outcome.server_store
        view.see_upload(kept.setup, kept.binding, seat, store, masked_name(seat))
    view.see_sum(kept.setup, "the sum", outcome.aggregate.values)
    assert view.search({(kept.setup, seat): inputs[seat] for seat in SEATS}) == []
    # The view is not blind: with the other survivors' help the fourth is laid open.
    for seat in set(SEATS) - {3, 4, lost}:
        view.corrupted.add(seat)
        view.see_sum(kept.setup, f"seat {seat}", inputs[seat])
    view.see_sum(
        kept.setup,
        "the others",
        {
            name: np.sum([inputs[s][name] for s in SEATS if s not in {4, lost}], axis=0)
            for name in spec.names
        },
    )
    assert any("seat 4" in leak for leak in view.search({(kept.setup, 4): inputs[4]}))

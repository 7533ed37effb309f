"""What a third party can be convinced of, and what not.

Bad dealers, bad revealers and false pairs have their liars under tests/adversary; here are the
cases of two statements, and what every case must refuse.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import pytest

from secagg import messages
from secagg.errors import EvidenceError, SecAggError
from secagg.evidence import Evidence, EvidenceKind, Verdict, judge, two_statements
from secagg.messages import Message, SignedMessage
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.testing import RoundHarness, make_federation, make_parameters
from tests.adversary.stage import random_inputs, small_spec

FEDERATION = make_federation(4)
ROSTER = FEDERATION.roster
SPEC = small_spec(4)
PARAMETERS = make_parameters(ROSTER, SPEC)
INPUTS = random_inputs(range(1, 5), SPEC, 2)
LIAR = 2

M = TypeVar("M", bound=SignedMessage)


@lru_cache(maxsize=1)
def spoken() -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """What the liar and what the coordinator said in an honest round."""
    heard: list[Message] = []

    def listen(seat: int, message: Message) -> Message:
        if seat == LIAR:
            heard.append(message)
        return message

    outcome = RoundHarness(
        federation=FEDERATION,
        parameters=PARAMETERS,
        state=b"state",
        train=lambda seat, _parameters, _state: INPUTS[seat],
        to_silo=listen,
    ).run()
    assert outcome.aggregate is not None
    return tuple(message for seat, message in outcome.received if seat == LIAR), tuple(heard)


def said(kind: type[M]) -> M:
    """The one message of this kind."""
    (found,) = [item for part in spoken() for item in part if isinstance(item, kind)]
    return found


def by_liar(message: M) -> M:
    """The message with the liar's signature."""
    return messages.signed(message, FEDERATION.identities[LIAR])


def by_coordinator(message: M) -> M:
    """The message with the coordinator's signature."""
    return messages.signed(message, FEDERATION.coordinator)


def case(kind: EvidenceKind, first: Message, second: Message, accused: int = LIAR) -> Evidence:
    """A case of two statements, through its bytes."""
    made = two_statements(kind, accused, PARAMETERS, first, second)
    return Evidence.decode(made.encode())


CONTRADICTIONS: dict[type[Any], Callable[[], Any]] = {
    messages.Advertise: lambda: replace(said(messages.Advertise), nonce=bytes(32)),
    messages.Share: lambda: replace(said(messages.Share), commitment_k=bytes(32)),
    messages.MaskedInput: lambda: replace(said(messages.MaskedInput), root=bytes(32)),
    messages.Survivors: lambda: replace(said(messages.Survivors), survivors=bytes(32)),
    messages.Unmask: lambda: replace(said(messages.Unmask), openings=()),
}
EQUIVOCATIONS: dict[type[Any], Callable[[], Any]] = {
    messages.RoundOpen: lambda: replace(
        said(messages.RoundOpen), parameters=replace(PARAMETERS, n_min=4)
    ),
    messages.StateNotice: lambda: replace(said(messages.StateNotice), model_hash=bytes(32)),
    messages.Result: lambda: replace(said(messages.Result), root=bytes(32)),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_a_silo_that_says_two_things(kind: type[Any]) -> None:
    """Every statement that a silo makes once convicts it when it is made twice."""
    first, second = said(kind), by_liar(CONTRADICTIONS[kind]())
    verdict = judge(case(EvidenceKind.CONTRADICTION, first, second), ROSTER)
    assert verdict == Verdict(
        accused="silo-2",
        finding=f"it signed two different {kind.__name__} messages in one attempt",
    )


@pytest.mark.parametrize("kind", EQUIVOCATIONS)
def test_a_coordinator_that_says_two_things(kind: type[Any]) -> None:
    """Two openings of an attempt, two states of a setup, two results of a binding."""
    first, second = said(kind), by_coordinator(EQUIVOCATIONS[kind]())
    verdict = judge(case(EvidenceKind.EQUIVOCATION, first, second, accused=0), ROSTER)
    assert verdict == Verdict(
        accused="the coordinator",
        finding=f"it signed two different {kind.__name__} messages for one attempt",
    )


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_what_does_not_convict_a_silo(kind: type[Any]) -> None:
    """The same words, a forged signature, another attempt, another seat, another kind."""
    first, second = said(kind), by_liar(CONTRADICTIONS[kind]())
    about = {"Advertise": "ctx", "Share": "setup"}.get(kind.__name__, "binding")
    elsewhere = by_liar(replace(second, **{about: bytes(32)}))
    other_kind = CONTRADICTIONS[messages.Share if kind is not messages.Share else messages.Unmask]()
    for pair, match in [
        ((first, first), "say the same"),
        ((first, replace(second, signature=bytes(64))), "do not hold"),
        ((replace(first, signature=bytes(64)), second), "do not hold"),
        ((first, elsewhere), "different attempts"),
        ((first, replace(second, seat=1)), "not the accused's"),
        ((first, by_liar(other_kind)), "one kind"),
        ((first, said(messages.Result)), "one kind"),
    ]:
        with pytest.raises(EvidenceError, match=match):
            judge(case(EvidenceKind.CONTRADICTION, *pair), ROSTER)
    with pytest.raises(EvidenceError, match="not the accused's"):
        judge(case(EvidenceKind.CONTRADICTION, first, second, accused=1), ROSTER)
    with pytest.raises(EvidenceError, match="by the coordinator"):
        judge(case(EvidenceKind.EQUIVOCATION, first, second, accused=0), ROSTER)


def test_what_an_honest_silo_may_say_twice() -> None:
    """Complaints and refusals are no oaths: two of them prove nothing."""
    first, second = (
        by_liar(messages.Refusal(ctx=PARAMETERS.ctx(), seat=LIAR, code=code, reason=""))
        for code in ("A", "B")
    )
    with pytest.raises(EvidenceError, match="sends once"):
        judge(case(EvidenceKind.CONTRADICTION, first, second), ROSTER)


@pytest.mark.parametrize("kind", EQUIVOCATIONS)
def test_what_does_not_convict_a_coordinator(kind: type[Any]) -> None:
    """The same words, a silo's signature, another attempt, another kind."""
    first, second = said(kind), by_coordinator(EQUIVOCATIONS[kind]())
    if isinstance(second, messages.RoundOpen):
        later = replace(second.parameters, attempt=1)
        elsewhere: Any = by_coordinator(replace(second, parameters=later))
    else:
        about = "setup" if kind is messages.StateNotice else "binding"
        elsewhere = by_coordinator(replace(second, **{about: bytes(32)}))
    other = messages.Result if kind is not messages.Result else messages.StateNotice
    for pair, match in [
        ((first, first), "say the same"),
        ((first, by_liar(second)), "do not hold"),
        ((by_liar(first), second), "do not hold"),
        ((first, elsewhere), "different attempts"),
        ((first, said(other)), "one kind"),
    ]:
        with pytest.raises(EvidenceError, match=match):
            judge(case(EvidenceKind.EQUIVOCATION, *pair, accused=0), ROSTER)


def test_a_signed_part_that_is_not_said_is_no_second_statement() -> None:
    """A plan or a size that signature and ctx do not cover cannot be held against anybody."""
    first = said(messages.StateNotice)
    longer = replace(first, nbytes=first.nbytes + 1)
    with pytest.raises(EvidenceError, match="say the same"):
        judge(case(EvidenceKind.EQUIVOCATION, first, longer, accused=0), ROSTER)


def test_silos_have_seats_and_the_coordinator_none() -> None:
    """A case says the same of whom it accuses in every field."""
    silo = case(
        EvidenceKind.CONTRADICTION,
        said(messages.Survivors),
        by_liar(CONTRADICTIONS[messages.Survivors]()),
    )
    coordinator = case(
        EvidenceKind.EQUIVOCATION,
        said(messages.Result),
        by_coordinator(EQUIVOCATIONS[messages.Result]()),
        accused=0,
    )
    for right, other in ((silo, 0), (coordinator, 1), (coordinator, 9)):
        judge(right, ROSTER)
        with pytest.raises(EvidenceError, match="the accused must be"):
            judge(replace(right, accused=other), ROSTER)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_two_statements_are_two(count: int) -> None:
    """Neither fewer nor more."""
    made = case(EvidenceKind.CONTRADICTION, said(messages.Share), said(messages.Share))
    for kind in (EvidenceKind.CONTRADICTION, EvidenceKind.EQUIVOCATION):
        accused = LIAR if kind is EvidenceKind.CONTRADICTION else 0
        bad = replace(made, kind=kind, accused=accused, statements=(made.statements[0],) * count)
        with pytest.raises(EvidenceError, match=f"two statements, got {count}"):
            judge(bad, ROSTER)


def test_another_roster_is_no_judge() -> None:
    """The keys are those of the version that the round named."""
    first, second = said(messages.Survivors), by_liar(CONTRADICTIONS[messages.Survivors]())
    made = case(EvidenceKind.CONTRADICTION, first, second)
    with pytest.raises(EvidenceError, match="another roster version"):
        judge(made, replace(ROSTER, version=2))
    with pytest.raises(EvidenceError, match="another roster version"):
        judge(made, make_federation(4, seed=1).roster)


def test_an_accused_without_a_seat() -> None:
    """A seat that the roster does not hold is nobody."""
    changed = replace(said(messages.Survivors), seat=9)
    other = replace(changed, survivors=bytes(32))
    with pytest.raises(EvidenceError, match="seat 9 is not in roster"):
        judge(case(EvidenceKind.CONTRADICTION, changed, other, accused=9), ROSTER)


def _two_stories(
    kind: type[Any], change: Callable[[Message], Any]
) -> tuple[RoundHarness, list[Evidence]]:
    """A coordinator that repeats one message to the liar's seat, the second time otherwise."""
    repeated: list[Message] = []

    def repeat(seat: int, message: Message) -> Message:
        if seat == LIAR and isinstance(message, kind):
            repeated.append(message)
        return message

    harness = RoundHarness(
        federation=FEDERATION,
        parameters=PARAMETERS,
        state=b"state",
        train=lambda seat, _parameters, _state: INPUTS[seat],
        policies=dict.fromkeys(range(1, 5), SiloPolicy()),
        to_silo=repeat,
        drop={LIAR: Phase.SURVIVORS} if kind is not messages.Result else None,
    )
    harness.run()
    silo = harness.silos[LIAR]
    second = change(repeated[0])
    assert isinstance(second, messages.ServerMessage)
    with pytest.raises(SecAggError):
        silo.receive(second)
    return harness, silo.evidence


@pytest.mark.parametrize("kind", EQUIVOCATIONS)
def test_a_silo_keeps_the_coordinators_two_stories(kind: type[Any]) -> None:
    """Whatever else the silo does, it can show both to a third party."""
    _, evidence = _two_stories(kind, lambda _first: by_coordinator(EQUIVOCATIONS[kind]()))
    (kept,) = evidence
    assert judge(kept, ROSTER).accused == "the coordinator"


@pytest.mark.parametrize("kind", EQUIVOCATIONS)
def test_a_silo_keeps_no_forged_story(kind: type[Any]) -> None:
    """What the coordinator did not sign is not held against it; nor is a repetition."""
    forged = lambda _first: by_liar(EQUIVOCATIONS[kind]())  # noqa: E731  # one line each
    assert _two_stories(kind, forged)[1] == []
    assert _two_stories(kind, lambda first: first)[1] == []

"""One real example of every record, from rounds in which much goes wrong."""

import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import lru_cache
from typing import TypeVar, get_args

from secagg import messages
from secagg.chain import Standpoint
from secagg.codec import Record
from secagg.evidence import EvidenceKind, ShareRoot, two_statements
from secagg.journal import AttemptSummary, JournalEvent
from secagg.messages import AbandonRequest
from secagg.parameters import CoefficientVector
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.roster import Officer, OfficerRole, SignedRoster
from secagg.testing import RoundHarness, make_federation, make_parameters, make_succession
from tests.adversary.stage import MODEL, Stage, agreement_key, random_inputs, small_spec

R = TypeVar("R", bound=Record)
LENIENT = {seat: SiloPolicy(suites=frozenset({1, 4})) for seat in range(1, 5)}


def kinds(root: type[Record] = Record) -> Iterator[type[Record]]:
    """Every record that has a label of its own."""
    for kind in root.__subclasses__():
        # dataclass(slots=True) makes the class anew; the first one is still a subclass.
        is_current = getattr(sys.modules[kind.__module__], kind.__name__, None) is kind
        if is_current and "LABEL" in vars(kind):
            yield kind
        yield from kinds(kind)


def _parts(record: object) -> Iterator[Record]:
    """A record and all that it holds."""
    if isinstance(record, tuple):
        for item in record:
            yield from _parts(item)
    if isinstance(record, Record):
        yield record
        for field in fields(record):  # type: ignore[arg-type]  # records are dataclasses
            yield from _parts(getattr(record, field.name))


def _rounds() -> Iterator[Record]:
    stage = Stage(4, suite=4, policies=LENIENT)
    yield stage.finish(1, 2, 4)
    where = stage.parameters
    lost = Stage(4, seed=1)
    lost.announce()
    lost.tell(1, AbandonRequest(run=where.run, round=1, attempt=0))
    lost.carry_out(2, lost.silos[2].go_late())
    for one in (stage, lost):
        yield one.opening()
        yield one.keys()
        yield one.boxes(2)
        succession = make_succession(one.federation, one.parameters, MODEL, 1, 2, after=9)
        yield one.notice(succession=succession)
        for seat in one.cohort:
            yield from one.sent[seat]
            yield from one.journals[seat]
    yield AttemptSummary(
        attempt=where.attempt_id,
        events=(JournalEvent.CLOSED, JournalEvent.OPENED),
        model_hash=bytes(range(32)),
        survivors=(1, 2, 4),
    )
    yield replace(lost.opening(), abandons=(lost.last(1, messages.Abandon),))
    yield stage.request()
    yield stage.certificate()
    yield AbandonRequest(run=where.run, round=1, attempt=0)
    yield messages.RoundFailed(run=where.run, round=1, attempt=0, reason="it happens")
    identity = stage.federation.identities[1]
    complaint = messages.Complaint(setup=stage.setup, seat=1, dealer=2, reason="A4_BAD_SHARE")
    refusal = messages.Refusal(ctx=where.ctx(), seat=1, code="A1_POLICY_REFUSED", reason="no")
    yield Standpoint(round=3, model_hash=bytes(32)).settled(
        federation=where.federation, run=where.run, seat=1, identity=identity
    )
    yield messages.signed(complaint, identity)
    yield messages.signed(refusal, identity)
    yield CoefficientVector(name="common", seats=(1, 2), weights=(3, -1))
    yield messages.DistantRoot(dealer=3, root=bytes(32))
    first = stage.last(1, messages.Survivors)
    case = two_statements(EvidenceKind.CONTRADICTION, 1, where, first, first)
    yield replace(case, share_roots=(ShareRoot(seat=1, root=bytes(32)),))
    key = agreement_key("anna").public
    officer = Officer(name="anna", role=OfficerRole.OPERATOR, certificate_key=key)
    roster = replace(stage.roster, officers=(officer,))
    signature = identity.sign(roster.signed_bytes())
    yield SignedRoster(roster=roster, signatures=((identity.public, signature),))


def _recomputed() -> Iterator[Record]:
    """What is said when silos recompute a sum, in the hybrid suite and with a dropout."""
    heard: list[Record] = []

    def listen(_seat: int, message: messages.Message) -> messages.Message:
        heard.append(message)
        return message

    federation = make_federation(4)
    spec = small_spec(4)
    inputs = random_inputs(range(1, 5), spec, 0)
    lenient = SiloPolicy(suites=frozenset({4}), max_redundancy=1)
    RoundHarness(
        federation=federation,
        parameters=make_parameters(federation.roster, spec, suite=4, redundancy=1),
        state=b"state",
        train=lambda seat, _parameters, _state: inputs[seat],
        policies=dict.fromkeys(range(1, 5), lenient),
        drop={1: Phase.MASK},
        to_silo=listen,
        to_server=listen,
    ).run()
    audit = (*get_args(messages.AuditMessage), *get_args(messages.AuditorMessage))
    yield from (message for message in heard if isinstance(message, audit))


@lru_cache(maxsize=1)
def examples() -> dict[type[Record], Record]:
    """By kind, the example with the most bytes."""
    found: dict[type[Record], Record] = {}
    for record in (*_rounds(), *_recomputed()):
        for part in _parts(record):
            known = found.get(type(part))
            if known is None or len(part.encode()) > len(known.encode()):
                found[type(part)] = part
    return found


def example(kind: type[R]) -> R:
    """The example of one kind."""
    found = examples()[kind]
    assert isinstance(found, kind)
    return found

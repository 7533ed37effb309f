"""What a coordinator's lines of a run's ledger must be before a silo keeps them.

Signatures and hashes are checked elsewhere. Here: it is this run's ledger, and each entry says what
its kind says, so that nothing that is kept can stand in the way of a budget later.
"""

from collections.abc import Collection, Sequence
from typing import Final

from dp.canonical import canonical_json
from dp.entries import Entry, Kind
from dp.errors import LedgerIntegrityError, PlanError
from dp.ledger import LedgerKind
from dp.plan import PrivacyPlan
from secagg.ids import RunId
from services.ledger.parties import COORDINATOR

# Kinds that are of no run by themselves; whatever else says so could be read as any run's.
_OF_NO_RUN: Final = {Kind.GENESIS, Kind.BUDGET_SET, Kind.KEY_ROTATE, Kind.CORRECTION}


def check_run_lines(run: RunId, known: Sequence[Entry], fresh: Sequence[Entry]) -> None:
    """Refuse new lines that are no entries of this run's ledger.

    Raises:
        LedgerIntegrityError: at the first that is none.
    """
    plans = {str(one.body.get("plan_digest")) for one in known if one.kind is Kind.PLAN_COMMIT}
    intents = {one.entry_hash: _place(one) for one in known if one.kind is Kind.ROUND_INTENT}
    ended = {str(one.body.get("intent")) for one in known if _is_end(one)}
    for entry in fresh:
        if entry.run_id not in ({"", run.hex} if entry.kind in _OF_NO_RUN else {run.hex}):
            raise LedgerIntegrityError(entry.seq, "it is of another run")
        match entry.kind:
            case Kind.GENESIS:
                _check_genesis(entry, run)
            case Kind.PLAN_COMMIT:
                _check_plan(entry)
                plans.add(str(entry.body["plan_digest"]))
            case Kind.ROUND_INTENT:
                _check_intent(entry, plans, intents.values())
                intents[entry.entry_hash] = _place(entry)
            case Kind.ROUND_RELEASE | Kind.ROUND_ABORT:
                intent = str(entry.body.get("intent"))
                if intent not in intents:
                    raise LedgerIntegrityError(entry.seq, "no INTENT of this ledger before it")
                if intent in ended:
                    raise LedgerIntegrityError(entry.seq, "its INTENT was settled or given back")
                if _is_end(entry):
                    ended.add(intent)
            case _:
                pass


def _place(intent: Entry) -> tuple[str, ...]:
    return tuple(str(intent.body.get(name)) for name in ("round", "attempt", "purpose"))


def _is_end(entry: Entry) -> bool:
    """Whether nothing may follow for its INTENT; an attempt without proof stays open."""
    is_returned = entry.kind is Kind.ROUND_ABORT and entry.body.get("returned") is True
    return is_returned or entry.kind is Kind.ROUND_RELEASE


def _check_genesis(entry: Entry, run: RunId) -> None:
    body = entry.body
    found = (body.get("ledger"), body.get("writer"), body.get("subject"))
    if found != (LedgerKind.RUN.value, COORDINATOR, run.hex):
        raise LedgerIntegrityError(entry.seq, "expected the coordinator's ledger of this run")


def _check_intent(
    entry: Entry, plans: Collection[str], charged: Collection[tuple[str, ...]]
) -> None:
    places = (entry.body.get("round"), entry.body.get("attempt"))
    is_counted = all(type(one) is int and one >= 0 for one in places)
    if not is_counted or str(entry.body.get("plan_digest")) not in plans:
        raise LedgerIntegrityError(entry.seq, "no round of a plan of this ledger")
    if _place(entry) in charged:
        raise LedgerIntegrityError(entry.seq, "this attempt was charged before")


def _check_plan(entry: Entry) -> None:
    try:
        plan = PrivacyPlan.from_bytes(canonical_json(entry.body.get("plan")))
    except PlanError as error:
        raise LedgerIntegrityError(entry.seq, str(error)) from error
    if plan.digest.hex() != entry.body.get("plan_digest"):
        raise LedgerIntegrityError(entry.seq, "plan_digest is not the plan's")

"""What a rehearsal found, written into the ledger of the plan that it measured.

The entry charges nothing: no patient was in the rehearsal. A lower bound above the claim stays in
the ledger for good, and no verifier passes it over.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dp.audit import AuditFigure
from dp.canonical import Json, decimal
from dp.entries import Kind
from dp.keyring import current_key
from dp.ledger import Ledger
from secagg.keys import IdentityKey
from services.errors import CredentialError, InvalidRequestError
from services.ledger.parties import Party
from services.storage.ledger import FileLedgerStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalFacts:
    """One rehearsal and its figures.

    Attributes:
        plan_digest: of the privacy plan that was measured, in hex.
        rounds: releases that were summed.
        silos: how many virtual ones took part; with the plan's noise they say what may be claimed.
        commitment: to the canaries' seed, told before the rehearsal, in hex.
        seed: opened after it, in hex.
        figures: by method.
    """

    plan_digest: str
    rounds: int
    silos: int
    commitment: str
    seed: str
    figures: Mapping[str, AuditFigure]


def quantity(method: str) -> str:
    """What a method's figures are of: a rate where it measures sampling, else epsilon."""
    return "rate" if method == "sampling" else "epsilon"


def record_audit(path: Path, key: IdentityKey, facts: RehearsalFacts, *, time_utc: str) -> None:
    """Append an AUDIT_RESULT for each method.

    Args:
        path: of a run's ledger, or of a data set's.
        key: its writer's.
        facts: what was found.
        time_utc: now.

    Raises:
        InvalidRequestError: the ledger holds no commitment to that plan.
        CredentialError: the key is not the writer's.
        LedgerIntegrityError: the file was changed.
        LedgerConflictError: the writer appended at the same moment; nothing was written.
    """
    ledger = Ledger(FileLedgerStore(path))
    committed = next(
        (
            one
            for one in ledger.entries
            if one.kind is Kind.PLAN_COMMIT and one.body.get("plan_digest") == facts.plan_digest
        ),
        None,
    )
    if committed is None:
        raise InvalidRequestError(f"{path}: it holds no commitment to the plan that was rehearsed")
    writer = str(ledger.entries[0].body.get("writer"))
    if current_key(ledger.entries, writer) != key.public:
        raise CredentialError(f"{path}: expected the key of its writer, {writer!r}")
    for method, figure in facts.figures.items():
        body: dict[str, Json] = {
            "method": method,
            "plan_digest": facts.plan_digest,
            "rounds": facts.rounds,
            "silos": facts.silos,
            "commitment": facts.commitment,
            "seed": facts.seed,
            "lower": decimal(figure.lower),
            "claimed": decimal(figure.claimed),
            **({"estimate": decimal(figure.estimate)} if math.isfinite(figure.estimate) else {}),
        }
        draft = ledger.draft(Kind.AUDIT_RESULT, body, time_utc=time_utc, run_id=committed.run_id)
        ledger.append(draft.signed_by(Party(writer, key)))

"""When a charge comes back: so many silos have promised to open nothing that nobody can.

An attempt's sum can be read only with the shares of t silos of its cohort U1. The smallest U1 that
the protocol accepts needs the smallest t; if fewer silos than that are left without a promise,
counting n_c of the promises as lies, the sum stays closed whoever was in U1. So the rule needs no
view of the attempt: coordinator, silo and auditor read silos, t and n_c from the plan's commitment,
which all silos of the run have signed (`dp.charges.Quorum`), and nothing from the proof.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dp.canonical import Json, canonical_json
from dp.charges import Charge, Proof, ProofKind, Quorum, Statement
from dp.entries import Entry, check_signatures
from dp.errors import LedgerIntegrityError, PlanError
from secagg import canonical
from secagg.codec import FEDERATION, MAX_TEXT_BYTES, RUN, U32, U64
from secagg.errors import BadSignatureError, SecAggError
from secagg.ids import AttemptId, RunId
from secagg.keys import verify
from secagg.messages import Abandon
from secagg.parameters import RoundParameters
from secagg.roster import Roster


def smallest_cohort(parameters: RoundParameters) -> int:
    """The least |U1| that meets its own floor."""
    sizes = range(1, parameters.n_max + 1)
    return next(size for size in sizes if size >= parameters.floor(size))


def gather(
    abandons: Sequence[Abandon], attempt: AttemptId, roster: Roster, quorum: Quorum
) -> Proof | None:
    """The proof that an attempt is dead, None if too few of the plan's silos have promised.

    Args:
        abandons: statements, of this attempt or others.
        attempt: which one.
        roster: in force.
        quorum: of the plan.
    """
    known = {seat.index: seat.silo.name for seat in roster.seats}
    mine = {
        known[one.seat]: one for one in abandons if one.attempt_id == attempt and one.seat in known
    }
    statements = tuple(
        Statement(signer=name, message=one.signed_bytes(), signature=one.signature)
        for name, one in sorted(mine.items())
        if name in quorum.members
    )
    if len(statements) < quorum.needed:
        return None
    return Proof(kind=ProofKind.ABANDON, statements=statements)


def is_promise(
    charge: Charge, statement: Statement, /, *, committed: Entry, roster: Roster
) -> bool:
    """Whether a statement abandons a charge's attempt: `dp.charges.StatementChecker`.

    The key must be the one that signed the plan: a silo that took the name later was never asked.

    Args:
        charge: which attempt.
        statement: what is said to be a promise.
        committed: the run's PLAN_COMMIT.
        roster: in force.
    """
    seat = next((one for one in roster.seats if one.silo.name == statement.signer), None)
    said = _read(statement.message, statement.signature)
    if seat is None or said is None:
        return False
    wanted = (RunId.parse(charge.run_id), charge.round, charge.attempt, seat.index)
    if (said.run, said.round, said.attempt, said.seat) != wanted:
        return False
    own = tuple(one for one in committed.sigs if one.signer == statement.signer)
    try:
        check_signatures(replace(committed, sigs=own), {statement.signer: seat.identity_key})
        verify(seat.identity_key, statement.signature, statement.message)
    except (BadSignatureError, LedgerIntegrityError):
        return False
    return bool(own) and said.federation == roster.federation


def read_proof(body: Json) -> Proof:
    """The proof that an entry carries, as `dp.charges.Proof.to_json` writes it.

    Raises:
        PlanError: it is none.
    """
    try:
        data: dict[str, Any] = json.loads(canonical_json(body))
        return Proof(
            kind=ProofKind(data["kind"]),
            statements=tuple(
                Statement(
                    signer=one["signer"],
                    message=bytes.fromhex(one["message"]),
                    signature=bytes.fromhex(one["signature"]),
                )
                for one in data["statements"]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError("ROUND_ABORT: expected a proof") from error


def _read(message: bytes, signature: bytes) -> Abandon | None:
    """The statement behind signed bytes, if it is one."""
    try:
        federation, run, number, attempt, seat = canonical.decode(
            message, Abandon.SIGNED_LABEL, max_bytes=MAX_TEXT_BYTES, fields=5
        )
        return Abandon(
            federation=FEDERATION.read(federation),
            run=RUN.read(run),
            round=U64.read(number),
            attempt=U32.read(attempt),
            seat=U32.read(seat),
            signature=signature,
        )
    except SecAggError:
        return None

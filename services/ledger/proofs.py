"""When a charge comes back: so many silos have promised to open nothing that nobody can.

An attempt's sum can be read only with the shares of t silos of its cohort U1. The smallest U1 that
the protocol accepts needs the smallest t; if fewer silos than that are left without a promise,
counting n_c of the promises as lies, the sum stays closed whoever was in U1. So the rule needs no
view of the attempt, and coordinator, silo and auditor can all apply it to the statements alone.
"""

import json
from collections.abc import Sequence
from typing import Any

from dp.canonical import Json, canonical_json
from dp.charges import Charge, Proof, ProofKind, Statement
from dp.errors import PlanError
from secagg import canonical
from secagg.codec import FEDERATION, MAX_TEXT_BYTES, RUN, U32, U64
from secagg.errors import SecAggError
from secagg.ids import RunId
from secagg.keys import verify
from secagg.messages import Abandon
from secagg.parameters import RoundParameters
from secagg.roster import Roster


def smallest_cohort(parameters: RoundParameters) -> int:
    """The least |U1| that meets its own floor."""
    sizes = range(1, parameters.n_max + 1)
    return next(size for size in sizes if size >= parameters.floor(size))


def promises_needed(parameters: RoundParameters, roster: Roster) -> int:
    """How many silos of the roster must have abandoned an attempt for it to be dead."""
    least = parameters.threshold(smallest_cohort(parameters))
    members = len(roster.seats)
    return max(members + parameters.n_c - least + 1, members // 2 + 1)


def abandon_proof(
    abandons: Sequence[Abandon], parameters: RoundParameters, roster: Roster
) -> Proof | None:
    """The proof that an attempt is dead, None if too few silos have promised.

    None, too, once another roster is in force than the attempt's: the charge then stays.

    Args:
        abandons: statements, of this attempt or others.
        parameters: of the attempt.
        roster: in force.
    """
    if roster.digest() != parameters.roster_digest:
        return None
    wanted = parameters.attempt_id
    mine = {item.seat: item for item in abandons if item.attempt_id == wanted}
    needed = promises_needed(parameters, roster)
    if len(mine) < needed:
        return None
    return Proof(
        kind=ProofKind.ABANDON,
        members=tuple(seat.silo.name for seat in roster.seats),
        threshold=needed,
        statements=tuple(
            Statement(
                signer=roster.seat(seat).silo.name,
                message=item.signed_bytes(),
                signature=item.signature,
            )
            for seat, item in sorted(mine.items())
        ),
    )


def is_proof(charge: Charge, proof: Proof, *, parameters: RoundParameters, roster: Roster) -> bool:
    """Whether a proof shows that a charge's attempt is dead: `dp.charges.ProofChecker`.

    Raises:
        BadSignatureError: a statement is signed by somebody else.
    """
    if roster.digest() != parameters.roster_digest:
        return False  # other seats, and another number of promises that make an attempt dead
    seats = {seat.silo.name: seat for seat in roster.seats}
    genuine = set()
    for one in proof.statements:
        seat = seats.get(one.signer)
        if seat is None:
            return False
        statement = _read(one.message, one.signature)
        if statement is None or statement.federation != roster.federation:
            return False
        about = (statement.run, statement.round, statement.attempt, statement.seat)
        wanted = (RunId.parse(charge.run_id), charge.round, charge.attempt, seat.index)
        if about != wanted:
            return False
        verify(seat.identity_key, one.signature, one.message)
        genuine.add(seat.index)
    return len(genuine) >= promises_needed(parameters, roster)


def read_proof(body: Json) -> Proof:
    """The proof that an entry carries, as `dp.charges.Proof.to_json` writes it.

    Raises:
        PlanError: it is none.
    """
    try:
        data: dict[str, Any] = json.loads(canonical_json(body))
        return Proof(
            kind=ProofKind(data["kind"]),
            members=tuple(data["members"]),
            threshold=data["threshold"],
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

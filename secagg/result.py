"""Checks A7 and A9: a certificate for the survivors, and a sum that is their sum.

Both need only what a silo keeps after it has wiped its secrets, so a silo that was restarted
after its upload checks with the same code.
"""

from secagg.effects import Aggregate
from secagg.errors import (
    BadSignatureError,
    ForgedSumError,
    RosterError,
    SurvivorsUncertifiedError,
)
from secagg.journal import Submission
from secagg.keys import verify
from secagg.messages import SUM, Endorsement, Result, survivors_hash, survivors_signed_bytes
from secagg.ports import VectorStore
from secagg.roster import Roster
from secagg.transcript import public_coins, transcript_digest
from secagg.vectors import TagContext, check_sum, read_sum


def check_certificate(
    endorsements: tuple[Endorsement, ...],
    *,
    survivors: bytes,
    binding: bytes,
    members: tuple[int, ...],
    threshold: int,
    roster: Roster,
) -> None:
    """A7: at least t valid signatures by distinct members of this silo's own U2.

    Signatures by others do not count: colluders outside U2 could certify two different sets
    (SA1 spec 3.4).

    Raises:
        SurvivorsUncertifiedError: fewer.
    """
    statement = survivors_signed_bytes(binding, survivors)
    signers: set[int] = set()  # who signs twice is one signer
    for item in endorsements:
        if item.seat not in members:
            continue
        try:
            verify(roster.seat(item.seat).identity_key, item.signature, statement)
        except (BadSignatureError, RosterError):
            continue
        signers.add(item.seat)
    if len(signers) < threshold:
        raise SurvivorsUncertifiedError(
            f"{len(signers)} silos of this silo's U2 have signed these survivors; "
            f"{threshold} are needed"
        )


def check_result(
    message: Result, *, submission: Submission, roster: Roster, store: VectorStore
) -> Aggregate:
    """A9: the server's signature, the certificate, the root, every range and every tag.

    Args:
        message: its attachment is in the store.
        submission: this silo's view of the attempt.
        roster: names the keys.
        store: holds "sum".

    Raises:
        ForgedSumError, SurvivorsUncertifiedError, BadSignatureError: a check failed.
    """
    seats = check_survivors(message, submission=submission, roster=roster)
    return _check_sum(message, seats, submission=submission, store=store)


def check_survivors(message: Result, *, submission: Submission, roster: Roster) -> tuple[int, ...]:
    """What a Result says of the survivors, without its sum: signature, binding, certificate.

    Raises:
        ForgedSumError, SurvivorsUncertifiedError, BadSignatureError: a check failed.
    """
    verify(roster.coordinator_key, message.signature, message.signed_bytes())
    seats = tuple(entry.seat for entry in message.entries)
    if message.binding != submission.binding or list(seats) != sorted(set(seats)):
        raise ForgedSumError("the result belongs to another view of the round")
    check_certificate(
        message.endorsements,
        survivors=survivors_hash(message.entries),
        binding=submission.binding,
        members=submission.signers,
        threshold=submission.threshold,
        roster=roster,
    )
    if transcript_digest(message) != message.transcript:
        raise ForgedSumError("the result's transcript is not that of its contents")
    return seats


def _check_sum(
    message: Result, seats: tuple[int, ...], *, submission: Submission, store: VectorStore
) -> Aggregate:
    parameters = submission.parameters
    wire = parameters.wire_spec
    if (message.chunks, message.nbytes) != (len(wire.chunks), wire.wire_bytes):
        raise ForgedSumError("the sum is announced in another size than the round's vector")
    opened = read_sum(store, SUM, wire, message.root)
    tags = TagContext(
        key=submission.key,
        binding=submission.binding,
        generator=parameters.cipher_suite.generator,
    )
    checked = tags if parameters.has_tags else None
    check_sum(opened, spec=parameters.spec, tags=checked, seats=seats)
    return Aggregate(
        values=opened.values,
        survivors=seats,
        cohort=submission.u1,
        parameters=parameters,
        state_hash=submission.model_hash,
        public_coins=public_coins(submission.binding),
    )

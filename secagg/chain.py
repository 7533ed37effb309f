"""Which states a silo takes: where it left the run itself, or where enough others left it later.

A server that could put a state of its own making before silos would have their inputs summed twice
over states that hardly differ, and subtract (SA1 spec 2.5 v). So each state of a run follows from
the last one by a sum that silos have checked; docs/protocol.md 8 says what that proves.
"""

from dataclasses import dataclass
from typing import Final

from secagg.errors import ModelMismatchError
from secagg.ids import FederationId, RunId
from secagg.keys import IdentityKey, verify
from secagg.messages import Settled, StateNotice, Succession, signed
from secagg.parameters import RoundParameters
from secagg.roster import Roster

# Stands for the round that a run's first state follows. Runs count their rounds from 0 or from 1.
NONE_BEFORE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Standpoint:
    """Where a silo left a run.

    Attributes:
        round: the last one that it settled.
        model_hash: of the state that follows from it.
    """

    round: int
    model_hash: bytes

    def follows(self, model_hash: bytes, after: int) -> bool:
        """Whether the state after round `after` is this one, or a later round's."""
        return model_hash == self.model_hash or after > self.round

    def settled(
        self, *, federation: FederationId, run: RunId, seat: int, identity: IdentityKey
    ) -> Settled:
        """What the silo tells the others of it: the same bytes each time."""
        unsigned = Settled(
            federation=federation,
            run=run,
            round=self.round,
            model_hash=self.model_hash,
            seat=seat,
        )
        return signed(unsigned, identity)


def preceding_round(
    message: StateNotice,
    *,
    standpoint: Standpoint | None,
    is_taken: bool,
    parameters: RoundParameters,
    roster: Roster,
) -> int:
    """A5, the chain: this state may follow what the silo knows of the run.

    Args:
        message: announces the state.
        standpoint: the silo's; None if it has settled no round of this run.
        is_taken: whether the silo has submitted to this very state in this run. Its first state is
            that of a later round, too, if all rounds so far were lost.
        parameters: of the attempt.
        roster: gives the signers' keys.

    Returns:
        The round that the state follows; NONE_BEFORE if it is the run's first state.

    Raises:
        ModelMismatchError: it may not; says what was expected.
        RosterError, BadSignatureError: a statement under it is not by a silo of the roster.
    """
    if standpoint is not None and message.model_hash == standpoint.model_hash:
        return standpoint.round
    after = NONE_BEFORE
    if message.succession is not None:
        after = message.succession.round
        _check_succession(message.succession, message.model_hash, parameters, roster)
    if standpoint is not None and not standpoint.follows(message.model_hash, after):
        raise ModelMismatchError(
            f"expected the state that follows from round {standpoint.round} as this silo computed "
            f"it, or {parameters.n_c + 1} silos' word that another one follows from a later round; "
            f"{_found(message)}. Take part again when the coordinator has their word"
        )
    is_first = parameters.round <= 1 or is_taken
    if standpoint is None and after == NONE_BEFORE and not is_first:
        raise ModelMismatchError(
            f"this silo has settled no round of the run, and joins in round {parameters.round}: "
            f"expected {parameters.n_c + 1} silos' word that this state follows from an earlier "
            f"round; {_found(message)}. Take part again when the coordinator has their word"
        )
    return after


def _found(message: StateNotice) -> str:
    said = message.succession
    return "none came" if said is None else f"theirs is of round {said.round}"


def _check_succession(
    succession: Succession, model_hash: bytes, parameters: RoundParameters, roster: Roster
) -> None:
    seats = [item.seat for item in succession.endorsements]
    needed = parameters.n_c + 1
    if seats != sorted(set(seats)) or len(seats) != needed:
        raise ModelMismatchError(
            f"expected {needed} distinct silos, sorted, to vouch for a state, got {len(seats)}"
        )
    if succession.round >= parameters.round:
        raise ModelMismatchError(
            f"the state of round {parameters.round} follows from an earlier round, not from "
            f"{succession.round}"
        )
    for item in succession.endorsements:
        statement = Settled(
            federation=parameters.federation,
            run=parameters.run,
            round=succession.round,
            model_hash=model_hash,
            seat=item.seat,
        )
        key = roster.seat(item.seat).identity_key
        verify(key, item.signature, statement.signed_bytes())

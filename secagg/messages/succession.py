"""What silos say of the state that follows a round, so that others need not believe the server.

A silo that has settled a round signs which state follows from it by its own computation. Enough of
these signatures, beside a state, tell a silo that was away where the run stands (SA1 spec 2.5 v).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from secagg.codec import DIGEST, FEDERATION, RUN, U32, U64, Record, listed, nested
from secagg.ids import FederationId, RunId
from secagg.messages.envelope import SignedMessage
from secagg.messages.sums import Endorsement


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(SignedMessage):
    """ "By my own computation this state follows from that round's sum." """  # noqa: D210, D415  # a quotation

    LABEL: ClassVar[str] = "settled-message"
    SIGNED_LABEL: ClassVar[str] = "settled"

    federation: Annotated[FederationId, FEDERATION]
    run: Annotated[RunId, RUN]
    round: Annotated[int, U64]
    model_hash: Annotated[bytes, DIGEST]
    seat: Annotated[int, U32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession(Record):
    """Signatures of `Settled` under the state that it stands beside.

    Attributes:
        round: after which the state comes.
        endorsements: exactly n_c + 1 of them, by seat.
    """

    LABEL: ClassVar[str] = "succession"

    round: Annotated[int, U64]
    endorsements: Annotated[tuple[Endorsement, ...], listed(nested(Endorsement))]

    @classmethod
    def of(cls, *statements: Settled) -> Self:
        """What these statements, which name one round and state, come to."""
        return cls(
            round=statements[0].round,
            endorsements=tuple(
                Endorsement(seat=item.seat, signature=item.signature)
                for item in sorted(statements, key=lambda item: item.seat)
            ),
        )

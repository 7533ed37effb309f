"""Whom a silo's earlier survivors may lack when they are summed again: proven bad dealers.

A sum over inputs that were summed before must have the same survivors (SA1 spec 2.5 v). One kind of
silo may be missing: a dealer whom its own signatures convict. It lost the others their round, it is
no honest silo, and the two sums differ by its input alone. So the server shows the case beside the
survivors, and every silo that signs them judges it by the roster itself.
"""

from typing import Final

from secagg.errors import EvidenceError, RemoteProtocolError, SurvivorsMismatchError
from secagg.evidence import Evidence, EvidenceKind, judge
from secagg.ids import RunId
from secagg.messages import SurvivorsRequest
from secagg.roster import Roster

# An honest silo that was restored from an older copy may contradict itself, and a bad revealer has
# dealt well. Only dealing badly is what no honest silo does, whatever happens to it (spec 3.4).
OF_DEALERS: Final = frozenset({EvidenceKind.BAD_DEALER, EvidenceKind.FALSE_PAIR})
# All exact queries, of whatever run, stand on one state: who spoiled one of them may have answered
# another honestly, and a case about the one would lift it from both.
_ONE_STATE: Final = frozenset({"statistics"})


def may_lift(case: Evidence, *, run: RunId, kind: str, model_hash: bytes, roster: Roster) -> bool:
    """Whether a case counts in a round: about a dealer, in this run, over this very state.

    Whether it proves anything is another question: `secagg.evidence.judge`.

    Args:
        case: the case.
        run: of the round. In another one over the same state the dealer may have answered honestly.
        kind: of the round.
        model_hash: of its state.
        roster: of its ctx.
    """
    of = case.parameters
    about = (of.run, of.kind, case.model_hash, of.roster_digest)
    is_same = about == (run, kind, model_hash, roster.digest()) and kind not in _ONE_STATE
    return case.kind in OF_DEALERS and is_same


def proven_liars(
    request: SurvivorsRequest,
    *,
    seat: int,
    run: RunId,
    kind: str,
    model_hash: bytes,
    roster: Roster,
) -> frozenset[int]:
    """A6, priors: the seats that may be missing, each proven by the case that came with U3.

    Args:
        request: U3, and the cases.
        seat: this silo, which knows better than any case against it.
        run: of the round.
        kind: likewise.
        model_hash: of the state that this silo has accepted.
        roster: the one that ctx names.

    Raises:
        SurvivorsMismatchError: a case proves nothing, or nothing that is needed here.
    """
    named = {one for entry in request.entries for one in entry.prior}
    liars: set[int] = set()
    for data in request.cases:
        try:
            case = Evidence.decode(data)
            judge(case, roster)
        except (EvidenceError, RemoteProtocolError) as error:
            raise SurvivorsMismatchError(
                f"a case against a dealer does not hold: {error}"
            ) from error
        if not may_lift(case, run=run, kind=kind, model_hash=model_hash, roster=roster):
            raise SurvivorsMismatchError(
                "a seat is left out of earlier survivors for a bad dealer's proof about this state "
                "only, of this run"
            )
        if case.accused == seat:
            raise SurvivorsMismatchError("this silo is called a bad dealer, and is none")
        if case.accused not in named or case.accused in liars:
            raise SurvivorsMismatchError("one case is shown for each seat that is left out")
        liars.add(case.accused)
    return frozenset(liars)

"""Who can be invited to a run's rounds now, and what they are invited to.

Present is who is connected, enrolled in the run, has not refused it and is no suspect (SA1 spec
3.4). A silo against which there is evidence is left out while the evidence file lies there; both
ends of a complaint, which proves nothing, for the rest of the run. What the coordinator asks for is
the default policy's, tightened by the roster in force and the privacy plan.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from fl.errors import BudgetExhaustedError, QueryRefusedError
from fl.privacy import document_of, privacy_of
from fl.rounds import RoundPreview, RoundRequest, RunPlan
from secagg.blame import Suspect
from secagg.errors import PolicyRefusedError
from secagg.ids import RunId
from secagg.messages import Complaint
from secagg.parameters import RoundParameters
from secagg.policy import SiloPolicy
from secagg.roster import Roster, Seat
from services.coordinator.hub import Hub

# What the coordinator asks where nobody asked for more; silos refuse less (secagg.policy).
_ASKED: Final = SiloPolicy()
# How a refusal begins by which a silo's privacy budget leaves the run.
_SPENT: Final = BudgetExhaustedError.__name__
# How refusals begin that no waiting changes: budgets, and rules that the silo's owner has set.
_FOR_GOOD: Final = (_SPENT, QueryRefusedError.__name__, PolicyRefusedError.code)


@dataclass(slots=True, kw_only=True)
class Cohorts:
    """The silos of one run.

    Attributes:
        redundancy: silos that recompute each chunk of a sum.
        enrolled: the run's seats; all of the roster until the first cohort is fixed.
        refusals: why a silo takes no part in this run, by its own word.
        accused: silos against which there is evidence, and of what.
        least_n_c: what the run's privacy plan was committed with; n_c never shrinks below it, or
            fewer promises than were committed to would leave an attempt open.
        doubted: silos that are left out of this run as one end of a complaint, and why.
        complaints: those that count, in the order in which they came.
    """

    run: RunId
    plan: RunPlan
    hub: Hub
    redundancy: int
    enrolled: tuple[int, ...]
    refusals: dict[int, str] = field(default_factory=dict)
    least_n_c: int = 0
    accused: dict[int, str] = field(default_factory=dict)
    doubted: dict[int, str] = field(default_factory=dict)
    complaints: list[Complaint] = field(default_factory=list)

    @property
    def seats(self) -> tuple[int, ...]:
        """The run's seats, connected or not."""
        return self.enrolled or self.hub.roster.indices

    def present(self) -> tuple[Seat, ...]:
        """The seats that can be invited now, at most as many as the plan's rings allow."""
        can = self._able()
        seats = tuple(seat for seat in self.hub.roster.seats if seat.index in can)
        return seats[: self.plan.max_silos]

    @property
    def spent(self) -> tuple[int, ...]:
        """The run's seats whose data set's budget is spent, by their own word."""
        spent = {seat for seat, why in self.refusals.items() if why.startswith(_SPENT)}
        return tuple(sorted(spent & set(self.seats)))

    def refused_for_good(self) -> dict[int, str]:
        """The run's seats whose own rules keep them out of it, and which rules."""
        return {
            seat: why
            for seat, why in sorted(self.refusals.items())
            if seat in self.seats and why.startswith(_FOR_GOOD)
        }

    def missing(self) -> str:
        """Who of this run is away, who refused and why, and who is left out."""
        away = set(self.seats) - self._able() - self.refusals.keys() - self.left_out.keys()
        names = [f"not connected: {self.names(*sorted(away))}"] if away else []
        refused = [f"{self.names(seat)} says {why}" for seat, why in self.refusals.items()]
        left_out = [f"{self.names(seat)} is {why}" for seat, why in self.left_out.items()]
        return "; ".join([*names, *refused, *left_out])

    def _able(self) -> set[int]:
        connected = {seat.index for seat in self.hub.connected()}
        out = self.refusals.keys() | self.left_out.keys()
        return connected & set(self.seats) - out

    @property
    def left_out(self) -> dict[int, str]:
        """Why silos are not invited though they would take part."""
        proven = {
            seat: f"left out: there is evidence against it ({what}); see `secagg transcript verify`"
            for seat, what in self.accused.items()
        }
        return self.doubted | proven

    def suspect(self, suspects: Iterable[Suspect]) -> dict[int, str]:
        """Leave these silos out from now on; returns those that were not left out before.

        A complaint counts if neither end is left out yet. So one liar costs the run one honest
        silo at most, also if it complains in two attempts at once.
        """
        before = self.left_out
        for one in sorted(suspects, key=lambda one: not one.is_proven):
            if one.evidence is not None:
                self.accused[one.seat] = one.evidence.kind.value
            elif one.complaint is not None:
                accuser, dealer = one.complaint.seat, one.complaint.dealer
                if not {accuser, dealer} & self.left_out.keys():
                    why = f"{self.names(accuser)} says that {self.names(dealer)}'s shares are bad"
                    self.doubted |= dict.fromkeys((accuser, dealer), f"left out of this run: {why}")
                    self.complaints.append(one.complaint)
        return {seat: why for seat, why in self.left_out.items() if seat not in before}

    def names(self, *seats: int) -> str:
        """These silos' names for a sentence."""
        return ", ".join(map(self.hub.name, seats))

    def least(self, request: RoundRequest | RoundPreview) -> int:
        """The least cohort whose own floor it can meet."""
        parameters = self.parameters(request, 0)
        return next(n for n in range(1, parameters.n_max + 1) if n >= parameters.floor(n))

    def parameters(self, request: RoundRequest | RoundPreview, attempt: int) -> RoundParameters:
        """What an attempt of this round asks of the silos."""
        roster, privacy = self.hub.roster, privacy_of(self.plan)
        return RoundParameters(
            federation=roster.federation,
            run=self.run,
            roster_digest=roster.digest(),
            kind=request.kind.value,
            round=request.number,
            attempt=attempt,
            n_c=max(asked_n_c(roster, self.plan), self.least_n_c),
            h_dp=privacy.h_dp if privacy else 0,
            dp=document_of(self.plan),
            h_min=_ASKED.h_min,
            n_min=_ASKED.n_min,
            n_orgs=_ASKED.n_orgs,
            n_max=self.plan.max_silos,
            spec=request.spec,
            training_plan=self.plan.digest(),
            coefficients=request.coefficients,
            redundancy=self.redundancy,
        )


def asked_n_c(roster: Roster, plan: RunPlan) -> int:
    """How many colluding silos a sum has to be safe against."""
    privacy = privacy_of(plan)
    return max(_ASKED.colluding(roster), privacy.n_c if privacy else 0)


def under(roster: Roster, parameters: RoundParameters) -> RoundParameters:
    """The same parameters under another roster: it may have come since the cohort was chosen."""
    return replace(
        parameters,
        roster_digest=roster.digest(),
        n_c=max(_ASKED.colluding(roster), parameters.n_c),
    )

"""A budget decides from its ledger whether a release may happen, and charges it before it does.

A charge is written at INTENT, before anything is trained, and settled at RELEASE. A crash in
between leaves it charged: what may have been released counts. It goes back only with proof that
nothing was, and the entry that gives it back carries the proof. The state is what the ledger says,
read anew before each decision; the store's compare-and-append decides between two processes.

What is read is a privacy filter (`dp.filters`), valid although every round depends on the ones
before.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from dp.account import Account, Intent, booked
from dp.canonical import Json, decimal
from dp.charges import Charge, ChargeBook, ChargeState, Proof, Quorum, Release, StatementChecker
from dp.entries import Entry, Kind, Signer
from dp.errors import (
    BudgetExceededError,
    LedgerConflictError,
    LedgerIntegrityError,
    PlanError,
    UnsupportedEventError,
)
from dp.events import Event, NonPrivateEvent, event_to_json
from dp.ledger import Ledger

# Two processes of one silo alternate at worst; more conflicts than this are a broken store.
_MAX_TRIES: Final = 1000
_MANY_ROUNDS: Final = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow:
    """The release fits."""

    eps_before: float
    eps_after: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """It does not; `reason` names the limit that it would pass."""

    reason: str
    eps_before: float
    eps_after: float
    limit: float


Decision: TypeAlias = Allow | Deny


class Budget:
    """The budget of one ledger; a run's or a data set's."""

    def __init__(self, ledger: Ledger, signer: Signer) -> None:
        """Read the ledger.

        Args:
            ledger: whose budget this is; its GENESIS has been written.
            signer: the ledger's writer.

        Raises:
            LedgerIntegrityError: an entry contradicts another.
        """
        self._ledger = ledger
        self._signer = signer
        self._book = ChargeBook()
        self._read = 0
        self.refresh()

    @property
    def account(self) -> Account:
        """The limits in force.

        Raises:
            PlanError: no budget has been set.
        """
        if self._book.account is None:
            raise PlanError("no budget has been set in this ledger; set one first")
        return self._book.account

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All charges, in order, returned ones too."""
        return self._book.charges

    def refresh(self) -> None:
        """Take over what the ledger holds.

        Raises:
            LedgerIntegrityError: an entry contradicts another.
        """
        self._ledger.refresh()
        for entry in self._ledger.entries[self._read :]:
            try:
                self._book.apply(entry)
            except (PlanError, UnsupportedEventError) as error:
                raise LedgerIntegrityError(entry.seq, str(error)) from error
            self._read = entry.seq + 1

    def spent(self) -> float:
        """Epsilon spent on the enforced line; unsettled charges count.

        Raises:
            PlanError: no budget has been set.
        """
        self.refresh()
        return self.account.filter.epsilon(charge.event for charge in self._book.live)

    def rounds_left(self, intent: Intent) -> int:
        """How many more releases like this one fit, a million at most.

        Raises:
            PlanError: no budget has been set, or no rule converts the intent.
        """
        self.refresh()
        low, high = 0, 1
        while high <= _MANY_ROUNDS and self._fits(_repeated(intent, high)):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(_repeated(intent, middle)) else (low, middle)
        return min(low, _MANY_ROUNDS)

    def set(self, account: Account, *, time_utc: str) -> None:
        """Set the limits, or move them; what was spent stays spent.

        Raises:
            PlanError: another unit, adjacency or filter than the account has.
            LedgerConflictError: somebody else appended at the same moment.
        """
        self.refresh()
        self._book.require_successor(account)
        self._append(Kind.BUDGET_SET, account.to_body(), time_utc=time_utc)

    def check(self, intent: Intent, *, time_utc: str) -> Decision:
        """Whether a release would fit; nothing is written.

        Raises:
            PlanError: no budget has been set, or no rule converts the intent.
            UnsupportedEventError: the account's filter cannot sum the event.
        """
        self.refresh()
        return self._decide(intent, year=self._year(time_utc))

    def charge(
        self, intent: Intent, *, time_utc: str, metric: bool = False, is_past: bool = False
    ) -> Charge:
        """Charge a release before it is made; the same intent again is charged once.

        Args:
            intent: the release.
            time_utc: now, as "2026-11-30T12:00:00Z".
            metric: a release outside rounds, settled at once (METRIC_RELEASE).
            is_past: it was made already and its charge is lost; it counts even if it does not fit,
                and a verifier then finds that a limit was passed.

        Raises:
            BudgetExceededError: it does not fit; nothing was charged.
            PlanError: no budget has been set, no rule converts the intent, or the same attempt
                has been charged with something else or given back.
            UnsupportedEventError: the account's filter cannot sum the event.
        """
        for _ in range(_MAX_TRIES):
            self.refresh()
            known = self._charge_of(intent)
            if known is not None:
                return known
            decision = self._decide(intent, year=self._year(time_utc))
            if isinstance(decision, Deny) and not is_past:
                raise BudgetExceededError(decision.eps_after, decision.limit, self.account.data_set)
            kind = Kind.METRIC_RELEASE if metric else Kind.ROUND_INTENT
            body = self._intent_body(intent)
            try:
                entry = self._append(kind, body, time_utc=time_utc, run_id=intent.run_id)
            except LedgerConflictError:
                continue
            return self._book.find(entry.entry_hash)
        raise LedgerConflictError("the ledger's head moved on every try; its store is broken")

    def settle(self, charge: str, release: Release, *, time_utc: str) -> None:
        """Settle a charge in a ledger that only its writer signs; settling again changes nothing.

        In a run ledger the survivors sign too: `draft_release`, collect signatures, `append`.

        Raises:
            PlanError: no such charge, or one that was given back.
        """
        for _ in range(_MAX_TRIES):
            self.refresh()
            if self._book.find(charge).state is ChargeState.SETTLED:
                return
            entry = self.draft_release(charge, release, time_utc=time_utc)
            try:
                self.append(entry.signed_by(self._signer))
            except LedgerConflictError:
                continue
            return
        raise LedgerConflictError("the ledger's head moved on every try; its store is broken")

    def draft_release(self, charge: str, release: Release, *, time_utc: str) -> Entry:
        """The unsigned ROUND_RELEASE of an open charge.

        Raises:
            PlanError: no such open charge, or one that does not cover what was released.
        """
        found = self._open(charge)
        if not isinstance(release.event, NonPrivateEvent):  # which costs everything, and is told
            found.require_cover(release.event)
        return self._ledger.draft(
            Kind.ROUND_RELEASE, release.to_body(charge), time_utc=time_utc, run_id=found.run_id
        )

    def append(self, entry: Entry) -> None:
        """Append an entry that all who must have signed.

        Raises:
            LedgerConflictError: somebody else was first; draft again.
        """
        self._ledger.append(entry)
        self.refresh()

    def quorum(self, charge: str) -> Quorum:
        """Whose promises give a charge back: what the plan's silos have signed.

        Raises:
            PlanError: no such charge, or one that never comes back.
        """
        self.refresh()
        return self._book.quorum(self._book.find(charge))

    def give_back(
        self, charge: str, proof: Proof, *, time_utc: str, checker: StatementChecker
    ) -> None:
        """Give a charge back, with the proof that nothing was released.

        Raises:
            PlanError: no such open charge, or the proof does not show it.
            LedgerConflictError: somebody else appended at the same moment.
        """
        self.require_proof(charge, proof, checker=checker)
        found = self._open(charge)
        body: dict[str, Json] = {"intent": charge, "returned": True, "proof": proof.to_json()}
        self._append(Kind.ROUND_ABORT, body, time_utc=time_utc, run_id=found.run_id)

    def require_proof(self, charge: str, proof: Proof, *, checker: StatementChecker) -> None:
        """Refuse what does not show that nothing was released.

        Raises:
            PlanError: no such open charge, or too few promises that the checker accepts.
        """
        found = self._open(charge)
        quorum = self._book.quorum(found)
        genuine = {
            one.signer
            for one in proof.statements
            if one.signer in quorum.members and checker(found, one)
        }
        if len(genuine) < quorum.needed:
            raise PlanError(
                f"proof: expected {quorum.needed} genuine promises of the plan's "
                f"{len(quorum.members)} silos, got {len(genuine)}"
            )

    def abort(self, charge: str, *, time_utc: str, reason: str) -> None:
        """Note that a round ended without a sum; without proof the charge stays.

        Raises:
            PlanError: no such open charge.
            LedgerConflictError: somebody else appended at the same moment.
        """
        found = self._open(charge)
        body: dict[str, Json] = {"intent": charge, "returned": False, "reason": reason}
        self._append(Kind.ROUND_ABORT, body, time_utc=time_utc, run_id=found.run_id)

    def _open(self, charge: str) -> Charge:
        self.refresh()
        return self._book.require_open(charge)

    def _year(self, time_utc: str) -> str:
        return self._ledger.not_before(time_utc)[:4]

    def _fits(self, intent: Intent) -> bool:
        """Whether it would fit in a new year: the limit of this one says nothing about later."""
        return isinstance(self._decide(intent, year=""), Allow)

    def _decide(self, intent: Intent, *, year: str) -> Decision:
        account = self.account
        event = booked(account, intent, intent.event)
        before = account.filter.epsilon(one.event for one in self._book.live)
        after = math.inf
        if isinstance(event, NonPrivateEvent):
            reason = "a release without noise is refused on a data set that has a budget"
            return Deny(reason=reason, eps_before=before, eps_after=after, limit=account.epsilon)
        for name, limit, total in self._lines(intent, event, year):
            if name == "epsilon":
                after = total
            if not total <= limit:
                reason = f"{name} would be {total:.4f}, its limit is {limit:.4f}"
                return Deny(reason=reason, eps_before=before, eps_after=total, limit=limit)
        return Allow(eps_before=before, eps_after=after, limit=account.epsilon)

    def _lines(self, intent: Intent, event: Event, year: str) -> Iterable[tuple[str, float, float]]:
        """Each limit: its name, its value, and what the release would bring it to."""
        account, live = self.account, self._book.live
        rule = account.filter
        yield "epsilon", account.epsilon, rule.epsilon([*(one.event for one in live), event])
        if account.local_epsilon is not None:
            local = [*(one.local for one in live), booked(account, intent, intent.local)]
            yield "local_epsilon", account.local_epsilon, rule.epsilon(local)
        if account.run_epsilon is not None:
            run = [one.event for one in live if one.run_id == intent.run_id]
            yield "run_epsilon", account.run_epsilon, rule.epsilon([*run, event])
        if account.year_epsilon is not None:
            this = [one.event for one in live if one.year == year]
            yield "year_epsilon", account.year_epsilon, rule.epsilon([*this, event])

    def _intent_body(self, intent: Intent) -> dict[str, Json]:
        account, live = self.account, [one.event for one in self._book.live]
        event = booked(account, intent, intent.event)
        return {
            "round": intent.round,
            "attempt": intent.attempt,
            "purpose": intent.purpose,
            "plan_digest": intent.plan_digest,
            "unit": intent.unit.value,
            "adjacency": intent.adjacency.value,
            "event": event_to_json(intent.event),
            "booked": event_to_json(event),
            "booked_local": event_to_json(booked(account, intent, intent.local)),
            "eps_before": decimal(account.filter.epsilon(live)),
            "eps_after": decimal(account.filter.epsilon([*live, event])),
        }

    def _charge_of(self, intent: Intent) -> Charge | None:
        key = (intent.run_id, intent.round, intent.attempt, intent.purpose)
        known = next((one for one in self._book.charges if one.key == key), None)
        if known is None:
            return None
        same = known.event == booked(self.account, intent, intent.event)
        if not same or known.state is ChargeState.RETURNED:
            raise PlanError(
                f"round {intent.round}, attempt {intent.attempt} has been charged with another "
                "event, or given back; a release has one charge, another try is another attempt"
            )
        return known

    def _append(
        self, kind: Kind, body: Mapping[str, Json], *, time_utc: str, run_id: str = ""
    ) -> Entry:
        entry = self._ledger.draft(kind, body, time_utc=time_utc, run_id=run_id)
        signed = entry.signed_by(self._signer)
        self.append(signed)
        return signed


def _repeated(intent: Intent, times: int) -> Intent:
    return replace(
        intent,
        event=replace(intent.event, count=intent.event.count * times),
        local=replace(intent.local, count=intent.local.count * times),
    )

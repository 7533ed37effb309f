"""The run ledger as its writer keeps it: the plan, a charge before each attempt, its release.

Blocking; the coordinator's driver calls it in threads. One file for each run, so that a run can be
handed to an auditor as it is. Its account is the run's own promise: what the plan claims, or what
the operator allows; the silos' data-set ledgers decide over the data.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from dp.account import Account, intent_for
from dp.budget import Budget
from dp.charges import Charge, ChargeState, Proof, Quorum, Release, StatementChecker
from dp.commitments import genesis_body, plan_commit_body
from dp.entries import Entry, Kind, Signature, check_signatures
from dp.errors import LedgerIntegrityError
from dp.filters import Filter, FilterKind
from dp.keyring import current_key
from dp.ledger import Ledger, LedgerKind
from dp.plan import Noise, PrivacyPlan, event_of
from dp.renyi import ORDERS
from secagg.ids import RunId
from services.ledger.parties import Party
from services.storage.ledger import FileLedgerStore

# The plan's own epsilon is the limit; its last digits depend on the order of additions.
_ROOM: Final = 1.0 + 1e-9
_WHOLE_ORDERS: Final = tuple(int(order) for order in ORDERS if order.is_integer())


def ledger_path(folder: Path, run: RunId) -> Path:
    """Where a run's ledger lies."""
    return folder / f"run-{run.hex}.jsonl"


def run_account(plan: PrivacyPlan, name: str, epsilon: float | None = None) -> Account:
    """The account of a run.

    Args:
        plan: what it promises.
        name: the run's.
        epsilon: another limit than the plan's own, such as one with room for failed attempts.
    """
    events = [replace(one := event_of(plan, z=plan.z), count=one.count * plan.rounds)]
    rule = Filter(kind=FilterKind.GDP, delta=plan.delta)
    if plan.q < 1.0 or plan.noise is Noise.SKELLAM:
        choices = [Filter(kind=FilterKind.RDP, delta=plan.delta, order=n) for n in _WHOLE_ORDERS]
        rule = min(choices, key=lambda one: one.epsilon(events))
    return Account(
        data_set=name,
        unit=plan.unit,
        adjacency=plan.adjacency,
        filter=rule,
        epsilon=rule.epsilon(events) * _ROOM if epsilon is None else epsilon,
    )


def require_accountable(plan: PrivacyPlan, name: str, epsilon: float | None = None) -> None:
    """Refuse a plan whose rounds could not be charged, before any silo is asked.

    Args:
        plan: of the run.
        name: the run's.
        epsilon: as for `run_account`.

    Raises:
        PrivacyError: the accountant has no figure for it, or integers cost more than the plan's
            reserve of delta at the account's limit.
    """
    limit = run_account(plan, name, epsilon).epsilon
    intent_for(plan, run_id=bytes(16).hex(), round_number=1, attempt=0, epsilon=limit)


def plan_entry(ledger: Ledger, digest: str, run_id: str | None = None) -> Entry | None:
    """The first PLAN_COMMIT of a plan, None if the ledger has none.

    Args:
        ledger: a run's, or a data set's, which holds the plans of many runs.
        digest: of the plan, in hex.
        run_id: whose commitment to it, in hex; None for any.
    """
    for one in ledger.entries:
        is_plan = one.kind is Kind.PLAN_COMMIT and one.body.get("plan_digest") == digest
        if is_plan and run_id in {None, one.run_id}:
            return one
    return None


def plan_silos(committed: Entry) -> frozenset[str]:
    """The silos that a PLAN_COMMIT names, each of which signs it; none if it names no list."""
    silos = committed.body.get("silos")
    listed = silos if isinstance(silos, list | tuple) else ()
    return frozenset(name for name in listed if isinstance(name, str))


class RunBook:
    """One run's ledger."""

    def __init__(self, folder: Path, run: RunId, writer: Party, plan: PrivacyPlan) -> None:
        """Read what is there.

        Raises:
            LedgerIntegrityError: the file has been changed.
        """
        self.store = FileLedgerStore(ledger_path(folder, run))
        self.ledger = Ledger(self.store)
        if (
            self.ledger.entries
            and current_key(self.ledger.entries, writer.name) != writer.key.public
        ):
            raise LedgerIntegrityError(
                len(self.ledger.entries),
                "the run's ledger was written with another identity key; `secagg ledger rotate`",
            )
        self._run = run
        self._writer = writer
        self._plan = plan
        self._budget = Budget(self.ledger, writer)

    @property
    def is_committed(self) -> bool:
        """Whether the plan stands in the ledger with all signatures."""
        return self.committed is not None

    @property
    def committed(self) -> Entry | None:
        """The plan's PLAN_COMMIT."""
        return plan_entry(self.ledger, self._plan.digest.hex())

    def quorum(self, charge: Charge) -> Quorum:
        """Whose promises give a charge back.

        Raises:
            PlanError: none do.
        """
        return self._budget.quorum(charge.entry_hash)

    def lines(self, first: int) -> list[bytes]:
        """The ledger from place `first` on."""
        return [entry.to_line() for entry in self.ledger.entries[first:]]

    def begin(
        self,
        *,
        keys: Mapping[str, bytes],
        account: Account,
        software: Mapping[str, str],
        policy: str,
        time_utc: str,
    ) -> None:
        """Write GENESIS and BUDGET_SET, unless they are there."""
        if not self.ledger.entries:
            body = genesis_body(
                LedgerKind.RUN,
                writer=self._writer.name,
                subject=self._run.hex,
                keys=keys,
                policy=policy,
                software=software,
            )
            entry = self.ledger.draft(Kind.GENESIS, body, time_utc=time_utc, run_id=self._run.hex)
            self._budget.append(entry.signed_by(self._writer))
        if all(entry.kind is not Kind.BUDGET_SET for entry in self.ledger.entries):
            self._budget.set(account, time_utc=time_utc)

    def draft_plan(
        self,
        *,
        silos: Sequence[str],
        threshold: int,
        floor: int,
        n_c: int,
        manifest: bytes,
        time_utc: str,
    ) -> Entry:
        """PLAN_COMMIT with the writer's signature; every silo adds its own."""
        body = plan_commit_body(
            self._plan,
            silos=silos,
            threshold=threshold,
            floor=floor,
            n_c=n_c,
            manifest=hashlib.sha256(manifest).hexdigest(),
        )
        entry = self.ledger.draft(Kind.PLAN_COMMIT, body, time_utc=time_utc, run_id=self._run.hex)
        return entry.signed_by(self._writer)

    def charge(
        self, round_number: int, attempt: int, *, purpose: str = "training", time_utc: str
    ) -> Charge:
        """Charge an attempt before it is opened.

        Raises:
            BudgetExceededError: the run's budget is spent.
        """
        limit = self._budget.account.epsilon
        intent = intent_for(
            self._plan,
            run_id=self._run.hex,
            round_number=round_number,
            attempt=attempt,
            purpose=purpose,
            epsilon=limit,
        )
        return self._budget.charge(intent, time_utc=time_utc)

    def draft_release(
        self,
        charge: Charge,
        *,
        survivors: Sequence[str],
        threshold: int,
        transcript: bytes,
        time_utc: str,
    ) -> Entry:
        """ROUND_RELEASE with the writer's signature; `threshold` survivors add theirs."""
        release = Release(
            survivors=tuple(survivors),
            threshold=threshold,
            transcript=transcript.hex(),
            event=charge.planned,
            audit={},
        )
        entry = self._budget.draft_release(charge.entry_hash, release, time_utc=time_utc)
        return entry.signed_by(self._writer)

    def append(
        self, entry: Entry, signatures: Sequence[Signature], keys: Mapping[str, bytes]
    ) -> None:
        """Append a draft with the signatures that others made, after checking them.

        Raises:
            LedgerIntegrityError: one does not fit.
        """
        whole = entry.with_signatures(*signatures)
        check_signatures(whole, keys)
        self._budget.append(whole)

    def end(
        self,
        charge: Charge,
        *,
        reason: str,
        proof: Proof | None,
        checker: StatementChecker,
        time_utc: str,
    ) -> None:
        """Note that an attempt gave no sum; with proof its charge comes back."""
        self._budget.refresh()
        if self.find(charge.round, charge.attempt) != ChargeState.OPEN:
            return
        if proof is not None:
            self._budget.give_back(charge.entry_hash, proof, time_utc=time_utc, checker=checker)
        else:
            self._budget.abort(charge.entry_hash, time_utc=time_utc, reason=reason[:200])

    def find(self, round_number: int, attempt: int) -> ChargeState | None:
        """Where an attempt's charge stands, None if it has none."""
        charge = self.charge_of(round_number, attempt)
        return None if charge is None else charge.state

    def charge_of(self, round_number: int, attempt: int) -> Charge | None:
        """An attempt's charge."""
        for one in self._budget.charges:
            if (one.round, one.attempt) == (round_number, attempt):
                return one
        return None

    @property
    def spent(self) -> float:
        """Epsilon so far, on the run's account."""
        return self._budget.spent()

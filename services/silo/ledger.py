"""A silo's two ledgers: its data set's budget, which decides, and its copy of each run's ledger.

Blocking; the node calls it in threads. A round is charged here before it is trained, whatever the
coordinator's ledger says, and the data set's ledger never leaves the silo. The copy is checked line
by line with the roster's keys. What the silo signs is what it has charged itself.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from dp.account import Intent, intent_for
from dp.budget import Budget, Deny
from dp.canonical import Json, canonical_json
from dp.charges import Charge, ChargeState, Release, Statement
from dp.entries import Entry, Kind, signed_message
from dp.errors import (
    BudgetExceededError,
    EquivocationError,
    LedgerConflictError,
    LedgerIntegrityError,
    PlanError,
    PrivacyError,
)
from dp.keyring import Keys, keys_of
from dp.ledger import (
    Ledger,
    SignedHead,
    check_heads,
    prove_equivocation,
    sign_head,
    verify_entries,
)
from dp.plan import PrivacyPlan
from fl.errors import BudgetExhaustedError, LedgerRefusedError
from fl.privacy import privacy_of
from fl.rounds import RunPlan
from secagg.effects import Aggregate
from secagg.errors import BadSignatureError
from secagg.ids import AttemptId, RunId
from secagg.parameters import GRAPH_COMPLETE, RoundParameters, threshold
from secagg.policy import SiloPolicy
from secagg.roster import Roster
from services.config import DataSetBudget
from services.ledger.messages import LedgerAnswer, LedgerNotice
from services.ledger.parties import COORDINATOR, Party, keys_in, stamp
from services.ledger.proofs import is_promise, read_proof, smallest_cohort
from services.ledger.run_book import ledger_path, plan_entry, plan_silos
from services.observe.logs import Logger
from services.silo.data_set import DataSet, keep_unknown, names_unknown_key
from services.silo.declared import require_declared
from services.silo.run_lines import check_run_lines
from services.silo.said import PlanAnswer, Said
from services.storage.ledger import FileLedgerStore

LEDGERS: Final = "ledgers"
# What others are told of a spent budget: its figures are the silo's own affair.
SPENT: Final = "this silo's data-set budget is spent; its own log has the figures"


def require_fit(privacy: PrivacyPlan | None, *, has_budget: bool) -> None:
    """Raise LedgerRefusedError unless both a run and a data set know of privacy, or neither."""
    if privacy is None and has_budget:
        raise LedgerRefusedError(
            "this silo's data set has a privacy budget, and the run has no privacy plan"
        )
    if privacy is not None and not has_budget:
        raise LedgerRefusedError(
            "the run has a privacy plan, and this silo's settings name no data set to charge; add "
            "[privacy] to them"
        )


@dataclass(slots=True, kw_only=True)
class SiloLedgers:
    """What this silo has spent and signed.

    Attributes:
        budget_settings: of the data set behind this silo's task; None: it has no budget.
        folder: of run ledgers' copies, and of the data set's unless the settings name another.
        party: signs as this silo.
        roster: in force.
        former: those before it, oldest first. Ledgers are checked with all keys that rosters have
            listed, for a run's lines may be older than a party's new key.
        now: the wall clock.
        log: this silo's own; figures of its budget go nowhere else.
        policy: how many silos may collude, which a plan has to count with.
        has_promised: whether this silo has promised to open nothing in an attempt (Abandon).
        agreed: the survivors' seats that this silo has put its name to in an attempt, or has seen
            certified; None if there are none.
    """

    budget_settings: DataSetBudget | None
    folder: Path
    party: Party
    roster: Callable[[], Roster]
    now: Callable[[], datetime]
    log: Logger
    policy: SiloPolicy = field(default_factory=SiloPolicy)
    former: Callable[[], Sequence[Roster]] = field(default=lambda: ())
    has_promised: Callable[[AttemptId], bool] = field(default=lambda _: False)
    agreed: Callable[[AttemptId], Sequence[int] | None]
    _data_set: DataSet | None = None
    _copies: dict[RunId, Ledger] = field(default_factory=dict)
    _broken: dict[RunId, str] = field(default_factory=dict)
    _parameters: dict[tuple[RunId, int, int], RoundParameters] = field(default_factory=dict)

    # --- the data set's budget ----------------------------------------------------------------

    @property
    def data_set(self) -> DataSet | None:
        """The data set's ledger, set up as the settings say; None without settings.

        Raises:
            PrivacyError: the settings contradict what the ledger holds.
        """
        if self.budget_settings is not None and self._data_set is None:
            self._data_set = DataSet(
                settings=self.budget_settings,
                copies=self.folder,
                party=self.party,
                stamp=self._stamp,
            )
        return self._data_set

    @property
    def budget(self) -> Budget | None:
        """The data set's budget; None without settings.

        Raises:
            PrivacyError: the settings contradict what the ledger holds.
        """
        data_set = self.data_set
        return None if data_set is None else data_set.budget

    def check_round(self, parameters: RoundParameters, plan: RunPlan) -> None:
        """Refuse a round that the budget does not allow, or that the run's ledger does not hold.

        Raises:
            BudgetExhaustedError: it would pass a limit of the data set.
            LedgerRefusedError: the plan and the data set do not go together, or the coordinator's
                ledger is not in order.
        """
        privacy = privacy_of(plan)
        with _refusing():
            budget = self.budget
            require_fit(privacy, has_budget=budget is not None)
            if privacy is None or budget is None:
                return
            self._require_declared(privacy)
            committed = self._require_intent(parameters, privacy)
            self._require_terms(parameters, committed)
            self._require_memory(committed)
            decision = budget.check(self._intent(parameters, privacy), time_utc=self._stamp())
            if isinstance(decision, Deny) and self._charge(_place(parameters)) is None:
                raise BudgetExhaustedError(f"this silo's data set: {decision.reason}")
        self._parameters[_key(parameters)] = parameters

    def members(self, parameters: RoundParameters, plan: RunPlan) -> frozenset[int] | None:
        """The seats that an attempt's U1 may have: silos that signed the plan; None without one.

        A promise gives a charge back only because whoever else can open the attempt is counted
        with S (docs/audit.md). Call it after `check_round`.
        """
        privacy = privacy_of(plan)
        if privacy is None:
            return None
        committed = plan_entry(self._copy(parameters.run), privacy.digest.hex())
        signed = frozenset() if committed is None else plan_silos(committed)
        seats = self.roster().seats
        return frozenset(one.index for one in seats if one.silo.name in signed)

    def charge(self, parameters: RoundParameters, plan: RunPlan) -> None:
        """Charge a round before it is trained.

        Raises:
            BudgetExhaustedError, LedgerRefusedError: as `check_round`; another run may have spent
                what was left.
        """
        privacy = privacy_of(plan)
        if privacy is None:
            return
        with _refusing():
            data_set = self.data_set
            assert data_set is not None  # `check_round` has looked
            found = plan_entry(self._copy(parameters.run), privacy.digest.hex())
            assert found is not None  # likewise
            data_set.follow(found)
            try:
                data_set.budget.charge(self._intent(parameters, privacy), time_utc=self._stamp())
            except BudgetExceededError as error:
                raise BudgetExhaustedError(str(error)) from error

    def settle(self, aggregate: Aggregate, plan: RunPlan) -> None:
        """Settle a round whose sum is there; what was charged stays charged."""
        if privacy_of(plan) is None:
            return
        charge = self._charge(_place(aggregate.parameters))
        if charge is None or charge.state is not ChargeState.OPEN:
            return
        names = tuple(self.roster().seat(seat).silo.name for seat in aggregate.survivors)
        release = Release(
            survivors=names,
            threshold=aggregate.parameters.threshold(len(names)),
            transcript=aggregate.parameters.ctx().hex(),
            event=charge.planned,
            audit={},
        )
        self._require_budget().settle(charge.entry_hash, release, time_utc=self._stamp())

    def _intent(self, parameters: RoundParameters, privacy: PrivacyPlan) -> Intent:
        return intent_for(
            privacy,
            run_id=parameters.run.hex,
            round_number=parameters.round,
            attempt=parameters.attempt,
            purpose=parameters.kind,
            epsilon=self._require_budget().account.epsilon,
        )

    def _charge(self, wanted: tuple[str, int, int]) -> Charge | None:
        """The data set's charge of a run, round and attempt."""
        budget = self._require_budget()
        budget.refresh()
        for one in budget.charges:
            if (one.run_id, one.round, one.attempt) == wanted:
                return one
        return None

    def _require_budget(self) -> Budget:
        budget = self.budget
        assert budget is not None  # `check_round` comes first
        return budget

    # --- the run's ledger ---------------------------------------------------------------------

    def receive(self, notice: LedgerNotice) -> LedgerAnswer:
        """Take the coordinator's lines, and sign what this silo can vouch for."""
        run = notice.run
        try:
            ledger = self._copy(run)
            ledger.refresh()
            self._take(ledger, notice)
            entry_hash, signature = self._sign(notice, ledger)
        except BudgetExceededError as error:
            self.log.warning("budget-spent", run=run.hex, reason=str(error))
            return self._answer(run, code=BudgetExhaustedError.__name__, reason=SPENT)
        except BudgetExhaustedError as error:  # said before
            return self._answer(run, code=type(error).__name__, reason=str(error))
        except (PrivacyError, BadSignatureError) as error:
            if not isinstance(error, LedgerConflictError | PlanError):
                self._broken[run] = str(error)
            return self._answer(run, code=type(error).__name__, reason=str(error))
        return self._answer(run, entry_hash=entry_hash, signature=signature)

    def _take(self, ledger: Ledger, notice: LedgerNotice) -> None:
        """Append the lines that are new, once all of the ledger is in order.

        Raises:
            EquivocationError: the coordinator shows another history than before, or than to others.
            LedgerIntegrityError: a line is not what it should be.
        """
        known = ledger.entries
        fresh: list[Entry] = []
        for place, line in enumerate(notice.lines, start=notice.first):
            entry = Entry.from_line(line)
            if place < len(known):
                if known[place].entry_hash != entry.entry_hash:
                    self._require_one_history(notice.run, known[place], entry)
                continue
            if place > len(known) + len(fresh):
                return  # lines are missing in between; the answer says how many are here
            fresh.append(entry)
        if known or fresh:
            self._check(known, fresh, notice)
            check_run_lines(notice.run, known, fresh)
        for entry in fresh:
            ledger.append(entry)
        # Of all lines: a crash may have come between a line and what follows from it.
        data_set = self.data_set if ledger.entries else None
        if data_set is not None:
            data_set.recover(ledger)
        for entry in ledger.entries:
            self._give_back(notice.run, entry)

    def _require_one_history(self, run: RunId, known: Entry, other: Entry) -> None:
        """Keep the proof where two entries stand at one place: the run is over here, for good.

        Raises:
            EquivocationError, LedgerIntegrityError: as `prove_equivocation`.
        """
        for key in self._known_keys()[COORDINATOR]:
            try:
                with suppress(LedgerIntegrityError):
                    prove_equivocation(known, other, writer=COORDINATOR, key=key)
            except EquivocationError:
                self._note(partial(Said.note_two_histories, run=run, entries=(known, other)))
                raise
        raise LedgerIntegrityError(known.seq, "two entries, which no key of the writer signed both")

    def _check(self, known: Sequence[Entry], fresh: Sequence[Entry], notice: LedgerNotice) -> None:
        entries = [*known, *fresh]
        for before, entry in pairwise(entries):
            if (entry.seq, entry.prev_hash) != (before.seq + 1, before.entry_hash):
                raise LedgerIntegrityError(entry.seq, "it does not follow from the entry before")
        keys = self._known_keys()
        if fresh:
            changes = [one for one in known[1:] if one.kind is Kind.KEY_ROTATE]
            new = [one for one in fresh if one.seq]
            try:
                verify_entries([entries[0], *changes, *new], keys)
            except LedgerIntegrityError:
                self._shut(notice.run, entries, keys)
                raise
        ring = {name: keys_of(key) for name, key in keys.items()}
        for line in notice.heads:
            head = SignedHead.from_bytes(line)
            try:
                check_heads(entries, ring, [head])
            except EquivocationError as error:
                proof = (line, entries[head.head.seq].to_line())
                note = partial(Said.note_broken, run=notice.run, reason=str(error), proof=proof)
                self._note(note)
                raise

    def _known_keys(self) -> dict[str, Sequence[bytes]]:
        """All keys that rosters list or have listed, by name, oldest first."""
        listed = keys_in([*self.former(), self.roster()])
        return {**listed, self.party.name: self.party.public_keys}

    def _shut(self, run: RunId, entries: Sequence[Entry], keys: Keys) -> None:
        """Keep lines that name this silo in a release by a key of its that nobody here knows.

        They lie beside the copies, so that no budget opens before the key is known, and then count.
        """
        if self.budget_settings is not None and names_unknown_key(entries, keys, self.party.name):
            self.log.error("budget-shut", run=run.hex, reason="a key of this silo is not known")
            keep_unknown(self.folder, run, entries)
            self._data_set = None

    def _note(self, note: Callable[[Said], None]) -> None:
        """Write down what another process may be writing down, too."""
        while True:
            with suppress(LedgerConflictError):
                note(self._said)
                return

    def _sign(self, notice: LedgerNotice, ledger: Ledger) -> tuple[str, bytes]:
        """Sign the draft, if it says what this silo can vouch for; its hash and the signature.

        Raises:
            PlanError: it says something else.
            BudgetExceededError: a plan of which not one round fits the data set's budget.
        """
        if not notice.draft:
            return "", b""
        entry, head = Entry.from_line(notice.draft), ledger.head()
        if (entry.seq, entry.prev_hash) != (head.seq + 1, head.entry_hash):
            raise LedgerConflictError("the draft does not follow from this silo's copy")
        if entry.run_id != notice.run.hex:
            raise PlanError("the draft is not of the run whose ledger it is for")
        if entry.kind is Kind.PLAN_COMMIT:
            self._accept_plan(entry, ledger)
        elif entry.kind is Kind.ROUND_RELEASE:
            self._accept_release(entry, ledger)
        else:
            raise PlanError(f"a silo signs PLAN_COMMIT and ROUND_RELEASE, got {entry.kind}")
        return entry.entry_hash, self.party.sign(signed_message(entry.entry_hash))

    def _accept_plan(self, entry: Entry, ledger: Ledger) -> None:
        plan = PrivacyPlan.from_bytes(canonical_json(entry.body.get("plan")))
        if plan.digest.hex() != entry.body.get("plan_digest"):
            raise PlanError("PLAN_COMMIT: the digest is not the plan's")
        if plan_entry(ledger, plan.digest.hex()) is not None:
            raise PlanError("PLAN_COMMIT: this plan has been committed to before")
        if self.party.name not in plan_silos(entry):
            raise PlanError("PLAN_COMMIT: expected this silo among those that sign it")
        least, floor, n_c = (entry.body.get(name) for name in ("threshold", "floor", "n_c"))
        may_collude = max(plan.n_c, self.policy.colluding(self.roster()))
        if not (isinstance(n_c, int) and n_c >= may_collude):
            raise PlanError(f"PLAN_COMMIT: expected an n_c of {may_collude} at least, got {n_c}")
        if not (isinstance(floor, int) and floor >= plan.n_c + plan.h_dp):
            raise PlanError(f"PLAN_COMMIT: expected a floor of {plan.n_c + plan.h_dp}, got {floor}")
        wanted = threshold(floor, n_c)
        if least != wanted or not max(n_c, 1) < wanted <= floor:
            raise PlanError(
                f"PLAN_COMMIT: expected the threshold {wanted} of {floor} silos, above the "
                f"{max(n_c, 1)} that may collude and no higher than {floor}, got {least}"
            )
        budget = self.budget
        if budget is None:
            raise PlanError("this silo's settings name no data set to charge; add [privacy]")
        self._require_declared(plan)
        self._answer_once(entry, plan, budget)

    def _require_declared(self, plan: PrivacyPlan) -> None:
        """Hold a plan against what is declared of the data set, never against the data."""
        if self.budget_settings is not None:
            require_declared(plan, self.budget_settings)

    def _answer_once(self, entry: Entry, plan: PrivacyPlan, budget: Budget) -> None:
        """Say whether a round of the plan fits the budget, to one draft of a run.

        Raises:
            PlanError: another draft of this run was answered, or too many runs' were.
            BudgetExhaustedError: this draft was refused before.
            BudgetExceededError: it is now.
        """
        while True:
            with suppress(LedgerConflictError):  # another process answered: look again
                self._answer_now(entry, plan, budget, self._said)
                return

    def _answer_now(self, entry: Entry, plan: PrivacyPlan, budget: Budget, said: Said) -> None:
        before = said.plan(entry.run_id)
        if before is not None and before.draft != entry.entry_hash:
            raise PlanError(
                "PLAN_COMMIT: this silo has answered another draft of this run's plan; it answers "
                "one, so begin a new run"
            )
        if before is not None:
            if not before.is_signed:
                raise BudgetExhaustedError(SPENT)
            return
        budget.refresh()
        charged = {one.run_id for one in budget.charges if one.state is not ChargeState.RETURNED}
        said.require_room(self.now(), charged)
        limit = budget.account.epsilon
        intent = intent_for(plan, run_id=entry.run_id, round_number=1, epsilon=limit)
        decision = budget.check(intent, time_utc=self._stamp())
        fits = not isinstance(decision, Deny)
        assert self.data_set is not None  # the budget is its
        answer = PlanAnswer(
            draft=entry.entry_hash,
            is_signed=fits,
            at=int(self.now().timestamp()),
            data_set=self.data_set.settings.data_set,
            ledger=self.data_set.ledger.entries[0].entry_hash,
        )
        said.note_plan(entry.run_id, answer)
        self.log.info("plan-answered", run=entry.run_id, plan=plan.digest.hex(), signed=fits)
        if isinstance(decision, Deny):
            raise BudgetExceededError(decision.eps_after, decision.limit, budget.account.data_set)

    @property
    def _said(self) -> Said:
        return Said(self.folder)

    def _accept_release(self, entry: Entry, ledger: Ledger) -> None:
        """A survivor vouches for the release of what it has charged itself."""
        intent = next(
            (one for one in ledger.entries if one.entry_hash == entry.body.get("intent")), None
        )
        survivors = entry.body.get("survivors")
        names = set(survivors) if isinstance(survivors, list | tuple) else set()
        mine = self.party.name in names
        if intent is None or not mine or entry.body.get("event") != intent.body.get("event"):
            raise PlanError("ROUND_RELEASE: expected an INTENT of this ledger, and this silo in it")
        self._check_survivors(entry, intent, names, ledger)
        number, attempt = int(str(intent.body["round"])), int(str(intent.body["attempt"]))
        budget = self._require_budget()
        budget.refresh()
        known = {
            (one.run_id, one.round, one.attempt)
            for one in budget.charges
            if one.state is not ChargeState.RETURNED
        }
        given_back = any(
            one.kind is Kind.ROUND_ABORT
            and one.body.get("intent") == intent.entry_hash
            and one.body.get("returned") is True
            for one in ledger.entries
        )
        if (entry.run_id, number, attempt) not in known or given_back:
            raise PlanError("ROUND_RELEASE: this silo has charged no such round")
        where = AttemptId(run=RunId.parse(entry.run_id), round=number, attempt=attempt)
        if self.has_promised(where):
            raise PlanError("ROUND_RELEASE: this silo has promised to open nothing in this attempt")
        agreed = self.agreed(where)
        if agreed is None or {self.roster().seat(one).silo.name for one in agreed} != names:
            raise PlanError(
                "ROUND_RELEASE: its survivors are not those that this silo has agreed to in this "
                "attempt"
            )

    def _check_survivors(
        self, entry: Entry, intent: Entry, names: set[Json], ledger: Ledger
    ) -> None:
        """The release is of the round that this silo took part in, and enough silos are in it.

        Raises:
            PlanError: fewer than the plan's floor, other silos than signed it, a lower threshold,
                or another transcript.
        """
        committed = plan_entry(ledger, str(intent.body.get("plan_digest")))
        if committed is None:
            raise PlanError("ROUND_RELEASE: this ledger holds no commitment to its plan")
        floor, least = committed.body.get("floor"), committed.body.get("threshold")
        threshold, listed = entry.body.get("threshold"), names <= plan_silos(committed)
        enough = isinstance(floor, int) and len(names) >= floor
        signed = isinstance(least, int) and isinstance(threshold, int) and threshold >= least
        if not (listed and enough and signed):
            raise PlanError(
                f"ROUND_RELEASE: expected at least {floor} survivors of the plan's silos and a "
                f"threshold of {least}, got {len(names)} and {threshold}"
            )
        number, attempt = intent.body.get("round"), intent.body.get("attempt")
        for key, parameters in self._parameters.items():
            here = (key[0].hex, key[1], key[2]) == (entry.run_id, number, attempt)
            if here and entry.body.get("transcript") != parameters.ctx().hex():
                raise PlanError("ROUND_RELEASE: its transcript is another round's than we saw")

    def _require_intent(self, parameters: RoundParameters, privacy: PrivacyPlan) -> Entry:
        """The coordinator has committed to the plan and charged this attempt before it opened it.

        Returns:
            the PLAN_COMMIT.

        Raises:
            LedgerRefusedError: it has not, or its ledger was found broken.
        """
        if parameters.run in self._broken:
            raise LedgerRefusedError(f"the run's ledger: {self._broken[parameters.run]}")
        if broken := self._said.broken(parameters.run):
            raise LedgerRefusedError(f"the run's ledger: {broken}")
        digest = privacy.digest.hex()
        ledger = self._copy(parameters.run)
        committed = plan_entry(ledger, digest)
        wanted = (digest, parameters.round, parameters.attempt)
        charged = any(
            one.kind is Kind.ROUND_INTENT
            and (one.body.get("plan_digest"), one.body.get("round"), one.body.get("attempt"))
            == wanted
            for one in ledger.entries
        )
        if committed is None or not charged:
            raise LedgerRefusedError(
                f"round {parameters.round}, attempt {parameters.attempt}: the run's ledger holds "
                "no commitment to this privacy plan, or no charge of this attempt"
            )
        return committed

    def _require_terms(self, parameters: RoundParameters, committed: Entry) -> None:
        """The attempt is one in which the committed number of promises leaves nothing to open.

        Its silos are those that signed the plan, and t, F and n_c are no lower than they signed:
        what gives a charge back is counted with those figures (`dp.charges.Quorum`).

        Raises:
            LedgerRefusedError: it is not.
        """
        if self.party.name not in plan_silos(committed):
            raise LedgerRefusedError("this silo has not signed the run's privacy plan")
        if parameters.graph != GRAPH_COMPLETE:
            raise LedgerRefusedError("a run with a privacy plan needs the complete graph")
        least = smallest_cohort(parameters)
        asked = {
            "n_c": parameters.n_c,
            "threshold": parameters.threshold(least),
            "floor": parameters.floor(least),
        }
        for name, value in asked.items():
            signed = committed.body.get(name)
            if isinstance(signed, int) and value < signed:
                raise LedgerRefusedError(
                    f"round {parameters.round}: the plan was signed with {name} = {signed}, the "
                    f"coordinator asks {value}"
                )

    def _require_memory(self, committed: Entry) -> None:
        """What a run's lines prove is charged beyond the limit; nothing may be opened by that.

        Raises:
            LedgerRefusedError: this silo has forgotten in which attempts it took part.
        """
        data_set = self.data_set
        if data_set is not None and not data_set.remembers(committed):
            raise LedgerRefusedError(
                "this silo has lost what it knew of the run (said.jsonl, or its data set's "
                "ledger), or has answered its plan out of another data set: it takes no part in "
                "it any more; begin a new run"
            )

    def _give_back(self, run: RunId, entry: Entry) -> None:
        """Follow the run's ledger where an attempt is proven dead; this silo checks the proof.

        Raises:
            PlanError: it proves nothing, so that the run is over here, for good.
        """
        if entry.kind is not Kind.ROUND_ABORT or entry.body.get("returned") is not True:
            return
        intents = {one.entry_hash: one for one in self._copy(run).entries}
        intent = intents[str(entry.body["intent"])]
        committed = plan_entry(self._copy(run), str(intent.body.get("plan_digest")))
        number, attempt = int(str(intent.body["round"])), int(str(intent.body["attempt"]))
        budget = self.budget
        charge = None if budget is None else self._charge((run.hex, number, attempt))
        if budget is None or charge is None or committed is None:
            return
        if charge.state is not ChargeState.OPEN:
            return
        rosters = [*self.former(), self.roster()]

        def by_any_key(charge: Charge, statement: Statement, /) -> bool:
            return any(
                is_promise(charge, statement, committed=committed, roster=one) for one in rosters
            )

        try:
            proof = read_proof(entry.body.get("proof"))
            budget.require_proof(charge.entry_hash, proof, checker=by_any_key)
        except PlanError as error:
            said = f"entry {entry.seq} gives a charge back that nothing proves: {error}"
            note = partial(Said.note_broken, run=run, reason=said, proof=(entry.to_line(),))
            self._note(note)
            self.log.warning("false-return", run=run.hex, reason=str(error))
            raise
        by_present_keys = partial(is_promise, committed=committed, roster=self.roster())
        try:
            budget.give_back(
                charge.entry_hash, proof, time_utc=self._stamp(), checker=by_present_keys
            )
        except PlanError as error:
            # Who holds a key that was replaced may promise in its silo's name: the charge stays.
            self.log.warning("return-by-former-keys", run=run.hex, reason=str(error))
        except LedgerConflictError:  # another process appended: look again
            self._give_back(run, entry)

    def _copy(self, run: RunId) -> Ledger:
        if run not in self._copies:
            self._copies[run] = Ledger(FileLedgerStore(ledger_path(self.folder, run)))
        return self._copies[run]

    def _answer(
        self,
        run: RunId,
        *,
        entry_hash: str = "",
        signature: bytes = b"",
        code: str = "",
        reason: str = "",
    ) -> LedgerAnswer:
        ledger = self._copy(run)
        head = sign_head(ledger.head(), self.party).to_bytes() if ledger.entries else b""
        return LedgerAnswer(
            run=run,
            lines=len(ledger.entries),
            head=head,
            entry_hash=entry_hash,
            signature=signature,
            code=code,
            reason=reason[:1000],
        )

    def _stamp(self) -> str:
        return stamp(self.now())


def _place(parameters: RoundParameters) -> tuple[str, int, int]:
    return (parameters.run.hex, parameters.round, parameters.attempt)


def _key(parameters: RoundParameters) -> tuple[RunId, int, int]:
    return (parameters.run, parameters.round, parameters.attempt)


@contextmanager
def _refusing() -> Iterator[None]:
    """Whatever the ledgers refuse is a refusal of the round."""
    try:
        yield
    except PrivacyError as error:
        raise LedgerRefusedError(str(error)) from error

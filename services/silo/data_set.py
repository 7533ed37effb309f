"""A data set's budget: how it is opened, and what run ledgers prove against its ledger.

The ledger is a file. Restored from a backup, deleted, cut, moved or begun anew under another name,
it would forget what was spent. But the copies of run ledgers beside it, and the lines that
coordinators bring, name this silo among the survivors of releases. Each of those has a charge, here
or in another data set's ledger; if not, it is charged again, whether or not it still fits.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from dp.account import check_delta, intent_for
from dp.budget import Budget
from dp.canonical import Json, canonical_json
from dp.charges import ChargeBook
from dp.commitments import genesis_body
from dp.entries import Entry, Kind, check_signatures
from dp.errors import LedgerConflictError, LedgerIntegrityError, PlanError, PrivacyError
from dp.keyring import current_key
from dp.ledger import Ledger, LedgerKind
from dp.plan import PrivacyPlan
from services.config import DataSetBudget
from services.ledger.parties import Party
from services.ledger.run_book import plan_entry, plan_silos
from services.observe.logs import get_logger
from services.release import software_versions
from services.storage.ledger import FileLedgerStore

_RUNS: Final = "run-*.jsonl"
_HEADS: Final = ".heads"
_DATA_SETS: Final = "data-set-*.jsonl"


class _UnknownKeyError(LedgerIntegrityError):
    """A plan that was released has a signature in this silo's name by no key it has had."""


def data_set_path(folder: Path, data_set: str) -> Path:
    """Where a data set's ledger lies."""
    return folder / f"data-set-{data_set}.jsonl"


@dataclass(slots=True, kw_only=True)
class DataSet:
    """A data set's ledger and budget.

    Attributes:
        settings: what the silo's operator allows.
        copies: folder of run ledgers' copies; also of the ledger, unless the settings name another.
        party: signs as this silo.
        stamp: the time, as entries have it.
        ledger: the data set's.
        budget: what decides.
    """

    settings: DataSetBudget
    copies: Path
    party: Party
    stamp: Callable[[], str]
    ledger: Ledger = field(init=False)
    budget: Budget = field(init=False)
    _others: dict[str, Ledger] = field(init=False)

    def __post_init__(self) -> None:
        """Open it with the limits that the settings have now, and charge what it has lost.

        Raises:
            PlanError: the settings contradict what the ledger holds, or name a new data set beside
                ones that it is not declared disjoint from; or a run's copy holds a release with a
                signature of this silo by none of its known keys.
            LedgerIntegrityError: the ledger was changed, or is another silo's.
        """
        settings = self.settings
        check_delta(settings.delta, settings.persons)
        path = data_set_path(settings.ledgers or self.copies, settings.data_set)
        self._others = _other_data_sets(path, self.party.name)
        self.ledger = Ledger(FileLedgerStore(path))
        if self.ledger.entries:
            if current_key(self.ledger.entries, self.party.name) != self.party.key.public:
                raise PlanError(
                    f"{path.name} was written with another identity key of this silo; "
                    "`secagg ledger rotate` lets the present one go on"
                )
            self.ledger.verify({self.party.name: self.party.public_keys})
        else:
            self._begin()
        self.budget = Budget(self.ledger, self.party)
        account = settings.account()
        if self._is_new() or self.budget.account != account:
            self.budget.set(account, time_utc=self.stamp())
        for path in _run_ledgers(self.copies):
            try:
                self.recover(Ledger(FileLedgerStore(path)))
            except _UnknownKeyError as error:
                raise PlanError(
                    f"{path.name} names this silo in a release, signed with a key that it is not "
                    "known to have had: what was spent with that key would be forgotten. Restore "
                    "former-keys.json beside the keys, or put the signed rosters that list the "
                    "key into the folder `rosters` there"
                ) from error
            except (PrivacyError, KeyError, ValueError) as error:
                # One run's broken copy closes no budget; its coordinator brings the lines again.
                get_logger("silo").warning("run-ledger", file=path.name, reason=str(error))

    def follow(self, found: Entry) -> None:
        """Freeze a run's plan in this ledger, too, with the run's PLAN_COMMIT as all signed it."""
        signed = found.to_line().decode()
        self.commit({**found.body, "refers": found.entry_hash, "signed": signed}, found.run_id)

    def commit(self, body: Mapping[str, Json], run_id: str) -> None:
        """Freeze a plan for a run, unless that stands here already.

        Args:
            body: of PLAN_COMMIT.
            run_id: of the run or query that it is for, in hex.
        """
        while True:
            self.budget.refresh()
            if plan_entry(self.ledger, str(body.get("plan_digest")), run_id) is not None:
                return
            entry = self.ledger.draft(Kind.PLAN_COMMIT, body, time_utc=self.stamp(), run_id=run_id)
            with suppress(LedgerConflictError):  # another process was first: look again
                self.budget.append(entry.signed_by(self.party))

    def recover(self, run: Ledger) -> None:
        """Charge the releases that a run's ledger proves and no data set's ledger holds.

        It proves a release of a plan that this silo has signed, by as many of the plan's silos as
        the plan asks for: a coordinator by itself, or with n_c silos, can make up none.

        Raises:
            PrivacyError: the ledger is not in order.
        """
        self.budget.refresh()
        known = {(one.run_id, one.round, one.attempt) for one in self.budget.charges}
        for intent, release in _released(run, self.party.name):
            number, attempt = int(str(intent.body["round"])), int(str(intent.body["attempt"]))
            place = (intent.run_id, number, attempt)
            if place in known or any(place in _places(one) for one in self._others.values()):
                continue
            committed = plan_entry(run, str(intent.body.get("plan_digest")))
            if committed is None or not self._is_proven(committed, release):
                continue
            lost = intent_for(
                PrivacyPlan.from_bytes(canonical_json(committed.body.get("plan"))),
                run_id=intent.run_id,
                round_number=number,
                attempt=attempt,
                purpose=str(intent.body.get("purpose")),
                epsilon=self.budget.account.epsilon,
            )
            self.follow(committed)
            self.budget.charge(lost, time_utc=self.stamp(), is_past=True)

    def _is_proven(self, committed: Entry, release: Entry) -> bool:
        """Whether this silo signed the plan, and a threshold of its silos the release."""
        own = tuple(one for one in committed.sigs if one.signer == self.party.name)
        if not own:
            return False
        try:
            keys = {self.party.name: self.party.public_keys}
            check_signatures(replace(committed, sigs=own), keys)
        except LedgerIntegrityError as error:
            raise _UnknownKeyError(error.seq, error.reason) from error
        threshold = committed.body.get("threshold")
        signers = {one.signer for one in release.sigs} & plan_silos(committed)
        return isinstance(threshold, int) and len(signers) >= threshold

    def _is_new(self) -> bool:
        return all(one.kind is not Kind.BUDGET_SET for one in self.ledger.entries)

    def _begin(self) -> None:
        """Begin the ledger; a new name forgets nothing that an old one has spent."""
        name = self.settings.data_set
        shared = sorted(self._others.keys() - set(self.settings.disjoint_from))
        if shared:
            raise PlanError(
                f"data_set {name!r} is new here beside {', '.join(shared)}: a new name is no new "
                "budget. Keep the old name; if no person is in both, say disjoint_from"
            )
        body = genesis_body(
            LedgerKind.DATA_SET,
            writer=self.party.name,
            subject=name,
            keys={self.party.name: self.party.key.public},
            policy="",
            software=software_versions(),
        )
        first = self._append(Kind.GENESIS, body)
        if self._others:
            text = f"declared disjoint from {', '.join(sorted(self._others))}"
            self._append(Kind.CORRECTION, {"refers": first.entry_hash, "text": text})

    def _append(self, kind: Kind, body: dict[str, Json]) -> Entry:
        draft = self.ledger.draft(kind, body, time_utc=self.stamp())
        return self.ledger.append(draft.signed_by(self.party))


def _run_ledgers(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob(_RUNS)) if not path.stem.endswith(_HEADS)]


def _other_data_sets(own: Path, writer: str) -> dict[str, Ledger]:
    """The ledgers of this silo's other data sets beside its own, by name."""
    found = {}
    for path in sorted(own.parent.glob(_DATA_SETS)):
        ledger = Ledger(FileLedgerStore(path))
        if path != own and ledger.entries and ledger.entries[0].body.get("writer") == writer:
            found[str(ledger.entries[0].body.get("subject"))] = ledger
    return found


def _places(ledger: Ledger) -> set[tuple[str, int, int]]:
    """Run, round and attempt of what a data set's ledger has charged and not given back."""
    book = ChargeBook()
    ledger.refresh()
    for entry in ledger.entries:
        book.apply(entry)
    return {(one.run_id, one.round, one.attempt) for one in book.live}


def _released(run: Ledger, silo: str) -> Iterator[tuple[Entry, Entry]]:
    """INTENT and RELEASE of every round whose sum holds this silo's part."""
    entries = {one.entry_hash: one for one in run.entries}
    for entry in run.entries:
        survivors = entry.body.get("survivors")
        if entry.kind is not Kind.ROUND_RELEASE or not isinstance(survivors, list | tuple):
            continue
        intent = entries.get(str(entry.body.get("intent")))
        if silo in survivors and intent is not None:
            yield intent, entry

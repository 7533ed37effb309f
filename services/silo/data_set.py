"""A data set's budget: how it is opened, and what run ledgers prove against its ledger.

The ledger is a file. Restored from a backup, deleted, cut, moved or begun anew under another name,
it would forget what was spent. But the copies of run ledgers beside it, and the lines that
coordinators bring, name this silo among the survivors of releases. Each of those has a charge, here
or in another data set's ledger; if not, it is charged again, whether or not it still fits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from dp.account import check_delta, intent_for
from dp.budget import Budget
from dp.canonical import Json, canonical_json
from dp.charges import ChargeBook, ChargeState
from dp.commitments import genesis_body
from dp.entries import Entry, Kind, check_signatures
from dp.errors import (
    LedgerConflictError,
    LedgerIntegrityError,
    PlanError,
    PrivacyError,
    UnsupportedEventError,
)
from dp.keyring import Keyring, Keys, current_key
from dp.ledger import Ledger, LedgerKind
from dp.plan import PrivacyPlan
from secagg.ids import RunId
from services.config import DataSetBudget
from services.files import make_private_dir, write_atomic
from services.ledger.parties import COORDINATOR, Party
from services.ledger.run_book import ledger_path, plan_entry, plan_silos
from services.observe.logs import get_logger
from services.release import software_versions
from services.silo.said import PlanAnswer, Said
from services.storage.ledger import FileLedgerStore

_RUNS: Final = "run-*.jsonl"
_HEADS: Final = ".heads"
_DATA_SETS: Final = "data-set-*.jsonl"
# Of a run's lines with this silo's signature by an unknown key; beside the copies, and one of them.
_UNKNOWN: Final = ".unknown-key.jsonl"
_UNKNOWN_KEY: Final = (
    "it names this silo in a release, signed with a key that it is not known to have had: what was "
    "spent with that key would be forgotten. Restore former-keys.json beside the keys, or put the "
    "signed rosters that list the key into the folder `rosters` there"
)


class _UncountedError(LedgerIntegrityError):
    """What was spent by a run's ledger can be put into no data set's: none opens."""


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
        keys = {self.party.name: self.party.public_keys}
        if self.ledger.entries:
            written = current_key(self.ledger.entries, self.party.name)
            if written != self.party.key.public:
                if written in self.party.public_keys:
                    self.ledger.verify(keys)  # says so where a retired key took the ledger back
                raise PlanError(
                    f"{path.name} was written with another identity key of this silo; "
                    "`secagg ledger rotate` lets the present one go on"
                )
            self.ledger.verify(keys)
        if self._is_new():
            self._begin()
        self.budget = Budget(self.ledger, self.party)
        account = settings.account()
        if self._is_new() or self.budget.account != account:
            self.budget.set(account, time_utc=self.stamp())
        Said(self.copies)  # what cannot be read there opens no budget
        for path in _run_ledgers(self.copies):
            try:
                self.recover(Ledger(FileLedgerStore(path)))
            except _UncountedError as error:
                raise PlanError(f"{path.name}: {error.reason}") from error
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
        """Charge what a run's ledger proves and no data set's ledger holds.

        It proves a release of a plan that this silo has signed, by as many of the plan's silos as
        the plan asks for: a coordinator by itself, or with n_c silos, can make up none. Where this
        silo has forgotten what it did in the run, every attempt of a plan that it signed counts: it
        may have been opened, whatever the run says of it.

        Raises:
            PrivacyError: the ledger is not in order.
        """
        self.budget.refresh()
        states = {(one.run_id, one.round, one.attempt): one.state for one in self.budget.charges}
        for intent, release in _attempts(run.entries, self.party.name):
            place = (intent.run_id, *_numbers(intent))
            committed = plan_entry(run, str(intent.body.get("plan_digest")))
            if committed is None or committed.run_id != intent.run_id:
                continue
            if place in states:
                if release is not None and states[place] is ChargeState.RETURNED:
                    self._note_contradiction(committed, release)
                continue
            if self._is_charged_elsewhere(place, committed):
                continue
            if not (_is_proven(committed, release) or self.has_forgotten(committed)):
                continue
            if not self._has_signed(committed):
                continue
            try:
                self._charge_past(intent, committed)
            except (PlanError, UnsupportedEventError) as error:
                raise _UncountedError(
                    intent.seq,
                    "it names this silo in a release that cannot be charged to this data set: "
                    f"{error}. Restore the ledger of the data set that it was charged to",
                ) from error

    def _is_charged_elsewhere(self, place: tuple[str, int, int], committed: Entry) -> bool:
        """Whether another data set was charged that this silo did not answer the plan for."""
        answer = self._answer_to(committed)
        if answer is not None and answer.data_set == self.settings.data_set:
            return False  # the other found the run's lines beside it, no more
        return any(place in _places(one) for one in self._others.values())

    def _note_contradiction(self, committed: Entry, release: Entry) -> None:
        """A release of an attempt that came back: its signers or promisers have lied.

        As many promised as leave nothing to open, and this silo has checked that. So the run is
        over here, and the charge stays where the proof has put it.
        """
        if not _is_proven(committed, release):
            return
        said = f"entry {release.seq} releases an attempt that was proven dead"
        proof = (release.to_line(),)
        while True:
            with suppress(LedgerConflictError):  # another process of this silo wrote: look again
                run = RunId(bytes.fromhex(committed.run_id))
                Said(self.copies).note_broken(run, said, proof)
                return

    def _charge_past(self, intent: Entry, committed: Entry) -> None:
        number, attempt = _numbers(intent)
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
        get_logger("silo").warning(
            "charged-past",
            run=intent.run_id,
            round=number,
            attempt=attempt,
            spent=self.budget.spent(),
        )

    def has_forgotten(self, committed: Entry) -> bool:
        """Whether a run's attempts count here because nobody knows which of them this silo was in.

        A run of another data set is for that one's ledger.
        """
        answer = self._answer_to(committed)
        is_another_s = (
            answer is not None
            and answer.data_set != self.settings.data_set
            and answer.data_set in self._others
        )
        return not (is_another_s or self.remembers(committed))

    def remembers(self, committed: Entry) -> bool:
        """Whether this silo knows in which attempts of a run it took part, out of this data set.

        It does if it has answered this very plan, out of this very ledger: with its memory lost it
        could have answered another draft since.
        """
        answer = self._answer_to(committed)
        if answer is None:
            return False
        first = self.ledger.entries[0]
        if not answer.ledger:  # noted before the ledger was: it must be no younger than the answer
            begun = datetime.fromisoformat(first.time_utc)
            return not self._others and begun.timestamp() <= answer.at
        return answer.ledger == first.entry_hash

    def _answer_to(self, committed: Entry) -> PlanAnswer | None:
        answer = Said(self.copies).plan(committed.run_id)
        return answer if answer is not None and answer.draft == committed.entry_hash else None

    def _has_signed(self, committed: Entry) -> bool:
        """Whether this silo signed a plan.

        Raises:
            _UncountedError: somebody did in its name, with a key that it is not known to have had.
        """
        own = tuple(one for one in committed.sigs if one.signer == self.party.name)
        if not own:
            return False
        try:
            keys = {self.party.name: self.party.public_keys}
            check_signatures(replace(committed, sigs=own), keys)
        except LedgerIntegrityError as error:
            raise _UncountedError(committed.seq, _UNKNOWN_KEY) from error
        return True

    def _is_new(self) -> bool:
        return all(one.kind is not Kind.BUDGET_SET for one in self.ledger.entries)

    def _begin(self) -> None:
        """Begin the ledger; a new name forgets nothing that an old one has spent.

        A crash may have left its first entry alone, so that each step looks for itself.
        """
        name = self.settings.data_set
        shared = sorted(self._others.keys() - set(self.settings.disjoint_from))
        if shared:
            raise PlanError(
                f"data_set {name!r} is new here beside {', '.join(shared)}: a new name is no new "
                "budget. Keep the old name; if no person is in both, say disjoint_from"
            )
        if not self.ledger.entries:
            body = genesis_body(
                LedgerKind.DATA_SET,
                writer=self.party.name,
                subject=name,
                keys={self.party.name: self.party.key.public},
                policy="",
                software=software_versions(),
            )
            self._append(Kind.GENESIS, body)
        is_declared = any(one.kind is Kind.CORRECTION for one in self.ledger.entries)
        if self._others and not is_declared:
            text = f"declared disjoint from {', '.join(sorted(self._others))}"
            first = self.ledger.entries[0].entry_hash
            self._append(Kind.CORRECTION, {"refers": first, "text": text})

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


def _attempts(entries: Sequence[Entry], silo: str) -> Iterator[tuple[Entry, Entry | None]]:
    """Each INTENT, with its RELEASE if that names a silo among the survivors."""
    releases: dict[str, Entry] = {}
    for entry in entries:
        survivors = entry.body.get("survivors")
        if entry.kind is not Kind.ROUND_RELEASE or not isinstance(survivors, list | tuple):
            continue
        if silo in survivors:
            releases.setdefault(str(entry.body.get("intent")), entry)
    for entry in entries:
        if entry.kind is Kind.ROUND_INTENT:
            yield entry, releases.get(entry.entry_hash)


def _numbers(intent: Entry) -> tuple[int, int]:
    """Round and attempt."""
    return int(str(intent.body["round"])), int(str(intent.body["attempt"]))


def _is_proven(committed: Entry, release: Entry | None) -> bool:
    """Whether a threshold of a plan's silos signed a release."""
    threshold = committed.body.get("threshold")
    signers = set() if release is None else {one.signer for one in release.sigs}
    return isinstance(threshold, int) and len(signers & plan_silos(committed)) >= threshold


def keep_unknown(folder: Path, run: RunId, entries: Sequence[Entry]) -> None:
    """Keep a run's lines that name this silo by a key of its that nobody here knows.

    No budget opens beside them before the key is known; then they count.
    """
    path = ledger_path(make_private_dir(folder), run).with_suffix(_UNKNOWN)
    write_atomic(path, b"".join(one.to_line() + b"\n" for one in entries))


def names_unknown_key(entries: Sequence[Entry], keys: Keys, silo: str) -> bool:
    """Whether lines name a silo in a release of a plan, signed in its name by none of its keys.

    All other signatures fit, and as many others as the plan asks for, and one at least, signed the
    release: no coordinator shuts a budget alone.
    """
    stripped = [
        replace(entry, sigs=tuple(one for one in entry.sigs if one.signer != silo))
        for entry in entries
    ]
    try:
        keyring = Keyring(stripped, keys)
        signers = {entry.entry_hash: keyring.check(entry) for entry in stripped}
    except LedgerIntegrityError:
        return False
    if any(COORDINATOR not in names for names in signers.values()):
        return False
    plans = {
        str(one.body.get("plan_digest")): one for one in entries if one.kind is Kind.PLAN_COMMIT
    }
    for intent, release in _attempts(entries, silo):
        committed = plans.get(str(intent.body.get("plan_digest")))
        if committed is None or release is None or not _signs_unknown(committed, silo, keys):
            continue
        threshold = committed.body.get("threshold")
        others = signers[release.entry_hash] & plan_silos(committed)
        if isinstance(threshold, int) and len(others) >= max(threshold - 1, 1):
            return True
    return False


def _signs_unknown(committed: Entry, silo: str, keys: Keys) -> bool:
    own = tuple(one for one in committed.sigs if one.signer == silo)
    try:
        check_signatures(replace(committed, sigs=own), keys)
    except LedgerIntegrityError:
        return True
    return False

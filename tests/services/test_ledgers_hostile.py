"""Ledgers against an operator that forgets and a coordinator that lies: nothing is uncounted."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dp.canonical import Json
from dp.commitments import plan_commit_body
from dp.entries import Entry, Kind
from dp.errors import PlanError, PrivacyError
from dp.verify import verify_ledger
from fl.errors import BudgetExhaustedError, LedgerRefusedError
from secagg.ids import RunId
from services.ledger.messages import LedgerAnswer, LedgerNotice
from services.ledger.parties import COORDINATOR, Party, public_keys
from services.ledger.run_book import RunBook, ledger_path, plan_silos
from services.silo.data_set import data_set_path
from services.silo.ledger import SiloLedgers
from services.silo.said import FILE
from services.storage.ledger import FileLedgerStore
from tests.services.ledger_world import (
    FEDERATION,
    PLAN,
    ROSTER,
    TRAINING,
    Coordinator,
    round_parameters,
    silo,
)
from tests.services.private_run import NOW, budget


def released(coordinator: Coordinator, one: SiloLedgers, number: int) -> None:
    """A round from its charge to its release, with this silo among the survivors."""
    coordinator.charge(number, 0, one)
    parameters = round_parameters(number)
    one.check_round(parameters, TRAINING)
    one.charge(parameters, TRAINING)
    charge = coordinator.book.charge_of(number, 0)
    assert charge is not None
    names = [seat.silo.name for seat in ROSTER.seats][:3]
    draft = coordinator.book.draft_release(
        charge, survivors=names, threshold=3, transcript=parameters.ctx(), time_utc=NOW
    )
    parties = [Party(name, FEDERATION.identities[place]) for place, name in enumerate(names, 1)]
    signed_by_all = list(draft.signed_by(*parties).sigs)
    coordinator.book.append(draft, signed_by_all, public_keys(ROSTER))
    assert not one.receive(coordinator.notice()).code


class TestAHostileOperator:
    """A data protection officer's list: every way to make a data set forget what it has spent."""

    LIMIT = 2.9  # one release is 1.99, two are 2.94

    @pytest.fixture(autouse=True)
    def _spent(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "silo"
        self.coordinator = Coordinator(tmp_path / "run")
        self.one = self.opened()
        self.coordinator.commit(self.one)
        self.own = data_set_path(self.folder, "cohort")
        self.before = self.own.read_bytes()  # a backup, taken before the first round
        released(self.coordinator, self.one, 1)
        assert self.spent(self.one) == pytest.approx(1.9943, abs=1e-3)

    def opened(self, **changes: object) -> SiloLedgers:
        return silo(self.folder, settings=budget(**({"epsilon": self.LIMIT} | changes)))

    def spent(self, one: SiloLedgers) -> float:
        assert one.budget is not None
        return one.budget.spent()

    def refuses_the_second(self, one: SiloLedgers) -> None:
        self.coordinator.charge(2, 0, one)
        with pytest.raises(BudgetExhaustedError):
            one.check_round(round_parameters(2), TRAINING)

    def test_a_restart(self) -> None:
        """Spent epsilon is what it was, to the last digit."""
        again = self.opened()
        assert self.spent(again) == self.spent(self.one)
        self.refuses_the_second(again)

    @pytest.mark.parametrize("how", ["restored", "deleted", "cut", "torn"])
    def test_a_ledger_that_lost_its_last_charge(self, how: str) -> None:
        """The copy of the run's ledger names this silo among the survivors: charged again."""
        lines = self.own.read_bytes().splitlines(keepends=True)
        place = next(n for n, line in enumerate(lines) if b"ROUND_INTENT" in line)
        match how:
            case "restored":
                self.own.write_bytes(self.before)
            case "deleted":
                self.own.unlink()
            case "cut":
                self.own.write_bytes(b"".join(lines[:place]))
            case _:
                self.own.write_bytes(b"".join(lines[: place + 1])[:-1])
        again = self.opened()
        assert self.spent(again) == pytest.approx(1.9943, abs=1e-3)
        self.refuses_the_second(again)
        keys = public_keys(ROSTER)
        assert verify_ledger(FileLedgerStore(self.own).read(0), keys).ok

    def test_the_whole_folder_restored(self) -> None:
        """Nothing is left here; the coordinator brings the run's ledger, and with it the charge."""
        for path in self.folder.iterdir():
            path.unlink()
        again = self.opened()
        assert self.spent(again) == 0.0
        assert not again.receive(self.coordinator.notice()).code
        assert self.spent(again) == pytest.approx(1.9943, abs=1e-3)
        self.coordinator.charge(2, 0, again)
        with pytest.raises(LedgerRefusedError, match="takes no part in it any more"):
            again.check_round(round_parameters(2), TRAINING)
        other = Coordinator(self.folder.parent / "other", run=RunId(b"begun-afterwards"))
        draft = other.draft_plan()
        assert self.opened().receive(other.notice(draft=draft)).code == "BudgetExhaustedError"

    def test_what_was_released_counts_even_above_the_limit(self) -> None:
        """A limit that was lowered meanwhile: charged all the same, and the verifier objects."""
        self.own.unlink()
        again = self.opened(epsilon=1.0)
        assert self.spent(again) == pytest.approx(1.9943, abs=1e-3)
        found = verify_ledger(FileLedgerStore(self.own).read(0), public_keys(ROSTER)).findings
        assert any("its limit is" in one.text for one in found.items)

    def test_another_name(self) -> None:
        """No new budget; unless the operator signs that nobody is in both."""
        renamed = self.opened(data_set="cohort-2027")
        with pytest.raises(PlanError, match="no new"):
            assert renamed.budget
        other = self.opened(data_set="cohort-2027", disjoint_from=["cohort"])
        assert self.spent(other) == 0.0  # the release is charged where it belongs
        ledger = data_set_path(self.folder, "cohort-2027").read_text(encoding="utf-8")
        assert "declared disjoint from cohort" in ledger

    def test_another_folder(self, tmp_path: Path) -> None:
        """The copies of run ledgers stay with the silo, and tell."""
        moved = self.opened(ledgers=str(tmp_path / "elsewhere"))
        assert self.spent(moved) == pytest.approx(1.9943, abs=1e-3)

    def test_a_clock_set_back(self) -> None:
        """Last year's allowance is not opened again; entries go on at the last one's time."""
        one = self.opened(epsilon=9.0, year_epsilon=2.0)
        one.now = lambda: datetime(2025, 1, 1, tzinfo=UTC)
        self.coordinator.charge(2, 0, one)
        with pytest.raises(BudgetExhaustedError, match="year"):
            one.check_round(round_parameters(2), TRAINING)
        times = [Entry.from_line(line).time_utc for line in FileLedgerStore(self.own).read(0)]
        assert times == sorted(times)

    def test_an_edited_ledger(self) -> None:
        """Charges without the silo's signature, or with a flipped byte, open nothing."""
        text = self.own.read_bytes()
        for place in range(0, len(text), 211):
            broken = bytearray(text)
            broken[place] ^= 1
            self.own.write_bytes(broken)
            with pytest.raises(PrivacyError):
                assert self.opened().budget
        self.own.write_bytes(text)
        lines = [Entry.from_line(line) for line in text.splitlines()]
        forger = Party(self.one.party.name, FEDERATION.identities[2])
        forged = [replace(one, sigs=()).signed_by(forger).to_line() for one in lines]
        self.own.write_bytes(b"".join(line + b"\n" for line in forged))
        with pytest.raises(PrivacyError):
            assert self.opened().budget

    @pytest.mark.parametrize(
        ("survivors", "threshold", "is_mine"),
        [(2, 3, True), (3, 2, True), (3, 3, False)],
        ids=["too few", "a lower threshold", "another transcript"],
    )
    def test_a_coordinator_that_lies_about_a_release(
        self, survivors: int, threshold: int, is_mine: bool
    ) -> None:
        """The silo signs what the plan's floor and its own view of the round allow."""
        one = self.opened(epsilon=9.0)
        self.coordinator.charge(2, 0, one)
        one.check_round(round_parameters(2), TRAINING)
        one.charge(round_parameters(2), TRAINING)
        charge = self.coordinator.book.charge_of(2, 0)
        assert charge is not None
        transcript = round_parameters(2).ctx() if is_mine else b"\x01" * 32
        draft = self.coordinator.book.draft_release(
            charge,
            survivors=[seat.silo.name for seat in ROSTER.seats][:survivors],
            threshold=threshold,
            transcript=transcript,
            time_utc=NOW,
        )
        answer = one.receive(self.coordinator.notice(draft=draft))
        assert not answer.signature
        assert "ROUND_RELEASE" in answer.reason


class TestAHostileCoordinator:
    """Lines that would spend a silo's budget, or close it, without a release."""

    @pytest.fixture(autouse=True)
    def _begun(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "silo"
        self.one = silo(self.folder)
        self.coordinator = Coordinator(tmp_path / "run")
        self.writer = Party(COORDINATOR, FEDERATION.coordinator)

    def told(self, *entries: Entry) -> LedgerAnswer:
        """The silo's answer to such lines, and that its budget opens again, unspent."""
        lines = (*self.coordinator.book.lines(0), *(one.to_line() for one in entries))
        run = self.coordinator.parameters.run
        answer = self.one.receive(LedgerNotice(run=run, first=0, lines=lines))
        again = silo(self.folder)
        assert again.budget is not None
        assert again.budget.spent() == 0.0
        return answer

    def drafted(self, kind: Kind, body: dict[str, object], *signers: Party) -> Entry:
        """An entry after the coordinator's last."""
        ledger = self.coordinator.book.ledger
        run = self.coordinator.parameters.run.hex
        draft = ledger.draft(kind, body, time_utc=NOW, run_id=run)  # type: ignore[arg-type] # any JSON
        return draft.signed_by(self.writer, *signers)

    def test_a_ledger_of_another_kind(self) -> None:
        """Of a data set's kind, the writer alone would sign releases."""
        first = Entry.from_line(self.coordinator.book.lines(0)[0])
        forged = replace(first, body={**first.body, "ledger": "data_set"}, sigs=())
        line = forged.signed_by(self.writer).to_line()
        run = self.coordinator.parameters.run
        answer = self.one.receive(LedgerNotice(run=run, first=0, lines=(line,)))
        assert answer.code == "LedgerIntegrityError"
        assert not FileLedgerStore(ledger_path(self.folder, run)).read(0)

    @pytest.mark.parametrize(
        "change", [{"plan_digest": "0" * 64}, {"round": None}, {"attempt": "1"}], ids=str
    )
    def test_a_charge_of_nothing(self, change: dict[str, object]) -> None:
        """Refused before it is kept: it would stand in every later opening's way."""
        self.coordinator.commit()
        body = {"plan_digest": PLAN.digest.hex(), "round": 1, "attempt": 0, **change}
        assert self.told(self.drafted(Kind.ROUND_INTENT, body)).code == "LedgerIntegrityError"

    def test_a_release_of_a_plan_that_this_silo_never_signed(self) -> None:
        """A run of the coordinator and others: what they sign charges nobody else."""
        ledger = self.coordinator.book.ledger
        others = [Party(ROSTER.seat(n).silo.name, FEDERATION.identities[n]) for n in (2, 3, 4)]
        names = [self.one.party.name, *(one.name for one in others)]
        body = plan_commit_body(PLAN, silos=names[1:], threshold=3, floor=3, manifest="0" * 64)
        ledger.append(self.drafted(Kind.PLAN_COMMIT, dict(body), *others))
        self.coordinator.book.charge(1, 0, time_utc=NOW)
        charge = self.coordinator.book.charge_of(1, 0)
        assert charge is not None
        draft = self.coordinator.book.draft_release(
            charge, survivors=names, threshold=3, transcript=b"t" * 32, time_utc=NOW
        )
        assert not self.told(draft.signed_by(*others)).code

    def test_a_plan_that_colluders_could_release_alone(self) -> None:
        """A threshold that n_c silos reach, or a floor below the honest shares."""
        honest = self.coordinator.draft_plan()
        changes: list[dict[str, Json]] = [
            {"threshold": 1}, {"threshold": 4}, {"floor": 2}, {"n_c": 0}, {"n_c": None},
            {"n_c": 3, "threshold": 4}, {"silos": ["silo-9"]},
        ]  # fmt: skip
        for change in changes:
            forged = replace(honest, body={**honest.body, **change}, sigs=())
            draft = forged.signed_by(self.writer)
            answer = self.one.receive(self.coordinator.notice(draft=draft))
            assert not answer.signature
            assert "PLAN_COMMIT" in answer.reason

    def test_names_that_are_none(self) -> None:
        """Whatever stands between the silos of a plan, nobody signs by it, and nothing crashes."""
        honest = self.coordinator.draft_plan()
        strange: list[tuple[Json, set[str]]] = [
            (["silo-1", {"a": 1}, [], 3], {"silo-1"}), ("silo-1", set()), (None, set()),
        ]  # fmt: skip
        for silos, found in strange:
            assert plan_silos(replace(honest, body={**honest.body, "silos": silos})) == found

    def test_a_broken_copy_closes_no_budget(self) -> None:
        """Of one run, on disk: skipped; the coordinator brings the lines again."""
        path = self.folder / "run-00.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no entry\n")
        again = silo(self.folder)
        assert again.budget is not None

    def test_a_second_commitment(self) -> None:
        """Of the same plan, to whom it likes: not signed, whatever it says."""
        self.coordinator.commit(self.one)
        draft = self.coordinator.draft_plan()
        answer = self.one.receive(self.coordinator.notice(draft=draft))
        assert not answer.signature
        assert "before" in answer.reason


class TestWhatASiloHasSaid:
    """One answer to a run's plan, and no forgotten proof."""

    @pytest.fixture(autouse=True)
    def _set_up(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "silo"
        self.tmp = tmp_path

    @pytest.mark.parametrize("restarted", [False, True])
    def test_two_sets_of_signers_of_one_plan(self, restarted: bool) -> None:
        """The same draft is signed again, another one never, whether it was appended or not."""
        coordinator, mine = Coordinator(self.tmp / "run"), silo(self.folder)
        draft = coordinator.draft_plan()
        first = mine.receive(coordinator.notice(draft=draft))
        assert first.signature
        if restarted:
            mine = silo(self.folder)
        coordinator.names = coordinator.names[:4]
        other = mine.receive(coordinator.notice(draft=coordinator.draft_plan()))
        assert not other.signature
        assert "another draft" in other.reason
        assert mine.receive(coordinator.notice(draft=draft)).signature == first.signature
        coordinator.charge(1, 0)  # what is refused is the draft, not the run

    def test_what_is_left_cannot_be_found_by_asking(self) -> None:
        """Drafts of ever other plans in one run get one answer, the same after a restart."""
        coordinator = Coordinator(self.tmp / "run")
        first = coordinator.draft_plan()
        poor = silo(self.folder, settings=budget(epsilon=1))
        refused = poor.receive(coordinator.notice(draft=first))
        assert refused.code == BudgetExhaustedError.__name__
        rich = silo(self.folder)  # the limit was raised: the answer stays
        again = rich.receive(coordinator.notice(draft=first))
        assert (again.code, again.reason) == (refused.code, refused.reason)
        for z in (1.5, 3.0, 30.0):
            plan = replace(PLAN, z=z, allow_low_utility=True)
            asked = Coordinator(self.tmp / f"run{z}", plan)
            body = plan_commit_body(plan, silos=asked.names, **asked.terms, manifest="")
            draft = coordinator.book.ledger.draft(
                Kind.PLAN_COMMIT, body, time_utc=NOW, run_id=coordinator.parameters.run.hex
            ).signed_by(Party(COORDINATOR, FEDERATION.coordinator))
            answer = rich.receive(coordinator.notice(draft=draft))
            assert answer.code == "PlanError"
            assert "another draft" in answer.reason

    def test_nor_by_asking_for_ever_other_runs(self) -> None:
        """Eight that cost nothing; what was charged is not counted, nor what was long ago."""
        mine = silo(self.folder)
        paid = Coordinator(self.tmp / "paid")
        paid.commit(mine)
        paid.charge(1, 0, mine)
        mine.check_round(round_parameters(), TRAINING)
        mine.charge(round_parameters(), TRAINING)
        answers = []
        for number in range(10):
            other = Coordinator(self.tmp / str(number), run=RunId(number.to_bytes(16)))
            answers.append(mine.receive(other.notice(draft=other.draft_plan())))
        assert [bool(one.signature) for one in answers] == [True] * 8 + [False] * 2
        assert "8 runs within 7 days" in answers[-1].reason
        mine.now = lambda: datetime(2026, 12, 8, 12, tzinfo=UTC)
        last = Coordinator(self.tmp / "9", run=RunId((9).to_bytes(16)))
        assert mine.receive(last.notice(draft=last.draft_plan())).signature

    def test_two_histories_are_remembered_with_their_proof(self) -> None:
        """After a restart the run stays refused; both signed entries are on the disk."""
        coordinator, mine = Coordinator(self.tmp / "run"), silo(self.folder)
        coordinator.commit(mine)
        coordinator.charge(1, 0, mine)
        run = coordinator.parameters.run
        store = FileLedgerStore(ledger_path(self.tmp / "fork", run))
        for place, line in enumerate(coordinator.book.lines(0)[:-1]):
            store.append(line, expected_lines=place)
        writer = Party(COORDINATOR, FEDERATION.coordinator)
        forked = RunBook(self.tmp / "fork", run, writer, PLAN)
        forked.charge(1, 7, time_utc=NOW)
        notice = LedgerNotice(run=run, first=0, lines=tuple(forked.lines(0)))
        for _ in range(2):
            assert mine.receive(notice).code == "EquivocationError"
        with pytest.raises(LedgerRefusedError, match="two histories"):
            silo(self.folder).check_round(round_parameters(), TRAINING)
        kept = [json.loads(one) for one in FileLedgerStore(self.folder / FILE).read(0)]
        (proof,) = [one["entries"] for one in kept if one["kind"] == "two-histories"]
        wanted = [coordinator.book.lines(0)[-1], forked.lines(0)[-1]]
        assert [one.encode() for one in proof] == wanted

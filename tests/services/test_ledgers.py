"""Ledgers between coordinator and silos: what is charged, signed, given back and refused."""

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from dp.account import intent_for
from dp.canonical import Json
from dp.charges import Proof, ProofKind, Statement, StatementChecker
from dp.commitments import plan_commit_body
from dp.entries import Entry, Kind, Signature
from dp.errors import BudgetExceededError, LedgerIntegrityError, PlanError, PrivacyError
from dp.events import GaussianEvent
from dp.filters import Filter, FilterKind
from dp.keyring import accepted_message
from dp.ledger import Ledger, LedgerStore, SignedHead
from dp.ledger_testing import LedgerStoreContract
from dp.plan import Mode, PrivacyPlan
from dp.trust import plan_epsilon
from dp.verify import verify_ledger
from fl.errors import BudgetExhaustedError, LedgerRefusedError
from fl.plan import TrainingPlan
from fl.privacy import as_settings
from secagg.ids import RunId
from secagg.messages import Abandon, signed
from secagg.parameters import MODE_SEMI_HONEST
from secagg.roster import Roster
from secagg.testing import make_federation
from services.config import DataSetBudget
from services.ledger.messages import LedgerAnswer, LedgerNotice, is_ledger
from services.ledger.parties import COORDINATOR, Party, public_keys
from services.ledger.proofs import gather, is_promise, read_proof
from services.ledger.run_book import RunBook, ledger_path, run_account
from services.silo.data_set import data_set_path
from services.silo.ledger import SiloLedgers
from services.silo.said import FILE
from services.storage.ledger import FileLedgerStore
from tests.services.private_run import NOW, PrivateRun, budget

SILOS = 5
SHARED = PrivateRun(silos=SILOS, seed=3, rounds=4)
FEDERATION, ROSTER, PLAN, TRAINING = SHARED.federation, SHARED.roster, SHARED.plan, SHARED.training
round_parameters = SHARED.parameters


def silo(folder: Path, seat: int = 1, settings: DataSetBudget | None = None) -> SiloLedgers:
    """A silo's ledgers; another call is another process on the same folder."""
    return SHARED.silo(folder, seat, settings or budget())


class Coordinator:
    """The run's ledger with everybody's signatures, without a network."""

    def __init__(self, folder: Path, plan: PrivacyPlan = PLAN, run: RunId | None = None) -> None:
        self.parameters = round_parameters()
        if run is not None:
            self.parameters = replace(self.parameters, run=run)
        self.names = [seat.silo.name for seat in ROSTER.seats]
        self.terms = {"n_c": 1, "threshold": 3, "floor": 3}
        self.book = RunBook(
            folder, self.parameters.run, Party(COORDINATOR, FEDERATION.coordinator), plan
        )
        self.book.begin(
            keys=public_keys(ROSTER),
            account=run_account(plan, "a run"),
            software={},
            policy="",
            time_utc=NOW,
        )

    def draft_plan(self) -> Entry:
        return self.book.draft_plan(
            silos=self.names,
            **self.terms,
            manifest=b"manifest",
            time_utc=NOW,
        )

    def notice(
        self, *, first: int = 0, draft: Entry | None = None, heads: tuple[bytes, ...] = ()
    ) -> LedgerNotice:
        return LedgerNotice(
            run=self.parameters.run,
            first=first,
            lines=tuple(self.book.lines(first)),
            heads=heads,
            draft=b"" if draft is None else draft.to_line(),
        )

    def commit(self, *silos: SiloLedgers) -> None:
        """All sign the plan; whoever is not here signs blindly."""
        draft = self.draft_plan()
        known = {one.party.name: one for one in silos}
        signatures = []
        for seat in ROSTER.seats:
            name = seat.silo.name
            if name not in self.names:
                continue
            if name in known:
                answer = known[name].receive(self.notice(draft=draft))
                assert answer.entry_hash == draft.entry_hash, answer.reason
                signatures.append(Signature(signer=name, sig=answer.signature.hex()))
            else:
                party = Party(name, FEDERATION.identities[seat.index])
                signatures += [one for one in draft.signed_by(party).sigs if one.signer == name]
        self.book.append(draft, signatures, public_keys(ROSTER))

    def charge(self, number: int, attempt: int, *silos: SiloLedgers) -> None:
        self.book.charge(number, attempt, time_utc=NOW)
        for one in silos:
            assert not one.receive(self.notice()).code


class TestFileLedgerStore(LedgerStoreContract):
    """The contract, on files."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "ledgers" / "one.jsonl"

    def opened(self) -> LedgerStore:
        return FileLedgerStore(self.path)

    def test_a_torn_line_is_as_if_it_had_never_been(self) -> None:
        """A crash in the middle of a write: the next append takes its place."""
        store = FileLedgerStore(self.path)
        store.append(b"one", expected_lines=0)
        with self.path.open("ab") as stream:
            stream.write(b"tw")
        assert list(store.read(0)) == [b"one"]
        store.append(b"two", expected_lines=1)
        assert self.path.read_bytes() == b"one\ntwo\n"
        assert self.path.stat().st_mode & 0o077 == 0


def test_a_round_is_charged_before_it_is_trained_and_once(tmp_path: Path) -> None:
    """check, charge, charge again; another process of the silo sees the same."""
    coordinator, mine = Coordinator(tmp_path / "run"), silo(tmp_path / "silo")
    coordinator.commit(mine)
    with pytest.raises(LedgerRefusedError, match="no charge of this attempt"):
        mine.check_round(round_parameters(), TRAINING)
    coordinator.charge(1, 0, mine)
    mine.check_round(round_parameters(), TRAINING)
    mine.charge(round_parameters(), TRAINING)
    mine.charge(round_parameters(), TRAINING)
    again = silo(tmp_path / "silo")
    budget = again.budget
    assert budget is not None
    assert [charge.round for charge in budget.charges] == [1]
    assert budget.spent() == pytest.approx(1.9943, abs=1e-3)


def test_two_runs_at_once_cannot_overspend(tmp_path: Path) -> None:
    """Two processes on one data set: of two charges that fit only alone, one is refused."""
    coordinator = Coordinator(tmp_path / "run")
    both = [silo(tmp_path / "silo", settings=budget(epsilon=2.5)) for _ in range(2)]
    for one in both:
        assert one.budget is not None
    coordinator.commit(both[0])
    coordinator.charge(1, 0, both[0])
    coordinator.charge(2, 0, both[0])
    both[1].receive(coordinator.notice())
    outcomes: dict[int, str] = {}

    def spend(one: SiloLedgers, number: int) -> None:
        try:
            one.charge(round_parameters(number), TRAINING)
            outcomes[number] = "charged"
        except BudgetExhaustedError:
            outcomes[number] = "refused"

    threads = [
        threading.Thread(target=spend, args=(one, place)) for place, one in enumerate(both, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes.values()) == ["charged", "refused"]
    refused = next(number for number, outcome in outcomes.items() if outcome == "refused")
    with pytest.raises(BudgetExhaustedError, match="epsilon"):
        both[0].check_round(round_parameters(refused), TRAINING)


def test_a_silo_without_a_budget_refuses_a_plan_and_the_other_way_round(tmp_path: Path) -> None:
    """Neither is charged to anything."""
    nobody = silo(tmp_path / "a")
    nobody.budget_settings = None
    with pytest.raises(LedgerRefusedError, match=r"\[privacy\]"):
        nobody.check_round(round_parameters(), TRAINING)
    plain = TrainingPlan(
        task=TRAINING.task, local=TRAINING.local, rounds=1, max_silos=SILOS, metrics=False
    )
    with pytest.raises(LedgerRefusedError, match="no privacy plan"):
        silo(tmp_path / "b").check_round(round_parameters(), plain)


def test_a_plan_that_no_round_fits_is_not_signed(tmp_path: Path) -> None:
    """The refusal comes with the code that ends the run as exhausted."""
    coordinator, mine = Coordinator(tmp_path / "run"), silo(tmp_path / "s", 1, budget(epsilon=1))
    answer = mine.receive(coordinator.notice(draft=coordinator.draft_plan()))
    assert answer.code == BudgetExhaustedError.__name__
    assert not answer.signature
    assert not any(letter.isdigit() for letter in answer.reason), "its figures stay here"


def test_a_release_is_signed_by_who_charged_it(tmp_path: Path) -> None:
    """A survivor that charged the round signs; one that did not refuses."""
    coordinator = Coordinator(tmp_path / "run")
    one, two = silo(tmp_path / "1", 1), silo(tmp_path / "2", 2)
    coordinator.commit(one, two)
    coordinator.charge(1, 0, one, two)
    one.check_round(round_parameters(), TRAINING)
    one.charge(round_parameters(), TRAINING)
    charge = coordinator.book.charge_of(1, 0)
    assert charge is not None
    names = [seat.silo.name for seat in ROSTER.seats][:3]
    draft = coordinator.book.draft_release(
        charge,
        survivors=names,
        threshold=3,
        transcript=round_parameters().ctx(),
        time_utc=NOW,
    )
    assert one.receive(coordinator.notice(draft=draft)).entry_hash == draft.entry_hash
    refused = two.receive(coordinator.notice(draft=draft))
    assert not refused.entry_hash
    assert "charged no such round" in refused.reason


def test_another_history_is_found_and_ends_the_run_here(tmp_path: Path) -> None:
    """Two entries at one place, both signed by the coordinator: equivocation, by name."""
    coordinator, mine = Coordinator(tmp_path / "run"), silo(tmp_path / "silo")
    coordinator.commit(mine)
    coordinator.charge(1, 0, mine)
    other = Coordinator(tmp_path / "other")
    answer = mine.receive(other.notice())
    assert answer.code == "EquivocationError" or "GENESIS" in answer.reason or not answer.code
    forked = RunBook(
        tmp_path / "fork",
        coordinator.parameters.run,
        Party(COORDINATOR, FEDERATION.coordinator),
        PLAN,
    )
    for line in coordinator.book.lines(0)[:-1]:
        entry = Entry.from_line(line)
        forked.store.append(line, expected_lines=entry.seq)
    forked = RunBook(
        tmp_path / "fork",
        coordinator.parameters.run,
        Party(COORDINATOR, FEDERATION.coordinator),
        PLAN,
    )
    forked.charge(1, 7, time_utc=NOW)
    notice = LedgerNotice(run=coordinator.parameters.run, first=0, lines=tuple(forked.lines(0)))
    answer = mine.receive(notice)
    assert answer.code == "EquivocationError"
    with pytest.raises(LedgerRefusedError, match="ledger"):
        mine.check_round(round_parameters(), TRAINING)


def test_a_truncated_ledger_is_found_by_a_peer_s_head(tmp_path: Path) -> None:
    """A head beyond the end: the ledger was cut."""
    coordinator = Coordinator(tmp_path / "run")
    one, two = silo(tmp_path / "1", 1), silo(tmp_path / "2", 2)
    coordinator.commit(one, two)
    coordinator.charge(1, 0, one)
    head = one.receive(coordinator.notice()).head
    cut = LedgerNotice(
        run=coordinator.parameters.run,
        first=0,
        lines=tuple(coordinator.book.lines(0)[:-1]),
        heads=(head,),
    )
    answer = two.receive(cut)
    assert answer.code == "LedgerIntegrityError"
    assert "cut" in answer.reason
    assert SignedHead.from_bytes(head).head.seq == 3


def test_a_changed_line_is_refused(tmp_path: Path) -> None:
    """Any flipped byte of what the coordinator brings."""
    coordinator, mine = Coordinator(tmp_path / "run"), silo(tmp_path / "silo")
    lines = coordinator.book.lines(0)
    for place in range(0, len(lines[1]), 37):
        broken = bytearray(lines[1])
        broken[place] ^= 1
        notice = LedgerNotice(
            run=coordinator.parameters.run, first=0, lines=(lines[0], bytes(broken))
        )
        assert mine.receive(notice).code
    assert not silo(tmp_path / "fresh").receive(coordinator.notice()).code


def abandons(seats: range, number: int = 1, attempt: int = 0) -> list[Abandon]:
    """Promises of these silos."""
    where = round_parameters(number, attempt).attempt_id
    return [
        signed(
            Abandon(
                federation=ROSTER.federation,
                run=where.run,
                round=where.round,
                attempt=where.attempt,
                seat=seat,
            ),
            FEDERATION.identities[seat],
        )
        for seat in seats
    ]


def promised(
    coordinator: Coordinator, promises: Sequence[Abandon], number: int = 1, attempt: int = 0
) -> Proof | None:
    """What the coordinator makes of promises."""
    charge = coordinator.book.charge_of(number, attempt)
    assert charge is not None
    quorum = coordinator.book.quorum(charge)
    assert (len(quorum.members), quorum.needed) == (5, 4)
    return gather(promises, round_parameters(number, attempt).attempt_id, ROSTER, quorum)


def give_back(coordinator: Coordinator, proof: Proof | None, checker: StatementChecker) -> None:
    """End the first attempt at the coordinator."""
    charge = coordinator.book.charge_of(1, 0)
    assert charge is not None
    coordinator.book.end(charge, reason="x", proof=proof, checker=checker, time_utc=NOW)


def convinced(*_: object) -> bool:
    """A checker of a coordinator that lies to itself."""
    return True


def charged(folder: Path, *, attempts: int = 1) -> tuple[Coordinator, SiloLedgers]:
    """A round that is charged on both sides."""
    coordinator, mine = Coordinator(folder / "run"), silo(folder / "silo")
    coordinator.commit(mine)
    for attempt in range(attempts):
        coordinator.charge(1, attempt, mine)
        mine.check_round(round_parameters(1, attempt), TRAINING)
        mine.charge(round_parameters(1, attempt), TRAINING)
    return coordinator, mine


def spent(one: SiloLedgers) -> float:
    """By the data set's ledger."""
    assert one.budget is not None
    return one.budget.spent()


@pytest.mark.parametrize("restarted", [False, True], ids=["", "after a restart of the silo"])
def test_a_charge_comes_back_only_with_enough_promises(tmp_path: Path, restarted: bool) -> None:
    """DRP: the attempt's quorum gives it back, at the coordinator and at the silo."""
    coordinator, mine = charged(tmp_path)
    assert promised(coordinator, abandons(range(1, 4))) is None
    assert promised(coordinator, [*abandons(range(1, 4)), *abandons(range(1, 6), 2)]) is None
    proof = promised(coordinator, abandons(range(1, 5)))
    assert proof is not None
    assert read_proof(proof.to_json()) == proof
    committed = coordinator.book.committed
    assert committed is not None
    give_back(coordinator, proof, partial(is_promise, committed=committed, roster=ROSTER))
    assert coordinator.book.spent == 0.0
    mine = silo(tmp_path / "silo") if restarted else mine
    assert not mine.receive(coordinator.notice()).code
    assert spent(mine) == 0.0
    keys = public_keys(ROSTER)
    assert verify_ledger(coordinator.book.lines(0), keys).findings.items == []
    own = FileLedgerStore(data_set_path(tmp_path / "silo", "cohort")).read(0)
    assert verify_ledger(own, keys).findings.items == []


def test_a_second_run_of_the_same_plan_is_committed_to_as_well(tmp_path: Path) -> None:
    """Its charge comes back by its own silos' promises; the first run's is not touched."""
    first, mine = charged(tmp_path)
    second = Coordinator(tmp_path / "second", run=RunId(b"the-second-runXX"))
    second.commit(mine)
    second.charge(1, 0, mine)
    parameters = replace(round_parameters(), run=second.parameters.run)
    mine.check_round(parameters, TRAINING)
    mine.charge(parameters, TRAINING)
    both = spent(mine)
    promises = [
        signed(replace(one, run=second.parameters.run), FEDERATION.identities[one.seat])
        for one in abandons(range(1, 5))
    ]
    charge, committed = second.book.charge_of(1, 0), second.book.committed
    assert charge is not None
    assert committed is not None
    quorum = second.book.quorum(charge)
    proof = gather(promises, parameters.attempt_id, ROSTER, quorum)
    give_back(second, proof, partial(is_promise, committed=committed, roster=ROSTER))
    assert not mine.receive(second.notice()).code
    assert 0.0 < spent(mine) < both
    own = FileLedgerStore(data_set_path(tmp_path / "silo", "cohort")).read(0)
    assert [Entry.from_line(one).kind for one in own].count(Kind.PLAN_COMMIT) == 2
    assert verify_ledger(own, public_keys(ROSTER)).findings.items == []
    assert first.book.spent > 1.0


class TestAChargeThatShouldNotComeBack:
    """Whatever the coordinator puts into its ledger: the silo's charge stays, the verifier sees."""

    def stays(self, folder: Path, proof: Proof, roster: Roster = ROSTER) -> None:
        """The coordinator writes it down; silo and auditor are not convinced."""
        coordinator, mine = charged(folder)
        before = spent(mine)
        committed = coordinator.book.committed
        assert committed is not None
        checker = partial(is_promise, committed=committed, roster=roster)
        with pytest.raises(PlanError, match="genuine promises"):
            give_back(coordinator, proof, checker)
        charge = coordinator.book.charge_of(1, 0)
        assert charge is not None
        body: dict[str, Json] = {
            "intent": charge.entry_hash, "returned": True, "proof": proof.to_json(),
        }  # fmt: skip
        ledger, writer = coordinator.book.ledger, Party(COORDINATOR, FEDERATION.coordinator)
        draft = ledger.draft(Kind.ROUND_ABORT, body, time_utc=NOW, run_id=charge.run_id)
        ledger.append(draft.signed_by(writer))
        mine.roster = lambda: roster
        assert mine.receive(coordinator.notice()).code == "PlanError"
        assert spent(mine) == before
        with pytest.raises(LedgerRefusedError, match="genuine promises"):
            mine.check_round(round_parameters(), TRAINING)
        found = verify_ledger(coordinator.book.lines(0), public_keys(ROSTER)).findings.items
        assert any("genuine promises, expected 4 of 5" in one.text for one in found)

    def proof(self, promises: Sequence[Abandon]) -> Proof:
        """These statements, as a proof."""
        statements = tuple(
            Statement(
                signer=ROSTER.seat(one.seat).silo.name,
                message=one.signed_bytes(),
                signature=one.signature,
            )
            for one in promises
        )
        return Proof(kind=ProofKind.ABANDON, statements=statements)

    def test_too_few_promises(self, tmp_path: Path) -> None:
        """Three of five, where one may lie: two others and the liar are t."""
        self.stays(tmp_path, self.proof(abandons(range(1, 4))))

    @pytest.mark.parametrize(("number", "attempt"), [(2, 0), (1, 1)])
    def test_promises_of_another_attempt(self, tmp_path: Path, number: int, attempt: int) -> None:
        """Of all silos."""
        self.stays(tmp_path, self.proof(abandons(range(1, 6), number, attempt)))

    def test_promises_of_another_run(self, tmp_path: Path) -> None:
        """Genuine, and about something else."""
        other = RunId(b"another-run-here")
        mine = [replace(one, run=other) for one in abandons(range(1, 6))]
        self.stays(tmp_path, self.proof([signed(m, FEDERATION.identities[m.seat]) for m in mine]))

    def test_promises_that_one_silo_signed_for_all(self, tmp_path: Path) -> None:
        """Sybils: every statement by the same key."""
        forged = [signed(one, FEDERATION.identities[5]) for one in abandons(range(1, 6))]
        self.stays(tmp_path, self.proof(forged))

    def test_a_silo_that_speaks_for_another_seat(self, tmp_path: Path) -> None:
        """Its own key and name, another's seat."""
        mine = [replace(one, seat=one.seat % SILOS + 1) for one in abandons(range(1, 6))]
        forged = [signed(one, FEDERATION.identities[(one.seat + 3) % SILOS + 1]) for one in mine]
        names = [ROSTER.seat((one.seat + 3) % SILOS + 1).silo.name for one in forged]
        statements = tuple(
            Statement(signer=name, message=one.signed_bytes(), signature=one.signature)
            for name, one in zip(names, forged, strict=True)
        )
        coordinator, _ = charged(tmp_path)
        proof = Proof(kind=ProofKind.ABANDON, statements=statements)
        committed = coordinator.book.committed
        assert committed is not None
        with pytest.raises(PlanError, match="got 0"):
            give_back(coordinator, proof, partial(is_promise, committed=committed, roster=ROSTER))

    def test_who_took_a_name_later_was_never_asked(self, tmp_path: Path) -> None:
        """Other silos under the names of the plan: their keys did not sign it."""
        others = make_federation(SILOS, seed=99)
        newer = replace(
            ROSTER,
            version=2,
            previous=ROSTER.digest(),
            seats=tuple(
                replace(seat, identity_key=others.roster.seat(seat.index).identity_key)
                for seat in ROSTER.seats
            ),
        )
        promises = [signed(one, others.identities[one.seat]) for one in abandons(range(1, 6))]
        self.stays(tmp_path, self.proof(promises), newer)


class TestACoordinatorWithANewKey:
    """Its run's ledger goes on after KEY_ROTATE, at silos that know the new key by their roster."""

    @pytest.fixture(autouse=True)
    def _charged(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.coordinator, self.mine = charged(tmp_path)
        self.fresh = Party(COORDINATOR, make_federation(2, seed=77).coordinator)
        self.newer = replace(
            ROSTER, version=2, previous=ROSTER.digest(), coordinator_key=self.fresh.key.public
        )

    def rotated(self, accepted_by: Party) -> LedgerNotice:
        """The ledger with a rotation to the fresh key and a charge after it."""
        ledger, old = self.coordinator.book.ledger, FEDERATION.coordinator
        before, key = old.public, self.fresh.key.public
        message = accepted_message(ledger.head().entry_hash, COORDINATOR, before, key)
        body: dict[str, Json] = {
            "name": COORDINATOR, "old": before.hex(), "key": key.hex(),
            "accepted": accepted_by.sign(message).hex(),
        }  # fmt: skip
        draft = ledger.draft(Kind.KEY_ROTATE, body, time_utc=NOW)
        ledger.append(draft.signed_by(Party(COORDINATOR, old)))
        run = self.coordinator.parameters.run
        book = RunBook(self.folder / "run", run, self.fresh, PLAN)
        book.charge(2, 0, time_utc=NOW)
        return LedgerNotice(run=run, first=0, lines=tuple(book.lines(0)))

    def test_both_a_silo_that_was_there_and_one_that_lost_its_copy_follow(self) -> None:
        """And what is charged after it is signed with the new key, also in a later notice."""
        notice = self.rotated(self.fresh)
        fresh_silo = silo(self.folder / "other", 2)
        for one in (self.mine, fresh_silo):
            one.roster = lambda: self.newer
            assert not one.receive(notice).code
        book = RunBook(self.folder / "run", notice.run, self.fresh, PLAN)
        book.charge(3, 0, time_utc=NOW)
        later = replace(notice, first=6, lines=tuple(book.lines(6)))
        assert not self.mine.receive(later).code
        assert verify_ledger(book.lines(0), public_keys(self.newer)).findings.items == []
        assert verify_ledger(book.lines(0), public_keys(ROSTER)).findings.items == []

    def test_a_key_that_did_not_accept_ends_the_run_here(self) -> None:
        """Whoever stole the old key does not write on under the new one's name."""
        notice = self.rotated(Party(COORDINATOR, FEDERATION.identities[1]))
        self.mine.roster = lambda: self.newer
        assert self.mine.receive(notice).code == "LedgerIntegrityError"
        with pytest.raises(LedgerRefusedError, match="not accepted"):
            self.mine.check_round(round_parameters(2), TRAINING)

    def test_without_a_rotation_the_ledger_is_not_its(self) -> None:
        """The message names the command."""
        run = self.coordinator.parameters.run
        with pytest.raises(LedgerIntegrityError, match="secagg ledger rotate"):
            RunBook(self.folder / "run", run, self.fresh, PLAN)


class TestTermsOfAnAttempt:
    """A silo takes part where the committed number of promises leaves nothing to open."""

    @pytest.mark.parametrize("name", ["n_c", "n_min"])
    def test_less_than_was_signed(self, tmp_path: Path, name: str) -> None:
        """A lower n_c, or a smaller cohort, has a lower t than the quorum counts with."""
        coordinator, mine = Coordinator(tmp_path / "run"), silo(tmp_path / "silo")
        terms = {"n_c": (2, 4, 4), "n_min": (1, 3, 4)}[name]
        coordinator.terms = dict(zip(("n_c", "threshold", "floor"), terms, strict=True))
        coordinator.commit(mine)
        coordinator.charge(1, 0, mine)
        with pytest.raises(LedgerRefusedError, match="the plan was signed with"):
            mine.check_round(round_parameters(), TRAINING)
        asked = round_parameters()
        mine.check_round(
            replace(asked, n_c=2) if name == "n_c" else replace(asked, n_min=4), TRAINING
        )

    @pytest.mark.parametrize(
        ("terms", "signs"),
        [((1, 3, 3), True), ((0, 2, 3), False), ((0, 2, 2), False), ((1, 2, 3), False),
         ((1, 5, 5), False), ((3, 5, 5), True)],
    )  # fmt: skip
    def test_where_the_plan_names_no_colluders_the_silo_s_policy_does(
        self, tmp_path: Path, terms: tuple[int, int, int], signs: bool
    ) -> None:
        """central: neither a threshold that colluders reach nor one that no round asks for."""
        plan = replace(PLAN, mode=Mode.CENTRAL, n_c=0, h_dp=0, padding=0)
        training = replace(TRAINING, privacy=as_settings(plan))
        coordinator, mine = Coordinator(tmp_path / "run", plan), silo(tmp_path / "silo")
        coordinator.terms = dict(zip(("n_c", "threshold", "floor"), terms, strict=True))
        answer = mine.receive(coordinator.notice(draft=coordinator.draft_plan()))
        assert bool(answer.signature) is signs, answer.reason
        if not signs:
            assert "PLAN_COMMIT" in answer.reason
            return
        coordinator.commit(mine)
        coordinator.charge(1, 0, mine)
        if terms == (3, 5, 5):  # more signatures than the round's own threshold: no such round
            with pytest.raises(LedgerRefusedError, match="the plan was signed with n_c = 3"):
                mine.check_round(round_parameters(), training)
            return
        mine.check_round(round_parameters(), training)

    def test_a_silo_that_has_not_signed_the_plan_takes_no_part(self, tmp_path: Path) -> None:
        """Else its vector would be in a sum that the quorum does not know of."""
        coordinator, mine = Coordinator(tmp_path / "run"), silo(tmp_path / "silo")
        coordinator.names = coordinator.names[1:]
        coordinator.commit()
        coordinator.charge(1, 0, mine)
        with pytest.raises(LedgerRefusedError, match="has not signed"):
            mine.check_round(round_parameters(), TRAINING)

    def test_only_who_signed_the_plan_may_be_in_the_cohort(self, tmp_path: Path) -> None:
        """Else who can open the attempt is not who is counted when a charge comes back."""
        coordinator, mine = Coordinator(tmp_path / "run"), silo(tmp_path / "silo")
        coordinator.names = coordinator.names[:4]
        coordinator.commit(mine)
        coordinator.charge(1, 0, mine)
        mine.check_round(round_parameters(), TRAINING)
        assert mine.members(round_parameters(), TRAINING) == frozenset({1, 2, 3, 4})
        plain = TrainingPlan(
            task=TRAINING.task, local=TRAINING.local, rounds=1, max_silos=SILOS, metrics=False
        )
        assert mine.members(round_parameters(), plain) is None

    def test_a_regular_graph(self, tmp_path: Path) -> None:
        """There a neighborhood's threshold opens, and no quorum of all says anything."""
        coordinator, mine = Coordinator(tmp_path / "run"), silo(tmp_path / "silo")
        coordinator.commit(mine)
        coordinator.charge(1, 0, mine)
        sparse = replace(round_parameters(), mode=MODE_SEMI_HONEST, graph="regular/10")
        with pytest.raises(LedgerRefusedError, match="complete graph"):
            mine.check_round(sparse, TRAINING)


def test_an_attempt_without_proof_stays_charged(tmp_path: Path) -> None:
    """Crash = spent."""
    coordinator = Coordinator(tmp_path / "run")
    coordinator.commit()
    coordinator.book.charge(1, 0, time_utc=NOW)
    charge = coordinator.book.charge_of(1, 0)
    assert charge is not None
    coordinator.book.end(charge, reason="gone", proof=None, checker=convinced, time_utc=NOW)
    again = RunBook(
        tmp_path / "run",
        coordinator.parameters.run,
        Party(COORDINATOR, FEDERATION.coordinator),
        PLAN,
    )
    assert again.is_committed
    assert again.spent == pytest.approx(1.9943, abs=1e-3)


def test_the_run_s_limit_is_what_the_plan_promises() -> None:
    """Four rounds fit, a fifth does not."""
    assert run_account(PLAN, "a").epsilon == pytest.approx(plan_epsilon(PLAN).eps, rel=1e-6)
    assert run_account(PLAN, "a", 9.0).epsilon == 9.0


def test_a_budget_s_settings_move_its_limits_and_nothing_else(tmp_path: Path) -> None:
    """Another epsilon is a BUDGET_SET; another unit is refused."""
    first = silo(tmp_path)
    assert first.budget is not None
    second = silo(tmp_path, settings=budget(epsilon=5.0))
    assert second.budget is not None
    kinds = [
        entry.kind for entry in Ledger(FileLedgerStore(data_set_path(tmp_path, "cohort"))).entries
    ]
    assert kinds == [Kind.GENESIS, Kind.BUDGET_SET, Kind.BUDGET_SET]
    third = silo(tmp_path, settings=budget(unit="patient"))
    with pytest.raises(LedgerRefusedError, match="never change"):
        third.check_round(round_parameters(), TRAINING)


def test_a_delta_that_would_allow_one_person_s_data_is_refused(tmp_path: Path) -> None:
    """Delta below 1/N; N stays inside the silo."""
    one = silo(tmp_path, settings=budget(delta=0.1))
    with pytest.raises(LedgerRefusedError) as caught:
        one.check_round(round_parameters(), TRAINING)
    assert "40" not in str(caught.value)


def test_words_about_ledgers_are_told_from_messages_of_the_protocol() -> None:
    """By their label."""
    answer = LedgerAnswer(run=round_parameters().run, lines=0)
    assert is_ledger(answer.encode())
    assert not is_ledger(abandons(range(1, 2))[0].encode())
    assert not is_ledger(b"")
    assert LedgerAnswer.decode(answer.encode()) == answer


def test_a_budget_of_ten_ends_after_23_rounds(tmp_path: Path) -> None:
    """DPA-09: sigma 2.4; the 24th round is refused before anything is opened, on both sides."""
    plan = replace(PLAN, z=2.4, rounds=40, padding=None)
    book = RunBook(
        tmp_path, round_parameters().run, Party(COORDINATOR, FEDERATION.coordinator), plan
    )
    book.begin(
        keys=public_keys(ROSTER),
        account=run_account(plan, "forty rounds", 10.0),
        software={},
        policy="",
        time_utc=NOW,
    )
    for number in range(1, 24):
        book.charge(number, 0, time_utc=NOW)
    assert book.spent == pytest.approx(9.991, abs=1e-3)
    with pytest.raises(BudgetExceededError):
        book.charge(24, 0, time_utc=NOW)
    mine = silo(tmp_path / "silo", settings=budget(epsilon=10.0)).budget
    assert mine is not None
    intent = intent_for(plan, run_id="aa", round_number=1, epsilon=10.0)
    assert mine.rounds_left(intent) == 23


def test_two_processes_are_granted_what_one_ledger_allows(tmp_path: Path) -> None:
    """DPA-11: budget for 3, two processes want 2 each, started together, again and again."""
    three = [GaussianEvent(z=2.0, count=3)]
    limit = Filter(kind=FilterKind.GDP, delta=1e-5).epsilon(three) * 1.0001
    for repeat in range(8):
        folder = tmp_path / str(repeat)
        coordinator = Coordinator(folder / "run")
        both = [silo(folder / "silo", settings=budget(epsilon=limit)) for _ in range(2)]
        assert both[0].budget is not None
        coordinator.commit(both[0])
        for number in range(1, 5):
            coordinator.charge(number, 0, both[0])
        both[1].receive(coordinator.notice())
        granted: list[int] = []

        def spend(one: SiloLedgers, numbers: tuple[int, int], granted: list[int]) -> None:
            for number in numbers:
                try:
                    one.charge(round_parameters(number), TRAINING)
                    granted.append(number)
                except BudgetExhaustedError:
                    pass

        threads = [
            threading.Thread(target=spend, args=(both[0], (1, 2), granted)),
            threading.Thread(target=spend, args=(both[1], (3, 4), granted)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(granted) == 3


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
        self.refuses_the_second(again)

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

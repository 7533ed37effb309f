"""Ledgers between coordinator and silos: what is charged, signed, given back and refused."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dp.account import intent_for
from dp.canonical import Json
from dp.charges import Proof, ProofKind, Statement, StatementChecker
from dp.entries import Entry, Kind
from dp.errors import BudgetExceededError, LedgerIntegrityError, PlanError
from dp.events import GaussianEvent
from dp.filters import Filter, FilterKind
from dp.keyring import accepted_message
from dp.ledger import Ledger, LedgerStore, SignedHead
from dp.ledger_testing import LedgerStoreContract
from dp.plan import Mode
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
from services.ledger.messages import LedgerAnswer, LedgerNotice, is_ledger
from services.ledger.parties import COORDINATOR, Party, public_keys
from services.ledger.proofs import gather, is_promise, read_proof
from services.ledger.run_book import RunBook, run_account
from services.silo.data_set import data_set_path
from services.silo.ledger import SiloLedgers
from services.storage.ledger import FileLedgerStore
from tests.services.ledger_world import (
    FEDERATION,
    PLAN,
    ROSTER,
    SILOS,
    TRAINING,
    Coordinator,
    round_parameters,
    silo,
)
from tests.services.private_run import NOW, budget


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
    """Two runs' threads on one data set: of two charges that fit only alone, one is refused."""
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
    third = silo(tmp_path, settings=budget(unit="patient", most_units=40))
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


def test_two_threads_are_granted_what_one_ledger_allows(tmp_path: Path) -> None:
    """DPA-11: budget for 3, two runs want 2 each, started together (processes: tests/dp)."""
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

"""What a silo's ledgers remember after a lost disk, a crash or a new key: nothing is uncounted."""

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dp.canonical import Json, canonical_json
from dp.entries import Entry, Kind
from dp.errors import LedgerConflictError, PlanError
from dp.ledger import Head, sign_head
from fl.errors import LedgerRefusedError
from secagg.ids import AttemptId, RunId
from secagg.keys import IdentityKey
from secagg.messages import Abandon, signed
from secagg.roster import Roster
from secagg.testing import make_federation
from services.cli.main import app
from services.config import DataSetBudget
from services.ledger.messages import LedgerNotice
from services.ledger.parties import COORDINATOR, Party, public_keys
from services.ledger.run_book import ledger_path
from services.observe.logs import get_logger
from services.silo.data_set import data_set_path
from services.silo.ledger import SiloLedgers
from services.silo.said import FILE, PlanAnswer, Said, forgive
from services.storage.ledger import FileLedgerStore
from tests.services.ledger_world import (
    FEDERATION,
    ROSTER,
    TRAINING,
    Coordinator,
    round_parameters,
    silo,
)
from tests.services.private_run import NOW, budget, now

OTHERS = make_federation(5, seed=77).identities
ONE = ROSTER.seat(1).silo.name


def rekeyed(*seats: int) -> Roster:
    """The next roster, in which these seats have new keys."""
    changed = tuple(
        replace(one, identity_key=OTHERS[one.index].public) if one.index in seats else one
        for one in ROSTER.seats
    )
    return replace(ROSTER, version=2, previous=ROSTER.digest(), seats=changed)


def opened(
    folder: Path, roster: Roster, *, key: IdentityKey, former: tuple[bytes, ...] = ()
) -> SiloLedgers:
    """The first silo's ledgers under a newer roster."""
    return SiloLedgers(
        budget_settings=budget(),
        folder=folder,
        party=Party(ONE, key, former),
        roster=lambda: roster,
        former=lambda: (ROSTER,),
        now=now,
        log=get_logger("silo"),
        agreed=lambda _: (1, 2, 3),
    )


def spent(one: SiloLedgers) -> float:
    """By the data set's ledger."""
    assert one.budget is not None
    return one.budget.spent()


def take_part(coordinator: Coordinator, number: int, *silos: SiloLedgers) -> None:
    """A round is charged on all sides."""
    coordinator.charge(number, 0, *silos)
    for one in silos:
        one.check_round(round_parameters(number), TRAINING)
        one.charge(round_parameters(number), TRAINING)


def draft_release(coordinator: Coordinator, number: int = 1) -> Entry:
    """Of the first three silos."""
    charge = coordinator.book.charge_of(number, 0)
    assert charge is not None
    return coordinator.book.draft_release(
        charge,
        survivors=coordinator.names[:3],
        threshold=3,
        transcript=round_parameters(number).ctx(),
        time_utc=NOW,
    )


def release(coordinator: Coordinator, number: int = 1) -> None:
    """All three sign it."""
    draft = draft_release(coordinator, number)
    parties = [Party(ROSTER.seat(n).silo.name, FEDERATION.identities[n]) for n in (1, 2, 3)]
    coordinator.book.append(draft, list(draft.signed_by(*parties).sigs), public_keys(ROSTER))


def append(coordinator: Coordinator, kind: Kind, body: dict[str, Json]) -> None:
    """Whatever the coordinator likes to say."""
    ledger, run = coordinator.book.ledger, coordinator.parameters.run.hex
    draft = ledger.draft(kind, body, time_utc=NOW, run_id=run)
    ledger.append(draft.signed_by(Party(COORDINATOR, FEDERATION.coordinator)))


def intent_of_no_run(coordinator: Coordinator) -> None:
    """Another attempt, under no run's name."""
    ledger = coordinator.book.ledger
    body = next(one.body for one in ledger.entries if one.kind is Kind.ROUND_INTENT)
    draft = ledger.draft(Kind.ROUND_INTENT, {**body, "attempt": 7}, time_utc=NOW, run_id="")
    ledger.append(draft.signed_by(Party(COORDINATOR, FEDERATION.coordinator)))


def write_copy(folder: Path, coordinator: Coordinator) -> None:
    """Put a run's lines beside a silo's data set, as an operator does."""
    path = ledger_path(folder, coordinator.parameters.run)
    path.unlink()
    for place, line in enumerate(coordinator.book.lines(0)):
        FileLedgerStore(path).append(line, expected_lines=place)


def returned(coordinator: Coordinator, promises: Sequence[Abandon], number: int = 1) -> None:
    """The coordinator says that a charge came back, whatever its own book makes of the proof."""
    charge = coordinator.book.charge_of(number, 0)
    assert charge is not None
    statements: list[Json] = [
        {
            "signer": ROSTER.seat(one.seat).silo.name,
            "message": one.signed_bytes().hex(),
            "signature": one.signature.hex(),
        }
        for one in promises
    ]
    proof: Json = {"kind": "abandon", "statements": statements}
    body: dict[str, Json] = {"intent": charge.entry_hash, "returned": True, "proof": proof}
    append(coordinator, Kind.ROUND_ABORT, body)


def promises(*seats: int) -> list[Abandon]:
    """Of the first attempt of the first round."""
    where = round_parameters().attempt_id
    made = [
        Abandon(federation=ROSTER.federation, run=where.run, round=1, attempt=0, seat=seat)
        for seat in seats
    ]
    return [signed(one, FEDERATION.identities[one.seat]) for one in made]


class TestALostDisk:
    """The coordinator brings a run's lines to a silo that has nothing left."""

    @pytest.fixture(autouse=True)
    def _released(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "silo"
        self.coordinator = Coordinator(tmp_path / "run")
        self.mine = silo(self.folder)
        self.coordinator.commit(self.mine)
        take_part(self.coordinator, 1, self.mine)
        self.before = spent(self.mine)

    def lose(self) -> None:
        shutil.rmtree(self.folder)

    @pytest.mark.parametrize("seats", [(2,), (2, 3, 4, 5), (1,), (1, 2)], ids=str)
    def test_what_was_released_counts_whoever_has_new_keys_since(
        self, seats: tuple[int, ...]
    ) -> None:
        """The lines are checked with the keys of their time."""
        release(self.coordinator)
        self.lose()
        keys = FEDERATION.identities
        is_new = 1 in seats
        former = (keys[1].public,) if is_new else ()
        key = OTHERS[1] if is_new else keys[1]
        again = opened(self.folder, rekeyed(*seats), key=key, former=former)
        assert spent(again) == 0.0
        answer = again.receive(self.coordinator.notice())
        assert not answer.code, answer.reason
        assert spent(again) == pytest.approx(self.before)

    def test_an_attempt_that_was_never_released_counts_too(self) -> None:
        """The coordinator may have opened it and kept it to itself."""
        self.lose()
        again = silo(self.folder)
        assert not again.receive(self.coordinator.notice()).code
        assert spent(again) == pytest.approx(self.before)

    def test_also_where_only_the_data_set_s_ledger_is_gone(self) -> None:
        """The copy of the run tells."""
        data_set_path(self.folder, "cohort").unlink()
        again = silo(self.folder)
        again.now = lambda: datetime(2026, 11, 30, 13, tzinfo=UTC)  # two ledgers' first entries
        assert spent(again) == pytest.approx(self.before)

    @pytest.mark.parametrize("kept", ["nothing", "an old backup"])
    def test_another_draft_that_was_signed_since_hides_nothing(
        self, tmp_path: Path, kept: str
    ) -> None:
        """The silo remembers a draft of the run, but not the one that it took part in."""
        self.lose()
        if kept == "an old backup":  # of a ledger that was begun, and of no run
            assert spent(silo(self.folder)) == 0.0
        again = silo(self.folder)
        other = Coordinator(tmp_path / "second")
        other.names = other.names[:4]
        assert again.receive(other.notice(draft=other.draft_plan())).signature
        assert not again.receive(self.coordinator.notice()).code
        for one in (again, silo(self.folder)):
            assert spent(one) == pytest.approx(self.before)
            with pytest.raises(LedgerRefusedError, match="has lost what it knew"):
                one.check_round(round_parameters(), TRAINING)

    @pytest.mark.parametrize("hour", [11, 13])
    def test_an_answer_that_names_no_ledger_is_of_one_no_younger(self, hour: int) -> None:
        """As in files of before it was noted; else the ledger may be another than it was."""
        lines = [json.loads(one) for one in FileLedgerStore(self.folder / FILE).read(0)]
        for line in lines:
            assert line.pop("data_set") == "cohort"
            del line["ledger"]
            line["at"] = int(datetime(2026, 11, 30, hour, tzinfo=UTC).timestamp())
        (self.folder / FILE).write_bytes(b"".join(canonical_json(one) + b"\n" for one in lines))
        self.coordinator.charge(2, 0)
        again = silo(self.folder)
        assert not again.receive(self.coordinator.notice()).code
        assert (spent(again) > self.before) == (hour == 11)  # the ledger is of 12 o'clock

    def test_a_budget_stays_shut_while_what_was_said_cannot_be_read(self) -> None:
        """Even where a release proves what was spent: it would be counted too late."""
        release(self.coordinator)
        assert not self.mine.receive(self.coordinator.notice()).code
        path = self.folder / FILE
        path.write_bytes(b"{\n" + path.read_bytes())
        with pytest.raises(PlanError, match="what this silo has answered is not to be forgotten"):
            spent(silo(self.folder))

    def test_and_a_crash_before_it_was_counted_changes_nothing(self) -> None:
        """Killed after each line of the new ledger, which the next process goes on with."""
        path = data_set_path(self.folder, "cohort")
        path.unlink()

        def later() -> SiloLedgers:
            made = silo(self.folder)
            made.now = lambda: datetime(2026, 11, 30, 13, tzinfo=UTC)
            return made

        assert spent(later()) == pytest.approx(self.before)
        lines = path.read_bytes().splitlines(keepends=True)
        for count in range(len(lines)):
            path.write_bytes(b"".join(lines[:count]))
            assert spent(later()) == pytest.approx(self.before)

    def test_killed_between_the_lines_that_are_brought_and_what_they_cost(self) -> None:
        """Whatever of the run's copy is there: the next opening or notice counts."""
        lines = self.coordinator.book.lines(0)
        for count in range(len(lines) + 1):
            self.lose()
            copy = FileLedgerStore(ledger_path(self.folder, self.coordinator.parameters.run))
            for place, line in enumerate(lines[:count]):
                copy.append(line, expected_lines=place)
            again = silo(self.folder)
            assert not again.receive(self.coordinator.notice()).code
            assert spent(again) == pytest.approx(self.before)

    def test_lines_that_come_in_pieces(self) -> None:
        """The plan in one notice, the attempts in the next."""
        self.lose()
        again = silo(self.folder)
        whole = self.coordinator.notice()
        for place, line in enumerate(whole.lines):
            assert not again.receive(replace(whole, first=place, lines=(line,))).code
        assert spent(again) == pytest.approx(self.before)

    def test_whatever_the_coordinator_says_came_back(self) -> None:
        """A return without proof, said to a silo that has forgotten."""
        returned(self.coordinator, promises(1))
        self.lose()
        again = silo(self.folder)
        assert again.receive(self.coordinator.notice()).code == "PlanError"
        assert spent(again) == pytest.approx(self.before)

    def test_a_silo_that_was_only_away_pays_nothing(self) -> None:
        """It knows that it signed the plan, and in which rounds it took part."""
        self.coordinator.charge(2, 0)
        assert not self.mine.receive(self.coordinator.notice()).code
        assert spent(self.mine) == pytest.approx(self.before)
        assert spent(silo(self.folder)) == pytest.approx(self.before)

    def test_a_key_that_nobody_knows_shuts_the_budget(self) -> None:
        """Also after a restart; until the key is known, and then what it signed for counts."""
        release(self.coordinator)
        self.lose()
        roster, first = rekeyed(1), FEDERATION.identities[1].public

        def begun(*former: bytes) -> SiloLedgers:
            made = opened(self.folder, roster, key=OTHERS[1], former=former)
            made.former = lambda: ()
            return made

        again = begun()
        assert spent(again) == 0.0
        assert again.receive(self.coordinator.notice()).code == "LedgerIntegrityError"
        for one in (again, begun()):
            with pytest.raises(PlanError, match=r"forgotten\. Restore former-keys\.json"):
                assert one.budget
            with pytest.raises(LedgerRefusedError, match="unknown-key"):
                one.check_round(round_parameters(2), TRAINING)
        knowing = begun(first)
        assert spent(knowing) == pytest.approx(self.before)
        assert not knowing.receive(self.coordinator.notice()).code
        assert spent(knowing) == pytest.approx(self.before)

    @pytest.mark.parametrize("how", ["no release", "alone", "another's name", "a thief's"])
    def test_a_coordinator_alone_shuts_nothing(self, tmp_path: Path, how: str) -> None:
        """A plan with this silo's name under it, by no key of its: refused, and that is all."""
        other = Coordinator(tmp_path / "other", run=RunId(b"made-up-by-a-hub"))
        draft = other.draft_plan()
        thief = OTHERS[9 % 5 + 1]
        signers = [
            Party(one.silo.name, thief if one.index == 1 else FEDERATION.identities[one.index])
            for one in ROSTER.seats
        ]
        if how == "a thief's":  # of which another silo's signature is none, either
            signers[1] = Party(signers[1].name, thief)
        other.book.ledger.append(draft.signed_by(*signers))
        if how != "no release":
            other.book.charge(1, 0, time_utc=NOW)
            names = other.names[1:4] if how == "another's name" else other.names[:3]
            charge = other.book.charge_of(1, 0)
            assert charge is not None
            made_up = other.book.draft_release(
                charge, survivors=names, threshold=3, transcript=bytes(32), time_utc=NOW
            )
            alone = how == "alone"
            other.book.ledger.append(made_up if alone else made_up.signed_by(*signers[1:4]))
        assert self.mine.receive(other.notice()).code == "LedgerIntegrityError"
        assert spent(silo(self.folder)) == pytest.approx(self.before)

    def test_a_release_that_no_rule_converts_opens_no_budget(self) -> None:
        """An operator deletes one data set's ledger and begins another unit's under a new name."""
        release(self.coordinator)
        assert not self.mine.receive(self.coordinator.notice()).code
        data_set_path(self.folder, "cohort").unlink()
        changes = {"data_set": "other", "unit": "patient", "most_units": 40}
        with pytest.raises(PlanError, match="Restore the ledger of the data set"):
            assert silo(self.folder, settings=budget(**changes)).budget


class TestARunThatIsOver:
    """What proves a run's ledger false is kept, with the run's name, and no restart forgets it."""

    @pytest.fixture(autouse=True)
    def _charged(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "silo"
        self.coordinator = Coordinator(tmp_path / "run")
        self.mine = silo(self.folder)
        self.coordinator.commit(self.mine)
        take_part(self.coordinator, 1, self.mine)

    def kept(self) -> list[dict[str, object]]:
        lines = FileLedgerStore(self.folder / FILE).read(0)
        return [one for one in map(json.loads, lines) if one["kind"] == "broken"]

    def refuses(self, reason: str) -> None:
        for one in (self.mine, silo(self.folder)):
            with pytest.raises(LedgerRefusedError, match=reason):
                one.check_round(round_parameters(), TRAINING)

    def test_another_entry_in_a_peer_s_head(self) -> None:
        """Signed by the peer; the head and the entry here are kept, once."""
        here = self.coordinator.book.ledger.head()
        other = replace(here, entry_hash="ab" * 32)
        peer = Party(ROSTER.seat(2).silo.name, FEDERATION.identities[2])
        head = sign_head(other, peer).to_bytes()
        for _ in range(2):
            answer = self.mine.receive(self.coordinator.notice(heads=(head,)))
            assert answer.code == "EquivocationError"
        self.refuses("2 signed heads")
        (found,) = self.kept()
        assert found["proof"] == [
            head.decode(), self.coordinator.book.lines(0)[here.seq].decode(),
        ]  # fmt: skip

    def test_a_head_of_a_peer_s_former_key(self) -> None:
        """Genuine when it was signed; a head by a key that nobody lists is not."""
        peer = Party(ROSTER.seat(2).silo.name, FEDERATION.identities[2])
        head = sign_head(self.coordinator.book.ledger.head(), peer).to_bytes()
        newer = opened(self.folder, rekeyed(2), key=FEDERATION.identities[1])
        assert not newer.receive(self.coordinator.notice(heads=(head,))).code
        newer.former = lambda: ()
        answer = newer.receive(self.coordinator.notice(heads=(head,)))
        assert answer.code == "LedgerIntegrityError"
        assert not self.kept()

    def test_a_return_that_nothing_proves(self) -> None:
        """The entry is kept; and found again where a crash came before it was."""
        returned(self.coordinator, promises(1, 2))
        assert self.mine.receive(self.coordinator.notice()).code == "PlanError"
        self.refuses("gives a charge back")
        (found,) = self.kept()
        assert found["proof"] == [self.coordinator.book.lines(0)[-1].decode()]
        lines = FileLedgerStore(self.folder / FILE).read(0)
        (self.folder / FILE).write_bytes(lines[0] + b"\n")  # killed after the run's line
        again = silo(self.folder)
        assert again.receive(self.coordinator.notice()).code == "PlanError"
        self.refuses("gives a charge back")

    def test_a_genuine_return_is_followed_after_a_crash(self) -> None:
        """Killed between the run's line and the data set's: at the next notice."""
        returned(self.coordinator, promises(1, 2, 3, 4))
        copy = FileLedgerStore(ledger_path(self.folder, self.coordinator.parameters.run))
        lines = self.coordinator.book.lines(0)
        copy.append(lines[-1], expected_lines=len(lines) - 1)
        again = silo(self.folder)
        assert spent(again) > 1.9
        assert not again.receive(self.coordinator.notice()).code
        assert spent(again) == 0.0

    def test_promises_by_keys_that_were_replaced_since(self) -> None:
        """Whoever holds such a key may promise in its silo's name: charged, and not over."""
        returned(self.coordinator, promises(1, 2, 3, 4))
        newer = opened(self.folder, rekeyed(2), key=FEDERATION.identities[1])
        assert not newer.receive(self.coordinator.notice()).code
        assert spent(newer) > 1.9
        assert not self.kept()
        newer.check_round(round_parameters(), TRAINING)

    def test_an_attempt_of_no_run_costs_nothing(self) -> None:
        """Otherwise a coordinator alone would burn what is left: no silo knows of such a run."""
        before = spent(self.mine)
        intent_of_no_run(self.coordinator)
        answer = self.mine.receive(self.coordinator.notice())
        assert "another run" in answer.reason
        write_copy(self.folder, self.coordinator)
        for one in (self.mine, silo(self.folder)):
            assert spent(one) == pytest.approx(before)

    def test_a_released_attempt_does_not_come_back(self) -> None:
        """The lines of both are refused together, and the second alone; nothing shuts."""
        release(self.coordinator)
        intent = next(
            one.entry_hash
            for one in self.coordinator.book.ledger.entries
            if one.kind is Kind.ROUND_INTENT
        )
        statements: list[Json] = [
            {
                "signer": ROSTER.seat(one.seat).silo.name,
                "message": one.signed_bytes().hex(),
                "signature": one.signature.hex(),
            }
            for one in promises(1, 2, 3, 4)
        ]
        proof: Json = {"kind": "abandon", "statements": statements}
        release_only = self.coordinator.notice()
        append(
            self.coordinator,
            Kind.ROUND_ABORT,
            {"intent": intent, "returned": True, "proof": proof},
        )
        for notice in (self.coordinator.notice(), release_only, self.coordinator.notice()):
            answer = self.mine.receive(notice)
            assert answer.code == ("" if notice is release_only else "LedgerIntegrityError")
            for one in (self.mine, silo(self.folder)):
                assert spent(one) > 1.9

    def test_a_second_line_of_an_attempt_without_a_sum_is_followed(self) -> None:
        """A coordinator that restarts may find the promises that it lacked before."""
        charge = self.coordinator.book.charge_of(1, 0)
        assert charge is not None
        body: dict[str, Json] = {"intent": charge.entry_hash, "returned": False, "reason": "x"}
        append(self.coordinator, Kind.ROUND_ABORT, body)
        assert not self.mine.receive(self.coordinator.notice()).code
        assert spent(self.mine) > 1.9
        returned(self.coordinator, promises(1, 2, 3, 4))
        assert not self.mine.receive(self.coordinator.notice()).code
        assert spent(self.mine) == 0.0

    def test_a_release_of_what_came_back_ends_the_run_and_shuts_no_budget(
        self, tmp_path: Path
    ) -> None:
        """A copy of another history; noted once, however often the budget is opened."""
        shutil.copytree(tmp_path / "run", tmp_path / "other")
        returned(self.coordinator, promises(1, 2, 3, 4))
        assert not self.mine.receive(self.coordinator.notice()).code
        other = Coordinator(tmp_path / "other")
        release(other)
        write_copy(self.folder, other)
        for _ in range(2):
            assert spent(silo(self.folder)) == 0.0
        with pytest.raises(LedgerRefusedError, match="releases an attempt that was proven dead"):
            silo(self.folder).check_round(round_parameters(), TRAINING)
        assert [one["proof"] for one in self.kept()] == [[other.book.lines(0)[-1].decode()]]

    def test_what_this_silo_has_promised_not_to_open_it_does_not_release(self) -> None:
        """By its journal, before any line of the run says so."""
        draft = draft_release(self.coordinator)
        asked = []

        def has_promised(attempt: AttemptId) -> bool:
            asked.append(attempt)
            return True

        self.mine.has_promised = has_promised
        answer = self.mine.receive(self.coordinator.notice(draft=draft))
        assert not answer.signature
        assert "promised to open nothing" in answer.reason
        assert asked == [round_parameters().attempt_id]
        assert silo(self.folder).receive(self.coordinator.notice(draft=draft)).signature

    @pytest.mark.parametrize("agreed", [None, (1, 2, 3, 4), (1, 2)])
    def test_survivors_that_this_silo_never_agreed_to_are_not_released(
        self, agreed: tuple[int, ...] | None
    ) -> None:
        """A release charges whom it names, also a silo that was away: it is who survived."""
        self.mine.agreed = lambda _: agreed
        answer = self.mine.receive(self.coordinator.notice(draft=draft_release(self.coordinator)))
        assert not answer.signature
        assert "survivors are not those that this silo has agreed to" in answer.reason

    def test_an_attempt_is_charged_once(self) -> None:
        """Else what ends one charge could come after the other's end."""
        ledger = self.coordinator.book.ledger
        body = next(one.body for one in ledger.entries if one.kind is Kind.ROUND_INTENT)
        append(self.coordinator, Kind.ROUND_INTENT, dict(body))
        answer = self.mine.receive(self.coordinator.notice())
        assert answer.code == "LedgerIntegrityError"
        assert "this attempt was charged before" in answer.reason

    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            (Kind.ROUND_ABORT, {"intent": {"a": 1}}),
            (Kind.ROUND_RELEASE, {"intent": ["x"]}),
            (Kind.ROUND_INTENT, {"round": 1, "attempt": 0, "plan_digest": {"a": 1}}),
        ],
    )
    def test_words_that_name_nothing_are_refused(self, kind: Kind, body: dict[str, Json]) -> None:
        """Where a hash belongs there may be anything."""
        append(self.coordinator, kind, body)
        assert self.mine.receive(self.coordinator.notice()).code == "LedgerIntegrityError"

    def test_what_came_back_is_released_by_nobody(self) -> None:
        """Whether the charge has come back here or only the run's line says so."""
        draft_before = draft_release(self.coordinator)
        returned(self.coordinator, promises(1, 2, 3, 4))
        draft = self.coordinator.book.ledger.draft(
            Kind.ROUND_RELEASE,
            draft_before.body,
            time_utc=NOW,
            run_id=self.coordinator.parameters.run.hex,
        ).signed_by(Party(COORDINATOR, FEDERATION.coordinator))
        newer = opened(self.folder, rekeyed(2), key=FEDERATION.identities[1])
        for one in (newer, silo(self.folder)):
            answer = one.receive(self.coordinator.notice(draft=draft))
            assert not answer.signature
            assert "charged no such round" in answer.reason


class TestTwoDataSets:
    """Of one silo, side by side; a run is of the one that its plan was answered for."""

    FIRST = budget(data_set="cohort", disjoint_from=["other"])
    SECOND = budget(data_set="other", disjoint_from=["cohort"])

    @pytest.fixture(autouse=True)
    def _charged(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "silo"
        self.coordinator = Coordinator(tmp_path / "run")
        mine = silo(self.folder, settings=self.FIRST)
        self.coordinator.commit(mine)
        take_part(self.coordinator, 1, mine)
        self.before = spent(mine)

    def begun(self, settings: DataSetBudget) -> SiloLedgers:
        made = silo(self.folder, settings=settings)
        made.now = lambda: datetime(2026, 11, 30, 13, tzinfo=UTC)
        return made

    def test_a_run_of_the_other_costs_nothing(self) -> None:
        second = self.begun(self.SECOND)
        self.coordinator.charge(2, 0)
        assert not second.receive(self.coordinator.notice()).code
        assert spent(second) == 0.0

    def test_nobody_takes_part_out_of_another_data_set_than_was_answered(self) -> None:
        """Its ledger would remember what the answer does not."""
        second = self.begun(self.SECOND)
        self.coordinator.charge(2, 0)
        assert not second.receive(self.coordinator.notice()).code
        with pytest.raises(LedgerRefusedError, match="out of another data set"):
            second.check_round(round_parameters(2), TRAINING)

    @pytest.mark.parametrize("is_other_first", [False, True])
    def test_an_open_attempt_counts_after_one_ledger_is_lost(self, is_other_first: bool) -> None:
        """Whichever is opened first, and whatever the other has counted by then."""
        assert spent(self.begun(self.SECOND)) == 0.0
        data_set_path(self.folder, "cohort").unlink()
        if is_other_first:
            assert spent(self.begun(self.SECOND)) == pytest.approx(self.before)
        assert spent(self.begun(self.FIRST)) == pytest.approx(self.before)


def test_a_clock_that_was_ahead_when_the_ledger_began_locks_nothing(tmp_path: Path) -> None:
    """What was answered out of this ledger is remembered, whatever the times."""
    early = silo(tmp_path / "silo")
    early.now = lambda: datetime(2027, 6, 1, tzinfo=UTC)
    assert spent(early) == 0.0
    coordinator, mine = Coordinator(tmp_path / "run"), silo(tmp_path / "silo")
    coordinator.commit(mine)
    take_part(coordinator, 1, mine)


class TestSaid:
    """The file of answers, with several writers, and what an operator may forgive."""

    RUN = (b"r" * 16).hex()

    def answer(self, draft: str) -> PlanAnswer:
        return PlanAnswer(draft=draft, is_signed=True, at=int(now().timestamp()))

    def test_of_two_that_saw_no_answer_one_writes(self, tmp_path: Path) -> None:
        """The other is told, and its draft is not answered."""
        first, second = Said(tmp_path), Said(tmp_path)
        assert first.plan(self.RUN) is None
        assert second.plan(self.RUN) is None
        first.note_plan(self.RUN, self.answer("aa"))
        with pytest.raises(LedgerConflictError):
            second.note_plan(self.RUN, self.answer("bb"))
        assert Said(tmp_path).plan(self.RUN) == self.answer("aa")

    def test_two_silo_processes_answer_one_draft_of_a_run(self, tmp_path: Path) -> None:
        """Each is asked for another set of signers at the same moment, again and again."""
        for repeat in range(6):
            folder = tmp_path / str(repeat)
            run = RunId(bytes([repeat]) * 16)
            drafts = []
            for place, count in enumerate((5, 4)):
                coordinator = Coordinator(folder / f"run{place}", run=run)
                coordinator.names = coordinator.names[:count]
                drafts.append(coordinator.notice(draft=coordinator.draft_plan()))
            both = [silo(folder / "silo") for _ in drafts]
            assert both[0].budget is not None

            def ask(one: SiloLedgers, notice: LedgerNotice) -> bool:
                return bool(one.receive(notice).signature)

            with ThreadPoolExecutor(2) as pool:
                signed_by = list(pool.map(ask, both, drafts))
            assert sorted(signed_by) == [False, True]

    def test_a_copy_that_another_process_wrote_on(self, tmp_path: Path) -> None:
        """Its lines are read before others are added: no process is shut out for good."""
        coordinator = Coordinator(tmp_path / "run")
        one, two = silo(tmp_path / "silo"), silo(tmp_path / "silo")
        coordinator.commit(one)
        for number, each in enumerate((two, one, two), 1):
            coordinator.charge(number, 0, each)

    @pytest.mark.parametrize("line", [b"no line", b"[]"])
    def test_a_damaged_line_is_named(self, tmp_path: Path, line: bytes) -> None:
        """What was answered is not to be forgotten."""
        (tmp_path / FILE).write_bytes(line + b"\n")
        with pytest.raises(PlanError, match=r"said\.jsonl: line 1 .* backup"):
            Said(tmp_path)

    def test_a_silo_that_does_not_sign_locks_the_others_until_they_forgive(
        self, tmp_path: Path
    ) -> None:
        """Noted with who, when and which; the runs' drafts stay answered once."""
        mine = silo(tmp_path / "storage/ledgers")

        def asked(number: int) -> Coordinator:
            return Coordinator(tmp_path / f"{number}", run=RunId(number.to_bytes(16)))

        def signs(coordinator: Coordinator) -> bool:
            return bool(mine.receive(coordinator.notice(draft=coordinator.draft_plan())).signature)

        runs = [asked(number) for number in range(10)]
        assert [signs(one) for one in runs] == [True] * 8 + [False] * 2
        refused = mine.receive(runs[9].notice(draft=runs[9].draft_plan()))
        assert "secagg silo forgive" in refused.reason
        settings = tmp_path / "silo.toml"
        settings.write_text(
            f'coordinator = "localhost:1"\ndirectory = "{tmp_path}"\ntask = "tests:task"\n'
            f'storage = "{tmp_path / "storage"}"\n'
        )
        command = ["silo", "forgive", "--config", str(settings), "--by", "A. Mayer", "--json"]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert len(json.loads(done.output)["forgiven"]) == 8
        assert signs(runs[8])
        other = runs[0].draft_plan()
        changed = replace(other, body={**other.body, "manifest": "0" * 64}, sigs=())
        draft = changed.signed_by(Party(COORDINATOR, FEDERATION.coordinator))
        assert "another draft" in mine.receive(runs[0].notice(draft=draft)).reason
        (note,) = [
            one
            for one in map(json.loads, FileLedgerStore(tmp_path / "storage/ledgers" / FILE).read(0))
            if one["kind"] == "forgiven"
        ]
        assert (note["by"], note["count"], len(note["runs"])) == ("A. Mayer", 8, 8)
        assert note["at"] > datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        assert CliRunner().invoke(app, [*command[:-2], " "]).exit_code != 0

    def test_nothing_in_the_way_is_nothing_noted(self, tmp_path: Path) -> None:
        """And what was charged counts as little as what was long ago."""
        Said(tmp_path).note_plan(self.RUN, self.answer("aa"))
        assert forgive(tmp_path, {self.RUN}, by="x", now=now()) == []
        later = datetime(2026, 12, 8, 12, tzinfo=UTC)
        assert forgive(tmp_path, set(), by="x", now=later) == []
        assert len(FileLedgerStore(tmp_path / FILE).read(0)) == 1
        assert forgive(tmp_path, set(), by="x", now=now()) == [self.RUN]

    @pytest.mark.parametrize("run", ["", "ab", "ab" * 16])
    def test_a_draft_under_another_run_s_name(self, tmp_path: Path, run: str) -> None:
        """It would be another question, of a run that was never answered."""
        coordinator, mine = Coordinator(tmp_path / "run"), silo(tmp_path / "silo")
        draft = replace(coordinator.draft_plan(), run_id=run, sigs=())
        by_hub = draft.signed_by(Party(COORDINATOR, FEDERATION.coordinator))
        answer = mine.receive(coordinator.notice(draft=by_hub))
        assert not answer.signature
        assert "not of the run" in answer.reason


def test_a_crash_in_the_first_entries_forgets_no_declaration(tmp_path: Path) -> None:
    """Killed after GENESIS: the next opening still asks for disjoint_from, and writes it down."""
    assert silo(tmp_path).budget is not None
    other = {"data_set": "other"}
    said = budget(**other, disjoint_from=["cohort"])
    assert silo(tmp_path, settings=said).budget is not None
    path = data_set_path(tmp_path, "other")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0])
    with pytest.raises(PlanError, match="no new budget"):
        assert silo(tmp_path, settings=budget(**other)).budget
    assert silo(tmp_path, settings=said).budget is not None
    kinds = [Entry.from_line(one).kind for one in FileLedgerStore(path).read(0)]
    assert kinds == [Kind.GENESIS, Kind.CORRECTION, Kind.BUDGET_SET]


def test_a_head_of_an_empty_ledger_proves_nothing(tmp_path: Path) -> None:
    """Of a peer that has no line yet."""
    coordinator, mine = Coordinator(tmp_path / "run"), silo(tmp_path / "silo")
    peer = Party(ROSTER.seat(2).silo.name, FEDERATION.identities[2])
    nothing = Head(ledger="0" * 64, seq=-1, entry_hash="0" * 64)
    head = sign_head(nothing, peer).to_bytes()
    assert not mine.receive(coordinator.notice(heads=(head,))).code

"""A silo with new identity keys goes on with the ledgers that its old key wrote, by the command."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dp.account import intent_for
from dp.canonical import Json
from dp.commitments import plan_commit_body
from dp.entries import Entry, Kind
from dp.errors import BudgetExceededError, LedgerIntegrityError, PlanError
from dp.ledger import Ledger
from dp.plan import Adjacency, Mode, PrivacyPlan, Unit
from secagg.ids import RunId
from secagg.rng import SystemRng
from services.cli.main import app
from services.config import DataSetBudget
from services.enrollment import authority
from services.enrollment.request import enroll
from services.errors import CredentialError
from services.ledger.parties import Party, listed_keys, load_party, note_former, public_keys
from services.ledger.run_book import RunBook, ledger_path, run_account
from services.security.credentials import load_identity
from services.security.identity import Role
from services.silo.data_set import DataSet, data_set_path
from services.storage.ledger import FileLedgerStore
from services.testing import COORDINATOR, LocalFederation, make_federation

NOW = datetime.now(UTC)  # certificates are checked by this machine's clock
STAMP = "2026-11-30T12:00:00Z"
SILO = "silo-1"
NAMES = tuple(f"silo-{number}" for number in range(1, 6))
PLAN = PrivacyPlan(
    unit=Unit.SILO,
    adjacency=Adjacency.ZERO_OUT,
    mode=Mode.SILO,
    clip=1.0,
    z=4.0,
    rounds=9,
    delta=1e-5,
    dimension=4,
    cohort_size=5,
    denominator=5.0,
    n_c=1,
    h_dp=2,
)


class World:
    """A federation, and the first silo's data set with two rounds spent: 1.33 of 1.9."""

    def __init__(self, root: Path) -> None:
        self.federation: LocalFederation = make_federation(root, silos=NAMES, now=NOW)
        self.storage = root / "storage"
        self.old = self.federation.folder(SILO)
        self.fresh = root / "fresh"
        self.ledger = data_set_path(self.storage, "heart")
        self.roster = root / "roster-then.json"
        shutil.copy(self.old / "roster.json", self.roster)
        opened = self.opened(self.old)
        for number in (1, 2):
            self.spend(opened, number)
        self.before = opened.budget.spent()

    def opened(self, keys: Path) -> DataSet:
        """The data set, as a silo with these keys has it."""
        settings = DataSetBudget.model_validate(
            {
                "data_set": "heart", "unit": "silo", "adjacency": "zero_out", "epsilon": 1.9,
                "delta": 1e-5, "persons": 40,
            }
        )  # fmt: skip
        party = load_party(keys, SILO)
        return DataSet(settings=settings, copies=self.storage, party=party, stamp=lambda: STAMP)

    def spend(self, data_set: DataSet, number: int) -> None:
        """A charged round."""
        intent = intent_for(PLAN, run_id="ab" * 16, round_number=number, epsilon=1.9)
        body = plan_commit_body(PLAN, silos=NAMES, threshold=3, floor=3, manifest="")
        data_set.commit(body, "ab" * 16)
        data_set.budget.charge(intent, time_utc=STAMP)

    def renew(self, folder: Path | None = None) -> None:
        """New keys under the old name, as docs/operations.md has it."""
        place = folder or self.fresh
        home = self.federation.authority
        authority.revoke(home, SILO)
        request = enroll(place, name=SILO, role=Role.SILO, rng=SystemRng())
        issued = authority.issue(home, request, role=Role.SILO, now=NOW, organization="One")
        authority.install(issued.bundle, place)

    def rotate(self, *options: str | Path, code: int = 0) -> str:
        """`secagg ledger rotate` with the fresh keys."""
        command = ["ledger", "rotate", self.ledger, "--directory", self.fresh, *options]
        result = CliRunner().invoke(app, [str(one) for one in command])
        if code:
            assert result.exit_code != 0
            return str(result.exception)
        assert result.exit_code == 0, result.output
        return result.output

    def verify(self, *options: str | Path) -> tuple[int, str]:
        """`secagg ledger verify` with the newest roster."""
        command = ["ledger", "verify", self.ledger, "--directory", self.fresh, *options]
        result = CliRunner().invoke(app, [str(one) for one in command])
        return result.exit_code, result.output


@pytest.fixture
def world(tmp_path: Path) -> World:
    """With new keys for the silo."""
    made = World(tmp_path)
    made.renew()
    return made


def test_a_new_key_opens_an_old_ledger_only_after_a_rotation(world: World) -> None:
    """Until then nothing is begun anew and nothing spent; the message names the command."""
    before = world.ledger.read_bytes()
    with pytest.raises(PlanError, match="secagg ledger rotate"):
        world.opened(world.fresh)
    assert world.ledger.read_bytes() == before


@pytest.mark.parametrize("way", ["old", "lost"])
def test_what_was_spent_stays_spent_over_a_rotation(world: World, way: str) -> None:
    """Spend, rotate, spend more, until the limit; the whole ledger verifies offline."""
    options = ("--old", world.old) if way == "old" else ("--old-roster", world.roster)
    assert "goes on with the new key" in world.rotate(*options)
    assert "had the new key already" in world.rotate(*options)
    opened = world.opened(world.fresh)
    assert opened.budget.spent() == world.before
    world.spend(opened, 3)
    with pytest.raises(BudgetExceededError):
        world.spend(opened, 4)
    assert [one.round for one in world.opened(world.fresh).budget.charges] == [1, 2, 3]
    known = ("--former", world.roster)
    assert world.verify(*known)[0] == 0
    assert world.verify()[0] == 0  # the bundle brought all versions of the roster
    shutil.rmtree(world.fresh / "rosters")
    code, output = world.verify()
    assert (code == 0) is (way == "old")  # a lost key's successor needs both rosters
    assert way == "old" or "vouches" in output


def test_a_rotation_needs_the_right_keys(world: World, tmp_path: Path) -> None:
    """The ledger's last key, the roster's new one; one way to name the old one."""
    stranger = world.federation.folder("silo-2")
    assert "not the old one" in world.rotate("--old", stranger, code=1)
    assert "not the old one" in world.rotate("--old-roster", world.fresh / "roster.json", code=1)
    assert "one of them" in world.rotate(code=1)
    assert "one of them" in world.rotate("--old", world.old, "--old-roster", world.roster, code=1)
    before = world.ledger.read_bytes()
    (world.fresh / "identity.key").write_bytes((stranger / "identity.key").read_bytes())
    assert "lists another identity key" in world.rotate("--old", world.old, code=1)
    world.ledger = tmp_path / "nowhere.jsonl"
    assert "expected a ledger" in world.rotate("--old", world.old, code=1)
    assert data_set_path(world.storage, "heart").read_bytes() == before


def test_a_roster_that_the_roots_did_not_sign_vouches_for_nobody(
    world: World, tmp_path: Path
) -> None:
    """Another authority's, with the very names."""
    other = make_federation(tmp_path / "other", silos=NAMES, now=NOW)
    forged = other.folder(SILO) / "roster.json"
    assert "not signed by the roots" in world.rotate("--old-roster", forged, code=1)


def test_an_edited_ledger_is_not_passed_on(world: World) -> None:
    """The old key signed something else."""
    lines = [Entry.from_line(line) for line in world.ledger.read_bytes().splitlines()]
    lines[-1] = replace(lines[-1], body={**lines[-1].body, "round": 7})
    world.ledger.write_bytes(b"".join(one.to_line() + b"\n" for one in lines))
    assert "bad signature" in world.rotate("--old", world.old, code=1)


def test_keys_that_rotate_twice(world: World, tmp_path: Path) -> None:
    """One step after the other."""
    world.rotate("--old", world.old)
    first, world.fresh = world.fresh, tmp_path / "fresher"
    world.renew(world.fresh)
    assert "not the old one" in world.rotate("--old", world.old, code=1)
    world.rotate("--old", first)
    assert world.opened(world.fresh).budget.spent() == world.before


def test_a_replaced_key_does_not_come_back(world: World, tmp_path: Path) -> None:
    """Neither by an entry of both keys, nor by saying that the present one is lost."""
    world.rotate("--old", world.old)
    lines, first = world.ledger.read_bytes(), world.fresh
    world.fresh = tmp_path / "back"
    shutil.copytree(world.old, world.fresh)
    for options in (("--old", first), ("--old-roster", first / "roster.json")):
        assert "does not come back" in world.rotate(*options, code=1)
    assert world.ledger.read_bytes() == lines


def test_a_lost_key_needs_a_newer_roster(world: World) -> None:
    """A stolen, retired key and the roster of its time do not replace the present key."""
    world.ledger.unlink()
    world.spend(world.opened(world.fresh), 1)
    lines, newer = world.ledger.read_bytes(), world.fresh / "roster.json"
    world.fresh = world.old
    assert "expected a newer roster" in world.rotate("--old-roster", newer, code=1)
    assert world.ledger.read_bytes() == lines


@pytest.mark.parametrize("kept", ["former-keys.json", "rosters", ""])
def test_a_release_that_the_old_key_signed_for_is_found_again(world: World, kept: str) -> None:
    """The data set's ledger is deleted after the rotation; the run's copy tells, by the old key."""
    federation = world.federation
    roster = federation.roster()
    then = {name: load_identity(federation.folder(name)) for name in (COORDINATOR, *NAMES)}
    run = RunId(b"before-the-new-k")
    hub = Party("coordinator", then[COORDINATOR])
    book = RunBook(world.storage, run, hub, PLAN)
    keys = {**public_keys(roster), SILO: then[SILO].public}
    book.begin(keys=keys, account=run_account(PLAN, "r"), software={}, policy="", time_utc=STAMP)
    draft = book.draft_plan(silos=NAMES, threshold=3, floor=3, n_c=1, manifest=b"", time_utc=STAMP)
    parties = [Party(name, then[name]) for name in NAMES]
    book.append(draft, list(draft.signed_by(*parties).sigs), keys)
    charge = book.charge(1, 0, time_utc=STAMP)
    release = book.draft_release(
        charge, survivors=NAMES[:3], threshold=3, transcript=bytes(32), time_utc=STAMP
    )
    book.append(release, list(release.signed_by(*parties[:3]).sigs), keys)
    world.rotate("--old", world.old)
    assert ledger_path(world.storage, run).exists()
    world.ledger.unlink()
    if kept != "former-keys.json":
        (world.fresh / "former-keys.json").unlink()
    if kept != "rosters":
        shutil.rmtree(world.fresh / "rosters")
    if not kept:  # nothing is left that knows the old key: no budget rather than a full one
        with pytest.raises(PlanError, match=r"forgotten\. Restore former-keys\.json"):
            world.opened(world.fresh)
        return
    found = world.opened(world.fresh).budget
    assert [one.run_id for one in found.charges] == [run.hex]


def test_former_keys_are_read_from_signed_rosters_only(world: World) -> None:
    """All versions that the authority signed; a list of another form is refused."""
    listed = listed_keys(world.fresh, [world.roster])
    assert listed[SILO] == [load_identity(one).public for one in (world.old, world.fresh)]
    assert len(listed["coordinator"]) == 1
    (world.fresh / "former-keys.json").write_text('{"a": 1}')
    with pytest.raises(CredentialError, match="list of public keys"):
        load_party(world.fresh, SILO)


def test_a_party_s_keys_have_the_oldest_first(world: World) -> None:
    """By signed rosters, whatever order the notes have; a key that none lists is older than all."""
    first, second = (load_identity(one).public for one in (world.old, world.fresh))
    unlisted = bytes(32)
    for key in (second, first, unlisted, first):
        note_former(world.fresh, key)
    assert load_party(world.fresh, SILO).public_keys == (unlisted, first, second)
    shutil.copytree(world.fresh / "rosters", world.old / "rosters", dirs_exist_ok=True)
    shutil.copy(world.fresh / "roster.json", world.old / "roster.json")
    assert load_party(world.old, SILO).public_keys == (first, second)  # whoever holds a retired key
    shutil.rmtree(world.fresh / "rosters")
    assert load_party(world.fresh, SILO).former == (second, unlisted, first)


def test_a_silo_finds_a_retired_key_s_entry_by_itself(world: World) -> None:
    """A ledger of the present key, and its thief says that it is lost: not for another rotation."""
    world.ledger.unlink()
    world.opened(world.fresh)
    old, new = (load_identity(one) for one in (world.old, world.fresh))
    ledger = Ledger(FileLedgerStore(world.ledger))
    body: dict[str, Json] = {
        "name": SILO, "old": new.public.hex(), "key": old.public.hex(), "lost": True
    }  # fmt: skip
    draft = ledger.draft(Kind.KEY_ROTATE, body, time_utc=STAMP)
    ledger.append(draft.signed_by(Party(SILO, old)))
    with pytest.raises(LedgerIntegrityError, match="older key"):
        world.opened(world.fresh)

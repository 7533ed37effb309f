"""`secagg audit`: what it finds goes into the ledger of the plan that it measured."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dp.audit import AuditFigure
from dp.verify import verify_ledger
from fl.privacy import privacy_of
from secagg.ids import RunId
from secagg.keys import IdentityKey
from secagg.rng import SystemRng
from secagg.testing import make_federation
from services.cli.main import app
from services.enrollment.request import enroll
from services.errors import CredentialError, InvalidRequestError
from services.ledger.audits import RehearsalFacts, record_audit
from services.ledger.parties import COORDINATOR, Party, public_keys
from services.ledger.run_book import RunBook, ledger_path, run_account
from services.plans import build_plan
from services.report.facts import read_facts
from services.report.page import html
from services.run_config import RunConfig
from services.security.credentials import load_identity
from services.security.identity import Role
from services.settings import load_config

NOW = "2026-11-30T12:00:00Z"
RUN = RunId(b"audit-of-a-plan!")
FEDERATION = make_federation(3, seed=4)
SETTINGS = """
[run]
name = "audited"
rounds = 2
min_silos = 3

[local]
steps = 2
learning_rate = 0.1

[task]
name = "fl.testing:toy_task"

[privacy]
mode = "silo"
adjacency = "zero_out"
clip = 1.0
z = 3.0
delta = 1e-5
dimension = 1
"""


def settings(folder: Path) -> Path:
    """A run's settings."""
    path = folder / "run.toml"
    path.write_text(SETTINGS, encoding="utf-8")
    return path


def written(folder: Path, key: IdentityKey) -> tuple[Path, dict[str, bytes]]:
    """A run's ledger with this plan, and the keys that it verifies with."""
    plan = privacy_of(build_plan(load_config(settings(folder), RunConfig), max_silos=3))
    assert plan is not None
    keys = {**public_keys(FEDERATION.roster), COORDINATOR: key.public}
    book = RunBook(folder, RUN, Party(COORDINATOR, key), plan)
    book.begin(keys=keys, account=run_account(plan, "r"), software={}, policy="", time_utc=NOW)
    names = [seat.silo.name for seat in FEDERATION.roster.seats]
    parties = [Party(name, FEDERATION.identities[place]) for place, name in enumerate(names, 1)]
    draft = book.draft_plan(silos=names, threshold=3, floor=3, n_c=1, manifest=b"", time_utc=NOW)
    book.append(draft, list(draft.signed_by(*parties).sigs), keys)
    return ledger_path(folder, RUN), keys


def facts_of(ledger: Path, lower: float) -> RehearsalFacts:
    """A finding about the plan that the ledger holds."""
    (plan,) = read_facts(ledger.read_bytes().splitlines()).plans
    return RehearsalFacts(
        plan_digest=plan.plan.digest.hex(),
        rounds=1,
        silos=7,
        commitment="c0",
        seed="5e",
        figures={"cosine": AuditFigure(estimate=lower + 1, lower=lower, claimed=1.05)},
    )


def test_the_command_appends_what_it_found_and_the_report_shows_it(tmp_path: Path) -> None:
    """Seed and commitment too. An audit of 95 % may alarm; exit code and verifier then agree."""
    home = tmp_path / "coordinator"
    enroll(home, name="hub", role=Role.COORDINATOR, hosts=("localhost",), rng=SystemRng())
    ledger, keys = written(tmp_path, load_identity(home))
    arguments = [
        *("audit", "--config", str(settings(tmp_path)), "--canaries", "4", "--rounds", "1"),
        *("--dimension", "2000", "--ledger", str(ledger), "--directory", str(home), "--json"),
    ]
    done = CliRunner().invoke(app, arguments)
    entries = [json.loads(line) for line in ledger.read_bytes().splitlines()]
    audits = [one["body"] for one in entries if one["kind"] == "AUDIT_RESULT"]
    assert [one["method"] for one in audits] == ["cosine", "one-run"]
    assert {one["silos"] for one in audits} == {4 + 3}
    assert all(len(one["seed"]) == len(one["commitment"]) == 64 for one in audits)
    is_alarm = any(float(one["lower"]) > float(one["claimed"]) for one in audits)
    assert done.exit_code == int(is_alarm), done.output
    lines = ledger.read_bytes().splitlines()
    pytest.importorskip("dp_accounting")
    assert verify_ledger(lines, keys).ok is not is_alarm
    assert "cosine" in html(read_facts(lines))


def test_half_of_the_pair_of_options_is_refused(tmp_path: Path) -> None:
    """A ledger without its writer's key, before anything is rehearsed."""
    arguments = ["audit", "--config", str(settings(tmp_path)), "--ledger", "x.jsonl"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code != 0


def test_a_bound_above_the_claim_is_a_finding_for_good(tmp_path: Path) -> None:
    """The verifier and the report both raise it."""
    pytest.importorskip("dp_accounting")
    ledger, keys = written(tmp_path, FEDERATION.coordinator)
    record_audit(ledger, FEDERATION.coordinator, facts_of(ledger, 2.5), time_utc=NOW)
    lines = ledger.read_bytes().splitlines()
    report = verify_ledger(lines, keys)
    assert [one.text for one in report.findings.items] == [
        "an audit found more than the claimed epsilon"
    ]
    assert "ALARM" in html(read_facts(lines))


def test_only_the_writer_of_a_ledger_of_this_plan_appends(tmp_path: Path) -> None:
    """Another key, and another plan."""
    ledger, _ = written(tmp_path, FEDERATION.coordinator)
    before = ledger.read_bytes()
    found = facts_of(ledger, 1.0)
    with pytest.raises(CredentialError):
        record_audit(ledger, FEDERATION.identities[1], found, time_utc=NOW)
    other = RehearsalFacts(
        plan_digest="0" * 64, rounds=1, silos=7, commitment="", seed="", figures=found.figures
    )
    with pytest.raises(InvalidRequestError):
        record_audit(ledger, FEDERATION.coordinator, other, time_utc=NOW)
    assert ledger.read_bytes() == before

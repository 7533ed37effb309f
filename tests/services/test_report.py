"""Reports and tables: what a ledger says, in words that are true, and read back."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dp.audit import AuditFigure
from dp.canonical import Json
from dp.entries import Entry, Kind
from dp.plan import Adjacency, Mode, Participation, PrivacyPlan, Unit
from secagg.ids import RunId
from secagg.testing import make_federation
from services.cli.main import app
from services.errors import CorruptError
from services.ledger.audits import RehearsalFacts, record_audit
from services.ledger.parties import COORDINATOR, Party, public_keys
from services.ledger.run_book import RunBook, ledger_path, run_account
from services.report.facts import read_facts
from services.report.page import html
from services.report.plots import Plot, bars
from services.report.table import from_csv, read_lines, to_csv

NOW = "2026-11-30T12:00:00Z"
FEDERATION = make_federation(4, seed=8)
RUN = RunId(b"report-of-a-run!")


def ring_plan() -> PrivacyPlan:
    """Joint noise for patients."""
    return PrivacyPlan(
        unit=Unit.PATIENT,
        adjacency=Adjacency.ZERO_OUT,
        mode=Mode.FEDSGD,
        clip=1.0,
        z=3.0,
        rounds=4,
        delta=1e-5,
        dimension=31,
        cohort_size=4,
        denominator=400.0,
        n_c=1,
        h_dp=2,
        max_units_per_silo=200,
    )


def written(tmp_path: Path, plan: PrivacyPlan, *, audit: bool = False) -> list[bytes]:
    """A ledger with a round that was released, one that failed, and one that is open."""
    writer = Party(COORDINATOR, FEDERATION.coordinator)
    keys = public_keys(FEDERATION.roster)
    book = RunBook(tmp_path, RUN, writer, plan)
    book.begin(
        keys=keys,
        account=run_account(plan, "a run <with markup>"),
        software={"secagg": "0.1"},
        policy="",
        time_utc=NOW,
    )
    names = [seat.silo.name for seat in FEDERATION.roster.seats]
    parties = [Party(name, FEDERATION.identities[place]) for place, name in enumerate(names, 1)]
    draft = book.draft_plan(silos=names, threshold=3, floor=3, n_c=1, manifest=b"", time_utc=NOW)
    book.append(draft, list(draft.signed_by(*parties).sigs), keys)
    for number in (1, 2, 3):
        charge = book.charge(number, 0, time_utc=NOW)
        if number == 1:
            release = book.draft_release(
                charge, survivors=names[:3], threshold=3, transcript=b"\x02" * 32, time_utc=NOW
            )
            book.append(release, list(release.signed_by(*parties[:3]).sigs), keys)
        if number == 2:
            book.end(charge, reason="x", proof=None, checker=lambda *_: False, time_utc=NOW)
    if audit:
        figure = AuditFigure(estimate=math.inf, lower=9.0, claimed=3.0)
        facts = RehearsalFacts(
            plan_digest=plan.digest.hex(),
            rounds=1,
            silos=7,
            commitment="c0",
            seed="5e",
            figures={"one-run": figure},
        )
        record_audit(ledger_path(tmp_path, RUN), FEDERATION.coordinator, facts, time_utc=NOW)
    book.ledger.refresh()
    return book.lines(0)


class Tags(HTMLParser):
    """Checks that tags are closed in order, and collects what would be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [str(value) for name, value in attrs if name in {"src", "href"}]
        if tag not in {"meta", "polyline", "line", "rect", "circle"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in {"polyline", "line", "rect", "circle"}:
            assert self.open.pop() == tag


def test_limits_and_keys_that_were_changed_and_charges_that_came_back(tmp_path: Path) -> None:
    """A raised limit is shown as raised, and no return is called proven."""
    book = RunBook(tmp_path, RUN, Party(COORDINATOR, FEDERATION.coordinator), ring_plan())
    written(tmp_path, ring_plan())
    book.ledger.refresh()
    writer, ledger = Party(COORDINATOR, FEDERATION.coordinator), book.ledger
    account = read_facts(book.lines(0)).account
    assert account is not None
    raised = replace(account, epsilon=5000.0, year_epsilon=7.0).to_body()
    spent = next(one for one in reversed(ledger.entries) if one.kind is Kind.ROUND_INTENT)
    empty: dict[str, Json] = {"kind": "abandon", "statements": []}
    back: dict[str, Json] = {"intent": spent.entry_hash, "returned": True, "proof": empty}
    name, old, new = "silo-1", FEDERATION.identities[1].public, FEDERATION.identities[2].public
    lost: dict[str, Json] = {"name": name, "old": old.hex(), "key": new.hex()}
    for kind, body in (
        (Kind.BUDGET_SET, raised),
        (Kind.BUDGET_SET, raised),
        (Kind.KEY_ROTATE, {**lost, "lost": True}),
        (Kind.KEY_ROTATE, {**lost, "accepted": "00" * 64}),
        (Kind.ROUND_ABORT, back),
    ):
        ledger.append(ledger.draft(kind, body, time_utc=NOW).signed_by(writer))
    page = html(read_facts(book.lines(0)))
    assert f"limit in all: none → {account.epsilon:g}" in page
    assert f"limit in all: {account.epsilon:g} → 5000; limit a year: none → 7" in page
    assert "other terms, the same limits" in page
    assert "new key of silo-1, the old one lost" in page
    assert "new key of silo-1, both keys signed" in page
    assert "1 charges came back (this page checks no proof)" in page
    assert "with proof" not in page
    assert "<td>n_c of threshold and returns</td><td>1</td>" in page


def test_the_page_says_what_is_promised_spent_and_assumed(tmp_path: Path) -> None:
    """Three trust lines, the words, what is left, owners; well-formed and self-contained."""
    facts = read_facts(written(tmp_path, ring_plan()))
    page = html(facts)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.loaded == []
    assert "<script" not in page
    assert "&lt;with markup&gt;" in page
    for words in ("(enforced)", "if secure aggregation failed wholly", "one patient", "1.0000"[:2]):
        assert words in page
    assert "At most 1 of the silos collude" in page
    assert f"{facts.spent:.4f}" in page
    claimed = facts.plans[0].claimed
    assert claimed["nobody_colludes"] < claimed["enforced"] < claimed["aggregation_fails"]
    assert [charge.state.value for charge in facts.charges] == ["settled", "open", "open"]
    # In words: at epsilon e a guess is right in at most e^eps/(1+e^eps) of the cases.
    assert re.search(r"in at most <b>\d\d\.\d</b> of 100", page)


def test_a_sampled_plan_has_a_page_too(tmp_path: Path) -> None:
    """Poisson-sampled events: the curves come from RDP."""
    pytest.importorskip("opacus")
    plan = PrivacyPlan(
        unit=Unit.RECORD,
        adjacency=Adjacency.ZERO_OUT,
        mode=Mode.ISRL,
        clip=1.0,
        z=1.0,
        rounds=3,
        delta=1e-5,
        dimension=3,
        cohort_size=4,
        denominator=4.0,
        q=0.1,
        participation=Participation.POISSON,
        local_steps=2,
        max_units_per_silo=100,
    )
    facts = read_facts(written(tmp_path, plan))
    assert facts.mu is None
    page = html(facts)
    assert "Poisson sampled with q = 0.1" in page
    assert "Which records were sampled stays secret" in page


def test_an_audit_beyond_the_claim_is_an_alarm(tmp_path: Path) -> None:
    """Lower bound above the claim: look for a noise bug."""
    page = html(read_facts(written(tmp_path, ring_plan(), audit=True)))
    assert "ALARM" in page


def test_the_table_reads_back(tmp_path: Path) -> None:
    """One row an entry, the entry itself in the last column."""
    lines = written(tmp_path, ring_plan())
    table = to_csv(read_facts(lines))
    assert from_csv(table) == lines
    assert read_lines(table) == lines
    assert read_lines(b"".join(line + b"\n" for line in lines) + b"torn") == lines
    with pytest.raises(CorruptError):
        from_csv(b"a,b\n1,2\n")


def test_the_table_verifies_like_the_ledger(tmp_path: Path) -> None:
    """An auditor who was sent the CSV only."""
    pytest.importorskip("dp_accounting")
    lines = written(tmp_path, ring_plan())
    table, keys = tmp_path / "report.csv", tmp_path / "keys.json"
    table.write_bytes(to_csv(read_facts(lines)))
    known = {name: key.hex() for name, key in public_keys(FEDERATION.roster).items()}
    keys.write_text(json.dumps(known), encoding="utf-8")
    command = ["ledger", "verify", str(table), "--keys", str(keys)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    table.write_bytes(table.read_bytes().replace(b"ROUND_ABORT", b"ROUND_BLESS"))
    assert CliRunner().invoke(app, command).exit_code != 0


def test_a_plan_of_two_runs_is_shown_once(tmp_path: Path) -> None:
    """As in a data set's ledger, which holds each run's commitment."""
    lines = written(tmp_path, ring_plan())
    entries = [Entry.from_line(line) for line in lines]
    commit = next(one for one in entries if one.kind is Kind.PLAN_COMMIT)
    again = replace(commit, seq=len(entries), prev_hash=entries[-1].entry_hash, run_id="cd" * 16)
    assert len(read_facts([*lines, again.to_line()]).plans) == 1
    other = replace(again, body={**commit.body, "silos": ["a"]})
    assert len(read_facts([*lines, other.to_line()]).plans) == 2


def test_an_empty_ledger_has_spent_nothing() -> None:
    """DPA-01: epsilon 0, and no crash."""
    facts = read_facts([])
    assert facts.spent == 0.0
    with pytest.raises(CorruptError):
        html(facts)
    with pytest.raises(CorruptError):
        read_facts([b"{}"])


def test_plots_without_points_and_with_one() -> None:
    """No axis of nothing; a single release is a dot."""
    assert "Nothing" in Plot(title="t", points=[], x_label="x", y_label="y").svg()
    assert "<circle" in Plot(title="t", points=[(1.0, 2.0)], x_label="x", y_label="y").svg()
    assert "<rect" in bars("t", [("a & b", 1.0, 2.0)])

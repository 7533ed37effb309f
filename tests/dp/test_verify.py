"""The offline verifier: a true ledger passes, every lie is found, and nothing heavy is needed."""

import copy
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dp.account import intent_for
from dp.budget import Budget
from dp.canonical import decimal
from dp.charges import Release
from dp.closed_form import gaussian_epsilon
from dp.commitments import genesis_body, plan_commit_body
from dp.entries import Kind
from dp.errors import PlanError
from dp.events import GaussianEvent
from dp.filters import Filter, FilterKind
from dp.ledger import Head, Ledger, LedgerKind, SignedHead, sign_head
from dp.ledger_testing import MemoryLedgerStore
from dp.offline import protocol_fields
from dp.plan import (
    AdaptiveClip,
    Adjacency,
    MetricRelease,
    Mode,
    Noise,
    Participation,
    PrivacyPlan,
    Unit,
    Weights,
    round_event,
)
from dp.recount import UnreadableError, grid_sensitivity, number, read_event
from dp.verify import main, verify_ledger
from tests.dp.signed_ledger import (
    ABORT,
    AUDIT,
    BUDGET,
    CLOSE,
    COMMIT,
    CORRECTION,
    DEAD,
    INTENT,
    INTENT_2,
    KEYS,
    LEDGER,
    LIMIT,
    METRIC,
    NOW,
    PLAN,
    RELEASE,
    RETURN,
    RUN,
    SAMPLED,
    SIGNERS,
    SILOS,
    STEPS,
    Steps,
    abandon,
    account,
    append,
    chained,
    lines,
    steps_of,
    written,
)

pytest.importorskip("dp_accounting")

ROOT = Path(__file__).parents[2]


class TestTrueLedgers:
    @pytest.mark.parametrize(
        "plan",
        [
            PLAN,
            SAMPLED,
            replace(PLAN, noise=Noise.SKELLAM),
            replace(PLAN, mode=Mode.CENTRAL, n_c=0, h_dp=0, padding=0),
            replace(
                PLAN, mode=Mode.ISRL, unit=Unit.RECORD, n_c=0, h_dp=0, padding=0, z=8.0,
                local_steps=3,
            ),
            replace(PLAN, adjacency=Adjacency.REPLACE_ONE, participation=Participation.FIXED),
            replace(
                PLAN, cohort_size=100, denominator=100.0, dimension=101,
                adaptive=AdaptiveClip(count_noise_std=6.56, clip_min=0.1, clip_max=10.0),
            ),
            replace(SAMPLED, metrics=MetricRelease(loss_cap=3.0, z=30.0)),
            replace(
                PLAN, mode=Mode.ISRL, unit=Unit.RECORD, n_c=0, h_dp=0, padding=0, z=8.0,
                local_steps=3, metrics=MetricRelease(loss_cap=3.0), max_units_per_silo=100,
            ),
        ],
        ids=[
            *("silo", "fedsgd", "skellam", "central", "isrl", "replace-one", "adaptive"),
            *("metrics", "isrl-metrics"),
        ],
    )  # fmt: skip
    def test_every_kind_of_plan_verifies(self, plan: PrivacyPlan) -> None:
        """Written by the service's side, recomputed by the auditor's."""
        report = verify_ledger(lines(written(plan)), KEYS)
        assert report.findings.items == []
        assert report.ok
        assert report.entries == 15

    def test_the_report_says_the_figures(self) -> None:
        """Three trust lines, both relations, the account, the audit."""
        text = "\n".join(verify_ledger(lines(LEDGER), KEYS).figures)
        for expected in ("8.5999", "6.1485", "20.6835", "unit silo, zero_out", "at z/2", "cosine"):
            assert expected in text

    def test_further_limits_are_checked(self) -> None:
        """All four."""
        limits: dict[str, Any] = {"local_epsilon": 30.0, "run_epsilon": 9.0, "year_epsilon": 9.5}
        assert verify_ledger(lines(written(**limits)), KEYS).ok

    @pytest.mark.parametrize("order", [None, 4])
    def test_each_filter_is_recomputed(self, order: int | None) -> None:
        """Gaussian rounds under both; and what came back counts nothing."""
        kind = FilterKind.GDP if order is None else FilterKind.RDP
        rule = Filter(kind=kind, delta=1e-5, order=order)
        for rounds in (0, 2):
            assert verify_ledger(lines(written(rounds=rounds, filter=rule)), KEYS).ok

    @pytest.mark.parametrize("is_early", [False, True], ids=["planned", "as early silos wrote"])
    def test_a_data_set_ledger_converts_and_verifies(self, is_early: bool) -> None:
        """One writer, another relation: replace-one patients from zero-out records.

        What was released is the planned event, or the booked one; nothing below that verifies.
        """
        plan = replace(PLAN, unit=Unit.RECORD, mode=Mode.FEDSGD, z=40.0)
        ledger = Ledger(MemoryLedgerStore())
        body = genesis_body(
            LedgerKind.DATA_SET, writer="silo-a", subject="heart", keys={}, policy="", software={}
        )
        append(ledger, Kind.GENESIS, body, "silo-a")
        budget = Budget(ledger, SIGNERS["silo-a"])
        own = account(plan, unit=Unit.PATIENT, adjacency=Adjacency.REPLACE_ONE, records_per_unit=2)
        budget.set(own, time_utc=NOW)
        commit = plan_commit_body(plan, silos=SILOS, threshold=7, floor=7, manifest="")
        append(ledger, Kind.PLAN_COMMIT, commit, "silo-a")
        made = intent_for(plan, run_id=RUN, round_number=1, epsilon=LIMIT)
        charge = budget.charge(made, time_utc=NOW)
        assert isinstance(made.event, GaussianEvent)
        assert charge.event == replace(made.event, z=10.0)
        real = charge.event if is_early else made.event
        release = Release(survivors=(), threshold=1, transcript="", event=real, audit={})
        budget.settle(charge.entry_hash, release, time_utc=NOW)
        assert verify_ledger(lines(ledger), KEYS).findings.items == []
        steps = steps_of(ledger)
        for name, value, text in (("z", "9.9", "less noise"), ("count", 2, "more was released")):
            changed = copy.deepcopy(steps)
            changed[-1]["body"]["event"][name] = value
            found = verify_ledger(chained(changed), KEYS).findings.items
            assert any(text in one.text for one in found)

    def test_many_rounds_verify(self) -> None:
        """Enough rounds for a quadratic reader to be noticed."""
        plan = replace(PLAN, z=40.0, rounds=1000, allow_low_utility=True)
        report = verify_ledger(lines(written(plan, rounds=300)), KEYS)
        assert report.ok
        assert report.entries == 11 + 600


# --- lies, properly signed -----------------------------------------------------------------


def test_the_script_is_the_ledger() -> None:
    """Chaining it again gives a ledger that verifies."""
    assert chained(STEPS) == lines(LEDGER)
    kinds = [step["kind"] for step in STEPS]
    assert kinds[RETURN] == "ROUND_ABORT"
    assert kinds[METRIC] == "METRIC_RELEASE"
    assert kinds[CLOSE - 1] == "CORRECTION"


def set_at(place: int, *path: str, value: Any) -> Callable[[Steps], None]:
    """A lie that puts a value into a body."""

    def change(steps: Steps) -> None:
        body = steps[place]["body"]
        for name in path[:-1]:
            body = body[name]
        body[path[-1]] = value

    return change


def in_each_statement(**values: str) -> Callable[[Steps], None]:
    """A lie in every statement of a proof."""

    def change(steps: Steps) -> None:
        for statement in steps[RETURN]["body"]["proof"]["statements"]:
            statement.update(values)

    return change


def drop(place: int) -> Callable[[Steps], None]:
    """A lie that leaves an entry out; later references go to nothing."""

    def change(steps: Steps) -> None:
        steps[place] = {
            "kind": "CORRECTION",
            "body": {"refers": "@0"},
            "run_id": "",
            "signers": ["coordinator"],
        }

    return change


def sign_by(place: int, *signers: str) -> Callable[[Steps], None]:
    """A lie that too few have signed."""

    def change(steps: Steps) -> None:
        steps[place]["signers"] = sorted(signers)

    return change


def swap(one: int, two: int) -> Callable[[Steps], None]:
    """A lie about the order."""

    def change(steps: Steps) -> None:
        steps[one], steps[two] = steps[two], steps[one]

    return change


LIES: dict[str, tuple[Callable[[Steps], None], str]] = {
    "epsilon before": (set_at(INTENT_2, "eps_before", value="0.1"), "eps_before"),
    "epsilon after": (set_at(INTENT, "eps_after", value="0.5"), "eps_after"),
    "limit passed": (set_at(BUDGET, "epsilon", value="1"), "its limit is 1"),
    "run limit passed": (set_at(BUDGET, "run_epsilon", value="1"), "run_epsilon"),
    "year limit passed": (set_at(BUDGET, "year_epsilon", value="1"), "year_epsilon"),
    "local limit passed": (set_at(BUDGET, "local_epsilon", value="1"), "local_epsilon"),
    "filter unknown": (set_at(BUDGET, "filter", value="pld"), "cannot be read"),
    "order missing": (set_at(BUDGET, "filter", value="rdp"), "cannot be read"),
    "delta of one": (set_at(BUDGET, "delta", value="1"), "cannot be read"),
    "no budget": (drop(BUDGET), "charged to no budget"),
    "claimed too small": (set_at(COMMIT, "claimed", "enforced", "eps", value="8.59"), "enforced"),
    "claimed too large": (set_at(COMMIT, "claimed", "enforced", "eps", value="8.7"), "enforced"),
    "no guarantee claimed": (
        set_at(COMMIT, "claimed", "nobody_colludes", "eps", value="inf"), "nobody_colludes",
    ),
    "sensitivity": (set_at(COMMIT, "grid_sensitivity", value="4096"), "grid sensitivity"),
    "plan changed": (set_at(COMMIT, "plan", "rounds", value=40), "not the plan's hash"),
    "floor too low": (set_at(COMMIT, "floor", value=6), "below n_c"),
    "plan not signed by a silo": (sign_by(COMMIT, "coordinator", *SILOS[:9]), "lacks signatures"),
    "plan missing": (drop(COMMIT), "no PLAN_COMMIT"),
    "other z": (set_at(INTENT, "event", "z", value="5"), "not the one that was planned"),
    "other unit": (set_at(INTENT, "unit", value="record"), "unit is not the plan's"),
    "booked less": (set_at(INTENT, "booked", "z", value="8"), "not what is released"),
    "integers not booked": (set_at(INTENT, "event", "delta_impl", value="0"), "integers cost"),
    "adjacency converted not": (
        set_at(BUDGET, "adjacency", value="replace_one"), "not what is released",
    ),
    "unit not convertible": (set_at(BUDGET, "unit", value="patient"), "no rule converts"),
    "charged twice": (set_at(INTENT_2, "round", value=1), "charged before"),
    "released before charged": (swap(INTENT, RELEASE), "no open INTENT"),
    "released twice": (set_at(RELEASE + 2, "intent", value=f"@{INTENT}"), "no open INTENT"),
    "less noise released": (set_at(RELEASE, "event", "z", value="3.9"), "less noise"),
    "more sums released": (set_at(RELEASE, "event", "count", value=50), "more was released"),
    "more of delta released": (
        set_at(RELEASE, "event", "delta_impl", value="0.000009"), "more was released",
    ),
    "too few survivors": (set_at(RELEASE, "survivors", value=list(SILOS[:6])), "at least 7"),
    "strangers survive": (set_at(RELEASE, "survivors", value=[*SILOS[:7], "x"]), "at least 7"),
    "threshold lowered": (set_at(RELEASE, "threshold", value=5), "fewer signatures"),
    "release not signed": (sign_by(RELEASE, *SILOS[:6]), "lacks signatures"),
    "release names nobody": (set_at(RELEASE, "survivors", value=None), "lacks signatures"),
    "event unknown": (set_at(INTENT, "event", "type", value="laplace"), "unknown type"),
    "event with a float field": (set_at(INTENT, "event", "z", value="4e0"), "decimal"),
    "event out of range": (set_at(INTENT, "event", "count", value=-1), "out of range"),
    "event with more": (set_at(INTENT, "event", "extra", value="1"), "other fields"),
    "body missing a field": (lambda steps: steps[INTENT]["body"].pop("round"), "cannot be read"),
    "returned without quorum": (
        lambda steps: steps[RETURN]["body"]["proof"]["statements"].pop(), "without a quorum",
    ),
    "returned by an early ledger": (
        lambda steps: steps[COMMIT]["body"].pop("n_c"), "no commitment of its run",
    ),
    "n_c below the plan's": (set_at(COMMIT, "n_c", value=2), "not that of its floor"),
    "t above that of its floor": (set_at(COMMIT, "threshold", value=7), "not that of its floor"),
    "committed twice, the second time to fewer": (
        lambda steps: steps.insert(COMMIT + 1, {
            **copy.deepcopy(steps[COMMIT]), "signers": ["coordinator", *SILOS[:8]],
            "body": {**copy.deepcopy(steps[COMMIT]["body"]), "silos": list(SILOS[:8])},
        }),
        "committed to before",
    ),
    "returned for another round": (set_at(DEAD, "round", value=9), "without a quorum"),
    "returned by forged statements": (
        in_each_statement(signature="00" * 64), "without a quorum",
    ),
    "returned by garbage": (in_each_statement(message="00"), "without a quorum"),
    "returned twice": (set_at(ABORT, "returned", value=True), "cannot be read"),
    "returned what was not open": (set_at(RETURN, "intent", value="@0"), "no open INTENT"),
    "audit above the claim": (set_at(AUDIT, "lower", value="3.3"), "an audit found more"),
    "audit above an invented claim": (
        lambda steps: steps[AUDIT]["body"].update(lower="50", claimed="1000"),
        "the plan's noise gives",
    ),
    "audit of more rounds than the plan has": (set_at(AUDIT, "rounds", value=51), "of the plan's"),
    "audit of no rounds": (set_at(AUDIT, "rounds", value=0), "of the plan's"),
    "audit of an unknown plan": (set_at(AUDIT, "plan_digest", value="f" * 64), "no PLAN_COMMIT"),
    "audit of two silos": (set_at(AUDIT, "silos", value=2), "audited silos"),
    "audit of no number of silos": (set_at(AUDIT, "silos", value="7"), "audited silos"),
    "audit above what its silos' noise allows": (
        lambda steps: steps[AUDIT]["body"].update(silos=7), "the plan's noise gives",
    ),
    "audit by an unknown method": (set_at(AUDIT, "method", value="trust me"), "no known method"),
    "sampling above an invented claim": (
        lambda steps: steps[AUDIT]["body"].update(method="sampling", lower="1.3", claimed="2"),
        "the plan's noise gives at most 1",
    ),
    "more units sampled than is claimed": (
        lambda steps: steps[AUDIT]["body"].update(method="sampling", lower="0.3", claimed="0.25"),
        "more than the claimed rate",
    ),
    "correction of nothing": (set_at(CORRECTION, "refers", value="0" * 64), "no earlier entry"),
    "after the end": (swap(CORRECTION, CLOSE), "it follows CLOSE"),
    "a second beginning": (
        lambda steps: steps.append({**steps[0], "signers": ["coordinator"]}), "begins only once",
    ),
    "key taken over": (
        lambda steps: steps.insert(1, {
            "kind": "KEY_ROTATE", "run_id": "", "signers": ["coordinator"],
            "body": {"name": "silo-a", "old": KEYS["silo-a"].hex(), "key": "00" * 32},
        }),
        "lacks the signature of 'silo-a'",
    ),
    "kind of ledger is a list": (set_at(0, "ledger", value=[]), "no known kind"),
    "writer is a list": (set_at(0, "writer", value=["coordinator"]), "lacks signatures"),
    "writer is an object": (set_at(0, "writer", value={}), "lacks signatures"),
    "budget of no data set": (
        lambda steps: steps[BUDGET]["body"].pop("data_set"), "BUDGET_SET cannot be read",
    ),
    "budget of no unit": (
        lambda steps: steps[BUDGET]["body"].pop("unit"), "BUDGET_SET cannot be read",
    ),
    "no writer": (set_at(0, "writer", value=None), "lacks signatures"),
    "no kind": (set_at(0, "ledger", value="x"), "no known kind"),
    "plan for nobody": (set_at(COMMIT, "silos", value=[]), "lacks signatures"),
    "steps of no size": (set_at(COMMIT, "plan", "mode", value="isrl"), "grid|hash"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_signed_lie_is_found(name: str) -> None:
    """The right keys do not make it true; the finding says what is wrong."""
    change, reason = LIES[name]
    steps = copy.deepcopy(STEPS)
    change(steps)
    report = verify_ledger(chained(steps), KEYS)
    assert not report.ok
    texts = " | ".join(finding.text for finding in report.findings.items)
    assert any(part in texts for part in reason.split("|")), texts


@pytest.mark.parametrize(
    ("method", "claimed", "is_right"),
    [
        ("sampling", "0.1", True), ("sampling", "0.11", False), ("one-run", "0.5", True),
        ("one-run", "3", False), ("cosine", "3", True), ("cosine", "6", False),
    ],
)  # fmt: skip
def test_an_audit_of_a_plan_that_samples(method: str, claimed: str, is_right: bool) -> None:
    """Each method has a claim of its own: the rate, the sampled epsilon, that of all units."""
    steps = steps_of(written(SAMPLED, rounds=1))
    place = next(n for n, one in enumerate(steps) if one["kind"] == "AUDIT_RESULT")
    steps[place]["body"].update(method=method, lower="0.05", claimed=claimed)
    found = [one.text for one in verify_ledger(chained(steps), KEYS).findings.items]
    assert ("the plan's noise gives" in " | ".join(found)) is not is_right, found


@pytest.mark.parametrize(
    ("mode", "silos", "excess"),
    [
        (Mode.SILO, 7, 7 / 5), (Mode.SILO, 3, 3 / 2), (Mode.ISRL, 3, 3.0), (Mode.CENTRAL, 43, 1.0),
    ],
)  # fmt: skip
def test_an_audit_claims_what_its_silos_noise_allows(mode: Mode, silos: int, excess: float) -> None:
    """Neither more, as with the plan's own noise, nor less than a rehearsal claims."""
    plan = PLAN
    if mode is not Mode.SILO:
        plan = replace(PLAN, mode=Mode.CENTRAL, n_c=0, h_dp=0, padding=0)
    if mode is Mode.ISRL:
        plan = replace(plan, mode=mode, unit=Unit.RECORD, z=8.0, local_steps=3)
    steps = steps_of(written(plan, rounds=1))
    place = next(n for n, one in enumerate(steps) if one["kind"] == "AUDIT_RESULT")
    count = plan.local_steps if mode is Mode.ISRL else 1
    claim = gaussian_epsilon(math.sqrt(count / excess) / plan.z, plan.delta)
    for factor, is_right in ((1.0, True), (1.001, False)):
        steps[place]["body"].update(silos=silos, claimed=decimal(claim * factor))
        found = [one.text for one in verify_ledger(chained(steps), KEYS).findings.items]
        assert ("the plan's noise gives" in " | ".join(found)) is not is_right, found


def test_a_conversion_of_sampled_events_is_found() -> None:
    """No rule for q < 1."""
    steps = steps_of(written(SAMPLED, rounds=1))
    steps[BUDGET]["body"]["adjacency"] = "replace_one"
    found = verify_ledger(chained(steps), KEYS).findings.items
    assert any("only q = 1" in one.text for one in found)


@pytest.mark.parametrize("steps_", [0, "3", None])
def test_a_plan_without_steps_cannot_be_read(steps_: object) -> None:
    """In isrl every local step is a release."""
    plan = replace(PLAN, mode=Mode.ISRL, unit=Unit.RECORD, n_c=0, h_dp=0, padding=0, z=8.0)
    steps = steps_of(written(plan, rounds=0))
    steps[COMMIT]["body"]["plan"]["local_steps"] = steps_
    found = verify_ledger(chained(steps), KEYS).findings.items
    assert any("PLAN_COMMIT cannot be read (local_steps)" in one.text for one in found)


def test_a_filter_that_cannot_sum_is_found() -> None:
    """A gdp account with sampled events."""
    steps = steps_of(written(SAMPLED, rounds=1))
    steps[BUDGET]["body"].update(filter="gdp", order=None)
    found = verify_ledger(chained(steps), KEYS).findings.items
    assert any("gdp sums" in one.text for one in found)


def test_a_charge_without_noise_is_infinite() -> None:
    """NON_PRIVATE on an account is above every limit."""
    steps = copy.deepcopy(STEPS)
    bare = {"type": "non_private", "count": 1, "delta_impl": "0"}
    steps[METRIC]["body"].update(event=bare, booked=bare)
    found = verify_ledger(chained(steps), KEYS).findings.items
    assert any("epsilon is inf" in one.text for one in found)


def test_a_limit_passed_by_little_is_found() -> None:
    """A thousandth above it."""
    steps = copy.deepcopy(STEPS)
    most = max(float(step["body"].get("eps_after", "0")) for step in steps)
    for factor, good in ((1.001, True), (0.999, False)):
        steps[BUDGET]["body"]["epsilon"] = f"{most * factor:.9f}"
        assert verify_ledger(chained(steps), KEYS).ok is good


def test_integers_beyond_their_reserve_are_found() -> None:
    """More than 1 % of delta for rounding and sampler leaves no guarantee."""
    steps = copy.deepcopy(STEPS)
    for name in ("event", "booked"):
        steps[INTENT]["body"][name]["delta_impl"] = "0.0000002"
    found = verify_ledger(chained(steps), KEYS).findings.items
    assert any("epsilon is inf" in one.text for one in found)


def test_a_changed_account_is_found() -> None:
    """Only limits move."""
    steps = copy.deepcopy(STEPS)
    second = copy.deepcopy(steps[BUDGET])
    second["body"]["unit"] = "patient"
    steps.insert(CLOSE - 1, second)
    found = verify_ledger(chained(steps), KEYS).findings.items
    assert any("changes unit" in one.text for one in found)


class TestReader:
    def texts(self, changed: list[bytes], **heads: Any) -> str:
        return " | ".join(one.text for one in verify_ledger(changed, KEYS, **heads).findings.items)

    def test_damage_is_found_with_its_place(self) -> None:
        """Every line damaged in turn, in its middle."""
        for place, line in enumerate(lines(LEDGER)):
            damaged = lines(LEDGER)
            damaged[place] = line[: len(line) // 2] + b"?" + line[len(line) // 2 + 1 :]
            assert not verify_ledger(damaged, KEYS).ok

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (b"{", "no JSON"), (b"\xff", "no JSON"), (b"[" * 100_000, "no JSON"),
            (b'{"a": 1}', "canonical"), (b'{"a":1.5}', "no JSON"), (b"[]", "no entry"),
            (b"{}", "no entry"), (b'"x"', "no entry"), (b'[1.5]', "no JSON"),
        ],
    )  # fmt: skip
    def test_lines_that_are_no_entries(self, line: bytes, reason: str) -> None:
        """What follows a broken line follows from nothing."""
        assert reason in self.texts([line])
        assert reason in self.texts([lines(LEDGER)[0], line])

    def test_entries_moved_edited_or_signed_by_strangers(self) -> None:
        """Chain, hash, place and signature each speak up."""
        good = lines(LEDGER)
        assert "does not follow" in self.texts([good[0], *good[2:]])
        assert "expected 1" in self.texts([good[0], *good[2:]])
        edited = json.loads(good[1])
        edited["body"]["epsilon"] = "99"
        line = json.dumps(edited, sort_keys=True, separators=(",", ":")).encode()
        assert "not that of the content" in self.texts([good[0], line])
        assert "unknown signature" in " | ".join(
            one.text for one in verify_ledger(good, {}).findings.items
        )
        assert "not GENESIS" in self.texts([])
        broken = {**KEYS, "coordinator": bytes(31)}
        assert not verify_ledger(good, broken).ok

    def test_heads_of_peers(self) -> None:
        """A cut, a fork, a forgery, rubbish; and those that agree."""
        good = lines(LEDGER)
        head = LEDGER.head()
        silo = SIGNERS["silo-a"]
        seen = sign_head(head, silo).to_bytes()
        other = sign_head(replace(head, ledger="1" * 64), silo).to_bytes()
        agreed = verify_ledger(good, KEYS, [seen, other])
        assert agreed.ok
        assert "heads of peers compared: 1" in agreed.figures
        assert "cut" in self.texts(good[:-2], heads=[seen])
        fork = sign_head(replace(head, entry_hash="1" * 64), silo).to_bytes()
        assert "forked" in self.texts(good, heads=[fork])
        forged = SignedHead(
            head=head, signature=sign_head(Head(ledger="", seq=0, entry_hash=""), silo).signature
        )
        assert "not genuine" in self.texts(good, heads=[forged.to_bytes()])
        surrogate = SignedHead.from_bytes(seen).to_bytes().replace(b"silo-a", rb"\ud800")
        for rubbish in (b"{", b"[]", b'{"seq":1}', b"[" * 100_000, surrogate):
            assert "cannot be read" in self.texts(good, heads=[rubbish])

    def test_keys_rotate_and_old_statements_stay_genuine(self) -> None:
        """A silo's statement of before is checked against its key of then."""
        steps = copy.deepcopy(STEPS)
        fresh = Ed25519PrivateKey.from_private_bytes(b"9" * 32)
        body = {
            "name": "silo-a", "old": KEYS["silo-a"].hex(),
            "key": fresh.public_key().public_bytes_raw().hex(),
        }  # fmt: skip
        before = json.loads(chained(steps)[CLOSE - 2])["entry_hash"]
        told = {**body, "prev_hash": before}
        text = json.dumps(told, sort_keys=True, separators=(",", ":")).encode()
        rotate = {
            "kind": "KEY_ROTATE",
            "body": {**body, "accepted": fresh.sign(b"SA1/ledger-rotation\0" + text).hex()},
            "run_id": "",
            "signers": ["coordinator", "silo-a"],
        }
        steps.insert(CLOSE - 1, rotate)
        assert verify_ledger(chained(steps), KEYS).ok

    def test_statements_that_are_no_list_have_no_fields(self) -> None:
        """The protocol's encoding, read a second time."""
        good = abandon(1, 0, 3)
        assert protocol_fields(good)[0] == b"SA1/abandon"
        for bad in (b"", b"\0", good[:-1], good + b"\0", b"\0\0\0\2" + good[4:]):
            assert protocol_fields(bad) == []


class TestRecount:
    def test_the_second_writing_agrees_with_the_first(self) -> None:
        """D2 of plans with everything that multiplies."""
        from dp.plan import grid_sensitivity as first

        for plan in (
            PLAN,
            SAMPLED,
            replace(SAMPLED, strict=True),
            replace(PLAN, weights=Weights.DECLARED, max_weight=0.3),
            replace(
                PLAN,
                mode=Mode.ISRL,
                unit=Unit.RECORD,
                n_c=0,
                h_dp=0,
                padding=0,
                max_weight=0.3,
                weights=Weights.DECLARED,
            ),
        ):
            second = grid_sensitivity(json.loads(plan.to_bytes()))
            assert second == pytest.approx(first(plan), rel=1e-12)

    @pytest.mark.parametrize("text", ["-1", "x", "1e5", 1, None])
    def test_numbers_are_plain_decimals(self, text: object) -> None:
        """Anything else cannot be read."""
        with pytest.raises(UnreadableError):
            number(text)

    def test_an_event_is_an_object_of_a_known_type(self) -> None:
        """Fail closed."""
        unreadable: list[Any] = [None, [], {"type": ["gaussian"]}, {"type": "x"}]
        for data in unreadable:
            with pytest.raises(UnreadableError):
                read_event(data)

    def test_a_plan_without_silos_is_not_committed(self) -> None:
        """Somebody has to sign it."""
        with pytest.raises(PlanError, match="silos"):
            plan_commit_body(PLAN, silos=(), threshold=7, floor=7, manifest="")

    def test_a_rounds_integers_are_booked_at_the_accounts_limit(self) -> None:
        """What the service books is what the auditor asks for."""
        from dp.recount import integer_cost

        plan = json.loads(PLAN.to_bytes())
        cost = integer_cost(plan, grid_sensitivity(plan), LIMIT)
        assert round_event(PLAN, epsilon=LIMIT).delta_impl == pytest.approx(cost, rel=1e-9)


class TestCommand:
    @pytest.fixture
    def files(self, tmp_path: Path) -> tuple[Path, Path]:
        ledger, keys = tmp_path / "ledger.jsonl", tmp_path / "keys.json"
        ledger.write_bytes(b"\n".join(lines(LEDGER)) + b"\n")
        keys.write_text(json.dumps({name: key.hex() for name, key in KEYS.items()}))
        return ledger, keys

    def test_exit_codes(
        self, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """0: holds; 1: does not; 2: could not be looked at."""
        ledger, keys = files
        assert main([str(ledger), "--keys", str(keys)]) == 0
        assert capsys.readouterr().out.endswith("\nverified\n")
        heads = tmp_path / "heads"
        heads.write_bytes(sign_head(LEDGER.head(), SIGNERS["silo-a"]).to_bytes())
        assert main([str(ledger), "--keys", str(keys), "--heads", str(heads)]) == 0
        ledger.write_bytes(b"\n".join(lines(LEDGER)[:-1]))
        assert main([str(ledger), "--keys", str(keys), "--heads", str(heads)]) == 1
        out = capsys.readouterr().out
        assert "FAIL entry" in out
        assert out.endswith("\nNOT verified\n")

    @pytest.mark.parametrize(
        "text", ["[]", "{", "[" * 100_000, '{"a":"00"}', '{"a":"zz"}', '{"a":1}']
    )
    def test_unreadable_keys_are_exit_code_2(self, files: tuple[Path, Path], text: str) -> None:
        """Nothing was verified."""
        ledger, keys = files
        keys.write_text(text)
        assert main([str(ledger), "--keys", str(keys)]) == 2

    def test_missing_files_and_libraries_are_exit_code_2(
        self,
        files: tuple[Path, Path],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """And the extra to install is named."""
        ledger, keys = files
        assert main([str(ledger) + "x", "--keys", str(keys)]) == 2
        monkeypatch.setitem(sys.modules, "dp_accounting", None)
        assert main([str(ledger), "--keys", str(keys)]) == 2
        assert "secagg[verify]" in capsys.readouterr().out

    def test_what_nobody_expected_is_exit_code_2(
        self,
        files: tuple[Path, Path],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """1 is for findings only: here a library that has come to be another."""
        ledger, keys = files

        def other(mu: float, delta: float) -> float:
            raise RuntimeError(f"{mu}, {delta}: not here")

        library = SimpleNamespace(get_epsilon_gaussian=other)
        monkeypatch.setitem(sys.modules, "dp_accounting", library)
        assert main([str(ledger), "--keys", str(keys)]) == 2
        assert "not verified: RuntimeError" in capsys.readouterr().out

    def test_a_ledger_writes_no_lines_of_the_report(
        self, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A name with a line feed and letters that not every terminal has."""
        ledger, keys = files
        steps = copy.deepcopy(STEPS)
        steps[BUDGET]["body"]["data_set"] = "x\nverified\u00fc"
        ledger.write_bytes(b"\n".join(chained(steps)) + b"\n")
        main([str(ledger), "--keys", str(keys)])
        out = capsys.readouterr().out
        assert "account x\\nverified\\xfc (unit" in out

    def test_it_is_a_program(self) -> None:
        """`python -m dp.verify`."""
        command = [sys.executable, "-m", "dp.verify", "--help"]
        done = subprocess.run(command, cwd=ROOT, check=True, timeout=100, capture_output=True)
        assert b"--keys" in done.stdout

    @pytest.mark.parametrize(
        "content", [b"", b"\n", b"hello\n", b"\x89PNG\r\n\x1a\n", b'{"a":1}\n']
    )
    def test_a_file_without_any_entry_is_no_ledger(
        self, files: tuple[Path, Path], content: bytes, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Nothing was verified, and whoever gave the wrong file is told so."""
        ledger, keys = files
        ledger.write_bytes(content)
        assert main([str(ledger), "--keys", str(keys)]) == 2
        assert f"not verified: {ledger} is not a ledger: expected" in capsys.readouterr().out

    def test_a_ledger_whose_first_line_is_broken_is_one(
        self, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It does not hold, which is more than that nothing was looked at."""
        ledger, keys = files
        ledger.write_bytes(b"\n".join([b"{", *lines(LEDGER)[1:]]) + b"\n")
        assert main([str(ledger), "--keys", str(keys)]) == 1
        assert "FAIL entry 0: the line is no JSON" in capsys.readouterr().out

    def test_it_runs_without_torch_opacus_and_the_service(self, files: tuple[Path, Path]) -> None:
        """As a program, in an interpreter that refuses those imports."""
        ledger, keys = files
        program = (
            "import sys\n"
            "class Refuse:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name in {'torch', 'opacus', 'secagg', 'fl', 'services', 'grpc'}:\n"
            "            raise ImportError(name)\n"
            "sys.meta_path.insert(0, Refuse())\n"
            "from dp.verify import main\n"
            f"code = main([{str(ledger)!r}, '--keys', {str(keys)!r}])\n"
            "own = {name for name in sys.modules if name.startswith('dp.')}\n"
            "assert own == {'dp.verify', 'dp.inspection', 'dp.offline', 'dp.recount'}, own\n"
            "sys.exit(code)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, timeout=100)
        assert done.returncode == 0

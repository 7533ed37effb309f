"""A run's ledger that its writers signed, as a script in which a test can lie and sign again."""

import json
import math
from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dp.account import Account, intent_for
from dp.budget import Budget
from dp.canonical import decimal
from dp.charges import Proof, ProofKind, Release, Statement
from dp.closed_form import gaussian_epsilon
from dp.commitments import genesis_body, plan_commit_body
from dp.entries import Entry, Kind
from dp.events import GaussianEvent
from dp.filters import Filter, FilterKind
from dp.ledger import Ed25519Signer, Ledger, LedgerKind
from dp.ledger_testing import MemoryLedgerStore
from dp.plan import (
    Adjacency,
    Mode,
    Noise,
    Participation,
    PrivacyPlan,
    Unit,
)
from dp.renyi import best_order
from dp.trust import realized_z

NOW = "2026-11-30T12:00:00Z"
RUN = "ab" * 16
SILOS = tuple(f"silo-{letter}" for letter in "abcdefghij")
SIGNERS = {
    name: Ed25519Signer(
        name=name, key=Ed25519PrivateKey.from_private_bytes(bytes([place + 1] * 32))
    )
    for place, name in enumerate(("coordinator", *SILOS))
}
KEYS = {name: signer.public_key for name, signer in SIGNERS.items()}
PLAN = PrivacyPlan(
    unit=Unit.SILO, adjacency=Adjacency.ZERO_OUT, mode=Mode.SILO, clip=1.0, z=4.0, rounds=50,
    delta=1e-5, dimension=20, cohort_size=10, denominator=10.0, n_c=3, h_dp=4,
)  # fmt: skip
SAMPLED = replace(
    PLAN, unit=Unit.RECORD, mode=Mode.FEDSGD, q=0.1, participation=Participation.POISSON, z=1.1,
    rounds=100, denominator=500.0, max_units_per_silo=600,
)  # fmt: skip
LIMIT = 10.0


def account(plan: PrivacyPlan, **changes: Any) -> Account:
    """An account in the plan's own relation."""
    everybody = plan.participation is not Participation.POISSON and plan.noise is Noise.GAUSSIAN
    rule = (
        Filter(kind=FilterKind.GDP, delta=1e-5)
        if everybody
        else Filter(kind=FilterKind.RDP, delta=1e-5, order=best_order(LIMIT, 1e-5))
    )
    values: dict[str, Any] = {
        "data_set": "run", "unit": plan.unit, "adjacency": plan.adjacency, "filter": rule,
        "epsilon": LIMIT,
    }  # fmt: skip
    return Account(**{**values, **changes})


def append(
    ledger: Ledger, kind: Kind, body: dict[str, Any], *signers: str, run_id: str = ""
) -> Entry:
    """Draft, sign, append."""
    entry = ledger.draft(kind, body, time_utc=NOW, run_id=run_id)
    return ledger.append(entry.signed_by(*(SIGNERS[name] for name in signers)))


def abandon(charge_round: int, attempt: int, seat: int, *, run: str = RUN) -> bytes:
    """What a silo signs in the protocol: label, federation, run, round, attempt, seat."""
    fields = [
        b"SA1/abandon", b"federation", bytes.fromhex(run), charge_round.to_bytes(8),
        attempt.to_bytes(4), seat.to_bytes(4),
    ]  # fmt: skip
    return len(fields).to_bytes(4) + b"".join(len(one).to_bytes(4) + one for one in fields)


def proof(charge_round: int = 3, attempt: int = 0, *, signers: int = 8, run: str = RUN) -> Proof:
    """Signed statements that an attempt is dead."""
    statements = []
    for seat, name in enumerate(SILOS[:signers]):
        message = abandon(charge_round, attempt, seat, run=run)
        signature = SIGNERS[name].sign(message)
        statements.append(Statement(signer=name, message=message, signature=signature))
    return Proof(kind=ProofKind.ABANDON, statements=tuple(statements))


def written(plan: PrivacyPlan = PLAN, rounds: int = 2, **limits: Any) -> Ledger:
    """A run: plan, rounds, a metric, an attempt that died, an audit, a correction, the end."""
    ledger = Ledger(MemoryLedgerStore())
    body = genesis_body(
        LedgerKind.RUN, writer="coordinator", subject="federation", keys=KEYS, policy="0" * 64,
        software={"dp": "1"},
    )  # fmt: skip
    append(ledger, Kind.GENESIS, body, "coordinator")
    budget = Budget(ledger, SIGNERS["coordinator"])
    budget.set(account(plan, **limits), time_utc=NOW)
    commit = plan_commit_body(plan, silos=SILOS, threshold=6, floor=7, n_c=3, manifest="1" * 64)
    append(ledger, Kind.PLAN_COMMIT, commit, "coordinator", *SILOS, run_id=RUN)
    for number_ in range(1, rounds + 1):
        made = intent_for(plan, run_id=RUN, round_number=number_, epsilon=LIMIT)
        charge = budget.charge(made, time_utc=NOW)
        event = made.event
        if isinstance(event, GaussianEvent):
            event = replace(event, z=realized_z(plan, 8))
        release = Release(
            survivors=SILOS[:8], threshold=7, transcript="2" * 64, event=event,
            audit={"padding_ratio": "1.02"},
        )  # fmt: skip
        draft = budget.draft_release(charge.entry_hash, release, time_utc=NOW)
        budget.append(draft.signed_by(*(SIGNERS[name] for name in SILOS[:7])))
    dead = intent_for(plan, run_id=RUN, round_number=rounds + 1, epsilon=LIMIT)
    charge = budget.charge(dead, time_utc=NOW)
    budget.give_back(
        charge.entry_hash, proof(rounds + 1), time_utc=NOW, checker=lambda _charge, _proof: True
    )
    again = budget.charge(replace(dead, attempt=1), time_utc=NOW)
    budget.abort(again.entry_hash, time_utc=NOW, reason="TOO_FEW_SURVIVORS")
    metric = replace(dead, purpose="metrics")
    budget.charge(metric, time_utc=NOW, metric=True)
    steps = plan.local_steps if plan.mode is Mode.ISRL else 1
    audit = {
        "method": "cosine", "plan_digest": plan.digest.hex(), "rounds": 1, "lower": "0.05",
        "claimed": decimal(gaussian_epsilon(math.sqrt(steps) / plan.z, plan.delta)),
    }  # fmt: skip
    append(ledger, Kind.AUDIT_RESULT, audit, "coordinator")
    refers = {"refers": charge.entry_hash, "text": "a note"}
    append(ledger, Kind.CORRECTION, refers, "coordinator")
    append(ledger, Kind.CLOSE, {}, "coordinator")
    return ledger


def lines(ledger: Ledger) -> list[bytes]:
    """As a file has them."""
    return [entry.to_line() for entry in ledger.entries]


LEDGER = written()

Steps = list[dict[str, Any]]


def steps_of(ledger: Ledger) -> Steps:
    """The entries as a script: hashes of earlier entries become their places."""
    places = {entry.entry_hash: f"@{entry.seq}" for entry in ledger.entries}
    text = json.dumps(
        [
            {
                "kind": entry.kind.value,
                "body": entry.body,
                "run_id": entry.run_id,
                "signers": [one.signer for one in entry.sigs],
            }
            for entry in ledger.entries
        ]
    )
    for entry_hash, place in places.items():
        text = text.replace(entry_hash, place)
    return json.loads(text)  # type: ignore[no-any-return]  # the list just written


def chained(steps: Steps) -> list[bytes]:
    """Sign and chain a script, as its writers could."""
    done: list[Entry] = []
    for seq, step in enumerate(steps):
        text = json.dumps(step["body"])
        for place in range(seq - 1, -1, -1):
            text = text.replace(f'"@{place}"', f'"{done[place].entry_hash}"')
        entry = Entry(
            seq=seq,
            prev_hash=done[-1].entry_hash if done else "0" * 64,
            kind=Kind(step["kind"]),
            run_id=step["run_id"],
            time_utc=NOW,
            body=json.loads(text),
        )
        done.append(entry.signed_by(*(SIGNERS[name] for name in step["signers"])))
    return [entry.to_line() for entry in done]


STEPS = steps_of(LEDGER)
BUDGET, COMMIT, INTENT, RELEASE, INTENT_2, _RELEASE_2, DEAD, RETURN, AGAIN, ABORT, METRIC = range(
    1, 12
)
AUDIT, CORRECTION, CLOSE = 12, 13, 14

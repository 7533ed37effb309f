"""`secagg demo --privacy`: patients protected by noise that nobody can take off, and a ledger.

Five hospitals with a budget each, one run of DP-FedSGD with joint noise: every patient's gradient
is clipped, each hospital adds a share of the noise inside the secure sum, and the coordinator opens
noised sums only. It ends with the report for a data protection officer and with the ledger verified
by the second accountant. Features are divided by public constants: a standardization would be a
release of its own.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from dp.inspection import VerifyReport
from dp.verify import verify_ledger
from secagg.ids import RunId
from secagg.rng import SystemRng
from services.cli.display import RunDisplay
from services.cli.operator import fetch_model, follow, run_client, start_run
from services.clock import monotonic, utc_now
from services.demo.comparison import Score, score
from services.demo.data import HOSPITALS, TARGET, DemoData, write_data
from services.demo.federation import COORDINATOR, Child, ChildError, LocalFederation
from services.enrollment.roster_file import ROSTER, TRUST, load_roster, load_trust
from services.files import write_atomic
from services.ledger.parties import public_keys
from services.ledger.run_book import ledger_path
from services.report.facts import Facts, read_facts
from services.report.page import html
from services.report.table import to_csv
from services.wire.calls import RunState

SEED: Final = 7
EPSILON: Final = 6.0
DELTA: Final = 1e-4
# Declared by the hospitals together, and the most that one of them has: public constants.
PATIENTS: Final = 427
MOST_PATIENTS: Final = 200

_DEADLINES: Final = {"registration_s": 120.0, "mask_s": 120.0}
_COPY_WAIT_S: Final = 30.0
_GLANCE_S: Final = 0.05
_WIDTH: Final = 120
# Public orders of magnitude of the measurements; not read from these patients.
_SCALES: Final = {
    "radius": 10.0,
    "texture": 10.0,
    "perimeter": 50.0,
    "area": 500.0,
    "smoothness": 0.05,
    "compactness": 0.1,
    "concavity": 0.1,
    "concave points": 0.05,
    "symmetry": 0.1,
    "fractal dimension": 0.05,
}
_ERROR_SHARE: Final = 0.1  # the columns "… error" are an order of magnitude below


def run_privacy_demo(output: Path, *, rounds: int) -> int:
    """Run it and write its folder; returns 0 if the ledger verifies.

    Raises:
        ServiceError: something did not come up, or the run did not end well.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves by the `with` below
    began = monotonic()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    folder = output / f"privacy-demo-{utc_now():%Y%m%d-%H%M%S}"
    data = write_data(folder / "data", SEED)
    console.print(
        f"{len(HOSPITALS)} hospitals with a budget of epsilon {EPSILON:g} each; files: {folder}"
    )
    settings = folder / "run.toml"
    write_atomic(settings, privacy_toml(data.features, rounds=rounds).encode())
    with LocalFederation(
        home=folder / "federation", silos=HOSPITALS, deadlines=_DEADLINES
    ) as federation:
        coordinator = federation.start_coordinator(wait=False)
        children = [_start(federation, name, data) for name in HOSPITALS]
        coordinator.wait_for("listening")
        for child in children:
            child.wait_for("connected", timeout_s=_COPY_WAIT_S)
        run = asyncio.run(_run(federation, settings))
        model = folder / "model.safetensors"
        write_atomic(model, asyncio.run(fetch_model(federation.operator_file, run.hex)))
        lines = _ledger(federation, run)
        keys = federation.home / "operator" / "keys"
        roster = load_roster(keys / ROSTER, load_trust(keys / TRUST))
    facts = read_facts(lines)
    write_atomic(folder / "ledger.jsonl", b"".join(line + b"\n" for line in lines))
    write_atomic(folder / "report.html", html(facts).encode())
    write_atomic(folder / "report.csv", to_csv(facts))
    verified = verify_ledger(lines, public_keys(roster))
    _tell(console, facts, score("private", model, data, rounds=rounds), verified)
    console.print(
        f"Done in {monotonic() - began:.0f} s. For a data protection officer: "
        f"{folder / 'report.html'}",
        style="bold",
    )
    return 0 if verified.ok else 1


def privacy_toml(features: Sequence[str], *, rounds: int) -> str:
    """The run's settings, as an operator would write them."""
    lines = [
        "[run]",
        'name = "breast cancer, private"',
        f"rounds = {rounds}",
        f"min_silos = {len(HOSPITALS)}",
        f"seed = {SEED}",
        "[algorithm]",
        'name = "fedsgd"',
        "server_learning_rate = 6.0",
        "[local]",
        "steps = 1",
        "batch_size = 0",
        "learning_rate = 2.0",
        "[privacy]",
        'mode = "fedsgd"',
        'unit = "patient"',
        'adjacency = "zero_out"',
        "clip = 1.0",
        f"epsilon = {EPSILON}",
        f"delta = {DELTA}",
        f"units = {PATIENTS}",
        f"max_units_per_silo = {MOST_PATIENTS}",
        "[task]",
        'name = "tabular"',
        'model = "logistic"',
        "[task.target]",
        f'name = "{TARGET}"',
        'classes = ["benign", "malignant"]',
    ]
    for name in features:
        lines += [
            "[[task.features]]",
            f"name = {json.dumps(name)}",
            'kind = "numeric"',
            f"scale = {_scale(name)!r}",
        ]
    return "\n".join(lines) + "\n"


def _scale(feature: str) -> float:
    """A public constant for a measurement such as "mean radius" or "radius error"."""
    found = next(value for name, value in _SCALES.items() if name in feature)
    return found * _ERROR_SHARE if feature.endswith("error") else found


def _start(federation: LocalFederation, name: str, data: DemoData) -> Child:
    lines = [
        "[data]",
        f"file = {json.dumps(str(data.hospitals[name].absolute()))}",
        "[privacy]",
        f'data_set = "{name}-patients"',
        'unit = "patient"',
        'adjacency = "zero_out"',
        f"epsilon = {EPSILON}",
        f"delta = {DELTA}",
        f"persons = {MOST_PATIENTS}",
        f"most_units = {MOST_PATIENTS}",
    ]
    return federation.start_silo(name, lines)


async def _run(federation: LocalFederation, settings: Path) -> RunId:
    run = RunId(SystemRng().bytes(16))
    async with run_client(federation.operator_file) as client:
        await start_run(client, settings, run)
        with RunDisplay() as display:
            async for status in follow(client, run):
                display.update(status)
    if status.summary.state is not RunState.FINISHED:
        raise ChildError(
            f"the run ended as {status.summary.state}: {status.summary.reason}",
            hint=f"see {federation.home / 'logs'}",
        )
    return run


def _ledger(federation: LocalFederation, run: RunId) -> list[bytes]:
    """The run's ledger, once every hospital holds the same."""
    paths = [
        ledger_path(federation.storage(name) / "ledgers", run) for name in (COORDINATOR, *HOSPITALS)
    ]
    give_up = monotonic() + _COPY_WAIT_S
    while True:
        found = {path.read_bytes() for path in paths}
        if len(found) == 1:
            return found.pop().splitlines()
        if monotonic() > give_up:
            raise ChildError("a hospital's copy of the ledger is not the coordinator's")
        asyncio.run(asyncio.sleep(_GLANCE_S))


def _tell(console: Console, facts: Facts, scored: Score, verified: VerifyReport) -> None:
    plan = facts.plans[-1]
    table = Table(title=f"Privacy of one {plan.plan.unit}, delta {plan.plan.delta:g}")
    table.add_column("protected")
    table.add_column("epsilon", justify="right")
    words = {
        "nobody_colludes": "against everybody who sees sums and models",
        "coordinator_colludes": f"against the coordinator with {plan.plan.n_c} hospital (enforced)",
        "aggregation_fails": "if secure aggregation failed wholly",
    }
    for name, text in words.items():
        table.add_row(text, f"{plan.claimed[name]:.3f}")
    console.print(table)
    console.print(
        f"test AUC {scored.auc:.4f}, accuracy {scored.accuracy:.4f}, on patients of no hospital; "
        f"epsilon {facts.spent:.3f} spent in {len(facts.live)} releases"
    )
    if verified.ok:
        console.print("ledger verified by the second accountant", style="green")
        return
    console.print("ledger NOT verified", style="red")
    for finding in verified.findings.items:
        console.print(f"  entry {finding.seq}: {finding.text}", style="red")

"""Silo processes that lie about shares: the others' rounds go on without them, and say why."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from services.demo.federation import COORDINATOR, LocalFederation

pytestmark = pytest.mark.e2e

SILOS = tuple(f"silo-{number}" for number in range(1, 7))
RUN = """
[run]
name = "with a liar"
rounds = {rounds}
min_silos = 5

[local]
steps = 2
batch_size = 0
learning_rate = {learning_rate}

[task]
name = "fl.testing:toy_task"
"""
# The liars are honest in the first round, whose state all runs share: silos sum it over the same
# survivors only (SA1 spec 2.5 v). This one opens another share than it was dealt.
REVEALER = """
from dataclasses import replace

from secagg.secretbytes import Secret
from secagg.silo import SiloRound
from services.cli.main import main

honest = SiloRound._opening


def opening(self, dealer):
    found = honest(self, dealer)
    is_bad = dealer == 1 and self.parameters.round > 1
    return replace(found, share=Secret(bytes(33))) if is_bad else found


SiloRound._opening = opening
main()
"""
# Deals other shares of its self mask than it commits to.
DEALER = """
from dataclasses import replace

from secagg.holdings import Holdings
from secagg.silo import SiloRound
from services.cli.main import main

honest_keys, honest_deal = SiloRound._on_keys, Holdings.deal
liars = []


def on_keys(self, message):
    if self.parameters.round > 1:
        liars.append(self._holdings)
    return honest_keys(self, message)


def deal(self, place, rng):
    share = honest_deal(self, place, rng)
    return replace(share, commitment_b=bytes(32)) if self in liars else share


SiloRound._on_keys, Holdings.deal = on_keys, deal
main()
"""
# Says that shares are bad which are not: always those of the lowest seat that is not its own.
ACCUSER = """
from secagg.errors import BadShareError
from secagg.holdings import Holdings
from secagg.silo import SiloRound
from services.cli.main import main

honest_accept, honest_take = SiloRound._accept, Holdings.take
liars = []


def accept(self, item):
    if self.parameters.round > 1:
        liars.append(self._holdings)
    honest_accept(self, item)


def take(self, place, item):
    first = next(seat for seat in sorted(place.advertises) if seat != place.seat)
    if item.dealer == first and self in liars:
        raise BadShareError("nothing is wrong with it", silo=item.dealer)
    honest_take(self, place, item)


SiloRound._accept, Holdings.take = accept, take
main()
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """A coordinator and five honest silos."""
    home = tmp_path_factory.mktemp("federation")
    (home / "revealer_of_a_test.py").write_text(REVEALER, encoding="utf-8")
    (home / "dealer_of_a_test.py").write_text(DEALER, encoding="utf-8")
    (home / "accuser_of_a_test.py").write_text(ACCUSER, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ":".join([str(home), *filter(None, sys.path)]))
        with LocalFederation(home=home, silos=SILOS, deadlines={"registration_s": 5.0}) as made:
            made.start_coordinator(wait=False)
            for name in SILOS[:-1]:
                start(made, name)
            yield made


def start(federation: LocalFederation, name: str, *, module: str = "services.cli") -> None:
    """Start a silo."""
    number = SILOS.index(name) + 1
    task = ['task = "fl.testing:toy_task"', "[settings]", f"silo = {number}"]
    federation.start_silo(name, task, module=module).wait_for("connected")


def end(federation: LocalFederation, name: str) -> None:
    """End a holder's processes, if there are any."""
    for child in federation.children:
        if child.name == name:
            child.end()


def secagg(*arguments: str, expect: int) -> str:
    """Run a command; returns what it printed."""
    command = [sys.executable, "-m", "services.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == expect, (done.stdout, done.stderr)
    return done.stdout


def run(
    federation: LocalFederation, rate: float, *, rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Start a run and follow it to its good end; returns its last status with all rounds."""
    return follow(federation, begin(federation, rate, rounds=rounds))


def begin(federation: LocalFederation, rate: float, *, rounds: int) -> str:
    """Start a run."""
    path, operator = federation.home / "run.toml", str(federation.operator_file)
    path.write_text(RUN.format(learning_rate=rate, rounds=rounds), encoding="utf-8")
    return secagg("run", "start", "-c", str(path), "--operator", operator, expect=0).strip()


def follow(federation: LocalFederation, name: str) -> dict[str, list[dict[str, Any]]]:
    """Watch a run to its good end."""
    operator = str(federation.operator_file)
    secagg("run", "watch", name, "--operator", operator, expect=0)
    status: dict[str, list[dict[str, Any]]] = json.loads(
        secagg("run", "show", name, "--operator", operator, "--json", expect=0)
    )
    return status


def test_a_false_accuser_is_left_out_with_its_victim(federation: LocalFederation) -> None:
    """It costs the run one honest silo and itself. A complaint is no proof: no evidence is kept.

    The coordinator is killed after the second round; the next process has not forgotten them.
    """
    end(federation, COORDINATOR)
    first = federation.start_coordinator(fault="store.after-commit@2=kill")
    start(federation, "silo-6", module="accuser_of_a_test")
    for silo in SILOS:
        first.wait_for("hello", silo=silo, timeout_s=60)
    name = begin(federation, 0.1, rounds=4)
    assert first.wait(timeout_s=60) == -9
    second = federation.start_coordinator(wait=False)
    second.wait_for("listening")
    rounds = follow(federation, name)["rounds"]
    all_six = [1, 2, 3, 4, 5, 6]
    assert [one["survivors"] for one in rounds][:2] == [all_six, [2, 3, 4, 5]]
    for one in rounds[2:]:  # who is back in time
        assert set(one["survivors"]) <= {2, 3, 4, 5}
    assert [one["attempts"] for one in rounds][:2] == [1, 2]
    told = [[line["event"] for line in child.lines()].count("suspect") for child in (first, second)]
    assert told == [2, 0], "the second process finds nobody new"
    assert not (federation.storage("coordinator") / "evidence").exists()


def test_a_bad_revealer_is_left_out_from_then_on(federation: LocalFederation) -> None:
    """The sum is whole without its share; it is proven, so that no later round lets it in."""
    end(federation, "silo-6")
    start(federation, "silo-6", module="revealer_of_a_test")
    status = run(federation, 0.2, rounds=5)
    # Its share is not needed, so it may come, and the proof with it, when the next round has begun.
    sizes = [len(one["survivors"]) for one in status["rounds"]]
    assert (sizes[:2], sizes[-1]) == ([6, 6], 5)
    assert sizes == sorted(sizes, reverse=True)
    (refusal,) = [str(seat["refusal"]) for seat in status["seats"] if seat["refusal"]]
    assert refusal.startswith("left out: there is evidence against it (bad revealer)")
    (case,) = (federation.storage("coordinator") / "evidence").iterdir()
    keys = federation.home / "coordinator" / "keys"
    roster, trust = str(keys / "roster.json"), str(keys / "trust.json")
    verdict = secagg(
        "transcript", "verify", str(case), "--roster", roster, "--trust", trust, expect=0
    )
    assert "proven: silo-6: it opened another share of silo-1" in verdict


def test_the_run_goes_on_without_a_bad_dealer(federation: LocalFederation) -> None:
    """Its round is lost after Unmask; the next one sums the same state without it, on its proof."""
    end(federation, "silo-5")
    start(federation, "silo-5", module="dealer_of_a_test")
    rounds = run(federation, 0.3, rounds=4)["rounds"]
    assert [(one["round"], one["survivors"]) for one in rounds] == [
        (1, [1, 2, 3, 4, 5]),
        (3, [1, 2, 3, 4]),
        (4, [1, 2, 3, 4]),
        (5, [1, 2, 3, 4]),
    ]

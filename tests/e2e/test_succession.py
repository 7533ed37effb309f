"""Silos that were away when a round was settled take the next state with the others' word.

Real processes over loopback mTLS, the coordinator's among those that are killed (SA1 spec 2.5 v).
"""

from collections.abc import Iterator
from contextlib import closing

import pytest

from secagg.ids import RunId
from secagg.messages import Settled
from services.demo.federation import COORDINATOR, LocalFederation
from services.storage.coordinator import CoordinatorStore
from tests.e2e.test_membership import DEADLINES, SILOS, World

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # processes that are killed, renewed, attacked

ALL = [1, 2, 3, 4, 5]
OTHERS = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One coordinator and five silos, for all tests of this file, in their order."""
    home = tmp_path_factory.mktemp("federation")
    with LocalFederation(home=home, silos=SILOS, deadlines=DEADLINES) as federation:
        yield World(federation)


def refused(world: World, name: str) -> list[object]:
    """The attempts that a silo has left over their state."""
    codes = [line.get("code") for line in world.silos[name].lines()]
    return [code for code in codes if code == "A5_MODEL_MISMATCH"]


def test_a_silo_that_was_away_for_rounds_comes_back(world: World) -> None:
    """Also to another process of the coordinator, which has the others' words from the disk."""
    run = world.start_run(rounds=500, silos=4)
    world.wait_until(run, ALL)
    world.silos["silo-5"].kill()
    world.wait_until(run, OTHERS)
    world.coordinator.kill()
    world.coordinator = world.federation.start_coordinator()
    world.wait_until(run, OTHERS)
    world.silos["silo-5"] = world.start("silo-5")
    world.wait_until(run, ALL)
    world.stop(run)
    assert refused(world, "silo-5") == []


def test_a_silo_that_is_killed_before_it_has_said_so_says_it_afterwards(world: World) -> None:
    """It has settled round 2 on its disk; it is told the result again, and signs the same bytes."""
    world.silos["silo-4"].end()
    world.silos["silo-4"] = world.start("silo-4", fault="silo.after-settle@2=kill")
    world.silos["silo-4"].wait_for("connected")
    run = world.start_run(rounds=500, silos=4)
    world.silos["silo-4"].wait(timeout_s=60)
    world.silos["silo-4"] = world.start("silo-4")
    settled = world.silos["silo-4"].wait_for("settled", run=run)
    assert settled["survivors"] == ALL
    world.wait_until(run, ALL)
    world.stop(run)
    world.coordinator.end()
    with closing(CoordinatorStore(world.federation.storage(COORDINATOR))) as store:
        words = [Settled.decode(data) for data in store.settled(RunId.parse(run))]
    assert len({item.seat for item in words}) == 2, "n_c + 1 of the five"
    assert len({(item.round, item.model_hash) for item in words}) == 1

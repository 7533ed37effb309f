"""What the coordinator refuses before a run begins."""

import asyncio
from pathlib import Path

import pytest

from secagg.ids import RunId
from secagg.testing import make_federation
from services.config import CoordinatorConfig
from services.coordinator.desk import RunDesk
from services.coordinator.hub import Hub
from services.errors import ConfigError
from services.observe.logs import get_logger
from services.security.identity import Peer, Role
from services.settings import parse_config
from services.storage.coordinator import CoordinatorStore
from services.wire.calls import RunSummary, StartCall

RUN = """
[run]
name = "toy"
rounds = 1
min_silos = {min_silos}
[local]
steps = 1
learning_rate = 0.1
[task]
name = "fl.testing:toy_task"
[recompute]
redundancy = {redundancy}
"""


PRIVACY = """
[privacy]
mode = "silo"
adjacency = "zero_out"
clip = 1.0
z = 20.0
allow_low_utility = true
delta = 1e-5
dimension = 1
h_dp = 2
budget = {budget}
"""


def start(
    folder: Path, *, silos: int, min_silos: int = 3, redundancy: int = 0, more: str = ""
) -> RunSummary:
    """Ask a coordinator of so many silos for a run."""

    async def ask() -> RunSummary:
        federation = make_federation(silos)
        settings = f'directory = "{folder}"\nstorage = "{folder}"\n'.encode()
        store = CoordinatorStore(folder, holder="a test")
        assert store.try_claim() is None
        try:
            desk = RunDesk(
                hub=Hub(roster=federation.roster),
                store=store,
                config=parse_config(settings, CoordinatorConfig, source="a test", base=folder),
                signing_key=federation.coordinator,
                log=get_logger("test"),
            )
            config = (RUN.format(min_silos=min_silos, redundancy=redundancy) + more).encode()
            peer = Peer(name="operator", role=Role.OPERATOR)
            return await desk.start_run(peer, StartCall(run=RunId(bytes(16)), config=config))
        finally:
            store.close()

    return asyncio.run(ask())


def test_more_silos_than_the_roster_has(tmp_path: Path) -> None:
    """They would be waited for in vain."""
    with pytest.raises(ConfigError, match=r"run.min_silos: expected at most the roster's 4 silos"):
        start(tmp_path, silos=4, min_silos=5)


def test_a_privacy_plan_that_cannot_be_charged(tmp_path: Path) -> None:
    """At a limit of 400 integers cost more delta than is set aside; at 15 they do not."""
    with pytest.raises(ConfigError, match=r"the privacy plan: .*delta") as caught:
        start(tmp_path, silos=4, more=PRIVACY.format(budget=400.0))
    assert caught.value.keys == ("privacy",)
    with pytest.raises(ConfigError, match="its code is not at the coordinator"):
        start(tmp_path, silos=4, more=PRIVACY.format(budget=15.0))


def test_three_silos_cannot_recompute(tmp_path: Path) -> None:
    """Each that does counts toward n_c, which is 0 for them; four go on to the next check."""
    with pytest.raises(ConfigError, match=r"recompute.redundancy: expected 0 with a roster of 3"):
        start(tmp_path, silos=3, redundancy=1)
    with pytest.raises(ConfigError, match="its code is not at the coordinator"):
        start(tmp_path, silos=4, redundancy=1)

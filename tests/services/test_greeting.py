"""A silo that takes newer rosters keeps the older ones: ledgers hold what their keys signed."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

from secagg.rng import SystemRng
from services.clock import utc_now
from services.coordinator.rosters import Rosters
from services.enrollment import authority
from services.enrollment.request import enroll
from services.enrollment.roster_file import load_roster, load_trust
from services.ledger.parties import keys_in, listed_keys
from services.observe.logs import get_logger
from services.security.credentials import load_identity
from services.security.identity import Role
from services.silo.greeting import Greeting
from services.testing import COORDINATOR, make_federation
from services.wire.calls import PROTOCOL_VERSION, Hello


def test_rosters_that_come_one_by_one_are_all_kept(tmp_path: Path) -> None:
    """In this process, and beside the keys for the next one: a peer's key of between is known."""
    federation = make_federation(tmp_path, silos=["a", "b"], now=utc_now())
    folder, hub = federation.folder("a"), federation.folder(COORDINATOR)
    known = load_roster(folder / "roster.json", trust := load_trust(folder / "trust.json"))
    keys = [load_identity(federation.folder("b")).public]
    for step in ("once", "twice"):
        authority.revoke(federation.authority, "b")
        request = enroll(tmp_path / step, name="b", role=Role.SILO, rng=SystemRng())
        authority.issue(
            federation.authority, request, role=Role.SILO, now=utc_now(), organization="b"
        )
        keys.append(load_identity(tmp_path / step).public)
    authority.install(federation.authority / "issued" / COORDINATOR, hub)
    rosters = Rosters.load(hub / "roster.json", hub, load_identity(hub).public)

    async def hello(said: Hello) -> Hello:
        return Hello(
            protocol_version=PROTOCOL_VERSION,
            software_version="0",
            roster_version=rosters.in_force.roster.version,
            roster_digest=rosters.in_force.roster.digest(),
            incarnation=bytes(16),
            signed_roster=rosters.after(said.roster_version),
        )

    greeting = Greeting(
        incarnation=bytes(16),
        predecessors=(),
        software="0",
        roster=known,
        trust=trust,
        roster_file=folder / "roster.json",
        log=get_logger("silo"),
    )
    asyncio.run(greeting.say(SimpleNamespace(hello=hello)))  # type: ignore[arg-type] # says Hello only
    assert greeting.roster == federation.roster()
    assert keys_in([*greeting.former, greeting.roster])["b"] == keys
    assert listed_keys(folder)["b"] == keys

"""The coordinator's roster: which newer version counts, and what silos with older ones get."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from secagg.ids import RunId, SiloId
from secagg.rng import SystemRng
from secagg.roster import SignedRoster
from services.clock import utc_now
from services.coordinator.hub import Hub
from services.coordinator.rosters import Rosters
from services.enrollment import authority
from services.enrollment.request import enroll
from services.enrollment.roster_file import accept_newer, load_signed, load_trust
from services.errors import CredentialError, NotNowError, VersionError
from services.observe.logs import Logger
from services.security.credentials import load_identity
from services.security.identity import Role
from services.testing import COORDINATOR, LocalFederation, make_federation
from services.wire.calls import ClosedEnvelope, RunState

NOW = utc_now()


class Lines:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []
        self.came = asyncio.Event()

    def bind(self, **_fields: object) -> Logger:
        return self

    def debug(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))
        self.came.set()

    info = warning = error = debug


@pytest.fixture
def federation(tmp_path: Path) -> LocalFederation:
    """Two silos; the coordinator has roster version 4."""
    return make_federation(tmp_path, silos=["a", "b"], now=NOW)


def install(federation: LocalFederation) -> None:
    """Put the coordinator's newest bundle into its folder."""
    bundle = federation.authority / "issued" / COORDINATOR
    authority.install(bundle, federation.folder(COORDINATOR))


def load(federation: LocalFederation) -> Rosters:
    """What a starting coordinator reads."""
    folder = federation.folder(COORDINATOR)
    return Rosters.load(folder / "roster.json", folder, load_identity(folder).public)


def watch(
    federation: LocalFederation, change: Callable[[Hub, Rosters, Lines], Awaitable[None]]
) -> tuple[Hub, Lines]:
    """Do something while the roster's file is watched; returns at the first line that is logged."""

    async def session() -> tuple[Hub, Lines]:
        rosters, lines = load(federation), Lines()
        hub = Hub(roster=rosters.in_force.roster)
        watching = asyncio.create_task(rosters.watch(hub, lines))
        await change(hub, rosters, lines)
        watching.cancel()
        return hub, lines

    return asyncio.run(session())


def test_a_newer_roster_counts_without_a_restart(federation: LocalFederation) -> None:
    """A poll that is open ends, every silo greets anew, and the revoked one is gone."""

    async def change(hub: Hub, rosters: Rosters, lines: Lines) -> None:
        for name in ("a", "b"):
            hub.presence.hello(SiloId(name), name.encode() * 16)
        polls = [asyncio.create_task(hub.mailbox(seat).wait_after(0, 30)) for seat in (1, 2)]
        await asyncio.sleep(0)
        authority.revoke(federation.authority, "b")
        install(federation)
        rosters.look_now()
        assert await asyncio.gather(*polls) == [None, None]
        with pytest.raises(NotNowError):
            hub.presence.check(SiloId("a"), b"a" * 16)
        await lines.came.wait()

    hub, lines = watch(federation, change)
    assert lines.lines == [("roster", {"version": 5, "gone": [2]})]
    assert hub.roster == federation.roster()
    assert [seat.silo.name for seat in hub.connected()] == ["a"]
    assert hub.silent((1, 2)) == {2}, "nothing is awaited of a revoked silo"
    assert (hub.name(1), hub.name(2), hub.name(7)) == ("a", "b", "seat 7")


def test_several_versions_at_once_count_if_the_chain_is_there(federation: LocalFederation) -> None:
    """Found by looking every second, too; a silo that missed them takes them one by one."""

    async def change(_hub: Hub, rosters: Rosters, lines: Lines) -> None:
        for name in ("c", "d"):
            federation.issue(name, Role.SILO, organization=name)
        authority.revoke(federation.authority, "c")
        install(federation)
        await lines.came.wait()
        known = load_signed(federation.authority / "roster-2.json").roster
        trust = load_trust(federation.folder("a") / "trust.json")
        while data := rosters.after(known.version):
            known = accept_newer(known, data, trust).roster
        assert known == federation.roster()
        assert rosters.after(known.version + 1) == b""

    _, lines = watch(federation, change)
    assert lines.lines == [("roster", {"version": 7, "gone": []})]


def test_a_roster_that_does_not_lead_on_is_refused_and_logged(federation: LocalFederation) -> None:
    """A missing link, another coordinator's keys, an older version: the one in force stays."""
    folder = federation.folder(COORDINATOR)

    async def refused(hub: Hub, rosters: Rosters, lines: Lines, words: str) -> None:
        before = hub.roster
        lines.came.clear()
        rosters.look_now()
        await lines.came.wait()
        event, fields = lines.lines[-1]
        assert event == "roster-refused"
        assert words in str(fields["reason"])
        assert hub.roster is before

    async def change(hub: Hub, rosters: Rosters, lines: Lines) -> None:
        for name in ("c", "d"):
            federation.issue(name, Role.SILO, organization=name)
        install(federation)
        (folder / "rosters/roster-5.json").unlink()
        await refused(hub, rosters, lines, "roster-5.json, found no such file")
        (folder / "rosters/roster-3.json").unlink()
        with pytest.raises(VersionError, match=r"version 2, the coordinator 4 and no version 3"):
            rosters.after(2)
        old = (federation.authority / "roster-3.json").read_bytes()
        (folder / "roster.json").write_bytes(old)
        await refused(hub, rosters, lines, "expected version 5, got 3")
        (folder / "roster.json").write_bytes(b"{}")
        await refused(hub, rosters, lines, "expected a signed roster")
        other = federation.root / "fresh"
        request = authority_request(federation, other)
        issued = authority.issue(
            federation.authority, request, role=Role.COORDINATOR, now=NOW, replace_coordinator=True
        )
        (folder / "roster.json").write_bytes((issued.bundle / "roster.json").read_bytes())
        await refused(hub, rosters, lines, "another coordinator key than this process has")

    watch(federation, change)
    with pytest.raises(CredentialError, match="names another coordinator key"):
        load(federation)


def authority_request(federation: LocalFederation, folder: Path) -> Path:
    """A request of a coordinator with new keys."""
    return enroll(
        folder, name=COORDINATOR, role=Role.COORDINATOR, rng=SystemRng(), hosts=federation.hosts
    )


def test_a_file_that_is_gone_or_the_same_changes_nothing(federation: LocalFederation) -> None:
    """A copy of the same roster is no news, and a moment without the file neither."""
    path = federation.folder(COORDINATOR) / "roster.json"

    async def change(hub: Hub, rosters: Rosters, lines: Lines) -> None:
        mailbox = hub.mailbox(1)
        data = path.read_bytes()
        path.unlink()
        assert await asyncio.to_thread(rosters._newer) is None
        path.write_bytes(data)
        assert await asyncio.to_thread(rosters._newer) is None
        closed = ClosedEnvelope(
            run=RunId(bytes(16)), state=RunState.STOPPED, reason="", round=0, name=""
        )
        mailbox.post(closed)
        assert mailbox.depth == 1
        assert await mailbox.wait_after(0, 1) == (1, closed)
        assert lines.lines == []

    watch(federation, change)


def test_a_signed_roster_survives_the_way_to_a_silo(federation: LocalFederation) -> None:
    """What `after` gives is the canonical signed document."""
    data = load(federation).after(3)
    assert SignedRoster.decode(data).roster == federation.roster()

"""Connections over real mTLS: addresses, proxies, ports, and certificates that are renewed."""

import asyncio
import socket
from datetime import timedelta
from pathlib import Path

import grpc.aio
import pytest

from services.errors import (
    AddressInUseError,
    ConfigError,
    UnavailableError,
)
from services.security.credentials import (
    SERVER_OPTIONS,
    bind,
    load_credentials,
    open_channel,
    server_credentials,
)
from services.security.identity import Role
from services.security.probe import probe
from services.testing import COORDINATOR, OPERATOR, LocalFederation, make_federation
from services.wire.clients import AggregationClient
from tests.services.recorder import (
    HELLO,
    NOW,
    Coordinator,
    serve,
    two_silos,
)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> LocalFederation:
    """Of two silos."""
    return two_silos(tmp_path_factory.mktemp("federation"))


def test_a_coordinator_that_is_down_is_unavailable(federation: LocalFederation) -> None:
    """The error names the address; the probe tells the cause."""

    async def session() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            target = f"127.0.0.1:{server.getsockname()[1]}"
        channel = open_channel(target, federation.credentials("a", Role.SILO))
        with pytest.raises(UnavailableError, match=f"{target} cannot be reached"):
            await AggregationClient(channel, target=target).hello(HELLO)
        await channel.close()

    asyncio.run(session())


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy"])
def test_the_environments_proxy_counts_only_where_asked_for(
    federation: LocalFederation, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Company machines set it for everything, loopback included (bug case NET-05)."""
    monkeypatch.setenv(variable, "http://127.0.0.1:9")

    async def session(coordinator: Coordinator) -> None:
        async with coordinator.silo() as silo:
            await silo.hello(HELLO)
        async with coordinator.channel("a", Role.SILO, proxy=True) as channel:
            with pytest.raises(UnavailableError):
                await AggregationClient(channel, target="c").hello(HELLO)

    assert len(serve(federation, session).recorder.seen) == 1


def has_ipv6() -> bool:
    """Whether this machine has an IPv6 loopback."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    ("listen", "dialed"),
    [
        ("127.0.0.1:0", ("127.0.0.1", "localhost")),
        ("0.0.0.0:0", ("127.0.0.1", "localhost")),
        ("localhost:0", ("localhost",)),
        ("[::]:0", ("127.0.0.1", "localhost", "[::1]")),
    ],
)
def test_each_way_to_listen_can_be_dialed(
    federation: LocalFederation, listen: str, dialed: tuple[str, ...]
) -> None:
    """Whatever the family; the returned address has the real port (bug case NET-06)."""

    async def session(coordinator: Coordinator) -> None:
        assert coordinator.port > 0
        for host in dialed:
            if host == "[::1]" and not has_ipv6():
                continue
            async with coordinator.channel("a", Role.SILO, host=host) as channel:
                await AggregationClient(channel, target=host).hello(HELLO)

    serve(federation, session, listen=listen)


def test_a_taken_port_is_an_error(federation: LocalFederation) -> None:
    """Taken by anything, or by a coordinator: never do two share one port (bug case NET-09)."""

    async def session(coordinator: Coordinator) -> None:
        second = grpc.aio.server(options=SERVER_OPTIONS)
        credentials = server_credentials(federation.folder(COORDINATOR))
        with pytest.raises(AddressInUseError, match=f"address in use: port {coordinator.port}"):
            bind(second, coordinator.address, credentials)
        with pytest.raises(
            AddressInUseError, match=r"cannot listen on 192.0.2.1:8443: Cannot assign"
        ):
            bind(second, "192.0.2.1:8443", credentials)
        with pytest.raises(ConfigError, match="expected an address"):
            bind(second, "8443", credentials)
        await second.stop(0)

    serve(federation, session)


def test_a_renewed_certificate_is_picked_up_without_a_restart(tmp_path: Path) -> None:
    """The next handshake shows it; files in a bad state leave the last good one in use."""
    federation = make_federation(tmp_path, silos=["a"], now=NOW)

    async def session(coordinator: Coordinator) -> None:
        silo = federation.credentials("a", Role.SILO)
        target = f"localhost:{coordinator.port}"
        before = await asyncio.to_thread(probe, target, silo, now=NOW)
        later = NOW + timedelta(minutes=3)
        federation.issue(COORDINATOR, Role.COORDINATOR, now=later)
        after = await asyncio.to_thread(probe, target, silo, now=NOW)
        assert after.not_after - before.not_after == timedelta(minutes=3)
        (federation.folder(COORDINATOR) / "tls.pem").unlink()
        assert await asyncio.to_thread(probe, target, silo, now=NOW) == after
        async with coordinator.silo() as client:
            await client.hello(HELLO)

    serve(federation, session)


def test_credentials_are_complete_for_every_holder(federation: LocalFederation) -> None:
    """The helper for tests and demo makes what the real commands need."""
    for name, role in (
        ("a", Role.SILO),
        (COORDINATOR, Role.COORDINATOR),
        (OPERATOR, Role.OPERATOR),
    ):
        assert load_credentials(federation.folder(name), role=role, now=NOW).identity.name == name
    assert [seat.silo.name for seat in federation.roster().seats] == ["a", "b"]

"""The probe names each cause of a TLS failure, against real sockets."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import grpc.aio
import pytest

from services.clock import utc_now
from services.errors import CredentialError, TlsCause, TlsError, UnreachableError
from services.security.credentials import SERVER_OPTIONS, bind, server_credentials
from services.security.identity import Role
from services.security.probe import ProbeReport, probe
from services.testing import COORDINATOR, LocalFederation, make_federation

NOW = utc_now()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> LocalFederation:
    """A federation whose certificates are valid now."""
    return make_federation(tmp_path_factory.mktemp("federation"), silos=["a"], now=NOW)


def run_probe(
    server: LocalFederation,
    silo: LocalFederation,
    *,
    host: str = "127.0.0.1",
    now: datetime | None = None,
) -> ProbeReport:
    """Probe a real coordinator's port with a silo's credentials."""

    async def session() -> ProbeReport:
        grpc_server = grpc.aio.server(options=SERVER_OPTIONS)
        credentials = server_credentials(server.folder(COORDINATOR))
        port = bind(grpc_server, "127.0.0.1:0", credentials).rpartition(":")[2]
        await grpc_server.start()
        try:
            return await asyncio.to_thread(
                probe, f"{host}:{port}", silo.credentials("a", Role.SILO), now=now or silo.now
            )
        finally:
            await grpc_server.stop(0)

    return asyncio.run(session())


@contextmanager
def listener(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Listen on a port and handle each connection with `answer`; gives the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_good_coordinator_is_reported(federation: LocalFederation) -> None:
    """By name and by address; the report says its names and end."""
    for host in ("localhost", "127.0.0.1"):
        report = run_probe(federation, federation, host=host)
        assert report.hosts == ("localhost", "127.0.0.1", "::1")
        assert report.not_after - NOW > timedelta(days=364)
        assert report.tls_version == "TLSv1.3"


@pytest.mark.parametrize(
    ("hosts", "dialed"),
    [(("coord.example",), "localhost"), (("localhost",), "127.0.0.1"), (("::1",), "127.0.0.1")],
)
def test_a_name_mismatch_says_what_was_expected_and_found(
    tmp_path: Path, hosts: tuple[str, ...], dialed: str
) -> None:
    """The common name never counts, only the hosts that the certificate lists (bug case TLS-01)."""
    federation = make_federation(tmp_path, silos=["a"], now=NOW, hosts=hosts)
    with pytest.raises(
        TlsError, match=f"expected a certificate for {dialed}, got one for {hosts[0]}"
    ) as e:
        run_probe(federation, federation, host=dialed)
    assert e.value.cause is TlsCause.NAME_MISMATCH


@pytest.mark.parametrize(
    ("days", "cause", "words"),
    [
        (-370, TlsCause.SERVER_EXPIRED, "certificate expired on"),
        (1, TlsCause.SERVER_NOT_YET_VALID, "is valid from .* clock says"),
    ],
)
def test_a_coordinator_out_of_date_is_named_with_the_date(
    tmp_path: Path, days: int, cause: TlsCause, words: str
) -> None:
    """Expired, or made by a clock that is ahead of ours (bug case TLS-03)."""
    federation = make_federation(tmp_path, silos=["a"], now=NOW - timedelta(days=400))
    federation.issue("a", Role.SILO, now=NOW)
    federation.issue(COORDINATOR, Role.COORDINATOR, now=NOW + timedelta(days=days))
    silo = LocalFederation(root=federation.root, now=NOW)
    with pytest.raises(TlsError, match=words) as caught:
        run_probe(silo, silo)
    assert caught.value.cause is cause


def test_another_authority_is_named(tmp_path: Path, federation: LocalFederation) -> None:
    """A silo of one federation dials the coordinator of another."""
    other = make_federation(tmp_path, silos=["a"], now=NOW)
    with pytest.raises(TlsError, match=r"not from the authority in ca.pem") as caught:
        run_probe(other, federation)
    assert caught.value.cause is TlsCause.UNKNOWN_AUTHORITY


def test_a_refused_client_certificate_is_named(tmp_path: Path, federation: LocalFederation) -> None:
    """The server says so only after the handshake looks complete to us."""
    other = make_federation(tmp_path, silos=["a"], now=NOW)
    (other.folder(COORDINATOR) / "ca.pem").write_bytes(
        (federation.folder(COORDINATOR) / "ca.pem").read_bytes()
    )
    with pytest.raises(TlsError, match="refused the certificate of secagg://silo/a") as caught:
        run_probe(other, other)
    assert caught.value.cause is TlsCause.CLIENT_REFUSED


def test_our_own_expired_certificate_is_found_before_dialing(tmp_path: Path) -> None:
    """And if our clock is wrong, the server's refusal is named (bug case TLS-03)."""
    federation = make_federation(tmp_path, silos=["a"], now=NOW - timedelta(days=400))
    federation.issue(COORDINATOR, Role.COORDINATOR, now=NOW)
    credentials = federation.credentials("a", Role.SILO)
    with pytest.raises(CredentialError, match=r"tls.pem expired on"):
        probe("127.0.0.1:9", credentials, now=NOW)
    with pytest.raises(TlsError, match="refused the certificate") as caught:
        run_probe(federation, federation, now=NOW - timedelta(days=400))
    assert caught.value.cause is TlsCause.CLIENT_REFUSED


def test_nobody_listening_and_an_unknown_name_are_not_tls_errors(
    federation: LocalFederation,
) -> None:
    """These may pass: a process retries them."""
    credentials = federation.credentials("a", Role.SILO)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UnreachableError, match=f"nothing listens on port {port}"):
        probe(f"127.0.0.1:{port}", credentials, now=NOW)
    with pytest.raises(UnreachableError, match=r"the name 'nowhere.invalid' is unknown"):
        probe("nowhere.invalid:1", credentials, now=NOW)


def test_a_silent_listener_is_a_time_out(federation: LocalFederation) -> None:
    """Something accepts and says nothing."""
    done = threading.Event()
    credentials = federation.credentials("a", Role.SILO)

    def answer(_: socket.socket) -> None:
        done.wait()

    with listener(answer) as target:
        with pytest.raises(UnreachableError, match=r"did not answer within 0.2 s"):
            probe(target, credentials, now=NOW, timeout_s=0.2)
        done.set()


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_port_without_tls_is_named(federation: LocalFederation, words: bytes) -> None:
    """A plain web server or something that hangs up is no coordinator."""

    def answer(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(words)

    with listener(answer) as target, pytest.raises(TlsError) as caught:
        probe(target, federation.credentials("a", Role.SILO), now=NOW)
    assert caught.value.cause is TlsCause.NOT_TLS


def test_tls_without_grpc_is_named(federation: LocalFederation) -> None:
    """The right certificate on a port that speaks something else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    folder = federation.folder(COORDINATOR)
    context.load_cert_chain(folder / "tls.pem", folder / "tls.key")

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as tls:
            tls.recv(4096)
            tls.sendall(b"220 mail.example ESMTP\r\n")

    with listener(answer) as target, pytest.raises(TlsError, match="but not gRPC") as caught:
        probe(target, federation.credentials("a", Role.SILO), now=NOW)
    assert caught.value.cause is TlsCause.NOT_GRPC

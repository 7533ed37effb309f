"""Metrics and health over plain HTTP, for the operator's own Prometheus and supervisor.

    /metrics   Prometheus' text format
    /live      200 while the process answers at all
    /ready     200 once it does its work: a coordinator serves, a silo is connected; else 503

Nothing is asked of who reads, so it listens on a loopback address or behind something that asks.
What is shown are counts, durations and budgets of this process; never a value of anybody's data.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from services.errors import AddressInUseError
from services.security.credentials import split_address

_TEXT: Final = "text/plain; charset=utf-8"
_WAIT_S: Final = 10


@contextmanager
def exposed(
    address: str | None, registry: CollectorRegistry, is_ready: Callable[[], bool]
) -> Iterator[str]:
    """Answer on this address while the block runs; gives the address with its real port.

    Args:
        address: host and port, port 0 for one that is free; None: nobody is answered.
        registry: what to show.
        is_ready: asked from another thread.

    Raises:
        AddressInUseError: the port is taken or the address is not this machine's.
    """
    if address is None:
        yield ""
        return
    host, port = split_address(address)

    class Handler(BaseHTTPRequestHandler):
        timeout = _WAIT_S  # of an idle line

        def do_GET(self) -> None:
            match self.path:
                case "/metrics":
                    self._answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry))
                case "/live":
                    self._answer(HTTPStatus.OK, _TEXT, b"live\n")
                case "/ready" if is_ready():
                    self._answer(HTTPStatus.OK, _TEXT, b"ready\n")
                case "/ready":
                    self._answer(HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"not ready\n")
                case _:
                    self._answer(HTTPStatus.NOT_FOUND, _TEXT, b"/metrics, /live or /ready\n")

        def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:  # the base class prints every request
            return

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise AddressInUseError(
            f"cannot show metrics on {address}: {error.strerror}",
            hint="end the process that has the port, or choose another in `metrics`",
        ) from error
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

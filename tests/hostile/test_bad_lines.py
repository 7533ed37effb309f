"""Lines that are cut while nobody speaks, and silos that do not keep step."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select

import pytest

from services.demo.federation import LocalFederation
from services.security.credentials import split_address

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # processes that are killed, renewed, attacked

RUN = """
[run]
name = "lines"
rounds = {rounds}
min_silos = {silos}
metrics = false

[local]
steps = 1
batch_size = 0
learning_rate = 0.05

[task]
name = "tests.hostile.slow_task:factory"
"""


@contextmanager
def cutting_proxy(target: tuple[str, int], silence_s: float) -> Iterator[tuple[str, list[int]]]:
    """A TCP proxy that drops a connection after so much silence; gives address and cuts."""
    cuts: list[int] = []
    done = threading.Event()

    def relay(near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(target, timeout=10) as far:
            while not done.is_set():
                ready, _, _ = select([near, far], [], [], silence_s)
                if not ready:
                    cuts.append(1)
                    return
                for one in ready:
                    data = one.recv(65536)
                    if not data:
                        return
                    (far if one is near else near).sendall(data)

    def accept(server: socket.socket) -> None:
        while not done.is_set():
            with suppress(OSError):
                threading.Thread(target=relay, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, args=(server,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", cuts
        done.set()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def run(federation: LocalFederation, *, rounds: int, silos: int) -> list[object]:
    """Start a run and follow it to its end; the survivors of each round, as they were logged."""
    path = federation.home / "run.toml"
    path.write_text(RUN.format(rounds=rounds, silos=silos), encoding="utf-8")
    operator = ("--operator", str(federation.operator_file))
    command = (sys.executable, "-m", "services.cli", "run")
    started = subprocess.run(
        [*command, "start", "-c", str(path), *operator], capture_output=True, text=True, check=True
    )
    subprocess.run([*command, "watch", started.stdout.strip(), *operator], check=True, timeout=350)
    child = next(one for one in federation.children if one.name == "coordinator")
    return [one["survivors"] for one in child.lines() if one.get("event") == "committed"]


def task(number: int, **settings: float) -> list[str]:
    """What silo `number` trains, and how slowly."""
    own = [f"{name} = {value}" for name, value in settings.items()]
    return [
        'task = "tests.hostile.slow_task:factory"',
        "[settings]",
        f"silo = {number}",
        *own,
        "[policy]",
        "n_c = 1",
    ]


def test_a_line_that_is_cut_in_silence_costs_nothing(tmp_path: Path) -> None:
    """Training without traffic, on a line that is dropped after two seconds (bug case NET-03).

    One silo trains for five seconds, two of them without letting go of the interpreter. It comes
    back on a new connection with the same session, and its work is in the sum.
    """
    names = [f"silo-{number}" for number in range(1, 5)]
    with LocalFederation(home=tmp_path, silos=names) as federation:
        coordinator = federation.start_coordinator()
        with cutting_proxy(split_address(federation.address), 2.0) as (address, cuts):
            straight, federation.address = federation.address, address
            slow = federation.start_silo("silo-1", task(1, sleep_s=3.0, spin_s=2.0))
            federation.address = straight
            for number, name in enumerate(names[1:], start=2):
                federation.start_silo(name, task(number))
            assert run(federation, rounds=1, silos=4) == [[1, 2, 3, 4]]
        assert cuts, "the proxy has cut no line"
        hellos = [one for one in coordinator.lines() if one.get("event") == "hello"]
        assert len(hellos) == 4, "a reconnect is no new session"
        assert slow.exit_code is None


@pytest.mark.timeout(400)
def test_silos_that_do_not_keep_step_lose_no_round(tmp_path: Path) -> None:
    """Ten silos, each as slow as it likes, who ask for the next round at once (bug case DRP-12).

    In every round each waits for 0 to 270 ms, another time in each.
    """
    names = [f"silo-{number}" for number in range(1, 11)]
    with LocalFederation(home=tmp_path, silos=names) as federation:
        federation.start_coordinator()
        federation.start_crowd(
            "crowd", {name: task(number) for number, name in enumerate(names, start=1)}
        )
        everybody = list(range(1, 11))
        assert run(federation, rounds=50, silos=10) == [everybody] * 50

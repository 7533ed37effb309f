"""Nothing secret is ever written: a whole run at DEBUG, searched for everything that was drawn.

Coordinator and silos live in this process, so that every byte that they draw at random, their keys,
their data and their updates are known to the test (bug case SEC-04).
"""

import asyncio
import base64
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import structlog

from fl.state import encode_state
from secagg.ids import RunId
from secagg.keys import AgreementKey, IdentityKey
from secagg.rng import SystemRng
from secagg.secretbytes import Secret
from services.cli.operator import run_client
from services.config import CoordinatorConfig, SiloConfig
from services.coordinator.serve import serve
from services.demo.federation import LocalFederation
from services.observe.logs import configure
from services.run_config import RunConfig
from services.security.credentials import split_address
from services.settings import parse_config
from services.silo.join import join
from services.wire.calls import StartCall
from tests.hostile.leaky_task import CANARY, POINTS, LeakyTask, factory

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # processes that are killed, renewed, attacked

SILOS = tuple(f"silo-{number}" for number in range(1, 6))
RUN = """
[run]
name = "leaks"
rounds = {rounds}
min_silos = 5
seed = {seed}

[algorithm]
name = "scaffold"

[weights]
kind = "hidden"
n_cap = 8192

[local]
steps = 2
batch_size = 0
learning_rate = 0.05

[task]
name = "tests.hostile.leaky_task:factory"
"""


class RecordingRng(SystemRng):
    """The system's generator, with a memory."""

    drawn: list[bytes] = []  # noqa: RUF012 - of all parties of the process

    def bytes(self, count: int) -> bytes:
        data = super().bytes(count)
        if count >= 32:  # seeds, keys, coefficients; an incarnation has 16 bytes and is no secret
            self.drawn.append(data)
        return data


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Log everything to this file in place of stderr, and remember what is drawn."""
    path = tmp_path / "stderr"
    monkeypatch.setattr("services.silo.join.SystemRng", RecordingRng)
    monkeypatch.setattr("services.coordinator.serve.SystemRng", RecordingRng)
    RecordingRng.drawn.clear()
    LeakyTask.updates.clear()
    with path.open("w", encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        configure(level="debug", style="json")
        yield path
    structlog.reset_defaults()


def silo_config(federation: LocalFederation, name: str, more: str = "") -> SiloConfig:
    """A silo's settings."""
    text = (
        f'coordinator = "{federation.address}"\ndirectory = "{name}/keys"\n'
        f'storage = "{name}/storage"\ntask = "tests.hostile.leaky_task:factory"\n'
        f"[settings]\nsilo = {name[-1]}\n{more}\n[policy]\nn_c = 1\n"
    )
    return parse_config(text.encode(), SiloConfig, source=name, base=federation.home)


async def live(federation: LocalFederation) -> str:
    """A run with a failing silo, one that leaves and comes back, and one that is stopped."""
    text = f'listen = "{federation.address}"\ndirectory = "coordinator/keys"\n'
    text += 'storage = "coordinator/storage"\n[deadlines]\nregistration_s = 60\n'
    hub = parse_config(text.encode(), CoordinatorConfig, source="hub", base=federation.home)
    operator = federation.home / "operator.toml"
    operator.write_text(
        f'coordinator = "{federation.address}"\ndirectory = "operator/keys"\n', encoding="utf-8"
    )
    serving = asyncio.create_task(serve(hub))
    await asyncio.to_thread(_wait_for, federation.address)
    stops = {name: asyncio.Event() for name in SILOS}

    def start(name: str) -> "asyncio.Task[object]":
        config = silo_config(federation, name, "fails_in = 2" if name == "silo-3" else "")
        stops[name] = asyncio.Event()
        return asyncio.create_task(join(config, software="test", once=False, stop=stops[name]))

    tasks = {name: start(name) for name in SILOS}
    said = ""
    async with run_client(operator) as client:
        for number, rounds in enumerate((4, 500)):
            run = RunId(SystemRng().bytes(16))
            document = RUN.format(rounds=rounds, seed=number).encode()
            parse_config(document, RunConfig, source="run", base=Path())
            model = LeakyTask(np.zeros((1, 1)), np.zeros(1)).initial_model(0)
            initial = await client.put_initial_state(run, encode_state(model))
            await client.start_run(StartCall(run=run, config=document, initial_state=initial))
            if number == 1:
                stops["silo-5"].set()
                await tasks["silo-5"]
                tasks["silo-5"] = start("silo-5")
                await client.stop_run(run, "enough")
            revision = 0
            while True:
                reply = await client.watch_run(run, after_revision=revision)
                revision = reply.revision
                if reply.status.summary.state.is_final:
                    break
            said += repr(await client.show_run(run))
            said += await asyncio.to_thread(_show, operator, run)
    for name, stop in stops.items():
        stop.set()
        await tasks[name]
    signal.raise_signal(signal.SIGTERM)
    await serving
    return said


def _wait_for(address: str) -> None:
    """Return once somebody listens there."""
    for _ in range(600):
        try:
            socket.create_connection(split_address(address), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return


def _show(operator: Path, run: RunId) -> str:
    """What an operator sees on a terminal."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "services.cli",
            "run",
            "show",
            str(run),
            "--operator",
            str(operator),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


def spellings(secret: bytes) -> Iterator[str]:
    """How a secret's first, last or all bytes could stand in a text."""
    for part in (secret[:8], secret[-8:]):
        yield part.hex()
        yield repr(part)[2:-1]
        yield str(int.from_bytes(part, "big"))
        yield str(int.from_bytes(part, "little"))
        yield str(list(part))[1:-1]
    yield base64.b64encode(secret[:9]).decode()
    yield base64.urlsafe_b64encode(secret[:9]).decode()


def test_logs_answers_and_terminals_hold_nothing_secret(
    tmp_path: Path, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seeds, keys, shares' coefficients, data, updates, counts, errors' texts (bug case SEC-04)."""
    with LocalFederation(home=tmp_path, silos=SILOS) as federation:
        said = asyncio.run(live(federation))
    sys.stderr.flush()
    text = written.read_text(encoding="utf-8") + capsys.readouterr().out + said
    for event in ("committed", "settled", "training-failed", "hello", "sent"):
        assert f'"event": "{event}"' in text, f"nothing was seen of {event}"
    secrets = list(RecordingRng.drawn)
    assert len(secrets) > 100, "the parties drew nothing"
    for name in (*SILOS, "coordinator"):
        keys = tmp_path / name / "keys"
        secrets.append((keys / "identity.key").read_bytes())
        lines = (keys / "tls.key").read_bytes().splitlines()[1:-1]
        secrets += [base64.b64decode(line) for line in lines]
    for secret in secrets:
        for spelling in spellings(secret):
            assert spelling not in text
    assert LeakyTask.updates
    values = [float(value) for update in LeakyTask.updates for value in update]
    values += [float(v) for v in silo_data()[:200]]
    for value in values:
        assert repr(value) not in text
        assert f"{value:.6f}" not in text
    assert CANARY not in text
    assert "Mustermann" not in text
    count = re.compile(rf"(?<![\w.]){POINTS}(?!\w)")
    assert count.search(text) is None, "a silo's sample count is its own affair"


def silo_data() -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """The first silo's targets."""
    return factory({"silo": 1}).targets


def test_what_holds_a_secret_does_not_show_it() -> None:
    """In no repr, and core dumps are the machine's affair (deploy/ turns them off)."""
    data = bytes(range(200, 232))
    for holder in (
        Secret(data),
        IdentityKey.from_bytes(data),
        AgreementKey.from_secret(data),
    ):
        shown = f"{holder!r} {holder}"
        assert not any(spelling in shown for spelling in spellings(data))

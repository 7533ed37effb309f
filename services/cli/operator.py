"""How the operator's commands reach the coordinator, and how they follow a run."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from fl.plan import TABULAR
from fl.state import encode_state
from secagg.ids import RunId
from secagg.rng import SystemRng
from services.cli.options import pick_run, whole_id
from services.clock import monotonic, utc_now
from services.config import OperatorConfig
from services.errors import UnavailableError, UnreachableError
from services.plans import build_plan
from services.run_config import RunConfig
from services.security.credentials import load_credentials, open_channel
from services.security.identity import Role
from services.security.probe import probe
from services.settings import load_config
from services.wire.calls import RunStatus, RunSummary, StartCall
from services.wire.clients import RunClient

# A coordinator that restarts is back within this time; longer is an outage.
_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 1.0


@asynccontextmanager
async def run_client(config: Path) -> AsyncIterator[RunClient]:
    """A client with the operator's certificate.

    Raises:
        TlsError, UnreachableError: no call got through, with the cause that gRPC does not tell.
    """
    settings = load_config(config, OperatorConfig)
    credentials = load_credentials(settings.directory, role=Role.OPERATOR, now=utc_now())
    channel = open_channel(settings.coordinator, credentials, proxy=settings.proxy)
    try:
        yield RunClient(channel, target=settings.coordinator)
    except UnavailableError as error:
        await asyncio.to_thread(probe, settings.coordinator, credentials, now=utc_now())
        raise UnreachableError(str(error)) from error
    finally:
        await channel.close()


async def find_run(client: RunClient, text: str) -> RunId:
    """The run of this id, or the only one whose id begins so.

    Raises:
        ConfigError: no run begins so, or several do, or the text is too short to tell.
    """
    if (run := whole_id(text)) is not None:
        return run
    runs = [one.run for one in await client.list_runs()]
    return pick_run(text, runs, hint="see `secagg run list`")


async def run_to_start(client: RunClient, resume: str | None) -> RunId:
    """A new run's id, or that of the run to go on with.

    Raises:
        ConfigError: as `find_run`.
    """
    return await find_run(client, resume) if resume else RunId(SystemRng().bytes(16))


def _untold(_text: str) -> None:
    """Tell nobody."""


async def follow(
    client: RunClient, run: RunId, tell: Callable[[str], None] = _untold
) -> AsyncIterator[RunStatus]:
    """Give the run's status at each change until it has ended; rounds come once each.

    Args:
        client: of the coordinator.
        run: which.
        tell: is told once whenever the coordinator goes out of reach.

    Raises:
        UnavailableError: the coordinator was out of reach for too long.
    """
    revision, after_round, since, is_away = 0, 0, monotonic(), False
    while True:
        try:
            reply = await client.watch_run(run, after_revision=revision, after_round=after_round)
        except UnavailableError:
            if monotonic() - since > _PATIENCE_S:
                raise
            if not is_away:
                tell(f"cannot reach the coordinator, trying again for {_PATIENCE_S:.0f} s")
            is_away = True
            await asyncio.sleep(_PAUSE_S)
            revision = 0  # a restarted coordinator counts anew
            continue
        since, is_away = monotonic(), False
        if reply.revision == revision and not reply.status.summary.state.is_final:
            continue
        revision = reply.revision
        if reply.status.rounds:
            after_round = reply.status.rounds[-1].round
        yield reply.status
        if reply.status.summary.state.is_final:
            return


async def start_run(client: RunClient, config: Path, run: RunId) -> RunSummary:
    """Check a run's settings here, put the initial model where the task is an own one, start it.

    Raises:
        ConfigError: the settings cannot be used, or name what is not installed here.
        LearningError: the own task cannot be loaded here.
    """
    settings, document = await asyncio.to_thread(load_run, config)
    initial = None
    if settings.task.name != TABULAR:
        from fl.training.custom import load_task

        task = load_task(settings.task.name, settings.task.settings)
        state = encode_state(task.initial_model(settings.run.seed))
        initial = await client.put_initial_state(run, state)
    return await client.start_run(StartCall(run=run, config=document, initial_state=initial))


def load_run(config: Path) -> tuple[RunConfig, bytes]:
    """Read a run's settings and check them; returns them with their bytes.

    Raises:
        ConfigError: the settings cannot be used, or name what is not installed here.
    """
    settings = load_config(config, RunConfig)
    # A wrong name is found here, not where the run would begin.
    build_plan(settings, max_silos=settings.run.min_silos)
    return settings, config.read_bytes()


async def fetch_model(operator: Path, run: str) -> bytes:
    """The run's newest released file."""
    async with run_client(operator) as client:
        return await fetch_released(client, await find_run(client, run))


async def fetch_released(client: RunClient, run: RunId) -> bytes:
    """The run's newest released file: a model, or a statistics run's sums."""
    while True:
        first = await client.fetch_model(run, 0)
        rest = [await client.fetch_model(run, index) for index in range(1, first.count)]
        # A round may be committed in between; then the pieces are of two files.
        if all(piece.vector == first.vector for piece in rest):
            return b"".join(piece.data for piece in (first, *rest))

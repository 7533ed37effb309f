"""The silo's composition root: files in, one long-lived process out."""

import asyncio
import signal
from functools import partial
from pathlib import Path

from secagg.errors import RosterError
from secagg.ids import AttemptId, SiloId
from secagg.journal import AttemptSummary, JournalEvent, SiloHistory, decode_line
from secagg.rng import SystemRng
from services.clock import utc_now
from services.config import SiloConfig
from services.enrollment.roster_file import ROSTER, TRUST, load_roster, load_trust
from services.errors import CredentialError
from services.files import make_private_dir
from services.ledger.parties import listed_rosters, load_party
from services.observe.exposition import exposed
from services.observe.logs import Logger, get_logger
from services.security.credentials import load_credentials, load_identity
from services.security.identity import Role
from services.silo.check import budget_status, read_table
from services.silo.greeting import Greeting
from services.silo.learner import Learner
from services.silo.ledger import LEDGERS, SiloLedgers
from services.silo.line import Line
from services.silo.link import Link
from services.silo.metrics import SiloMetrics
from services.silo.node import SiloNode
from services.storage.silo import SiloStore
from services.wire.calls import RunState

# How long in a row the coordinator may be out of reach before this process ends with an error.
GIVE_UP_S = 3600.0


async def join(
    config: SiloConfig, *, software: str, once: bool, stop: asyncio.Event | None = None
) -> RunState | None:
    """Take part in runs until told to stop; with `once`, in one run, and say how it ended.

    Args:
        config: silo.toml.
        software: this software's version, for the other side's people.
        once: whether to leave after the first run.
        stop: tells to stop; without it, SIGINT and SIGTERM do.

    Raises:
        CredentialError: a key, certificate or roster is missing or unfit.
        TlsError: the coordinator answers, but no trusted connection comes about.
        DataError, SchemaError: the silo's file cannot be read, or is no table.
        StorageError: the storage folder is another process's, or damaged.
        RemoteError: the coordinator refuses this process.
    """
    log = get_logger("silo")
    credentials = load_credentials(config.directory, role=Role.SILO, now=utc_now())
    identity, trust = load_identity(config.directory), load_trust(config.directory / TRUST)
    roster = load_roster(config.directory / ROSTER, trust)
    name = credentials.identity.name
    try:
        seat = roster.seat_of(SiloId(name))
    except RosterError as error:
        raise CredentialError(
            f"{config.directory / ROSTER}: {error}", hint="ask the authority for a new bundle"
        ) from error
    if seat.identity_key != identity.public:
        raise CredentialError(f"the roster names another identity key for silo {name}")
    log = log.bind(silo=name)
    if config.data is not None:
        await asyncio.to_thread(_look_at, config.data.file, log)
    store = SiloStore(config.storage)
    rng = SystemRng()
    line = Line(
        target=config.coordinator,
        credentials=credentials,
        proxy=config.proxy,
        incarnation=rng.bytes(16),
        log=log,
    )
    renewing = asyncio.create_task(line.keep_renewed())
    try:
        metrics = SiloMetrics()
        metrics.show_budget(partial(budget_status, config))
        metrics.certificate.set_function(lambda: line.credentials.days_left(utc_now()))
        lines = [decode_line(line) for line in store.journal()]
        greeting = Greeting(
            incarnation=line.incarnation,
            predecessors=store.succeed(line.incarnation),
            software=software,
            roster=roster,
            trust=trust,
            roster_file=config.directory / ROSTER,
            log=log,
            former=listed_rosters(config.directory),
        )
        history = SiloHistory(lines)
        ledgers = SiloLedgers(
            budget_settings=config.privacy,
            folder=config.storage / LEDGERS,
            party=load_party(config.directory, name),
            policy=config.policy.silo_policy(),
            roster=lambda: greeting.roster,
            former=lambda: greeting.former,
            now=utc_now,
            log=log,
            has_promised=partial(history.has, event=JournalEvent.ABANDONED),
            agreed=partial(_agreed, store),
        )
        node = SiloNode(
            seat=seat.index,
            identity=identity,
            policy=config.policy.silo_policy(),
            store=store,
            history=history,
            runs={line.attempt.run for line in lines},
            greeting=greeting,
            learner=Learner(
                config=config,
                seat=seat.index,
                roster=roster,
                store=store,
                ledgers=ledgers,
                rng=rng,
                log=log,
            ),
            link=Link(
                line=line,
                rng=rng,
                log=log,
                give_up_s=GIVE_UP_S,
                metrics=metrics,
            ),
            metrics=metrics,
            directory=make_private_dir(config.storage / "attempts"),
            rng=rng,
            log=log,
            once=once,
            linger_s=config.linger_s,
        )
        with exposed(config.metrics, metrics.registry, lambda: bool(greeting.coordinator)) as shown:
            log.info("metrics", address=shown or "not configured")
            return await node.run(stop or stop_signal())
    finally:
        renewing.cancel()
        await line.close()
        store.close()


def _agreed(store: SiloStore, attempt: AttemptId) -> tuple[int, ...] | None:
    """The survivors' seats that this silo's journal has for an attempt, signed or certified."""
    found = None
    for line in map(decode_line, store.journal()):
        is_told = isinstance(line, AttemptSummary) or line.event is not JournalEvent.LIFTED
        if line.attempt == attempt and line.survivors and is_told:
            found = line.survivors
    return found


def _look_at(file: Path, log: Logger) -> None:
    """Read the silo's table before any run asks for it, and say which cells have no value.

    Raises:
        DataError, SchemaError: see read_table.
    """
    for note in read_table(file).blanks():
        log.warning("cells-blank", note=f"{note}; a run's schema fills them or refuses the file")


def stop_signal() -> asyncio.Event:
    """Give an event that SIGINT and SIGTERM set."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop

"""The coordinator's composition root: files in, one process on one port out."""

import asyncio
import os
import resource
import signal
import socket
from contextlib import suppress
from functools import partial

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from secagg.rng import SystemRng
from secagg.roster import Roster
from services.clock import utc_now
from services.config import CoordinatorConfig
from services.coordinator.aggregation import Aggregation
from services.coordinator.desk import RunDesk
from services.coordinator.hub import Hub, presence
from services.coordinator.metrics import CoordinatorMetrics
from services.coordinator.rosters import Rosters
from services.errors import CredentialError
from services.heap import give_back
from services.observe.exposition import exposed
from services.observe.logs import Logger, get_logger, where
from services.release import software_version
from services.security.credentials import (
    SERVER_OPTIONS,
    WARN_DAYS,
    bind,
    load_credentials,
    load_identity,
    server_credentials,
)
from services.security.identity import Role
from services.storage.coordinator import CoordinatorStore
from services.storage.lease import RENEW_S
from services.wire.servicers import SERVICE_NAMES, add_services

_GRACE_S = 3.0
_FILES = 8192
_LOOK_S = 3600.0
# Envelopes that one process may post to a silo before its numbers reach the next process's.
_SEQUENCE_BITS = 40
# How often a standby looks whether it is needed.
_STANDBY_S = 1.0


async def serve(config: CoordinatorConfig) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        CredentialError: a key, certificate or roster is missing or unfit.
        AddressInUseError: the port is taken.
        StorageError: the storage folder is another process's, or damaged, or the disk or the
            database fails while runs go on; they go on when this process is started again.
        LeaseLostError: a standby has taken over.
    """
    stop = _stop_signal()
    _allow_many_files()
    give_back()
    log = get_logger("coordinator")
    load_credentials(config.directory, role=Role.COORDINATOR, now=utc_now())
    identity = load_identity(config.directory)
    rosters = Rosters.load(config.roster_file, config.directory, identity.public)
    roster = rosters.in_force.roster
    store = CoordinatorStore(config.storage, url=config.database, holder=_own_name())
    try:
        if not await _is_ours(store, stop, log):
            return
        server = grpc.aio.server(options=SERVER_OPTIONS)
        address = bind(server, config.listen, server_credentials(config.directory))
        starts = await asyncio.to_thread(store.count_start)
        hub = Hub(
            roster=roster,
            presence=presence(config.deadlines.silent_s),
            first_sequence=starts << _SEQUENCE_BITS,
        )
        desk = RunDesk(hub=hub, store=store, config=config, signing_key=identity, log=log)
        aggregation = Aggregation(
            hub=hub,
            desk=desk,
            incarnation=SystemRng().bytes(16),
            software=software_version(),
            rosters=rosters,
            issued=config.directory / "issued",
            log=log,
        )

        metrics = CoordinatorMetrics(hub, desk, partial(_days_left, config))

        def in_force() -> Roster:
            return hub.roster

        def unexpected(error: Exception, call: str) -> None:
            log.error("internal", call=call, code=type(error).__name__, where=where(error))

        add_services(
            server,
            aggregation=aggregation,
            runs=desk,
            roster=in_force,
            unexpected=unexpected,
            answered=metrics.answered,
        )
        checks = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        names = (*SERVICE_NAMES, health.SERVICE_NAME)
        for name in ("", *names):
            await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
        await desk.resume()
        await server.start()
        log.info("listening", address=address, seats=len(roster.seats), roster=roster.version)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, rosters.look_now)
        work = (
            stop.wait(),
            desk.broken(),
            _renew(store),
            rosters.watch(hub, log),
            warn_of_end(config, log),
        )
        ends = [asyncio.create_task(one) for one in work]
        with exposed(config.metrics, metrics.registry, lambda: not stop.is_set()) as shown:
            log.info("metrics", address=shown or "not configured")
            done, others = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping")
        for other in others:
            other.cancel()
        await checks.enter_graceful_shutdown()
        await desk.close()
        desk.interrupt()  # answered once `stop` lets no other call in; else it would cancel them
        await server.stop(_GRACE_S)
        for one in done:
            one.result()
    finally:
        store.close()


async def _is_ours(store: CoordinatorStore, stop: asyncio.Event, log: Logger) -> bool:
    """Stand by until the storage is ours; False if told to stop before."""
    last = None
    while (holder := await asyncio.to_thread(store.try_claim)) is not None:
        if holder != last:
            log.info("standing-by", holder=holder)
            last = holder
        with suppress(TimeoutError):
            async with asyncio.timeout(_STANDBY_S):
                await stop.wait()
                return False
    return True


async def _renew(store: CoordinatorStore) -> None:
    """Keep the storage ours; ends with the error that makes it somebody else's."""
    while True:
        await asyncio.sleep(RENEW_S)
        await asyncio.to_thread(store.renew)


def _days_left(config: CoordinatorConfig) -> int:
    """Whole days until the certificate on the disk ends; -1 if it is unfit."""
    try:
        credentials = load_credentials(config.directory, role=Role.COORDINATOR, now=utc_now())
    except CredentialError:
        return -1
    return credentials.days_left(utc_now())


async def warn_of_end(config: CoordinatorConfig, log: Logger) -> None:
    """Say in time, and then every hour, that the certificate ends."""
    while True:
        days_left = await asyncio.to_thread(_days_left, config)
        if days_left < WARN_DAYS:
            log.warning("certificate-ends", days_left=days_left)
        await asyncio.sleep(_LOOK_S)


def _allow_many_files() -> None:
    """Raise the soft limit of open files: each connection has one (SERVER_OPTIONS bounds them)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _own_name() -> str:
    return f"{socket.gethostname()}, process {os.getpid()}"


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop

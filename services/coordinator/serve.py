"""The coordinator's composition root: files in, one process on one port out."""

import asyncio
import signal

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from secagg.rng import SystemRng
from secagg.roster import Roster
from services.clock import utc_now
from services.config import CoordinatorConfig
from services.coordinator.aggregation import Aggregation
from services.coordinator.desk import RunDesk
from services.coordinator.hub import Hub
from services.enrollment.roster_file import TRUST, load_roster, load_signed, load_trust
from services.errors import CredentialError
from services.observe.logs import get_logger, where
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
from services.wire.servicers import SERVICE_NAMES, add_services

_GRACE_S = 3.0


async def serve(config: CoordinatorConfig) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        CredentialError: a key, certificate or roster is missing or unfit.
        AddressInUseError: the port is taken.
        StorageError: the storage folder is another process's, or damaged.
    """
    log = get_logger("coordinator")
    credentials = load_credentials(config.directory, role=Role.COORDINATOR, now=utc_now())
    days_left = credentials.days_left(utc_now())
    if days_left < WARN_DAYS:
        log.warning("certificate-ends", days_left=days_left)
    identity = load_identity(config.directory)
    roster = load_roster(config.roster_file, load_trust(config.directory / TRUST))
    if roster.coordinator_key != identity.public:
        raise CredentialError(
            f"{config.roster_file} names another coordinator key than {config.directory} holds",
            hint="install the bundle that was issued for this folder's request",
        )
    server = grpc.aio.server(options=SERVER_OPTIONS)
    address = bind(server, config.listen, server_credentials(config.directory))
    store = CoordinatorStore(config.storage)
    try:
        hub = Hub(roster=roster)
        desk = RunDesk(hub=hub, store=store, config=config, signing_key=identity, log=log)
        aggregation = Aggregation(
            hub=hub,
            desk=desk,
            incarnation=SystemRng().bytes(16),
            software=software_version(),
            signed_roster=lambda: load_signed(config.roster_file).encode(),
            log=log,
        )

        def in_force() -> Roster:
            return hub.roster

        def unexpected(error: Exception, call: str) -> None:
            log.error("internal", call=call, code=type(error).__name__, where=where(error))

        add_services(
            server, aggregation=aggregation, runs=desk, roster=in_force, unexpected=unexpected
        )
        checks = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        names = (*SERVICE_NAMES, health.SERVICE_NAME)
        for name in ("", *names):
            await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
        await server.start()
        log.info("listening", address=address, seats=len(roster.seats), roster=roster.version)
        await desk.resume()
        await _stopped()
        log.info("stopping")
        await checks.enter_graceful_shutdown()
        await desk.close()
        await server.stop(_GRACE_S)
    finally:
        store.close()


async def _stopped() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()

"""Many silos in one process, each with its own certificate, connection and storage; for load tests.

    python -m services.demo.crowd [--once] silo-1.toml silo-2.toml …

With --once it ends when every silo has taken part in one run, else when it is told to stop.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from services.config import SiloConfig
from services.observe.logs import configure
from services.release import software_version
from services.settings import load_config
from services.silo.join import join, stop_signal


async def crowd(configs: Sequence[SiloConfig], *, once: bool) -> None:
    """Take part in runs with every silo."""
    stop = stop_signal()
    software = software_version()
    await asyncio.gather(
        *(join(config, software=software, once=once, stop=stop) for config in configs)
    )


def main(arguments: Sequence[str]) -> None:
    """Run until it has ended or is told to stop."""
    settings = [load_config(Path(path), SiloConfig) for path in arguments if path != "--once"]
    configure(level=settings[0].log.level, style=settings[0].log.format)
    asyncio.run(crowd(settings, once="--once" in arguments))


if __name__ == "__main__":
    main(sys.argv[1:])

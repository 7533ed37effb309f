"""Silos that vanish: many in one process, each dropped now and then in the midst of a round.

A silo that vanishes is cut off where it stands: its secrets of the round, its connection and its
session are gone, as after a SIGKILL; its storage stays, and a new one comes back with it. Which
silo vanishes where follows from the round's number alone (`drops`).

    python -m bench.flaky silo-1.toml silo-2.toml …
"""

import asyncio
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from fl.errors import PlanError
from fl.seeding import generator
from fl.testing import LeastSquaresTask
from services import faults
from services.config import SiloConfig
from services.observe.logs import configure
from services.release import software_version
from services.settings import load_config
from services.silo.join import join, stop_signal

SILOS: Final = 20
# One for each phase.
POINTS: Final = (
    "silo.before-advertise",
    "silo.before-share",
    "silo.before-upload",
    "silo.before-journal-signed",
    "silo.before-journal-unmasked",
)
# So many rounds in a row lose silos in the same phase; then comes the next phase.
STRETCH: Final = 6
# After so many rounds everything comes again.
PATTERN: Final = STRETCH * len(POINTS)
_LOST: Final = (2, 4, 6)  # 10, 20, 30 % of 20
_EARLY: Final = 2
_BACK_AFTER_S: Final = 0.05


class VanishedError(BaseException):
    """This silo is cut off."""


def drops(round_number: int) -> tuple[str, frozenset[int]]:
    """Where in a round silos vanish, and which.

    Keys and shares of the next round are exchanged while a round goes on, so who vanishes there is
    missing in both; no round may lose more than six of twenty in all.
    """
    point = POINTS[round_number % PATTERN // STRETCH]
    follows = POINTS[(round_number + 1) % PATTERN // STRETCH]
    if point in POINTS[_EARLY:] and follows in POINTS[:_EARLY]:
        return point, frozenset()
    count = _LOST[round_number % len(_LOST)]
    return point, frozenset((round_number * 7 + place * 3) % SILOS + 1 for place in range(count))


def flat_task(settings: Mapping[str, object]) -> LeastSquaresTask:
    """Silo number "silo" of a least-squares problem with "dim" parameters; numpy only."""
    if not settings.keys() <= {"silo", "dim"}:
        raise PlanError(f"flat_task: expected 'silo' and 'dim', got {sorted(settings)}")
    number, dim = int(str(settings.get("silo", 1))), int(str(settings.get("dim", 1)))
    draws = generator(number, "flat")
    return LeastSquaresTask(draws.normal(size=(4, dim)) / dim**0.5, draws.normal(size=4))


_number: ContextVar[int] = ContextVar("number")


async def _live(config: SiloConfig, stop: asyncio.Event) -> None:
    """Be this silo, as often as it takes."""
    _number.set(int(str(config.settings["silo"])))
    while not stop.is_set():
        try:
            await join(config, software=software_version(), once=False, stop=stop)
        except VanishedError:
            await asyncio.sleep(_BACK_AFTER_S)


async def _crowd(configs: list[SiloConfig]) -> None:
    vanished: set[tuple[int, int]] = set()

    def look(point: str, round_number: int) -> None:
        number = _number.get(0)
        where, numbers = drops(round_number)
        if point == where and number in numbers and (number, round_number) not in vanished:
            vanished.add((number, round_number))
            raise VanishedError

    faults.WATCHERS.append(look)
    stop = stop_signal()
    await asyncio.gather(*(_live(config, stop) for config in configs))


if __name__ == "__main__":
    settings = [load_config(Path(path), SiloConfig) for path in sys.argv[1:]]
    configure(level=settings[0].log.level, style=settings[0].log.format)
    asyncio.run(_crowd(settings))

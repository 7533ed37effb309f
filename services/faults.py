"""Named points at which a test or the demo makes this process fail; only `SECAGG_FAULTS` arms them.

The variable holds a comma-separated list of `point[@round]=action`, where the action is `kill`
(SIGKILL to this very process: nothing is flushed, nothing is said) or `stall:SECONDS`. Example:

    SECAGG_FAULTS=silo.before-upload@2=kill secagg silo join --config silo.toml

Without the variable every call returns at once. The points are listed in `POINTS`, so that a
misspelled one is an error and not a test that proves nothing.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from services.errors import ConfigError

VARIABLE: Final = "SECAGG_FAULTS"
# Called with each point that is reached and its round; for whoever runs many silos in one process
# and lets one of them vanish by an exception.
WATCHERS: Final[list[Callable[[str, int], None]]] = []
# Around each entry of an attempt's logbook, and after what follows from it.
_WHEN: Final = ("log.before", "log.after", "coordinator.after")
_TOLD: Final = (
    *("opened", "state", "advertise", "share", "masked", "survivors", "unmask", "abandon"),
    *("message", "lost", "expired", "stopped", "result", "case"),
)
_SAID: Final = (
    *("opened", "submitted", "late", "signed", "unmasked", "abandoned", "dead", "left-out"),
    *("closed", "refused", "lifted"),
)
POINTS: Final = frozenset(
    {
        *(f"{when}-{what}" for when in _WHEN for what in _TOLD),
        *(f"silo.{when}-journal-{what}" for when in ("before", "after") for what in _SAID),
        "silo.before-advertise",
        "silo.before-share",
        "silo.before-training",
        "silo.before-upload",
        "silo.after-upload",
        "silo.before-unmask",
        "silo.before-settle",
        "silo.after-settle",
        "store.before-commit",
        "store.in-commit",
        "store.after-commit",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One armed fault: where, in which round (None: in every round), and what happens."""

    point: str
    round_number: int | None
    stall_s: float | None  # None: kill


def parse(text: str) -> tuple[Fault, ...]:
    """Read the variable's value.

    Raises:
        ConfigError: unknown point or action; lists the known ones.
    """
    return tuple(_parse_one(item.strip()) for item in text.split(",") if item.strip())


def hit(point: str, round_number: int) -> None:
    """Fail here if a fault is armed for this point and round."""
    for watcher in WATCHERS:
        watcher(point, round_number)
    text = os.environ.get(VARIABLE)
    if not text:
        return
    for fault in parse(text):
        if fault.point == point and fault.round_number in (None, round_number):
            if fault.stall_s is None:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(fault.stall_s or 0.0)


def _parse_one(item: str) -> Fault:
    where, separator, action = item.partition("=")
    point, _, number = where.partition("@")
    if point not in POINTS or not separator or (number and not number.isdigit()):
        raise ConfigError(
            f"{VARIABLE}: expected point[@round]=action with a point of "
            f"{', '.join(sorted(POINTS))}; got {item!r}"
        )
    round_number = int(number) if number else None
    if action == "kill":
        return Fault(point=point, round_number=round_number, stall_s=None)
    name, _, seconds = action.partition(":")
    if name == "stall" and seconds.replace(".", "", 1).isdigit():
        return Fault(point=point, round_number=round_number, stall_s=float(seconds))
    raise ConfigError(f"{VARIABLE}: expected action kill or stall:SECONDS, got {action!r}")

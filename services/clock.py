"""The one place where a process reads its clocks; everything else takes the time as an argument."""

import math
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the wall clock's time, with time zone UTC."""
    return datetime.now(UTC)  # noqa: TID251 - the one place that reads the wall clock


def monotonic() -> float:
    """Return seconds that never go backwards; only differences mean something."""
    return time.monotonic()


def readings() -> tuple[float, ...]:
    """Return every clock's seconds, for `elapsed`: most stand still while the host is suspended."""
    return (monotonic(), _since_boot(), utc_now().timestamp())


def elapsed(since: Sequence[float]) -> float:
    """Return the most seconds that any clock counts since these readings; infinitely many if none.

    Too many where somebody has set the wall clock, too few only if all clocks stood still.
    """
    return max((now - then for now, then in zip(readings(), since, strict=False)), default=math.inf)


def _since_boot() -> float:
    """Seconds that a suspended host counts as well, on systems that have such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else 0.0

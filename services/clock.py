"""The one place where a process reads its clocks; everything else takes the time as an argument."""

import time
from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the wall clock's time, with time zone UTC."""
    return datetime.now(UTC)  # noqa: TID251 - the one place that reads the wall clock


def monotonic() -> float:
    """Return seconds that never go backwards; only differences mean something."""
    return time.monotonic()

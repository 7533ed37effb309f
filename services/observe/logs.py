"""Structured logs; a value that could hold a secret or a silo's data is never printed.

A log line may say who, when, which round and what happened. It never holds keys, shares, masks,
vectors, sample counts, losses or metrics of one silo: such fields are dropped by name, and bytes
and arrays are replaced by their size whatever their name is (SEC-04 of the bug cases).
"""

import logging
import sys
import traceback
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Final, Literal, Protocol, cast

import structlog

FORBIDDEN: Final = frozenset(
    {
        "key",
        "private_key",
        "seed",
        "secret",
        "share",
        "mask",
        "token",
        "update",
        "vector",
        "values",
        "examples",
        "n_examples",
        "sample_count",
        "loss",
        "loss_sum",
        "correct",
        "weight",
    }
)
_PLAIN: Final = (str, int, float, bool, type(None))


class Logger(Protocol):
    """The part of a structlog logger that this package uses."""

    def bind(self, **fields: object) -> "Logger":
        """A logger that adds these fields to each line."""
        ...

    def debug(self, event: str, **fields: object) -> None:
        """Say something for whoever looks for a fault."""
        ...

    def info(self, event: str, **fields: object) -> None:
        """Say what happens."""
        ...

    def warning(self, event: str, **fields: object) -> None:
        """Say what somebody should look at."""
        ...

    def error(self, event: str, **fields: object) -> None:
        """Say what failed."""
        ...


def redact(
    _logger: object, _method: str, fields: MutableMapping[str, object]
) -> MutableMapping[str, object]:
    """Drop forbidden fields and replace every value that is not plain text or a number."""
    for name in list(fields):
        fields[name] = "[redacted]" if name in FORBIDDEN else _plain(fields[name])
    return fields


def configure(*, level: str = "info", style: Literal["auto", "console", "json"] = "json") -> None:
    """Send lines of `level` and above to stderr: JSON, or for people where they look."""
    for_people = style == "console" or (style == "auto" and sys.stderr.isatty())
    renderer = (
        structlog.dev.ConsoleRenderer() if for_people else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            redact,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def get_logger(component: str) -> Logger:
    """A logger whose lines name their component."""
    make = cast(Callable[..., Logger], structlog.get_logger)  # structlog types it as Any
    return make(component=component)


def where(error: BaseException) -> list[str]:
    """The innermost places an error came through, without its text, which may quote data."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames][-6:]


def _plain(value: object) -> object:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(value)} bytes]"
    return f"[{type(value).__name__}]"

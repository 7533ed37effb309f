"""Hypothesis profiles; HYPOTHESIS_PROFILE chooses one: dev, ci or nightly."""

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Deadlines are off: key agreement and sharing are slow, and the machine is not alone.
# A first example that imports or generates keys is slow too.
settings.register_profile(
    "dev",
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "ci",
    settings.get_profile("dev"),
    max_examples=200,
    derandomize=True,  # what CI says today it says tomorrow
    database=None,
    print_blob=True,
)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(autouse=True)
def _fresh_logs() -> Iterator[None]:
    """Logs that a test sends to its captured stderr do not outlive it."""
    yield
    if "structlog" in sys.modules:
        sys.modules["structlog"].reset_defaults()

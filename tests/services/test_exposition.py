"""Metrics and health over HTTP: what is answered, and what a silo's registry shows."""

import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.errors import AddressInUseError, CorruptError
from services.observe.exposition import exposed
from services.silo.check import BudgetStatus
from services.silo.metrics import SiloMetrics


def get(address: str, path: str) -> tuple[int, str]:
    """Ask; returns status and body."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(text: str) -> dict[str, float]:
    """Each sample's value by its name and labels."""
    return {
        sample.name
        + "".join(f"|{value}" for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_readiness_is_not_liveness() -> None:
    """A supervisor restarts what is not live, and a load balancer waits for what is not ready."""
    ready = False
    metrics = SiloMetrics()
    with exposed("127.0.0.1:0", metrics.registry, lambda: ready) as address:
        assert get(address, "/live") == (200, "live\n")
        assert get(address, "/ready") == (503, "not ready\n")
        ready = True
        assert get(address, "/ready") == (200, "ready\n")
        assert get(address, "/secrets") == (404, "/metrics, /live or /ready\n")
        again = exposed(address, metrics.registry, lambda: True)
        with pytest.raises(AddressInUseError, match="cannot show metrics on"), again:
            pass
    with pytest.raises(urllib.error.URLError):
        get(address, "/live")


def test_nothing_is_shown_unless_asked_for() -> None:
    """Without an address no port is opened."""
    with exposed(None, SiloMetrics().registry, lambda: True) as address:
        assert address == ""


def test_a_silos_figures_can_be_read() -> None:
    """Counts, durations, and the data set's budget as its ledger has it at that moment."""
    metrics, spent = SiloMetrics(), 1.5

    def read() -> BudgetStatus | None:
        if spent < 0:
            raise CorruptError("the ledger is damaged")
        return BudgetStatus(
            data_set="patients",
            unit="patient",
            delta=1e-5,
            spent=spent,
            limit=4.0,
            releases=3,
            unsettled=0,
        )

    metrics.show_budget(read)
    metrics.retries.labels("Next").inc()
    metrics.moved.labels("sent").inc(1000)
    metrics.rounds.labels("settled").inc()
    metrics.training.observe(2.0)
    with exposed("127.0.0.1:0", metrics.registry, lambda: True) as address:
        found = samples(get(address, "/metrics")[1])
        assert found["secagg_retries_total|Next"] == 1
        assert found["secagg_bytes_total|sent"] == 1000
        assert found["secagg_rounds_total|settled"] == 1
        assert found["secagg_training_seconds_sum"] == 2.0
        assert found["secagg_epsilon_spent|patients"] == 1.5
        assert found["secagg_epsilon_limit|patients"] == 4.0
        spent = -1.0
        assert "secagg_epsilon_spent|patients" not in samples(get(address, "/metrics")[1])


def test_a_slow_reader_holds_nobody_up() -> None:
    """A line on which nothing is said does not keep others from their answer."""
    with exposed("127.0.0.1:0", SiloMetrics().registry, lambda: True) as address:
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port))):
            assert get(address, "/live")[0] == 200

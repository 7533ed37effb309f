"""A silo's figures for Prometheus: calls, rounds, certificate, and its data set's budget."""

from collections.abc import Callable, Iterator

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from services.errors import StorageError
from services.silo.check import BudgetStatus

_BUCKETS_S = (0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0)


class SiloMetrics:
    """What this process counts; nothing here tells how many rows the silo has."""

    def __init__(self) -> None:
        """Begin at zero, in a registry of its own."""
        self.registry = registry = CollectorRegistry()
        self.connected = Gauge(
            "secagg_connected", "1 if the last call got through.", registry=registry
        )
        self.retries = Counter(
            "secagg_retries", "Calls that were tried again.", ("call",), registry=registry
        )
        self.moved = Counter("secagg_bytes", "Bytes of vectors.", ("direction",), registry=registry)
        self.rounds = Counter(
            "secagg_rounds", "Rounds by how they ended here.", ("end",), registry=registry
        )
        self.training = Histogram(
            "secagg_training_seconds",
            "How long local training took.",
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.certificate = Gauge(
            "secagg_certificate_days_left",
            "Whole days until this silo's certificate ends.",
            registry=registry,
        )

    def show_budget(self, read: Callable[[], BudgetStatus | None]) -> None:
        """Show a data set's budget, read from its ledger at each scrape."""
        self.registry.register(_Budget(read))


class _Budget(Collector):
    def __init__(self, read: Callable[[], BudgetStatus | None]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        try:
            status = self._read()
        except StorageError:
            return  # `silo status` names what is wrong with the ledger
        if status is None:
            return
        for name, text, value in (
            ("spent", "Epsilon that the data set has spent.", status.spent),
            ("limit", "Epsilon that the data set may spend.", status.limit),
        ):
            family = GaugeMetricFamily(f"secagg_epsilon_{name}", text, labels=["data_set"])
            family.add_metric([status.data_set], value)
            yield family

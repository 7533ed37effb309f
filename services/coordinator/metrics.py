"""The coordinator's figures for Prometheus, read from what it knows when somebody asks.

Nothing is counted twice: rounds, phases and survivors come from the reports that operators see.
Scrapes come in another thread, so the figures are taken on the event loop, where nothing moves.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as NoAnswerError
from typing import Final

from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from services.coordinator.desk import RunDesk
from services.coordinator.hub import Hub
from services.wire.calls import RoundReport

_BUCKETS_S: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_WAIT_S: Final = 5.0


class CoordinatorMetrics(Collector):
    """What a scrape finds.

    Attributes:
        registry: these figures alone, not the process-wide one.
        calls: answers by call and stable name.
    """

    def __init__(self, hub: Hub, desk: RunDesk, days_left: Callable[[], int]) -> None:
        """Read from these; construct on their event loop."""
        self._hub = hub
        self._desk = desk
        self._days_left = days_left
        self._loop = asyncio.get_running_loop()
        self.registry = CollectorRegistry()
        self.calls = Counter(
            "secagg_calls", "Answers to calls.", ("call", "code"), registry=self.registry
        )
        self.registry.register(self)

    def answered(self, call: str, code: str) -> None:
        """Count an answer."""
        self.calls.labels(call, code).inc()

    def collect(self) -> Iterator[Metric]:
        """Give every figure; nothing while the event loop does not answer."""
        taken = asyncio.run_coroutine_threadsafe(self._take(), self._loop)
        try:
            yield from taken.result(_WAIT_S)
        except NoAnswerError:
            taken.cancel()

    def describe(self) -> Iterator[Metric]:
        """Say nothing beforehand: registering must not wait for the event loop."""
        return iter(())

    async def _take(self) -> Sequence[Metric]:
        hub, days = self._hub, await asyncio.to_thread(self._days_left)
        found: list[Metric] = [
            _gauge("enrolled_silos", "Seats of the roster in force.", len(hub.roster.seats)),
            _gauge("connected_silos", "Silos that are connected.", len(hub.connected())),
            _gauge("roster_version", "Version of the roster in force.", hub.roster.version),
            _gauge("envelopes_waiting", "Messages that silos have yet to handle.", hub.waiting()),
            _gauge("certificate_days_left", "Whole days until our certificate ends.", days),
        ]
        return [*found, *self._of_run()]

    def _of_run(self) -> Iterator[Metric]:
        driver = self._desk.driver
        if driver is None:
            return
        standing = driver.standing
        run, reports = standing.record.run.hex, standing.reports
        total = standing.record.rounds_total
        attempts = CounterMetricFamily(
            "secagg_attempts", "Attempts of committed rounds.", labels=["run"]
        )
        attempts.add_metric([run], sum(report.attempts for report in reports))
        rounds = CounterMetricFamily("secagg_rounds", "Committed rounds.", labels=["run"])
        rounds.add_metric([run], len(reports))
        yield attempts
        yield rounds
        yield _gauge("rounds_planned", "Rounds of the run's plan.", total, run=run)
        yield _gauge("run_active", "1 while rounds go on.", not standing.state.is_final, run=run)
        left_out = len(driver.cohorts.left_out)
        yield _gauge("left_out_silos", "Silos that are not invited any more.", left_out, run=run)
        if reports:
            last = reports[-1]
            for name, seats in (
                ("survivors", last.survivors),
                ("dropouts", last.dropouts),
                ("absent", last.absent),
            ):
                text = f"Seats among the {name} of the last committed round."
                yield _gauge(f"round_{name}", text, len(seats), run=run)
        if driver.ledger is not None and driver.ledger.spent is not None:
            text = "Epsilon that the run has spent, charges that are not settled included."
            yield _gauge("epsilon_spent", text, driver.ledger.spent, run=run)
        yield from _of_phases(run, reports)


def _of_phases(run: str, reports: Sequence[RoundReport]) -> Iterator[Metric]:
    seconds = HistogramMetricFamily(
        "secagg_phase_seconds", "How long phases took.", labels=["run", "phase"]
    )
    moved = CounterMetricFamily(
        "secagg_phase_bytes", "Payload bytes of phases.", labels=["run", "phase", "direction"]
    )
    costs = [cost for report in reports for cost in report.costs]
    for phase in dict.fromkeys(cost.phase for cost in costs):
        own = [cost for cost in costs if cost.phase is phase]
        buckets = [
            (f"{le:g}", float(sum(cost.duration_s <= le for cost in own))) for le in _BUCKETS_S
        ]
        buckets.append(("+Inf", float(len(own))))
        labels = [run, phase.value]
        seconds.add_metric(labels, buckets, sum(cost.duration_s for cost in own))
        moved.add_metric([*labels, "received"], sum(cost.received_bytes for cost in own))
        moved.add_metric([*labels, "sent"], sum(cost.sent_bytes for cost in own))
    yield seconds
    yield moved


def _gauge(name: str, text: str, value: float, **labels: str) -> Metric:
    gauge = GaugeMetricFamily(f"secagg_{name}", text, labels=list(labels))
    gauge.add_metric(list(labels.values()), value)
    return gauge

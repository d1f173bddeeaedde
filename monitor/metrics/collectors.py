"""What is read when Prometheus asks: the latest view, the journal and the lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from monitor.journal.writer import Stats
from monitor.lease import Standing
from monitor.metrics import decided, fleet
from monitor.metrics.gauge import gauge
from monitor.metrics.recovery import recoveries
from monitor.view import View


class ViewCollector(Collector):
    """Gauges computed from the latest view when Prometheus asks."""

    def __init__(
        self, view: Callable[[], View | None], store_errors: Callable[[], int], version: str
    ) -> None:
        self._view = view
        self._store_errors = store_errors
        self._version = version

    def describe(self) -> list[Metric]:
        """Nothing ahead of time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment; what is not known is left out, never zero."""
        yield gauge("build_info", "1, with the version.", ("version",), [((self._version,), 1)])
        errors = CounterMetricFamily(
            "lightkeeper_store_errors", "Writes that the store's disk did not take (retried)."
        )
        errors.add_metric((), self._store_errors())
        yield errors
        view = self._view()
        if view is not None:
            yield from fleet.ranks(view)
            yield from fleet.groups(view)
            yield from recoveries(view)
            yield from fleet.lighthouse(view)
            yield from decided.incidents(view)
            yield from decided.quarantine(view)
            yield from decided.self_health(view)
            yield from decided.policy(view)


class JournalCollector(Collector):
    """What the journal wrote and lost."""

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._stats = stats

    def describe(self) -> list[Metric]:
        """Nothing ahead of time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        stats = self._stats()
        for name, text, value in (
            ("ticks", "Ticks written to the journal.", stats.ticks),
            ("lost_ticks", "Ticks that the journal's disk did not take.", stats.lost),
            ("written_bytes", "Bytes written to the journal, compressed.", stats.bytes),
        ):
            counter = CounterMetricFamily(f"lightkeeper_journal_{name}", text)
            counter.add_metric((), value)
            yield counter
        failing = float(stats.problem is not None)
        yield gauge("journal_failing", "1 while the journal is not written.", (), [((), failing)])


class LeaseCollector(Collector):
    """Whether this monitor acts."""

    def __init__(self, standing: Callable[[], Standing]) -> None:
        self._standing = standing

    def describe(self) -> list[Metric]:
        """Nothing ahead of time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        seen = self._standing()
        text = "1 while this monitor holds the lease and acts, 0 while it stands by."
        yield gauge("monitor_active", text, (), [((), float(seen.active))])
        text = "Epoch of the lease, as far as this monitor knows; it grows with each handover."
        yield gauge("lease_epoch", text, (), [((), float(seen.epoch))])
        failing = float(seen.problem is not None)
        text = "1 while the lease can be neither renewed nor looked at."
        yield gauge("lease_failing", text, (), [((), failing)])

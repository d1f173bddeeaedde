"""What one metric is called, means and holds: exported, documented and checked from one place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client import Gauge as LiveGauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from monitor.metrics.exposition import Bulk, Row

GROUPS: Final = "G"
RANKS: Final = "R"
"""Series of a metric of each group, and of each rank, with series of its own."""
GROUP: Final = ("replica_group",)
RANK: Final = ("replica_group", "rank")


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric."""

    name: str
    """As Prometheus stores it: a counter ends in `_total`."""
    type: Literal["gauge", "counter", "histogram"]
    text: str
    """HELP: one sentence or two."""
    labels: tuple[str, ...] = ()
    series: str = "1"
    """How many, as docs/metrics.md writes it: G groups with series of their own, R ranks."""
    absent: str = ""
    """When it is left out; empty: never, once the monitor has looked."""
    buckets: tuple[float, ...] = ()
    """Of a histogram."""

    def rows(self, rows: Iterable[Row]) -> Metric:
        """The family at a scrape, of what is known at that moment."""
        if self.series in (GROUPS, RANKS):
            return Bulk(self.name, self.text, self.type, self.labels, list(rows))
        family: GaugeMetricFamily | CounterMetricFamily
        if self.type == "gauge":
            family = GaugeMetricFamily(self.name, self.text, labels=self.labels)
        else:
            name = self.name.removesuffix("_total")
            family = CounterMetricFamily(name, self.text, labels=self.labels)
        for values, value in rows:
            family.add_metric(values, value)
        return family

    def each(self, values: Iterable[tuple[object, float | None]]) -> Metric:
        """The family of one label; what is not known (None) is left out."""
        return self.rows([((str(k),), float(v)) for k, v in values if v is not None])

    def value(self, value: float) -> Metric:
        """The family of one series without labels."""
        return self.rows([((), value)])

    def counter(self, registry: CollectorRegistry) -> Counter:
        """What is counted while it happens."""
        return Counter(self.name, self.text, self.labels, registry=registry)

    def live(self, registry: CollectorRegistry) -> LiveGauge:
        """A gauge that is set while it happens."""
        return LiveGauge(self.name, self.text, self.labels, registry=registry)

    def histogram(self, registry: CollectorRegistry) -> Histogram:
        """What is observed while it happens."""
        return Histogram(self.name, self.text, self.labels, buckets=self.buckets, registry=registry)


def gauge(
    name: str, text: str, labels: tuple[str, ...] = (), *, series: str = "1", absent: str = ""
) -> Definition:
    """A gauge, `lightkeeper_NAME`."""
    return Definition(f"lightkeeper_{name}", "gauge", text, labels, series, absent)


def counter(
    name: str, text: str, labels: tuple[str, ...] = (), *, series: str = "1", absent: str = ""
) -> Definition:
    """A counter, `lightkeeper_NAME_total`."""
    return Definition(f"lightkeeper_{name}_total", "counter", text, labels, series, absent)


def histogram(
    name: str,
    text: str,
    labels: tuple[str, ...] = (),
    *,
    buckets: tuple[float, ...],
    series: str = "1",
    absent: str = "",
) -> Definition:
    """A histogram, `lightkeeper_NAME`."""
    return Definition(f"lightkeeper_{name}", "histogram", text, labels, series, absent, buckets)

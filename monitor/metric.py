"""What a metric is: one statement says its name, its meaning, and what fills it.

Some are read at each scrape (`Filled`), others are counted as it happens (`Definition.on`).
docs/metrics.md is made from the sections.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partialmethod
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase, disable_created_metrics
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

disable_created_metrics()  # type: ignore[no-untyped-call]  # Prometheus would keep a `_created` series for each counter

ALONE: Final = "no Lighthouse"
"""When a series is left out that speaks of quorums or evictions."""
GROUP: Final = ("replica_group",)
RANK: Final = ("replica_group", "rank")
_SERIES: Final = {(): "1", GROUP: "G", RANK: "R"}
TICK_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Kind = TypeVar("Kind", bound=MetricWrapperBase)
Values = float | Mapping[Any, float] | Iterable[tuple[Any, float | None]] | None
"""A number; or by label or labels, without those that are None; None: it is left out."""
_MAKING: Final = threading.Lock()


@dataclass(frozen=True, eq=False)
class Definition(Generic[Kind]):
    kind: type[Kind]
    name: str
    """As Prometheus stores it: a counter ends in `_total`."""
    text: str
    """HELP: one sentence or two."""
    labels: tuple[str, ...] = ()
    fill: Callable[[Any], Values] | None = None
    """Its values of what a scrape reads; None: it is counted as it happens."""
    series: str = ""
    """How many, as in docs/metrics.md."""
    absent: str = ""
    """When it is left out; empty: never, once the monitor has looked."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets."""
    _made: WeakKeyDictionary[CollectorRegistry, Kind] = field(default_factory=WeakKeyDictionary)

    def on(self, registry: CollectorRegistry) -> Kind:
        """The one that is counted on this page. Safe from any thread, as is counting."""
        more: dict[str, Any] = {"buckets": self.buckets} if self.buckets else {}
        with _MAKING:
            if registry not in self._made:
                self._made[registry] = self.kind(
                    self.name, self.text, self.labels, registry=registry, **more
                )
            return self._made[registry]

    def read(self, source: Any) -> Iterator[Metric]:
        """The family at one scrape, unless it is left out."""
        values = None if self.fill is None else self.fill(source)
        if values is None:
            return
        made = GaugeMetricFamily if self.kind is Gauge else CounterMetricFamily
        family = made(self.name.removesuffix("_total"), self.text, labels=self.labels)
        rows = values.items() if isinstance(values, Mapping) else values
        for labels, value in [((), rows)] if isinstance(rows, int | float) else rows:
            if value is not None:
                names = labels if isinstance(labels, tuple) else (labels,)
                family.add_metric(tuple(map(str, names)), float(value))
        yield family


Metrics = tuple[Definition[Any], ...]


class Section:
    """A heading of docs/metrics.md, and what is defined below it."""

    every: Final[list[Section]] = []

    def __init__(self, heading: str) -> None:
        self.heading = heading
        self.metrics: list[Definition[Any]] = []
        self.every.append(self)

    def _add(self, kind: type[Kind], name: str, *about: Any, **more: Any) -> Definition[Kind]:
        whole = f"lightkeeper_{name}" + ("_total" if kind is Counter else "")
        made = Definition(kind, whole, *about, **more)
        if not made.series:
            made = replace(made, series=_SERIES[made.labels])
        self.metrics.append(made)
        return made

    gauge = partialmethod(_add, Gauge)
    counter = partialmethod(_add, Counter)
    histogram = partialmethod(_add, Histogram)
    """Each takes the fields of `Definition`."""


FLEET: Final = Section("Fleet")
STRAGGLERS: Final = Section("Stragglers")
RECOVERY: Final = Section("Recovery")
INCIDENTS: Final = Section("Incidents")
EVICTIONS: Final = Section("Evictions, holds, quarantine")
GOODPUT: Final = Section("Goodput")
HEALTH: Final = Section("The monitor's health")
KEPT: Final = Section("Store, journal, evidence, lease, messages")
GATE: Final = Section("The gate, as the monitor sees it")


class Filled(Collector):
    """Reads something at each scrape, and fills these metrics from it."""

    def __init__(self, metrics: Iterable[Definition[Any]], read: Callable[[], Any]) -> None:
        self._metrics = tuple(metrics)
        self._read = read

    def collect(self) -> Iterator[Metric]:
        source = self._read()
        for metric in self._metrics:
            yield from metric.read(source)


def new_page() -> CollectorRegistry:
    """One process's page, with what the kernel says of it."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    return registry

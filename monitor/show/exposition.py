"""What a metric is, what has its own series, and how `/metrics` is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import nsmallest
from typing import Any, Final, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client import Gauge as LiveGauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lightkeeper.monitor.decide.view import GroupView, View
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.verdict import RankHealth

Row = tuple[tuple[str, ...], float]
"""Label values, in order, and the value."""


# -- A metric's name, meaning and labels: exported, documented and checked from one place ----------

GROUPS: Final = "G"
RANKS: Final = "R"
"""Values of `series`: one for each group, or each rank, with its own series."""
ALONE: Final = "without a Lighthouse"
"""When a series is left out that speaks of quorums or evictions."""
GROUP: Final = ("replica_group",)
RANK: Final = ("replica_group", "rank")
Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Definition:
    name: str
    """As Prometheus stores it: a counter ends in `_total`."""
    type: Kind
    text: str
    """HELP: one sentence or two."""
    labels: tuple[str, ...] = ()
    series: str = "1"
    """How many, as in docs/metrics.md: G groups with their own series, R ranks."""
    absent: str = ""
    """When it is left out; empty: never, once the monitor has looked."""
    buckets: tuple[float, ...] = ()
    """Of a histogram."""

    def rows(self, rows: Iterable[Row]) -> Metric:
        """The family at one scrape."""
        made = GaugeMetricFamily if self.type == "gauge" else CounterMetricFamily
        family = made(self.name.removesuffix("_total"), self.text, labels=self.labels)
        for values, value in rows:
            family.add_metric(values, value)
        return family

    def each(self, values: Iterable[tuple[object, float | None]]) -> Metric:
        """The family of one label; unknown values (None) are left out."""
        return self.rows([((str(k),), float(v)) for k, v in values if v is not None])

    def value(self, value: float) -> Metric:
        return self.rows([((), value)])

    def counter(self, registry: CollectorRegistry) -> Counter:
        return Counter(self.name, self.text, self.labels, registry=registry)

    def live(self, registry: CollectorRegistry) -> LiveGauge:
        """A gauge that is set as it changes."""
        return LiveGauge(self.name, self.text, self.labels, registry=registry)

    def histogram(self, registry: CollectorRegistry) -> Histogram:
        return Histogram(self.name, self.text, self.labels, buckets=self.buckets, registry=registry)


def _defined(
    kind: Kind, name: str, text: str, labels: tuple[str, ...] = (), **more: Any
) -> Definition:
    whole = f"lightkeeper_{name}" + ("_total" if kind == "counter" else "")
    return Definition(whole, kind, text, labels, **more)


gauge: Final = partial(_defined, "gauge")
counter: Final = partial(_defined, "counter")
histogram: Final = partial(_defined, "histogram")


# -- One view with what several exporters use, each computed once; and which have their own series -
# Ranks and groups are bounded: a job may have 100,000 of them, one page should not. Exported first
# are suspects of open incidents, then the unwell, then the ranks that work longest and the groups
# first by name. Aggregates (`lightkeeper_ranks`, `fleet_busy_seconds` ...) always cover all.

RANK_SERIES: Final = 4096
GROUP_SERIES: Final = 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """Most ranks and groups with their own series on the page; 0: none."""

    ranks: int = RANK_SERIES
    groups: int = GROUP_SERIES


@dataclass(frozen=True)  # no slots: a cached property needs `__dict__`
class ScrapeView:
    """A view as the exporters read it."""

    view: View
    bounds: Bounds = Bounds()

    @cached_property
    def exported_groups(self) -> tuple[GroupView, ...]:
        accused = {g for incident in self.view.incidents if incident.open for g in incident.groups}
        worst = nsmallest(
            self.bounds.groups, self.view.groups,
            lambda group: (group.group not in accused, group.health == RankHealth.HEALTHY,
                           group.group),
        )  # fmt: skip
        return tuple(sorted(worst, key=lambda group: group.group))

    @cached_property
    def busy(self) -> tuple[RankName, ...]:
        """Ranks with a known tempo and their own series, sorted."""
        tempos, healths = self.view.tempos, self.view.result.rank_health
        suspects = {r for incident in self.view.incidents if incident.open
                    for r in incident.suspects}  # fmt: skip
        worst = nsmallest(
            self.bounds.ranks, tempos,
            lambda rank: (rank not in suspects, healths.get(rank) is RankHealth.HEALTHY,
                          -tempos[rank].busy_s, rank),
        )  # fmt: skip
        return tuple(sorted(worst))

"""What a metric is, what has its own series, and how `/metrics` is written.

Large families are written by hand: the client library takes 4 us a series. A scrape shares the
interpreter with the tick; at 10,000 ranks the library would hold it for 0.1 s. `Bulk` writes the
same text as the library; a test compares them line by line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from math import isfinite
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client import Gauge as LiveGauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from lightkeeper.monitor.decide.view import GroupView, View
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.observation import Observation
from lightkeeper.monitor.model.verdict import RankHealth

Row = tuple[tuple[str, ...], float]
"""Label values, in order, and the value."""

_BACKSLASH: Final = "\\"


class Bulk(Metric):
    """A gauge or counter of many series; `Sample`s are made only on demand."""

    def __init__(
        self, name: str, text: str, kind: str, labels: tuple[str, ...], rows: list[Row]
    ) -> None:
        self._names, self._rows = labels, rows
        self._text: str | None = None
        super().__init__(name.removesuffix("_total") if kind == "counter" else name, text, kind)
        self._sample = name

    @property
    def samples(self) -> list[Sample]:
        return [
            Sample(self._sample, dict(zip(self._names, values, strict=True)), float(value))
            for values, value in self._rows
        ]

    @samples.setter
    def samples(self, _: list[Sample]) -> None:
        """The library's own constructor sets an empty list."""

    @property
    def text(self) -> str:
        """A line for each series; made once."""
        if self._text is None:
            self._text = "".join(self._lines())
        return self._text

    def _lines(self) -> Iterator[str]:
        order = sorted(range(len(self._names)), key=self._names.__getitem__)
        for values, value in self._rows:
            labels = ",".join([f'{self._names[n]}="{escaped(values[n])}"' for n in order])
            number = repr(float(value)) if isfinite(value) else floatToGoString(value)  # type: ignore[no-untyped-call]
            yield f"{self._sample}{{{labels}}} {number}\n"


def escaped(text: str) -> str:
    if _BACKSLASH in text or '"' in text or "\n" in text:
        return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return text


class _Rest:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def page(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The page in the format that the scraper accepts, and its content type."""
    encode, content_type = choose_encoder(accept)
    total = "" if content_type.startswith("application/openmetrics-text") else "_total"
    large: list[str] = []
    small: list[Metric] = []
    for family in registry.collect():
        if not isinstance(family, Bulk):
            small.append(family)
            continue
        name = f"{family.name}{total}" if family.type == "counter" else family.name
        large.append(f"# HELP {name} {family.documentation}\n# TYPE {name} {family.type}\n")
        large.append(family.text)
    return "".join(large).encode() + encode(_Rest(small)), content_type


# -- A metric's name, meaning and labels: exported, documented and checked from one place ----------

GROUPS: Final = "G"
RANKS: Final = "R"
"""Values of `series`: one for each group, or each rank, with its own series."""
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
    kind: Kind,
    name: str,
    text: str,
    labels: tuple[str, ...] = (),
    *,
    series: str = "1",
    absent: str = "",
    buckets: tuple[float, ...] = (),
) -> Definition:
    whole = f"lightkeeper_{name}" + ("_total" if kind == "counter" else "")
    return Definition(whole, kind, text, labels, series, absent, buckets)


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
        groups = self.view.groups
        if len(groups) <= self.bounds.groups:
            return groups
        accused = {
            group for incident in self.view.incidents if incident.open for group in incident.groups
        }
        worst = sorted(
            groups,
            key=lambda group: (
                group.group not in accused,
                group.health == RankHealth.HEALTHY,
                group.group,
            ),
        )
        return tuple(sorted(worst[: self.bounds.groups], key=lambda group: group.group))

    @cached_property
    def busy(self) -> tuple[RankName, ...]:
        """Ranks with a known tempo and their own series, sorted."""
        view = self.view
        if len(view.tempos) <= self.bounds.ranks:
            return tuple(sorted(view.tempos))
        suspects = {
            rank for incident in view.incidents if incident.open for rank in incident.suspects
        }
        worst = sorted(
            view.tempos,
            key=lambda rank: (
                rank not in suspects,
                view.result.rank_health.get(rank) is RankHealth.HEALTHY,
                -view.tempos[rank].busy_s,
                rank,
            ),
        )
        return tuple(sorted(worst[: self.bounds.ranks]))

    @cached_property
    def observed(self) -> dict[GroupName, list[Observation]]:
        by_group: dict[GroupName, list[Observation]] = {
            group.group: [] for group in self.exported_groups
        }
        for seen in self.view.snapshot.observations:
            if seen.identity.group in by_group:
                by_group[seen.identity.group].append(seen)
        return by_group

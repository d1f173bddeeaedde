"""Every metric there is, by where it is served: what dashboards and rules may ask for."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from lightkeeper.gate.proxy import Proxy
from lightkeeper.gate.serve import GateCollector
from lightkeeper.monitor.metric import Definition
from tests.metrics_doc.monitors import CATALOGUE
from tests.metrics_doc.notes import GATE, RANK
from tests.worker_server.scraped import Rank, step

RANKS_PAGE: Final = "A rank's page"
GATES_PAGE: Final = "The gate's page"

_UNITS: Final = (("_seconds", "seconds"), ("_bytes", "bytes"), ("_ratio", "ratio"), ("_info", "1"))


@dataclass(frozen=True)
class Entry:
    """One metric, as docs/metrics.md has it."""

    name: str
    type: str
    text: str
    labels: tuple[str, ...]
    series: str
    absent: str

    @property
    def unit(self) -> str:
        """By the conventions of its name."""
        base = self.name.removesuffix("_total")
        return next((unit for end, unit in _UNITS if base.endswith(end)), "")

    @property
    def names(self) -> frozenset[str]:
        """What PromQL may ask for."""
        parts = {"histogram": ("bucket", "sum", "count"), "summary": ("sum", "count")}
        if self.type in parts:
            return frozenset(f"{self.name}_{part}" for part in parts[self.type])
        return frozenset({self.name})


@cache
def catalogue() -> tuple[tuple[str, tuple[Entry, ...]], ...]:
    """Heading -> metrics: the monitor's, by exporter; then a rank's, then the gate's."""
    monitors = [(heading, tuple(map(_defined, definitions))) for heading, definitions in CATALOGUE]
    return (*monitors, (RANKS_PAGE, tuple(_rank())), (GATES_PAGE, tuple(_gate())))


def _defined(d: Definition[Any]) -> Entry:
    return Entry(d.name, d.kind.__name__.lower(), d.text, d.labels, d.series, d.absent)


def every() -> tuple[Entry, ...]:
    """All of them."""
    return tuple(entry for _, entries in catalogue() for entry in entries)


def _rank() -> Iterator[Entry]:
    """What a rank's collector yields, that has everything."""
    with tempfile.TemporaryDirectory() as folder:
        rank = Rank(Path(folder) / "rank.page")
        step(rank, 1)
        for family in rank.registry.collect():
            yield _entry(family, RANK)


def _gate() -> Iterator[Entry]:
    proxy = Proxy(("127.0.0.1", 1), time.time)
    for family in GateCollector(proxy).collect():
        yield _entry(family, GATE)


def _entry(family: Any, notes: dict[str, tuple[str, str]]) -> Entry:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    series, absent = notes[name]
    labels = tuple(getattr(family, "_labelnames", ()))
    return Entry(name, family.type, family.documentation, labels, series, absent)

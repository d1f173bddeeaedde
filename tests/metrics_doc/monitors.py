"""The metrics of the monitor's page, by heading."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lightkeeper.monitor.show import metrics_fleet, metrics_incidents, metrics_upkeep
from lightkeeper.monitor.show.exposition import Definition

_PROCESS: Final = tuple(
    Definition(f"process_{name}", kind, text, absent="where /proc does not say")  # type: ignore[arg-type]
    for name, kind, text in (
        ("virtual_memory_bytes", "gauge", "Virtual memory size in bytes."),
        ("resident_memory_bytes", "gauge", "Resident memory size in bytes."),
        ("start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds."),
        ("cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds."),
        ("open_fds", "gauge", "Number of open file descriptors."),
        ("max_fds", "gauge", "Maximum number of open file descriptors."),
    )
)
"""Of prometheus_client's own collector."""

_HEADINGS: Final = {
    metrics_fleet.JOB_INFO: "Fleet",
    metrics_fleet.RANK_BUSY: "Stragglers",
    metrics_fleet.FAILURES: "Recovery",
    metrics_incidents.OPEN: "Incidents",
    metrics_incidents.EVICTIONS: "Evictions, holds, quarantine",
    metrics_incidents.EFFECTIVE: "Goodput",
    metrics_upkeep.BUILD: "The monitor's health",
    metrics_upkeep.STORE_ERRORS: "Store, journal, evidence, lease, messages",
    metrics_upkeep.ANSWERS: "The gate, as the monitor sees it",
}
"""The first metric below each heading; the others follow as they stand in their file."""


def _catalogue() -> Iterator[tuple[str, tuple[Definition, ...]]]:
    by_heading: dict[str, list[Definition]] = {}
    heading = ""
    for file in (metrics_fleet, metrics_incidents, metrics_upkeep):
        for value in vars(file).values():
            for each in value.values() if isinstance(value, dict) else (value,):
                if isinstance(each, Definition):
                    heading = _HEADINGS.get(each, heading)
                    by_heading.setdefault(heading, []).append(each)
    return ((heading, tuple(metrics)) for heading, metrics in by_heading.items())


CATALOGUE: Final[tuple[tuple[str, tuple[Definition, ...]], ...]] = (
    *_catalogue(),
    ("The monitor's process", _PROCESS),
)
"""Heading -> definitions, in the order of the documentation."""

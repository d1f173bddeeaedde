"""The metrics of the monitor's page, by heading."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from monitor.metrics import fleet, incidents, upkeep
from monitor.metrics.exposition import Definition

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
    fleet.JOB_INFO: "Fleet",
    fleet.RANK_BUSY: "Stragglers",
    fleet.FAILURES: "Recovery",
    incidents.OPEN: "Incidents",
    incidents.EVICTIONS: "Evictions, holds, quarantine",
    incidents.EFFECTIVE: "Goodput",
    upkeep.BUILD: "The monitor's health",
    upkeep.STORE_ERRORS: "Store, journal, evidence, lease, messages",
    upkeep.ANSWERS: "The gate, as the monitor sees it",
}
"""The first metric below each heading; the others follow as they stand in their file."""


def _catalogue() -> Iterator[tuple[str, tuple[Definition, ...]]]:
    found: dict[str, list[Definition]] = {}
    heading = ""
    for file in (fleet, incidents, upkeep):
        for one in vars(file).values():
            if isinstance(one, Definition):
                heading = _HEADINGS.get(one, heading)
                found.setdefault(heading, []).append(one)
    return ((heading, tuple(metrics)) for heading, metrics in found.items())


CATALOGUE: Final[tuple[tuple[str, tuple[Definition, ...]], ...]] = (
    *_catalogue(),
    ("The monitor's process", _PROCESS),
)
"""Heading -> definitions, in the order of the documentation."""

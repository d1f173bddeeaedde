"""The metrics of the monitor's page, by heading."""

from __future__ import annotations

from typing import Final

from monitor.metrics import (
    evictions,
    fleet,
    gates,
    goodput,
    health,
    incidents,
    recovery,
    stragglers,
    upkeep,
)
from monitor.metrics.definition import Definition

_PROCESS: Final = tuple(
    Definition(f"process_{name}", kind, text, absent="where /proc does not tell")  # type: ignore[arg-type]
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

CATALOGUE: Final[tuple[tuple[str, tuple[Definition, ...]], ...]] = (
    ("Fleet", fleet.DEFINITIONS),
    ("Stragglers", stragglers.DEFINITIONS),
    ("Recovery", recovery.DEFINITIONS),
    ("Incidents", incidents.DEFINITIONS),
    ("Evictions, holds, quarantine", evictions.DEFINITIONS),
    ("Goodput", goodput.DEFINITIONS),
    ("The monitor's health", health.DEFINITIONS),
    ("Store, journal, evidence, lease, messages", upkeep.DEFINITIONS),
    ("The gate, as the monitor sees it", gates.DEFINITIONS),
    ("The monitor's process", _PROCESS),
)
"""Heading -> definitions, in the order of the documentation."""

"""The metrics of the monitor's page, by heading."""

from __future__ import annotations

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

CATALOGUE: Final[tuple[tuple[str, tuple[Definition, ...]], ...]] = (
    *fleet.DEFINITIONS.items(),
    *incidents.DEFINITIONS.items(),
    *upkeep.DEFINITIONS.items(),
    ("The monitor's process", _PROCESS),
)
"""Heading -> definitions, in the order of the documentation."""

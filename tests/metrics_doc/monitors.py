"""The metrics of the monitor's page, by heading."""

from __future__ import annotations

from typing import Any, Final

from prometheus_client import Counter, Gauge

from lightkeeper.monitor import service  # noqa: F401 - it imports all that define metrics
from lightkeeper.monitor.act import otlp  # noqa: F401 - and this, where its extra is
from lightkeeper.monitor.metric import Definition, Section

_PROCESS: Final = tuple(
    Definition(kind, f"process_{name}", text, series="1", absent="/proc does not say")
    for name, kind, text in (
        ("virtual_memory_bytes", Gauge, "Virtual memory size in bytes."),
        ("resident_memory_bytes", Gauge, "Resident memory size in bytes."),
        ("start_time_seconds", Gauge, "Start time of the process since unix epoch in seconds."),
        ("cpu_seconds_total", Counter, "Total user and system CPU time spent in seconds."),
        ("open_fds", Gauge, "Number of open file descriptors."),
        ("max_fds", Gauge, "Maximum number of open file descriptors."),
    )
)
"""Of prometheus_client's own collector."""

CATALOGUE: Final[tuple[tuple[str, tuple[Definition[Any], ...]], ...]] = (
    *(
        (section.heading, tuple(sorted(section.metrics, key=lambda metric: metric.name)))
        for section in Section.every
    ),
    ("The monitor's process", _PROCESS),
)
"""Heading -> definitions, in the order of the documentation."""

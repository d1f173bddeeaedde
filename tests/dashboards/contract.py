"""Metrics that dashboards and rules may use: what the monitor, the ranks and the gate export.

By the catalogue from which docs/metrics.md is made. That real pages hold what it says, and nothing
else, is asked by `tests/prometheus/`.
"""

from tests.dashboards.rules import recorded
from tests.metrics_doc.catalogue import GATES_PAGE, catalogue, every

EXPORTED = frozenset(
    {"up", "ALERTS", "ALERTS_FOR_STATE", "process_start_time_seconds", *recorded()}
) | frozenset(name for entry in every() for name in entry.names)
"""What PromQL may name."""

FAMILIES = frozenset(entry.name for entry in every())
"""As `# TYPE` lines have them."""

ALWAYS = frozenset(
    entry.name
    for heading, entries in catalogue()
    if heading != GATES_PAGE
    for entry in entries
    if not entry.absent
)
"""Those of a monitor and a rank that are never left out once the monitor has looked."""

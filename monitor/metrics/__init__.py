"""The monitor in Prometheus: gauges from the immutable view at scrape time, own counters.

Aggregates and verdicts only; Prometheus scrapes the ranks themselves through `/v1/sd`. Ranks
and groups that are gone vanish by construction. Labels never carry a step, a replica id or a
text; what is by rank, group, host or incident is bounded (`scene.Bounds`, `*_TOLD`).

One file per exporter: `fleet`, `stragglers`, `recovery`, `incidents`, `evictions`, `goodput`,
`health`, `upkeep`, `gates`. Each begins with its definitions, from which
docs/metrics.md is made, and reads a `scene`. What is counted while it happens is in `instruments`.
Not here: when something is counted, and the gate's own page (`gate.metrics`).
"""

from monitor.metrics.instruments import Instruments
from monitor.metrics.page import ViewCollector
from monitor.metrics.scene import Bounds
from monitor.metrics.upkeep import Live

__all__ = ["Bounds", "Instruments", "Live", "ViewCollector"]

"""The monitor in Prometheus: gauges from the immutable view at scrape time, own counters.

Aggregates and verdicts only; Prometheus scrapes the ranks themselves through `/v1/sd`. Ranks
and groups that are gone vanish by construction. Labels never carry a step, a replica id or a
text; what is by rank, group, host or incident is bounded (`exposition.Bounds`, `*_TOLD`).

`fleet`, `incidents` and `upkeep` define families of metrics, from which docs/metrics.md is made,
and read them from a view. `page` is what Prometheus asks, and holds what is counted while it
happens. Not here: when something is counted, and the gate's own page (`monitor.gate.serve`).
"""

from monitor.metrics.exposition import Bounds
from monitor.metrics.page import Instruments, ViewCollector
from monitor.metrics.upkeep import Live

__all__ = ["Bounds", "Instruments", "Live", "ViewCollector"]

"""The monitor in Prometheus: gauges from the immutable view at scrape time, own counters.

Aggregates and verdicts only; Prometheus scrapes the ranks themselves through `/v1/sd`. Ranks
and groups that are gone vanish by construction. Labels never carry a step, a replica id or a
text.

Belongs here: what is counted while it happens (`instruments`), what is read at scrape time
(`collectors`), of the fleet (`fleet`, `recovery`) and of what the monitor makes of it (`decided`).
Not here: when something is counted, and the gate's own figures (`evictors.gate_metrics`, `gate`).
"""

from monitor.metrics.collectors import JournalCollector, LeaseCollector, ViewCollector
from monitor.metrics.instruments import Instruments

__all__ = ["Instruments", "JournalCollector", "LeaseCollector", "ViewCollector"]

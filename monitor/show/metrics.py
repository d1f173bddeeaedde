"""The monitor's `/metrics`: read from the latest view at each scrape, or counted as it happens.

Aggregates and verdicts only; Prometheus scrapes the ranks themselves through `/v1/sd`. Ranks
and groups that are gone vanish by construction. Labels never carry a step, a replica id or a
text; series by rank, group, host or incident are bounded (`exposition.Bounds`, `*_TOLD`).
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.show import metrics_fleet, metrics_incidents, metrics_upkeep
from lightkeeper.monitor.show.exposition import Bounds, ScrapeView

_METRICS = metrics_fleet.METRICS + metrics_incidents.METRICS + metrics_upkeep.METRICS


class ViewCollector(Collector):
    """Computed from the latest view when Prometheus asks; what is not known is left out.

    Args:
        view: the latest; None before the first tick.
        bounds: how many ranks and groups have series of their own.
        wait: until the monitor has time, but not for long: the families of 10,000 ranks take 50 ms
            of the interpreter that the tick needs.
    """

    def __init__(
        self,
        view: Callable[[], View | None],
        bounds: Bounds | None = None,
        wait: Callable[[], object] = lambda: None,
    ) -> None:
        self._view = view
        self._bounds = bounds or Bounds()
        self._wait = wait
        self._cached: tuple[View | None, tuple[Metric, ...]] = (None, ())
        """Of the view last scraped: two Prometheus servers often scrape the same one."""

    def collect(self) -> tuple[Metric, ...]:
        """Made once a view; if two threads make them, both make the same."""
        view = self._view()
        if view is not None and view is not self._cached[0]:
            self._wait()
            view = self._view() or view
            scene = ScrapeView(view, self._bounds)
            self._cached = view, tuple(each for metric in _METRICS for each in metric.read(scene))
        return self._cached[1]

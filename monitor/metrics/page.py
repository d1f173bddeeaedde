"""What is read from the latest view when Prometheus asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from monitor.metrics import evictions, fleet, goodput, health, incidents, recovery, stragglers
from monitor.metrics.scene import Bounds, Scene
from monitor.metrics.upkeep import STORE_ERRORS
from monitor.view import View

_EXPORTERS = (fleet, stragglers, recovery, incidents, evictions, goodput, health)


class ViewCollector(Collector):
    """Computed from the latest view when Prometheus asks.

    Args:
        view: the latest; None before the first tick.
        store_errors: so far.
        version: of lightkeeper.
        bounds: how many ranks and groups have series of their own.
    """

    def __init__(
        self,
        view: Callable[[], View | None],
        store_errors: Callable[[], int],
        version: str,
        bounds: Bounds | None = None,
    ) -> None:
        self._view = view
        self._store_errors = store_errors
        self._version = version
        self._bounds = bounds or Bounds()
        self._made: tuple[tuple[float, int], tuple[Metric, ...]] | None = None
        """Of the tick that was asked for last: two Prometheus servers often come in the same."""

    def describe(self) -> list[Metric]:
        """Nothing ahead of time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment; what is not known is left out, never zero."""
        yield health.BUILD.rows([((self._version,), 1.0)])
        yield STORE_ERRORS.value(self._store_errors())
        view = self._view()
        if view is not None:
            yield from self._families(view)

    def _families(self, view: View) -> tuple[Metric, ...]:
        """Made once a tick; two threads that both make them make the same."""
        tick, made = (view.snapshot.now_s, view.snapshot.tick), self._made
        if made is None or made[0] != tick:
            scene = Scene(view, self._bounds)
            made = tick, tuple(one for exporter in _EXPORTERS for one in exporter.export(scene))
            self._made = made
        return made[1]

"""What is read from the latest view when Prometheus asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from monitor.decide.view import View
from monitor.metrics import evictions, fleet, goodput, health, incidents, recovery, stragglers
from monitor.metrics.scene import Bounds, Scene
from monitor.metrics.upkeep import STORE_ERRORS

_EXPORTERS = (fleet, stragglers, recovery, incidents, evictions, goodput, health)


class ViewCollector(Collector):
    """Computed from the latest view when Prometheus asks.

    Args:
        view: the latest; None before the first tick.
        store_errors: so far.
        version: of lightkeeper.
        bounds: how many ranks and groups have series of their own.
        wait: until the monitor has time, but not for long: making the families of 10,000 ranks
            takes 50 ms of the interpreter that the tick runs in.
    """

    def __init__(
        self,
        view: Callable[[], View | None],
        store_errors: Callable[[], int],
        version: str,
        bounds: Bounds | None = None,
        wait: Callable[[], object] = lambda: None,
    ) -> None:
        self._view = view
        self._store_errors = store_errors
        self._version = version
        self._bounds = bounds or Bounds()
        self._wait = wait
        self._made: tuple[tuple[float, int], tuple[Metric, ...]] | None = None
        """Of the tick that was asked for last: two Prometheus servers often come in the same."""

    def describe(self) -> list[Metric]:
        """Nothing ahead of time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment; what is not known is left out, never zero."""
        yield health.BUILD.rows([((self._version,), 1.0)])
        yield STORE_ERRORS.value(self._store_errors())
        yield from self._families()

    def _families(self) -> tuple[Metric, ...]:
        """Made once a tick; two threads that both make them make the same."""
        view, made = self._view(), self._made
        if view is None or (made is not None and made[0] == _tick(view)):
            return () if made is None else made[1]
        self._wait()
        view = self._view() or view
        scene = Scene(view, self._bounds)
        families = tuple(one for exporter in _EXPORTERS for one in exporter.export(scene))
        self._made = _tick(view), families
        return families


def _tick(view: View) -> tuple[float, int]:
    return view.snapshot.now_s, view.snapshot.tick

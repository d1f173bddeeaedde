"""The gate as its keeper sees it, in Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from monitor.evictors.gatekeeper import Gatekeeper
from monitor.gate.client import GateView
from monitor.gate.denial import Scope
from monitor.metrics.gates import ANSWERS, DENIALS, LISTS, UNTAUGHT


class GateCollector(Collector):
    """What this monitor knows of the gate; the gate has metrics of its own."""

    def __init__(self, keeper: Gatekeeper) -> None:
        self._keeper = keeper

    def describe(self) -> list[Metric]:
        """Nothing ahead of time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        view, keeper = self._keeper.view, self._keeper
        yield ANSWERS.value(isinstance(view, GateView))
        yield UNTAUGHT.value(keeper.trouble() is not None)
        yield LISTS.rows([(("taken",), keeper.taught), (("failed",), keeper.failed)])
        if isinstance(view, GateView):
            scopes = Counter(one.scope for one in view.denied)
            yield DENIALS.rows([((str(scope),), float(scopes[scope])) for scope in Scope])

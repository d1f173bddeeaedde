"""The gate as its keeper sees it, in Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from monitor.evictors.gatekeeper import Gatekeeper
from monitor.gate.client import GateView
from monitor.gate.denial import Scope


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
        up = GaugeMetricFamily("lightkeeper_gate_answers", "1 while the gate answers this monitor.")
        up.add_metric((), float(isinstance(view, GateView)))
        yield up
        trouble = GaugeMetricFamily(
            "lightkeeper_gate_untaught", "1 while the gate is away or does not take its list."
        )
        trouble.add_metric((), float(keeper.trouble() is not None))
        yield trouble
        lists = CounterMetricFamily(
            "lightkeeper_gate_lists", "Lists sent to the gate, by outcome.", labels=("outcome",)
        )
        lists.add_metric(("taken",), keeper.taught)
        lists.add_metric(("failed",), keeper.failed)
        yield lists
        if isinstance(view, GateView):
            scopes = Counter(one.scope for one in view.denied)
            shown = GaugeMetricFamily(
                "lightkeeper_gate_denials",
                "Names that the gate refuses, by scope.",
                labels=("scope",),
            )
            for scope in Scope:
                shown.add_metric((str(scope),), scopes[scope])
            yield shown

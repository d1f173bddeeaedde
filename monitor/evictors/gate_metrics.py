"""The gate as its keeper sees it, in Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric

from monitor.evictors.gatekeeper import Gatekeeper
from monitor.gate.client import GateView
from monitor.gate.denial import Scope
from monitor.metrics.gates import ANSWERS, DENIALS, LISTS, UNTAUGHT


def gate_families(keeper: Gatekeeper) -> Iterator[Metric]:
    """What this monitor knows of the gate; the gate has metrics of its own."""
    view = keeper.view
    yield ANSWERS.value(isinstance(view, GateView))
    yield UNTAUGHT.value(keeper.trouble() is not None)
    yield LISTS.rows([(("taken",), keeper.taught), (("failed",), keeper.failed)])
    if isinstance(view, GateView):
        scopes = Counter(one.scope for one in view.denied)
        yield DENIALS.rows([((str(scope),), float(scopes[scope])) for scope in Scope])

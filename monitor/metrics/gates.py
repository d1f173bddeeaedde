"""The gate as its keeper sees it; the gate's own page has more (`monitor.gate.admin`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from monitor.act.gate import Gatekeeper
from monitor.gate.denylist import Scope
from monitor.gate.view import GateView
from monitor.metrics.definition import counter, gauge

_NO_GATE: Final = "the monitor has no gate (--gate)"

ANSWERS = gauge("gate_answers", "1 while the gate answers this monitor.", absent=_NO_GATE)
UNTAUGHT = gauge(
    "gate_untaught", "1 while the gate is away or does not take its list.", absent=_NO_GATE
)
LISTS = counter(
    "gate_lists", "Lists sent to the gate, by outcome.", ("outcome",), series="2", absent=_NO_GATE
)
DENIALS = gauge(
    "gate_denials", "Names that the gate refuses, by scope.", ("scope",), series="3",
    absent="the monitor has no gate, or it does not answer",
)  # fmt: skip

DEFINITIONS: Final = (ANSWERS, UNTAUGHT, LISTS, DENIALS)


def families(keeper: Gatekeeper) -> Iterator[Metric]:
    """What this monitor knows of the gate; the gate has metrics of its own."""
    view = keeper.view
    yield ANSWERS.value(isinstance(view, GateView))
    yield UNTAUGHT.value(keeper.trouble() is not None)
    yield LISTS.rows([(("taken",), keeper.taught), (("failed",), keeper.failed)])
    if isinstance(view, GateView):
        scopes = Counter(one.scope for one in view.denied)
        yield DENIALS.rows([((str(scope),), float(scopes[scope])) for scope in Scope])

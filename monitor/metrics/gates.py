"""The gate as its keeper sees it; the gate's own page has more (`monitor.gate.admin`)."""

from __future__ import annotations

from typing import Final

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

"""How bad an incident is: by its kind, by who waits, by what it costs. Pure.

Severity says how soon a person should look, in Alertmanager's usual words; it does not say
whether anybody is evicted (that is policy) nor how sure the verdict is (that is confidence).
"""

from __future__ import annotations

from typing import Final

from monitor.detectors.verdict import Confidence, Kind, Severity, Verdict

STRAGGLER_COSTS_S: Final = 15.0
"""Fleet seconds lost from which a straggler is more than a note: `eviction_cost_s` by default."""


def severity_of(verdict: Verdict, costs_s: float = STRAGGLER_COSTS_S) -> Severity:
    """Severity of a fault, from its latest verdict.

    Critical: somebody waits for it, so the job (or a part of it) stands; or no rank can end it; or
    what is known for certain cannot end by itself; or the numbers of several groups are spoilt.
    Info: an unsure word that harms nobody, and a straggler that has cost less than `costs_s`, which
    is what an eviction would.
    """
    match verdict.kind:
        case Kind.STRAGGLER:
            return Severity.INFO if verdict.lost_s <= costs_s else Severity.WARNING
        case Kind.DEAD | Kind.REPLICA_LAG | Kind.LIGHTHOUSE_AWAY | Kind.UNSEEN:
            return Severity.CRITICAL if verdict.victims else Severity.WARNING
        case Kind.STATE_CORRUPT if len(verdict.groups) > 1:
            return Severity.CRITICAL  # whoever was first, the job as a whole is being spoilt
        case Kind.MISMATCH | Kind.DEADLOCK if verdict.stops:
            return Severity.CRITICAL  # whoever is in it waits for ever, and names itself no victim
        case _:  # hangs, spared mismatches, spoilt state
            if verdict.victims or verdict.confidence is Confidence.CERTAIN:
                return Severity.CRITICAL
            unsure = verdict.confidence is Confidence.UNSURE
            return Severity.INFO if unsure else Severity.WARNING

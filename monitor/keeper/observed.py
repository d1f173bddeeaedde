"""The record of observe mode: what an eviction would have done, and which there would have been."""

from __future__ import annotations

from collections.abc import Iterable

from monitor.keeper.parts import Parts
from monitor.names import GroupName
from monitor.policy import Decision, Evict, PastEviction
from monitor.snapshot import Rung
from monitor.store import DecisionRow


def rungs_for(decision: Decision, parts: Parts) -> tuple[Rung, ...]:
    """Those that this monitor has for an eviction that observe mode held back; () for any other."""
    if isinstance(decision, Evict) or decision.would is None:
        return ()
    would = decision.would
    has = {
        Rung.EVIDENCE: parts.evidence is not None,
        Rung.QUARANTINE: bool(would.quarantine),
        Rung.GATE: parts.gatekeeper is not None and would.replica_id is not None,
        Rung.LIGHTHOUSE_KILL: parts.lighthouse is not None and would.replica_id is not None,
        Rung.WORKER_EVICT: True,
        Rung.SCHEDULER: parts.schedulers is not None,
    }
    return tuple(rung for rung in Rung if has.get(rung, False))


def held_back(decisions: Iterable[DecisionRow]) -> tuple[PastEviction, ...]:
    """Evictions that observe mode had held back, oldest first."""
    return tuple(
        PastEviction(row.incident_id, GroupName(str(row.body["group"])), row.at_s)
        for row in decisions
        if row.action == "would_evict" and "group" in row.body
    )

"""The rungs that an eviction would climb, for the record of observe mode."""

from __future__ import annotations

from monitor.keeper.parts import Parts
from monitor.policy import Decision, Evict
from monitor.snapshot import Rung


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

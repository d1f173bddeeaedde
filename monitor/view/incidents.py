"""One incident as JSON: its story, decisions, evictions, account and evidence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from monitor.audit.account import account, account_to_json
from monitor.audit.case import Case
from monitor.incident import Incident
from monitor.names import IncidentId, RankName
from monitor.pipeline import RankHealth
from monitor.store import DecisionRow, eviction_to_json
from monitor.view.face import face_of
from monitor.view.ranks import trouble_of
from monitor.view.values import bundle_url, finite
from monitor.view.view import View

VICTIMS_TOLD: Final = 64
"""By name; a fleet has thousands, and whoever shows an incident counts them."""


def case_of(view: View, incident: Incident) -> Case:
    """Everything that the account of an incident is made from."""
    rows = view.decisions.get(incident.id, ())
    return view.books.case(incident, rows, view.snapshot.now_s)


def incident_json(view: View, incident: Incident) -> dict[str, Any]:
    """One incident for a reader: its story, what was decided, and how the eviction went."""
    verdict, case = incident.verdict, case_of(view, incident)
    eviction, now_s = view.evictions.get(incident.id), view.snapshot.now_s
    face = face_of(incident, view.decisions.get(incident.id, ()), now_s)
    health = view.result.rank_health
    return {
        "id": incident.id,
        "kind": str(incident.kind),
        "state": str(incident.state),
        "severity": str(incident.severity),
        "culprits": list(incident.culprits),
        "groups": list(incident.groups),
        "replica_ids": list(incident.replica_ids),
        "reason": verdict.reason,
        "says": face.says,
        "next": face.next,
        "for_s": max(0.0, now_s - verdict.since_s) if incident.open else None,
        "waiting": sum(
            health.get(r) in (RankHealth.WAITING, RankHealth.LATE) for r in verdict.victims
        ),
        "seen": {
            seen.rank: told
            for seen in view.snapshot.observations
            if seen.rank in incident.culprits and (told := trouble_of(seen))
        },
        "confidence": str(verdict.confidence),
        "evidence": dict(verdict.evidence),
        "victims": _some(view, verdict.victims),
        "victim_count": len(verdict.victims),
        "lost_s": finite(verdict.lost_s),
        "lost_steps": incident.lost_steps,
        "before": None if incident.before is None else asdict(incident.before),
        "since_s": verdict.since_s,
        "signature": incident.signature,
        "milestones": asdict(incident.milestones),
        "story": [
            {"at_s": line.at_s, "to": line.to, "reason": line.reason} for line in incident.story
        ],
        "last_seen_s": incident.last_seen_s,
        "resolution": incident.resolution,
        "decisions": [decision_to_json(row) for row in view.decisions.get(incident.id, ())],
        "eviction": None if eviction is None else eviction_to_json(eviction),
        "evictions": [eviction_to_json(one) for one in view.books.evictions.get(incident.id, ())],
        "account": account_to_json(account(case)),
        "bundle": _bundle_json(view, incident.id),
    }


def _some(view: View, victims: Sequence[RankName]) -> list[RankName]:
    """At most `VICTIMS_TOLD`: those first whom another incident accuses."""
    if len(victims) <= VICTIMS_TOLD:
        return list(victims)
    accused = {rank for one in view.result.incidents if one.open for rank in one.culprits}
    return sorted(victims, key=lambda rank: rank not in accused)[:VICTIMS_TOLD]


def decision_to_json(row: DecisionRow) -> dict[str, Any]:
    """One decision for a reader; `would` is the eviction that observe mode held back."""
    told: dict[str, Any] = {
        "at_s": row.at_s,
        "action": row.action,
        "guard": row.guard,
        "reason": row.reason,
        "state": str(row.state),
        "author": row.author,
        "epoch": row.epoch,
        "attempt": row.attempt,
        "ended_s": row.ended_s,
        "outcome": row.outcome,
    }
    if row.guard is not None:
        told["release"] = row.body.get("release", "")
    if row.action == "would_evict":
        told["would"] = {name: row.body.get(name) for name in ("group", "quarantine", "rungs")}
    return told


def _bundle_json(view: View, incident_id: IncidentId) -> dict[str, Any] | None:
    bundle = view.bundles.get(incident_id)
    if bundle is None:
        return None
    return {
        "url": bundle_url(incident_id),
        "bytes": bundle.nbytes,
        "written_s": bundle.written_s,
    }

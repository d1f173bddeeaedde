"""The order that a decision becomes: whom it means, and why it may not be carried out. Pure."""

from __future__ import annotations

from typing import Final

from monitor.detectors.verdict import Kind
from monitor.evictors import Accused, Order
from monitor.incident import Incident
from monitor.names import RankName
from monitor.policy import Evict
from monitor.snapshot import Snapshot

_STANDSTILLS: Final = frozenset({Kind.NOT_ENTERED, Kind.MISMATCH, Kind.DEADLOCK})
"""Kinds whose culprits do not move: one that moves has recovered."""


def order_for(
    evict: Evict, snapshot: Snapshot, incident: Incident | None, author: str = "lightkeeper"
) -> Order:
    """What the evictor is told; `incident` is None when a person decided."""
    group = [one for one in snapshot.observations if one.identity.group == evict.group]
    return Order(
        evict=evict,
        accused=tuple(
            Accused(
                one.rank,
                one.identity.incarnation,
                one.url,
                one.identity.host,
                one.identity.place,
            )
            for one in group
        ),
        asked_s=snapshot.now_s,
        author=author,
        refused=_restarted(evict, snapshot, incident),
        stood=_stood(snapshot, incident),
    )


def _stood(snapshot: Snapshot, incident: Incident | None) -> dict[RankName, int]:
    """Culprits of a standstill, and how many phases they had changed by this tick."""
    if incident is None or incident.kind not in _STANDSTILLS:
        return {}
    found = {one.rank: one.report for one in snapshot.observations if one.report is not None}
    steps = {rank: found[rank].step for rank in incident.culprits if rank in found}
    stood = {rank: step.progress for rank, step in steps.items() if step is not None}
    return stood if len(stood) == len(incident.culprits) else {}


def _restarted(evict: Evict, snapshot: Snapshot, incident: Incident | None) -> str | None:
    """Why this group is not the one that was accused any more."""
    for one in snapshot.observations:
        if one.identity.group != evict.group:
            continue
        accused = (
            () if incident is None or one.rank not in incident.culprits else (incident.incarnations)
        )
        if accused and one.identity.incarnation not in accused:
            return f"{one.rank} has restarted since it was accused"
        step = None if one.report is None else one.report.step
        told = None if step is None else step.replica_id
        if None not in (told, evict.replica_id) and told != evict.replica_id:
            return f"{one.rank} runs as {told} now, not as {evict.replica_id}"
    return None

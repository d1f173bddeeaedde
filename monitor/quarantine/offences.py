"""What incidents say about hosts: who ran where when it was accused. Pure.

Told once an incident fires and is sure of its culprits; an incident that cannot tell, or whose
verdict says that an eviction would not mend it, says nothing about a host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from monitor.detectors.verdict import Confidence
from monitor.incident import Incident, State
from monitor.names import Host, IncidentId, RankName, group_of
from monitor.policy import Decision, Evict
from monitor.snapshot import Snapshot
from monitor.store import Change, QuarantineEvent

FINDINGS_MAX_CHARS: Final = 400
_NO_NODE: Final = "pod:"
"""Begins the host of a rank whose node nobody told (`worker_server.identity`): no host at all."""


def accusations(
    changed: Sequence[Incident], before: Mapping[IncidentId, Incident], snapshot: Snapshot
) -> Iterator[QuarantineEvent]:
    """Hosts of the culprits of the incidents that have just become certain.

    `before`: the same incidents as they were before this tick.
    """
    hosts = hosts_of(snapshot)
    for incident in changed:
        old = before.get(incident.id)
        if _certain(incident) and not (old is not None and _certain(old)):
            yield from _told(incident, hosts, Change.ACCUSED, snapshot.now_s)


def evictions(
    decisions: Sequence[Decision],
    incident: Callable[[IncidentId], Incident | None],
    snapshot: Snapshot,
) -> Iterator[QuarantineEvent]:
    """Hosts of the culprits for whom a group is being evicted; by hand nobody is accused."""
    hosts = hosts_of(snapshot)
    for decision in decisions:
        blamed = incident(decision.incident_id) if isinstance(decision, Evict) else None
        if blamed is not None:
            yield from _told(blamed, hosts, Change.EVICTED, snapshot.now_s)


def hosts_of(snapshot: Snapshot) -> dict[RankName, Host]:
    """Where each rank runs, as far as a node is known."""
    return {
        one.rank: one.identity.host
        for one in snapshot.observations
        if not one.identity.host.startswith(_NO_NODE)
    }


def _certain(incident: Incident) -> bool:
    verdict = incident.verdict
    fires = incident.state in (State.FIRING, State.EVICTING)
    return fires and verdict.confidence is not Confidence.UNSURE and not verdict.spare


def _told(
    incident: Incident, hosts: Mapping[RankName, Host], change: Change, now_s: float
) -> Iterator[QuarantineEvent]:
    verdict = incident.verdict
    wide = any(group_of(rank) not in incident.groups for rank in verdict.victims)
    for host in sorted({hosts[rank] for rank in incident.culprits if rank in hosts}):
        yield QuarantineEvent(
            at_s=now_s,
            change=change,
            name=host,
            reason=verdict.reason,
            incident_id=incident.id,
            kind=str(incident.kind),
            findings=findings_of(incident),
            signature=incident.signature,
            wide=wide,
        )


def findings_of(incident: Incident) -> str:
    """What its verdict rests on, in one line."""
    told = "; ".join(f"{source}: {seen}" for source, seen in incident.verdict.evidence.items())
    line = " ".join(told.split())
    return line if len(line) <= FINDINGS_MAX_CHARS else line[: FINDINGS_MAX_CHARS - 3] + "..."

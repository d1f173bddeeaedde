"""What the monitor shows: one immutable value a tick, and its JSON. Pure.

The web page, the API and `/metrics` read a `View` and nothing that changes under their hands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from urllib.parse import quote

from monitor.audit.account import account, account_to_json
from monitor.audit.books import Books
from monitor.audit.case import Case
from monitor.audit.review import review_to_json
from monitor.incident import Incident
from monitor.lease import Standing
from monitor.lighthouse_log import LighthouseRecord
from monitor.names import (
    GroupName,
    Host,
    IncidentId,
    RankName,
    ReplicaId,
    group_of_replica,
    split_rank_name,
)
from monitor.pipeline import RankHealth, TickResult
from monitor.policy.effective import Effective
from monitor.quarantine.record import HostRecord
from monitor.snapshot import (
    EvictionProgress,
    LighthouseAway,
    LighthouseView,
    Observation,
    Snapshot,
    Unreachable,
)
from monitor.store import (
    DecisionRow,
    QuarantineEntry,
    QuarantineEvent,
    Scope,
    eviction_to_json,
)
from monitor.tempo import Tempo

SCHEMA: Final = 1

_WORST_FIRST: Final = (
    RankHealth.DEAD,
    RankHealth.UNREACHABLE,
    RankHealth.STALLED,
    RankHealth.STARTING,
    RankHealth.WAITING,
    RankHealth.HEALTHY,
)


class NotPossible(Exception):  # noqa: N818 - an answer, not an accident
    """What a person asked for cannot be done now; the message says why."""


@dataclass(frozen=True, slots=True)
class BundleView:
    """The evidence of one incident, on disk."""

    nbytes: int
    written_s: float
    """Unix time."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that may be shown after one tick."""

    snapshot: Snapshot
    result: TickResult
    observe: bool
    incidents: tuple[Incident, ...] = ()
    """All that are remembered, newest first."""
    decisions: Mapping[IncidentId, Sequence[DecisionRow]] = field(default_factory=dict)
    evictions: Mapping[IncidentId, EvictionProgress] = field(default_factory=dict)
    """The latest of each incident."""
    bundles: Mapping[IncidentId, BundleView] = field(default_factory=dict)
    evicting: frozenset[GroupName] = frozenset()
    quarantine: tuple[QuarantineEntry, ...] = ()
    """Hosts."""
    quarantine_groups: tuple[QuarantineEntry, ...] = ()
    hosts: Mapping[Host, HostRecord] = field(default_factory=dict)
    """The record of every host of which anything is known."""
    tempos: Mapping[RankName, Tempo] = field(default_factory=dict)
    books: Books = field(default_factory=Books)
    """What accounts are made from."""
    rules: Effective | None = None
    """The policy that holds."""
    lighthouse: LighthouseRecord = field(default_factory=LighthouseRecord)
    troubles: tuple[str, ...] = ()
    """What is wrong with the monitor itself, one sentence each."""
    standing: Standing | None = None
    """Whether this monitor acts, and who else; None: it shares its store with nobody."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """One replica group, put together from its ranks and the Lighthouse."""

    group: GroupName
    host: Host | None
    replica_id: ReplicaId | None
    in_quorum: bool | None
    """None while the Lighthouse cannot be seen."""
    ranks: tuple[RankName, ...]
    health: str
    step: int | None
    commits: int | None
    heartbeat_age_s: float | None


def groups_of(view: View) -> tuple[GroupView, ...]:
    """Every replica group that has a registered rank or a place in the quorum, sorted."""
    ranks: dict[GroupName, list[Observation]] = {}
    for seen in view.snapshot.observations:
        ranks.setdefault(seen.identity.group, []).append(seen)
    lighthouse = view.snapshot.lighthouse
    members: tuple[ReplicaId, ...] = ()
    if isinstance(lighthouse, LighthouseView):
        members = tuple(member.replica_id for member in lighthouse.members)
    names = set(ranks) | {group_of_replica(replica_id) for replica_id in members}
    return tuple(_group(view, name, ranks.get(name, ()), members) for name in sorted(names))


def _group(
    view: View, name: GroupName, seen: Sequence[Observation], members: Sequence[ReplicaId]
) -> GroupView:
    lighthouse = view.snapshot.lighthouse
    steps = [one.report.step for one in seen if one.report is not None and one.report.step]
    told = [step.replica_id for step in steps if step.replica_id is not None]
    known = [replica_id for replica_id in members if group_of_replica(replica_id) == name]
    replica_id = told[0] if told else (known[-1] if known else None)
    age_s = None
    if isinstance(lighthouse, LighthouseView) and replica_id is not None:
        age_s = lighthouse.heartbeat_ages_s.get(replica_id)
    return GroupView(
        group=name,
        host=seen[0].identity.host if seen else None,
        replica_id=replica_id,
        in_quorum=None if isinstance(lighthouse, LighthouseAway) else replica_id in members,
        ranks=tuple(one.rank for one in seen),
        health=_worst(view.result.rank_health.get(one.rank) for one in seen),
        step=max((step.step for step in steps), default=None),
        commits=max((step.commits for step in steps), default=None),
        heartbeat_age_s=age_s,
    )


def _worst(healths: Iterable[RankHealth | None]) -> str:
    seen = set(healths)
    return next((str(health) for health in _WORST_FIRST if health in seen), "unknown")


# -- JSON ----------------------------------------------------------------------------------------


def snapshot_to_json(view: View) -> dict[str, Any]:
    """The body of `GET /v1/snapshot`."""
    return {
        "schema": SCHEMA,
        "now_s": view.snapshot.now_s,
        "tick": view.snapshot.tick,
        "lateness_s": round(view.snapshot.lateness_s, 3),
        "observe": view.observe,
        "monitor": None if view.standing is None else view.standing.to_json(),
        "pause": None if view.snapshot.pause is None else asdict(view.snapshot.pause),
        "maintenance": _maintenance(view),
        "troubles": list(view.troubles),
        "unknown": [
            {"kind": kind, "why": why} for kind, why in sorted(view.result.unknown.items())
        ],
        "self_health": self_health_to_json(view),
        "lighthouse": lighthouse_to_json(view.snapshot.lighthouse),
        "groups": groups_to_json(view),
        "ranks": ranks_to_json(view),
        "incidents": [incident_json(view, one) for one in view.incidents if one.open],
        "quarantine": [
            entry_to_json(entry, view.hosts, entry.incident_id in view.bundles)
            for entry in view.quarantine
        ],
        "quarantine_groups": [
            entry_to_json(entry, {}, entry.incident_id in view.bundles)
            for entry in view.quarantine_groups
        ],
    }


def _maintenance(view: View) -> dict[str, Any] | None:
    """The maintenance window that is open, if one is."""
    found = None if view.rules is None else view.rules.policy.window(view.snapshot.now_s)
    return None if found is None else {"name": found[0].name, "until_s": found[1]}


def self_health_to_json(view: View) -> dict[str, Any]:
    """How far the monitor trusts itself."""
    health = view.result.health
    return {
        "state": str(health.state),
        "scale": health.scale,
        "hold": health.hold,
        "conditions": {str(one): seen for one, seen in health.conditions.items()},
    }


def degraded(view: View) -> tuple[str, ...]:
    """What this monitor cannot do as it should, one line each; empty when it is well."""
    unknown = [f"unknown: {kind}: {why}" for kind, why in sorted(view.result.unknown.items())]
    return (*unknown, *view.troubles)


def lighthouse_to_json(lighthouse: LighthouseView | LighthouseAway) -> dict[str, Any]:
    """The Lighthouse, up or not."""
    if isinstance(lighthouse, LighthouseAway):
        return {"up": False, "reason": lighthouse.reason}
    return {
        "up": True,
        "quorum_id": lighthouse.quorum_id,
        "status": lighthouse.status,
        "members": [
            {
                "replica_id": member.replica_id,
                "group": group_of_replica(member.replica_id),
                "step": member.step,
            }
            for member in lighthouse.members
        ],
        "heartbeat_ages_s": {
            replica_id: round(age_s, 3)
            for replica_id, age_s in sorted(lighthouse.heartbeat_ages_s.items())
        },
    }


def groups_to_json(view: View) -> list[dict[str, Any]]:
    """Every group, sorted."""
    return [
        {
            "group": one.group,
            "host": one.host,
            "replica_id": one.replica_id,
            "in_quorum": one.in_quorum,
            "ranks": list(one.ranks),
            "health": one.health,
            "step": one.step,
            "commits": one.commits,
            "heartbeat_age_s": _finite(one.heartbeat_age_s),
            "eviction": "evicting" if one.group in view.evicting else None,
        }
        for one in groups_of(view)
    ]


def ranks_to_json(view: View) -> list[dict[str, Any]]:
    """Every rank, sorted."""
    return [_rank_json(view, seen) for seen in view.snapshot.observations]


def _rank_json(view: View, seen: Observation) -> dict[str, Any]:
    identity, report = seen.identity, seen.report
    step = None if report is None else report.step
    tempo = view.tempos.get(seen.rank)
    away = seen.outcome if isinstance(seen.outcome, Unreachable) else None
    return {
        "rank": seen.rank,
        "group": identity.group,
        "host": identity.host,
        "pid": identity.pid,
        "incarnation": identity.incarnation,
        "place": dict(identity.place),
        "url": seen.url,
        "health": str(view.result.rank_health.get(seen.rank, "unknown")),
        "process_state": None if report is None else report.process.state,
        "phase": None if step is None else step.phase,
        "phase_age_s": None if step is None else _finite(step.phase_age_s),
        "step": None if step is None else step.step,
        "commits": None if step is None else step.commits,
        "last_commit_age_s": None if step is None else _finite(step.last_commit_age_s),
        "quorum_id": None if step is None else step.quorum_id,
        "participants": None if step is None else step.participants,
        "loss": None if step is None else _finite(step.loss),
        "step_s": None if tempo is None else round(tempo.step_s, 4),
        "busy_s": None if tempo is None else round(tempo.busy_s, 4),
        "unreachable": None
        if away is None
        else {"reason": str(away.reason), "detail": away.detail},
    }


def _finite(value: float | None) -> float | None:
    """JSON knows no NaN."""
    return round(value, 6) if value is not None and math.isfinite(value) else None


def case_of(view: View, incident: Incident) -> Case:
    """Everything that the account of an incident is made from."""
    rows = view.decisions.get(incident.id, ())
    return view.books.case(incident, rows, view.snapshot.now_s)


def incident_json(view: View, incident: Incident) -> dict[str, Any]:
    """One incident for a reader: its story, what was decided, and how the eviction went."""
    verdict, case = incident.verdict, case_of(view, incident)
    eviction = view.evictions.get(incident.id)
    return {
        "id": incident.id,
        "kind": str(incident.kind),
        "state": str(incident.state),
        "severity": str(incident.severity),
        "culprits": list(incident.culprits),
        "groups": list(incident.groups),
        "replica_ids": list(incident.replica_ids),
        "reason": verdict.reason,
        "confidence": str(verdict.confidence),
        "evidence": dict(verdict.evidence),
        "victims": list(verdict.victims),
        "lost_s": _finite(verdict.lost_s),
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
        "review": None if case.review is None else review_to_json(case.review),
        "bundle": _bundle_json(view, incident.id),
    }


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


def bundle_url(incident_id: IncidentId) -> str:
    """Where the evidence of an incident is, at this monitor."""
    return f"/v1/incidents/{quote(incident_id, safe='')}/bundle"


def entry_to_json(
    entry: QuarantineEntry, hosts: Mapping[Host, HostRecord], bundle: bool
) -> dict[str, Any]:
    """One quarantined host or group; `bundle`: whether there is one of its incident."""
    body = asdict(entry)
    name, scope = body.pop("name"), body.pop("scope")
    has = bundle and entry.incident_id is not None
    body = {
        "scope": str(scope),
        str(scope): name,
        **body,
        "bundle": bundle_url(entry.incident_id) if has and entry.incident_id else None,
    }
    if entry.scope is Scope.HOST:
        record = hosts.get(entry.host, HostRecord(entry.host))
        body |= {"offences": sum(record.incidents.values()), "lemon": record.lemon}
    return body


def event_to_json(event: QuarantineEvent) -> dict[str, Any]:
    """One line of the history of a host or a group."""
    body = asdict(event)
    name, scope = body.pop("name"), body.pop("scope")
    return {"scope": str(scope), str(scope): name, **body, "change": str(event.change)}


def host_to_json(
    record: HostRecord, entry: QuarantineEntry | None, ranks: Sequence[RankName]
) -> dict[str, Any]:
    """One host: who runs on it, and what its history says."""
    body = asdict(record)
    return {
        "host": body.pop("host"),
        "ranks": list(ranks),
        "groups": sorted({split_rank_name(rank)[0] for rank in ranks}),
        "quarantined": entry is not None,
        "until_s": None if entry is None else entry.until_s,
        **body,
        "incidents": dict(record.incidents),
    }

"""The gate's whole list, from what was evicted and what is quarantined. Pure.

Theory of operation. Refusing a group at the gate *is* evicting it, so nobody is refused who was not
evicted or did not start where it must not:

- an evicted replica id is refused from the first rung that asks on, until 10 minutes after its
  processes were seen gone and it had left the quorum; where that is never shown, for a day;
- a quarantined host is refused, unless an incarnation that started there before it was quarantined
  still runs and was not evicted: quarantine keeps groups from coming back and ends none;
- a quarantined group is denied by name, all but what ran before;
- a group of which an incarnation was evicted from, or started on, a quarantined host is denied by
  name: its incarnations known to run elsewhere are admitted, those on such a host refused, and one
  that nobody knows yet is held by the gate until the next list, a few seconds.

Everything follows from records with fixed times, so the list stays the same while nothing happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from monitor.evictors.whereabouts import Incarnation
from monitor.gate.denial import DENIALS_MAX, IDS_MAX, NAME_MAX, REASON_MAX, Denial, Scope
from monitor.names import GroupName, Host, ReplicaId
from monitor.snapshot import EvictionProgress, Rung
from monitor.store import QuarantineEntry

LASTS_S: Final = 24 * 3600.0
"""Of a denial of which it is never shown that it is not needed any more."""
LINGER_S: Final = 600.0
"""After the end of an eviction: a manager that nobody saw may still retry."""
PRESENT_S: Final = 60.0
"""An incarnation seen within so long still runs, as far as that decides in its favour."""
SETTLE_S: Final = 3.0
"""An incarnation of which not every rank reports yet is admitted after so long."""
ACTING: Final = frozenset({Rung.GATE, Rung.LIGHTHOUSE_KILL, Rung.WORKER_EVICT, Rung.SCHEDULER})
"""Rungs whose record says that the eviction was carried out, and not called off before."""


def deny_list(
    evictions: Iterable[EvictionProgress],
    quarantine: Sequence[QuarantineEntry],
    known: Sequence[Incarnation],
    now_s: float,
    groups: Sequence[QuarantineEntry] = (),
) -> tuple[Denial, ...]:
    """The whole list, sorted, each name once.

    `quarantine` names hosts, `groups` replica groups.
    """
    evicted = _evicted(evictions, now_s)
    hosts = {entry.host: entry for entry in quarantine if _in_force(entry, now_s)}
    denials = [*evicted.values()]
    for host, entry in sorted(hosts.items()):
        if not any(host in one.hosts and _settled(one, entry, evicted, now_s) for one in known):
            reason = f"host quarantined: {entry.reason}"
            denials.append(_denial(Scope.HOST, host, reason, entry.until_s, entry.incident_id))
    by_name = {one.name: one for one in _groups(hosts, known, evicted, now_s)}
    for entry in groups:
        if _in_force(entry, now_s):
            by_host = by_name.get(entry.name)
            astray = frozenset() if by_host is None else by_host.refused
            by_name[entry.name] = _held_out(entry, known, evicted, now_s, astray)
    denials += by_name.values()
    sound = (one for one in denials if one.name.isprintable() and len(one.name) <= NAME_MAX)
    return tuple(sorted(sound, key=lambda one: (one.scope, one.name)))[:DENIALS_MAX]


def _in_force(entry: QuarantineEntry, now_s: float) -> bool:
    return bool(entry.name) and (entry.until_s is None or entry.until_s > now_s)


def _evicted(evictions: Iterable[EvictionProgress], now_s: float) -> dict[ReplicaId, Denial]:
    found: dict[ReplicaId, Denial] = {}
    for one in sorted(evictions, key=lambda one: (one.asked_s, one.incident_id)):
        if one.replica_id is None or not any(rung.rung in ACTING for rung in one.rungs):
            continue
        until_s = one.asked_s + LASTS_S
        if one.gone_s is not None and one.left_quorum_s is not None:
            until_s = min(until_s, max(one.gone_s, one.left_quorum_s) + LINGER_S)
        if until_s > now_s:
            reason = f"{one.group} was evicted ({one.incident_id})"
            found[one.replica_id] = _denial(
                Scope.REPLICA, one.replica_id, reason, until_s, one.incident_id
            )
    return found


def _settled(
    one: Incarnation,
    entry: QuarantineEntry,
    evicted: Mapping[ReplicaId, Denial],
    now_s: float,
) -> bool:
    """Whether an incarnation ran on a host before it was quarantined, and may go on."""
    runs = now_s - one.seen_s <= PRESENT_S
    return runs and one.born_s < entry.since_s and one.replica_id not in evicted


def _groups(
    hosts: Mapping[Host, QuarantineEntry],
    known: Sequence[Incarnation],
    evicted: Mapping[ReplicaId, Denial],
    now_s: float,
) -> list[Denial]:
    barred: dict[GroupName, QuarantineEntry] = {}
    refused: dict[GroupName, set[ReplicaId]] = {}
    for one in known:
        entries = [hosts[host] for host in sorted(one.hosts) if host in hosts]
        unsettled = [entry for entry in entries if not _settled(one, entry, evicted, now_s)]
        if unsettled:
            barred.setdefault(one.group, unsettled[0])
            refused.setdefault(one.group, set()).add(one.replica_id)
    return [
        _denial(
            Scope.GROUP,
            group,
            f"{group} must not run on {entry.host}: {entry.reason}",
            entry.until_s,
            entry.incident_id,
            admitted=_admitted(group, known, refused[group], evicted, now_s),
            refused=frozenset(sorted(refused[group])[-IDS_MAX:]),
        )
        for group, entry in barred.items()
    ]


def _held_out(
    entry: QuarantineEntry,
    known: Sequence[Incarnation],
    evicted: Mapping[ReplicaId, Denial],
    now_s: float,
    astray: frozenset[ReplicaId],
) -> Denial:
    """A group that may come back nowhere; what ran before goes on, unless its host forbids it."""
    mine = [one for one in known if one.group == entry.name]
    settled = {one.replica_id for one in mine if _settled(one, entry, evicted, now_s)}
    admitted = settled - astray
    refused = [one.replica_id for one in mine if one.replica_id not in admitted]
    return _denial(
        Scope.GROUP,
        entry.name,
        f"{entry.name} is quarantined: {entry.reason}",
        entry.until_s,
        entry.incident_id,
        admitted=frozenset(admitted),
        refused=frozenset(refused[-IDS_MAX:]),
    )


def _admitted(
    group: GroupName,
    known: Sequence[Incarnation],
    refused: set[ReplicaId],
    evicted: Mapping[ReplicaId, Denial],
    now_s: float,
) -> frozenset[ReplicaId]:
    found = [
        one.replica_id
        for one in known
        if one.group == group
        and one.replica_id not in refused
        and one.replica_id not in evicted
        and (len(one.ranks) >= one.world_size or now_s - one.first_seen_s >= SETTLE_S)
    ]
    return frozenset(found[-IDS_MAX:])


def _denial(
    scope: Scope,
    name: str,
    reason: str,
    until_s: float | None,
    incident_id: str | None,
    *,
    admitted: frozenset[ReplicaId] = frozenset(),
    refused: frozenset[ReplicaId] = frozenset(),
) -> Denial:
    plain = "".join(c if c.isprintable() else " " for c in " ".join(reason.split()))
    return Denial(
        scope=scope,
        name=name,
        reason=plain[:REASON_MAX] or "no reason given",
        until_s=until_s,
        incident_id=incident_id,  # type: ignore[arg-type]
        admitted=admitted,
        refused=refused,
    )

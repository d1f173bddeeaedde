"""What has to be noted while an incident happens, because nobody can tell it later. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from monitor.incident import Incident
from monitor.names import GroupName, Host, IncidentId
from monitor.snapshot import Observation, Snapshot

Hosts = Mapping[GroupName, tuple[Host, ...]]


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """The fleet when the incident began to fire."""

    own: int
    """Ranks of the accused groups, dead ones too."""
    others: int
    """Ranks of the other groups that were alive: those who wait, or would."""
    hosts: Hosts = field(default_factory=dict)
    """Where the accused groups ran."""
    back_on: Hosts = field(default_factory=dict)
    """Where they ran when they committed again."""
    within: IncidentId | None = None
    """Whose account has what this one lost: that of the incident that accused a group when a person
    evicted it, or that of the person's eviction where the incident came of it."""


def facts_of(
    snapshot: Snapshot, incident: Incident, within: IncidentId | None = None
) -> FleetFacts:
    """The fleet as this tick shows it."""
    return facts_of_groups(snapshot, incident.groups, within)


def facts_of_groups(
    snapshot: Snapshot, groups: Collection[GroupName], within: IncidentId | None = None
) -> FleetFacts:
    """The fleet as this tick shows it, these groups being put out."""
    own = [one for one in snapshot.observations if one.identity.group in groups]
    rest = [one for one in snapshot.observations if one.identity.group not in groups]
    others = [one for one in rest if _alive(one)]
    return FleetFacts(
        own=len(own),
        others=len(others),
        hosts=_hosts(snapshot, groups),
        within=within,
    )


def return_to(facts: FleetFacts, snapshot: Snapshot, groups: Collection[GroupName]) -> FleetFacts:
    """The same, and where these groups came back."""
    return replace(facts, back_on=_hosts(snapshot, groups))


def _alive(one: Observation) -> bool:
    return one.report is not None and one.report.process.alive


def _hosts(snapshot: Snapshot, groups: Collection[GroupName]) -> Hosts:
    found: dict[GroupName, set[Host]] = {}
    for one in snapshot.observations:
        if one.identity.group in groups:
            found.setdefault(one.identity.group, set()).add(one.identity.host)
    return {group: tuple(sorted(hosts)) for group, hosts in sorted(found.items())}


def facts_to_json(facts: FleetFacts) -> dict[str, Any]:
    """Plain JSON types."""
    return {
        "own": facts.own,
        "others": facts.others,
        "hosts": {group: list(hosts) for group, hosts in facts.hosts.items()},
        "back_on": {group: list(hosts) for group, hosts in facts.back_on.items()},
        "within": facts.within,
    }


def facts_from_json(body: Any) -> FleetFacts | None:
    """Inverse of `facts_to_json`; None for anything else."""
    try:
        own, others = int(body["own"]), int(body["others"])
        hosts, back_on = _read(body["hosts"]), _read(body.get("back_on", {}))
        within = body.get("within")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    if min(own, others) < 0:
        return None
    return FleetFacts(
        own=own,
        others=others,
        hosts=hosts,
        back_on=back_on,
        within=None if within is None else IncidentId(str(within)),
    )


def _read(body: Mapping[str, Any]) -> Hosts:
    return {
        GroupName(str(group)): tuple(Host(str(host)) for host in hosts)
        for group, hosts in body.items()
    }

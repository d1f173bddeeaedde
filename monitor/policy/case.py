"""One incident before the guards, and what a guard may object."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from monitor.config import KeeperConfig
from monitor.incident import Incident
from monitor.names import GroupName, Host
from monitor.policy.facts import Fleet, GroupView, PastEviction
from monitor.policy.rules import Action, Policy


@dataclass(frozen=True, slots=True)
class Objection:
    """Why not, and what would lift that."""

    reason: str
    release: str
    """What a person can do, or what happens by itself, in whole sentences."""


@dataclass(frozen=True, slots=True)
class Case:
    """One incident, and all that a guard may look at."""

    config: KeeperConfig
    policy: Policy
    fleet: Fleet
    incident: Incident
    group: GroupName

    @property
    def by_hand(self) -> str:
        """What always remains to a person."""
        first, *others = [shlex.quote(group) for group in self.incident.groups] or [self.group]
        also = f" (or {', '.join(others[:3])})" if others else ""
        return f"To evict it yourself: lightkeeper evict {first}{also}"

    @property
    def view(self) -> GroupView | None:
        """The accused group; None when it is registered no more."""
        return self.fleet.groups.get(self.group)

    @property
    def action(self) -> Action:
        """What the operator allows for such an incident."""
        return self.policy.action(self.incident.kind, self.incident.severity)

    @property
    def only_observed(self) -> bool:
        """Whether an eviction would be recorded and not carried out."""
        return self.config.observe or self.action is Action.OBSERVE

    @property
    def past(self) -> tuple[PastEviction, ...]:
        """Evictions that count against this one: for one that is only observed also those that
        were, so that the record is what would have been.
        """
        again, own = self.fleet.cut_short, self.incident.id
        past = tuple(one for one in self.fleet.past if one.incident_id != own or own not in again)
        return (*past, *self.fleet.would) if self.only_observed else past

    def shares_stand(self, groups: Iterable[GroupName]) -> bool:
        """Whether the same healthy groups wait for this one and for each of the others."""
        stand, others = self.fleet.waited_for, set(groups)
        return self.group in stand - others and others <= stand

    def dead_hosts(self) -> frozenset[Host]:
        """Hosts of this group on which nothing lives any more."""
        return hosts_of(self.fleet, self.group) & self.fleet.dead_hosts

    def shares_dead_host(self, groups: Iterable[GroupName]) -> bool:
        """Whether one dead host carried ranks of this group and of each of the others."""
        return any(
            all(host in hosts_of(self.fleet, other) for other in groups)
            for host in self.dead_hosts()
        )


def hosts_of(fleet: Fleet, group: GroupName) -> frozenset[Host]:
    """Hosts on which ranks of a group are."""
    view = fleet.groups.get(group)
    return frozenset() if view is None else frozenset(view.hosts.values())

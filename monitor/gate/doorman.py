"""Who may pass: the list in force, and what is remembered of those it is about.

Theory of operation. A replica id passes unless an entry of the list names it: by itself, by the
host in its manager's address (known from its first quorum request on), or by its group. An entry
of a group knows ids that it refuses and ids that it admits; one that it does not know is *held*:
its heartbeats are refused, so that nobody waits for it, and its quorum request waits for a newer
list. When none comes in time it is waved through, and its heartbeats with it: who cannot be
asked denies nobody. Time is an argument; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from monitor.gate.denial import Denial, Scope
from monitor.names import GroupName, Host, ReplicaId, group_of_replica


class Ruling(Enum):
    """What becomes of a call."""

    PASS = "pass"  # noqa: S105 - no password
    REFUSE = "refuse"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A ruling, and why."""

    ruling: Ruling
    reason: str = ""
    scope: Scope | None = None


PASSES = Verdict(Ruling.PASS)


@dataclass
class Doorman:
    """The list in force."""

    version: int = 0
    """Grows with every change: a verdict given under an older one is no longer one."""
    _replicas: dict[ReplicaId, Denial] = field(default_factory=dict)
    _hosts: dict[Host, Denial] = field(default_factory=dict)
    _groups: dict[GroupName, Denial] = field(default_factory=dict)
    _waved: set[ReplicaId] = field(default_factory=set)
    _until_s: float | None = None
    """When the first entry expires."""

    def replace(self, denials: Sequence[Denial], now_s: float) -> None:
        """Put this list in force."""
        before = self.denials
        self._replicas, self._hosts, self._groups = {}, {}, {}
        for denial in denials:
            if denial.expired(now_s):
                continue
            match denial.scope:
                case Scope.REPLICA:
                    self._replicas[ReplicaId(denial.name)] = denial
                case Scope.HOST:
                    self._hosts[Host(denial.name.lower().rstrip("."))] = denial
                case Scope.GROUP:
                    self._groups[GroupName(denial.name)] = denial
        self._waved = {known for known in self._waved if group_of_replica(known) in self._groups}
        ends = [d.until_s for d in self.denials if d.until_s is not None]
        self._until_s = min(ends, default=None)
        if self.denials != before:
            self.version += 1

    @property
    def denials(self) -> tuple[Denial, ...]:
        """In force, sorted."""
        every = [*self._replicas.values(), *self._hosts.values(), *self._groups.values()]
        return tuple(sorted(every, key=lambda denial: (denial.scope, denial.name)))

    def expire(self, now_s: float) -> bool:
        """Drop what is over; whether anything was."""
        if self._until_s is None or now_s < self._until_s:
            return False
        self.replace(self.denials, now_s)
        return True

    def wave(self, replica_id: ReplicaId) -> None:
        """Nobody said whether this held id may pass: it may."""
        self._waved.add(replica_id)
        self.version += 1

    def judge(self, replica_id: ReplicaId, host: Host | None) -> Verdict:
        """What becomes of the calls of this replica id."""
        if (denial := self._replicas.get(replica_id)) is not None:
            return _refuse(denial, f"{replica_id} is refused")
        if host is not None and (denial := self._hosts.get(host)) is not None:
            return _refuse(denial, f"host {host} is quarantined")
        group = group_of_replica(replica_id)
        if (denial := self._groups.get(group)) is None or replica_id in denial.admitted:
            return PASSES
        if replica_id in denial.refused:
            return _refuse(denial, f"{group} is quarantined")
        if replica_id in self._waved:
            return PASSES
        reason = f"lightkeeper: {group} is quarantined and {replica_id} not yet admitted"
        return Verdict(Ruling.HOLD, f"{reason}: {denial.reason}", denial.scope)


def _refuse(denial: Denial, what: str) -> Verdict:
    incident = "" if denial.incident_id is None else f" (incident {denial.incident_id})"
    return Verdict(Ruling.REFUSE, f"lightkeeper: {what}: {denial.reason}{incident}", denial.scope)

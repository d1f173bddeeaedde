"""Whom the gate refuses, by the monitor's list, and what the gate reports. Pure.

Theory of operation. A replica id passes unless a list entry names it: by id, by the host in its
manager's address (known from its first quorum request on), or by its group. A group entry lists
ids that it refuses and ids that it admits. Any other id is *held*: its heartbeats are refused, so
that nobody waits for it, and its quorum request waits for a newer list. If none comes in time, the
id is waved through, with its heartbeats: a monitor that does not answer denies nobody. Time is an
argument; nothing here waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec

from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, ReplicaId, group_of_replica
from lightkeeper.monitor.model.plain import from_plain, readable

NAME_MAX: Final = 1024
"""Characters of a name: TorchFT's replica ids take about 50."""
REASON_MAX: Final = 2000
DENIALS_MAX: Final = 10_000
IDS_MAX: Final = 10_000
"""Replica ids in one entry; a group that restarts once a minute makes 1,440 a day."""

Name = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
Ids = Annotated[
    frozenset[Annotated[ReplicaId, msgspec.Meta(max_length=NAME_MAX)]],
    msgspec.Meta(max_length=IDS_MAX),
]
Seconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]


class DenialScope(StrEnum):
    """What a denial's name refers to."""

    REPLICA = "replica"
    """One replica id, exactly."""
    HOST = "host"
    """Members whose manager's address names this host."""
    GROUP = "group"
    """A replica group: the ids in `refused` are refused, unknown ones are held."""


@dataclass(frozen=True, slots=True)
class Denial:
    scope: DenialScope
    name: Name
    reason: Annotated[str, msgspec.Meta(max_length=REASON_MAX)]
    until_s: Seconds | None = None
    """Unix seconds; None: until it is taken off the list."""
    incident_id: Annotated[IncidentId, msgspec.Meta(max_length=NAME_MAX)] | None = None
    admitted: Ids = frozenset()
    """For scope group: incarnations that may pass (they started on a good host)."""
    refused: Ids = frozenset()
    """For scope group: incarnations that may not pass."""

    def expired(self, now_s: float) -> bool:
        return self.until_s is not None and self.until_s <= now_s


@dataclass(frozen=True, slots=True)
class AccessRefused:
    reason: str
    scope: DenialScope
    held: bool = False
    """Not yet decided for this incarnation: its quorum request waits for a newer list."""


@dataclass
class DenyList:
    version: int = 0
    """Grows with every change: decisions under an older version are void."""
    _of: dict[tuple[DenialScope, str], Denial] = field(default_factory=dict)
    """By what each refers to."""
    _waved: set[ReplicaId] = field(default_factory=set)
    _until_s: float | None = None
    """When the first entry expires."""

    def replace(self, denials: Sequence[Denial], now_s: float) -> bool:
        """Put this list in force; returns whether it changed."""
        before = self.denials
        sound = [denial for denial in denials if not denial.expired(now_s)]
        self._of = {(denial.scope, _plain_name(denial)): denial for denial in sound}
        group = DenialScope.GROUP
        self._waved = {i for i in self._waved if (group, group_of_replica(i)) in self._of}
        ends = [denial.until_s for denial in self.denials if denial.until_s is not None]
        self._until_s = min(ends, default=None)
        changed = self.denials != before
        self.version += changed
        return changed

    @property
    def denials(self) -> tuple[Denial, ...]:
        """The entries in force, sorted."""
        return tuple(sorted(self._of.values(), key=lambda denial: (denial.scope, denial.name)))

    def expire(self, now_s: float) -> bool:
        """Drop expired entries; returns whether there were any."""
        if self._until_s is None or now_s < self._until_s:
            return False
        return self.replace(self.denials, now_s)

    def wave(self, replica_id: ReplicaId) -> None:
        """Let a held id pass that no list decided on."""
        self._waved.add(replica_id)
        self.version += 1

    def refusal(self, replica_id: ReplicaId, host: Host | None) -> AccessRefused | None:
        """Why the calls of this replica id do not pass; None: they do."""
        if (denial := self._of.get((DenialScope.REPLICA, replica_id))) is not None:
            return _refuse(denial, f"{replica_id} is refused")
        if host is not None and (denial := self._of.get((DenialScope.HOST, host))) is not None:
            return _refuse(denial, f"host {host} is quarantined")
        group = group_of_replica(replica_id)
        denial = self._of.get((DenialScope.GROUP, group))
        if denial is None or replica_id in denial.admitted:
            return None
        if replica_id in denial.refused:
            return _refuse(denial, f"{group} is quarantined")
        if replica_id in self._waved:
            return None
        reason = f"lightkeeper: {group} is quarantined and {replica_id} not yet admitted"
        return AccessRefused(f"{reason}: {denial.reason}", denial.scope, held=True)


def _plain_name(denial: Denial) -> str:
    """A host's as in a manager's address (`messages.host_of`)."""
    return denial.name.lower().rstrip(".") if denial.scope is DenialScope.HOST else denial.name


def _refuse(denial: Denial, what: str) -> AccessRefused:
    incident = "" if denial.incident_id is None else f" (incident {denial.incident_id})"
    return AccessRefused(f"lightkeeper: {what}: {denial.reason}{incident}", denial.scope)


# -- on the wire -------------------------------------------------------------------------------


@readable
@dataclass(frozen=True, slots=True)
class _List:
    denied: Annotated[list[Denial], msgspec.Meta(max_length=DENIALS_MAX)]


def denials_json(denials: Sequence[Denial]) -> dict[str, Any]:
    """What `parse_denials` reads; equal entries give equal JSON."""
    return wire_json(_List(list(denials)))


def wire_json(record: Any) -> dict[str, Any]:
    """Plain JSON types, sets sorted."""
    body: dict[str, Any] = msgspec.to_builtins(record, order="deterministic")
    return body


def parse_denials(data: Any) -> tuple[Denial, ...]:
    """The list of `{"denied": [...]}`, in its order, each entry once; unknown keys are ignored.

    Raises:
        ValueError: not such a list, or two entries name the same; the message is one line.
    """
    try:
        denials = from_plain(_List, data).denied
    except ValueError as exc:
        raise ValueError(str(exc)[:200]) from exc
    for number, denial in enumerate(denials):
        for text in (denial.name, denial.reason, denial.incident_id):
            if text is not None and not (text.strip() and text.isprintable()):
                raise ValueError(f"denied[{number}] holds no text, or what cannot be printed")
    names = Counter((denial.scope, denial.name) for denial in denials)
    for (scope, name), count in names.items():
        if count > 1:
            raise ValueError(f"two denials of {scope} {name[:80]!r}")
    return tuple(denials)


# -- What the gate reports: `GET /v1/gate`. Pure ---------------------------------------------------
# Ages are seconds at the moment of the answer; a missing value is None and never zero.

REPLICAS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class SeenReplica:
    replica_id: ReplicaId
    group: GroupName
    heartbeat_age_s: Seconds | None = None
    """Since its last heartbeat, refused or not; None: it sent none."""
    asking_for_s: Seconds | None = None
    """How long its quorum request has been open; None: none is."""
    step: int | None = None
    refused_for: str | None = None
    """Why its last call was refused; None: it was not."""


@readable
@dataclass(frozen=True, slots=True)
class GateView:
    lighthouse: str
    lighthouse_up: bool
    denied: tuple[Denial, ...]
    """In force; expired entries are not included."""
    replicas: Annotated[tuple[SeenReplica, ...], msgspec.Meta(max_length=REPLICAS_MAX)]
    age_s: Seconds | None = None
    """Since it began to serve."""
    schema: Literal[1] = 1

    def seen(self, replica_id: ReplicaId) -> SeenReplica | None:
        return next((seen for seen in self.replicas if seen.replica_id == replica_id), None)


@dataclass(frozen=True, slots=True)
class GateAway:
    """There was no answer, or it was not a gate's."""

    reason: str

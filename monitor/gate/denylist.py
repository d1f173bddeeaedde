"""Whom the gate refuses, as the monitor teaches it, and what it says of itself. Pure.

Theory of operation. A replica id passes unless an entry of the list names it: by itself, by the
host in its manager's address (known from its first quorum request on), or by its group. An entry
of a group knows ids that it refuses and ids that it admits; one that it does not know is *held*:
its heartbeats are refused, so that nobody waits for it, and its quorum request waits for a newer
list. When none comes in time it is waved through, and its heartbeats with it: who cannot be
asked denies nobody. Time is an argument; nothing here waits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

from monitor.model.names import GroupName, Host, IncidentId, ReplicaId, group_of_replica

NAME_MAX: Final = 1024
"""Characters of a name: TorchFT's replica ids take about 50."""
REASON_MAX: Final = 2000
DENIALS_MAX: Final = 10_000
_TIME_MAX: Final = 1e12
IDS_MAX: Final = 10_000
"""Replica ids in one entry; a group that restarts once a minute makes 1,440 a day."""


class DenialError(ValueError):
    """Not a denial; the message is one line."""


class DenialScope(StrEnum):
    """What a denial's name is the name of."""

    REPLICA = "replica"
    """One replica id, exactly."""
    HOST = "host"
    """Members whose manager's address names this host."""
    GROUP = "group"
    """A replica group: the ids in `refused` are refused, unknown ones are held."""


@dataclass(frozen=True, slots=True)
class Denial:
    """One entry of the gate's list."""

    scope: DenialScope
    name: str
    reason: str
    until_s: float | None = None
    """Unix seconds; None: until it is taken off the list."""
    incident_id: IncidentId | None = None
    admitted: frozenset[ReplicaId] = frozenset()
    """Of scope group: incarnations that may pass (they started on a good host)."""
    refused: frozenset[ReplicaId] = frozenset()
    """Of scope group: incarnations that may not."""

    @property
    def group(self) -> GroupName | None:
        """The replica group that is denied, of scope group."""
        return GroupName(self.name) if self.scope is DenialScope.GROUP else None

    def expired(self, now_s: float) -> bool:
        """Whether its time is over."""
        return self.until_s is not None and self.until_s <= now_s

    def to_json(self) -> dict[str, Any]:
        """As it stands on the wire; the same entry always reads the same."""
        return {
            "scope": self.scope.value,
            "name": self.name,
            "reason": self.reason,
            "until_s": self.until_s,
            "incident_id": self.incident_id,
            "admitted": sorted(self.admitted),
            "refused": sorted(self.refused),
        }


@dataclass(frozen=True, slots=True)
class AccessRefused:
    """Why a call does not pass."""

    reason: str
    scope: DenialScope
    held: bool = False
    """Nobody said yet whether this incarnation may: its quorum request waits for a newer list."""


@dataclass
class DenyList:
    """The list in force."""

    version: int = 0
    """Grows with every change: an answer given under an older one is no longer one."""
    _replicas: dict[ReplicaId, Denial] = field(default_factory=dict)
    _hosts: dict[Host, Denial] = field(default_factory=dict)
    _groups: dict[GroupName, Denial] = field(default_factory=dict)
    _waved: set[ReplicaId] = field(default_factory=set)
    _until_s: float | None = None
    """When the first entry expires."""

    def replace(self, denials: Sequence[Denial], now_s: float) -> bool:
        """Put this list in force; whether it is another one."""
        before = self.denials
        self._replicas, self._hosts, self._groups = {}, {}, {}
        for denial in denials:
            if denial.expired(now_s):
                continue
            match denial.scope:
                case DenialScope.REPLICA:
                    self._replicas[ReplicaId(denial.name)] = denial
                case DenialScope.HOST:
                    self._hosts[Host(denial.name.lower().rstrip("."))] = denial
                case DenialScope.GROUP:
                    self._groups[GroupName(denial.name)] = denial
        self._waved = {waved for waved in self._waved if group_of_replica(waved) in self._groups}
        ends = [denial.until_s for denial in self.denials if denial.until_s is not None]
        self._until_s = min(ends, default=None)
        changed = self.denials != before
        self.version += changed
        return changed

    @property
    def denials(self) -> tuple[Denial, ...]:
        """In force, sorted."""
        every = [*self._replicas.values(), *self._hosts.values(), *self._groups.values()]
        return tuple(sorted(every, key=lambda denial: (denial.scope, denial.name)))

    def expire(self, now_s: float) -> bool:
        """Drop what is over; whether anything was."""
        if self._until_s is None or now_s < self._until_s:
            return False
        return self.replace(self.denials, now_s)

    def wave(self, replica_id: ReplicaId) -> None:
        """Nobody said whether this held id may pass: it may."""
        self._waved.add(replica_id)
        self.version += 1

    def refusal(self, replica_id: ReplicaId, host: Host | None) -> AccessRefused | None:
        """Why the calls of this replica id do not pass; None: they do."""
        if (denial := self._replicas.get(replica_id)) is not None:
            return _refuse(denial, f"{replica_id} is refused")
        if host is not None and (denial := self._hosts.get(host)) is not None:
            return _refuse(denial, f"host {host} is quarantined")
        group = group_of_replica(replica_id)
        if (denial := self._groups.get(group)) is None or replica_id in denial.admitted:
            return None
        if replica_id in denial.refused:
            return _refuse(denial, f"{group} is quarantined")
        if replica_id in self._waved:
            return None
        reason = f"lightkeeper: {group} is quarantined and {replica_id} not yet admitted"
        return AccessRefused(f"{reason}: {denial.reason}", denial.scope, held=True)


def _refuse(denial: Denial, what: str) -> AccessRefused:
    incident = "" if denial.incident_id is None else f" (incident {denial.incident_id})"
    return AccessRefused(f"lightkeeper: {what}: {denial.reason}{incident}", denial.scope)


# -- on the wire -------------------------------------------------------------------------------


def denials_json(denials: Sequence[Denial]) -> dict[str, Any]:
    """What `parse_denials` reads."""
    return {"denied": [denial.to_json() for denial in denials]}


def parse_denials(data: Any) -> tuple[Denial, ...]:
    """The list of `{"denied": [...]}`, in the order given, each entry once.

    Raises:
        DenialError: it is no such list, or two entries name the same.
    """
    entries = data.get("denied") if isinstance(data, Mapping) else None
    if not isinstance(entries, list):
        raise DenialError('expected {"denied": [...]}')
    if len(entries) > DENIALS_MAX:
        raise DenialError(f"{len(entries)} denials, at most {DENIALS_MAX}")
    denials = []
    for number, entry in enumerate(entries):
        try:
            denials.append(_parse_denial(entry))
        except DenialError as exc:
            raise DenialError(f"denied[{number}]: {exc}") from exc
    names = Counter((denial.scope, denial.name) for denial in denials)
    for (scope, name), count in names.items():
        if count > 1:
            raise DenialError(f"two denials of {scope} {name[:80]!r}")
    return tuple(denials)


def _parse_denial(data: Any) -> Denial:
    """Unknown keys are ignored."""
    if not isinstance(data, Mapping):
        raise DenialError(f"a denial is an object, not {type(data).__name__}")
    try:
        scope = DenialScope(str(data.get("scope")))
    except ValueError as exc:
        scopes = ", ".join(DenialScope)
        raise DenialError(f"scope is {str(data.get('scope'))[:40]!r}, expected {scopes}") from exc
    incident = data.get("incident_id")
    return Denial(
        scope=scope,
        name=_text(data, "name", NAME_MAX),
        reason=_text(data, "reason", REASON_MAX),
        until_s=_until_s(data.get("until_s")),
        incident_id=None if incident is None else IncidentId(_text(data, "incident_id", NAME_MAX)),
        admitted=_ids(data, "admitted"),
        refused=_ids(data, "refused"),
    )


def _text(data: Mapping[str, Any], key: str, longest: int) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value.strip():
        raise DenialError(f"{key} is missing or no text")
    if len(value) > longest:
        raise DenialError(f"{key} has {len(value)} characters, at most {longest}")
    if not value.isprintable():
        raise DenialError(f"{key} holds characters that cannot be printed")
    return value


def _until_s(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _TIME_MAX:
        raise DenialError("until_s is neither Unix seconds nor null")
    return float(value)


def _ids(data: Mapping[str, Any], key: str) -> frozenset[ReplicaId]:
    value = data.get(key)
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DenialError(f"{key} is no list of replica ids")
    if len(value) > IDS_MAX or any(len(item) > NAME_MAX for item in value):
        raise DenialError(f"{key}: too many or too long replica ids")
    return frozenset(ReplicaId(item) for item in value)


# -- What the gate says of itself: `GET /v1/gate`, to and from JSON. Pure -------------------------
# Ages are seconds at the moment of the answer; a missing value is None and never zero.

SCHEMA: Final = 1
REPLICAS_MAX: Final = 100_000
_SECONDS_MAX: Final = 1e12
T = TypeVar("T")


class GateError(ValueError):
    """Not the answer of a gate; the message is one line."""


@dataclass(frozen=True, slots=True)
class SeenReplica:
    """One replica id as the gate saw it."""

    replica_id: ReplicaId
    group: GroupName
    heartbeat_age_s: float | None
    """Since its last heartbeat, refused or not; None: it sent none."""
    heartbeats: int
    quorum_requests: int
    asking_for_s: float | None
    """How long its quorum request is under way; None: none is."""
    step: int | None
    commit_failures: int | None
    address: str | None
    store_address: str | None
    world_size: int | None
    refused: int
    """Heartbeats and quorum requests refused."""
    refused_for: str | None
    """Why the last one was, if that is still so."""


@dataclass(frozen=True, slots=True)
class GateView:
    """A gate, now."""

    lighthouse: str
    lighthouse_up: bool
    denied: tuple[Denial, ...]
    """In force; what has expired is no longer here."""
    replicas: tuple[SeenReplica, ...]

    def seen(self, replica_id: ReplicaId) -> SeenReplica | None:
        """What it knows of a replica id."""
        return next((seen for seen in self.replicas if seen.replica_id == replica_id), None)

    def to_json(self) -> dict[str, Any]:
        """As it stands on the wire."""
        return {
            "schema": SCHEMA,
            "lighthouse": self.lighthouse,
            "lighthouse_up": self.lighthouse_up,
            "denied": [denial.to_json() for denial in self.denied],
            "replicas": [asdict(seen) for seen in self.replicas],
        }


@dataclass(frozen=True, slots=True)
class GateAway:
    """The gate did not answer, or not as one."""

    reason: str


def parse_view(data: Any) -> GateView:
    """A gate's answer; unknown keys are ignored.

    Raises:
        GateError: it is none.
    """
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        raise GateError(f"no answer of a gate with schema {SCHEMA}")
    replicas, up = data.get("replicas"), data.get("lighthouse_up")
    if not isinstance(replicas, list) or not isinstance(up, bool):
        raise GateError("replicas or lighthouse_up is missing or ill-typed")
    if len(replicas) > REPLICAS_MAX:
        raise GateError(f"{len(replicas)} replicas, at most {REPLICAS_MAX}")
    try:
        return GateView(
            lighthouse=_optional(data, "lighthouse", str) or "",
            lighthouse_up=up,
            denied=parse_denials(data),
            replicas=tuple(_seen(entry) for entry in replicas),
        )
    except DenialError as exc:
        raise GateError(str(exc)) from exc


def _seen(data: Any) -> SeenReplica:
    if not isinstance(data, Mapping):
        raise GateError("a replica is no object")
    replica_id = _optional(data, "replica_id", str)
    if not replica_id:
        raise GateError("a replica without a replica_id")
    return SeenReplica(
        replica_id=ReplicaId(replica_id),
        group=GroupName(_optional(data, "group", str) or replica_id.partition(":")[0]),
        heartbeat_age_s=_optional(data, "heartbeat_age_s", float),
        heartbeats=_optional(data, "heartbeats", int) or 0,
        quorum_requests=_optional(data, "quorum_requests", int) or 0,
        asking_for_s=_optional(data, "asking_for_s", float),
        step=_optional(data, "step", int),
        commit_failures=_optional(data, "commit_failures", int),
        address=_optional(data, "address", str),
        store_address=_optional(data, "store_address", str),
        world_size=_optional(data, "world_size", int),
        refused=_optional(data, "refused", int) or 0,
        refused_for=_optional(data, "refused_for", str),
    )


def _optional(data: Mapping[str, Any], key: str, kind: type[T]) -> T | None:
    value = data.get(key)
    if value is None:
        return None
    if kind is float and isinstance(value, int) and abs(value) < _SECONDS_MAX:
        value = value if isinstance(value, bool) else float(value)
    finite = not isinstance(value, float) or math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, kind) or not finite:
        raise GateError(f"{key} is no {kind.__name__}")
    return value

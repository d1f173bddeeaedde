"""Whom the gate refuses: one entry of its list, to and from JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from monitor.names import GroupName, IncidentId, ReplicaId

NAME_MAX: Final = 1024
"""Characters of a name: TorchFT's replica ids take about 50."""
REASON_MAX: Final = 2000
DENIALS_MAX: Final = 10_000
IDS_MAX: Final = 10_000
"""Replica ids in one entry; a group that restarts once a minute makes 1,440 a day."""


class DenialError(ValueError):
    """Not a denial; the message is one line."""


class Scope(StrEnum):
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

    scope: Scope
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
        return GroupName(self.name) if self.scope is Scope.GROUP else None

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


def parse_denial(data: Any) -> Denial:
    """An entry from JSON; unknown keys are ignored.

    Raises:
        DenialError: it is none.
    """
    if not isinstance(data, Mapping):
        raise DenialError(f"a denial is an object, not {type(data).__name__}")
    try:
        scope = Scope(str(data.get("scope")))
    except ValueError as exc:
        known = ", ".join(Scope)
        raise DenialError(f"scope is {str(data.get('scope'))[:40]!r}, expected {known}") from exc
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
            denials.append(parse_denial(entry))
        except DenialError as exc:
            raise DenialError(f"denied[{number}]: {exc}") from exc
    names = [(denial.scope, denial.name) for denial in denials]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DenialError(f"two denials of {twice[0]} {twice[1][:80]!r}")
    return tuple(denials)


def denials_json(denials: Sequence[Denial]) -> dict[str, Any]:
    """What `parse_denials` reads."""
    return {"denied": [denial.to_json() for denial in denials]}


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
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
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

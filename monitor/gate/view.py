"""What the gate says of itself: `GET /v1/gate`, to and from JSON. Pure.

Ages are seconds at the moment of the answer; a missing value is None and never zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from monitor.gate.denylist import Denial, DenialError, parse_denials
from monitor.model.names import GroupName, ReplicaId

SCHEMA: Final = 1
REPLICAS_MAX: Final = 100_000
_SECONDS_MAX: Final = 1e12
T = TypeVar("T")


class GateError(ValueError):
    """Not the answer of a gate; the message is one line."""


@dataclass(frozen=True, slots=True)
class Seen:
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
    replicas: tuple[Seen, ...]

    def seen(self, replica_id: ReplicaId) -> Seen | None:
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


def _seen(data: Any) -> Seen:
    if not isinstance(data, Mapping):
        raise GateError("a replica is no object")
    replica_id = _optional(data, "replica_id", str)
    if not replica_id:
        raise GateError("a replica without a replica_id")
    return Seen(
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

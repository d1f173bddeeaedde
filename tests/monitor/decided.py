"""Evictions as the guards decide them, made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightkeeper.monitor.model.eviction import Accused, Eviction, EvictionState
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, ReplicaId


def to_evict(
    incident_id: IncidentId, group: GroupName, replica_id: ReplicaId | None,
    hosts: tuple[Host, ...] = (), reason: str = "", at_s: float = 0.0, **more: Any,
) -> Eviction:  # fmt: skip
    """Decided, and nobody has it; `hosts`: to quarantine."""
    return Eviction(
        incident_id, group, replica_id, at_s, decided_s=at_s, state=EvictionState.DECIDED,
        taken_up=False, quarantine=hosts, reason=reason, **more,
    )  # fmt: skip


def decided(evict: Eviction, accused: tuple[Accused, ...], now_s: float, **more: Any) -> Eviction:
    return replace(evict, asked_s=now_s, decided_s=now_s, accused=accused, **more)

"""Hosts as JSON: their quarantine, its history, their record. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from monitor.names import Host, RankName, split_rank_name
from monitor.quarantine.record import HostRecord
from monitor.store import QuarantineEntry, QuarantineEvent, Scope
from monitor.view.values import bundle_url


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

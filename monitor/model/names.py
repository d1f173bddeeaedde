"""The domain's names as types, and addresses. Source of most names: `worker_server.wire`."""

from __future__ import annotations

from typing import NewType
from urllib.parse import urlsplit

from lightkeeper.worker_server.wire import (
    GroupName,
    Host,
    RankName,
    ReplicaId,
    rank_name,
    split_rank_name,
)

IncidentId = NewType("IncidentId", str)
RunId = NewType("RunId", str)

__all__ = [
    "GroupName",
    "Host",
    "IncidentId",
    "RankName",
    "ReplicaId",
    "RunId",
    "group_of",
    "group_of_replica",
    "may_be_of",
    "rank_name",
    "split_rank_name",
    "unseen_name",
]


def group_of(rank: RankName) -> GroupName:
    """Replica group of a rank: `rg_1` for `rg_1.0`."""
    return split_rank_name(rank)[0]


def unseen_name(replica_id: ReplicaId) -> GroupName:
    """Name of a participant that no WorkerServer reports: `rg_1~1f0c2d3e`."""
    name, _, uuid = replica_id.partition(":")
    return GroupName(f"{name}~{uuid[:8]}")


def may_be_of(replica_id: ReplicaId, group: GroupName) -> bool:
    """True if a replica id can be this group's: it has its name, or no name at all."""
    return group in (group_of_replica(replica_id), unseen_name(replica_id)) or ":" not in replica_id


def group_of_replica(replica_id: ReplicaId) -> GroupName:
    """Stable group name of a replica id: what TorchFT was given, without its `:uuid`."""
    return GroupName(replica_id.partition(":")[0])


# -- Addresses as people write them, and what is shown of a URL that may hold a secret. Pure ------


def host_and_port(text: str) -> tuple[str, int] | None:
    """The parts of `HOST:PORT` or `[V6]:PORT`; None: no such address."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        return None
    return host, int(port)


def one_line(text: object, max_chars: int = 200) -> str:
    """With single spaces between words, and cut."""
    return " ".join(str(text).split())[:max_chars]


def shown_url(url: str) -> str:
    """Scheme, host and port: the rest may be the secret."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if parts.port is None else f":{parts.port}")


def without_secrets(url: str, text: str) -> str:
    """The text without anything of the URL but its host."""
    parts = urlsplit(url)
    clean = text.replace(url, shown_url(url))
    for secret in (parts.path, parts.query, parts.password or ""):
        clean = clean.replace(secret, "...") if len(secret) > 1 else clean
    return clean

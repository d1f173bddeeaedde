"""The domain's names as types. Source of most: `worker_server.wire`."""

from __future__ import annotations

from typing import Final, NewType

from worker_server.wire import GroupName, Host, RankName, ReplicaId, rank_name, split_rank_name

IncidentId = NewType("IncidentId", str)
MANUAL: Final = "manual-"
"""How the ids of evictions begin that a person asked for."""

__all__ = [
    "MANUAL",
    "GroupName",
    "Host",
    "IncidentId",
    "RankName",
    "ReplicaId",
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
    """Whether a replica id can be this group's: it has its name, or none of its own."""
    return group in (group_of_replica(replica_id), unseen_name(replica_id)) or ":" not in replica_id


def group_of_replica(replica_id: ReplicaId) -> GroupName:
    """Stable group name of a replica id: what TorchFT was given, without its `:uuid`."""
    return GroupName(replica_id.partition(":")[0])

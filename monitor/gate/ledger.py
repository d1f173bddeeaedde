"""What the gate saw of each replica id: bounded, and forgotten after a silence."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from monitor.gate.denial import Scope
from monitor.gate.doorman import PASSES, Verdict
from monitor.gate.messages import Asking
from monitor.gate.view import Seen
from monitor.names import Host, ReplicaId, group_of_replica

SILENT_S: Final = 120.0
"""A replica id that said nothing for so long is forgotten: TorchFT's is 5 s, and an id that
restarts never comes back."""
REPLICAS_MAX: Final = 20_000
"""Replica ids that are remembered; beyond, calls pass unseen."""
BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


@dataclass(slots=True)
class Entry:
    """One replica id. Times are of the loop's clock."""

    replica_id: ReplicaId
    born_s: float
    heartbeat_s: float | None = None
    heartbeats: int = 0
    answered_s: float | None = None
    """When the heartbeat was passed on that the Lighthouse answered last."""
    quorum_requests: int = 0
    asking_since_s: float | None = None
    heard_s: float = 0.0
    host: Host | None = None
    asking: Asking | None = None
    refused: int = 0
    verdict: Verdict = PASSES
    version: int = -1
    """Of the list under which the verdict was given."""

    def seen(self, now_s: float) -> Seen:
        """As it stands in the view."""
        said = self.asking
        beat, since = self.heartbeat_s, self.asking_since_s
        return Seen(
            replica_id=self.replica_id,
            group=group_of_replica(self.replica_id),
            heartbeat_age_s=None if beat is None else round(now_s - beat, 3),
            heartbeats=self.heartbeats,
            quorum_requests=self.quorum_requests,
            asking_for_s=None if since is None else round(now_s - since, 3),
            step=None if said is None else said.step,
            commit_failures=None if said is None else said.commit_failures,
            address=None if said is None else said.address,
            store_address=None if said is None else said.store_address,
            world_size=None if said is None else said.world_size,
            refused=self.refused,
            refused_for=self.verdict.reason or None,
        )


@dataclass
class Counts:
    """Since the start; read by `metrics`."""

    heartbeats: int = 0
    quorum_requests: int = 0
    unread: int = 0
    """Messages that passed because they could not be read."""
    refused: dict[Scope, int] = field(default_factory=lambda: dict.fromkeys(Scope, 0))
    waved: int = 0
    upstream_retries: int = 0
    resent: int = 0
    bad_clients: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))

    def took(self, seconds: float) -> None:
        """A heartbeat was answered by the Lighthouse that much after it was passed on."""
        self.seconds += seconds
        self.buckets[bisect_left(BUCKETS_S, seconds)] += 1


class Ledger:
    """Every replica id that was heard of lately."""

    def __init__(self) -> None:
        self.entries: dict[ReplicaId, Entry] = {}
        self.counts = Counts()

    def entry(self, replica_id: ReplicaId, now_s: float) -> Entry | None:
        """Of this replica id; None when there are too many."""
        found = self.entries.get(replica_id)
        if found is None and len(self.entries) < REPLICAS_MAX:
            found = self.entries[replica_id] = Entry(replica_id, now_s)
        if found is not None:
            found.heard_s = now_s
        return found

    def forget(self, now_s: float) -> None:
        """Drop those who fell silent."""
        for replica_id, entry in list(self.entries.items()):
            if entry.asking_since_s is None and now_s - entry.heard_s > SILENT_S:
                del self.entries[replica_id]

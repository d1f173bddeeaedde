"""Which replica id was seen on which host, as far as its ranks' reports tell. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from monitor.model.names import GroupName, Host, RankName, ReplicaId
from monitor.model.observation import Observation

KEPT_S = 24 * 3600.0
"""An id not seen for so long is dead: a denial lasts no longer either."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a replica group, by its replica id."""

    replica_id: ReplicaId
    group: GroupName
    world_size: int
    hosts: frozenset[Host]
    ranks: frozenset[RankName]
    """Seen so far under this id."""
    born_s: float
    """Unix time of its first rank's start by its own account; else when it was first seen, and
    before all time when that was the first tick of this monitor."""
    first_seen_s: float
    seen_s: float


@dataclass(slots=True)
class ReplicaHosts:
    """All incarnations of the last day."""

    known: dict[ReplicaId, Incarnation] = field(default_factory=dict)
    _looked: bool = False

    def saw(
        self,
        observations: Iterable[Observation],
        now_s: float,
        born: Callable[[RankName], float | None] = lambda _: None,
    ) -> None:
        """Take in one tick; `born` says when a rank attached, by its own account."""
        unknown_s = now_s if self._looked else float("-inf")
        for seen in observations:
            report, identity = seen.report, seen.identity
            step = None if report is None else report.step
            if report is None or step is None or step.replica_id is None:
                continue
            if not report.process.alive:
                continue
            self._looked = True
            told_s = born(seen.rank)
            born_s = unknown_s if told_s is None else told_s
            one = self.known.get(step.replica_id) or Incarnation(
                replica_id=step.replica_id,
                group=identity.group,
                world_size=identity.world_size,
                hosts=frozenset(),
                ranks=frozenset(),
                born_s=born_s,
                first_seen_s=now_s,
                seen_s=now_s,
            )
            self.known[step.replica_id] = replace(
                one,
                hosts=one.hosts | {identity.host},
                ranks=one.ranks | {seen.rank},
                born_s=min(one.born_s, born_s),
                seen_s=now_s,
            )
        for replica_id, one in list(self.known.items()):
            if now_s - one.seen_s > KEPT_S:
                del self.known[replica_id]

    def all(self) -> tuple[Incarnation, ...]:
        """Sorted by replica id."""
        return tuple(self.known[name] for name in sorted(self.known))

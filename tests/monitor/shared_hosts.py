"""The in-memory fleet on hosts: shared by groups, lost as a whole, quarantined, replaced by spares.

What the plain fleet leaves out: a launcher that asks for admission (a group does not come back on
a host that is quarantined or lost, but on a spare), a Lighthouse whose page names its flag, an
evictor that ends with its monitor, and the truth about who is sick, against which decisions are
judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lightkeeper.monitor.model.eviction import Eviction
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import (
    Failure,
    LighthouseAway,
    LighthouseView,
    Pause,
    Snapshot,
)
from tests.monitor.fleet import At, Fault, SimFleet, SimRank

FORGIVEN_S = 90.0
"""A fault that healed may still be acted on for so long: a straggler is told by windows."""


class HostFleet(SimFleet):
    """G groups of W ranks on hosts; host n carries rank 1 of group n - 1 and rank 0 of group n."""

    def __init__(
        self, groups: int, world_size: int, script: Sequence[At] = (), *,
        lighthouse_min: int | None = None, spares: int = 6, **options,
    ) -> None:  # fmt: skip
        super().__init__(groups, world_size, script, **options)
        self.lighthouse_min = lighthouse_min
        self.spares = [f"spare{n}" for n in range(spares)]
        self.lost: set[str] = set()
        self.quarantined: set[str] = set()
        self.pause: Pause | None = None
        self.left: dict[str, Eviction] = {}
        """Incident -> its eviction that a restart of the monitor left without an end."""
        self.sick_until_s: dict[str, float] = {}
        """Group -> until when acting on it is right: for ever while its fault lasts."""
        for number, ranks in enumerate(self.groups.values()):
            for rank in ranks:
                rank.host = f"host{number + rank.index}"
                rank.__dict__.pop("identity", None)

    # -- the truth ---------------------------------------------------------------------------

    def harm(self, rank: str, fault: Fault) -> Fault:
        """The fault, known to the tests."""

        def do(fleet: SimFleet) -> None:
            fault(fleet)
            self.sick_until_s[rank.partition(".")[0]] = float("inf")

        return do

    def relent(self, group: str) -> None:
        """A fault of this group ended by itself."""
        if self.sick_until_s.get(group) == float("inf"):
            self.sick_until_s[group] = self.now_s + FORGIVEN_S

    def sick(self, group: str) -> bool:
        """Whether it is right to evict it now."""
        return self.now_s <= self.sick_until_s.get(group, 0.0)

    def hosts(self, group: str) -> set[str]:
        return {rank.host for rank in self.groups[group]}

    def dead_hosts(self) -> set[str]:
        alive = {rank.host for rank in self.ranks() if rank.alive and rank.host not in self.lost}
        return {rank.host for rank in self.ranks()} - alive

    def able(self, group: str) -> bool:
        """Whether it contributes, or stands ready for the next quorum."""
        ranks = self.groups[group]
        ready = all(rank.place == "cross" and not rank.stopped for rank in ranks)
        return all(rank.alive for rank in ranks) and (group in self.quorum or ready)

    def going(self) -> set[str]:
        """Groups whose evictions are under way, those asked for at this very moment left out."""
        return {
            eviction.group
            for eviction in self.evictions.values()
            if eviction.left_quorum_s is None and eviction.failed is None
            if 0 < self.now_s - eviction.asked_s <= 90
        }

    # -- what happens ------------------------------------------------------------------------

    def lose(self, host: str) -> Fault:
        """The host is gone: its processes, and whoever would tell of them."""

        def do(_: SimFleet) -> None:
            self.lost.add(host)
            for rank in self.ranks():
                if rank.host == host:
                    self.kill(rank)
                    self.silent_until[rank.name] = (float("inf"), Failure.TIMEOUT)
                    self.sick_until_s[rank.group] = float("inf")

        return do

    def restart(self, group: str, start_s: float = 6.0) -> None:
        super().restart(group, start_s)
        self.sick_until_s.pop(group, None)
        for rank in self.groups[group]:
            self.silent_until.pop(RankName(rank.name), None)
            if rank.host in self.lost | self.quarantined and self.spares:
                self._move(rank)

    def _move(self, rank: SimRank) -> None:
        """To a spare; the ranks of a group that shared a host go on sharing one."""
        old = rank.host
        new = self.spares.pop(0)
        for other in self.groups[rank.group]:
            if other.host == old:
                other.host = new
                other.__dict__.pop("identity", None)

    def evict(self, decision: Eviction) -> None:
        self.quarantined.update(decision.quarantine)
        super().evict(decision)
        asked = self.evictions.pop(decision.incident_id)
        before = self.left.pop(decision.incident_id, None)
        if before is not None:  # asked again: the same eviction
            asked = replace(asked, decided_s=before.at_s, attempt=before.attempt + 1)
        self.evictions[f"{decision.incident_id}@{asked.asked_s}"] = asked

    def _evictor(self) -> None:
        over = {
            key: eviction for key, eviction in self.evictions.items() if eviction.failed is not None
        }
        self.evictions = {
            key: eviction for key, eviction in self.evictions.items() if key not in over
        }
        super()._evictor()
        self.evictions = {**over, **self.evictions}

    def end_evictor(self) -> None:
        """The monitor dies: what it had begun and not achieved is over."""
        for key, eviction in list(self.evictions.items()):
            if eviction.open:
                self.left[eviction.incident_id] = self.evictions.pop(key)

    # -- what the monitor sees ---------------------------------------------------------------

    def snapshot(self, *args, **kwargs) -> Snapshot:
        seen = super().snapshot(*args, **kwargs)
        pause = self.pause
        if pause is not None and pause.until_s is not None and seen.now_s >= pause.until_s:
            pause = self.pause = None
        return replace(seen, pause=pause)

    def _view(self) -> LighthouseView | LighthouseAway:
        view = super()._view()
        if isinstance(view, LighthouseAway) or self.lighthouse_min is None:
            return view
        least = self.lighthouse_min
        status = f"New quorum not ready, only have 0 participants, need min_replicas {least} [0/0]"
        return replace(view, status=status)

"""The simulated fleet with its time, its launcher and its evictor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lightkeeper.monitor.model.eviction import Eviction, EvictionState
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import Snapshot
from tests.monitor.fleet.rank import HELD, SLICE_S, START_S, WAITS, SimRank
from tests.monitor.fleet.seen import Seen


class SimFleet(Seen):
    """G groups of W ranks under one Lighthouse, and the clock."""

    def run_to(self, until_s: float) -> None:
        stands = False
        while self.now_s < until_s - 1e-9:
            self.now_s = round(self.now_s + SLICE_S, 6)
            while self.script and START_S + self.script[0].at_s <= self.now_s:
                self.script.pop(0).fault(self)
                stands = False
            stands = stands or self._slice()
        if stands:
            self._lighthouse()

    def _slice(self) -> bool:
        """One slice of time; True if all others are like it until somebody interferes."""
        acts = False
        met = []
        for ranks in self.groups.values():
            held = False
            for rank in ranks:
                if rank.place not in WAITS and not self._frozen(rank):
                    acts = True
                    rank.left_s -= SLICE_S
                    if rank.left_s <= 0:
                        self._advance(rank)
                held = held or rank.place in HELD
            if held:
                met.append(ranks)
        for ranks in met:
            acts = self._collectives(ranks) or acts
        acts = self._barrier() or acts
        acts = self._lighthouse() or acts
        if self.evictions or self.relaunch_at_s:
            self._evictor()
            return False
        return not acts and not self._changes_by_itself()

    def snapshot(self, wanted: Iterable[RankName] = (), past: Iterable[RankName] = ()) -> Snapshot:
        """The next tick: the world moves on by one tick, then is looked at."""
        lateness_s = self.late_ticks.pop(0) if self.late_ticks else 0.0
        if self.tick:
            self.run_to(self.now_s + self.tick_s + lateness_s)
        self.tick += 1
        seen = [self._observe(rank) for rank in sorted(self.ranks(), key=lambda r: r.name)]
        records = {name: self._record(name) for name in wanted}
        return Snapshot(
            now_s=self.now_s, tick=self.tick, lateness_s=lateness_s, observations=tuple(seen),
            lighthouse=self._view(), records=records, evictions=tuple(self.evictions.values()),
            steps={name: self._past(name) for name in past},
        )  # fmt: skip

    def restart(self, group: str, start_s: float = 6.0) -> None:
        self._leave(group)
        fresh = [
            SimRank(r.group, r.index, r.world_size, r.host, born=r.born + 1)
            for r in self.groups[group]
        ]
        for rank in fresh:
            rank.place, rank.phase = "start", "init"
            rank.phase_since_s, rank.left_s = self.now_s, start_s
        self.groups[group] = fresh
        self.released[group] = 0

    def evict(self, decision: Eviction) -> None:
        if decision.replica_id in self.ghosts:
            del self.ghosts[decision.replica_id]
        self.kept_out |= set(decision.keep_out)
        self.evictions[decision.incident_id] = Eviction(
            incident_id=decision.incident_id,
            group=decision.group,
            replica_id=decision.replica_id,
            asked_s=self.now_s,
            rungs=(),
        )

    def _evictor(self) -> None:
        for key, progress in list(self.evictions.items()):
            ranks = self.groups.get(progress.group, [])
            waited_s = self.now_s - progress.asked_s
            if progress.gone_s is None and waited_s >= 0.5 and self.evictor_works:
                for rank in ranks:
                    self.kill(rank)
                confirmed = replace(progress, gone_s=self.now_s, state=EvictionState.CONFIRMED)
                self.evictions[key] = confirmed
                if progress.group in self.groups:
                    self.relaunch_at_s[progress.group] = self.now_s + 3.0
            if (
                progress.gone_s is not None
                and progress.left_quorum_s is None
                and progress.group not in self.quorum
            ):
                self.evictions[key] = replace(progress, left_quorum_s=self.now_s)
        for group, at_s in list(self.relaunch_at_s.items()):
            if self.relaunch and self.now_s >= at_s and group not in self.kept_out:
                del self.relaunch_at_s[group]
                self.restart(group)

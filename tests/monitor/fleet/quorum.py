"""The quorum of the simulated fleet: who is in, whose commit goes through, who heals."""

from __future__ import annotations

from lightkeeper.worker_server.wire import Spoilt
from tests.changed import replace
from tests.monitor.fleet.program import Program
from tests.monitor.fleet.rank import HEARTBEAT_TIMEOUT_S, START_S, SimRank


class Quorum(Program):
    """Groups come and leave, commit and fail."""

    def _barrier(self) -> bool:
        """The attempt ends once all groups of the quorum are there; True if it does."""
        if self.now_s < self.no_quorum_until_s or any(self.ghosts.values()):
            return False
        if self.quorum.isdisjoint(self.groups):
            self.quorum = {name for name in self.groups if self._inside(name)}
            if self.quorum:
                self.quorum_id += 1
        if not self.quorum or not all(map(self._inside, self.quorum)) or self._in_transfer():
            return False
        joining = {name for name in self.groups if self._inside(name)} - self.quorum
        step = max(r.step for name in self.quorum for r in self.groups[name])
        if joining:
            self.quorum |= joining
            self.quorum_id += 1
        self._commit(step, joining)
        return True

    def _inside(self, group: str) -> bool:
        """Whether a group that is there waits for the others, whole."""
        ranks = self.groups.get(group)
        if ranks is None or self.now_s < self.outside.get(group, 0.0):
            return False
        return ranks[0].place == "cross" and all(
            rank.place == "cross" and rank.alive for rank in ranks
        )

    def _commit(self, step: int, joining: set[str]) -> None:
        """An attempt of all groups of the quorum ends."""
        failed = self._failed(step)
        bad = {name for name in self.quorum - joining if self._not_finite(self.groups[name])}
        clean = self.quorum - joining - bad
        for name in sorted(self.quorum):
            for rank in self.groups[name]:
                rank.waited_s += self.now_s - rank.across_since_s + 0.001  # the vote itself
                rank.begun_s = rank.across_since_s = self.now_s
                rank.quorum = self.quorum_id, len(self.quorum - joining)
                rank.across = 0 if joining else rank.across  # a new quorum has new process groups
                if rank.across_ring:
                    rank.across_ring[-1]["exit_s"] = self.now_s
                self._end(rank, step, name in joining, name in failed, bad, clean)
            if name in joining:
                self.heal(name, min(self.quorum - joining, default=name))
            elif name in bad and self.votes and clean:
                self.heal(name, min(clean))

    def _end(
        self, rank: SimRank, step: int, joins: bool, failed: bool, bad: set[str], clean: set[str]
    ) -> None:
        if rank.group in bad and self.votes:
            rank.failures += 1
            if clean:
                rank.step = step + 1
            self._work(rank, "optimizer")
            return
        if joins:
            rank.step = step
            rank.healing_until_s = self.now_s + 1.0
            rank.place, rank.left_s = "pause", 1.0
            rank.enter_phase("forward", self.now_s)
            return
        rank.errored, rank.healed = failed and rank.group in self.erring, rank.step < step
        if failed:
            rank.failures += 1
            self._work(rank, "optimizer")
            return
        if not clean and self.votes:
            return
        rank.committed = step
        rank.step, rank.commits = step + 1, rank.commits + 1
        rank.committed_s = self.now_s
        rank.tokens += rank.tokens_a_step
        rank.poisoned = rank.poisoned or bool(bad and not self.votes)
        self._fingerprint(rank)
        rank.log.append((rank.attempt, rank.step, self.now_s, dict(rank.seconds)))
        self._work(rank, "optimizer")

    def _not_finite(self, ranks: list[SimRank]) -> bool:
        """An attempt of a group ends: whether its gradient is NaN, and who remembers what."""
        own = [rank for rank in ranks if rank.nan_attempts > 0 or rank.poisoned]
        for rank in ranks:
            rank.nan_attempts -= rank.nan_attempts > 0
            if self.losses:
                noise = 1 + self.noise * self.random.uniform(-1, 1)
                rank.loss = None if rank.poisoned else 2.0 * rank.loss_factor * noise
            if own:
                self._spoil(rank, "local" if rank in own else "group")
            elif rank.spell is not None:
                rank.spell = replace(rank.spell, run=0)
        return bool(own)

    def _spoil(self, rank: SimRank, where: str) -> None:
        spell = rank.spell
        attempts = 1 if spell is None else spell.attempts + 1
        if spell is None or not spell.run:
            rank.spell_s = self.now_s
            rank.spell = Spoilt(rank.step, where, 0.0, 1, attempts)
        else:
            rank.spell = replace(spell, run=spell.run + 1, attempts=attempts)

    def _fingerprint(self, rank: SimRank) -> None:
        if self.fingerprint_every and rank.step % self.fingerprint_every == 0:
            value = 1000 * rank.step + rank.flaw
            rank.prints = [*rank.prints, (rank.step, value, 0)][-3:]

    def heal(self, group: str, source: str) -> None:
        """All ranks of a group take over the weights of another's."""
        for rank, other in zip(self.groups[group], self.groups[source], strict=True):
            rank.flaw, rank.poisoned = other.flaw, other.poisoned
            rank.lineage += 1
            rank.prints = []

    def _failed(self, step: int) -> set[str]:
        """Groups of the quorum whose commit fails; whoever is behind heals, and commits."""
        bad = {name for name, until_s in self.failing.items() if self.now_s < until_s}
        all_bad = self.quorum <= bad
        failed = {
            name
            for name in self.quorum & bad
            if all_bad or all(rank.step == step for rank in self.groups[name])
        }
        if failed and not all_bad:
            self.quorum_id += 1
        return failed

    def _in_transfer(self) -> bool:
        came_s = max(r.across_since_s for name in self.quorum for r in self.groups[name])
        return self.now_s - came_s < self.network_s - 1e-9

    def _lighthouse(self) -> bool:
        """Heartbeats; True if somebody of the quorum sends none."""
        if self.ghosts:
            self.heartbeat_s.update(dict.fromkeys(self.ghosts, self.now_s))
        beating = 0
        for name, ranks in self.groups.items():
            host = ranks[0]
            if host.alive and not host.stopped and host.place != "start":
                self.heartbeat_s[host.replica_id] = self.now_s
                beating += name in self.quorum
        if beating == len(self.quorum):
            return False
        for name in sorted(self.quorum):
            beat_s = (
                self.heartbeat_s.get(self.groups[name][0].replica_id, START_S)
                if name in self.groups
                else START_S
            )
            if self.now_s - beat_s > HEARTBEAT_TIMEOUT_S and len(self.quorum) > 1:
                self._leave(name)
        return True

    def _leave(self, group: str) -> None:
        if group in self.quorum:
            self.quorum.discard(group)
            self.quorum_id += 1
